"""Are replays what happened, how long do they take, and does --blame find a planted bad client?

    python benchmarks/replay.py [--pairs 100] [--bad 100] [--record FOLDER]

Pairs: ten kinds of runs on digits (50 clients, ten in a round, 20 rounds). Every client keeps what
it has trained in its state, which the run writes after each round. Of these checkpoints every fifth
is left to the replays. Random pairs of a round and one of its clients are repeated: the client's
whole state, what it has trained included, and the server's model must be those of the run's files,
bit for bit, and the row that of the log. Seconds are of a pair from the settings to the client's
trace, with the data loaded anew.

Bad clients: federations of ten clients, all of which take part; one is hostile. A round of 2 to 6
is repeated, and the first line of --blame must name it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedloom import Checkpoint, Experiment, FedAvg, Local
from fedloom.aggregation import DifferentialPrivacy
from fedloom.algorithms import FedACG, FedDyn, Scaffold
from fedloom.compression.codecs import QSGD, TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.parsing import parse_json
from fedloom.core.vector import Rec, as_bytes, fields, rec
from fedloom.data import digits, dirichlet
from fedloom.federation.attacks import Attack, Gaussian, LabelFlip, Scaled, SignFlip
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import LogNormal
from fedloom.models import mlp
from fedloom.objectives import MOON
from fedloom.stage import At, Download, LocalResult, Stage
from fedloom.storage.client_state import ClientMemory
from fedloom.submodels import FIARSE, FedPer, HeteroFL

ROUNDS, EVERY, WORST = 20, 5, 10.0  # seconds that a pair may take


class Remember(Stage):
    """Keeps what a client has trained in its state."""

    name = "kept"

    def client_init(self, x: torch.Tensor, received: Download) -> Rec:
        return rec(delta=torch.zeros_like(received.msg.x))

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        return done, rec(delta=done.up.delta.clone())


def experiment(**changes: Any) -> Experiment:
    """A run like the recipe digits, with a checkpoint after each round."""
    settings: dict[str, Any] = {
        "algorithm": FedAvg(),
        "model": lambda: mlp(64, hidden=[64], classes=10),
        "data": digits(dirichlet(alpha=0.3, clients=50)),
        "rounds": ROUNDS,
        "cohort": 10,
        "local": Local(epochs=2, batch=16, lr=0.1),
        "engine": "serial",
        "device": "cpu",
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None, keep=ROUNDS),
    }
    return Experiment(**(settings | changes))


LOSSY = Link(FieldCodec(TopK(ratio=0.1), Residual()), down=QSGD())
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "serial, SCAFFOLD": lambda: {"algorithm": Scaffold()},
    "workers, FedDyn": lambda: {"algorithm": FedDyn(), "engine": "workers:2"},
    "vectorised, FedAvg": lambda: {"engine": "vectorised:5"},
    "two ranks, SCAFFOLD": lambda: {"algorithm": Scaffold()},
    "asynchronous": lambda: {"clock": Asynchronous(buffer=5), "devices": LogNormal()},
    "private noise of the seed": lambda: {
        "aggregation": DifferentialPrivacy(clip=1.0, noise=0.3),
        "sampling": "poisson",
        "weighting": "uniform",
    },
    "HeteroFL, two widths": lambda: {"submodel": HeteroFL(), "capacities": (1.0, 0.5)},
    "FIARSE, two sizes": lambda: {"submodel": FIARSE(), "capacities": (1.0, 0.5)},
    "FedACG, top-k and feedback": lambda: {"algorithm": FedACG(), "compress": LOSSY},
    "private layers, MOON": lambda: {"private": FedPer(), "objective": MOON()},
}


def of(kind: str) -> Experiment:
    """The experiment of a kind."""
    return experiment(stages=[Remember()], **KINDS[kind]())


def trained(kind: str, folder: Path) -> dict[int, tuple[dict[int, Rec], dict[str, torch.Tensor]]]:
    """Run a kind -> {round: client states and the server's tensors, as the files have them}. Most
    checkpoints are gone then.
    """
    if "ranks" in kind:
        begin = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        begin += ["--nproc-per-node", "2", __file__, "--only", kind, "--into", str(folder)]
        subprocess.run(begin, check=True, stdout=subprocess.DEVNULL)
    else:
        of(kind).run(folder, progress=False)
    found = {}
    for place in sorted((folder / "checkpoints").iterdir()):
        memory = ClientMemory(folder / "memory")
        memory.restore(parse_json((place / "memory.json").read_text()))
        found[int(place.name)] = memory.get(range(50)), load_file(place / "state.safetensors")
        if int(place.name) % EVERY:
            shutil.rmtree(place)
    return found


def same(a: Rec, b: Rec) -> bool:
    """Whether two records have the same fields and bits."""
    one, two = fields(a), fields(b)
    pairs = [(one[k], two[k]) for k in one] if [*one] == [*two] else [(0, 1)]
    flat = lambda v: as_bytes(v).tolist() if isinstance(v, torch.Tensor) else v
    return all(flat(v) == flat(w) for v, w in pairs)


def pair(kind: str, folder: Path, found: dict[int, Any], draw: random.Random) -> dict[str, Any]:
    """Repeat a random round, and one of its clients."""
    round, started = draw.randint(1, ROUNDS), time.perf_counter()
    states, server = found[round]
    with of(kind).replay(folder, round) as replay:
        replay.go()
        i = draw.choice(replay.cohort)
        trace = replay.client(i)
        seconds = time.perf_counter() - started
        equal = trace.sent is not None and same(trace.sent.memory, states[i])
        srv = rec(x=replay.after, buffers=replay.run.state.buffers)
        there = rec(x=server.get("srv/srv.x", replay.after), buffers=server["buffers"])
        out = {"kind": kind, "round": round, "client": i, "from": replay.began}
        right = equal and same(srv, there) and replay.unlike is None
        return out | {"equal": right, "seconds": round_(seconds)}


def round_(seconds: float) -> float:
    return float(f"{seconds:.3g}")


# --------------------------------------------------------------------------------- bad clients
BAD: dict[str, Callable[[], Attack]] = {
    "signs turned": lambda: SignFlip(share=0.1),
    "ten times as long": lambda: Scaled(share=0.1, strength=10.0),
    "noise of deviation 0.1": lambda: Gaussian(share=0.1, strength=0.1),
    "labels turned": lambda: LabelFlip(share=0.1),
}


def blamed(kind: str, folder: Path, draw: random.Random) -> dict[str, Any]:
    """Run a federation with one bad client, and ask for the culprit."""
    seed, round = draw.randrange(10_000), draw.randint(2, 6)
    data = digits(dirichlet(alpha=1.0, clients=10), seed=seed)
    make = lambda: experiment(data=data, attack=BAD[kind](), seed=seed, rounds=round)
    started = time.perf_counter()
    make().run(folder, progress=False)
    (bad,) = BAD[kind]().hostile(10, seed)
    ran = time.perf_counter()
    with make().replay(folder, round) as replay:
        replay.go()
        order = [b.client for b in replay.blame()]
    place, seconds = order.index(bad) + 1, time.perf_counter() - ran
    out = {"kind": kind, "seed": seed, "round": round, "place": place, "seconds": round_(seconds)}
    return out | {"run_seconds": round_(ran - started)}


def main() -> None:
    """Measure, print, and write the lines of the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--bad", type=int, default=100)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)  # a rank's part
    parser.add_argument("--into", help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("fedloom").setLevel(logging.ERROR)
    if given.into:
        of(given.only).run(given.into, progress=False)
        return
    draw, lines = random.Random(1), []
    with tempfile.TemporaryDirectory() as home:
        for kind in KINDS if given.pairs else ():
            folder = Path(home, kind.replace(" ", "-"))
            found = trained(kind, folder)
            each = given.pairs // len(KINDS)
            lines += [pair(kind, folder, found, draw) for _ in range(each)]
            mine = lines[-each:]
            equal, worst = sum(x["equal"] for x in mine), max(x["seconds"] for x in mine)
            print(f"{kind:28} {equal:3} of {each} equal, at most {worst:.2f} s", flush=True)
        count = Counter[str]()
        for n in range(given.bad):
            kind = [*BAD][n % len(BAD)]
            lines.append(blamed(kind, Path(home, f"bad{n}"), draw))
            count[kind] += lines[-1]["place"] == 1
        for kind, number in count.items():
            print(f"{kind:28} first in {number} of {given.bad // len(BAD)}", flush=True)
    if given.record:
        given.record.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (given.record / "replay.jsonl").write_text(text)
    slow = [x for x in lines if x["seconds"] > WORST]
    print(f"{len(slow)} took more than {WORST:g} s")


if __name__ == "__main__":
    main()
