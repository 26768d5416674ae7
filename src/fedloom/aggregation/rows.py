"""Aggregations that look at the client updates themselves, and not at their sum.

A leaf is then a row, and two nodes are added by joining their rows, in the order of the cohort. So
the server holds cohort x d values, and no secure sum can stand in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.vector import Rec, Vec, rec
from .base import Aggregated, Aggregation, Gives, Reads

BLOCK = 16384  # coordinates that are sorted at once


class FromRows(Aggregation):
    """Every field by a rule of its rows: delta, the fields of unweighted(), the models' buffers."""

    reads = Reads.ROWS
    gives = Gives.FIELDS

    @property
    def of_answers(self) -> Aggregation | None:
        return self

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        """Rows (C, m) -> (m,), in the rows' type. weights: (C,) float64, all 1 for fields of
        unweighted(). before: what this field was after the last round (m,), if the rule remembers
        it.
        """
        raise NotImplementedError  # every rule has its own

    def remembered(self, fields: dict[str, Vec]) -> Rec:
        """The state after a round with these fields."""
        return rec()

    def leaf(self, part: Rec, msg: Rec, seed: int, round: int, client: int) -> Rec:
        return row(part, client)

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        rows = list(total.rows)
        weights = torch.tensor([r.weight for r in rows], dtype=torch.float64)
        equal = torch.ones_like(weights)
        before = state._asdict()
        deltas = torch.stack([r.delta for r in rows])
        fields: dict[str, Any] = {"delta": self.of(deltas, weights, before.get("delta"))}
        for name in rows[0].unweighted._fields:
            values = [getattr(r.unweighted, name) for r in rows]
            vectors = isinstance(values[0], Tensor)
            table = (
                torch.stack(values)
                if vectors
                else torch.tensor(values, dtype=weights.dtype)[:, None]
            )
            one = self.of(table, equal, before.get(name))
            fields[name] = one if vectors else float(one)
        buffers = torch.stack([r.buffers for r in rows])
        learnt = self.of(buffers, weights, before.get("buffers")) if buffers.numel() else buffers[0]
        memory = self.remembered({**fields, "buffers": learnt})
        return Aggregated(rec(**fields), learnt, memory)


class Gather(FromRows):
    """A rule of your own: f(rows (C, m), weights (C,) float64) -> (m,), asked for every field.

    >>> import torch
    >>> Gather(f=lambda rows, weights: rows.amax(0)).f(torch.eye(2), None)
    tensor([1., 1.])
    """

    f: Callable[[Tensor, Tensor], Tensor]

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        return self.f(rows, weights)


def row(part: Rec, client: int) -> Rec:
    """A client's part of the sums as a node of one row."""
    entry = rec(
        client=client,
        weight=part.weight,
        delta=part.delta,
        unweighted=part.unweighted,
        buffers=part.buffers,
    )
    return rec(n=1.0, mass=part.mass, weight=part.weight, rows=rec(r0=entry))


def of_sorted(rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> Vec:
    """Rows (C, m) -> (m,), by a rule of the values (C, b) of some coordinates in ascending order.
    Only BLOCK coordinates are sorted at once, on a CPU as contiguous rows by numpy, which is faster
    than torch along the first axis.
    """
    if not rows.is_cpu:
        return reduce(rows.sort(0).values)

    def ordered(block: Tensor) -> Tensor:
        values = block.t().contiguous().numpy()
        values.sort(1)
        return torch.from_numpy(values).t().contiguous()

    firsts = range(0, rows.shape[1], BLOCK)
    return torch.cat([reduce(ordered(rows[:, a : a + BLOCK])) for a in firsts])


def weighted_mean(rows: Tensor, weights: Tensor) -> Vec:
    """sum_i w_i row_i / sum_i w_i of rows (C, m) and weights (C,)."""
    shares = (weights / weights.sum()).to(rows)
    return (shares[:, None] * rows).sum(0)
