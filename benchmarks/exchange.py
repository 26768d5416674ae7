"""What a round in worker processes costs beside the arithmetic.

    python benchmarks/exchange.py [--repeats 60]

Logistic regression 784-10 (7,850 parameters), clients of 60 examples, 3 steps of 20, as W1 of
rounds.py. A round in one worker process against the same round in this one: the difference is the
exchange. Of cohorts of 10 and of 100 clients it gives the cost of a round and that of a client.
Then 100 clients in one process against 50 in each of two. Rounds alternate. Of wall time the least
and the median are shown, because the machine may be busy; processor time, of all processes, says
more then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rounds import WORKS

from fedloom import Experiment, FedAvg
from fedloom.server.rounds import Loop

FIRST = 5  # rounds that make what later ones find


class Cost(NamedTuple):
    """Milliseconds of a round: wall time, least and median; processor time, here and in workers."""

    least: float
    median: float
    here: float
    workers: float


def begun(engine: str, cohort: int, repeats: int) -> tuple[Loop, set[int]]:
    """A run of W1 before its first round, and the processes that it has started."""
    work, before = WORKS["W1"], children()
    parts: dict[str, Any] = {"data": work.data(), "model": work.model, "local": work.local}
    parts |= {"metrics": {}, "cohort": cohort, "rounds": repeats, "engine": engine}
    run = Experiment(algorithm=FedAvg(), **parts).build()
    run.engine.open(run.plan, run.fed, run.net)
    run.begin()
    run.run(1)
    return run, children() - before


def children() -> set[int]:
    """The processes that this one has started."""
    found = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in found for pid in path.read_text().split()}


def spent(processes: set[int]) -> float:
    """Milliseconds of processor time that these processes have used; the system counts them all."""
    ticks, total = os.sysconf("SC_CLK_TCK"), 0.0
    for pid in processes:
        said = Path(f"/proc/{pid}/schedstat")
        if said.exists():
            total += sum(
                int(task.read_text().split()[0]) / 1e6
                for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
            )
        else:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += 1000 * (int(stat[11]) + int(stat[12])) / ticks
    return total


def measured(engines: tuple[str, ...], cohort: int, repeats: int) -> list[Cost]:
    """Rounds of these engines in turn."""
    runs = [begun(engine, cohort, repeats) for engine in engines]
    wall: list[list[float]] = [[] for _ in runs]
    here: list[list[float]] = [[] for _ in runs]
    there = [0.0 for _ in runs]
    for t in range(1, repeats):
        for k, (run, processes) in enumerate(runs):
            if t == FIRST:
                there[k] = -spent(processes)
            began, cpu = time.perf_counter(), time.process_time()
            run.run(t + 1)
            if t >= FIRST:
                wall[k].append(1000 * (time.perf_counter() - began))
                here[k].append(1000 * (time.process_time() - cpu))
    costs = []
    for k, (run, processes) in enumerate(runs):
        mean = (there[k] + spent(processes)) / len(wall[k])
        median = statistics.median
        costs.append(Cost(min(wall[k]), median(wall[k]), median(here[k]), mean))
        run.engine.close()
    return costs


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    print(f"{'ms a round':34} {'least':>7} {'median':>7} | processor: {'here':>6} {'workers':>8}")
    extra = {}
    for cohort in (10, 100):
        engines = (f"vectorised:{cohort}", f"workers:1+vectorised:{cohort}")
        engines += ("workers:2+vectorised:50",) if cohort == 100 else ()
        costs = measured(engines, cohort, repeats)
        for engine, cost in zip(engines, costs, strict=True):
            said = f"{cohort} clients, {engine}"
            print(
                f"{said:34} {cost.least:7.2f} {cost.median:7.2f} |            "
                f"{cost.here:6.2f} {cost.workers:8.2f}",
                flush=True,
            )
        one, other = costs[:2]
        spent_more = other.here + other.workers - one.here
        extra[cohort] = other.least - one.least, spent_more
    for k, what in enumerate(("wall time, least", "processor time")):
        client = (extra[100][k] - extra[10][k]) / 90
        print(
            f"exchange, {what}: {extra[10][k] - 10 * client:.2f} ms a round, "
            f"{client:.3f} ms a client"
        )


if __name__ == "__main__":
    main()
