"""Which coordinates a client holds: base.py has the protocol, every other file a family."""

from __future__ import annotations

from collections.abc import Callable

from .base import Now, Rule, View, behind_mask, whole
from .depth import Depth
from .importance import Importance, greedy
from .ordered import Ordered
from .part import Cuttable, Flow, Part
from .rolling import Rolling
from .width import Width

VIEWS: dict[str, Callable[..., Rule]] = {
    "fiarse": Importance,
    "greedy": greedy,
    "heterofl": Width,
    "fedrolex": Rolling,
    "scalefl": Depth,
    "fjord": Ordered,
}

__all__ = [
    "VIEWS",
    "Cuttable",
    "Depth",
    "Flow",
    "Importance",
    "Now",
    "Ordered",
    "Part",
    "Rolling",
    "Rule",
    "View",
    "Width",
    "behind_mask",
    "greedy",
    "whole",
]
