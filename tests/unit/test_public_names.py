"""The names that users rely on, those of methods among them, and the examples that they read."""

import doctest
import importlib.util
import inspect
import pkgutil
import re
import typing

import pytest

import fedloom
from fedloom import algorithms
from fedloom.algorithm import Algorithm
from fedloom.algorithms.registry import ALGORITHMS, label_of, make_algorithm
from tiny import SOURCE

NAMES = """Algorithm Checkpoint Churn Evaluation Experiment FedAvg Local LocalSGD Result StopRun
__version__ check load_runs"""
FOUND = sorted(m.name for m in pkgutil.walk_packages(fedloom.__path__, "fedloom."))
# what Flower runs needs Flower: `nox -s test-flower`
WITH_FLOWER = importlib.util.find_spec("flwr") is not None
MODULES = [name for name in FOUND if WITH_FLOWER or "flower_app." not in name]


def test_the_public_names_are_these():
    assert sorted(fedloom.__all__) == NAMES.split() == sorted(dir(fedloom))
    for name in NAMES.split():
        assert getattr(fedloom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'FedAvgg'"):
        fedloom.FedAvgg  # noqa: B018 # looking is the test


def test_what_a_module_offers_is_there_and_explained():
    for name in set(MODULES) - {"fedloom.__main__"}:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            value = getattr(module, public)
            if callable(value) and getattr(value, "__module__", "").startswith("fedloom"):
                assert (value.__doc__ or "").strip(), f"{name}.{public}"


def shows(name):
    """Whether a module's file has an example."""
    path = SOURCE.parent.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ">>> " in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in MODULES if shows(name)])
def test_the_examples_in_docstrings_are_true(name, tmp_path, monkeypatch):
    if name.startswith("fedloom.report"):
        pytest.importorskip("matplotlib")
        pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0 < tried


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_listed_method_is_a_name_in_python(name):
    label = ALGORITHMS.label(name)
    # FedProx, SCAFFOLD: as tables say it; a label that is no name of Python's has its file's name
    wanted = label if label.isidentifier() else name.replace("_", "")
    (public,) = {n for n in algorithms.__all__ if n == wanted} or {
        n for n in algorithms.__all__ if n.lower() == wanted and n[0].isupper()
    }
    make = getattr(algorithms, public)
    assert make() == make_algorithm(name) and label_of(make()) == label
    assert make is ALGORITHMS.entry(name) and make.__name__.lower() == name.replace("_", "")
    if not inspect.isclass(make):  # what a type checker and an editor see of it
        hints = typing.get_type_hints(make)
        assert hints.pop("return") is Algorithm
        assert hints.keys() == inspect.signature(make).parameters.keys()
        assert re.match(rf"{re.escape(label)} \(", make.__doc__) and "Reference: " in make.__doc__
