"""What fedloom costs beyond a hand-written in-place loop, serial, per client and per step.

    python benchmarks/overhead.py [--repeats 30]

A model of 101,770 parameters, batches of 4 (so that the gradient is small), clients with 1 and with
21 steps. Both loops draw batches and do the same steps; runs alternate; the medians of the
differences give the two costs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from loops import Plain

from fedloom.aggregation.base import means
from fedloom.algorithms import FedACG, FedAvg, Scaffold
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.serial import Serial
from fedloom.engines.summation import root
from fedloom.federation.federation import Federation
from fedloom.federation.local import Local
from fedloom.models import mlp
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan

CLIENTS, BATCH, FEW, MANY = 10, 4, 1, 21


def seconds(algorithm, steps: int, repeats: int) -> tuple[float, float]:
    """Medians of one round: plain, and the difference of fedloom to it."""
    torch.manual_seed(0)
    size = steps * BATCH
    data = from_clients(
        [(torch.randn(size, 784), torch.randint(0, 10, (size,))) for _ in range(CLIENTS)]
    )
    module, local, cohort = mlp(784, (128,), 10), Local(epochs=1, batch=BATCH), list(range(CLIENTS))
    plain, net, engine = Plain(module, data, local), Net(module), Serial()
    plain.threads = 1
    plan = Plan(algorithm, CrossEntropy())
    engine.open(plan, Federation(data, local), net)
    srv, memory, times = algorithm.server_init(net.init(), None), {}, []
    for t in range(repeats):
        a = time.perf_counter()
        plain.round(cohort)
        b = time.perf_counter()
        answers = engine.map(
            Request.TRAIN,
            TrainTask(algorithm.broadcast(srv), net.init_buffers(), memory, cohort, t),
        )
        means(root(answers.nodes))
        c = time.perf_counter()
        memory = answers.memories
        times.append((b - a, c - b))
    times = times[len(times) // 5 :]  # the first ones warm up
    return statistics.median(p for p, _ in times), statistics.median(f - p for p, f in times)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    print(f"{'method':10} {'plain step':>11} {'+ per client':>13} {'+ per step':>11}   (ms)")
    for name, algorithm in (("fedavg", FedAvg()), ("fedacg", FedACG()), ("scaffold", Scaffold())):
        plain_few, few = seconds(algorithm, FEW, repeats)
        plain_many, many = seconds(algorithm, MANY, repeats)
        per_step = (many - few) / (MANY - FEW) / CLIENTS
        per_client = few / CLIENTS - FEW * per_step
        plain_step = (plain_many - plain_few) / (MANY - FEW) / CLIENTS
        print(f"{name:10} {1e3 * plain_step:11.3f} {1e3 * per_client:13.3f} {1e3 * per_step:11.3f}")


if __name__ == "__main__":
    main()
