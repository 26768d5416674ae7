"""What engine = "auto" loses to the best manual choice, on three problems.

    python benchmarks/auto.py [--repeats 7] [--only LEAF] [--settle 40]

Logistic regression (784-10, 1,000 clients x 60, cohort 100, batch 20), FAFED's Fashion-MNIST CNN
(20 clients x 3,000, 10 steps of batch 50) and LEAF's FEMNIST CNN (6.6 million parameters, 10
clients x 40, batch 10). Every engine's rounds alternate; the last column is auto against the
best of all, by medians. In a first part `auto` runs alone until its processes have started and it
has decided.
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
from fedloom.engines import Auto, make_engine
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


def settle(loop: Loop, limit: float) -> None:
    """Run rounds of `auto` for so many seconds, in which it decides."""
    began, t = time.perf_counter(), 0
    while time.perf_counter() - began < limit:
        _round(loop, t)
        t += 1


def _round(loop: Loop, t: int) -> None:
    message = loop.plan.algorithm.broadcast(loop.srv)
    loop.engine.round(Asked(message, loop.buffers, {}, loop.cohorts.of(t), t))


def seconds(loops: dict[str, Loop], repeats: int) -> dict[str, float]:
    """Medians of a round, candidates in turn."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for t in range(repeats + 1):
        for name, loop in loops.items():
            started = time.perf_counter()
            _round(loop, 10**5 + t)  # after those of settle()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="a word of a problem's name")
    parser.add_argument("--settle", type=float, default=40.0, help="seconds")
    options = parser.parse_args()
    repeats = options.repeats
    torch.manual_seed(0)
    for problem, (model, data, cohort, local) in problems().items():
        if options.only not in problem:
            continue
        parts = {"model": model, "data": data, "cohort": cohort, "local": local, "metrics": {}}
        make = functools.partial(Experiment, algorithm=FedAvg(), rounds=10**6, **parts)
        loops = {"auto": make(engine="auto").build()}
        auto = loops["auto"].engine
        assert isinstance(auto, Auto)
        clients = len(loops["auto"].cohorts.of(0))
        for name in (c.format(-(-clients // 2)) for c in CANDIDATES):
            loops[name] = make().build()
            loops[name].engine = make_engine(name)
        for name, loop in loops.items():
            loop.engine.open(loop.plan, loop.fed, loop.net)
            loop.begin()
            if name == "auto":
                settle(loop, options.settle)
        found = seconds(loops, repeats)
        for loop in loops.values():
            loop.engine.close()
        best = min(found.values())
        print(f"{problem}: {auto.text}, in {auto.way}")
        for name, value in sorted(found.items(), key=lambda item: item[1]):
            mark = f"   auto, {value / best:.2f} of the best" if name == "auto" else ""
            print(f"    {name:26} {1e3 * value:9.1f} ms{mark}")


if __name__ == "__main__":
    main()
