"""fedloom's rounds against the loops that people write by hand, on four pieces of work.

    python benchmarks/rounds.py [--work W1 W2] [--repeats 9] [--engines serial auto] [--record F]
        [--loops plain]
    make bench-peers                        also pfl, Flower's simulation and fluke

W1 logistic regression 784-10, 1,000 clients x 60, cohort 100, 3 steps of 20. W2 FAFED's
Fashion-MNIST network, 20 clients x 3,000, all of them, 10 steps of 50. W3 LEAF's FEMNIST network
(6.6 million parameters), 200 x 100, cohort 5, 5 epochs of batch 20. W4 ResNet-18 with group norm,
100 x 500, cohort 2, 5 steps of 50. Random images of the data sets' shapes: the time is the same.

Every contender is a process (with those that it starts), all do a round in turn, and nothing else
runs meanwhile: the machine's load is said, before and after. fedloom's rounds are an Experiment's,
with the commit, without a folder. The table has the medians of a round's time, of the ratios to the
plain loop in the same turn and of the processor's time, and the largest memory of a contender's
processes (their shares of common pages added up). "gradients only" is no loop: two processes
compute the gradients of a round and nothing else, which is what bounds the others. A peer is given
as NAME=PYTHON, the interpreter of an environment that has it, see `peer_rounds.py`; ranks:2 is
fedloom under torchrun. An engine may be followed by a precision: --engines serial "serial bf16".
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

import torch
from loops import Engineer, Floor, Plain, TwoProcesses, Vmapped
from torch import Tensor, nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import FederatedData, from_arrays, iid
from fedloom.federation.sampling import ClientSampler
from fedloom.models import cnn_fafed_fashion, cnn_femnist, logistic, resnet18

LOOPS = {
    "plain": Plain,
    "engineer": Engineer,
    "two processes": TwoProcesses,
    "gradients only": Floor,
    "vmap": Vmapped,
}
PEERS = ("ranks", "pfl", "flwr", "fluke")  # of peer_rounds.py
ENGINES = ("serial", "vectorised", "workers:2", "workers:2+vectorised:50", "auto")


class Work(NamedTuple):
    """A model, the shape and classes of examples, clients, examples of each, cohort, training."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    clients: int
    each: int
    cohort: int
    local: Local

    def data(self) -> FederatedData:
        """Random examples."""
        n = self.clients * self.each
        inputs, targets = torch.randn(n, *self.shape), torch.randint(0, self.classes, (n,))
        return from_arrays(inputs, targets, iid(self.clients))


WORKS = {
    "W1": Work(lambda: logistic(784, 10), (784,), 10, 1000, 60, 100, Local(epochs=1, batch=20)),
    "W2": Work(cnn_fafed_fashion, (1, 28, 28), 10, 20, 3000, 20, Local(steps=10, batch=50)),
    "W3": Work(cnn_femnist, (1, 28, 28), 62, 200, 100, 5, Local(epochs=5, batch=20, lr=0.01)),
    "W4": Work(resnet18, (3, 32, 32), 10, 100, 500, 2, Local(steps=5, batch=50, lr=0.01)),
}


@functools.cache
def clients(work: str) -> list[tuple[Tensor, Tensor]]:
    """(inputs, targets) of every client, for peers; made once in each process."""
    torch.manual_seed(0)
    data = WORKS[work].data()
    indices = [data.clients.of(i) for i in range(data.clients.count)]
    return [(data.inputs[i], data.targets[i]) for i in indices]


@functools.cache
def model(work: str) -> nn.Module:
    """The model, for peers; made once in each process."""
    torch.manual_seed(0)
    return WORKS[work].model()


def contender(pipe: Any, work: str, name: str) -> None:
    """One process: a round for every number that comes, and the seconds that it took."""
    torch.manual_seed(0)
    of = WORKS[work]
    data = of.data()
    cohorts = ClientSampler(of.cohort, of.clients)
    go: Callable[[int], None]
    close: Callable[[], None] = lambda: None
    if name in LOOPS:
        loop = LOOPS[name](of.model(), data, of.local)
        go, said = lambda t: loop.round(cohorts.of(t)), ""
    else:
        engine, _, precision = name.partition(" ")
        local = replace(of.local, precision=precision or "full")
        parts: dict[str, Any] = {"data": data, "model": of.model, "local": local, "metrics": {}}
        exp = Experiment(algorithm=FedAvg(), cohort=of.cohort, rounds=2000, engine=engine, **parts)
        began = time.perf_counter()
        run = exp.build()
        said = f"{exp.used_engine}, {time.perf_counter() - began:.1f} s" if name == "auto" else ""
        run.engine.open(run.plan, run.fed, run.net)
        run.begin()
        go, close = lambda t: run.until(t + 1), run.engine.close
    pipe.send(said)
    while (t := pipe.recv()) is not None:
        began = time.perf_counter()
        go(t)
        pipe.send(time.perf_counter() - began)
    close()


class Contender(NamedTuple):
    """Who does rounds: its process, the line to it, and what it said at the start."""

    pid: int
    pipe: Connection
    end: Callable[[], object]
    said: str


def started(work: str, name: str) -> Contender:
    """One of ours."""
    make = multiprocessing.get_context("spawn")
    ours, theirs = make.Pipe()
    process = make.Process(target=contender, args=(theirs, work, name))
    process.start()
    return Contender(process.pid or 0, ours, process.join, ours.recv())


def peer(work: str, name: str, python: str) -> Contender:
    """Another system, in an environment of its own; pfl:2 is pfl with two processes."""
    kind, _, processes = name.partition(":")
    several = ["-m", "torch.distributed.run", "--nproc-per-node", processes] if processes else []
    file, paths = Path(__file__).with_name("peer_rounds.py"), [Path(__file__).parents[1] / "src"]
    # Ray would take the environment of whoever starts it for one to be copied to its processes
    more = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with Listener(family="AF_UNIX") as listener:
        command = [python, *several, str(file), kind, work, str(listener.address)]
        process = subprocess.Popen(command, env=os.environ | more, stdout=subprocess.DEVNULL)
        threading.Thread(target=_hang_up, args=(process, listener.address), daemon=True).start()
        pipe = listener.accept()
    try:
        return Contender(process.pid, pipe, lambda: killed(process), pipe.recv())
    except EOFError:
        sys.exit(f"{name} ended before its first round; what it said stands above")


def _hang_up(process: subprocess.Popen[bytes], address: Any) -> None:
    """Call in place of a peer that ended without a call, for which accept() would wait forever."""
    process.wait()
    with contextlib.suppress(OSError):
        Client(address).close()


def killed(process: subprocess.Popen[bytes]) -> None:
    """End a peer and all that it started; its loop has no other end."""
    for member in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.wait()


def family(pid: int) -> set[int]:
    """A process and all that it started."""
    text = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in text.splitlines()]
    members, before = {pid}, 0
    while len(members) > before:
        before = len(members)
        members |= {child for child, parent in pairs if parent in members}
    return members


def of_each(pid: int, file: str) -> Iterator[str]:
    """A file of /proc of a process and of all that it started."""
    for member in family(pid):
        with contextlib.suppress(OSError):
            yield Path(f"/proc/{member}/{file}").read_text(encoding="utf-8")


def memory(pid: int) -> float:
    """GB of a process and of all that it started; pages that are shared count in parts."""
    total = 0
    for text in of_each(pid, "smaps_rollup"):
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 2**20


def processor_seconds(pid: int) -> float:
    """What a process and all that it started have used so far."""
    fields = [text.rpartition(")")[2].split() for text in of_each(pid, "stat")]
    return sum(int(user) + int(system) for *_, user, system in (f[:13] for f in fields)) / 100


def measured(
    work: str, names: list[str], peers: dict[str, str], repeats: int, settle: int
) -> list[dict[str, Any]]:
    """Rounds in turn -> a row per contender. settle: turns before those that count."""
    others: dict[str, Contender] = {}
    try:  # first, as one may be unable to begin
        for name, python in peers.items():
            others[name] = peer(work, name, python)
    except SystemExit:
        for one in others.values():
            one.end()
        raise
    all_of = {name: started(work, name) for name in names} | others
    rows = {
        name: {"work": work, "name": name, "said": one.said, "s": [], "cpu": [], "gb": 0.0}
        for name, one in all_of.items()
    }
    for t in range(repeats + settle):
        for name, one in all_of.items():
            before = processor_seconds(one.pid)
            one.pipe.send(t)
            rows[name]["s"].append(one.pipe.recv())
            rows[name]["cpu"].append(processor_seconds(one.pid) - before)
            rows[name]["gb"] = max(rows[name]["gb"], memory(one.pid))
    for name, one in all_of.items():
        if name not in peers:
            one.pipe.send(None)
        one.end()
    for row in rows.values():
        row["s"], row["cpu"] = row["s"][settle:], row["cpu"][settle:]
    return list(rows.values())


def table(rows: list[dict[str, Any]]) -> str:
    """Medians, ratios to the plain loop of the same turn, and memory."""
    base = rows[0]["s"]
    out = [f"{'':26} {'s/round':>9} {'ratio':>6} {'cpu s':>7} {'GB':>5}"]
    for row in rows:
        ratio = statistics.median(s / b for s, b in zip(row["s"], base, strict=True))
        out.append(
            f"{row['name']:26} {statistics.median(row['s']):9.4f} {ratio:6.2f} "
            f"{statistics.median(row['cpu']):7.3f} {row['gb']:5.1f}"
            + (f"  {row['said']}" if row["said"] else "")
        )
    return "\n".join(out)


def main() -> None:
    """Print a table per work, and add the lines to a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--loops", nargs="+", default=list(LOOPS), choices=list(LOOPS))
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--record", type=Path, help="a JSON line per contender is added to it")
    parser.add_argument(
        "--settle", type=int, default=10, help="turns before: `auto` tries, steps are recorded"
    )
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME=PYTHON")
    options = parser.parse_args()
    peers = dict(given.partition("=")[::2] for given in options.peers)
    for name, python in peers.items():
        if name.partition(":")[0] not in PEERS or not Path(python).is_file():
            known = ", ".join(PEERS)
            parser.error(f"--peers {name}={python}: NAME=PYTHON, a peer ({known}) and a program")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = {"commit": commit, "torch": torch.__version__, "machine": platform.platform()}
    for work in options.work:
        loops = [name for name in options.loops if name != "vmap" or work == "W1"]
        load = os.getloadavg()[0]
        names = [*loops, *options.engines]
        rows = measured(work, names, peers, options.repeats, options.settle)
        print(f"{work}, load before {load:.1f}, {options.repeats} turns\n{table(rows)}", flush=True)
        if options.record:
            with open(options.record, "a", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(row | about | {"load": load}) + "\n")


if __name__ == "__main__":
    main()
