"""What a round costs with a method, relative to FedAvg, on FAFED's Fashion-MNIST CNN.

    python benchmarks/methods.py [--repeats 9] [--engine serial]

5 clients x 500 images, all take part, 10 steps of batch 50. Methods alternate; medians, and the
median of the ratios of each pair. FAFED and FedSMOO take two gradients a step, so 2 is their floor.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from loops import seconds

from fedloom import Experiment
from fedloom.algorithms import FAFED, FedACG, FedAvg, FedDyn, FedSMOO, Scaffold
from fedloom.compression.codecs import QSGD, TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.data import from_clients
from fedloom.federation.local import Local
from fedloom.models import cnn_fafed_fashion

CLIENTS, IMAGES = 5, 500
METHODS = {
    "fedavg": (FedAvg(), None),
    "scaffold": (Scaffold(), None),
    "fedacg": (FedACG(), None),
    "feddyn": (FedDyn(), None),
    "fafed": (FAFED(), None),
    "fedsmoo": (FedSMOO(), None),
    "top-k 1 %, residual": (FedAvg(), FieldCodec(TopK(ratio=0.01), Residual())),
    "qsgd 8 bits, residual": (FedAvg(), FieldCodec(QSGD(), Residual())),
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--engine", default="serial")
    options = parser.parse_args()
    torch.manual_seed(0)
    data = from_clients(
        [(torch.randn(IMAGES, 1, 28, 28), torch.randint(0, 10, (IMAGES,))) for _ in range(CLIENTS)]
    )
    runs = {}
    for name, (algorithm, link) in METHODS.items():
        loop = Experiment(
            algorithm=algorithm,
            model=cnn_fafed_fashion,
            data=data,
            rounds=10**6,
            local=Local(steps=10, batch=50, lr=0.01),
            compress=link,
            engine=options.engine,
            metrics={},
        ).build()
        loop.engine.open(loop.plan, loop.fed, loop.net)
        loop.begin()
        runs[name] = loop
    rounds = {
        name: lambda loop=loop: loop.until(loop.state.round + 1) for name, loop in runs.items()
    }
    times = seconds(rounds, options.repeats)
    for loop in runs.values():
        loop.engine.close()
    print(f"{'method':24} {'ms per round':>13} {'of FedAvg':>10}")
    for name, found in times.items():
        ratio = statistics.median(f / b for f, b in zip(found, times["fedavg"], strict=True))
        print(f"{name:24} {1e3 * statistics.median(found):13.1f} {ratio:10.2f}")


if __name__ == "__main__":
    main()
