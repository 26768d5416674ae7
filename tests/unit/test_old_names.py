"""What was called otherwise in fedloom 0.1 is still found, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator

import pytest

import fedloom.algorithms.registry
import fedloom.submodels
from fedloom import Checkpoint, Evaluation, FedAvg, LocalSGD
from fedloom._old_names import MOVED, new_name
from fedloom.algorithms.registry import ALGORITHMS
from fedloom.config import from_run, resolve
from fedloom.errors import ConfigError
from fedloom.objectives import MOON, CrossEntropy
from fedloom.submodels import HeteroFL
from tiny import small


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Nobody has asked for an old name yet, and nobody will have."""
    yield
    for name in [n for n in sys.modules if new_name(n) != n]:
        del sys.modules[name]


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_module_is_the_new_one(old):
    name = f"fedloom.{old}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # a package that moved is said too
        found = importlib.import_module(name)
    assert str(said[-1].message) == f"{name} is now {new_name(name)}"
    assert found is importlib.import_module(new_name(name))
    assert found.__name__ == new_name(name) and found.__spec__.name == new_name(name)


def test_a_module_of_a_package_that_moved():
    with pytest.warns(DeprecationWarning) as said:
        from fedloom.views.base import Rule
    assert Rule is fedloom.submodels.Rule
    assert "fedloom.views.base is now fedloom.submodels.base" in str(said[-1].message)


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("fedloom.nothing")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = fedloom.submodels.Nothing


@pytest.mark.parametrize("old, new", fedloom.submodels.OLD_NAMES.items())
def test_an_old_class_is_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        assert getattr(fedloom.submodels, old) is getattr(fedloom.submodels, new)


def test_an_old_function_is_the_new_one():
    from fedloom.federation import capacities

    with pytest.warns(DeprecationWarning) as said:
        from fedloom.capacities import deal
    assert deal is capacities.assign_capacities
    assert "deal is now assign_capacities" in str(said[-1].message)
    assert said[-1].filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = capacities.Nothing


def test_the_labels_of_the_zoo():
    with pytest.warns(DeprecationWarning) as said:
        from fedloom.zoo import LABELS
    assert str(said[-1].message) == "LABELS is now ALGORITHMS.label(name)"
    assert said[-1].filename == __file__
    assert (LABELS["scaffold"], len(LABELS)) == ("SCAFFOLD", len(ALGORITHMS))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = fedloom.algorithms.registry.Nothing


def test_a_setting_has_the_name_that_it_has_in_a_file():
    with pytest.warns(DeprecationWarning) as said:
        often = fedloom.Saving(rounds=2, seconds=None)
        run = small(FedAvg(), loss=MOON(), evaluation=Evaluation(every=3), saving=often)
        assert (run.loss, run.evaluation, run.saving) == (run.objective, run.evaluate, often)
        assert often.rounds == 2
    assert often == Checkpoint(every_rounds=2, every_seconds=None)
    assert run.objective == MOON() and run.evaluate.every == 3
    words = " ".join(str(w.message) for w in said)
    for old, new in (("loss", "objective"), ("saving", "checkpoint"), ("seconds", "every_seconds")):
        assert f"{old} is now called {new}" in words
    with pytest.raises(ConfigError, match="both are given; keep objective"):
        small(FedAvg(), loss=MOON(), objective=MOON())


def test_an_old_key_of_a_file_warns_and_works(tmp_path, caplog):
    (tmp_path / "config.toml").write_text(
        resolve("digits").to_toml() + "\n[memory]\nresident_bytes = 7\n"
    )
    assert from_run(tmp_path).values["resident_bytes"] == 7 and not caplog.text
    found = resolve(tmp_path / "config.toml", ["memory.resident_bytes=8"])
    assert found.values["resident_bytes"] == 8 and "memory" not in found.values
    assert caplog.text.count("memory.resident_bytes is now called resident_bytes") == 2


OLD = [
    (LocalSGD, "linear", "sent"),
    (LocalSGD, "partial", "WHOLE_MODEL"),
    (CrossEntropy, "whole", "leave the line out"),
    (CrossEntropy, "carries", "leave the line out"),
    (CrossEntropy, "named", "name="),
    (CrossEntropy, "exits", "Needs.EXITS"),
    (CrossEntropy, "drawn", "Needs.DRAWN_PARTS"),
    (CrossEntropy, "ordered", "Needs.TEXT_ORDER"),
    (HeteroFL, "title", "the class's name"),
    (HeteroFL, "exits", "Needs.EXITS"),
    (HeteroFL, "ordered", "Needs.DRAWN_PARTS"),
]


@pytest.mark.parametrize("base, name, instead", OLD)
def test_an_old_declaration_says_what_to_write(base, name, instead):
    with pytest.raises(ConfigError, match=f"Own.{name} was a declaration.*{instead}"):
        type("Own", (base,), {name: ()})
