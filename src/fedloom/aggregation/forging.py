"""Hostile updates that are made of the honest ones, before any aggregation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Set

import torch
from torch import Tensor

from ..core.vector import Rec, Vec, rec, tree
from .base import Aggregation, join_rows

# honest rows (C, m), number of hostile ones -> a field of all hostile updates (m,)
Forge = Callable[[Tensor, int], Vec]


def forged(total: Rec, forge: Forge, hostile: Set[int]) -> list[Rec]:
    """The rows of a round, the hostile ones forged from the honest ones: delta and every vector of
    unweighted(). Numbers, and the running statistics of a model, are as trained, and without an
    honest client all is.
    """
    rows = list(total.rows)
    honest = [r for r in rows if r.client not in hostile]
    if not honest:
        return rows
    more = {
        name: [getattr(r.unweighted, name) for r in honest] for name in honest[0].unweighted._fields
    }

    def forge_field(values: list[Tensor]) -> Vec:
        return forge(torch.stack(values), len(rows) - len(honest))

    false = {name: forge_field(v) for name, v in more.items() if isinstance(v[0], Tensor)}
    delta = forge_field([r.delta for r in honest])

    def bad(r: Rec) -> Rec:
        return r._replace(delta=delta, unweighted=r.unweighted._replace(**false))

    return [bad(r) if r.client in hostile else r for r in rows]


def add_leaves(aggregation: Aggregation, rows: list[Rec], msg: Rec, seed: int, round: int) -> Rec:
    """What a rule reads of these rows: the sum of the leaves that it makes of them."""
    parts = []
    for r in rows:
        numbers = rec(n=1.0, mass=r.weight, weight=r.weight, delta=r.delta, unweighted=r.unweighted)
        part = rec(**numbers._asdict(), buffers=r.buffers)
        parts.append(aggregation.leaf(part, msg, seed, round, r.client))
    return functools.reduce(_plus, parts)


def _plus(a: Rec, b: Rec) -> Rec:
    return join_rows(a, b) if "rows" in a._fields else tree(operator.add, a, b)
