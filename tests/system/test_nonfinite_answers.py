"""Answers that are not numbers, mistakes of authors, and clients with next to nothing."""

from __future__ import annotations

import math

import pytest
import torch

from fedloom import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import ClientError, DataError
from fedloom.objectives import SquaredError
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


class Late(FedAvg):
    """What client 4 sends is not finite, in one of three places, though its losses are."""

    def __init__(self, where, value):
        super().__init__()
        object.__setattr__(self, "bad", (where, value))

    def server_init(self, x, up):
        return rec(x=x, extra=torch.zeros_like(x))

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, extra=up.extra)

    def finish(self, x, loc, msg, mem, job):
        delta, extra, weight = x - msg.x, x.clone(), job.weight
        if job.weight == 11.0 and job.round >= 1:  # client 4 has 11 samples
            delta[2] = self.bad[1] if self.bad[0] == "delta" else delta[2]
            extra[1] = self.bad[1] if self.bad[0] == "extra" else extra[1]
            weight = self.bad[1] if self.bad[0] == "weight" else weight
        return rec(delta=delta, weight=weight, extra=extra), mem

    def unweighted(self, up, job):
        return rec(extra=up.extra)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["delta", "extra", "weight"])
def test_whose_answer_was_not_finite_is_found_from_the_sums(where, value):
    """Answers are looked through when they are summed."""
    own = sick().data
    with pytest.raises(ClientError, match="client 4, round 2: its update is not finite"):
        small(Late(where, value), data=own, cohort=[[0, 4, 5], [1, 4, 6]], rounds=2).run()


def test_finite_answers_without_a_finite_sum_are_no_clients_fault():
    """As before: the model says so itself. Nobody is blamed for it."""
    found = [*trace(small(Huge(), data=sick().data, cohort=[[2, 4]], rounds=1), 1)]
    assert found[-1].log.history[0]["answered"] == 2


@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_a_skipped_client_keeps_its_memory_and_is_not_in_the_means(engine, engine_of):
    told = [*trace(sick(nonfinite="skip", engine=engine_of(engine)), 4)]
    without = small(
        Sick(), data=sick().data, cohort=[[0, 4, 5], [1, 6], [], [2, 3]], nonfinite="skip"
    )
    want = [*trace(without, 4)]
    assert torch.equal(told[-1].state.srv.x, want[-1].state.srv.x)
    assert torch.equal(told[-1].state.srv.c, want[-1].state.srv.c)
    assert torch.equal(told[-1].memory.get([4])[4].alg.c, want[-1].memory.get([4])[4].alg.c)
    assert [row["answered"] for row in told[-1].log.history] == [3, 2, 0, 2]
    assert [row["cohort"] for row in told[-1].log.history] == [3, 3, 1, 3]
    assert told[-1].state.ledger.answers == 7 and told[-1].state.ledger.client_rounds == 10


def test_a_round_in_which_nobody_answers_leaves_the_model():
    models = [(loop.state.srv.x, loop.state.srv.c) for loop in trace(sick(nonfinite="skip"), 4)]
    assert torch.equal(models[2][0], models[3][0]) and torch.equal(models[2][1], models[3][1])
    assert not torch.equal(models[3][0], models[4][0])


class Huge(FedAvg):
    """Answers near the largest float32: a finite one and a finite residual have no finite sum."""

    def finish(self, x, loc, msg, mem, job):
        huge = torch.full_like(x, 1e38) * torch.where(torch.as_tensor(job.weight == 11.0), 3.0, 0.0)
        up, mem = super().finish(x, loc, msg, mem, job)
        return up._replace(delta=up.delta + huge), mem

    def server_step(self, srv, up, rnd):
        return srv


@pytest.mark.parametrize("engine", ["serial", "workers:2", "vectorised:2"])
def test_what_a_codec_cannot_send_is_named_or_skipped(engine, engine_of):
    link = FieldCodec(TopK(ratio=0.1), Residual())
    parts = {"compress": link, "data": sick().data, "cohort": [[2, 4], [2, 4]], "rounds": 2}
    with pytest.raises(ClientError, match=r"Huge: client 4, round 2: its codec got \d+ of"):
        small(Huge(), engine=engine_of(engine), **parts).run()
    result = small(Huge(), engine=engine_of(engine), nonfinite="skip", **parts).run()
    assert [row["answered"] for row in result.history] == [2, 1]


def test_squared_error_of_labels_is_refused_at_once():
    with pytest.raises(DataError, match="squared error needs floating targets"):
        small(FedAvg(), objective=SquaredError()).build()


def test_a_loss_that_is_not_finite_is_named():
    with pytest.raises(ClientError, match=r"client \d, round 1.*loss was (nan|inf)"):
        small(FedAvg(), objective=lambda o, t: o.mean() / 0).run()


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
