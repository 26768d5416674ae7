"""A federation under faults that a seed decides (docs/faults.md), and mistakes that it finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from federations.faults import kind_of, outcome, smallest
from fedloom.core.vector import rec
from fedloom.storage import records, world
from fedloom_flower import engine, node, node_files
from fedloom_flower.engine import FederationEngine
from fedloom_flower.masked_rounds import MaskedAnswers


class Mistake(NamedTuple):
    """kind: of the federation that finds it; place, name: what is replaced; change: what is right
    -> what is wrong.
    """

    kind: str
    place: Any
    name: str
    change: Callable[[Any], Any]

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Make the mistake until the test ends."""
        patch.setattr(self.place, self.name, self.change(getattr(self.place, self.name)))


def renamed_too_early(right: Any) -> Any:
    def write_atomic(path: Path, content: Any) -> None:
        part = path.with_name(f".{path.name}.1.part")
        world.write(part, content.encode() if isinstance(content, str) else content)
        world.replace(part, path)
        world.sync_folder(path.parent)

    return write_atomic


def all_taken(right: Any) -> Any:
    def round_of(self: FederationEngine, task: Any) -> Any:
        out = right(self, task)
        out.memories.update({s.client: rec(last=float(task.round)) for s in out.stats})
        return out

    return round_of


def accepted(right: Any) -> Any:
    def conclude(self: Any, out: Any, *arguments: Any) -> Any:
        right(self, out, *arguments)
        return out

    return conclude


PLANTED = {
    "a file is renamed before its content is on the disk": Mistake(
        "updates", records, "write_atomic", renamed_too_early
    ),
    "an answer that was lost counts as taken": Mistake(
        "updates", FederationEngine, "_round", all_taken
    ),
    "a round of too few updates counts": Mistake(
        "changing", engine.Attendance, "conclude", accepted
    ),
    "a node knows a question by its round alone": Mistake(
        "asked", node, "_digest", lambda right: lambda ask, msg: b"%d %d" % (ask.round, ask.taken)
    ),
    "a node's account is not forced to the disk": Mistake(
        "private",
        node_files,
        "write_atomic",
        lambda right: lambda path, text: world.write(path, text.encode()),
    ),
    "a node forgets which sums it has unmasked": Mistake(
        "masked", MaskedAnswers, "_record", lambda right: lambda self, ask, *new: None
    ),
}


# ---------------------------------------------------------------------------------------- the runs
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
