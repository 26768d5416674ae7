"""The few methods that `make test` takes for all of them."""

from __future__ import annotations

from cases import METHODS, QUICK, method


def kinds(names) -> set[object]:
    """The traits of these methods, and how what their clients send is added up."""
    made = [method(name) for name in names]
    return {kind for one in made for kind in (*one.traits, *one.sent.values())}


def test_they_have_every_trait_and_every_way_of_adding_up() -> None:
    assert kinds(QUICK) == kinds(METHODS)
