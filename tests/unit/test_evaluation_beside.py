"""Evaluation beside the next round: bits, rows and files of evaluation after each round."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from fedloom import Checkpoint, Evaluation, FedAvg
from fedloom.algorithms import Scaffold
from fedloom.checks.compare import unequal
from fedloom.engines import Workers
from fedloom.engines.workers import Beside
from fedloom.server.checkpoints import Checkpoints
from tiny import clusters, small, timeless

DATA = clusters(sizes=[8] * 6)
draw = np.random.default_rng(0)  # 4 batches of an evaluation
DATA = dataclasses.replace(
    DATA,
    test_inputs=torch.tensor(draw.normal(size=(1700, 5)), dtype=torch.float32),
    test_targets=torch.tensor(draw.integers(3, size=1700)),
)


def alone(method=FedAvg, count=5, **changes):
    return small(method(), data=DATA, rounds=count, cohort=3, **changes).run()


@pytest.fixture
def used(monkeypatch):
    """The evaluations that scores() found done, and those that it did."""
    counts = {"beside": 0, "alone": 0}
    of = Beside.of

    def counted(self, *given):
        found = of(self, *given)
        counts["alone" if found is None else "beside"] += 1
        return found

    monkeypatch.setattr(Beside, "of", counted)
    return counts


@pytest.mark.parametrize("method", [FedAvg, Scaffold])
@pytest.mark.parametrize("chunk", ["", "+vectorised:2"])
def test_rounds_are_evaluated_beside_the_next_one_with_the_same_rows(
    method, chunk, engine_of, used, tmp_path
):
    other = f"vectorised{chunk[11:]}" if chunk else "serial"
    end = alone(method, engine=engine_of(f"workers:2{chunk}"))
    want = alone(method, engine=other)
    assert used["beside"] == 4  # and the last one alone: no round follows
    assert timeless(end.history) == timeless(want.history)
    assert not unequal(end.state, want.state)


def test_rows_are_written_in_order_before_a_checkpoint_that_counts_them(
    engine_of, used, tmp_path, monkeypatch
):
    file = tmp_path / "run" / "rounds.jsonl"
    saved, save = [], Checkpoints.save

    def watched(self, loop, *given, **more):
        written = [json.loads(line)["round"] for line in file.read_text().splitlines()]
        saved.append((loop.round, written))
        save(self, loop, *given, **more)

    monkeypatch.setattr(Checkpoints, "save", watched)
    keep = Checkpoint(every_rounds=2, every_seconds=None)
    parts = {"engine": engine_of("workers:2"), "checkpoint": keep, "data": DATA, "cohort": 3}
    small(FedAvg(), rounds=5, **parts).run(tmp_path / "run")
    assert saved == [(n, list(range(1, n + 1))) for n in (2, 4, 5)]
    assert used["beside"] == 2  # rounds 1 and 3


def test_who_needs_a_number_is_told_before_the_next_round(engine_of, used):
    seen = []
    own = engine_of("workers:2")
    train = own.map
    own.map = lambda what, task: (seen.append(f"trains {task.round}"), train(what, task))[1]
    end = alone(engine=own, count=3, on_round=lambda row: seen.append(row["round"]))
    assert seen == ["trains 0", 1, "trains 1", 2, "trains 2", 3]
    assert used == {"beside": 0, "alone": 0}
    assert timeless(end.history) == timeless(alone(count=3).history)


def test_a_target_is_reached_after_the_same_round_and_bytes(engine_of, used):
    found = []
    for engine in (engine_of("workers:2"), "serial"):
        made = small(FedAvg(), data=DATA, engine=engine, evaluate=Evaluation(target=0.2)).build()
        made.engine.open(made.plan, made.fed, made.net)
        made.begin()
        made.run(5)
        made.engine.close()
        found.append({k: v for k, v in made.curve.reached.items() if k != "seconds"})
    assert used["beside"] == 4 and found[0] == found[1]


@pytest.mark.parametrize("when", ["training", "evaluation"])
def test_an_interrupt_evaluates_the_last_round_and_the_run_goes_on(
    when, engine_of, used, tmp_path, monkeypatch
):
    own = engine_of("workers:2")
    name = "_each" if when == "training" else "_waited"
    real, count = getattr(own, name), []

    def stops(*given):
        count.append(own._beside)
        if len([b for b in count if b is not None]) == (1 if when == "training" else 4):
            raise KeyboardInterrupt
        return real(*given)

    setattr(own, name, stops)
    parts = {"data": DATA, "cohort": 3, "rounds": 5}
    with pytest.raises(KeyboardInterrupt):
        small(FedAvg(), engine=own, **parts).run(tmp_path / "run")
    setattr(own, name, real)
    end = small(FedAvg(), engine=engine_of("workers:2"), **parts).resume(tmp_path / "run")
    want = alone()
    assert timeless(end.history) == timeless(want.history)
    assert not unequal(end.state, want.state)


def test_a_model_that_changed_is_evaluated_anew(engine_of, used):
    loop = small(FedAvg(), data=DATA, engine=engine_of("workers:2")).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    on = loop.fed.data.test_inputs, loop.fed.data.test_targets
    assert loop.engine.expect(loop.model(), loop.buffers, *on)
    loop.run(1)
    want = loop.engine.scores(loop.model(), loop.buffers, *on)
    loop.engine.close()
    assert used["beside"] == 0
    plain = small(FedAvg(), data=DATA).build()
    plain.engine.open(plain.plan, plain.fed, plain.net)
    assert [s.loss for s in plain.engine.scores(loop.model(), loop.buffers, *on)] == [
        s.loss for s in want
    ]


def test_one_process_and_one_worker_evaluate_after_the_round():
    assert not hasattr(small(FedAvg()).build().engine, "expect")
    one = Workers(1)
    one._fed = small(FedAvg()).build().fed
    assert not one.expect(*[None] * 4)
