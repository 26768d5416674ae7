"""Mistakes of a protocol, planted one at a time: the simulation of faults has to find them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.aggregation import IntegerRing
from fedloom.core.vector import rec
from fedloom.engines.base import TooFewError
from fedloom.server import billing, checkpoints
from fedloom.server.ledger import Ledger
from fedloom.storage import atomic, world
from fedloom.storage.round_log import RoundLog
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower import (
    attendance,
    engine,
    masked_sums,
    message,
    message_exchange,
    node,
    node_records,
    server,
)
from fedloom_flower.engine import FederationEngine
from fedloom_flower.masked_answers import MaskedAnswers
from fedloom_flower.node import Node
from fedloom_flower.node_states import NodeStates

from . import faults

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, tuple[str, Plant]] = {}  # the kind of federation that finds it, and the mistake


def planted(mistake: str, kind: str = "updates") -> Callable[[Plant], None]:
    """Add a mistake that is made by a function."""

    def add(plant: Plant) -> None:
        PLANTED[mistake] = kind, plant

    return add


def wrong(
    mistake: str, place: Any, name: str, kind: str = "updates"
) -> Callable[[Callable[[Any], Any]], None]:
    """Add a mistake: in a place something wrong, made of what is right, has this name."""

    def add(change: Callable[[Any], Any]) -> None:
        def plant(patch: pytest.MonkeyPatch) -> None:
            right, places = getattr(place, name, None), [place]
            if place is atomic:  # and wherever it was imported
                modules = [m for key, m in sys.modules.items() if key.startswith("fedloom.")]
                places = [m for m in modules if getattr(m, name, None) is right]
            changed = change(right)
            for one in places:
                patch.setattr(one, name, changed, raising=False)

        PLANTED[mistake] = kind, plant

    return add


# ------------------------------ what can be said in a line
nothing = lambda right: lambda *_: None
wrong("the log of rounds is not forced to the disk before a checkpoint", RoundLog, "sync")(nothing)
wrong("a resumed run does not cut its log", RoundLog, "cut")(nothing)
wrong("who answered is not forced to the disk", server, "append_line")(
    lambda right: lambda path, line, opener=None: world.append(path, line.encode() + b"\n", opener)
)
wrong("a node's account is not forced to the disk", node_records, "write_atomic", "private")(
    lambda right: lambda path, text: world.write(path, text.encode())
)
wrong("a node goes on from its newest state, whatever the server took", NodeStates, "at")(
    lambda at: lambda self, taken, kept, tidy=True: self.newest()
)
wrong("a node keeps its newest state only", NodeStates, "at")(
    lambda at: lambda self, taken, kept, tidy=True: at(self, taken, 10**6)
)
wrong("a node names its state after the next round", NodeStates, "put")(
    lambda put: lambda self, round, *more: put(self, round + 1, *more)
)
wrong("a node repeats its last answer, whatever it is asked", Node, "answer")(
    lambda answer: lambda self, raw: self._last_answer[1] or answer(self, raw)
)
wrong("a node does not check the number of a message", Node, "_newest")(
    lambda right: property(lambda self: 0, lambda self, number: None)
)
wrong("a node knows a question by its round alone", node, "_digest", "asked")(
    lambda right: lambda ask, msg: b"%d %d" % (ask.round, ask.taken)
)
wrong(
    "a node unmasks a round as often as it is asked to", MaskedAnswers, "_read_unmasked", "masked"
)(lambda right: lambda self, run: -1)
wrong("the server says a round too few of what it took", engine, "_last")(
    lambda last: lambda m, c: {i: max(t - 1, -1) for i, t in last(m, c).items()}
)
wrong("a draw in vain costs nothing", attendance, "TooFewError", "changing")(
    lambda right: lambda reason, lost, stats, again=True: TooFewError(reason, [], stats, again)
)
wrong("the server's account begins anew when it goes on", checkpoints, "state_of", "private")(
    lambda right: lambda run, kept: right(run, kept)._replace(trained={})
)


# ------------------------------ disks
def write(path: Path, content: Any, sync: bool) -> None:
    """Write a file; its content is forced to the disk, or its name is."""
    part = path.with_name(f".{path.name}.1.part")
    world.write(part, content.encode() if isinstance(content, str) else content)
    if sync:
        world.sync(part)
    world.replace(part, path)
    if not sync:
        world.sync_folder(path.parent)


wrong("a file is renamed before its content is on the disk", atomic, "write_atomic")(
    lambda right: lambda path, content: write(path, content, False)
)
wrong("a file's new name is not forced to the disk", atomic, "write_atomic")(
    lambda right: lambda path, content: write(path, content, True)
)


@wrong("a new folder's name is not forced to the disk", atomic, "make_folder")
def _(right: Any) -> Any:
    def make(folder: Path, mode: int = 0o777) -> None:
        for above in [*reversed(folder.parents), folder]:
            if not above.is_dir():
                world.mkdir(above, mode)

    return make


@wrong("a checkpoint is acknowledged before it is written", RunDirectory, "_save")
def _(save: Any) -> Any:
    count = itertools.count()
    return lambda *arguments: save(*arguments) if next(count) % 2 else None


@wrong("client states that an older checkpoint needs are deleted", RunDirectory, "_prune")
def _(right: Any) -> Any:
    def prune(self: RunDirectory, *arguments: Any) -> None:
        for path in self.memory_folder.iterdir():
            world.unlink(path)
        right(self, *arguments)

    return prune


# ------------------------------ nodes
@wrong("a node answers before its state is on the disk", NodeStates, "put")
def _(put: Any) -> Any:
    pending = dict[Path, Any]()

    def later(self: NodeStates, *version: Any) -> None:
        if before := pending.get(self.folder):
            put(self, *before)
        pending[self.folder] = version

    return later


@wrong("a node draws its random numbers anew each time it is asked", node.Client, "client_half")
def _(half: Any) -> Any:
    count = itertools.count()
    anew = lambda round: round + 1000 * (next(count) % 2)
    return lambda self, down, memory, i, round: half(self, down, memory, i, anew(round))


# ------------------------------ server
@wrong("the server says its newest checkpoint is its oldest", faults, "oldest_checkpoint")
def _(right: Any) -> Any:
    numbers = lambda run: (int(p.name) for p in engine.round_folders(run / "checkpoints"))
    return lambda run: max(numbers(run), default=0)


@wrong("an answer that was lost counts as taken", FederationEngine, "_round")
def _(right: Any) -> Any:
    def all_taken(self: FederationEngine, task: Any) -> Any:
        out = right(self, task)
        out.memories.update({s.client: rec(last=float(task.round)) for s in out.stats})
        return out

    return all_taken


def any_answer(ask: Any, raw: bytes, *_: Any) -> Any:
    return message.decode(message.ANSWER, raw)


@planted("an answer for an earlier round is taken")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "answer_to", any_answer)
    before: dict[int, bytes] = {}
    right = faults.Simulation.answer

    def stale(self: Any, i: int, raw: bytes) -> Any:
        answer = right(self, i, raw)
        if answer is not None:
            answer, before[i] = before.get(i, answer), answer
        return answer

    patch.setattr(faults.Simulation, "answer", stale)


@planted("an answer that comes twice counts for another client too")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "answer_to", any_answer)
    right = message_exchange._Pulls._read

    def read(self: Any, names: list[str], replies: Any) -> Any:
        out = right(self, names, replies)
        if self.waiting and out and out[0][1] is not None:
            name = min(self.waiting, key=str)
            out.append((self.waiting[name], out[0][1]))
        return out

    patch.setattr(message_exchange._Pulls, "_read", read)


@wrong("an update counts twice in the sum", engine, "push")
def _(push: Any) -> Any:
    def twice(nodes: Any, level: int, place: int, part: Any) -> None:
        push(nodes, level, place, part)
        if part is not None and place == 0:
            push(nodes, level, place + 1, part)

    return twice


@wrong("the bill begins anew when the server goes on", checkpoints, "Ledger")
def _(right: Any) -> Any:
    class Anew(Ledger):
        def __init__(self, **saved: Any) -> None:
            super().__init__()

    return Anew


@wrong("a message costs nothing when its answer is lost", billing, "together")
def _(right: Any) -> Any:
    def without_lost(exchanges: Any) -> Any:
        stats, others = right(exchanges)
        return [s for s in stats if s.answered], others

    return without_lost


# ------------------------------ questions before local steps
@wrong("a node that begins after the question trains without it", Node, "_run_question", "asked")
def _(right: Any) -> Any:
    def run_question(self: Node, ask: Any, download: Any, memory: Any) -> Any:
        if ask.what == "question":
            return right(self, ask, download, memory)
        self._pending = b"", memory
        return None

    return run_question


@wrong("a question changes the client state on the disk", Node, "_answer_question", "asked")
def _(right: Any) -> Any:
    def store(self: Node, ask: Any, parts: Any) -> bytes:
        answer: bytes = right(self, ask, parts)
        if self._version is not None:
            self.states.put(ask.taken, self._version._replace(state=self._pending[1]))
        return answer

    return store


# ------------------------------ sites that change
@wrong("a round of too few updates counts", engine.Attendance, "conclude", "changing")
def _(right: Any) -> Any:
    def accept(self: Any, out: Any, *arguments: Any) -> Any:
        right(self, out, *arguments)
        return out

    return accept


@wrong("an update of the draw before is forgotten", FederationEngine, "_send", "changing")
def _(send: Any) -> Any:
    def forgets(self: FederationEngine, *arguments: Any) -> None:
        self._subject = self._subject[0], -2
        send(self, *arguments)

    return forgets


# ------------------------------ private examples
@planted("a node pays for a round when it has computed it", "private")
def _(patch: pytest.MonkeyPatch) -> None:
    half, due = node.Client.client_half, list[Any]()

    def computed(self: Any, *arguments: Any) -> Any:
        outcome = half(self, *arguments)
        due.pop()()
        return outcome

    pay = node.NodeAccount.pay
    patch.setattr(node.Client, "client_half", computed)
    patch.setattr(node.NodeAccount, "pay", lambda self: due.append(lambda: pay(self)))


@wrong("a node pays once for a round, however often it computes it", Node, "_train", "private")
def _(train: Any) -> Any:
    paid = set[Any]()

    def once(self: Node, ask: Any, parts: Any) -> bytes:
        accounts = self._accounts
        if (self.states.folder, ask.round) in paid:
            self._accounts = []
        paid.add((self.states.folder, ask.round))
        try:
            answer: bytes = train(self, ask, parts)
            return answer
        finally:
            self._accounts = accounts

    return once


# ------------------------------ masked sums
@planted("a node has the same masks in every draw", "masked")
def _(patch: pytest.MonkeyPatch) -> None:
    generate, secrets = masked_sums.Secrets.generate, dict[Any, Any]()
    keys = MaskedAnswers.keys

    def once(self: Any, ask: Any, parts: Any) -> bytes:
        again = lambda: secrets.setdefault((self._file, ask.round), generate())
        patch.setattr(masked_sums.Secrets, "generate", again)
        return keys(self, ask, parts)

    patch.setattr(MaskedAnswers, "keys", once)


@wrong("half of its clients are enough for a masked sum", IntegerRing, "needed", "masked")
def _(needed: Any) -> Any:
    def half(self: IntegerRing, count: int) -> Any:
        return needed(self, count)._replace(clients=count // 2, shares=count // 2)

    return half
