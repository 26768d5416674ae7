"""A federation in one process, under faults that a seed decides, in virtual time.

Server, nodes and their disks are the programs' own code: rounds, checkpoints, FederationEngine,
MessageExchange, Node. What they ask of the system (storage/world.py) is simulated, and what carries
messages is `SimulatedTransport`, in the place of Flower. A fault is named by its kind, its place
and a count, and the seed decides it by that name alone: the same seed gives the same run, and a run
without some of the faults is the same but for them.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import logging
import queue
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedloom import Checkpoint
from fedloom.core.vector import Rec
from fedloom.errors import ClientError, FedloomError, WireError
from fedloom.report.runs import read_rows
from fedloom.storage import world
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.manifest import round_folders
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower import message
from fedloom_flower.engine import FederationEngine, oldest_checkpoint
from fedloom_flower.folder import Folder
from fedloom_flower.message_exchange import MessageExchange
from fedloom_flower.node import Node
from fedloom_flower.node_files import NodeStates
from fedloom_flower.server import _write_down, next_start
from support.disk import CHANGES, REAL, Disk, Killed, lay
from tiny import same

from .fault_kinds import CLIENTS, KINDS, ROUNDS, Kind, ViolationError
from .post import SimulatedTransport

QUIET = 1500.0  # virtual seconds, after which nothing fails any more
END = 40_000.0  # at which a run must have ended
CHANCE = {  # of each kind of fault, each time that it may come
    "lost": 0.08,
    "late": 0.15,
    "doubled": 0.1,
    "damaged": 0.04,
    "unreadable": 0.03,
    "hangs": 0.02,
    "split": 0.01,
    "node": 0.03,
    "server": 0.02,
    "rot": 0.8,
    "jump": 0.006,
    "clock": 0.3,  # at a start of the server
    "joins": 0.4,
    "leaves": 0.3,
}
kind_of = lambda seed: list(KINDS)[seed % len(KINDS)]


class Faults:
    """Which faults come. only: of those that the seed says these alone; None: all."""

    def __init__(self, seed: int, only: Collection[str] | None = None) -> None:
        self.seed, self._only = seed, only
        self.occurred: list[str] = []
        self._counts = Counter[str]()
        self.now: Callable[[], float] = lambda: 0.0

    def occurs(self, kind: str, place: object = "") -> bool:
        """Whether a fault comes now."""
        kind_and_place = f"{kind} {place}"
        self._counts[kind_and_place] = count = self._counts[kind_and_place] + 1
        name = f"{kind_and_place} {count - 1}"
        if self.now() > QUIET or (self._only is not None and name not in self._only):
            return False
        digest = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=8).digest()
        if int.from_bytes(digest, "big") >= CHANCE[kind] * 2**64:
            return False
        self.occurred.append(name)
        return True

    def draw(self, name: object) -> random.Random:
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
        self.disk, self.up = Disk(self.root, self._before), True

    def _before(self, disk: Disk) -> None:
        if self.up and self.faults.occurs(self.kind, self.name):
            self.up = False
        if not self.up:
            raise Killed

    def crash(self) -> None:
        """Leave on the disk one of the states that are allowed."""
        self.up, self.starts = False, self.starts + 1
        lay(self.disk.crash_state(self.faults.draw(f"{self.name} {self.starts}")), self.root)


class Simulation:
    """A run of a federation under the faults of a seed -> check() says whether all holds."""

    def __init__(
        self, folder: Path, kind: Kind, seed: int, only: Collection[str] | None = None
    ) -> None:
        self.faults, self.folder, self.kind = Faults(seed, only), folder, kind
        self.now, self._events, self._count = 0.0, list[Any](), 0
        self.faults.now = lambda: self.now
        self.server = Machine(folder / "server", self.faults, "server", "server")
        machine = lambda i: Machine(folder / f"node{i}", self.faults, "node", str(i))
        self.sites = {i: machine(i) for i in CLIENTS}
        self.nodes: dict[int, Node | None] = dict.fromkeys(CLIENTS)
        self.acknowledged, self.crashes, self.rotten = 0, 0, False
        self.sent = defaultdict[int, int](int)  # bytes of blocks to nodes, by round
        self.update_bytes: dict[tuple[int, int], int] = {}  # of an update: round, client
        self.lives = 0  # of the server
        self.newest_round = -1  # the last round that a message was about
        self.newest = dict.fromkeys(CLIENTS, 0)  # the number of the last message to a node
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
        if self.faults.occurs("jump"):  # the machine was asleep
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
        late = 200.0 if self.faults.occurs("hangs") else 0.001
        self.later(late, task, *arguments)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What stands in the place of the world's functions."""

        machines = {m.root.name: m for m in (self.server, *self.sites.values())}

        def on(name: str, path: Path, *arguments: Any) -> Any:
            below = str(path).removeprefix(f"{self.folder}/").partition("/")[0]
            machine = machines.get(below)
            return (machine.disk.functions if machine else REAL)[name](path, *arguments)

        bytes_of = self.faults.draw("system").randbytes
        return {
            "monotonic": lambda: self.now,
            "clock": lambda: 1e9 + self.now - 5000.0 * self.faults.occurs("clock"),
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
            self.kind.begin(patch)
            self._run()
            self.check()

    def _run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, function in self.functions().items():
                patch.setattr(world, name, function)
            save = RunDirectory.save

            def save_and_note(folder: RunDirectory, state: Any, *arguments: Any) -> None:
                save(folder, state, *arguments)
                self.acknowledged = state.round

            patch.setattr(RunDirectory, "save", save_and_note)
            for i in CLIENTS:
                if self.kind.leave and self.faults.occurs("joins", i):
                    self.later(self._away(f"joins {i}"), self._begin, i)
                else:
                    self._begin(i)
            while (end := self._serve()) != "over":
                if end == "killed":
                    self.crashes += 1
                    self.server.crash()
                    self._rot()
                self.sleep(self.faults.draw(f"down {self.crashes}").choice([1.0, 20.0, 200.0]))
                self.server.boot()

    def _rot(self) -> None:
        """Damage the newest of several checkpoints, once: then the one before is taken."""
        checkpoints = round_folders(self.server.root / "fed" / "run" / "checkpoints")
        if len(checkpoints) > 1 and not self.rotten and self.faults.occurs("rot"):
            self.rotten = True
            file = checkpoints[-1] / "state.safetensors"
            raw = file.read_bytes()
            file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
            self.acknowledged = int(checkpoints[-2].name)

    def _serve(self) -> str:
        """The server's program -> how it ended: "over", "killed", or "few" took part."""
        folder, fed = self.server.root / "fed", Folder(self.server.root / "fed")
        oldest = functools.partial(oldest_checkpoint, folder / "run")
        safe, rounds = self.acknowledged, list[int]()
        self.lives += 1

        def on_round(row: dict[str, Any]) -> None:
            rounds.append(row["round"])
            _write_down(fed, engine, row, {})

        saving = Checkpoint(self.kind.often or 1 + self.faults.seed // 5 % 2, every_seconds=None)
        experiment = self.kind.make(on_round=on_round, checkpoint=saving)
        try:
            exchange = self._counting(MessageExchange(SimulatedTransport(self)))
            settings = {"run": "r", "kept": oldest, "start": next_start(fed)}
            engine = FederationEngine(exchange, **settings, **self.kind.engine)
            experiment.engine = engine
            experiment.run(folder / "run", go_on=True)
        except Killed:
            return "killed"
        except ClientError as error:
            if "in a row" not in str(error):
                raise
            return "few"
        except FedloomError as error:
            raise ViolationError(f"the server cannot go on: {error}") from error
        finally:
            if min(rounds, default=safe + 1) <= safe:
                raise ViolationError(f"round {min(rounds)} was done again, and {safe} was safe")
        return "over"

    def _counting(self, exchange: MessageExchange) -> Callable[..., dict[int, bytes]]:
        started = set[int]()  # rounds of this life

        def counted(messages: dict[int, bytes], seconds: float, enough: int) -> dict[int, bytes]:
            for i, raw in messages.items():
                head = message.decode(message.ASK, raw)[0]
                self.newest_round, self.newest[i] = max(self.newest_round, head.round), head.attempt
                if head.round not in started:
                    started.add(head.round)
                    self.sent[head.round] = 0
                self.sent[head.round] += sum(head.parts.values())
            return exchange(messages, seconds, enough)

        return counted

    def _begin(self, i: int) -> None:
        self.sites[i].boot()
        try:
            self.nodes[i] = self.kind.node(i, self.sites[i].root / "states")
        except Killed:
            self._crash(i)
        else:
            if self.kind.leave:
                self.later(100.0, self._perhaps_leave, i, self.nodes[i])

    def _perhaps_leave(self, i: int, node: Node) -> None:
        """A site's program is ended for a while, if it still runs."""
        if self.nodes[i] is not node or self.now > QUIET:
            return
        if self.faults.occurs("leaves", i):
            self.nodes[i] = None
            self.later(self._away(f"leaves {i} {self.now}"), self._begin, i)
        else:
            self.later(100.0, self._perhaps_leave, i, node)

    def _away(self, why: str) -> float:
        return self.faults.draw(why).choice([30.0, 200.0, 900.0])

    def _crash(self, i: int) -> None:
        self.nodes[i] = None
        self.sites[i].crash()
        self.kind.check_disk(i, self.sites[i].root / "states")
        down = self.faults.draw(f"down {i} {self.sites[i].starts}").choice([2.0, 30.0, 150.0])
        self.later(down, self._begin, i)

    def answer(self, i: int, raw: bytes) -> bytes | None:
        """What a node answers; None if it is down, or goes down. Raises ViolationError."""
        if (node := self.nodes[i]) is None:
            return None
        try:
            reply = node.answer(raw)
        except Killed:
            self._crash(i)
            return None
        head, blocks = message.decode(message.ANSWER, reply)
        if not isinstance(head, message.Refusal):
            try:
                ask = message.decode(message.ASK, raw)
            except WireError as error:
                raise ViolationError(f"client {i} has answered what is no message") from error
            self._check_answer(i, head, blocks, *ask)
        self.kind.check_disk(i, self.sites[i].root / "states")
        newest = max((int(p.stem) for p in node.states.folder.glob("0*.safetensors")), default=-1)
        if newest > self.newest_round:
            raise ViolationError(
                f"client {i} has a state of round {newest + 1}, which nobody asked for"
            )
        return reply

    def _check_answer(self, i: int, head: Any, blocks: Any, ask: message.Ask, parts: Any) -> None:
        if getattr(head, "lost", False) and ask.attempt == self.newest[i]:
            raise ViolationError(f"client {i} has lost a state that it had acknowledged")
        if isinstance(head, message.Update) and head.what == "round":
            self.update_bytes[head.round, i] = sum(head.parts.values())
        self.kind.check_answer(i, ask, parts, blocks)

    # -------------------------------------------------------------------------------- what holds
    def check(self) -> None:
        """Raise ViolationError unless the run is the simulation of those who answered."""
        run_folder = self.server.root / "fed" / "run"
        rows = read_rows(run_folder / "clients.jsonl")
        if [row["round"] for row in rows] != [*range(1, ROUNDS + 1)]:
            raise ViolationError(f"clients.jsonl has the rounds {[row['round'] for row in rows]}")
        simulated = self.kind.simulate(rows)
        folder, memory = RunDirectory(run_folder), ClientMemory(run_folder / "memory")
        state = folder.load(memory)
        history = read_rows(folder.rounds)
        if state is None or state.round != ROUNDS:
            raise ViolationError("the last checkpoint is not of the last round")
        self._same("the server's state", state.srv.srv, simulated.srv)
        losses = [[row["test_loss"] for row in log] for log in (history, simulated.history)]
        if losses[0] != losses[1]:
            raise ViolationError(
                f"the test losses are {losses[0]}, and of the simulation {losses[1]}"
            )
        for i, client_state in simulated.memory.items():
            last = int(memory.get([i])[i].last)
            self._same(f"the state of client {i}", self._version(i, last), client_state)
        self._check_bill(rows, state.extra["ledger"])
        folders = {i: site.root / "states" for i, site in self.sites.items()}
        self.kind.check(rows, state.extra, folders)

    def _version(self, i: int, round: int) -> Rec:
        version = NodeStates(self.sites[i].root / "states").at(round, 0)
        if version is None:
            raise ViolationError(f"client {i} has no state of round {round + 1}")
        return version.state

    def _check_bill(self, rows: list[dict[str, Any]], ledger: dict[str, Any]) -> None:
        bill = {"down": sum(self.sent.values()), "up": 0}
        for t, row in enumerate(rows):
            draws = [row, *row.get("redrawn", [])]
            clients = {i for draw in draws for i in draw["answered"] + draw.get("unused", [])}
            bill["up"] += sum(self.update_bytes.get((t, i), 0) for i in clients)
        for way in self.kind.billed:
            if sum(ledger[way].values()) != bill[way]:
                text = f"{bill[way]} bytes went {way}, and the ledger has {ledger[way]}"
                raise ViolationError(text)

    def _same(self, what: str, one: Any, other: Any) -> None:
        if not same(one, other):
            raise ViolationError(f"{what} is not that of the simulation of those who answered")


def outcome(
    folder: Path, seed: int, only: Collection[str] | None = None, kind: str = ""
) -> tuple[str, Simulation]:
    """What does not hold under the faults of a seed, empty if all does; any error is a fault."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    simulation = Simulation(folder, KINDS[kind or kind_of(seed)], seed, only)
    try:
        simulation.run()
        return "", simulation
    except ViolationError as error:
        return str(error), simulation
    except Exception as error:  # a crash of the code is a finding, too
        return f"{type(error).__name__}: {str(error).splitlines()[0]}", simulation
    finally:
        logging.disable(before)


def smallest(folder: Path, seed: int, kind: str = "") -> list[str]:
    """Faults of a seed that fails with which it still fails, and without any of them does not."""
    faults, runs = outcome(folder / "all", seed, None, kind)[1].faults.occurred, 0
    size = len(faults)
    while size := size // 2:
        for first in range(0, len(faults), size):
            fewer = faults[:first] + faults[first + size :]
            runs += 1
            if outcome(folder / str(runs), seed, fewer, kind)[0]:
                faults, size = fewer, 2 * min(size, len(fewer))
                break
    return faults
