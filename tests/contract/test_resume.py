"""A run that was stopped and goes on is the run that never stopped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import METHODS, method
from fedloom import Checkpoint, Evaluation
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import Via
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import comparison, group_runs, load_run
from fedloom.submodels import FedRolex, HeteroFL
from tiny import clusters, results_agree, small, timeless, trace, weights

EVALUATION = Evaluation(every=2, ema=0.9, target=0.5)


def experiment(case, rounds, engine="serial", **changes):
    settings = {
        "evaluate": EVALUATION,
        "checkpoint": Checkpoint(every_rounds=2, every_seconds=None),
    } | changes
    return small(method(case), rounds=rounds, engine=engine, **settings)


def agree(one, other):
    results_agree(one, other)
    assert one.clients == other.clients
    clocks = {"seconds", "seconds_per_round", "seconds_to_target"}
    a, b = ({k: v for k, v in r.summary.items() if k not in clocks} for r in (one, other))
    assert a == b


@pytest.mark.quick
@pytest.mark.parametrize("case", METHODS)
def test_extended_is_uninterrupted(case, tmp_path):
    whole = experiment(case, 7).run()
    experiment(case, 4).run(tmp_path / "run")
    agree(experiment(case, 7).resume(tmp_path / "run"), whole)


@pytest.mark.parametrize(("every", "then"), [(0, 5), (9, 5), (4, 4)])
def test_the_only_evaluation_may_reach_the_target(every, then, tmp_path):
    made = lambda rounds, target=0.01: experiment(
        "fedavg", rounds, evaluate=Evaluation(every=every, target=target)
    )
    first = made(3).run(tmp_path / "run")
    summary = first.summary
    assert summary["rounds_to_target"] == 3 and summary["rounds_to_target_text"] == "3"
    assert summary["bytes_to_target"] == first.ledger.traffic
    assert summary["seconds_to_target"] == first.ledger.seconds and summary["last_ema"] is None
    for target in (None, 0.01):
        (row,) = comparison(group_runs([load_run(tmp_path / "run")]), target)
        assert (row["rounds_to_target"], row["reached"]) == (3, 1)
    missed = made(3, 1.0).run()
    assert missed.last < 1 and missed.summary["rounds_to_target_text"] == "3+"

    longer = made(5).resume(tmp_path / "run")  # has not kept it
    assert longer.summary["rounds_to_target"] == made(5).run().summary["rounds_to_target"] == then


@pytest.mark.parametrize("engine", ["workers:1", "workers:2"])
def test_extended_is_uninterrupted_in_workers(engine, tmp_path, engine_of):
    whole = experiment("scaffold", 5).run()
    experiment("scaffold", 2, engine_of(engine)).run(tmp_path / "run")
    end = experiment("scaffold", 5, engine_of(engine)).resume(tmp_path / "run")
    assert weights(end.model) == weights(whole.model)
    assert timeless(end.history) == timeless(whole.history)


@pytest.mark.parametrize("case", ["scaffold", "fedacg"])
def test_a_run_that_broke_off_goes_on(case, tmp_path):
    class EnoughError(Exception):
        pass

    def break_off(row):
        if row["round"] == 5:
            raise EnoughError

    whole = experiment(case, 7).run()
    with pytest.raises(EnoughError):
        experiment(case, 7, on_round=[break_off]).run(tmp_path / "run")
    agree(experiment(case, 7).resume(tmp_path / "run"), whole)


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    def break_off(row):
        raise LookupError

    whole = experiment("scaffold", 3).run()
    with pytest.raises(LookupError):
        experiment("scaffold", 3, on_round=[break_off]).run(tmp_path / "run")
    agree(experiment("scaffold", 3).resume(tmp_path / "run"), whole)


def test_a_finished_run_resumed_is_left_as_it_is(tmp_path):
    one = experiment("scaffold", 4).run(tmp_path / "run")
    agree(experiment("scaffold", 4).resume(tmp_path / "run"), one)


@pytest.mark.parametrize("bound", [1, 1000])
def test_a_memory_bound_changes_no_bit(bound, tmp_path):
    free = experiment("scaffold", 6).run(tmp_path / "free")
    held = experiment("scaffold", 6, resident_bytes=bound).run(tmp_path / "held")
    agree(held, free)
    experiment("scaffold", 4, resident_bytes=bound).run(tmp_path / "again")
    agree(experiment("scaffold", 6, resident_bytes=bound).resume(tmp_path / "again"), free)


def test_a_memory_bound_needs_a_folder():
    with pytest.raises(ConfigError, match=r"this run has no folder: give run\(out=...\)"):
        experiment("scaffold", 6, resident_bytes=7).run()


class Statistics(nn.Module):
    """Batch norms with a running mean, and with a cumulative one that counts its batches."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.count = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x):
        return self.last(self.count(torch.tanh(self.norm(self.first(x)))))


def statistics(rounds, engine="serial", **changes):
    torch.manual_seed(2)
    data = clusters(sizes=(4, 8, 12, 6, 10, 4, 8))
    changes = {"model": Statistics(), "data": data, "cohort": 5} | changes
    changes["local"] = experiment("fedavg", 1).local.__class__(epochs=2, batch=2, lr=0.05)
    return experiment("scaffold", rounds, engine, **changes)


def test_batch_norms_buffers_are_resumed_too(tmp_path):
    whole = statistics(5).run()
    statistics(2).run(tmp_path / "run")
    agree(statistics(5).resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("engine", ["workers:1", "workers:2", "workers:3"])
def test_batch_norms_buffers_have_the_same_bits_in_workers(engine, engine_of):
    one, other = statistics(4).run(), statistics(4, engine_of(engine)).run()
    assert weights(one.model) == weights(other.model)
    assert timeless(one.history) == timeless(other.history)
    assert not torch.equal(one.model.norm.running_mean, torch.zeros(6))


def test_batch_norms_buffers_are_averaged_by_weight():
    *_, after = trace(statistics(1, cohort=[[1, 2, 5]]), 1)
    loop = statistics(1).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    start = loop.net.init_buffers()
    total, size = torch.zeros_like(start), 0
    for i in (1, 2, 5):
        msg = loop.plan.algorithm.broadcast(loop.state.srv)
        ((_, _, part),) = loop.engine.map(Request.TRAIN, TrainTask(msg, start, {}, [i], 0)).nodes
        total += part.buffers
        size += loop.fed.weight(i)
    torch.testing.assert_close(after.state.buffers, total / size)
    ledger = after.state.ledger
    assert ledger.down["buffers"] == 3 * start.nbytes == ledger.up["buffers"]


HALF = Via(TopK(ratio=0.5), Residual())
SLICES = {"submodel": HeteroFL(), "capacities": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("first", "then", "part"),
    [
        ({"compress": HALF}, {"compress": Via(TopK(ratio=0.4), Residual())}, "compress"),
        ({"compress": HALF}, {"compress": Via(TopK(ratio=0.5), Forget())}, "compress"),
        ({"compress": HALF}, {}, "compress"),
        ({}, {"compress": HALF}, "compress"),
        (SLICES, SLICES | {"submodel": FedRolex()}, "submodel"),
        (SLICES, SLICES | {"capacities": [0.25, 1.0]}, "submodel"),
        (SLICES, {}, "submodel"),
    ],
)
def test_another_view_or_codec_is_another_run(first, then, part, tmp_path):
    experiment("fedavg", 2, **first).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=f"another configuration: {part} differ"):
        experiment("fedavg", 3, **then).resume(tmp_path / "run")
    assert len(experiment("fedavg", 3, **first).resume(tmp_path / "run").history) == 3
