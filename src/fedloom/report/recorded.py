"""Measures that a run has recorded already: read from its folder, without its model and data; and
all that `fedloom paper measure` knows by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedloom.core.registry import Registry
from fedloom.errors import ConfigError
from fedloom.measures import MEASURES

from .curve_data import first_hit, measured
from .runs import Run

Readings = dict[str, Any]
BINS = 20  # of five points each, as in FIARSE's Figures 2 and 5


def clients(run: Run) -> Readings:
    """The metric of every client after the last round, and how many clients lie in each bin.

    A share's bins are five points wide. Source: FIARSE (Wu et al., NeurIPS 2024), Figures 2 and 5.
    """
    values = [v for v in run.clients.get("values") or [] if v is not None]
    if not values:
        raise ConfigError(
            f"'{run.path}' has no {run.metric.name} per client; it needs test samples of the "
            "clients' own (data.tests=matched) or labels, evaluate.clients=true, and its last round"
        )
    low, high = (0.0, 1.0) if run.metric.unit == "share" else (min(values), max(values))
    width = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in values:
        counts[min(max(int((value - low) / width), 0), BINS - 1)] += 1
    ordered = sorted(values)
    return {
        "round": run.clients.get("round"),
        "metric": run.metric.name,
        "basis": run.clients.get("basis"),
        "clients": len(values),
        "mean": sum(values) / len(values),
        "tenth": ordered[len(values) // 10],
        "edges": [low + width * i for i in range(BINS + 1)],
        "counts": counts,
        "values": run.clients["values"],
    }


def targets(run: Run, target: Sequence[float] = ()) -> Readings:
    """Rounds, bytes, gradients and seconds until the moving average reached a target, or several.

    target: in the metric's unit (0.9 is 90 %); none: the run's own. None stands for not reached.
    Bytes count both directions and all clients; gradients are of a batch. Source: FedACG, Tables 1
    to 3; FedSMOO, Tables 3 and 6.
    """
    goals = list(target) or ([] if run.target is None else [run.target])
    if not goals:
        raise ConfigError(f"'{run.path}' was given no target; say which, as in target='[0.8, 0.9]'")
    rows = []
    for value in goals:
        hit = first_hit(run, value)
        spent: Readings = dict.fromkeys(("round", "bytes", "gradients", "seconds"))
        if hit is not None:
            spent = {"round": hit.round, "bytes": int(hit.bytes)}
            spent |= {"gradients": int(hit.gradients) or None, "seconds": hit.seconds or None}
        rows.append({"target": value, **spent})
    return {"round": len(run.rounds), "metric": run.metric.name, "targets": rows}


def residual(run: Run) -> Readings:
    """The norms of CFedAvg's Figures 3, 8 and 9: ||delta||^2 and ||e||^2 of every round.

    delta is a client's update and e what its error feedback keeps, both the mean over the clients
    of a round. A run has them if its client updates are compressed. Source: CFedAvg (Yang et al.,
    2021).
    """
    return _columns(
        run, ("delta_square", "residual_square"), "its client updates are not compressed"
    )


def explored(run: Run) -> Readings:
    """How much of the model each size has held so far, and what a round replaces of it.

    Of runs with sub-models that choose coordinates, such as FIARSE's; definitions of ours. Source:
    FIARSE (Wu et al., NeurIPS 2024), Figures 7 and 8.
    """
    names = [c for c in run.columns if c.partition("@")[0] in ("explored", "replaced", "untrained")]
    return _columns(run, sorted(names), "no sub-models that choose coordinates")


def _columns(run: Run, names: Sequence[str], why: str) -> Readings:
    columns = {name: measured(run, name) for name in names}
    nonempty = {name: pair for name, pair in columns.items() if pair[0].size}
    if not nonempty:
        raise ConfigError(f"'{run.path}' has no such numbers: {why}")
    out: Readings = {"round": len(run.rounds)}
    for name, (rows, values) in nonempty.items():
        out[name] = {"rounds": run.rounds[rows].tolist(), "values": values.tolist()}
    return out


RECORDED: Registry[Callable[..., Readings]] = Registry(
    "measure", {f.__name__: f for f in (clients, targets, residual, explored)}
)
EVERY: Registry[Any] = Registry("measure", {**MEASURES, **RECORDED})
