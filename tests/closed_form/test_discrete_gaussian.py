"""Noise that clients add to a masked sum: its distribution, what it costs, what it hides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedloom.aggregation import DiscreteGaussian
from fedloom.aggregation.discrete_gaussian import discrete_gaussian
from fedloom.core.vector import rec
from fedloom.errors import ConfigError, WireError
from fedloom_flower.masked_sums import Session


def words(seed):
    source = np.random.default_rng(seed)
    return lambda n: source.integers(0, 2**64, n, dtype=np.uint64)


def law(sigma, reach):
    """The discrete normal distribution on -reach .. reach."""
    k = np.arange(-reach, reach + 1)
    p = np.exp(-(k**2) / (2 * sigma**2))
    return k, p / p.sum()


@pytest.mark.parametrize("sigma", [0.6, 1.5, 4.0, 23.0])
def test_draws_have_the_discrete_normal_distribution(sigma):
    """Chi-square of 200,000 draws, for proposals above and below sigma."""
    drawn, p = discrete_gaussian(200_000, sigma, words(1)), law(sigma, 300)[1]
    found = np.bincount(drawn + 300, minlength=601)
    expected = 200_000 * p
    seen = expected > 5
    square = ((found - expected)[seen] ** 2 / expected[seen]).sum()
    free = seen.sum() - 1
    assert abs(square - free) < 4 * math.sqrt(2 * free) and abs(drawn).max() < 6 * sigma + 1


def test_large_noise_has_its_variance_and_tails():
    x = discrete_gaussian(200_000, 1e7, words(2)) / 1e7
    assert abs(x.mean()) < 4 / 447 and abs(x.var() - 1) < 4 * math.sqrt(2 / 2e5)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / 2e5)
    share = (abs(x) > 3).mean()
    assert abs(share - 0.0026998) < 4 * math.sqrt(0.0027 / 2e5)


def divergence(p, shift, order):
    """The Renyi divergence of p from p moved by `shift`."""
    one, other = p[shift:], p[:-shift]
    kept = (one > 0) & (other > 0)
    terms = order * np.log(one[kept]) + (1 - order) * np.log(other[kept])
    return (terms.max() + math.log(np.exp(terms - terms.max()).sum())) / (order - 1)


@pytest.mark.parametrize(("sigma", "holds"), [(8.0, True), (0.35, False)])
@pytest.mark.parametrize("clients", [2, 3])
def test_a_sum_hides_as_much_as_normal_noise_of_its_variance(clients, sigma, holds):
    """By exact convolution: D_a <= a Delta^2 / (2 n sigma^2) for the least noise that is allowed,
    and not for noise that is far below it.
    """
    one, shift = law(sigma, 400 if holds else 12)[1], 8 if holds else 1
    p = one
    for _ in range(clients - 1):
        p = np.convolve(p, one)
    above = [
        divergence(p, shift, order) / (order * shift**2 / (2 * clients * sigma**2))
        for order in (1.5, 2, 4, 8)
    ]
    assert (max(above) < 1 + 1e-6) == holds and max(above) > 0.9


RULE = DiscreteGaussian(clip=0.5, noise=0.8, honest=4, bits=20)


def leaf(rule, delta, client=0, unweighted=None, round=0):
    more = rec(dc=delta * 2, tau=0.25) if unweighted is None else unweighted
    part = rec(n=1.0, mass=3.0, weight=3.0, delta=delta, unweighted=more, buffers=delta[:0])
    return rule.leaf(part, rec(), 7, round, client)


@pytest.mark.parametrize("length", [0.01, 0.5, 40.0])
def test_what_one_client_adds_is_no_longer_than_clip(length):
    """All fields together, in units of the ring, whatever is sent; the noise is the same in both
    leaves, and cancels.
    """
    v = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    v *= length / float(v.norm())
    there, nothing = leaf(RULE, v), leaf(RULE, v * 0, unweighted=rec(dc=v * 0, tau=0.0))
    own = [there.delta - nothing.delta, there.unweighted.dc - nothing.unweighted.dc]
    more = there.unweighted.tau - nothing.unweighted.tau
    norm = math.sqrt(sum(float((o.double() ** 2).sum()) for o in own) + more**2)
    whole = math.sqrt(5 * length**2 + 0.25**2)
    assert norm <= RULE.clip * 2**20
    assert norm == pytest.approx(min(whole, RULE.clip) * 2**20, rel=1e-3)
    assert torch.allclose(own[1].double(), 2 * own[0].double(), atol=2)
    assert there.weight == there.mass == 2**20 and there.n == 1.0  # clients count equally


def test_the_noise_of_honest_clients_has_the_deviation_that_is_accounted_for():
    """Of four clients the variance is (noise clip)^2; each draws its own, anew every round."""
    zero, none = torch.zeros(20_000), rec()
    leaves = [leaf(RULE, zero, i, none).delta for i in range(4)]
    total = sum(leaves).double() / 2**20
    assert float(total.var()) == pytest.approx((0.8 * 0.5) ** 2, rel=4 * math.sqrt(2 / 20_000))
    assert float(leaves[0].double().std()) == pytest.approx(RULE.deviation, rel=0.02)
    again, later = leaf(RULE, zero, 0, none).delta, leaf(RULE, zero, 0, none, round=1).delta
    assert (again == leaves[0]).all() and not (later == leaves[0]).all()
    both = torch.stack([leaves[0], leaves[1], later]).double()
    assert (torch.corrcoef(both) - torch.eye(3)).abs().max() < 0.03


def normal_delta(epsilon, mu):
    """What normal noise costs exactly (Balle & Wang, 2018): mu is the sum of rounds over noise."""
    above = lambda z: 0.5 * math.erfc(z / math.sqrt(2))
    return above(epsilon / mu - mu / 2) - math.exp(epsilon) * above(epsilon / mu + mu / 2)


def test_epsilon_is_that_of_normal_noise_in_which_all_take_part():
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    state = RULE.init(torch.zeros(3), 10.0, 0.1)
    for rounds in (1, 20):
        spent = RULE.report(state, rounds - 1)["epsilon"]
        rho = rounds / (2 * 0.8**2)
        assert normal_delta(spent, math.sqrt(rounds) / 0.8) < 1e-5  # it holds
        assert spent < rho + 2 * math.sqrt(rho * math.log(1e5))  # Bun & Steinke, and no more
        assert RULE.summary(state, rounds)["epsilon"] == spent
    limited = DiscreteGaussian(noise=0.8, max_epsilon=RULE.report(state, 4)["epsilon"] + 1e-9)
    assert limited.allowed(state, 20) == 5
    with pytest.raises(ConfigError, match=r"less than the .* of one round"):
        DiscreteGaussian(noise=0.1, max_epsilon=0.1).allowed(state, 20)


def test_a_sum_has_so_many_honest_clients_or_there_is_none():
    rule = DiscreteGaussian(honest=8, colluding=0.1, threshold=0.6)
    assert (rule.needed(10).clients, rule.needed(20).clients) == (9, 12)
    assert rule.needed(10) == (9, 9, 9)
    session = Session(b"", tuple(range(10)), rule.needed(10))
    with pytest.raises(WireError, match="8 clients are there, and a masked sum needs 9"):
        session.members_of(bytes([1] * 8 + [0] * 2))


@pytest.mark.parametrize(
    ("given", "count", "why"),
    [
        ({"honest": 11}, 10, "needs 11 clients in a round, got 10"),
        ({"honest": 10, "colluding": 0.1}, 10, "beside 1 that may be colluding needs 11"),
        ({"secure": False}, 10, "would see each update with a part of the noise alone"),
        ({"bits": 2}, 10, "bits = 2: a client's noise has a deviation of 2.83 units"),
        ({"bits": 40}, 10, "17, and 8 is the most"),
        ({}, 2, "3 or more clients"),
    ],
)
def test_settings_without_that_protection_are_refused(given, count, why):
    with pytest.raises(ConfigError, match=why):
        DiscreteGaussian(**given).check(count)
