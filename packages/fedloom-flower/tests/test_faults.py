"""A federation under faults that a seed decides: see federations/faults.py and docs/faults.md."""

from __future__ import annotations

import pytest

from federations.faults import kind_of, outcome, smallest
from federations.planted import PLANTED

SEEDS = range(40)  # within which a planted mistake has to be found


def needs(kind):
    if kind == "masked":
        pytest.importorskip("cryptography", reason="the extra secure is not installed")


QUICK_FIRST = [pytest.param(seed, marks=pytest.mark.slow if seed > 7 else []) for seed in range(25)]


@pytest.mark.parametrize("seed", QUICK_FIRST)
def test_nothing_is_lost_or_counted_twice(seed, tmp_path):
    """Five seeds of each kind of federation."""
    needs(kind_of(seed))
    said, simulation = outcome(tmp_path, seed)
    assert not said and simulation.faults.occurred


def test_a_seed_replays_exactly(tmp_path):
    one, other = (outcome(tmp_path / name, 0)[1] for name in "ab")
    assert one.faults.occurred == other.faults.occurred and one.now == other.now
    rows = [(s.server.root / "fed/run/clients.jsonl").read_bytes() for s in (one, other)]
    assert rows[0] == rows[1]


def found(name, folder):
    """The first seed that finds a mistake, and what it says; None if none does."""
    for seed in SEEDS:
        if said := outcome(folder / str(seed), seed, kind=PLANTED[name].kind)[0]:
            return seed, said
    return None


@pytest.mark.slow
def test_the_smallest_schedule_that_fails(tmp_path, monkeypatch):
    name = "an answer that was lost counts as taken"
    PLANTED[name].plant(monkeypatch)
    seed, _ = found(name, tmp_path / "found")
    faults = smallest(tmp_path / "small", seed, kind="updates")
    assert len(faults) <= 3 and outcome(tmp_path / "again", seed, faults, "updates")[0]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name, tmp_path, monkeypatch):
    needs(PLANTED[name].kind)
    PLANTED[name].plant(monkeypatch)
    assert found(name, tmp_path) is not None
