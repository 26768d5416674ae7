"""Hostile client updates, as the server of a real federation reads them: refused or taken, no more.

    python benchmarks/updates.py --count 1000000 [--seed 0]

Valid answers of nodes (dense, top-k, QSGD, a rank-1 codec, control variates) are damaged at random,
also within their headers. Each must be refused with a WireError of one line, or give finite sums,
whose weight is the client's own, and the process may not grow by more than 32 MiB after the first
tenth of them. Ends with 1 at the first that does not, and prints it.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from messages import damaged

from fedloom.algorithm import FedAvg
from fedloom.algorithms import FAFED, Scaffold
from fedloom.checks.tiny_federation import experiment
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, via
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.summation import finite
from fedloom.errors import WireError
from fedloom_flower.engine import FederationEngine
from fedloom_flower.node import Node

CLIENT = 2
MOST = 32  # MiB that the process may grow


class Case:
    """A method's server, and answers that a node gave."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.messages: dict[int, bytes] = {}
        self.engine = FederationEngine(self._kept, run="r")
        given = experiment(**settings)
        given.engine = self.engine
        loop = given.build()
        self.engine.open(loop.plan, loop.fed, loop.net)
        x, self.buffers = loop.net.init(), loop.net.init_buffers()
        probe = settings["algorithm"].probe(x, lambda v: v) if loop.plan.algorithm.probes else None
        srv = loop.plan.algorithm.server_init(x, probe)
        self.msg = loop.plan.algorithm.broadcast(srv)
        asked = TrainTask(self.msg, self.buffers, {}, [CLIENT], 0)
        self.share = self.engine.client.downloads(asked)[1.0]
        other = experiment(**settings).build()
        node = Node(other.plan, other.fed, other.net, CLIENT, folder, "r")
        self.round(0)
        self.valid = node.answer(self.messages[CLIENT])

    def _kept(self, messages: dict[int, bytes], _: float, __: int) -> dict[int, bytes]:
        self.messages = messages
        return {}

    def round(self, number: int) -> Any:
        """A round of this one client."""
        return self.engine.map(
            Request.TRAIN, TrainTask(self.msg, self.buffers, {}, [CLIENT], number)
        )

    def wrong(self, raw: bytes) -> str | None:
        """Why an answer was not read as it must be; "" where it was, None where it was refused."""
        engine = self.engine
        engine._subject, engine._answers = ("round", 0), {CLIENT: raw}
        try:
            part, cost = engine._take_update(CLIENT, self.share, 0, -1)
        except WireError as error:
            return "an error of several lines" if "\n" in str(error) else None
        except Exception as error:  # whatever else comes is what is looked for
            return repr(error)
        fine = finite(part) and part.mass == engine._fed.weight(CLIENT) and cost.answered
        return "" if fine else f"it gave {part}"


def cases(folder: Path) -> list[Case]:
    """Some methods and codecs."""
    return [
        Case(folder / "dense", algorithm=FedAvg()),
        Case(
            folder / "topk",
            algorithm=Scaffold(),
            compress=FieldCodec(via("topk:0.2").codec, Residual()),
        ),
        Case(folder / "qsgd", algorithm=FedAvg(), compress="qsgd"),
        Case(folder / "powersgd", algorithm=FedAvg(), compress="powersgd"),
        Case(folder / "fafed", algorithm=FAFED()),
    ]


def read(count: int, seed: int) -> dict[str, int]:
    """Read so many -> how many were refused and taken, and by how many MiB the process has grown
    after the first tenth. Raises AssertionError with the first that was neither, and for memory.
    """
    largest = 0
    draw, counts = random.Random(f"{seed} updates"), {"refused": 0, "taken": 0}
    with tempfile.TemporaryDirectory(prefix="fedloom-updates-") as folder:
        every = cases(Path(folder))
        for n in range(count):
            case, other = every[n % len(every)], draw.choice(every)
            raw = damaged(case.valid, other.valid, draw)
            why = case.wrong(raw)
            assert not why, f"{why}: {raw.hex()}"
            counts["refused" if why is None else "taken"] += 1
            if n == count // 10:
                largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts["grown_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest) >> 10
    assert counts["grown_mib"] <= MOST, f"the process has grown by {counts['grown_mib']} MiB"
    return counts


def main() -> int:
    """Read -> exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        print(json.dumps(read(given.count, given.seed)))
    except AssertionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
