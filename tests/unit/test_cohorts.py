"""Who takes part."""

from __future__ import annotations

import hashlib
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom import FedAvg
from fedloom.errors import ConfigError
from fedloom.federation import sampling
from fedloom.federation.choice import Known
from fedloom.federation.sampling import Churn, ClientSampler, round_half_up
from fedloom_flower.privacy import SecretClientSampler
from tiny import quadratics


@given(st.integers(1, 60), st.data(), st.integers(0, 9))
def test_a_number_is_that_many_different_clients_sorted(n, data, round):
    size = data.draw(st.integers(1, n))
    got = ClientSampler(size, n, seed=3).of(round)
    assert len(got) == len(set(got)) == size and got == sorted(got)
    assert set(got) <= set(range(n))
    assert got == ClientSampler(size, n, seed=3).of(round)


def test_a_share_is_rounded_half_up_and_at_least_one():
    assert len(ClientSampler(0.05, 100).of(0)) == 5
    assert len(ClientSampler(0.5, 5).of(0)) == 3
    assert len(ClientSampler(0.001, 10).of(0)) == 1
    assert ClientSampler(1.0, 7).of(4) == list(range(7))
    assert ClientSampler(1, 7).share == 1 / 7
    assert [round_half_up(v) for v in (0.4, 0.5, 1.5, 2.5)] == [0, 1, 2, 3]


def test_fixed_sampling_is_uniform():
    counts = [0] * 20
    for t in range(2000):
        for i in ClientSampler(4, 20, seed=1).of(t):
            counts[i] += 1
    # each is binomial(2000, 0.2): standard deviation 17.9
    assert all(abs(c - 400) < 4.5 * 17.9 for c in counts)
    assert len({tuple(ClientSampler(4, 20, seed=1).of(t)) for t in range(50)}) > 45
    assert ClientSampler(4, 20, seed=1).of(0) != ClientSampler(4, 20, seed=2).of(0)


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


def test_poisson_is_bernoulli_without_another_draw():
    """A round may have nobody, which the accounts of privacy count on."""
    n, p, rounds = 4, 0.25, 2000
    given = ClientSampler(p, n, seed=5, sampling="poisson")
    cohorts = [given.of(t) for t in range(rounds)]
    drawn = ClientSampler(p, n, seed=5, sampling="bernoulli")
    assert all(c == drawn.of(t) for t, c in enumerate(cohorts) if c)
    assert abs(sum(not c for c in cohorts) / rounds - (1 - p) ** n) < 0.04
    assert abs(sum(map(len, cohorts)) / rounds - n * p) < 0.08
    assert given.expected == 1.0 and given.largest == 4 and len(given.example) > 0


def test_bernoulli_takes_every_client_by_itself():
    n, p, rounds = 10, 0.3, 3000
    cohorts = [ClientSampler(p, n, seed=5, sampling="bernoulli").of(t) for t in range(rounds)]
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


def test_bernoulli_with_tiny_shares_draws_until_somebody_comes():
    cohorts = [ClientSampler(0.01, 5, sampling="bernoulli").of(t) for t in range(30)]
    assert all(cohorts) and sum(len(c) == 1 for c in cohorts) > 25


def test_a_schedule_begins_again_when_it_ends():
    cohorts = ClientSampler([[2, 0], [1], []], 3)
    assert [cohorts.of(t) for t in range(5)] == [[0, 2], [1], [], [0, 2], [1]]
    assert cohorts.share == 1 / 3


@pytest.mark.parametrize(
    ("size", "match"),
    [
        (0, "from 1 to the 5"),
        (6, "from 1 to the 5 clients there are, got 6"),
        (-1, "from 1"),
        (0.0, r"\(0, 1\], got 0.0"),
        (1.5, r"\(0, 1\].*integer"),
        (float("nan"), r"\(0, 1\]"),
        ([], "at least one list"),
        ([[0, 5]], "round 1 names client 5.*0 to 4"),
        ([[0], [-1]], "round 2 names client -1"),
        ([[1, 1]], "names client 1 twice|twice"),
    ],
)
def test_a_cohort_that_the_population_does_not_have(size, match):
    with pytest.raises(ConfigError, match=match):
        ClientSampler(size, 5)


def test_one_client_that_may_be_meant_as_all_is_said():
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


def test_a_run_of_one_client_in_every_round_warns_once(caplog):
    quadratics(FedAvg(), cohort=1)
    quadratics(FedAvg(), cohort=1.0)
    assert caplog.text.count("cohort = 1 is one client of 4 in every round") == 1


def secret(key, size=0.3, n=6, sampling="poisson"):
    return SecretClientSampler(size, n, sampling=sampling, secret=key)


def test_secret_cohorts_are_poisson_with_the_given_probability():
    """Each client by itself, with q: of 4000 rounds, within 4.5 standard deviations."""
    n, q, rounds = 6, 0.3, 4000
    given = secret(bytes(range(32)))
    cohorts = [given.of(t) for t in range(rounds)]
    assert all(c == sorted(set(c)) for c in cohorts)
    for i in range(n):
        share = sum(i in c for c in cohorts) / rounds
        assert abs(share - q) < 4.5 * math.sqrt(q * (1 - q) / rounds)
    both = sum(0 in c and 1 in c for c in cohorts) / rounds
    assert abs(both - q**2) < 4.5 * math.sqrt(q**2 * (1 - q**2) / rounds)
    again = sum(0 in a and 0 in b for a, b in itertools.pairwise(cohorts)) / rounds
    assert abs(again - q**2) < 0.03
    nobody = sum(not c for c in cohorts) / rounds
    assert abs(nobody - (1 - q) ** n) < 4.5 * math.sqrt(0.12 / rounds)


def test_secret_cohorts_are_those_of_the_formula():
    """u = BLAKE2b(key = secret, (round, attempt, client)) as a 64-bit number; in if u < q 2^64."""
    key, q = bytes(range(7, 39)), 0.5
    for t, attempt in ((0, 0), (5, 0), (5, 1)):
        drawn = []
        for i in range(40):
            told = b"".join(v.to_bytes(8, "little") for v in (t, attempt, i))
            u = int.from_bytes(hashlib.blake2b(told, key=key, digest_size=8).digest(), "little")
            drawn += [i] if u < q * 2**64 else []
        assert secret(key, q, 40).of(t, attempt=attempt) == drawn
    assert secret(key, 1.0, 40).of(3) == list(range(40))
    assert len(secret(key, 1, 1).of(0)) == 1


@pytest.mark.parametrize("byte", [0, 4, 8, 15, 31])
def test_every_byte_of_the_secret_counts(byte):
    """Nothing on the way is shorter than the 256 bits: torch would take 32 of them."""
    one = bytes(32)
    other = one[:byte] + b"\x01" + one[byte + 1 :]
    first, second = ([secret(k, 0.5, 64).of(t) for t in range(4)] for k in (one, other))
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert first == [secret(one, 0.5, 64).of(t) for t in range(4)]  # of a run that goes on


def test_no_generator_of_torch_is_on_the_way_to_a_secret_cohort(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("a generator with 2^32 beginnings")

    for name in ("rand", "randperm", "Generator", "manual_seed"):
        monkeypatch.setattr(torch, name, refused)
    monkeypatch.setattr(sampling, "generator", refused)
    assert secret(bytes(32), 0.5, 64).of(0)


def test_secret_cohorts_are_poisson_only():
    for size, how in ((2, "fixed"), (0.5, "bernoulli"), ([[0]], "poisson")):
        with pytest.raises(ConfigError, match="sampling = poisson"):
            secret(bytes(32), size, 3, how)
    with pytest.raises(ConfigError, match="32 bytes"):
        secret(b"short")
    with pytest.raises(NotImplementedError):  # no order that the public seed would tell
        next(secret(bytes(32)).order([0, 1], 0))
    assert "secret" not in repr(secret(bytes(32)))
