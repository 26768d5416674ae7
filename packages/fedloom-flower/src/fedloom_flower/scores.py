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


def measure(
    plan: Plan,
    fed: Federation,
    net: Net,
    download: Download,
    question: Head,
    least: int = reliability.LEAST,
) -> Measured:
    """The sums of a model and its buffers over this node's test examples. A metric of a whole set
    counts as one of all its examples, and as one of none where it is not defined. least: see
    reliability.disclosed.
    """
    data, score = fed.data, _NOTHING
    if data.test_inputs is not None and data.test_targets is not None:
        net.load_buffers(download.buffers)
        score = score_of(plan, fed, net, download.msg.x, [(data.test_inputs, data.test_targets)])
    for name in (k for k, metric in fed.metrics.items() if is_whole(metric) and score.examples):
        count = float(score.examples) if math.isfinite(score.values[name]) else 0.0
        score.values[name] = score.values[name] * count if count else 0.0
        score.weights[name] = count
    if not all(map(math.isfinite, (score.loss, *score.values.values()))):
        raise ClientError("what it measured on its test examples is not finite")
    fields: dict[str, Any] = question.model_dump(include={"run", "what", "round", "client"})
    fields |= {"values": score.values, "weights": score.weights}
    bins = reliability.disclosed(reliability.binned(score, fed.metrics, data.test_targets), least)
    return Measured(examples=score.examples, loss=score.loss, bins=bins, **fields)


def read_score(head: Measured, examples: int, metrics: Mapping[str, Any]) -> Score:
    """A node's sums. examples: how many it has. Raises WireError for what these cannot be."""
    if head.examples != examples:
        raise WireError(f"it measured {head.examples} examples, and has {examples}")
    if head.values.keys() != metrics.keys() or head.weights.keys() != metrics.keys():
        raise WireError(f"it measured {', '.join(head.values)}, not {', '.join(metrics)}")
    if head.bins and not _possible(head.bins, examples):
        raise WireError("it measured a reliability curve that its examples cannot have")
    score = Score(head.examples, head.loss, head.values, head.weights, {}, {}, head.bins)
    try:
        for name in metrics:
            score.mean(name, metrics)
    except (ArithmeticError, ValueError) as error:
        raise WireError(f"it measured what no metric can be: {error}") from None
    return score


def _possible(bins: Sequence[Sequence[float]], examples: int) -> bool:
    """Whether so many examples can have these bins: rows, sums of probabilities, second class."""
    if len(bins) != 3 or sum(bins[0]) > examples:
        return False
    return all(max(p, second) <= rows for rows, p, second in zip(*bins, strict=True))
