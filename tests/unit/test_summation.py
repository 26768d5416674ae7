"""One tree over the places of a cohort: where it is cut changes no bit."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.algorithm import FedAvg, Job
from fedloom.core.vector import rec, tree
from fedloom.engines.summation import (
    finite,
    push,
    push_rows,
    ranges,
    root,
    unweighted_of,
)
from fedloom.errors import AuthorError
from tiny import imprint, same

dtypes = st.sampled_from([torch.float32, torch.float64])


def leaf(seed, dtype=torch.float32):
    """An answer whose coordinates differ by orders of size, so that order shows in the bits."""
    draw = torch.Generator().manual_seed(seed)
    v = torch.randn(7, generator=draw) * 10.0 ** torch.randint(-6, 6, (7,), generator=draw)
    weight = 1.0 + seed % 5
    unweighted = rec(dc=v.flip(0).to(dtype), own=rec(t=float(seed)))
    delta, buffers = v.to(dtype), torch.zeros(0)
    return rec(
        n=1.0, weight=weight, delta=delta, unweighted=unweighted, buffers=buffers, mass=weight
    )


def pushed(answers, first=0):
    """The nodes of answers one by one, which may write into a delta of their own."""
    nodes = []
    for place, answer in enumerate(answers, first):
        push(nodes, 0, place, answer and answer._replace(delta=answer.delta.clone()))
    return nodes


def gathered(answers, edges):
    """Every range by itself, then all ranges' nodes, left to right."""
    out = []
    for a, b in itertools.pairwise([0, *sorted(edges), len(answers)]):
        nodes = pushed(answers[a:b], a)
        assert len(nodes) <= 2 * math.log2(max(len(answers), 2)) + 1
        for node in nodes:
            push(out, *node)
    return root(out)


def rows_of(answers):
    """Leaves as one record with a leading axis; numbers as doubles."""
    stacked = lambda *vs: (
        torch.stack(vs) if isinstance(vs[0], torch.Tensor) else torch.tensor(vs, dtype=torch.double)
    )
    return tree(stacked, *answers)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 39), max_size=6), dtypes)
def test_rows_at_once_are_summed_as_one_by_one(count, edges, dtype):
    answers, stack = [leaf(n, dtype) for n in range(count)], []
    for a, b in itertools.pairwise(sorted({0, count, *(e for e in edges if e < count)})):
        rows = rows_of(answers[a:b])
        before = imprint(rows)
        push_rows(stack, a, rows)
        assert imprint(rows) == before, "the rows were written to"
    one_by_one = pushed(answers)
    assert [node[:2] for node in stack] == [node[:2] for node in one_by_one]
    assert all(same(a[2], b[2]) for a, b in zip(stack, one_by_one, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    dtypes,
)
def test_any_cut_gives_the_same_bits(arrived, edges, dtype):
    answers = [leaf(n, dtype) if came else None for n, came in enumerate(arrived)]
    came = [a for a in answers if a is not None]
    before = imprint(*came)
    whole = gathered(answers, [])
    cut = gathered(answers, {e for e in edges if 0 < e < len(answers)})
    everywhere = gathered(answers, range(1, len(answers)))
    assert imprint(*came) == before, "a leaf was written to"
    if not came:
        assert whole is cut is everywhere is None
        return
    assert same(whole, cut) and same(whole, everywhere) and whole.n == len(came)
    exact = sum(a.delta.double() for a in came)
    scale = sum(a.delta.double().abs() for a in came)
    error = (whole.delta.double() - exact).abs() / scale
    assert float(error.max()) < 40 * torch.finfo(dtype).eps


def test_the_sum_of_seven_is_this_one():
    v = [leaf(n).delta for n in range(7)]
    want = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6])
    assert torch.equal(gathered([leaf(n) for n in range(7)], [3]).delta, want)


@given(st.lists(st.floats(0.1, 100), max_size=60), st.integers(1, 12))
def test_ranges_cover_every_place_once_and_share_the_cost(costs, pieces):
    cuts = ranges(costs, pieces)
    assert [p for a, b in cuts for p in range(a, b)] == list(range(len(costs)))
    assert len(cuts) <= pieces and all(a < b for a, b in cuts)
    if costs:
        fair = sum(costs) / pieces
        assert max(sum(costs[a:b]) for a, b in cuts) <= 2 * fair + 2 * max(costs)


@pytest.mark.parametrize(
    ("costs", "pieces", "cuts"),
    [
        ([], 4, []),
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([3, 2, 1], 2, [(0, 1), (1, 3)]),  # the middle of the second is beyond a half
        ([1, 2, 1], 2, [(0, 2), (2, 3)]),  # the middle of the second is the half itself
        ([14, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),  # no range is empty
        ([1, 2, 3], 1, [(0, 3)]),
    ],
)
def test_a_range_ends_before_the_place_whose_middle_is_beyond_its_share(costs, pieces, cuts):
    assert ranges(costs, pieces) == cuts


def test_unweighted_gives_a_record_and_sees_no_gradients():
    class Mine(FedAvg):
        def unweighted(self, up, job):
            return rec(blind=float(job.full is None)) if up else [1.0]

    job = Job(1.0, 1.0, 0.1, 0.1, 0.0, 0.0, -1.0, full=lambda x: x)
    assert unweighted_of(Mine(), rec(a=1.0), job) == rec(blind=1.0)
    with pytest.raises(AuthorError, match=r"\(\) gives means of type list; make it with rec"):
        unweighted_of(Mine(), rec(), job)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_sees_every_number(bad):
    good = leaf(1)
    assert finite(good) and finite(rec(none=torch.zeros(0), count=torch.tensor([3])))
    assert finite(good._replace(delta=torch.tensor([3e38, 3e38]))), "though their sum is not"
    assert not finite(good._replace(weight=bad))
    assert not finite(good._replace(delta=torch.tensor([1.0, bad, 2.0])))
    assert not finite(good._replace(unweighted=rec(dc=torch.tensor([bad, -bad]))))
