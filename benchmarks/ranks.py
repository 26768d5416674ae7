"""Two ranks against two workers, and the exchange of a large model's sum, on this machine.

    python benchmarks/ranks.py            both
    python benchmarks/ranks.py exchange   11.2 million parameters between two ranks, on loopback

The first needs Fashion-MNIST (fedloom data fetch fashion_mnist). It starts torchrun itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fedloom.core.ranks import join
from fedloom.core.vector import rec
from fedloom.engines import Ranks, Serial
from fedloom.engines.client_round import RangeResult, Stats

PARAMETERS = 11_173_962  # ResNet-18 with ten classes
ROUNDS = 10
RUN = ["run", "fashion_dirichlet", "algorithm=scaffold", f"rounds={ROUNDS}", "cohort=20"]
RUN += ["local.steps=5", "local.epochs=none", "evaluate.every=0", "device=cpu"]


def exchange() -> None:
    """In a rank: the exchange of one partial sum a rank, several times."""

    class Whole(Ranks):
        """Its clients have trained already."""

        def once(self) -> float:
            rank = self.group.rank
            total = rec(n=1.0, delta=torch.full((PARAMETERS,), float(rank)))
            stats = [Stats(rank, True, 0.0, 0, 0, {}, {})]
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


def _torchrun(*command: str) -> None:
    words = ["--standalone", "--nproc-per-node", "2", *command]
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "torch.distributed.run", *words], env=own, check=True)


def rounds() -> None:
    """The same run by two workers and by two ranks: seconds of a round."""
    import json

    with tempfile.TemporaryDirectory() as place:
        for name in ("workers:2", "ranks"):
            out, started = str(Path(place) / name.partition(":")[0]), time.perf_counter()
            if name == "ranks":
                _torchrun("-m", "fedloom", *RUN, "engine=serial", "--out", out, "--quiet")
            else:
                command = ["-m", "fedloom", *RUN, f"engine={name}", "--out", out, "--quiet"]
                subprocess.run([sys.executable, *command], check=True)
            whole = time.perf_counter() - started
            each = json.loads((Path(out) / "summary.json").read_text())["seconds_per_round"]
            print(f"{name:<10} {each:.3f} s a round, {whole:.1f} s with start and report")


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        exchange()
    else:
        _torchrun(__file__, "rank")
        if sys.argv[1:] != ["exchange"]:
            rounds()
