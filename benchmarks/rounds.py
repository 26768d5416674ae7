"""fedloom's rounds against the loops that people write by hand, on four pieces of work.

    python benchmarks/rounds.py [--work W1 W2] [--repeats 9] [--engines serial auto] [--record F]

W1 logistic regression 784-10, 1,000 clients x 60, cohort 100, 3 steps of 20. W2 FAFED's
Fashion-MNIST network, 20 clients x 3,000, all of them, 10 steps of 50. W3 LEAF's FEMNIST network
(6.6 million parameters), 200 x 100, cohort 5, 5 epochs of batch 20. W4 ResNet-18 with group norm,
100 x 500, cohort 2, 5 steps of 50. Random images of the data sets' shapes: the time is the same.

Every contender is a process (with those that it starts), all do a round in turn, and nothing else
runs meanwhile: the machine's load is said, before and after. fedloom's rounds are an Experiment's,
with the commit, without a folder. The table has the median of a round, the median of the ratios to
the plain loop in the same turn, and the largest memory of a contender's processes (their shares of
common pages added up). "gradients only" is no loop: two processes compute the gradients of a round
and nothing else, which is what bounds the others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from loops import Engineer, Floor, Plain, TwoProcesses, Vmapped
from torch import nn

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
        parts: dict[str, Any] = {"data": data, "model": of.model, "local": of.local, "metrics": {}}
        exp = Experiment(algorithm=FedAvg(), cohort=of.cohort, rounds=2000, engine=name, **parts)
        began = time.perf_counter()
        run = exp.build()
        said = f"{exp.taken}, {time.perf_counter() - began:.1f} s" if name == "auto" else ""
        run.engine.open(run.plan, run.fed, run.net)
        run.begin()
        go, close = lambda t: run.until(t + 1), run.engine.close
    pipe.send(said)
    while (t := pipe.recv()) is not None:
        began = time.perf_counter()
        go(t)
        pipe.send(time.perf_counter() - began)
    close()


def memory(pid: int) -> float:
    """GB of a process and of all that it started; pages that are shared count in parts."""
    found = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in found.splitlines()]
    own, before = {pid}, 0
    while len(own) > before:
        before = len(own)
        own |= {child for child, parent in pairs if parent in own}
    total = 0
    for one in own:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8")
            total += next(int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:"))
    return total / 2**20


def measured(work: str, names: list[str], repeats: int, first: int = 2) -> list[dict[str, Any]]:
    """Rounds in turn -> a row per contender. first: turns before those that count."""
    make = multiprocessing.get_context("spawn")
    pipes, processes, rows = {}, {}, {}
    for name in names:
        ours, theirs = make.Pipe()
        processes[name] = make.Process(target=contender, args=(theirs, work, name))
        processes[name].start()
        pipes[name] = ours
        rows[name] = {"work": work, "name": name, "said": ours.recv(), "s": [], "gb": 0.0}
    for t in range(repeats + first):
        for name, pipe in pipes.items():
            pipe.send(t)
            rows[name]["s"].append(pipe.recv())
            rows[name]["gb"] = max(rows[name]["gb"], memory(processes[name].pid))
    for name, pipe in pipes.items():
        pipe.send(None)
        processes[name].join()
    for row in rows.values():
        row["s"] = row["s"][first:]  # the first rounds make what later ones find
    return list(rows.values())


def table(rows: list[dict[str, Any]]) -> str:
    """Medians, ratios to the plain loop of the same turn, and memory."""
    base = rows[0]["s"]
    out = [f"{'':26} {'s/round':>9} {'ratio':>6} {'GB':>5}"]
    for row in rows:
        ratio = statistics.median(s / b for s, b in zip(row["s"], base, strict=True))
        out.append(
            f"{row['name']:26} {statistics.median(row['s']):9.4f} {ratio:6.2f} {row['gb']:5.1f}"
            + (f"  {row['said']}" if row["said"] else "")
        )
    return "\n".join(out)


def main() -> None:
    """Print a table per work, and add the lines to a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--record", type=Path, help="a JSON line per contender is added to it")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = {"commit": commit, "torch": torch.__version__, "machine": platform.platform()}
    for work in options.work:
        loops = [name for name in LOOPS if name != "vmap" or work == "W1"]
        load = os.getloadavg()[0]
        rows = measured(work, [*loops, *options.engines], options.repeats)
        print(f"{work}, load before {load:.1f}, {options.repeats} turns\n{table(rows)}", flush=True)
        if options.record:
            with open(options.record, "a", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(row | about | {"load": load}) + "\n")


if __name__ == "__main__":
    main()
