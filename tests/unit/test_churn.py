"""Sets of clients that change."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import Churn
from fedloom.errors import ConfigError
from fedloom.federation.sampling import ClientSampler


def cohorts(population=500, size=0.04, seed=3, sampling="fixed", **options):
    churn = Churn(**({"active": 250, "every": 100} | options))
    return ClientSampler(size, population, seed, sampling, churn)


@settings(deadline=None, max_examples=80)
@given(
    population=st.integers(1, 40),
    share=st.floats(0, 1),
    every=st.integers(1, 5),
    replace=st.one_of(st.none(), st.floats(0, 1)),
    round=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_as_many_as_wanted_are_there_and_cohorts_are_of_them(
    population, share, every, replace, round, seed
):
    active = 1 + int(share * (population - 1))
    one = cohorts(population, 0.5, seed, active=active, every=every, replace=replace)
    there = one.present(round)
    assert len(there) == len(set(there)) == active and there == sorted(there)
    assert set(there) <= set(range(population))
    assert there == one.present(round - round % every)  # nothing changes within a stage
    assert set(one.of(round)) <= set(there) and one.of(round) == sorted(one.of(round))
    assert len(one.of(round)) == max(1, int(0.5 * active + 0.5))


def test_the_papers_numbers():
    one = cohorts()
    assert len(one.of(0)) == 10  # 4 % of 250
    assert one.share == 0.04
    stages = [set(one.present(100 * s)) for s in range(10)]
    left = [len(a - b) for a, b in itertools.pairwise(stages)]
    # each leaves with probability 1/2: binomial(250, 1/2)
    assert all(abs(n - 125) < 4.5 * math.sqrt(250 / 4) for n in left)
    assert all(len(stage) == 250 for stage in stages)


def test_each_leaves_by_itself_with_the_probability():
    population, stages = 40, 1500
    one = cohorts(population, 1, active=10, every=1, replace=0.3)
    left = []
    for t in range(stages):
        left.append(len(set(one.present(t)) - set(one.present(t + 1))))
    mean = sum(left) / stages
    variance = sum((n - mean) ** 2 for n in left) / stages
    assert abs(mean - 3) < 4.5 * math.sqrt(2.1 / stages)  # binomial(10, 0.3)
    assert abs(variance - 2.1) < 0.4


def test_where_few_are_outside_the_others_stay():
    one = cohorts(10, 1, active=8, every=1, replace=1.0)
    for t in range(20):
        assert len(set(one.present(t)) - set(one.present(t + 1))) == 2
    all_there = cohorts(5, 1, active=5, every=1, replace=1.0)
    assert all_there.present(7) == [0, 1, 2, 3, 4]
    nobody_leaves = cohorts(10, 1, active=4, every=1, replace=0.0)
    assert nobody_leaves.present(9) == nobody_leaves.present(0)


def test_any_round_can_be_asked_for_first():
    forward = cohorts(seed=5)
    rows = [forward.of(t) for t in range(0, 1000, 50)]
    backward = cohorts(seed=5)
    assert [backward.of(t) for t in range(950, -1, -50)] == rows[::-1]
    assert cohorts(seed=5).of(950) == rows[-1]
    assert cohorts(seed=6).of(950) != rows[-1]


def test_who_has_just_left_is_forgotten_if_that_is_asked_for():
    one = cohorts(20, 1, active=10, every=3, forget=True)
    for t in range(30):
        expected = set(one.present(t - 1)) - set(one.present(t)) if t else set()
        assert one.forgotten(t) == sorted(expected)
        assert not (expected and t % 3)
    kept = cohorts(20, 1, active=10, every=3)
    assert all(kept.forgotten(t) == [] for t in range(30))
    assert ClientSampler(1, 20).forgotten(3) == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Churn(active=0), "active must be a whole number from 1, got 0"),
        (lambda: Churn(active=2.5), "active must be a whole number from 1, got 2.5"),
        (lambda: Churn(active=True), "whole number from 1, got True"),
        (lambda: Churn(active=2, every=0), "every must be"),
        (lambda: Churn(active=2, replace=1.5), r"replace must be in \[0, 1\] or none, got 1.5"),
        (lambda: Churn(active=2, forget=3), "forget must be true or false"),
        (lambda: cohorts(20), "churn.active must be from 1 to the 20 clients.*got 250"),
        (lambda: cohorts(500, 251), "from 1 to the 250 clients there are, got 251"),
        (lambda: cohorts(500, [[0]]), "keep one of them"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
