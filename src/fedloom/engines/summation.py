"""Sums of client updates along one binary tree over the places of a cohort, sorted by client: its
shape follows from the size alone, so the bits are the same wherever ranges are cut and added. A
node (level, index, total) sums the 2^level places from index * 2^level on; None: no update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..aggregation.rows import join_rows
from ..algorithm import Algorithm, Job
from ..core.vector import Rec, Vec, leaves, rec, tree
from ..submodels.base import View
from .author_rules import check_record, with_note

Node = tuple[int, int, Any]


def _plus(a: Rec, b: Rec, in_place: bool) -> Rec:
    """a + b; in place if the sums own a."""
    if a is None or b is None:
        return b if a is None else a
    if "rows" in a._fields:
        return join_rows(a, b)
    if "numbers" in a._fields:  # of answers before the local steps: a leaf for each field
        vectors = _each(a.vectors, b.vectors, in_place)
        numbers = _each(a.numbers, b.numbers, in_place)
        return rec(n=a.n + b.n, vectors=vectors, numbers=numbers)
    return tree(_add_in_place if in_place else _add, a, b)


def _each(a: Rec, b: Rec, in_place: bool) -> Rec:
    return rec(**{k: _plus(v, getattr(b, k), in_place) for k, v in a._asdict().items()})


def _plus_leaf(a: Rec, b: Rec) -> Rec:
    """a + b for a leaf a, of which the sums own only delta."""
    if a is None or b is None or "delta" not in a._fields:
        return _plus(a, b, False)
    rest = tree(_add, a._replace(delta=0.0), b._replace(delta=0.0))
    return rest._replace(delta=a.delta.add_(b.delta))


def _add(a: Any, b: Any) -> Any:
    return a + b


def _add_in_place(a: Any, b: Any) -> Any:
    return a.add_(b) if isinstance(a, Tensor) else a + b


def leaf(weight: float, delta: Vec, unweighted: Rec, buffers: Vec) -> Rec:
    """The leaf of one client update."""
    part = {"n": 1.0, "mass": weight, "weight": weight, "delta": delta, "unweighted": unweighted}
    return rec(**part, buffers=buffers)


def push(stack: list[Node], level: int, index: int, total: Rec) -> None:
    """Add one node to the right of all others. Two siblings become their parent.

    The vectors of a leaf, except delta, may belong to a client state, so only sums of two or more
    leaves are changed in place.
    """
    while index % 2 and stack and stack[-1][:2] == (level, index - 1):
        left = stack.pop()[2]
        owned = left is not None and left.n > 1  # made here by adding
        total = _plus(left, total, True) if owned else _plus_leaf(left, total)
        level, index = level + 1, index // 2
    stack.append((level, index, total))


def push_rows(stack: list[Node], first: int, rows: Rec) -> None:
    """push() the leaves first, first + 1, ... at once: fields of rows have an axis of leaves.

    Fields (C,) are numbers, all others vectors. The additions are the same as one by one, level by
    level.
    """
    left: list[Node] = []
    right: list[Node] = []
    level, index, count = 0, first, len(next(leaves(rows)))
    while count:
        if index % 2:
            left.append((level, index, _row(rows, 0)))
            rows, index, count = tree(lambda v: v[1:], rows), index + 1, count - 1
        if count % 2:
            right.append((level, index + count - 1, _row(rows, count - 1)))
            count -= 1
        rows = tree(lambda v, n=count: v[0:n:2] + v[1:n:2], rows)
        level, index, count = level + 1, index // 2, count // 2
    for node in [*left, *reversed(right)]:
        push(stack, *node)


def _row(rows: Rec, r: int) -> Rec:
    """A copy of one leaf or sum."""
    return tree(lambda v: float(v[r]) if v.ndim == 1 else v[r].clone(), rows)


def root(stack: Sequence[Node]) -> Rec:
    """The total of all leaves: complete trees, added from the smallest. None: no update."""
    total = None
    for _, _, part in reversed(stack):
        total = _plus(part, total, False)
    return total


def ranges(costs: Sequence[float], pieces: int) -> list[tuple[int, int]]:
    """Cut places with these costs into at most `pieces` ranges (first, end) of about equal cost."""
    total, edges, so_far = sum(costs), [0], 0.0
    for place, cost in enumerate(costs):
        if so_far + cost / 2 > total * len(edges) / pieces and place > edges[-1]:
            edges.append(place)
        so_far += cost
    return [(a, b) for a, b in itertools.pairwise([*edges, len(costs)]) if a < b]


def rate(total: Rec, population: int, holding: Tensor | None) -> float | Tensor:
    """The participation ratio, client updates / N: a mean times it is the sum over the cohort
    divided by N. With sub-models (d,): the updates that hold a coordinate over the relative weights
    of all clients that hold it, `holding`; over N if the holders change from round to round (None).

    >>> from fedloom.core.vector import rec
    >>> two = rec(n=2.0, holders=torch.tensor([2.0, 1.0, 0.0]))
    >>> rate(two, 8, torch.tensor([8.0, 4.0, 0.0]))
    tensor([0.2500, 0.2500, 0.0000])
    >>> rate(rec(n=2.0), 8, None)
    0.25
    """
    if "holders" not in total._fields:
        return float(total.n) / population
    if holding is None:
        return total.holders / population  # type: ignore[no-any-return]  # a record's field
    return torch.where(total.holders > 0, total.holders / holding, 0.0)


def unmoved_where_unheld(srv: Rec, before: Rec, total: Rec) -> Rec:
    """srv, but with the server state before the round at coordinates that no update held: a
    federation of the holders would not have moved them. What is held where nobody counts in the
    mean of the moves (HeteroFL's owners, FIARSE's nonzero) is stepped with a move of 0.
    """
    if "holders" not in total._fields or bool((total.holders > 0).all()):
        return srv
    holders = total.holders

    def one(new: Any, old: Any) -> Any:
        fits = isinstance(new, Tensor) and new.shape == holders.shape and isinstance(old, Tensor)
        return torch.where(holders > 0, new, old) if fits else new

    return tree(one, srv, before)


def finite(part: Rec) -> bool:
    """True if every number is finite; a finite sum proves it in one pass."""
    for v in leaves(part):
        if not isinstance(v, Tensor):
            if not math.isfinite(v):
                return False
        # of no values, such as buffers that there are not, nothing is read from a device
        elif v.numel() and not math.isfinite(v.sum()) and not bool(torch.isfinite(v).all()):
            return False
    return True


def unweighted_of(alg: Algorithm, up: Rec, job: Job) -> Rec:
    """The fields of an update for plain means. Raises AuthorError if they are no record."""
    unweighted = with_note("unweighted()", alg.unweighted, up, job._replace(full=None, draws=None))
    check_record("unweighted", "means", unweighted)
    return unweighted


def numbers(up: Rec) -> Rec:
    """A client update with its single values as Python floats, which travel as doubles."""
    return tree(lambda v: float(v) if isinstance(v, Tensor) and not v.ndim else v, up)


def spread(part: Rec, view: View) -> Rec:
    """One client update at the server's length d; 0 where the client holds nothing."""
    index = view.held
    if index is None:
        return part

    def one(v: Any) -> Any:
        if not isinstance(v, Tensor) or v.shape != index.shape:
            return v
        return v.new_zeros(view.d).index_copy(0, index, v)

    return tree(one, part)
