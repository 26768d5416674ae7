"""Sums that hide their parts: the noise that clients add to a masked sum, how many neighbours a
client needs, and rounds with fewer updates than their aggregation takes.
"""

from __future__ import annotations

import itertools
import logging
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import Experiment
from fedloom.aggregation import DiscreteGaussian, IntegerRing, Krum, integer_ring
from fedloom.aggregation.discrete_gaussian import discrete_gaussian
from fedloom.aggregation.integer_ring import Needed, needed, neighbourhoods
from fedloom.algorithm import FedAvg
from fedloom.core.vector import rec
from fedloom.engines.summation import root
from fedloom.errors import ConfigError, WireError
from fedloom.federation.availability import Availability
from fedloom.federation.devices import LogNormal
from fedloom.server.server_step import Step
from fedloom_flower.masked_sums import Session
from tiny import clusters, small, trace


# ---------------------------------------------------------------------------------------- the noise
def words(seed):
    source = np.random.default_rng(seed)
    return lambda n: source.integers(0, 2**64, n, dtype=np.uint64)


@pytest.mark.parametrize("sigma", [0.6, 1.5, 4.0, 23.0])
def test_draws_have_the_discrete_normal_distribution(sigma):
    """Chi-square of 200,000 draws, for proposals above and below sigma."""
    drawn = discrete_gaussian(200_000, sigma, words(1))
    result = np.bincount(drawn + 300, minlength=601)
    law = np.exp(-(np.arange(-300, 301) ** 2) / (2 * sigma**2))
    expected = 200_000 * law / law.sum()
    seen = expected > 5
    square = ((result - expected)[seen] ** 2 / expected[seen]).sum()
    free = seen.sum() - 1
    assert abs(square - free) < 4 * math.sqrt(2 * free) and abs(drawn).max() < 6 * sigma + 1


def test_large_noise_has_its_variance_and_tails():
    x = discrete_gaussian(200_000, 1e7, words(2)) / 1e7
    assert abs(x.mean()) < 4 / 447 and abs(x.var() - 1) < 4 * math.sqrt(2 / 2e5)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / 2e5)
    share = (abs(x) > 3).mean()
    assert abs(share - 0.0026998) < 4 * math.sqrt(0.0027 / 2e5)


RULE = DiscreteGaussian(clip=0.5, noise=0.8, honest=4, bits=20)


def leaf(rule, delta, client=0, unweighted=None, round=0):
    more = rec(dc=delta * 2, tau=0.25) if unweighted is None else unweighted
    part = rec(n=1.0, mass=3.0, weight=3.0, delta=delta, unweighted=more, buffers=delta[:0])
    return rule.leaf(part, rec(), 7, round, client)


@pytest.mark.parametrize("length", [0.01, 0.5, 40.0])
def test_what_one_client_adds_is_no_longer_than_clip(length):
    """All fields together, in units of the ring; the noise is the same in both, and cancels."""
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


# ----------------------------------------------------------------------- neighbours of a masked sum
# clients, colluding, dropouts: degree and threshold of graph_parameter_finder_test.cc of its
# authors, for a server that lies about who vanished; and ours, where a client keeps a share of its
# own secrets, too
PUBLISHED = [
    (100, 0.3, 0.3, (92, 62), (92, 62)),
    (100, 0.05, 0.33, (72, 39), (74, 41)),
    (100, 0.33, 0.05, (42, 37), (44, 39)),
    (1000, 0.05, 0.33, (398, 223), (398, 223)),
    (1000, 0.33, 0.05, (132, 109), (138, 114)),
    (10000, 0.33, 0.05, (178, 146), (180, 148)),
]


@pytest.mark.parametrize(("n", "colluding", "gone", "theirs", "ours"), PUBLISHED)
def test_degrees_are_those_that_the_papers_authors_publish_or_a_few_more(
    n, colluding, gone, theirs, ours
):
    clients, bad = math.ceil((1 - gone) * n - 1e-9), math.floor(colluding * n + 1e-9)
    assert needed(n, clients, bad) == Needed(clients, *ours)
    assert all(0 <= own - other <= 6 for own, other in zip(ours, theirs, strict=True))


def fails(n, clients, bad, degree, shares):
    """The three probabilities, exactly: two pieces; both secrets of one; too few shares."""
    chance = lambda of, marked, result: Fraction(
        math.comb(marked, result) * math.comb(of - marked, degree - result), math.comb(of, degree)
    )
    gone = n - clients + bad
    pairs = n * (n - degree - 1) // 2
    pieces = pairs * Fraction(math.perm(gone, degree), math.perm(n, degree))
    # a server that tells half of the honest of a client's degree + 1 shares otherwise
    both = sum(chance(n - 1, bad, c) for c in range(bad + 1) if 2 * shares <= degree + 1 + c)
    few = sum(chance(n - 1, clients - 1, left) for left in range(shares) if left <= degree)
    return pieces, n * both, n * few


@pytest.mark.parametrize("n", [60, 100, 250])
@pytest.mark.parametrize("threshold", [0.7, 0.9])
def test_failures_are_as_rare_as_they_are_said_to_be(n, threshold):
    clients, bad = math.ceil(threshold * n - 1e-9), n // 20
    result = needed(n, clients, bad)
    assert result == IntegerRing(secure=True, threshold=threshold).needed(n)
    limits = Fraction(1, 2**41), Fraction(1, 2**41), Fraction(1, 2**20)
    of = lambda degree, shares: all(
        p <= most for p, most in zip(fails(n, clients, bad, degree, shares), limits, strict=True)
    )
    assert of(result.degree, result.shares) and not of(result.degree, result.shares - 1)
    assert not any(of(result.degree - 2, shares) for shares in range(result.degree // 2, n // 2))


def test_all_others_are_neighbours_of_few_clients_and_where_fewer_do_not_do():
    assert needed(50, 30, 2) == Needed(30, 49, 30)
    assert needed(60, 36, 12) == Needed(36, 59, 36)


def pieces(hoods, there):
    left, result = {*there}, 0
    while left:
        result, edge = result + 1, [left.pop()]
        while edge:
            near = left.intersection(hoods[edge.pop()])
            left -= near
            edge += near
    return result


@pytest.mark.parametrize(("n", "degree"), [(8, 4), (9, 4), (9, 8), (10, 9), (11, 6)])
def test_the_graph_is_regular_and_in_one_piece_where_a_client_would_answer(n, degree):
    """Of every subset: who has degree / 2 + 2 of its neighbourhood there is in the one piece."""
    hoods = neighbourhoods(b"name", tuple(range(n)), degree)
    assert all(len(hood) == degree + 1 and i in hood for i, hood in hoods.items())
    assert all(i in hoods[j] for i, hood in hoods.items() for j in hood)
    other = neighbourhoods(b"other", tuple(range(n)), degree)
    assert degree == n - 1 or hoods != other
    split = 0
    for k in range(1, n + 1):
        for there in itertools.combinations(range(n), k):
            least = min(sum(j in there for j in hoods[i]) for i in there)
            one = pieces(hoods, there) == 1
            split += not one
            assert one or least < degree // 2 + 2
    assert (split > 0) == (degree < n - 2)


@pytest.mark.parametrize("colluding", [0.0, 0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("threshold", [0.51, 0.55, 0.6, 0.66])
def test_a_plan_that_colluders_could_read_is_refused(threshold, colluding):
    """With c colluders a lying server splits the other n - c: some give shares of a client's one
    secret and some of its other; each secret takes as many shares as the sum has clients.
    """
    rule = IntegerRing(secure=True, threshold=threshold, colluding=colluding)
    for n in range(3, integer_ring.COMPLETE + 1):
        needs, c = rule.needed(n).shares, math.floor(colluding * n + 1e-9)
        split = range(n - c + 1)
        readable = any(some + c >= needs and n - c - some + c >= needs for some in split)
        refused = False
        try:
            rule.check(n)
        except ConfigError as error:
            refused = "reads updates unless it is more than" in str(error)
        assert refused == readable, (n, needs, c)


# ---------------------------------------------------------------------- rounds with too few updates
Row = dict[str, Any]
TWELVE = tuple(range(3, 15))  # examples of twelve clients
ROUNDS, DELTA = 20, 1e-5


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many updates were in each sum that the server stepped by."""
    counts: list[int] = []
    made = Step.next_state

    def counting(step: Step, now: Any, t: int, results: Any, mean: Any) -> Any:
        new = made(step, now, t, results, mean)
        if new is not now:
            counts.append(round(root(results.nodes).n))
        return new

    monkeypatch.setattr(Step, "next_state", counting)
    return counts


def renyi_epsilon(noises: list[float]) -> float:
    """Epsilon of rounds with normal noise of these deviations over clip: costs a / (2 z^2) of every
    order a add up (Mironov, CSF 2017), turned as Canonne, Kairouz & Steinke do (2020, Prop. 12).
    """
    orders = 1 + np.logspace(-3, 4, 20_000)
    costs = orders / 2 * sum(z**-2 for z in noises)
    turned = costs + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)
    return float(turned.min())


NOISY = DiscreteGaussian(noise=0.8, honest=4, colluding=0.0)


def twelve(**changes: Any) -> Experiment:
    given = {"aggregation": NOISY, "weighting": "uniform", "cohort": 5, "rounds": ROUNDS}
    return small(FedAvg(), **({"data": clusters(sizes=TWELVE)} | given | changes))


PRIVATE: dict[str, Row] = {
    "dropout": {"availability": Availability(dropout=0.4)},
    "available": {"availability": Availability(share=0.4)},
    "poisson": {"sampling": "poisson"},
    "bernoulli": {"sampling": "bernoulli"},
    "late": {"availability": Availability(dropout=0.3, over_selection=1.4), "devices": LogNormal()},
}


@pytest.mark.parametrize("case", PRIVATE)
def test_epsilon_covers_the_noise_that_there_was(case: str, stepped: list[int]) -> None:
    """Together they cost no more than what is said, and some rounds had too few."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    result = twelve(**PRIVATE[case]).run()
    noises = [0.8 * math.sqrt(count / 4) for count in stepped]
    assert 0 < len(noises) < ROUNDS and len(result.history) == ROUNDS
    assert result.summary["epsilon"] >= renyi_epsilon(noises)
    assert result.summary["epsilon"] == pytest.approx(renyi_epsilon([0.8] * ROUNDS), rel=0.01)


MASKED = IntegerRing(secure=True, threshold=0.8)
RULES: dict[str, tuple[Row, Any]] = {
    "masked": ({"aggregation": MASKED}, lambda asked, came: came >= math.ceil(0.8 * asked)),
    "krum": (
        {"aggregation": Krum(hostile=0.2), "cohort": 7},
        lambda asked, came: came >= 2 * math.ceil(0.2 * came - 1e-9) + 3,
    ),
    "multi-krum": ({"aggregation": Krum(hostile=0.0, several=4)}, lambda asked, came: came >= 4),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_round_with_too_few_changes_nothing_and_says_so(
    rule: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes, enough = RULES[rule]
    run = twelve(**changes, availability=Availability(dropout=0.4), engine=engine)
    asked, few, before = run.cohort, 0, None
    for loop in trace(run, ROUNDS):
        if before is not None and loop.log.history:
            row = loop.log.history[-1]
            came = row["cohort"]
            assert row["cohort"] + row["dropped"] == asked and row["round"] == len(loop.log.history)
            moved = not torch.equal(loop.state.srv.x, before)
            assert moved == enough(asked, came)
            assert ("needed" in row) == (not moved)
            if not moved:
                few += 1
                assert row["answered"] == 0 and came < row["needed"]
                assert f"round {row['round']}: {came} updates came" in caplog.text
        before = loop.state.srv.x.clone()
    assert 0 < few < ROUNDS and "not finite" not in caplog.text


def test_updates_that_are_left_out_do_not_count_as_noise(caplog: pytest.LogCaptureFixture) -> None:
    """nonfinite = skip leaves out two of five: three are fewer than the four that hide each."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    data = clusters(sizes=TWELVE)
    data.inputs[torch.cat([data.clients.of(0), data.clients.of(1)])] = torch.nan
    lists = [[0, 1, 2, 3, 4], [2, 3, 4, 5]]
    run = twelve(data=data, cohort=lists, rounds=2, nonfinite="skip")
    first, second = [*trace(run, 2)][-1].log.history
    assert first["needed"] == 4 and first["answered"] == 0 and "needed" not in second


@pytest.mark.usefixtures("accounts_at_hand")
def test_every_listed_cohort_is_checked_before_round_1() -> None:
    for lists, rule, words in (
        ([[0, 1, 2, 3, 4], [5, 6, 7, 8], [3]], NOISY, "round 3: .*, got 1"),
        ([[0, 1, 2, 3, 4], [5, 6, 7], [3]], NOISY, "round 2: .*honest = 4.*, got 3"),
        ([[*range(9)], [1, 2, 3]], "krum", "round 2: .*Krum.* needs 5"),
        ([[1, 2, 3], [1, 2]], IntegerRing(secure=True), "round 2: .*needs 3 or more clients"),
    ):
        with pytest.raises(ConfigError, match=f"cohort of {words}"):
            twelve(cohort=lists, aggregation=rule).build()
    twelve(cohort=[[1, 2, 3, 4], []]).build()  # of nobody nothing is learnt


@pytest.mark.usefixtures("accounts_at_hand")
def test_rounds_that_will_have_too_few_are_named_before_round_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who is drawn is known before: the number that is said is that of the run."""
    run = twelve(**PRIVATE["dropout"])
    with caplog.at_level(logging.WARNING):
        history = [*trace(run, ROUNDS)][-1].log.history
    few = sum("needed" in row for row in history)
    assert f"{few} of the first {ROUNDS} rounds will have fewer updates than" in caplog.text
    caplog.clear()
    twelve().build()
    twelve(aggregation="median", **PRIVATE["dropout"]).build()
    assert "fewer updates than" not in caplog.text
    with pytest.raises(
        ConfigError, match="none of the first 20 rounds will have as many updates as Disc"
    ):
        twelve(availability=Availability(dropout=0.99)).build()
