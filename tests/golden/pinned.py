"""Small runs of every method on the digits, and the few numbers that describe where each ends.

They say that a refactoring changed nothing. They are this code's own output and prove nothing about
the papers: tests/closed_form and the other files of tests/golden do. Renew runs.json after a change
that is meant to alter numbers, and say so in the changelog under "Results":

    python tests/golden/pinned.py            # all; or the names of some runs behind it
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom import Evaluation, Experiment, Local
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.compression.codecs import QSGD, PowerSGD, RandomDropping, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.vector import fields
from fedloom.data import digits, dirichlet
from fedloom.federation.clock import Asynchronous
from fedloom.federation.schedules import Exponential
from fedloom.models import mlp
from fedloom.objectives import OBJECTIVES, Needs
from fedloom.submodels import SUBMODELS

FILE = Path(__file__).with_name("runs.json")
Parts = dict[str, Any]
LOCAL = Local(epochs=1, batch=10, lr=0.1, schedule=Exponential(decay=0.99))


@functools.cache
def data() -> Any:
    """Twenty clients, Dirichlet(0.3), float64: made once."""
    own = digits(dirichlet(0.3, clients=20))
    parts = {name: getattr(own, name).double() for name in ("inputs", "test_inputs")}
    return dataclasses.replace(own, **parts)


def start() -> torch.nn.Module:
    """A network whose first weights are the same on every processor: torch's own draws are rounded
    as its vectors are long.
    """
    made, draws = mlp(64, (24,), 10).double(), np.random.default_rng(5)
    with torch.no_grad():
        for p in made.parameters():
            bound = p.shape[-1] ** -0.5
            p.copy_(torch.from_numpy(draws.uniform(-bound, bound, tuple(p.shape))))
    return made


def runs() -> dict[str, Callable[[], Parts]]:
    """{name: what it changes}: every registered algorithm, objective, view; codecs; settings."""
    out: dict[str, Callable[[], Parts]] = {}
    for name in ALGORITHMS:
        out[f"algorithm {name}"] = lambda name=name: {"algorithm": make_algorithm(name)}
    for name, make in OBJECTIVES.items():
        # what is not for labels, or asks for a model or a rule of its own, is proven elsewhere
        if name != "squared_error" and not make.needs:
            out[f"objective {name}"] = lambda make=make: {"objective": make()}
    for name, make in SUBMODELS.items():
        if make().trains is Needs.EXITS:
            continue
        out[f"view {name}"] = lambda make=make: {"submodel": make(), "capacities": [0.3, 1.0]}
    for name, via in {
        "topk": FieldCodec(TopK(ratio=0.1), Residual()),
        "topk by layer": FieldCodec(TopK(ratio=0.1, scope="layer"), EF21()),
        "qsgd": FieldCodec(QSGD(), Residual()),
        "powersgd": FieldCodec(PowerSGD(rank=2), Residual()),
        "dropping": FieldCodec(RandomDropping(ratio=0.3), Forget()),
    }.items():
        out[f"codec {name}"] = lambda via=via: {"compress": via}
    local = {"epochs": 1, "batch": 10, "lr": 0.1}
    for name, changed in {
        "adam": {"optimiser": "adam", "lr": 0.01},
        "momentum and decay": {"momentum": 0.9, "weight_decay": 1e-3, "clip": 1.0},
        "steps": {"epochs": None, "steps": 7, "drop_last": True},
    }.items():
        out[f"local {name}"] = lambda changed=changed: {"local": Local(**(local | changed))}
    # with 0.1 it diverges, and the last bits of a processor's sums become a third of the loss
    tame = {
        "algorithm": make_algorithm("fafed", alpha=0.1),
        "local": dataclasses.replace(LOCAL, lr=0.003),
    }
    out["algorithm fafed"] = lambda: tame
    adamw = dataclasses.replace(LOCAL, optimiser="adamw", lr=0.01, weight_decay=0.01)
    out["algorithm diloco"] = lambda: {"algorithm": make_algorithm("diloco"), "local": adamw}
    clock = Asynchronous(buffer=5, concurrency=8)
    out["algorithm fedbuff"] = lambda: {"algorithm": make_algorithm("fedbuff"), "clock": clock}
    return out


def experiment(name: str) -> Experiment:
    """The run of this name: three rounds, a quarter of the clients, serial, float64."""
    settings: Parts = {
        "algorithm": make_algorithm("fedavg"),
        "model": start,
        "data": data(),
        "rounds": 3,
        "cohort": 5,
        "local": LOCAL,
        "evaluate": Evaluation(every=1),
        "seed": 1,
        "engine": "serial",
        "device": "cpu",
        "dtype": torch.float64,
    }
    return Experiment(**(settings | runs()[name]()))


def numbers(name: str) -> dict[str, Any]:
    """What describes a run's end: norms of everything that the server keeps, losses, the test set's
    accuracy, bytes. No hashes: other processors may round otherwise.
    """
    result = experiment(name).run()
    kept = {
        f"norm of {path}": float(v.norm())
        for path, v in fields(result.state).items()
        if isinstance(v, torch.Tensor)
    }
    last = result.history[-1]
    return kept | {
        "train_loss": last["train_loss"],
        "test_loss": last["test_loss"],
        "test_accuracy": last["test_accuracy"],
        "bytes_up": result.ledger.bytes_up,
        "bytes_down": result.ledger.bytes_down,
    }


def pinned() -> dict[str, dict[str, Any]]:
    """The committed numbers of all runs."""
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return known


def renew(names: list[str]) -> None:
    """Write the numbers of these runs (none: of all) into the file, and leave out runs that are no
    more.
    """
    if unknown := sorted(set(names) - set(runs())):
        raise SystemExit(f"no run is called {unknown[0]!r}; there are: {', '.join(runs())}")
    known = {n: v for n, v in pinned().items() if n in runs()}
    for name in names or runs():
        known[name] = numbers(name)
    new = {n: known[n] for n in runs() if n in known}
    FILE.write_text(json.dumps(new, indent=1) + "\n")


if __name__ == "__main__":
    renew(sys.argv[1:])
