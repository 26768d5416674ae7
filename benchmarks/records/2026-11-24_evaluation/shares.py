"""Evaluation as a share of whole rounds, and what could be gained by evaluating beside training.

    python benchmarks/records/2026-11-24_evaluation/shares.py RECIPE|W2|W3 [ROUNDS] [--wall]

Processor seconds, which other work on the machine changes little: of every client's round and of
every batch of an evaluation, in one process; of the rest of a round, as the parent of two workers
has it. Then the rounds of two idle processors are computed from them: tasks go to the first worker
that is free, in the order and the sizes of engines/workers.py. --wall: wall seconds instead, of two
workers with and without evaluation beside, in turn; it says something on a quiet machine alone.
"""

from __future__ import annotations

import heapq
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from rounds import WORKS

from fedloom import Evaluation, Experiment, FedAvg
from fedloom.config import resolve
from fedloom.data import from_arrays, iid
from fedloom.engines.evaluation import evaluation_batch
from fedloom.engines.summation import ranges
from fedloom.server import rounds as server


def experiment(name: str, rounds: int, engine: str) -> Experiment:
    """A recipe, or a work of rounds.py with 10,000 test examples."""
    if name not in WORKS:
        return resolve(name, [f"rounds={rounds}", f"engine={engine}"]).experiment()
    w = WORKS[name]
    n = w.clients * w.each
    draw = lambda k: (torch.randn(k, *w.shape), torch.randint(0, w.classes, (k,)))
    data = from_arrays(*draw(n), iid(w.clients), test=draw(10_000))
    torch.manual_seed(0)
    parts: Any = {"local": w.local, "cohort": w.cohort, "evaluate": Evaluation(clients=False)}
    return Experiment(
        algorithm=FedAvg(), model=w.model, data=data, rounds=rounds, engine=engine, **parts
    )


def makespan(tasks: list[float], workers: int = 2) -> float:
    """Seconds until the last of these tasks ends."""
    free = [0.0] * workers
    for task in tasks:
        heapq.heapreplace(free, free[0] + task)
    return max(free)


def main() -> None:
    """Print a line."""
    name, rounds = sys.argv[1], int((sys.argv[2:] or ["4"])[0])
    torch.set_num_threads(1)
    if "--wall" in sys.argv:
        return wall(name, rounds)
    loop = experiment(name, rounds, "serial").build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    clients: list[list[float]] = []
    evaluations: list[float] = []
    client = loop.engine._client  # type: ignore[attr-defined]
    train, score = client.train, loop.engine.scores

    def trained(*given: Any) -> Any:
        a = time.process_time()
        try:
            return train(*given)
        finally:
            clients[-1].append(time.process_time() - a)

    def scored(*given: Any, **more: Any) -> Any:
        a = time.process_time()
        try:
            return score(*given, **more)
        finally:
            evaluations.append(time.process_time() - a)

    client.train, loop.engine.scores = trained, scored  # type: ignore[method-assign]
    took = []
    for t in range(rounds):
        clients.append([])
        a = time.process_time()
        loop.run(t + 1)
        took.append(time.process_time() - a)
    many = experiment(name, rounds, "workers:2").build()
    many.engine.open(many.plan, many.fed, many.net)
    many.begin()
    parent = []
    for t in range(rounds):
        a = time.process_time()
        many.run(t + 1)
        parent.append(time.process_time() - a)
    many.engine.close()
    inputs, targets = loop.fed.data.test_inputs, loop.fed.data.test_targets
    assert inputs is not None and targets is not None
    median = statistics.median
    c = [median(r) for r in clients[1:]]
    one, evaluation, rest = median(c), median(evaluations[1:]), median(parent[1:])
    costs = [one] * len(clients[0])
    train = makespan([sum(costs[a:b]) for a, b in ranges(costs, 8)])
    batches = -(-len(inputs) // evaluation_batch(targets))
    cut = lambda n: [evaluation * (b - a) / batches for a, b in ranges([1.0] * batches, n)]
    pieces = cut(4)
    beside = makespan([sum(costs[a:b]) for a, b in ranges(costs, 8)] + cut(8))
    now, then = rest + train + makespan(pieces), rest + beside
    print(
        f"{name}: one process, a round {median(took[1:]):.3f} s, its evaluation {evaluation:.3f}: "
        f"{100 * evaluation / median(took[1:]):.1f} %; cohort {len(costs)}, a client {one:.3f}; "
        f"parent {rest:.3f}; two workers: {now:.3f} s, training alone {train:.3f} (idle "
        f"{2 * train - sum(costs):.3f}), evaluation beside it {then:.3f}: "
        f"{100 * (1 - then / now):.1f} % less"
    )


def wall(name: str, rounds: int, turns: int = 5) -> None:
    """Print the medians of a round with evaluation after it and beside the next one."""
    loop = experiment(name, 10_000, "workers:2").build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    loop.run(2)
    real, took = server.beside, ([], [])
    for _ in range(turns):
        for way, call in enumerate((lambda _: False, real)):
            server.beside = call
            a = time.perf_counter()
            loop.run(loop.round + rounds)
            took[way].append((time.perf_counter() - a) / rounds)
    loop.engine.close()
    after, beside = map(statistics.median, took)
    print(f"{name}: {after:.3f} s a round, {beside:.3f} with evaluation beside the next")


if __name__ == "__main__":
    main()
