"""The workers engine against a hand-written loop with two threads, on FAFED's Fashion-MNIST CNN.

    python benchmarks/workers.py [--repeats 15] [--workers 2]

20 clients x 3,000 images, all take part, 10 steps of batch 50 (random images of the data set's
shape: the time is the same, and no download is needed). Runs alternate; medians and the ratio of
each pair.
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
from fedloom.data import from_clients
from fedloom.engines import Serial, Workers
from fedloom.engines.summation import means, root
from fedloom.federation.federation import Federation
from fedloom.federation.local import Local
from fedloom.models import cnn_fafed_fashion
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan

CLIENTS, IMAGES = 20, 3000


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    pairs = [
        (torch.randn(IMAGES, 1, 28, 28), torch.randint(0, 10, (IMAGES,))) for _ in range(CLIENTS)
    ]
    data, cohort = from_clients(pairs), list(range(CLIENTS))
    module, local = cnn_fafed_fashion(), Local(steps=10, batch=50)
    plain, net = PlainLoop(module, data, local), Net(module)
    engines = {"serial": Serial(), f"workers:{options.workers}": Workers(options.workers)}
    plan = Plan(FedAvg(), CrossEntropy())
    fed = Federation(data, local, channels_last=True)  # as an Experiment decides for this model
    for engine in engines.values():
        engine.open(plan, fed, net)
    times: dict[str, list[float]] = {"plain, 2 threads": [], **{name: [] for name in engines}}
    for t in range(options.repeats + 3):
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
    print(f"{'engine':18} {'ms per round':>13} {'times faster':>13}")
    for name, found in times.items():
        ratio = statistics.median(p / f for p, f in zip(base, found[3:], strict=True))
        print(f"{name:18} {1e3 * statistics.median(found[3:]):13.1f} {ratio:13.2f}")


if __name__ == "__main__":
    main()
