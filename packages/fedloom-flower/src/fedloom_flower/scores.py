"""A model measured at the nodes: sums over a node's test examples, and no example."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.net import Net
from fedloom.engines.scores import Score, is_whole, score_of
from fedloom.errors import ClientError, WireError
from fedloom.evaluation import reliability
from fedloom.federation.federation import Federation
from fedloom.plan import Plan
from fedloom.stage import Download

from .message import Head, Measured

_NOTHING = Score(0, 0.0, {}, {}, {}, {})


def measured(
    plan: Plan,
    fed: Federation,
    net: Net,
    sent: Download,
    about: Head,
    least: int = reliability.LEAST,
) -> Measured:
    """The sums of a model and its buffers over this node's test examples. A metric of a whole set
    counts as one of all its examples, and as one of none where it is not defined. least: see
    reliability.disclosed.
    """
    data, found = fed.data, _NOTHING
    if data.test_inputs is not None and data.test_targets is not None:
        net.load_buffers(sent.buffers)
        found = score_of(plan, fed, net, sent.msg.x, [(data.test_inputs, data.test_targets)])
    for name in (k for k, metric in fed.metrics.items() if is_whole(metric) and found.examples):
        count = float(found.examples) if math.isfinite(found.values[name]) else 0.0
        found.values[name] = found.values[name] * count if count else 0.0
        found.weights[name] = count
    if not all(map(math.isfinite, (found.loss, *found.values.values()))):
        raise ClientError("what it measured on its test examples is not finite")
    told: dict[str, Any] = about.model_dump(include={"run", "what", "round", "client"})
    told |= {"values": found.values, "weights": found.weights}
    bins = reliability.disclosed(reliability.binned(found, fed.metrics, data.test_targets), least)
    return Measured(examples=found.examples, loss=found.loss, bins=bins, **told)


def score_in(head: Measured, examples: int, metrics: Mapping[str, Any]) -> Score:
    """A node's sums. examples: how many it has. Raises WireError for what these cannot be."""
    if head.examples != examples:
        raise WireError(f"it measured {head.examples} examples, and has {examples}")
    if head.values.keys() != metrics.keys() or head.weights.keys() != metrics.keys():
        raise WireError(f"it measured {', '.join(head.values)}, not {', '.join(metrics)}")
    if head.bins and not _possible(head.bins, examples):
        raise WireError("it measured a reliability curve that its examples cannot have")
    found = Score(head.examples, head.loss, head.values, head.weights, {}, {}, head.bins)
    try:
        for name in metrics:
            found.mean(name, metrics)
    except (ArithmeticError, ValueError) as error:
        raise WireError(f"it measured what no metric can be: {error}") from None
    return found


def _possible(bins: Sequence[Sequence[float]], examples: int) -> bool:
    """Whether so many examples can have these bins: rows, sums of probabilities, second class."""
    if len(bins) != 3 or sum(bins[0]) > examples:
        return False
    return all(max(p, second) <= rows for rows, p, second in zip(*bins, strict=True))
