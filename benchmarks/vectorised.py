"""The vectorised engine against a hand-written loop with two threads, on logistic regression.

    python benchmarks/vectorised.py [--repeats 20]

784-10, 1,000 clients x 60 samples, cohorts of 100, 3 steps of batch 20. Runs alternate; medians and
the ratio of each pair.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from plain import PlainLoop

from fedloom.algorithms import FedAvg
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.data import from_arrays, iid
from fedloom.engines import Serial, Vectorised, Workers
from fedloom.engines.summation import means, root
from fedloom.federation.federation import Federation
from fedloom.federation.local import Local
from fedloom.federation.sampling import Cohorts
from fedloom.models import logistic
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan

CLIENTS, SAMPLES, COHORT = 1000, 60, 100


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    n = CLIENTS * SAMPLES
    data = from_arrays(torch.randn(n, 784), torch.randint(0, 10, (n,)), iid(CLIENTS))
    module, local, cohorts = logistic(784, 10), Local(epochs=1, batch=20), Cohorts(COHORT, CLIENTS)
    plain, net = PlainLoop(module, data, local), Net(module)
    engines = {
        "serial": Serial(),
        "vectorised:100": Vectorised(100),
        "workers:2+vectorised:50": Workers(2, 50),
    }
    plan, fed = Plan(FedAvg(), CrossEntropy()), Federation(data, local)
    for engine in engines.values():
        engine.open(plan, fed, net)
    times: dict[str, list[float]] = {"plain, 2 threads": [], **{name: [] for name in engines}}
    for t in range(repeats + 3):
        cohort = cohorts.of(t)
        torch.set_num_threads(2)
        a = time.perf_counter()
        plain.round(cohort)
        times["plain, 2 threads"].append(time.perf_counter() - a)
        for name, engine in engines.items():
            a = time.perf_counter()
            answers = engine.round(rec(x=net.init()), net.init_buffers(), {}, cohort, t)
            means(root(answers.nodes))
            times[name].append(time.perf_counter() - a)
    for engine in engines.values():
        engine.close()
    base = times["plain, 2 threads"][3:]
    print(f"{'engine':24} {'ms per round':>13} {'times faster':>13}")
    for name, found in times.items():
        ratio = statistics.median(p / f for p, f in zip(base, found[3:], strict=True))
        print(f"{name:24} {1e3 * statistics.median(found[3:]):13.1f} {ratio:13.2f}")


if __name__ == "__main__":
    main()
