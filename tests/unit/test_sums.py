"""One tree over the places of a cohort: where it is cut changes no bit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.vector import rec, tree
from fedloom.engines.summation import finite, means, push, push_rows, ranges, root
from tiny import imprint, same


def leaf(seed, dtype=torch.float32):
    """An answer whose coordinates differ by orders of size, so that order shows in the bits."""
    draw = torch.Generator().manual_seed(seed)
    v = torch.randn(7, generator=draw) * 10.0 ** torch.randint(-6, 6, (7,), generator=draw)
    weight = 1.0 + seed % 5
    uniform = rec(dc=v.flip(0).to(dtype), own=rec(t=float(seed)))
    empty = torch.zeros(0)
    return rec(n=1.0, weight=weight, delta=v.to(dtype), uniform=uniform, buffers=empty, mass=weight)


def mine(answer):
    """With a delta of its own, which the sums may write into."""
    return answer and answer._replace(delta=answer.delta.clone())


def gathered(answers, edges):
    """Every range by itself, then all ranges' nodes, left to right."""
    out = []
    marks = [0, *sorted(edges), len(answers)]
    for a, b in itertools.pairwise(marks):
        own = []
        for place in range(a, b):
            push(own, 0, place, mine(answers[place]))
        assert len(own) <= 2 * math.log2(max(len(answers), 2)) + 1
        for node in own:
            push(out, *node)
    return root(out)


def rows_of(answers):
    """Leaves as one record with a leading axis; numbers as doubles."""
    stacked = lambda *vs: (
        torch.stack(vs) if isinstance(vs[0], torch.Tensor) else torch.tensor(vs, dtype=torch.double)
    )
    return tree(stacked, *answers)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 39), max_size=6),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_at_once_are_summed_as_one_by_one(count, edges, dtype):
    answers = [leaf(n, dtype) for n in range(count)]
    stack, marks = [], sorted({0, count, *(e for e in edges if e < count)})
    for a, b in itertools.pairwise(marks):
        rows = rows_of(answers[a:b])
        before = imprint(rows)
        push_rows(stack, a, rows)
        assert imprint(rows) == before, "the rows were written to"
    one_by_one = []
    for place, answer in enumerate(answers):
        push(one_by_one, 0, place, mine(answer))
    assert [node[:2] for node in stack] == [node[:2] for node in one_by_one]
    assert all(same(a[2], b[2]) for a, b in zip(stack, one_by_one, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_cut_gives_the_same_bits(arrived, edges, dtype):
    answers = [leaf(n, dtype) if came else None for n, came in enumerate(arrived)]
    before = imprint(*[a for a in answers if a is not None])
    whole = gathered(answers, [])
    cut = gathered(answers, {e for e in edges if 0 < e < len(answers)})
    everywhere = gathered(answers, range(1, len(answers)))
    assert imprint(*[a for a in answers if a is not None]) == before, "a leaf was written to"
    if not any(arrived):
        assert whole is cut is everywhere is None
        return
    assert same(whole, cut) and same(whole, everywhere)
    assert whole.n == sum(arrived)
    exact = sum(a.delta.double() for a in answers if a is not None)
    scale = sum(a.delta.double().abs() for a in answers if a is not None)
    error = (whole.delta.double() - exact).abs() / scale
    assert float(error.max()) < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 64, 150])
def test_what_is_left_are_complete_trees_for_the_ones_of_the_count(count):
    stack = []
    for place in range(count):
        push(stack, 0, place, leaf(place))
    assert [1 << level for level, _, _ in stack] == [
        1 << b for b in reversed(range(8)) if count >> b & 1
    ]


def test_the_sum_of_seven_is_this_one():
    v = [leaf(n).delta for n in range(7)]
    want = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6])
    assert torch.equal(gathered([leaf(n) for n in range(7)], [3]).delta, want)


def test_order_would_show():
    answers = [leaf(n) for n in range(40)]
    line = answers[0].delta.clone()
    for a in answers[1:]:
        line += a.delta
    assert not torch.equal(line, gathered(answers, []).delta)


def test_means_are_weighted_for_delta_and_plain_for_the_rest():
    answers = [leaf(n, torch.float64)._replace(buffers=torch.tensor([float(n)])) for n in range(5)]
    weighted = [a._replace(delta=a.weight * a.delta, buffers=a.weight * a.buffers) for a in answers]
    up, buffers = means(gathered(weighted, [2]))
    w = torch.tensor([a.weight for a in answers]).double()
    want = (w[:, None] * torch.stack([a.delta for a in answers])).sum(0) / w.sum()
    torch.testing.assert_close(up.delta, want, rtol=1e-14, atol=0)
    plain = torch.stack([a.uniform.dc for a in answers]).mean(0)
    torch.testing.assert_close(up.dc, plain, rtol=1e-14, atol=0)
    assert up.own.t == 2.0
    assert float(buffers) == pytest.approx(float((w * torch.arange(5)).sum() / w.sum()))


@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=60),
    st.integers(1, 12),
)
def test_ranges_cover_every_place_once_and_share_the_cost(costs, pieces):
    cuts = ranges(costs, pieces)
    assert [p for a, b in cuts for p in range(a, b)] == list(range(len(costs)))
    assert len(cuts) <= pieces and all(a < b for a, b in cuts)
    fair = sum(costs) / pieces
    assert max(sum(costs[a:b]) for a, b in cuts) <= 2 * fair + 2 * max(costs)


def test_nobody_is_no_range():
    assert ranges([], 4) == [] and root([]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_sees_every_number(bad):
    good = leaf(1)
    assert finite(good)
    assert not finite(good._replace(weight=bad))
    assert not finite(good._replace(delta=torch.tensor([1.0, bad, 2.0])))
    assert not finite(good._replace(uniform=rec(dc=torch.tensor([bad, -bad]))))


def test_large_numbers_are_finite_though_their_sum_is_not():
    assert finite(leaf(1)._replace(delta=torch.tensor([3e38, 3e38])))
