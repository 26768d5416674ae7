"""Measures of a model and a run: curvature, surfaces, divergence, CKA of local models.

Each is a setting-like value that a run takes, `Experiment(measures=[Hessian(every=50)])`, and that
`fedloom paper measure` takes on a run's folder. The functions below them work on any model.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import MeanLoss, Measure
from .hessian import Hessian, hessian
from .local_models import Cka, Divergence
from .surface import Plane, Surface

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
