"""A federation of processes on this machine: server, nodes, TLS and keys as users have them; and a
wire between them: counted, and cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedloom.config import resolve
from fedloom.experiment.result import Result
from fedloom_flower.folder import Folder
from fedloom_flower.new import make
from fedloom_flower.own_files import for_nodes
from fedloom_flower.programs import begin, nodes, runs, stop
from support.ranks import free_port
from support.without import Without

# what restarts a command on the pages: for as long as it ends with an error
LOOP = ("sh", "-c", 'until "$@"; do sleep 1; done', "loop")
SMALL = ("data.clients=3", "cohort=3", "rounds=3", "model.hidden=[16]", "checkpoint.every_rounds=1")
LONG = 240.0  # seconds for what takes 40 on a busy machine


class Live:
    """A server, and three clients, in a folder. Processes are started by the commands of users.
    sites: names of clients with files of their own, in a run of the settings in `recipe`.
    """

    def __init__(
        self,
        folder: Path,
        *changes: str,
        recipe: str | Path = "digits",
        sites: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        deployment = {"port": free_port(), "local_port": free_port(), "deadline": 60.0} | settings
        config = resolve(recipe, [*(SMALL if sites is None else ()), *changes])
        self.fed: Folder = make(config, folder, sites, deployment)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def clients(self) -> list[int]:
        return [int(p.name) for p in sorted((self.fed.path / "nodes").iterdir())]

    # ------------------------------------------------------------------------------- processes
    def start(self, name: str, *words: object) -> None:
        """Start a command of fedloom, again and again; what it says goes to a file."""
        command = [*LOOP, sys.executable, *map(str, words)]
        with open(self.fed.path / f"{name}.out", "ab") as out:
            self.processes[name] = subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True
            )

    def server(self) -> None:
        self.start("server", "-m", "fedloom", "deploy", "server", self.fed.path)
        until(lambda: "Ctrl-C" in self.said("server"), "the server answers")

    def node(self, client: int, site: Path | None = None) -> None:
        words = "-m", "fedloom", "deploy", "node", self.fed.path, "--client", client
        data_option = () if site is None else ("--data", site)
        self.start(f"node{client}", *words, *data_option)

    def nodes(self) -> None:
        """Start all nodes, and wait for them."""
        for i in self.clients:
            self.node(i)
        self.connected()

    def kill(self, name: str, word: str) -> None:
        for pid in self.children(name, word):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def connected(self, count: int = 3) -> None:
        """Wait for so many nodes."""
        all_online = lambda: sum(n["status"] == "online" for n in nodes(self.fed)) == count
        until(all_online, f"{count} nodes are connected")

    def said(self, name: str) -> str:
        return (self.fed.path / f"{name}.out").read_text(errors="replace")

    def send(self, name: str, number: int) -> None:
        os.killpg(self.processes[name].pid, number)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        below = self.children(name, "")
        self.send(name, number)
        process = self.processes.pop(name)
        process.wait(40)
        end = time.monotonic() + 40
        while (remaining := [pid for pid in below if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in remaining:
            os.kill(pid, signal.SIGKILL)

    def children(self, name: str, word: str) -> list[int]:
        """The processes below one of these whose command line or name has a word."""
        parents, children = _parents(), []
        for pid in parents:
            ancestor = pid
            while ancestor in parents:
                ancestor = parents[ancestor]
                if ancestor == self.processes[name].pid and word in _command(pid):
                    children.append(pid)
        return children

    def close(self) -> None:
        for name in sorted(self.processes):
            self.end(name)

    # ------------------------------------------------------------------------------------ runs
    def set(self, *changes: str) -> None:
        """Take other settings of the run, at every place, with nothing done yet. Nodes are down."""
        values = resolve("digits", [*SMALL, *changes]).values
        for place in (self.fed.path, *((self.fed.path / "nodes").iterdir())):
            settings = values if place == self.fed.path else for_nodes(values)
            (place / "run.toml").write_text(tomli_w.dumps(dict(settings)))
            shutil.rmtree(place / "states", ignore_errors=True)
        shutil.rmtree(self.fed.run, ignore_errors=True)

    def begin(self) -> str:
        return begin(self.fed)

    def rounds(self) -> list[dict[str, Any]]:
        return lines(self.fed.run / "rounds.jsonl")

    def done(self, round: int) -> None:
        until(lambda: len(self.rounds()) >= round, f"round {round} is done")

    def finished(self, number: str) -> str:
        state = lambda: next(r["status"] for r in runs(self.fed) if r["run-id"] == number)
        until(lambda: state().startswith("finished"), "the run has ended")
        return state()

    def stop(self) -> None:
        stop(self.fed)

    def missing(self) -> set[tuple[int, int]]:
        """{(round from 0, client)} of updates that did not count."""
        last = {row["round"]: row for row in lines(self.fed.run / "clients.jsonl")}
        return {
            (t - 1, i) for t, row in last.items() for i in row["asked"] if i not in row["answered"]
        }

    def equals_simulation(self, folder: Path) -> None:
        """The run has the bits and tests of the simulation of those who answered; if that is all,
        its bill and rows too. The simulation also bills what was computed and did not arrive.
        """
        experiment = resolve(self.fed.run_file, ["engine=serial"]).experiment()
        experiment.engine = Without(self.missing())
        simulation: Result = experiment.run(folder)
        run = self.fed.run
        model = "model.safetensors"
        assert (run / model).read_bytes() == (folder / model).read_bytes()
        assert _state(run) == _state(folder)
        short = bool(self.missing())
        histories = [[_row(r, short) for r in rows] for rows in (self.rounds(), simulation.history)]
        assert histories[0] == histories[1]
        if not short:
            bills = [_row(json.loads((p / "ledger.json").read_text())) for p in (run, folder)]
            assert bills[0] == bills[1]


def _state(run: Path) -> dict[str, bytes]:
    """The server's vectors of the last checkpoint."""
    newest = max(
        (run / "checkpoints").iterdir(), key=lambda p: int(p.name) if p.name.isdecimal() else -1
    )
    return {p.name: p.read_bytes() for p in newest.glob("*.safetensors") if "memory" not in p.name}


def _row(row: dict[str, Any], short: bool = False) -> dict[str, Any]:
    """What two rows share, or ledgers. short: some updates of the round did not come."""
    if short:
        return {k: v for k, v in row.items() if k.startswith("test_") or k == "answered"}
    return {k: v for k, v in row.items() if "seconds" not in k}


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def until(true: Any, what: str, seconds: float = LONG) -> None:
    """Wait; the federation's programs take seconds, and more on a busy machine."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s until {what}"
        time.sleep(0.3)


def alive(pid: int) -> bool:
    """Whether a process is there, and has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return words + Path(f"/proc/{pid}/comm").read_text()
    return ""


def _parents() -> dict[int, int]:
    parents = {}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


@contextlib.contextmanager
def live(folder: Path, *changes: str, **settings: Any) -> Iterator[Live]:
    federation = Live(folder, *changes, **settings)
    try:
        yield federation
    finally:
        federation.close()


# ---------------------------------------------------------------------------------------- the wire
class Relay:
    """A port that passes on to another one of this machine. up, down: bytes to and from it; whole:
    cleared while the wire is cut, when nothing passes and nobody is told.
    """

    def __init__(self, port: int) -> None:
        self._port, self.up, self.down = port, 0, 0
        self._lock, self._ends = threading.Lock(), list[socket.socket]()
        self._place = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self.whole = threading.Event()
        self.whole.set()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._place.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                self._ends += [client, server]
                for way in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self.whole.wait()
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(piece))
                to.sendall(piece)
        self._end(source, to)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self.whole.set()
        self._end(self._place, *self._ends)
