"""Answers that are not numbers, mistakes of authors, and clients with next to nothing."""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import Scaffold
from fedloom.data import from_clients
from fedloom.errors import ClientError, DataError
from tiny import clusters, small, trace


def sick(**changes):
    """Client 4's loss is not a number from round 2 on; only its inputs go above 50."""
    pairs = [(p[0].numpy(), p[1].numpy()) for p in (clusters().client(i) for i in range(7))]
    pairs[4] = (pairs[4][0] + 100, pairs[4][1])
    data = from_clients(pairs, test=(clusters().test_inputs, clusters().test_targets))
    return small(Sick(), data=data, cohort=[[0, 4, 5], [1, 4, 6], [4], [2, 3, 4]], **changes)


class Sick(Scaffold):
    def direction(self, x, loc, msg, mem, grad, job):
        d, loc = super().direction(x, loc, msg, mem, grad, job)
        ill = torch.as_tensor((job.weight == 11.0) & (job.round >= 1))  # client 4 has 11 samples
        return torch.where(ill, float("nan"), d), loc


@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_an_answer_that_is_not_finite_stops_the_run_and_is_named(engine, engine_of):
    with pytest.raises(ClientError, match=r"client 4, round 2.*not finite|client 4, round 2.*nan"):
        sick(engine=engine_of(engine)).run()


@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_a_skipped_client_keeps_its_memory_and_is_not_in_the_means(engine, engine_of):
    told = [*trace(sick(nonfinite="skip", engine=engine_of(engine)), 4)]
    without = small(
        Sick(), data=sick().data, cohort=[[0, 4, 5], [1, 6], [], [2, 3]], nonfinite="skip"
    )
    want = [*trace(without, 4)]
    assert torch.equal(told[-1].srv.x, want[-1].srv.x)
    assert torch.equal(told[-1].srv.c, want[-1].srv.c)
    assert torch.equal(told[-1].memory.get([4])[4].alg.c, want[-1].memory.get([4])[4].alg.c)
    assert [row["answered"] for row in told[-1].history] == [3, 2, 0, 2]
    assert [row["cohort"] for row in told[-1].history] == [3, 3, 1, 3]
    assert told[-1].ledger.answers == 7 and told[-1].ledger.client_rounds == 10


def test_a_round_in_which_nobody_answers_leaves_the_model():
    models = [(loop.srv.x, loop.srv.c) for loop in trace(sick(nonfinite="skip"), 4)]
    assert torch.equal(models[2][0], models[3][0]) and torch.equal(models[2][1], models[3][1])
    assert not torch.equal(models[3][0], models[4][0])


def test_a_loss_that_is_not_finite_is_named():
    with pytest.raises(ClientError, match=r"client \d, round 1.*loss was (nan|inf)"):
        small(FedAvg(), loss=lambda o, t: o.mean() / 0).run()


def test_a_model_that_diverges_stops_the_run():
    with pytest.raises(ClientError, match=r"FedAvg: client \d, round \d+.*local.lr"):
        small(FedAvg(), local=Local(epochs=2, batch=4, lr=1e30), rounds=50).run()


@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_an_authors_mistake_is_named_with_client_and_round(engine, engine_of):
    class Wrong(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            return grad(x)[:3], loc

    with pytest.raises(ClientError, match=r"Wrong: client \d, round 1"):
        small(Wrong(), engine=engine_of(engine)).run()


def test_clients_with_one_sample():
    data = clusters(sizes=(1, 1, 1))
    result = small(Scaffold(option=1), data=data, cohort=1.0).run()
    assert result.ledger.answers == 12 and result.ledger.steps == 24


def test_metrics_of_the_wrong_length_are_refused():
    with pytest.raises(DataError, match=r"metric 'odd'.*batch of 40"):
        small(FedAvg(), metrics={"odd": lambda o, t: torch.ones(3)}).run()
