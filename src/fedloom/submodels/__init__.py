"""Sub-model schemes: which coordinates a client holds. base.py has the interface."""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import SubModel, View, behind_mask, whole
from .fedrolex import FedRolex
from .fiarse import FIARSE, greedy
from .fjord import FjORD
from .heterofl import HeteroFL
from .private import PRIVATE, FedBN, FedPer, FedRep, Private
from .scalefl import ScaleFL
from .slicing.flow import Cuttable, Flow, Part

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
    "Cuttable",
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
