"""Aggregations that look at the client updates themselves, and not at their sum.

A leaf is then a row, and two nodes are added by joining their rows, in the order of the cohort. So
the server holds cohort x d values, and no secure sum can stand in for it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from ..core.hyper import Positive, PositiveInt, hyper
from ..core.vector import Rec, Vec, clip, rec, tree, zeros
from .base import Aggregated, Aggregation, Gives, Reads

BLOCK = 16384  # coordinates that are sorted at once
AT_ONCE = 8  # rows whose differences from another one are in memory

# honest rows (C, m), number of hostile ones -> a field of all hostile updates (m,)
Forge = Callable[[Tensor, int], Vec]


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
        fields: dict[str, Any] = {
            "delta": self.of(torch.stack([r.delta for r in rows]), weights, before.get("delta"))
        }
        for name in rows[0].unweighted._fields:
            values = [getattr(r.unweighted, name) for r in rows]
            if isinstance(values[0], Tensor):
                fields[name] = self.of(torch.stack(values), equal, before.get(name))
            else:
                column = torch.tensor(values, dtype=weights.dtype)[:, None]
                fields[name] = float(self.of(column, equal, before.get(name)))
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


class Median(FromRows):
    """The median of every coordinate (Yin et al., ICML 2018, Definition 1); of an even number the
    mean of the two in the middle. Weights are not used, as in the paper. Right while fewer than
    half of the updates are hostile.
    Reference: https://arxiv.org/abs/1803.01498
    """

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        def middle(ordered: Tensor) -> Tensor:
            low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
            return low + (high - low) / 2

        return of_sorted(rows, middle)


class TrimmedMean(FromRows):
    """The mean of every coordinate without its floor(trim C) smallest and as many largest values of
    C (Yin et al., ICML 2018, Definition 2). Weights are not used, as in the paper. Right while the
    hostile share is at most trim.
    Reference: https://arxiv.org/abs/1803.01498
    """

    trim: Annotated[float, Ge(0), Lt(0.5)] = hyper(
        0.1, "share of the values left out at each end", "at least the hostile share"
    )

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        out = self.left_out(len(rows))
        return of_sorted(rows, lambda ordered: ordered[out : len(rows) - out].mean(0))

    def left_out(self, count: int) -> int:
        """How many of so many values are left out at each end."""
        return int(self.trim * count + 1e-9)  # 0.3 * 10 is 3

    def idle(self, count: int) -> str:
        """A warning if of so many updates none is left out, though trim is not 0; else empty."""
        if not self.trim or self.left_out(count):
            return ""
        return (
            f"aggregation.trim = {self.trim:g} leaves out none of the {count} updates of a round: "
            "trimmed_mean is then the plain mean, and one hostile client moves it anywhere; take a "
            f"cohort of at least {math.ceil((1 - 1e-9) / self.trim)} clients, or a larger trim"
        )


class GeometricMedian(FromRows):
    """RFA (Pillutla, Kakade & Harchaoui, IEEE TSP 2022, Algorithm 2): the smoothed Weiszfeld
    algorithm, v = sum b_i w_i / sum b_i with b_i = a_i / max(nu, ||v - w_i||), from the weighted
    mean on. a_i are the clients' weights, as in the paper; fields of unweighted() have equal ones.
    Reference: https://arxiv.org/abs/1912.13445
    """

    steps: PositiveInt = hyper(3, "of the Weiszfeld algorithm", "3 in the paper's experiments")
    nu: Positive = hyper(1e-6, "least distance that is divided by", "1e-6 in the paper")

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        v = weighted_mean(rows, weights)
        for _ in range(self.steps):
            distances = torch.stack([(v - w).norm() for w in rows]).to(weights)
            v = weighted_mean(rows, weights / distances.clamp_min(self.nu))
        return v


class CentredClipping(FromRows):
    """v + mean of the w_i - v, each shortened to the radius, a few times over; v begins at the
    aggregate of the last round, in round 1 at 0 (Karimireddy, He & Jaggi, ICML 2021, Algorithm 2).
    Weights are not used, as in the paper. Its clients send momentum: take local or server momentum.
    Reference: https://arxiv.org/abs/2012.10333
    """

    radius: Positive = hyper(1.0, "tau, largest distance to v", "{0.1, 10, ...} in the paper")
    steps: PositiveInt = hyper(1, "how often v moves in a round", "1 and 3 in the paper")

    @property
    def of_answers(self) -> Aggregation | None:
        return None  # it remembers updates

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        v = zeros(rows[0]) if before is None else before.to(rows)
        for _ in range(self.steps):
            v = v + sum(clip(w - v, self.radius) for w in rows) / len(rows)
        return v

    def remembered(self, fields: dict[str, Vec]) -> Rec:
        like = fields["delta"]
        return rec(
            **{k: v if isinstance(v, Tensor) else like.new_tensor([v]) for k, v in fields.items()}
        )


class Krum(FromRows):
    """The update with the least sum of squared distances to its C - f - 2 nearest neighbours, with
    f = ceil(hostile C) of C updates; with several: the plain mean of that many with the least sums,
    multi-Krum (Blanchard et al., NeurIPS 2017, sections 4 and 5). delta decides, and all fields and
    buffers are of the same clients. Weights are not used, as in the paper. C must be at least
    2 f + 3.
    Reference: https://arxiv.org/abs/1703.02757
    """

    gives = Gives.CLIENTS
    fewer = "aggregation.hostile or aggregation.several"
    hostile: Annotated[float, Ge(0), Lt(0.5)] = hyper(0.2, "share of updates that may be hostile")
    several: PositiveInt = hyper(1, "how many updates are averaged", "1: Krum; more: multi-Krum")

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        rows = list(total.rows)
        keep = self.closest(torch.stack([r.delta for r in rows])).tolist()
        some = rec(**{f"r{k}": rows[i] for k, i in enumerate(keep)})
        result = super().root(total._replace(rows=some), state, seed, round)
        clients = torch.tensor([rows[i].client for i in keep], dtype=torch.float64)
        return result._replace(state=rec(chosen=clients))

    def closest(self, deltas: Tensor) -> Tensor:
        """The places of the chosen rows of (C, d), in order."""
        count = len(deltas)
        neighbours = max(1, count - self.of_hostile(count) - 2)
        scores = _squared_distances(deltas).sort(1).values[:, : min(neighbours, count - 1)].sum(1)
        return scores.argsort(stable=True)[: self.several].sort().values

    def fewest(self, clients: int, updates: int) -> int:
        """So many that each has neighbours to compare, and that `several` are there."""
        return max(2 * self.of_hostile(updates) + 3, self.several)

    def of_hostile(self, count: int) -> int:
        """f: how many of so many updates may be hostile."""
        return math.ceil(self.hostile * count - 1e-9)  # 0.28 * 25 is 7

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        return rows.mean(0)

    def report(self, state: Rec, round: int) -> Mapping[str, Any]:
        return {"chosen": [int(i) for i in state.chosen.tolist()]} if state._fields else {}


def _squared_distances(rows: Tensor) -> Tensor:
    """Rows (C, d) -> (C, C), infinity on the diagonal. A few rows at once, in memory that is used
    again, for each pair once.
    """
    count = len(rows)
    squares, space = rows.new_full((count, count), torch.inf), torch.empty_like(rows[:AT_ONCE])
    for i in range(count - 1):
        for first in range(i + 1, count, AT_ONCE):
            end = min(first + AT_ONCE, count)
            # differences, not products: |a|^2 + |b|^2 - 2 a b of near updates is rounding
            differences = torch.sub(rows[first:end], rows[i], out=space[: end - first]).square_()
            squares[i, first:end] = squares[first:end, i] = differences.sum(1)
    return squares


# ------------------------------------------------------------------------------------------- rows
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


def join_rows(a: Rec, b: Rec) -> Rec:
    """Two nodes of rows as one: the rows of a, then those of b."""
    both = rec(**{f"r{k}": row for k, row in enumerate((*a.rows, *b.rows))})
    return rec(n=a.n + b.n, mass=a.mass + b.mass, weight=a.weight + b.weight, rows=both)


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


# ---------------------------------------------------------------------------------- hostile rows
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
