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
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.round_log import RoundLog
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower import engine, masked_sums, message, message_exchange, node
from fedloom_flower.engine import FederationEngine
from fedloom_flower.masked_answers import MaskedAnswers
from fedloom_flower.node import Node
from fedloom_flower.node_states import NodeStates

from . import faults

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
PLANTED: dict[str, tuple[str, Plant]] = {}  # the kind of federation that finds it, and the mistake


def planted(name: str, kind: str = "updates") -> Callable[[Plant], Plant]:
    """Add a mistake."""

    def add(plant: Plant) -> Plant:
        PLANTED[name] = kind, plant
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

    patch.setattr("fedloom_flower.server.append_line", append)


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
    put, pending = NodeStates.put, dict[Path, Any]()

    def later(self: NodeStates, *version: Any) -> None:
        if before := pending.get(self.folder):
            put(self, *before)
        pending[self.folder] = version

    patch.setattr(NodeStates, "put", later)


@planted("a node goes on from its newest state, whatever the server took")
def _(patch: Patch) -> None:
    patch.setattr(NodeStates, "at", lambda self, taken, kept, tidy=True: self.newest())


@planted("a node keeps its newest state only")
def _(patch: Patch) -> None:
    at = NodeStates.at
    patch.setattr(NodeStates, "at", lambda self, taken, kept, tidy=True: at(self, taken, 10**6))


@planted("a node names its state after the next round")
def _(patch: Patch) -> None:
    put = NodeStates.put
    patch.setattr(NodeStates, "put", lambda self, round, *more: put(self, round + 1, *more))


@planted("a node repeats its last answer, whatever it is asked")
def _(patch: Patch) -> None:
    answer = Node.answer

    def same(self: Node, raw: bytes) -> bytes:
        return self._last_answer[1] or answer(self, raw)

    patch.setattr(Node, "answer", same)


@planted("a node draws its random numbers anew each time it is asked")
def _(patch: Patch) -> None:
    client_half, count = node.Client.client_half, itertools.count()

    def redrawn(self: Any, download: Any, memory: Any, i: int, round: int) -> Any:
        return client_half(self, download, memory, i, round + 1000 * (next(count) % 2))

    patch.setattr(node.Client, "client_half", redrawn)


# ---------------------------------------------------------------------------------------- server
@planted("the server says a round too few of what it took")
def _(patch: Patch) -> None:
    last = engine._last
    patch.setattr(engine, "_last", lambda m, c: {i: max(t - 1, -1) for i, t in last(m, c).items()})


@planted("the server says its newest checkpoint is its oldest")
def _(patch: Patch) -> None:
    newest = lambda run: max(
        (int(p.name) for p in engine.round_folders(run / "checkpoints")), default=0
    )
    patch.setattr(faults, "oldest_checkpoint", newest)


@planted("an answer that was lost counts as taken")
def _(patch: Patch) -> None:
    real = FederationEngine._round

    def all_taken(self: FederationEngine, task: Any) -> Any:
        out = real(self, task)
        out.memories.update({s.client: rec(last=float(task.round)) for s in out.stats})
        return out

    patch.setattr(FederationEngine, "_round", all_taken)


@planted("an answer for an earlier round is taken")
def _(patch: Patch) -> None:
    patch.setattr(engine, "answer_to", lambda ask, raw, *_: message.decode(message.ANSWER, raw))
    before: dict[int, bytes] = {}
    real = faults.Simulation.answer

    def stale(self: Any, i: int, raw: bytes) -> Any:
        answer = real(self, i, raw)
        if answer is not None:
            answer, before[i] = before.get(i, answer), answer
        return answer

    patch.setattr(faults.Simulation, "answer", stale)


@planted("an answer that comes twice counts for another client too")
def _(patch: Patch) -> None:
    real = message_exchange._Pulls._read

    def read(self: Any, names: list[str], replies: Any) -> Any:
        out = real(self, names, replies)
        if self.waiting and out and out[0][1] is not None:
            name = min(self.waiting, key=str)
            out.append((self.waiting[name], out[0][1]))
        return out

    patch.setattr(message_exchange._Pulls, "_read", read)
    patch.setattr(engine, "answer_to", lambda ask, raw, *_: message.decode(message.ANSWER, raw))


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
    real = billing.together

    def without_lost(exchanges: Any) -> Any:
        stats, others = real(exchanges)
        return [s for s in stats if s.answered], others

    patch.setattr(billing, "together", without_lost)


@planted("a node does not check the number of a message")
def _(patch: Patch) -> None:
    none = property(lambda self: 0, lambda self, number: None)
    patch.setattr(Node, "_newest", none, raising=False)


# ------------------------------------------------------------------- questions before local steps
@planted("a node that begins after the question trains without it", "asked")
def _(patch: Patch) -> None:
    patch.setattr(Node, "_run_question", _without_question(Node._run_question))


def _without_question(real: Any) -> Any:
    def run_question(self: Node, ask: Any, download: Any, memory: Any) -> Any:
        if ask.what == "question":
            return real(self, ask, download, memory)
        self._pending = b"", memory
        return None

    return run_question


@planted("a node knows a question by its round alone", "asked")
def _(patch: Patch) -> None:
    patch.setattr(node, "_digest", lambda ask, msg: b"%d %d" % (ask.round, ask.taken))


@planted("a question changes the client state on the disk", "asked")
def _(patch: Patch) -> None:
    real = Node._answer_question

    def store(self: Node, ask: Any, parts: Any) -> bytes:
        answer = real(self, ask, parts)
        if self._version is not None:
            self.states.put(ask.taken, self._version._replace(state=self._pending[1]))
        return answer

    patch.setattr(Node, "_answer_question", store)


# ------------------------------------------------------------------------------- sites that change
@planted("a round of too few updates counts", "changing")
def _(patch: Patch) -> None:
    real = engine.Attendance.conclude

    def accept(self: Any, out: Any, *arguments: Any) -> Any:
        real(self, out, *arguments)
        return out

    patch.setattr(engine.Attendance, "conclude", accept)


@planted("a draw in vain costs nothing", "changing")
def _(patch: Patch) -> None:
    free = lambda reason, lost, stats, again=True: TooFewError(reason, [], stats, again)
    patch.setattr("fedloom_flower.attendance.TooFewError", free)


@planted("an update of the draw before is forgotten", "changing")
def _(patch: Patch) -> None:
    send = FederationEngine._send

    def forgets(self: FederationEngine, *arguments: Any) -> None:
        self._subject = self._subject[0], -2
        send(self, *arguments)

    patch.setattr(FederationEngine, "_send", forgets)


# --------------------------------------------------------------------------------- private examples
@planted("a node pays for a round when it has computed it", "private")
def _(patch: Patch) -> None:
    half, due = node.Client.client_half, list[Any]()

    def computed(self: Any, *arguments: Any) -> Any:
        outcome = half(self, *arguments)
        due.pop()()
        return outcome

    real = node.NodeAccount.pay
    patch.setattr(node.Client, "client_half", computed)
    patch.setattr(node.NodeAccount, "pay", lambda self: due.append(lambda: real(self)))


@planted("a node's account is not forced to the disk", "private")
def _(patch: Patch) -> None:
    write = lambda path, text: world.write(path, text.encode())
    patch.setattr("fedloom_flower.node_records.write_atomic", write)


@planted("a node pays once for a round, however often it computes it", "private")
def _(patch: Patch) -> None:
    trained, paid = Node._train, set[Any]()

    def once(self: Node, ask: Any, parts: Any) -> bytes:
        accounts = self._accounts
        if (self.states.folder, ask.round) in paid:
            self._accounts = []
        paid.add((self.states.folder, ask.round))
        try:
            return trained(self, ask, parts)
        finally:
            self._accounts = accounts

    patch.setattr(Node, "_train", once)


@planted("the server's account begins anew when it goes on", "private")
def _(patch: Patch) -> None:
    real = checkpoints.state_of
    forgets = lambda run, kept: real(run, kept)._replace(trained={})
    patch.setattr(checkpoints, "state_of", forgets)


# ------------------------------------------------------------------------------------- masked sums
@planted("a node unmasks a round as often as it is asked to", "masked")
def _(patch: Patch) -> None:
    patch.setattr(MaskedAnswers, "_read_unmasked", lambda self, run: -1)


@planted("a node has the same masks in every draw", "masked")
def _(patch: Patch) -> None:
    generate, secrets = masked_sums.Secrets.generate, dict[Any, Any]()
    keys = MaskedAnswers.keys

    def once(self: Any, ask: Any, parts: Any) -> bytes:
        again = lambda: secrets.setdefault((self._file, ask.round), generate())
        patch.setattr(masked_sums.Secrets, "generate", again)
        return keys(self, ask, parts)

    patch.setattr(MaskedAnswers, "keys", once)


@planted("half of its clients are enough for a masked sum", "masked")
def _(patch: Patch) -> None:
    needed = IntegerRing.needed

    def half(self: IntegerRing, count: int) -> Any:
        return needed(self, count)._replace(clients=count // 2, shares=count // 2)

    patch.setattr(IntegerRing, "needed", half)


def _everywhere(patch: Patch, name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of storage/atomic.py, wherever it was imported."""
    real = getattr(atomic, name)
    for module in [m for key, m in sys.modules.items() if key.startswith("fedloom.")]:
        if getattr(module, name, None) is real:
            patch.setattr(module, name, function)
