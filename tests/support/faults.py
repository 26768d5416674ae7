"""A federation in one process, under faults that a seed decides, in virtual time.

Server, nodes and their disks are the programs' own code: rounds, checkpoints, FederationEngine,
MessageExchange, Node. What they ask of the system (storage/world.py) is simulated, and what carries
messages is `Post`, in the place of Flower. A fault is named by its kind, its place and a count, and
the seed decides it by that name alone: the same seed gives the same run, and a run without some of
the faults is the same but for them.
"""

from __future__ import annotations

import functools
import heapq
import logging
import queue
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedloom import Checkpoint, Local
from fedloom.algorithms import Scaffold
from fedloom.checks.tiny_federation import Trial, experiment, run
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import Via
from fedloom.core.vector import Rec
from fedloom.deployment import message
from fedloom.deployment.engine import FederationEngine, oldest_checkpoint
from fedloom.deployment.folder import Folder
from fedloom.deployment.message_exchange import MessageExchange, Reply, UnreadableError
from fedloom.deployment.node import Node
from fedloom.deployment.node_states import NodeStates
from fedloom.deployment.server import _write_down
from fedloom.errors import FedloomError
from fedloom.report.runs import read_rows
from fedloom.storage import world
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.manifest import numbered
from fedloom.storage.run_directory import RunDirectory
from tiny import same

from .disk import CHANGES, REAL, Disk, Killed, lay
from .without import Without

CLIENTS, ROUNDS = range(6), 4
QUIET = 1500.0  # virtual seconds, after which nothing fails any more
END = 40_000.0  # at which a run must have ended
CHANCE = {  # of each kind of fault, each time that it may come
    "lost": 0.08,
    "late": 0.15,
    "doubled": 0.08,
    "damaged": 0.04,
    "unreadable": 0.03,
    "hangs": 0.02,
    "split": 0.01,
    "node": 0.03,
    "server": 0.02,
    "rot": 0.4,
    "jump": 0.006,
}


class ViolationError(Exception):
    """What must always hold does not."""


def made(**changes: Any) -> Trial:
    """SCAFFOLD with top-k and its residual: all of it drifts apart at the first wrong version."""
    settings = {
        "algorithm": Scaffold(),
        "compress": Via(TopK(ratio=0.2), Residual()),
        "local": Local(epochs=1, batch=8, lr=0.05),
        "rounds": ROUNDS,
        "cohort": 4,
    }
    return experiment(**(settings | changes))


@functools.cache
def parts() -> tuple[Any, ...]:
    """What all nodes are made of, which they do not change."""
    loop = made().build()
    return loop.plan, loop.fed, loop.net


class Faults:
    """Which faults come. only: of those that the seed says these alone; None: all."""

    def __init__(self, seed: int, only: Collection[str] | None = None) -> None:
        self.seed, self._only = seed, only
        self.came: list[str] = []
        self._counts = Counter[str]()
        self.now: Callable[[], float] = lambda: 0.0

    def comes(self, kind: str, place: object = "") -> bool:
        """Whether a fault comes now."""
        name = f"{kind} {place} {self._counts[f'{kind} {place}']}"
        self._counts[f"{kind} {place}"] += 1
        if self.now() > QUIET or (self._only is not None and name not in self._only):
            return False
        if self.draw(name).random() >= CHANCE[kind]:
            return False
        self.came.append(name)
        return True

    def draw(self, name: object) -> random.Random:
        """Random numbers that belong to a name."""
        return random.Random(f"{self.seed} {name}")


@dataclass
class Machine:
    """A disk, and whether its program runs. Each crash leaves another state."""

    root: Path
    faults: Faults
    kind: str
    name: str
    starts: int = 0
    up: bool = True
    disk: Disk = field(init=False)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        self.boot()

    def boot(self) -> None:
        """Begin on what the disk holds."""
        self.disk, self.up = Disk(self.root, self._before), True

    def _before(self, disk: Disk) -> None:
        if self.up and self.faults.comes(self.kind, self.name):
            self.up = False
        if not self.up:
            raise Killed

    def crash(self) -> None:
        """Leave on the disk one of the states that are allowed."""
        self.up, self.starts = False, self.starts + 1
        lay(self.disk.crash_state(self.faults.draw(f"{self.name} {self.starts}")), self.root)


class Simulation:
    """A run of a federation under the faults of a seed -> check() says whether all holds."""

    def __init__(self, folder: Path, seed: int, only: Collection[str] | None = None) -> None:
        self.faults, self.folder = Faults(seed, only), folder
        self.now, self._events, self._count = 0.0, list[Any](), 0
        self.faults.now = lambda: self.now
        self.server = Machine(folder / "server", self.faults, "server", "server")
        place = lambda i: Machine(folder / f"node{i}", self.faults, "node", str(i))
        self.sites = {i: place(i) for i in CLIENTS}
        self.nodes: dict[int, Node | None] = dict.fromkeys(CLIENTS)
        self.acknowledged, self.crashes, self.rotten = 0, 0, False
        self.sizes: dict[tuple[str, int, int], int] = {}  # bytes of blocks: way, round, client
        self.asked = -1  # the last round that a message was about
        self.last = dict.fromkeys(CLIENTS, 0.0)  # when the last message came to a node
        self.apart = dict.fromkeys(CLIENTS, 0.0)  # until when a node cannot be reached

    # ------------------------------------------------------------------------- time, in the world
    def later(self, seconds: float, task: Callable[..., object], *arguments: Any) -> None:
        """Do something at its time; what is due at once comes in this order."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, task, arguments))

    def _next(self, end: float) -> bool:
        """Do the next thing that is due -> False if there is none until then."""
        if not self._events or self._events[0][0] > end:
            self.now = max(self.now, end)
            return False
        at, _, task, arguments = heapq.heappop(self._events)
        self.now = max(self.now, at)
        task(*arguments)
        return True

    def sleep(self, seconds: float) -> None:
        if self.faults.comes("jump"):  # the machine was asleep
            seconds += 300.0
        if self.now > END:
            raise ViolationError(f"nothing has finished in {END:g} s")
        end = self.now + seconds
        while self._next(end):
            pass

    def take(self, inbox: queue.SimpleQueue[Any], seconds: float) -> Any:
        end = self.now + seconds
        while inbox.empty() and self._next(end):
            pass
        return inbox.get_nowait()

    def start(self, task: Callable[..., object], *arguments: Any) -> None:
        late = 200.0 if self.faults.comes("hangs") else 0.001
        self.later(late, task, *arguments)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What stands in the place of the world's functions."""

        def on(name: str, path: Path, *arguments: Any) -> Any:
            for machine in (self.server, *self.sites.values()):
                if path.is_relative_to(machine.root):
                    return machine.disk.functions()[name](path, *arguments)
            return REAL[name](path, *arguments)

        bytes_of = self.faults.draw("system").randbytes
        return {
            "monotonic": lambda: self.now,
            "sleep": self.sleep,
            "take": self.take,
            "start": self.start,
            "urandom": bytes_of,
            **{name: functools.partial(on, name) for name in CHANGES},
        }

    # -------------------------------------------------------------------------------- the programs
    def run(self) -> None:
        """Until the server has ended its run, through all its crashes. Raises ViolationError."""
        with pytest.MonkeyPatch.context() as patch:
            for name, function in self.functions().items():
                patch.setattr(world, name, function)
            save = RunDirectory.save

            def told(folder: RunDirectory, state: Any, *arguments: Any) -> None:
                save(folder, state, *arguments)
                self.acknowledged = state.round

            patch.setattr(RunDirectory, "save", told)
            for i in CLIENTS:
                self._begin(i)
            while not self._serve():
                self.crashes += 1
                self.server.crash()
                self._rot()
                self.sleep(self.faults.draw(f"down {self.crashes}").choice([1.0, 20.0, 200.0]))
                self.server.boot()

    def _rot(self) -> None:
        """Damage the newest of several checkpoints, once: the server may go back to the one before,
        and of two damaged ones it would say that none is left.
        """
        found = numbered(self.server.root / "fed" / "run" / "checkpoints")
        if len(found) > 1 and not self.rotten and self.faults.comes("rot"):
            self.rotten = True
            file = found[-1] / "state.safetensors"
            raw = file.read_bytes()
            file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
            self.acknowledged = int(found[-2].name)

    def _serve(self) -> bool:
        """The server's program -> whether it came to its end."""
        there, fed = self.server.root / "fed", Folder(self.server.root / "fed")
        post = MessageExchange(Post(self))
        kept = functools.partial(oldest_checkpoint, there / "run")
        engine = FederationEngine(self._counted(post), run="r", kept=kept)
        begun, rounds = self.acknowledged, list[int]()

        def told(row: dict[str, Any]) -> None:
            rounds.append(row["round"])
            _write_down(fed, engine, row)

        saving = Checkpoint(every_rounds=1 + self.faults.seed % 2, every_seconds=None)
        given = made(on_round=told, checkpoint=saving)
        given.engine = engine
        try:
            given.run(there / "run", go_on=True)
        except Killed:
            return False
        except FedloomError as error:
            raise ViolationError(f"the server cannot go on: {error}") from error
        finally:
            if min(rounds, default=begun + 1) <= begun:
                raise ViolationError(f"round {min(rounds)} was done again, and {begun} was safe")
        return True

    def _counted(self, exchange: MessageExchange) -> Callable[..., dict[int, bytes]]:
        def counted(messages: dict[int, bytes], seconds: float, enough: int) -> dict[int, bytes]:
            for i, raw in messages.items():
                head = message.opened(message.ASK, raw)[0]
                self.asked = max(self.asked, head.round)
                self.sizes["down", head.round, i] = sum(head.parts.values())
            return exchange(messages, seconds, enough)

        return counted

    def _begin(self, i: int) -> None:
        """A node's program begins."""
        self.sites[i].boot()
        try:
            self.nodes[i] = Node(*parts(), i, self.sites[i].root / "states", "r")
        except Killed:
            self._crash(i)

    def _crash(self, i: int) -> None:
        self.nodes[i] = None
        self.sites[i].crash()
        down = self.faults.draw(f"down {i} {self.sites[i].starts}").choice([2.0, 30.0, 150.0])
        self.later(down, self._begin, i)

    def answer(self, i: int, raw: bytes) -> bytes | None:
        """What a node answers; None if it is down, or goes down. Raises ViolationError."""
        if (node := self.nodes[i]) is None:
            return None
        try:
            said = node.answer(raw)
        except Killed:
            self._crash(i)
            return None
        head = message.opened(message.ANSWER, said)[0]
        if getattr(head, "lost", False):
            raise ViolationError(f"client {i} has lost a state that it had acknowledged")
        if isinstance(head, message.Update):
            self.sizes["up", head.round, i] = sum(head.parts.values())
        newest = max((int(p.stem) for p in node.states.folder.glob("0*.safetensors")), default=-1)
        if newest > self.asked:
            raise ViolationError(
                f"client {i} has a state of round {newest + 1}, which nobody asked for"
            )
        return said

    # -------------------------------------------------------------------------------- what holds
    def check(self) -> None:
        """Raise ViolationError unless the run is the simulation of those who answered."""
        there = self.server.root / "fed" / "run"
        rows = read_rows(there / "clients.jsonl")
        if [row["round"] for row in rows] != [*range(1, ROUNDS + 1)]:
            raise ViolationError(f"clients.jsonl has the rounds {[row['round'] for row in rows]}")
        given = made()
        given.engine = Without(
            {(t, i) for t, row in enumerate(rows) for i in row["asked"] if i not in row["answered"]}
        )
        alone, folder, memory = run(given), RunDirectory(there), ClientMemory(there / "memory")
        state = folder.load(memory)
        history = read_rows(folder.rounds)
        if state is None or state.round != ROUNDS:
            raise ViolationError("the last checkpoint is not of the last round")
        self._same("the server's state", state.srv.srv, alone.srv)
        losses = [[row["test_loss"] for row in told] for told in (history, alone.history)]
        if losses[0] != losses[1]:
            raise ViolationError(
                f"the test losses are {losses[0]}, and of the simulation {losses[1]}"
            )
        for i, own in alone.memory.items():
            last = int(memory.get([i])[i].last)
            self._same(f"the state of client {i}", self._version(i, last), own)
        self._check_bill(rows, state.extra["ledger"])

    def _version(self, i: int, round: int) -> Rec:
        found = NodeStates(self.sites[i].root / "states").at(round, 0)
        if found is None:
            raise ViolationError(f"client {i} has no state of round {round + 1}")
        return found.state

    def _check_bill(self, rows: list[dict[str, Any]], ledger: dict[str, Any]) -> None:
        sent = {"up": 0, "down": 0}
        for t, row in enumerate(rows):
            sent["up"] += sum(self.sizes["up", t, i] for i in row["answered"])
            sent["down"] += sum(self.sizes["down", t, i] for i in row["asked"])
        for way, count in sent.items():
            if sum(ledger[way].values()) != count:
                raise ViolationError(f"{count} bytes went {way}, and the ledger has {ledger[way]}")

    def _same(self, what: str, one: Any, other: Any) -> None:
        if not same(one, other):
            raise ViolationError(f"{what} is not that of the simulation of those who answered")


class Post:
    """What carries messages, between one life of the server and the nodes. As Flower it brings a
    message to its node once at most, in the order of sending, and not after its time; an answer may
    come twice, late and in any order.
    """

    def __init__(self, there: Simulation) -> None:
        self._sim, self._faults = there, there.faults
        self._box: dict[str, list[Reply]] = {}
        self._sent = 0

    def present(self) -> dict[int, int]:
        return {i: i for i, node in self._sim.nodes.items() if node and not self._apart(i)}

    def _apart(self, i: int) -> bool:
        """Whether a node cannot be reached; it then lasts."""
        if self._faults.comes("split", i):
            self._sim.apart[i] = self._sim.now + 90.0
        return self._sim.apart[i] > self._sim.now

    def push(self, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        names, there = {}, self.present()
        for i, raw in messages.items():
            if i not in there:
                continue
            self._sent += 1
            names[name := f"{self._sim.crashes}.{self._sent}"] = i
            if self._faults.comes("lost", f"to {i}"):
                continue
            at = max(self._sim.now + self._seconds(f"to {i}"), self._sim.last[i] + 0.001)
            if at < self._sim.now + seconds:  # else it is too old when its turn comes
                self._sim.last[i] = at
                wait = at - self._sim.now
                self._sim.later(wait, self._deliver, name, i, self._cut(f"to {i}", raw))
        return names

    def _deliver(self, name: str, i: int, raw: bytes) -> None:
        said = None if self._apart(i) else self._sim.answer(i, raw)
        if said is None or self._faults.comes("lost", f"from {i}"):
            return
        for _ in range(2 if self._faults.comes("doubled", f"from {i}") else 1):
            back = self._cut(f"from {i}", said)
            self._sim.later(self._seconds(f"from {i}"), self._arrive, name, back)

    def _arrive(self, name: str, raw: bytes) -> None:
        self._box.setdefault(name, []).append(Reply(name, raw))

    def _cut(self, way: str, raw: bytes) -> bytes:
        """The bytes that arrive: TLS lets no others through, but they may come to an early end."""
        return raw[: len(raw) // 2] if self._faults.comes("damaged", way) else raw

    def _seconds(self, way: str) -> float:
        if not self._faults.comes("late", way):
            return 0.05
        return self._faults.draw(f"{way} {self._sim.now}").choice([3.0, 40.0, 130.0])

    def pull(self, names: list[str]) -> list[Reply]:
        there = [name for name in names if self._box.get(name)]
        if there and self._faults.comes("unreadable"):
            raise UnreadableError("cut off")
        return [self._box[name].pop(0) for name in there]


def outcome(folder: Path, seed: int, only: Collection[str] | None = None) -> tuple[str, Simulation]:
    """What does not hold under the faults of a seed, empty if all does; any error is a fault."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    simulation = Simulation(folder, seed, only)
    try:
        simulation.run()
        simulation.check()
        return "", simulation
    except ViolationError as error:
        return str(error), simulation
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}", simulation
    finally:
        logging.disable(before)


def smallest(folder: Path, seed: int) -> list[str]:
    """Faults of a seed that fails with which it still fails, and without any of them does not."""
    kept, runs = outcome(folder / "all", seed)[1].faults.came, 0
    size = len(kept)
    while size := size // 2:
        for first in range(0, len(kept), size):
            fewer = kept[:first] + kept[first + size :]
            runs += 1
            if outcome(folder / str(runs), seed, fewer)[0]:
                kept, size = fewer, 2 * min(size, len(fewer))
                break
    return kept
