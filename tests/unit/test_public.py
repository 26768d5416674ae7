"""The names that users rely on, and the examples that they read."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil

import pytest

import fedloom

NAMES = [
    "Algorithm",
    "Checkpoint",
    "Evaluation",
    "Experiment",
    "FedAvg",
    "Local",
    "LocalSGD",
    "Result",
    "Turnover",
    "__version__",
    "check",
    "load_runs",
]
FOUND = sorted(m.name for m in pkgutil.walk_packages(fedloom.__path__, "fedloom."))
# what Flower runs needs Flower: `make test-flower`
WITH_FLOWER = importlib.util.find_spec("flwr") is not None
MODULES = [name for name in FOUND if WITH_FLOWER or "flower_app." not in name]


def test_the_public_names_are_these():
    assert sorted(fedloom.__all__) == NAMES == sorted(dir(fedloom))
    for name in NAMES:
        assert getattr(fedloom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'FedAvgg'"):
        fedloom.FedAvgg  # noqa: B018 # looking is the test


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_offers_is_there_and_explained(name):
    module = importlib.import_module(name) if name != "fedloom.__main__" else None
    for public in getattr(module, "__all__", []):
        value = getattr(module, public)
        if callable(value) and getattr(value, "__module__", "").startswith("fedloom"):
            assert (value.__doc__ or "").strip(), f"{name}.{public}"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name, tmp_path, monkeypatch):
    if name.startswith("fedloom.report"):
        pytest.importorskip("matplotlib")
        pytest.importorskip("jinja2")
    if name == "fedloom.__main__":
        return
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
