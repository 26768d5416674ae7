"""Measures of a model and a run: curvature, surfaces, divergence, CKA of local models.
A run takes them while it trains, `Experiment(measures=[Hessian(every=50)])`, and `fedloom paper
measure` on its folder.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import MeanLoss, Measure
from .landscape import Hessian, Plane, Surface, hessian
from .local_models import Cka, Divergence

MEASURES: Registry[Callable[..., Measure]] = Registry(
    "measure",
    {
        "hessian": Hessian,
        "surface": Surface,
        "plane": Plane,
        "divergence": Divergence,
        "cka": Cka,
    },
)

__all__ = [
    "MEASURES",
    "Cka",
    "Divergence",
    "Hessian",
    "MeanLoss",
    "Measure",
    "Plane",
    "Surface",
    "hessian",
]
