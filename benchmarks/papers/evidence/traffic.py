"""What a run has sent by the end of a round, from its line: its total, and what it says first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedloom.algorithms.registry import make_algorithm
from fedloom.cli.method_costs import costs


@functools.cache
def vectors_before(algorithm: str) -> int:
    """How many vectors of the model's length each client receives and sends before round 1: the
    model, and what the method asks for there.

    >>> vectors_before("fedavg"), vectors_before("stem"), vectors_before("fafed")
    (0, 2, 3)
    """
    asked = costs(make_algorithm(algorithm)).probe
    return len(asked) + 1 if asked else 0


def sent_by(line: Mapping[str, Any], algorithm: str, population: int) -> Callable[[float], float]:
    """Bytes up and down of all clients by the end of a round: first what all clients say before
    round 1, in float32, then the same in every round.
    """
    total = float(line["bytes_up"] + line["bytes_down"])
    vectors = population * vectors_before(algorithm)
    first = 4.0 * line["parameters"] * vectors if vectors else 0.0
    each = (total - first) / line["rounds"]
    return lambda round: first + round * each
