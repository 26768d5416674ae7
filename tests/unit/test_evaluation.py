"""The curve (debiased moving average, target, best) and the bill."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom import Evaluation
from fedloom.engines.client_round import ClientCost
from fedloom.engines.scores import Score, add, per_example
from fedloom.errors import DataError
from fedloom.evaluation.settings import Curve
from fedloom.server.ledger import Ledger

values = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(values, st.floats(0, 0.99))
def test_the_average_is_the_weighted_mean_of_all_values_so_far(accuracies, ema):
    curve = Curve(ema=ema)
    for t, value in enumerate(accuracies, 1):
        got = curve.add(t, value, 0, 0.0)
        weights = [(1 - ema) * ema ** (t - s) for s in range(1, t + 1)]
        mean = sum(w * v for w, v in zip(weights, accuracies, strict=False)) / sum(weights)
        assert got == pytest.approx(mean, abs=1e-12)


@given(values, st.integers(1, 7))
def test_evaluations_apart_forget_at_the_same_pace(accuracies, apart):
    curve = Curve(ema=0.9)
    for n, value in enumerate(accuracies, 1):
        got = curve.add(n * apart, value, 0, 0.0)
    other = Curve(ema=0.9**apart)
    want = [other.add(n, value, 0, 0.0) for n, value in enumerate(accuracies, 1)][-1]
    assert got == pytest.approx(want, abs=1e-12)


@given(st.lists(st.floats(0, 1) | st.sampled_from([math.nan, math.inf]), max_size=30))
def test_values_that_are_not_finite_count_nothing(found):
    curve = Curve(ema=0.9, target=0.0)
    for t, value in enumerate(found, 1):
        got = curve.add(t, value, 0, 0.0)
        pairs = [(0.9 ** (t - s), v) for s, v in enumerate(found[:t], 1) if math.isfinite(v)]
        if math.isfinite(value):
            assert got == pytest.approx(sum(w * v for w, v in pairs) / sum(w for w, _ in pairs))
        else:
            assert math.isnan(got)
    first = next((t for t, value in enumerate(found, 1) if math.isfinite(value)), None)
    assert (curve.reached or {}).get("round") == first
    assert curve.rounds_to_target(30) == (str(first) if first else "30+" if found else "")


def test_the_target_is_reached_once_on_the_average():
    curve = Curve(ema=0.5, target=0.6)
    for t, value in enumerate([0.2, 0.9, 0.9, 0.9, 0.1], 1):
        curve.add(t, value, 100 * t, float(t))
    # averages: .2, (.1 + .45)/.75 = .667 after debiasing by 1 - .5^t
    assert curve.reached == {"round": 2, "bytes": 200, "seconds": 2.0}
    assert curve.rounds_to_target(5) == "2"
    missed = Curve(ema=0.5, target=0.99)
    assert missed.rounds_to_target(1000) == ""  # nobody has looked
    missed.add(1000, 0.2, 0, 0.0)
    assert missed.rounds_to_target(1000) == "1000+"
    assert Curve(ema=0.5).rounds_to_target(10) == ""


def test_smaller_may_be_better():
    curve = Curve(ema=0.0, target=0.5, higher_is_better=False)
    for t, value in enumerate([0.9, 0.6, 0.5, 0.7], 1):
        curve.add(t, value, 0, 0.0)
    assert curve.reached["round"] == 3
    assert curve.better(0.1, 0.2) and not curve.better(0.2, 0.2)


def test_when_to_evaluate():
    assert [t for t in range(1, 11) if Evaluation(every=3).due(t)] == [3, 6, 9]
    assert not any(Evaluation(every=0).due(t) for t in range(1, 11))
    assert all(Evaluation().due(t) for t in range(1, 11))


def test_scores_add_up():
    import torch

    first, second = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    sums = {"a": 1.0, "b": 4.0}, {"a": 2.0, "b": 2.0}
    one = Score(2, 1.0, *sums, {"a": first, "b": first}, {"a": torch.ones(2), "b": torch.ones(2)})
    sums = {"a": 2.0, "b": 5.0}, {"a": 3.0, "b": 3.0}
    two = Score(3, 0.5, *sums, {"a": second}, {"a": torch.ones(3)})
    both = add([one, two])
    assert both[:3] == (5, 1.5, {"a": 3.0, "b": 9.0})
    assert both.each.keys() == both.each_weights.keys() == {"a"}  # b has no values of all
    assert both.each["a"].tolist() == [1, 0, 1, 1, 0] and both.each_weights["a"].tolist() == [1] * 5
    assert add([]).examples == 0


def test_losses_and_metrics_per_example():
    import torch

    assert per_example(torch.tensor(2.0), 3, "it").tolist() == [2, 2, 2]
    assert per_example(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), 2, "it").tolist() == [2, 2]
    with pytest.raises(DataError, match=r"it gave shape \[4\] for a batch of 3"):
        per_example(torch.zeros(4), 3, "it")


def test_a_ledger_counts_what_was_sent_whether_it_was_used_or_not():
    ledger = Ledger()
    known = {"client": 1, "loss": 0.5, "steps": 4, "gradients": 8}
    for answered in (True, False):
        cost = ClientCost(
            **known, answered=answered, bytes_up={"delta": 40}, bytes_down={"x": 80, "c": 8}
        )
        ledger = ledger.after([cost, cost], 1.5)
    assert ledger.down == {"x": 320, "c": 32} and ledger.up == {"delta": 160}
    assert (ledger.bytes_down, ledger.bytes_up, ledger.seconds) == (352, 160, 3.0)
    assert (ledger.client_rounds, ledger.answers) == (4, 2)
    assert (ledger.steps, ledger.gradients) == (16, 32)
    assert Ledger(**ledger.as_dict()) == ledger


def test_another_target_is_looked_for_in_what_was_seen():
    curve, seen = Curve(ema=0.5, target=0.9), []
    for round, value in enumerate([0.1, 0.6, 0.7, 0.8], 1):
        mean = curve.add(round, value, 100 * round, float(round))
        seen.append((round, mean, 100 * round, float(round)))
    assert curve.reached is None
    straight = Curve(ema=0.5, target=0.5)
    for round, value in enumerate([0.1, 0.6, 0.7, 0.8], 1):
        straight.add(round, value, 100 * round, float(round))
    curve.aim(0.5, seen)
    assert curve.reached == straight.reached == {"round": 3, "bytes": 300, "seconds": 3.0}
    curve.aim(None, seen)
    assert curve.reached is None and curve.rounds_to_target(4) == ""
