"""Mistakes of a protocol, planted one at a time: the simulation of faults has to find them."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.vector import rec
from fedloom.deployment import engine, message, message_exchange, node
from fedloom.deployment.engine import FederationEngine
from fedloom.deployment.node import Node
from fedloom.deployment.node_states import NodeStates
from fedloom.server import checkpoints, rounds
from fedloom.server.ledger import Ledger
from fedloom.storage import atomic, world
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.round_log import RoundLog
from fedloom.storage.run_directory import RunDirectory

from . import faults

Patch = pytest.MonkeyPatch
PLANTED: dict[str, Callable[[Patch], None]] = {}


def planted(name: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Add a mistake."""

    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        PLANTED[name] = plant
        return plant

    return add


# ----------------------------------------------------------------------------------------- disks
@planted("a file is renamed before its content is on the disk")
def _(patch: Patch) -> None:
    def write(path: Path, content: Any) -> None:
        part = path.with_name(f".{path.name}.1.part")
        world.write(part, content.encode() if isinstance(content, str) else content)
        world.replace(part, path)
        world.sync_folder(path.parent)

    _everywhere(patch, "write_atomic", write)


@planted("a file's new name is not forced to the disk")
def _(patch: Patch) -> None:
    def write(path: Path, content: Any) -> None:
        part = path.with_name(f".{path.name}.1.part")
        world.write(part, content.encode() if isinstance(content, str) else content)
        world.sync(part)
        world.replace(part, path)

    _everywhere(patch, "write_atomic", write)


@planted("a new folder's name is not forced to the disk")
def _(patch: Patch) -> None:
    def make(folder: Path, mode: int = 0o777) -> None:
        for above in [*reversed(folder.parents), folder]:
            if not above.is_dir():
                world.mkdir(above, mode)

    _everywhere(patch, "make_folder", make)


@planted("the log of rounds is not forced to the disk before a checkpoint")
def _(patch: Patch) -> None:
    patch.setattr(RoundLog, "sync", lambda self: None)


@planted("who answered is not forced to the disk")
def _(patch: Patch) -> None:
    def append(path: Path, line: str, opener: Any = None) -> None:
        world.append(path, line.encode() + b"\n", opener)

    patch.setattr("fedloom.deployment.server.append_line", append)


@planted("a checkpoint is acknowledged before it is written")
def _(patch: Patch) -> None:
    save, count = RunDirectory._save, itertools.count()

    def later(self: RunDirectory, *arguments: Any) -> None:
        if next(count) % 2:
            save(self, *arguments)

    patch.setattr(RunDirectory, "_save", later)


@planted("a resumed run does not cut its log")
def _(patch: Patch) -> None:
    patch.setattr(RoundLog, "cut", lambda self, size: None)


@planted("client states that an older checkpoint needs are deleted")
def _(patch: Patch) -> None:
    real = RunDirectory._prune

    def prune(self: RunDirectory, memory: ClientMemory, keep: int) -> None:
        for path in self.memory_folder.iterdir():
            world.unlink(path)
        real(self, memory, keep)

    patch.setattr(RunDirectory, "_prune", prune)


# ----------------------------------------------------------------------------------------- nodes
@planted("a node answers before its state is on the disk")
def _(patch: Patch) -> None:
    put, kept = NodeStates.put, dict[Path, Any]()

    def later(self: NodeStates, round: int, version: Any) -> None:
        if before := kept.get(self.folder):
            put(self, *before)
        kept[self.folder] = round, version

    patch.setattr(NodeStates, "put", later)


@planted("a node goes on from its newest state, whatever the server took")
def _(patch: Patch) -> None:
    patch.setattr(NodeStates, "at", lambda self, taken, kept: self.newest())


@planted("a node keeps its newest state only")
def _(patch: Patch) -> None:
    at = NodeStates.at
    patch.setattr(NodeStates, "at", lambda self, taken, kept: at(self, taken, 10**6))


@planted("a node names its state after the next round")
def _(patch: Patch) -> None:
    put = NodeStates.put
    patch.setattr(NodeStates, "put", lambda self, round, version: put(self, round + 1, version))


@planted("a node repeats its last answer, whatever it is asked")
def _(patch: Patch) -> None:
    answer = Node.answer

    def same(self: Node, raw: bytes) -> bytes:
        return self._said[1] or answer(self, raw)

    patch.setattr(Node, "answer", same)


@planted("a node draws its random numbers anew each time it is asked")
def _(patch: Patch) -> None:
    client_half, count = node.Client.client_half, itertools.count()

    def drawn(self: Any, share: Any, memory: Any, i: int, round: int) -> Any:
        return client_half(self, share, memory, i, round + 1000 * (next(count) % 2))

    patch.setattr(node.Client, "client_half", drawn)


# ---------------------------------------------------------------------------------------- server
@planted("the server says a round too few of what it took")
def _(patch: Patch) -> None:
    last = engine._last
    patch.setattr(engine, "_last", lambda m, c: {i: max(t - 1, -1) for i, t in last(m, c).items()})


@planted("the server says its newest checkpoint is its oldest")
def _(patch: Patch) -> None:
    newest = lambda run: max((int(p.name) for p in engine.numbered(run / "checkpoints")), default=0)
    patch.setattr(faults, "oldest_checkpoint", newest)


@planted("an answer that was lost counts as taken")
def _(patch: Patch) -> None:
    real = FederationEngine.round

    def all_taken(self: FederationEngine, asked: Any) -> Any:
        out = real(self, asked)
        out.memories.update({s.client: rec(last=float(asked.round)) for s in out.stats})
        return out

    patch.setattr(FederationEngine, "round", all_taken)


@planted("an answer for an earlier round is taken")
def _(patch: Patch) -> None:
    patch.setattr(engine, "answer_to", lambda about, raw: message.opened(message.ANSWER, raw))
    before: dict[int, bytes] = {}
    real = faults.Simulation.answer

    def stale(self: Any, i: int, raw: bytes) -> Any:
        said = real(self, i, raw)
        if said is not None:
            said, before[i] = before.get(i, said), said
        return said

    patch.setattr(faults.Simulation, "answer", stale)


@planted("an answer that comes twice counts for another client too")
def _(patch: Patch) -> None:
    real = message_exchange._Pulls._read

    def read(self: Any, names: list[str], came: Any) -> Any:
        out = real(self, names, came)
        if self.waiting and out and out[0][1] is not None:
            name = min(self.waiting, key=str)
            out.append((self.waiting[name], out[0][1]))
        return out

    patch.setattr(message_exchange._Pulls, "_read", read)
    patch.setattr(engine, "answer_to", lambda about, raw: message.opened(message.ANSWER, raw))


@planted("an update counts twice in the sum")
def _(patch: Patch) -> None:
    real = engine.push

    def twice(nodes: Any, level: int, place: int, part: Any) -> None:
        real(nodes, level, place, part)
        if part is not None and place == 0:
            real(nodes, level, place + 1, part)

    patch.setattr(engine, "push", twice)


@planted("the bill begins anew when the server goes on")
def _(patch: Patch) -> None:
    class Anew(Ledger):
        def __init__(self, **saved: Any) -> None:
            super().__init__()

    patch.setattr(checkpoints, "Ledger", Anew)


@planted("a message costs nothing when its answer is lost")
def _(patch: Patch) -> None:
    real = rounds.together

    def answered(exchanges: Any) -> Any:
        stats, others = real(exchanges)
        return [s for s in stats if s.answered], others

    patch.setattr(rounds, "together", answered)


@planted("a carrier brings a message to its node twice, the second time late")
def _(patch: Patch) -> None:
    deliver = faults.Post._deliver

    def twice(self: Any, name: str, i: int, raw: bytes) -> None:
        deliver(self, name, i, raw)
        self._sim.later(75.0, functools.partial(deliver, self, name, i, raw))

    patch.setattr(faults.Post, "_deliver", twice)


def _everywhere(patch: Patch, name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of storage/atomic.py, wherever it was imported."""
    real = getattr(atomic, name)
    for module in [m for key, m in sys.modules.items() if key.startswith("fedloom.")]:
        if getattr(module, name, None) is real:
            patch.setattr(module, name, function)
