"""What is measured on a finished run: local models, curvature, loss surface."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..data import FederatedData
from ..measures import Cka, Divergence, Hessian, Measure, Plane, Surface
from .entry import Entry
from .measure import METRICS
from .plan import PaperRun

_SMALL: dict[type[Measure], dict[str, int]] = {  # at scale smoke
    Hessian: {"examples": 100, "steps": 5, "probes": 3},
    Surface: {"examples": 50, "points": 3},
    Plane: {"examples": 50, "points": 3},
    Cka: {"examples": 50},
}
# of each metric its measure, and the column that is it
_COLUMNS: dict[str, tuple[Callable[..., Measure], str]] = {
    "client_divergence": (Divergence, "divergence"),
    "local_cka": (Cka, "cka"),
    "local_loss": (Plane, "plane_loss"),
    "local_distance": (Plane, "plane_distance"),
    "hessian_top_eigenvalue": (Hessian, "hessian_top"),
    "hessian_trace": (Hessian, "hessian_trace"),
    "loss_sharpness": (Surface, "surface_rise"),
}


def needed(entry: Entry) -> tuple[str, ...]:
    """The metrics of a table that are measured on finished runs."""
    return tuple(dict.fromkeys(w.metric for w in entry.wanted() if METRICS[w.metric].after))


def afterwards(run: PaperRun, data: FederatedData, metrics: Iterable[str]) -> dict[str, float]:
    """{metric: number} of a finished run, at its last checkpoint; the run stays as it is.

    Raises CheckpointError if its folder has none.
    """
    loop = run.config.experiment(data=data).open(run.folder)
    known: dict[Any, dict[str, float]] = {}
    out = {}
    for metric in metrics:
        make, column = _COLUMNS[metric]
        if make not in known:
            options = _SMALL.get(make, {}) if run.scale == "smoke" else {}  # type: ignore[call-overload]
            one = make(**options)
            known[make] = one.columns(one.of(loop))
        if column in known[make]:
            out[metric] = known[make][column]
    return out
