"""A user's function that fails, or gives something odd, loses no finished round."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedloom import Checkpoint, Evaluation, FedAvg, Local
from fedloom.errors import ConfigError
from tiny import results_agree, small


def fails_at(round):
    """A function of rows that fails once."""
    left = [round]

    def call(row):
        if row["round"] in left:
            left.clear()
            raise KeyError("plot")

    return call


class Failing:
    """A measure, or a metric, that fails at the given call; `left` is emptied by the failure."""

    every = 1
    higher_is_better = True

    def __init__(self, call):
        self.left, self.calls = [call], 0

    def __call__(self, *given):
        self.calls += 1
        if self.calls in self.left:
            self.left.clear()
            raise ValueError("not today")
        return {"spread": 1.0} if len(given) == 1 else (given[0].argmax(1) == given[1]).double()


def never_by_itself(**given):
    return small(FedAvg(), rounds=7, checkpoint=Checkpoint(every_seconds=None), **given)


def with_callback(kind, fails, **given):
    fault = 5 if fails else 99
    given |= {
        "on_round": {"on_round": fails_at(fault)},
        "measures": {"measures": [Failing(fault)]},
        "metrics": {"metrics": {"right": Failing(fault)}},
    }[kind]
    return never_by_itself(evaluate=Evaluation(every=1), **given)


@pytest.mark.parametrize("kind", ["on_round", "measures", "metrics"])
def test_a_failing_function_loses_no_round(kind, tmp_path):
    whole = with_callback(kind, fails=False).run(tmp_path / "whole")
    with pytest.raises(Exception, match=r"plot|not today"):
        with_callback(kind, fails=True).run(tmp_path / "run")
    begun = len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir()) >= begun >= 2
    seen = []
    on_evaluation = lambda row: seen.append(row["round"])
    found = with_callback(kind, fails=False, on_evaluation=on_evaluation).resume(tmp_path / "run")
    assert seen == [*range(begun + 1, 8)], "no row is written twice, none is left out"
    results_agree(found, whole)


def test_the_row_that_failed_is_made_up_for_in_a_run_that_fails_twice(tmp_path):
    whole = with_callback("measures", fails=False).run(tmp_path / "whole")
    with pytest.raises(ValueError, match="not today"):
        with_callback("measures", fails=True).run(tmp_path / "run")
    with pytest.raises(ValueError, match="not today"):
        never_by_itself(measures=[Failing(1)]).resume(tmp_path / "run")
    results_agree(with_callback("measures", fails=False).resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("made", [np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_a_schedule_and_a_measure_may_give_numbers_of_numpy_and_torch(made, tmp_path):
    measure = Failing(99)
    measure.__class__ = type("Made", (Failing,), {"__call__": lambda self, loop: {"norm": made}})
    local = Local(steps=2, batch=4, lr=0.1, schedule=lambda round, step: made)
    small(FedAvg(), local=local, measures=[measure]).run(tmp_path / "run")
    row = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert row["lr"] == 0.05 and row["norm"] == 0.5


@pytest.mark.parametrize("made", [-1.0, float("nan"), float("inf"), "0.5", None, np.ones(2)])
def test_a_schedule_gives_a_number_from_0(made):
    local = Local(steps=2, batch=4, lr=0.1, schedule=lambda round, step: made)
    with pytest.raises(ConfigError, match=r"number from 0, and gives .* in round \d"):
        small(FedAvg(), local=local).run()


class Wrong:
    every = 1

    def __init__(self, made):
        self.made = made

    def __call__(self, loop):
        return self.made


@pytest.mark.parametrize("made", [None, {"norm": torch.ones(3)}, {"norm": object()}, {3: 1.0}, 1.0])
def test_what_a_measure_gives_is_numbers_by_name(made, tmp_path):
    with pytest.raises(ConfigError, match=r"measures.*(number|names)"):
        small(FedAvg(), measures=[Wrong(made)]).run(tmp_path / "run")


@pytest.mark.parametrize("every", [0, -1, True])
def test_a_measure_is_due_every_round_or_less_often(every):
    measure = Wrong({})
    measure.every = every
    with pytest.raises(ConfigError, match="every"):
        small(FedAvg(), measures=[measure])
