"""A round with fewer updates than its aggregation needs changes nothing, and counts."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import Experiment
from fedloom.aggregation import DiscreteGaussian, IntegerRing, Krum
from fedloom.algorithm import FedAvg
from fedloom.engines.summation import root
from fedloom.errors import ConfigError
from fedloom.federation.availability import Availability
from fedloom.server.server_step import Step
from tiny import clusters, small, trace

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


def twelve(**changes: Any) -> Experiment:
    rule = DiscreteGaussian(noise=0.8, honest=4, colluding=0.0)
    given = {"aggregation": rule, "weighting": "uniform", "cohort": 5, "rounds": ROUNDS}
    return small(FedAvg(), data=clusters(sizes=TWELVE), **(given | changes))


PRIVATE: dict[str, Row] = {
    "dropout": {"availability": Availability(dropout=0.4)},
    "available": {"availability": Availability(share=0.4)},
    "poisson": {"sampling": "poisson"},
    "bernoulli": {"sampling": "bernoulli"},
    "late": {
        "availability": Availability(dropout=0.3, over_selection=1.4),
        "devices": "lognormal",
    },
}


def devices(changes: Row) -> Row:
    from fedloom.federation.devices import LogNormal

    return changes | ({"devices": LogNormal()} if "devices" in changes else {})


@pytest.mark.parametrize("case", [pytest.param(case, id=case) for case in PRIVATE])
def test_epsilon_covers_the_noise_that_there_was(case: str, stepped: list[int]) -> None:
    """Every sum has the noise of those whose updates are in it: together they cost no more than
    what is said, and some rounds had too few.
    """
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    result = twelve(**devices(PRIVATE[case])).run()
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
    "multi-krum": (
        {"aggregation": Krum(hostile=0.0, several=4)},
        lambda asked, came: came >= 4,
    ),
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
    rule = DiscreteGaussian(noise=0.8, honest=4, colluding=0.0)
    run = small(
        FedAvg(),
        data=data,
        aggregation=rule,
        weighting="uniform",
        cohort=[[0, 1, 2, 3, 4], [2, 3, 4, 5]],
        rounds=2,
        nonfinite="skip",
    )
    first, second = [*trace(run, 2)][-1].log.history
    assert first["needed"] == 4 and first["answered"] == 0 and "needed" not in second


@pytest.mark.usefixtures("accounts_at_hand")
def test_every_listed_cohort_is_checked_before_round_1() -> None:
    lists = [[0, 1, 2, 3, 4], [5, 6, 7, 8], [3]]
    with pytest.raises(ConfigError, match=r"cohort of round 3: .*, got 1"):
        twelve(cohort=lists).build()
    with pytest.raises(ConfigError, match=r"cohort of round 2: .*honest = 4.*, got 3"):
        twelve(cohort=[[0, 1, 2, 3, 4], [5, 6, 7], [3]]).build()
    with pytest.raises(ConfigError, match=r"cohort of round 2: .*krum then needs 5"):
        twelve(cohort=[[*range(9)], [1, 2, 3]], aggregation="krum").build()
    with pytest.raises(ConfigError, match=r"cohort of round 2: .*needs 3 or more clients"):
        twelve(cohort=[[1, 2, 3], [1, 2]], aggregation=IntegerRing(secure=True)).build()
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
