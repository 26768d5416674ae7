"""What engine = "auto" loses to the best manual choice, on three problems.

    python benchmarks/auto.py [--repeats 7] [--only LEAF]

Logistic regression (784-10, 1,000 clients x 60, cohort 100, batch 20), FAFED's Fashion-MNIST CNN
(20 clients x 3,000, 10 steps of batch 50) and LEAF's FEMNIST CNN (6.6 million parameters, 10
clients x 40, batch 10). Every candidate's rounds alternate; the last column is auto's choice
against the best of all, by medians.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import FederatedData, from_arrays, iid
from fedloom.engines import choose, make_engine
from fedloom.engines.client_results import Asked
from fedloom.models import cnn_fafed_fashion, cnn_femnist, logistic
from fedloom.server.rounds import Loop

CANDIDATES = ("serial", "workers:2", "vectorised", "workers:2+vectorised:{}")


def images(clients: int, each: int, classes: int, size: tuple[int, ...]) -> FederatedData:
    """Random samples of a data set's shape: the time is the same."""
    n = clients * each
    return from_arrays(torch.randn(n, *size), torch.randint(0, classes, (n,)), iid(clients))


def problems() -> dict[str, tuple[Callable[[], nn.Module], FederatedData, Any, Local]]:
    """{name: model, data, cohort, local training}."""
    return {
        "logistic regression": (
            lambda: logistic(784, 10),
            images(1000, 60, 10, (784,)),
            100,
            Local(batch=20),
        ),
        "FAFED's CNN": (
            cnn_fafed_fashion,
            images(20, 3000, 10, (1, 28, 28)),
            1.0,
            Local(steps=10, batch=50),
        ),
        "LEAF's CNN": (cnn_femnist, images(10, 40, 62, (1, 28, 28)), 1.0, Local(batch=10)),
    }


def seconds(loops: dict[str, Loop], repeats: int) -> dict[str, float]:
    """Medians of a round, candidates in turn."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for t in range(repeats + 1):
        for name, loop in loops.items():
            message = loop.plan.algorithm.broadcast(loop.srv)
            cohort, started = loop.cohorts.of(t), time.perf_counter()
            loop.engine.round(Asked(message, loop.buffers, {}, cohort, t))
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="a word of a problem's name")
    options = parser.parse_args()
    repeats = options.repeats
    torch.manual_seed(0)
    for problem, (model, data, cohort, local) in problems().items():
        if options.only not in problem:
            continue
        parts = {"model": model, "data": data, "cohort": cohort, "local": local, "metrics": {}}
        make = functools.partial(Experiment, algorithm=FedAvg(), rounds=10**6, **parts)
        first = make().build()
        members = first.cohorts.of(0)
        began = time.perf_counter()
        choice = choose(first.plan, first.fed, first.net, members, 10**6)
        took = time.perf_counter() - began
        names = {*(c.format(-(-len(members) // 4)) for c in CANDIDATES), choice.engine}
        loops = {}
        for name in sorted(names):
            loop = make().build()
            loop.engine = make_engine(name)
            loop.engine.open(loop.plan, loop.fed, loop.net)
            loop.begin()
            loops[name] = loop
        found = seconds(loops, repeats)
        for loop in loops.values():
            loop.engine.close()
        best = min(found.values())
        print(f"{problem}: auto took {took:.1f} s: {choice}")
        for name, value in sorted(found.items(), key=lambda item: item[1]):
            mark = f"   auto, {value / best:.2f} of the best" if name == choice.engine else ""
            print(f"    {name:26} {1e3 * value:9.1f} ms{mark}")


if __name__ == "__main__":
    main()
