"""Which coordinates a client holds: base.py has the protocol, every other file a family."""

from __future__ import annotations

from collections.abc import Callable

from .base import Now, Rule, View, behind_mask, whole
from .fedrolex import FedRolex
from .fiarse import FIARSE, greedy
from .fjord import FjORD
from .heterofl import HeteroFL
from .scalefl import ScaleFL
from .slicing.flow import Cuttable, Flow, Part

VIEWS: dict[str, Callable[..., Rule]] = {
    "fiarse": FIARSE,
    "greedy": greedy,
    "heterofl": HeteroFL,
    "fedrolex": FedRolex,
    "scalefl": ScaleFL,
    "fjord": FjORD,
}

__all__ = [
    "FIARSE",
    "VIEWS",
    "Cuttable",
    "FedRolex",
    "FjORD",
    "Flow",
    "HeteroFL",
    "Now",
    "Part",
    "Rule",
    "ScaleFL",
    "View",
    "behind_mask",
    "greedy",
    "whole",
]
