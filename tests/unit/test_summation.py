"""One tree over the places of a cohort: where it is cut changes no bit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.aggregation.base import means
from fedloom.algorithm import FedAvg, Job
from fedloom.core.layout import Layout
from fedloom.core.vector import rec, tree
from fedloom.engines.summation import (
    finite,
    numbers,
    push,
    push_rows,
    ranges,
    rate,
    root,
    spread,
    unmoved_where_unheld,
    unweighted_of,
)
from fedloom.errors import AuthorError
from fedloom.submodels.base import View
from tiny import imprint, same


def leaf(seed, dtype=torch.float32):
    """An answer whose coordinates differ by orders of size, so that order shows in the bits."""
    draw = torch.Generator().manual_seed(seed)
    v = torch.randn(7, generator=draw) * 10.0 ** torch.randint(-6, 6, (7,), generator=draw)
    weight = 1.0 + seed % 5
    unweighted = rec(dc=v.flip(0).to(dtype), own=rec(t=float(seed)))
    empty = torch.zeros(0)
    return rec(
        n=1.0, weight=weight, delta=v.to(dtype), unweighted=unweighted, buffers=empty, mass=weight
    )


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


def test_the_sum_of_seven_is_this_one():
    v = [leaf(n).delta for n in range(7)]
    want = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6])
    assert torch.equal(gathered([leaf(n) for n in range(7)], [3]).delta, want)


def test_what_has_no_delta_is_summed_too():
    stack, sent = [], [torch.full((2,), 2.0**n) for n in range(4)]
    for place, m in enumerate(sent):  # as before round 1
        push(stack, 0, place, rec(n=1.0, up=rec(m=m)))
    assert same(root(stack), rec(n=4.0, up=rec(m=torch.full((2,), 15.0))))
    assert [float(m[0]) for m in sent] == [1.0, 2.0, 4.0, 8.0]


def test_means_are_weighted_for_delta_and_plain_for_the_rest():
    answers = [leaf(n, torch.float64)._replace(buffers=torch.tensor([float(n)])) for n in range(5)]
    weighted = [a._replace(delta=a.weight * a.delta, buffers=a.weight * a.buffers) for a in answers]
    up, buffers = means(gathered(weighted, [2]))
    w = torch.tensor([a.weight for a in answers]).double()
    want = (w[:, None] * torch.stack([a.delta for a in answers])).sum(0) / w.sum()
    torch.testing.assert_close(up.delta, want, rtol=1e-14, atol=0)
    plain = torch.stack([a.unweighted.dc for a in answers]).mean(0)
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


@pytest.mark.parametrize(
    ("costs", "pieces", "cuts"),
    [
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([3, 2, 1], 2, [(0, 1), (1, 3)]),  # the middle of the second is beyond a half
        ([1, 2, 1], 2, [(0, 2), (2, 3)]),  # the middle of the second is the half itself
        ([14, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),  # no range is empty
        ([1, 2, 3], 1, [(0, 3)]),
    ],
)
def test_a_range_ends_before_the_place_whose_middle_is_beyond_its_share(costs, pieces, cuts):
    assert ranges(costs, pieces) == cuts


def test_nobody_is_no_range():
    assert ranges([], 4) == [] and root([]) is None


# ---------------------------------------------------------------------------------- sub-models
HELD = torch.tensor([2.0, 1.0, 0.0])  # updates that hold each coordinate


def test_a_coordinates_mean_is_over_its_holders():
    v = torch.tensor([5.0, 3.5, 0.0])
    unweighted, empty = rec(dc=v, tau=8.0, own=rec(t=2.0)), torch.zeros(0)
    up, _ = means(
        rec(n=4.0, mass=9.0, weight=4 * HELD, delta=v, unweighted=unweighted, buffers=empty)
    )
    assert up.delta.tolist() == [0.625, 0.875, 0.0] and up.dc.tolist() == (v / 4).tolist()
    total = rec(n=4.0, mass=9.0, weight=4 * HELD, delta=v, unweighted=unweighted, buffers=empty)
    up, _ = means(rec(**total._asdict(), holders=HELD, shares=rec(tau=torch.tensor([3.0, 2.5, 0]))))
    assert up.dc.tolist() == [2.5, 3.5, 0.0]
    assert up.tau.tolist() == [1.5, 2.5, 2.0]  # where nobody holds it, that of all
    assert up.own.t == 0.5


def test_the_ratio_of_participation_is_of_a_coordinates_holders():
    assert rate(rec(n=2.0), 8, HELD) == 0.25
    two = rec(n=2.0, holders=HELD)
    assert rate(two, 8, torch.tensor([8.0, 4.0, 0.0])).tolist() == [0.25, 0.25, 0.0]
    assert rate(two, 8, None).tolist() == [0.25, 0.125, 0.0]


def test_the_server_rests_where_no_update_held_a_coordinate():
    before = rec(x=torch.zeros(3), own=rec(m=torch.zeros(3), t=0.0), new=0.0, w=torch.zeros(2))
    ones = torch.ones(3)
    srv = rec(x=ones, own=rec(m=ones, t=1.0), new=ones, w=torch.ones(2))
    out = unmoved_where_unheld(srv, before, rec(weight=ones, holders=HELD))
    assert out.x.tolist() == out.own.m.tolist() == [1.0, 1.0, 0.0]
    assert out.own.t == 1.0 and out.new.tolist() == [1.0] * 3 and out.w.tolist() == [1.0] * 2
    for total in (rec(weight=3.0), rec(weight=HELD, holders=ones)):
        assert unmoved_where_unheld(srv, before, total) is srv


def test_an_update_is_spread_over_the_models_coordinates():
    part = rec(delta=torch.tensor([5.0, 7.0]), n=1.0, other=torch.ones(3))
    out = spread(part, View(torch.tensor([1, 3]), None, None, Layout(("x",), ((2,),)), 4))
    assert out.delta.tolist() == [0.0, 5.0, 0.0, 7.0] and out.n == 1.0 and len(out.other) == 3


def test_single_values_of_an_update_are_floats():
    out = numbers(rec(delta=torch.ones(1), weight=torch.tensor(2.0), own=rec(t=torch.tensor(3))))
    assert type(out.weight) is float and type(out.own.t) is float
    assert (out.weight, out.own.t) == (2.0, 3.0) and torch.equal(out.delta, torch.ones(1))


def test_uniform_gives_a_record_and_sees_no_gradients():
    class Mine(FedAvg):
        def unweighted(self, up, job):
            return rec(blind=float(job.full is None)) if up else [1.0]

    job = Job(1.0, 1.0, 0.1, 0.1, 0.0, 0.0, -1.0, full=lambda x: x)
    assert unweighted_of(Mine(), rec(a=1.0), job) == rec(blind=1.0)
    with pytest.raises(
        AuthorError, match=r"unweighted\(\) gives means of type list; make it with rec"
    ):
        unweighted_of(Mine(), rec(), job)


# ------------------------------------------------------------------------------------- finiteness
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_sees_every_number(bad):
    good = leaf(1)
    assert finite(good) and finite(rec(none=torch.zeros(0), count=torch.tensor([3])))
    assert not finite(good._replace(weight=bad))
    assert not finite(good._replace(delta=torch.tensor([1.0, bad, 2.0])))
    assert not finite(good._replace(unweighted=rec(dc=torch.tensor([bad, -bad]))))


def test_large_numbers_are_finite_though_their_sum_is_not():
    assert finite(leaf(1)._replace(delta=torch.tensor([3e38, 3e38])))
