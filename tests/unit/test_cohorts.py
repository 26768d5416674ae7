"""Who takes part: a number, a share, lists, a public or a secret draw, and clients that change."""

import hashlib
import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom import Churn, FedAvg
from fedloom.errors import ConfigError
from fedloom.federation.choice import Known
from fedloom.federation.sampling import ClientSampler, round_half_up
from fedloom_flower.privacy import SecretClientSampler
from support.refusals import refused
from tiny import quadratics


def rounds_of(cohorts, rounds):
    return [cohorts.of(t) for t in range(rounds)]


@given(st.integers(1, 60), st.data(), st.integers(0, 9))
def test_a_number_is_that_many_different_clients_sorted(n, data, round):
    size = data.draw(st.integers(1, n))
    cohort = ClientSampler(size, n, seed=3).of(round)
    assert len(cohort) == len(set(cohort)) == size and cohort == sorted(cohort)
    assert set(cohort) <= set(range(n))
    assert cohort == ClientSampler(size, n, seed=3).of(round)


def test_a_share_is_rounded_half_up_and_at_least_one():
    for share, n, size in ((0.05, 100, 5), (0.5, 5, 3), (0.001, 10, 1), (1.0, 7, 7)):
        assert len(ClientSampler(share, n).of(4)) == size
    assert ClientSampler(1, 7).share == 1 / 7
    assert [round_half_up(v) for v in (0.4, 0.5, 1.5, 2.5)] == [0, 1, 2, 3]


def test_fixed_sampling_is_uniform():
    cohorts = rounds_of(ClientSampler(4, 20, seed=1), 2000)
    # each is binomial(2000, 0.2): standard deviation 17.9
    assert all(abs(n - 400) < 4.5 * 17.9 for n in Counter(itertools.chain(*cohorts)).values())
    assert len(set(map(tuple, cohorts[:50]))) > 45
    assert cohorts[0] != ClientSampler(4, 20, seed=2).of(0)


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_a_round_that_is_drawn_again_has_another_cohort(sampling):
    """The same one whenever it is; lists of clients stay as they are."""
    cohorts = ClientSampler(4, 20, seed=1, sampling=sampling)
    drawn = [[tuple(cohorts.of(t, attempt=k)) for k in range(5)] for t in range(20)]
    assert drawn == [[tuple(cohorts.of(t, attempt=k)) for k in range(5)] for t in range(20)]
    assert [tuple(cohorts.of(t)) for t in range(20)] == [each[0] for each in drawn]
    assert len({c for each in drawn for c in each}) > 95 and all(c for each in drawn for c in each)
    lists = ClientSampler([[0, 2], [1]], 3)
    assert lists.of(1, attempt=4) == lists.of(1) == [1]
    known = Known(3, 1, [0], [5], [], seed=2)
    assert known.generator().initial_seed() != known._replace(attempt=1).generator().initial_seed()


def test_bernoulli_takes_every_client_by_itself():
    n, p, rounds = 10, 0.3, 3000
    cohorts = rounds_of(ClientSampler(p, n, seed=5, sampling="bernoulli"), rounds)
    assert all(c and c == sorted(set(c)) for c in cohorts)
    somebody = 1 - (1 - p) ** n  # rounds without anybody are drawn again
    for i in range(n):
        share = sum(i in c for c in cohorts) / rounds
        assert abs(share - p / somebody) < 4.5 * math.sqrt(p * (1 - p) / rounds)
    sizes = [len(c) for c in cohorts]
    mean = sum(sizes) / rounds
    variance = sum((s - mean) ** 2 for s in sizes) / rounds
    assert abs(mean - n * p / somebody) < 0.15 and abs(variance - n * p * (1 - p)) < 0.4
    both = sum(0 in c and 1 in c for c in cohorts) / rounds
    assert abs(both - p * p / somebody) < 0.03
    tiny = rounds_of(ClientSampler(0.01, 5, sampling="bernoulli"), 30)
    assert all(tiny) and sum(len(c) == 1 for c in tiny) > 25


def test_poisson_is_bernoulli_without_another_draw():
    """A round may have nobody, which the accounts of privacy count on."""
    n, p, rounds = 4, 0.25, 2000
    poisson = ClientSampler(p, n, seed=5, sampling="poisson")
    cohorts = rounds_of(poisson, rounds)
    drawn = ClientSampler(p, n, seed=5, sampling="bernoulli")
    assert all(c == drawn.of(t) for t, c in enumerate(cohorts) if c)
    assert abs(sum(not c for c in cohorts) / rounds - (1 - p) ** n) < 0.04
    assert abs(sum(map(len, cohorts)) / rounds - n * p) < 0.08
    assert poisson.expected == 1.0 and poisson.largest == 4 and len(poisson.example) > 0


def test_lists_begin_again_when_they_end():
    cohorts = ClientSampler([[2, 0], [1], []], 3)
    assert rounds_of(cohorts, 5) == [[0, 2], [1], [], [0, 2], [1]] and cohorts.share == 1 / 3


def test_in_a_cycle_all_have_their_turn():
    cohorts = ClientSampler(2, 6, seed=1, sampling="cycle")
    rounds = rounds_of(cohorts, 9)
    for a in (0, 3, 6):
        assert sorted(itertools.chain(*rounds[a : a + 3])) == [*range(6)]
    assert rounds[:3] != rounds[3:6] and not cohorts.single_warning and cohorts.largest == 2


CHURN = Churn(active=250, every=100)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ClientSampler(0, 5), "from 1 to the 5"),
        (lambda: ClientSampler(6, 5), "from 1 to the 5 clients there are, got 6"),
        (lambda: ClientSampler(0.0, 5), "(0, 1], got 0.0"),
        (lambda: ClientSampler(float("nan"), 5), "(0, 1]"),
        (lambda: ClientSampler([], 5), "at least one list"),
        (lambda: ClientSampler([[0, 5]], 5), "round 1 names client 5 ... 0 to 4"),
        (lambda: ClientSampler([[0], [-1]], 5), "round 2 names client -1"),
        (lambda: ClientSampler([[1, 1]], 5), "twice"),
        (lambda: ClientSampler(4, 6, sampling="cycle"), "divides the 6"),
        (lambda: ClientSampler([[0]], 6, sampling="cycle"), "got lists"),
        (lambda: ClientSampler(1, 6, sampling="cycle", churn=Churn(active=3)), "keep one of them"),
        (lambda: Churn(active=2.5), "active must be a whole number from 1, got 2.5"),
        (lambda: Churn(active=True), "whole number from 1, got True"),
        (lambda: Churn(active=2, every=0), "every must be"),
        (lambda: Churn(active=2, replace=1.5), "replace must be in [0, 1] or none, got 1.5"),
        (lambda: Churn(active=2, forget=3), "forget must be true or false"),
        (lambda: ClientSampler(1, 20, churn=CHURN), "active must be from 1 to the 20 ... got 250"),
        (lambda: ClientSampler(251, 500, churn=CHURN), "the 250 clients there are, got 251"),
        (lambda: ClientSampler([[0]], 500, churn=CHURN), "keep one of them"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    refused(make, says, kind=ConfigError)


def test_one_client_that_may_be_meant_as_all_is_said(caplog):
    assert "cohort = 1.0" in ClientSampler(1, 50).single_warning
    for size, clients in ((1.0, 50), (2, 50), (1, 1), (0.02, 50), ([[1]], 50)):
        assert ClientSampler(size, clients).single_warning == ""
    said = {
        "1 of 50 clients": ClientSampler(1, 50),
        "50 of 50 clients": ClientSampler(1.0, 50),
        "about 5 of 50 clients": ClientSampler(0.1, 50, sampling="bernoulli"),
        "2 of 20 clients that are there": ClientSampler(0.1, 50, churn=Churn(active=20)),
        "2 lists of clients, in turn": ClientSampler([[1], [2]], 50),
    }
    assert all(cohorts.words == words for words, cohorts in said.items())
    for size in (1, 1.0):
        quadratics(FedAvg(), cohort=size)
    assert caplog.text.count("cohort = 1 is one client of 4 in every round") == 1


def changing(population=500, size=0.04, seed=3, **options):
    return ClientSampler(size, population, seed, churn=Churn(**{"active": 250} | options))


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
    one = changing(population, 0.5, seed, active=active, every=every, replace=replace)
    there = one.present(round)
    assert len(there) == len(set(there)) == active and there == sorted(there)
    assert set(there) <= set(range(population))
    assert there == one.present(round - round % every)  # nothing changes within a stage
    assert set(one.of(round)) <= set(there) and one.of(round) == sorted(one.of(round))
    assert len(one.of(round)) == max(1, int(0.5 * active + 0.5))


def leaving(cohorts, stages):
    """How many leave after each round, which is a stage."""
    there = [set(cohorts.present(t)) for t in range(stages + 1)]
    return [len(a - b) for a, b in itertools.pairwise(there)]


def test_each_leaves_by_itself_with_the_probability():
    stages = 1500
    left = leaving(changing(40, 1, active=10, every=1, replace=0.3), stages)
    mean = sum(left) / stages
    variance = sum((n - mean) ** 2 for n in left) / stages
    assert abs(mean - 3) < 4.5 * math.sqrt(2.1 / stages)  # binomial(10, 0.3)
    assert abs(variance - 2.1) < 0.4
    paper = changing(every=100)
    assert len(paper.of(0)) == 10 and paper.share == 0.04  # 4 % of 250
    left = len(set(paper.present(0)) - set(paper.present(100)))
    assert abs(left - 125) < 4.5 * math.sqrt(250 / 4)  # each with probability 1/2


@pytest.mark.parametrize(
    ("population", "active", "replace", "left"), [(10, 8, 1.0, 2), (5, 5, 1.0, 0), (10, 4, 0.0, 0)]
)
def test_where_few_are_outside_the_others_stay(population, active, replace, left):
    one = changing(population, 1, active=active, every=1, replace=replace)
    assert set(leaving(one, 20)) == {left}


def test_any_round_can_be_wanted_first():
    rounds = range(0, 1000, 50)
    forward, backward = changing(seed=5, every=100), changing(seed=5, every=100)
    rows = [forward.of(t) for t in rounds]
    assert [backward.of(t) for t in rounds[::-1]] == rows[::-1]
    assert changing(seed=6, every=100).of(950) != rows[-1]


def test_who_has_just_left_is_forgotten_if_that_is_wanted():
    one = changing(20, 1, active=10, every=3, forget=True)
    for t in range(30):
        expected = set(one.present(t - 1)) - set(one.present(t)) if t else set()
        assert one.forgotten(t) == sorted(expected) and not (expected and t % 3)
    kept = changing(20, 1, active=10, every=3)
    assert all(kept.forgotten(t) == [] for t in range(30))
    assert ClientSampler(1, 20).forgotten(3) == []


def secret(key, size=0.3, n=6, sampling="poisson"):
    return SecretClientSampler(size, n, sampling=sampling, secret=key)


def test_secret_cohorts_are_those_of_the_formula():
    """u = BLAKE2b(key = secret, (round, attempt, client)) as a 64-bit number; in if u < q 2^64. So
    all 256 bits of the secret count: torch's generators would take 32 of them.
    """
    key, q = bytes(range(7, 39)), 0.5
    for t, attempt in ((0, 0), (5, 0), (5, 1)):
        drawn = []
        for i in range(40):
            place = b"".join(v.to_bytes(8, "little") for v in (t, attempt, i))
            u = int.from_bytes(hashlib.blake2b(place, key=key, digest_size=8).digest(), "little")
            drawn += [i] if u < q * 2**64 else []
        assert secret(key, q, 40).of(t, attempt=attempt) == drawn
    assert secret(key, 1.0, 40).of(3) == list(range(40))
    assert len(secret(key, 1, 1).of(0)) == 1


def test_secret_cohorts_are_poisson_only():
    for size, how in ((2, "fixed"), (0.5, "bernoulli"), ([[0]], "poisson")):
        other = lambda size=size, how=how: secret(bytes(32), size, 3, how)
        refused(other, "sampling = poisson", kind=ConfigError)
    refused(lambda: secret(b"short"), "32 bytes", kind=ConfigError)
    with pytest.raises(NotImplementedError):  # no order that the public seed would tell
        next(secret(bytes(32)).order([0, 1], 0))
    assert "secret" not in repr(secret(bytes(32)))
