"""The exchange of a large model's sum between two ranks on this machine, and a model of it.

python benchmarks/ranks.py            11.2 million parameters, on loopback; starts torchrun
python benchmarks/ranks.py model      what docs/engines.md predicts from the recorded numbers
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys

import torch

from fedloom.core.ranks import join
from fedloom.core.vector import rec
from fedloom.engines import Ranks, Serial
from fedloom.engines.client_round import ClientCost, RangeResult

PARAMETERS = 11_173_962  # ResNet-18 with ten classes


def exchange() -> None:
    """In a rank: the exchange of one partial sum a rank, several times."""

    class Whole(Ranks):
        """Its clients have trained already."""

        def once(self) -> float:
            rank = self.group.rank
            total = rec(n=1.0, delta=torch.full((PARAMETERS,), float(rank)))
            stats = [ClientCost(rank, True, 0.0, 0, 0, {}, {})]
            done = RangeResult([(0, rank, total)], {}, stats)
            before = self.exchanging
            found = self._exchanged(lambda: done, 0, "a round").nodes[0][2]
            assert float(found.delta[0]) == sum(range(self.group.size))
            return self.exchanging - before

    engine = Whole(Serial(), join(60.0))
    engine._net = torch.nn.Identity()  # of which the exchange asks only where vectors are
    engine._net.device = torch.device("cpu")
    times = [engine.once() for _ in range(7)]
    if engine.group.rank == 0:
        sent = engine.sent / len(times) / 1e6
        print(
            f"exchange of {PARAMETERS / 1e6:.1f} million parameters, {engine.group.size} ranks: "
            f"{statistics.median(times[1:]):.3f} s, {sent:.0f} MB sent by a rank"
        )


# Measured, see benchmarks/records/2026-11-23_clusters: a rank needs LOCAL seconds to pack, copy and
# add up a byte that it sends, the network not counted.
LOCAL = 0.327 / 44.7e6
SEGMENT = 14_600  # bytes that TCP sends at once after a pause


def predicted(size: int, bits: float, trip: float, parameters: int, sums: int = 4) -> float:
    """Seconds of an exchange: its bytes at this rate (bits a second) and in the processor, two
    steps, and TCP's slow start, which doubles what is under way with every round trip (seconds).
    """
    sent = (size - 1) / size * (sums + 1) * 4 * parameters
    under_way = bits / 8 * trip  # what the line holds
    starting = math.log2(max(1.0, min(under_way, sent / size) / SEGMENT))
    return sent * (8 / bits + LOCAL) + (2 + starting) * trip


def model() -> None:
    """The table of docs/engines.md, and the recorded measurements beside what it says of them."""
    print("| ranks | " + " | ".join(f"{g} Gbit/s" for g in (1, 10, 100)) + " |")
    print("| --: | --: | --: | --: |")
    for size in (8, 64, 256, 1024):
        each = [predicted(size, g * 1e9, 1e-4, PARAMETERS) for g in (1, 10, 100)]
        print(f"| {size} | " + " | ".join(f"{s:.2f} s" for s in each) + " |")
    slow = predicted(2, 100e6, 0.1, 2 * 1_126_410, 1)
    print(f"2 ranks, 100 Mbit/s and 0.1 s there and back, SCAFFOLD, d = 1.13 million: {slow:.2f} s")


if __name__ == "__main__":
    if sys.argv[1:] == ["model"]:
        model()
    elif sys.argv[1:] == ["rank"]:
        exchange()
    else:
        words = ["--standalone", "--nproc-per-node", "2", __file__, "rank"]
        own = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "torch.distributed.run", *words], env=own, check=True)
