"""Which of fluke's algorithms is which method."""

from __future__ import annotations

import sys

import torch

if sys.platform == "linux" and torch.version.cuda is None:
    # torchvision has one build for Linux, for CUDA; fluke imports it and needs no operator of it
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")

from fluke.algorithms import CentralizedFL
from fluke.algorithms.fedavgm import FedAVGM
from fluke.algorithms.feddyn import FedDyn
from fluke.algorithms.fednova import FedNova
from fluke.algorithms.fedopt import FedOpt
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.scaffold import SCAFFOLD

from fedloom_conformance import NotThereError


def parts_of(method, s):
    """-> the algorithm, the server's settings, the clients' settings."""
    lr, more = s.get("server_lr", 1.0), {}
    if method.startswith("fed") and method[3:] in ("adam", "yogi", "adagrad"):
        return FedOpt, {"mode": method[3:], **_renamed(s)}, more
    if method == "feddyn":
        return FedDyn, dict(s), {"clipping": 0, **s}
    made = {
        "fedavg": (CentralizedFL, {"lr": lr}, more),
        "fedprox": (FedProx, {}, dict(s)),
        "fednova": (FedNova, {}, more),
        "fedavgm": (FedAVGM, {"momentum": s.get("beta")}, more),
        "scaffold2": (SCAFFOLD, {"global_step": lr}, more),
    }
    if method not in made:
        raise NotThereError("no algorithm of this name")
    return made[method]


def _renamed(s):
    return {"lr" if name == "server_lr" else name: value for name, value in s.items()}
