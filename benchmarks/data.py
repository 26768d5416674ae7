"""From a data set's files to a ready federation: seconds and peak memory, a process each.

    python benchmarks/data.py [NAME ...] [--clients 100] [--repeats 3]

The limit for CIFAR-10 with 100 clients is 3 seconds and 600 MB. Importing torch and fedloom is
counted in the memory, not in the time. The first run of FEMNIST also reads its JSON files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

PROGRAM = """
import json, resource, sys, time
import torch
from fedloom.data import PARTITIONS, SOURCES
name, partition, dealt, options = map(json.loads, sys.argv[1:])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, started = peak(), time.perf_counter()
data = SOURCES[name](PARTITIONS[partition](**dealt), **options)
print(time.perf_counter() - started, before, peak(), data.population, len(data.inputs))
"""
# name: partition, options of the data set
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist": ("dirichlet", {"download": False}),
    "cifar10": ("dirichlet", {"download": False}),
    "cifar100": ("dirichlet", {"download": False}),
    "femnist": ("natural", {}),
    "shakespeare": ("natural", {"test_samples": 5000}),
    "wikitext2": ("contiguous", {"part": "valid", "download": False}),
    "sst2": ("iid", {"download": False}),
}


def measured(name: str, clients: int) -> list[float]:
    """Seconds, MB before, MB at most, clients, samples; in a process of its own."""
    partition, options = CASES[name]
    dealt: dict[str, Any] = {} if partition == "natural" else {"clients": clients}
    dealt |= {"alpha": 0.3} if partition == "dirichlet" else {}
    arguments = map(json.dumps, (name, partition, dealt, options))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return [float(value) for value in done.stdout.split()]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(f"{'data':12} {'clients':>7} {'samples':>9} {'seconds':>8} {'before':>8} {'MB':>8}")
    for name in given.names:
        found = [measured(name, given.clients) for _ in range(given.repeats)]
        seconds, before, peak, clients, samples = map(statistics.median, zip(*found, strict=True))
        line = f"{name:12} {clients:7.0f} {samples:9.0f} {seconds:8.2f} {before:8.0f} {peak:8.0f}"
        print(line)


if __name__ == "__main__":
    main()
