"""Six mistakes of a protocol, planted one at a time: the simulation of faults has to find them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
