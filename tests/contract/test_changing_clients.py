"""Runs over a set of clients that changes: what is remembered, of whom."""

from __future__ import annotations

import pytest
import torch

from fedloom import Checkpoint, Churn
from fedloom.algorithms.registry import make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import FieldCodec
from fedloom.errors import CheckpointError, CompositionError
from tiny import results_agree, small, trace

CHURN = {"active": 4, "every": 2, "replace": 0.5}


def experiment(rounds=6, algorithm="scaffold", engine="serial", forget=False, **changes):
    settings = {
        "cohort": 3,
        "churn": Churn(**CHURN, forget=forget),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
    }
    return small(make_algorithm(algorithm), rounds=rounds, engine=engine, **(settings | changes))


@pytest.mark.parametrize("algorithm", ["feddyn", "fedsmoo", "ifca", "afl", "scaffnew", "fafed"])
def test_methods_with_sums_over_all_clients_run(algorithm):
    result = experiment(5, algorithm).run()
    assert len(result.history) == 5
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


@pytest.mark.parametrize("forget", [False, True])
def test_memories_are_those_of_who_took_part_and_is_remembered(forget):
    seen: set[int] = set()
    for t, loop in enumerate(trace(experiment(8, forget=forget), 8)):
        if t:
            seen |= set(loop.cohorts.of(t - 1))
            if forget and t % 2 == 0:
                seen -= set(loop.cohorts.present(t - 1)) - set(loop.cohorts.present(t))
        assert set(loop.memory.get(range(7))) == seen
        assert len(loop.memory) == len(seen)
    assert len(seen) > 3 or forget


def test_who_comes_back_has_what_it_had_unless_it_was_forgotten():
    """Client 0 leaves and returns: the control variate that its round starts from."""
    found = {}
    for forget in (False, True):
        exp = experiment(40, forget=forget, cohort=4)
        there = [set(exp._cohorts.present(t)) for t in range(40)]
        back = next(
            t
            for t in range(2, 40)
            if 0 in there[t] and 0 not in there[t - 1] and any(0 in there[s] for s in range(t))
        )
        loop = list(trace(exp, back))[-1]
        found[forget] = loop.memory.get([0])
    assert found[True] == {}  # so client_init is its start again
    assert found[False][0].alg.c.abs().max() > 0


def test_a_run_that_broke_off_in_a_change_goes_on(tmp_path):
    def break_off(row):
        if row["round"] == 4:
            raise LookupError

    whole = experiment(7, forget=True).run()
    with pytest.raises(LookupError):
        experiment(7, forget=True, on_round=[break_off]).run(tmp_path / "run")
    results_agree(experiment(7, forget=True).resume(tmp_path / "run"), whole)


def test_forgetting_frees_the_bytes_that_are_bounded(tmp_path):
    free = experiment(8, forget=True).run(tmp_path / "free")
    results_agree(experiment(8, forget=True, resident_bytes=1).run(tmp_path / "bound"), free)


def test_another_churn_is_another_run(tmp_path):
    experiment(2).run(tmp_path / "run")
    for other in (None, Churn(active=5, every=2)):
        with pytest.raises(CheckpointError, match="cohort"):
            experiment(3, churn=other).resume(tmp_path / "run")


def test_only_who_is_there_is_asked_before_round_one():
    loop = next(trace(experiment(1, "fafed"), 0))
    assert loop.plan.algorithm.probes
    assert loop.state.ledger.client_rounds == 4  # of seven clients


def test_ef21_needs_everybodys_memory():
    via = FieldCodec(TopK(ratio=0.5), EF21())
    with pytest.raises(CompositionError, match=r"EF21 and churn\.forget"):
        experiment(1, "fedavg", forget=True, compress=via).run()
    experiment(3, "fedavg", compress=via).run()
    experiment(3, "fedavg", forget=True, compress=FieldCodec(TopK(ratio=0.5), Residual())).run()
