"""Sub-model schemes: which coordinates a client holds. base.py has the interface."""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import SubModel, View, behind_mask, whole
from .fiarse import FIARSE, greedy
from .private import PRIVATE, FedBN, FedPer, FedRep, Private
from .slicing import Flow, Part
from .structured import FedRolex, FjORD, HeteroFL, ScaleFL

SUBMODELS: Registry[Callable[..., SubModel]] = Registry(
    "rule of sub-models",
    {
        "fiarse": FIARSE,
        "greedy": greedy,
        "heterofl": HeteroFL,
        "fedrolex": FedRolex,
        "scalefl": ScaleFL,
        "fjord": FjORD,
    },
    own=SubModel,
)

__all__ = [
    "FIARSE",
    "PRIVATE",
    "SUBMODELS",
    "FedBN",
    "FedPer",
    "FedRep",
    "FedRolex",
    "FjORD",
    "Flow",
    "HeteroFL",
    "Part",
    "Private",
    "ScaleFL",
    "SubModel",
    "View",
    "behind_mask",
    "greedy",
    "whole",
]
