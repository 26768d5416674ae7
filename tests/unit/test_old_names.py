"""What was called otherwise in fedloom 0.1 is still found, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator

import pytest

import fedloom.submodels
from fedloom import LocalSGD
from fedloom._old_names import MOVED, new_name
from fedloom.errors import ConfigError


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


@pytest.mark.parametrize("name, instead", [("linear", "sent"), ("partial", "WHOLE_MODEL")])
def test_an_old_declaration_says_what_to_write(name, instead):
    with pytest.raises(ConfigError, match=f"Own.{name} was a declaration.*{instead}"):
        type("Own", (LocalSGD,), {name: ()})
