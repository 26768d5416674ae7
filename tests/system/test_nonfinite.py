"""What is not finite, in answers, sums and the server's state, is named, and counts nothing."""

import logging
import math

import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import Scaffold
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.arithmetic import average, total
from fedloom.core.vector import leaves, rec
from fedloom.data import from_clients
from fedloom.errors import ClientError, DataError
from fedloom.objectives import SquaredError
from fedloom.report.curve_data import mean, sd
from fedloom.study.sweep import spread
from fedloom.wrappers import ServerAdam, ServerOpt
from support.own_methods import Spike
from tiny import clusters, small, trace

TWO = ["serial", "workers:2"]
THREE = [*TWO, "vectorised:2"]
CODED = {"compress": FieldCodec(TopK(ratio=0.1), Residual())}


# ------------------------------------------------------------------------------- a client's answer
def shifted():
    """Client 4 has inputs that no other has, and a weight that no other has: 11."""
    pairs = [(p[0].numpy(), p[1].numpy()) for p in (clusters().client(i) for i in range(7))]
    pairs[4] = (pairs[4][0] + 100, pairs[4][1])
    return from_clients(pairs, test=(clusters().test_inputs, clusters().test_targets))


class Sick(Scaffold):
    """Client 4's direction is not a number from round 2 on."""

    def direction(self, x, loc, msg, mem, grad, job):
        d, loc = super().direction(x, loc, msg, mem, grad, job)
        ill = torch.as_tensor((job.weight == 11.0) & (job.round >= 1))
        return torch.where(ill, float("nan"), d), loc


def sick(cohort=((0, 4, 5), (1, 4, 6), (4,), (2, 3, 4)), **changes):
    return small(Sick(), data=shifted(), cohort=[list(c) for c in cohort], **changes)


@pytest.mark.parametrize("engine", TWO)
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
        up = {"delta": x - msg.x, "weight": job.weight, "extra": x.clone()}
        where, value = self.bad
        if job.weight == 11.0 and job.round >= 1:
            if where == "weight":
                up["weight"] = value
            else:
                up[where][1] = value
        return rec(**up), mem

    def unweighted(self, up, job):
        return rec(extra=up.extra)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["delta", "extra", "weight"])
def test_whose_answer_was_not_finite_is_found_from_the_sums(where, value):
    given = {"data": shifted(), "cohort": [[0, 4, 5], [1, 4, 6]], "rounds": 2}
    with pytest.raises(ClientError, match="client 4, round 2: its update is not finite"):
        small(Late(where, value), **given).run()


@pytest.mark.parametrize("engine", TWO)
def test_a_skipped_client_keeps_its_memory_and_is_not_in_the_means(engine, engine_of):
    loops = trace(sick(nonfinite="skip", engine=engine_of(engine)), 4)
    states, end = [], None
    for end in loops:
        states.append(end.state.srv)
    *_, want = trace(sick(((0, 4, 5), (1, 6), (), (2, 3)), nonfinite="skip"), 4)
    assert all(map(torch.equal, leaves(end.state.srv), leaves(want.state.srv)))
    assert torch.equal(end.memory.get([4])[4].alg.c, want.memory.get([4])[4].alg.c)
    assert [row["answered"] for row in end.log.history] == [3, 2, 0, 2]
    assert [row["cohort"] for row in end.log.history] == [3, 3, 1, 3]
    assert end.state.ledger.answers == 7 and end.state.ledger.client_rounds == 10
    # a round in which nobody answers leaves the model
    assert all(map(torch.equal, leaves(states[2]), leaves(states[3])))
    assert not torch.equal(states[3].x, states[4].x)


class Huge(FedAvg):
    """Answers near the largest float32: a finite one and a finite residual have no finite sum."""

    def finish(self, x, loc, msg, mem, job):
        huge = torch.full_like(x, 1e38) * torch.where(torch.as_tensor(job.weight == 11.0), 3.0, 0.0)
        up, mem = super().finish(x, loc, msg, mem, job)
        return up._replace(delta=up.delta + huge), mem

    def server_step(self, srv, up, rnd):
        return srv


def test_finite_answers_without_a_finite_sum_are_no_clients_fault():
    result = small(Huge(), data=shifted(), cohort=[[2, 4]], rounds=1).run()
    assert result.history[0]["answered"] == 2


@pytest.mark.parametrize("engine", THREE)
def test_what_a_codec_cannot_send_is_named_or_skipped(engine, engine_of):
    parts = {"data": shifted(), "cohort": [[2, 4], [2, 4]], "rounds": 2, **CODED}
    with pytest.raises(ClientError, match=r"Huge: client 4, round 2: its codec got \d+ of"):
        small(Huge(), engine=engine_of(engine), **parts).run()
    result = small(Huge(), engine=engine_of(engine), nonfinite="skip", **parts).run()
    assert [row["answered"] for row in result.history] == [2, 1]


def test_losses_that_cannot_be_are_named():
    with pytest.raises(DataError, match="squared error needs floating targets"):
        small(FedAvg(), objective=SquaredError()).build()
    with pytest.raises(ClientError, match=r"client \d, round 1.*loss was (nan|inf)"):
        small(FedAvg(), objective=lambda o, t: o.mean() / 0).run()


# ------------------------------------------------------------------------------ the server's state
def own(**parts):
    """FedAvg with some parts of a stranger's."""
    return type("Own", (FedAvg,), parts)()


COHORTS = [[0, 4, 5], [1, 4, 6], [0, 2, 3, 4, 6]]


@pytest.mark.parametrize("engine", THREE)
def test_a_round_whose_sum_is_not_finite_counts_no_update(engine, engine_of, caplog):
    """Server and client states stay as they were, and the next round goes on from there."""
    run = small(Spike(), cohort=COHORTS, rounds=3, engine=engine_of(engine), nonfinite="skip")
    loops = [(loop.state.srv, loop.memory.get(range(7))) for loop in trace(run, 3)]
    servers, memories = zip(*loops, strict=True)
    for before, after in [(0, 1), (2, 3)]:  # the rounds of the attack
        assert all(map(torch.equal, leaves(servers[before]), leaves(servers[after])))
        assert memories[before].keys() == memories[after].keys()
    assert not torch.equal(servers[1].x, servers[2].x)
    history = run.loop.log.history
    assert [row.get("skipped") for row in history] == [[0, 4, 5], None, [0, 2, 3, 4, 6]]
    assert [row["answered"] for row in history] == [0, 3, 0]
    assert "round 3: the server's 'x' is not finite after server_step()" in caplog.text


def test_a_server_that_is_not_finite_stops_the_run_and_what_was_learnt_stays(tmp_path):
    class Later(Spike):
        def finish(self, x, loc, msg, mem, job):
            return super().finish(x, loc, msg, mem, job._replace(round=job.round + 1))

    with pytest.raises(ClientError, match=r"round 2: the server's 'x' is not finite") as caught:
        small(Later(), cohort=COHORTS, rounds=3).run(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000001"]


def test_a_second_moment_that_overflows_is_caught_though_the_mean_is_finite():
    """1e21 has a finite float32, its square has none."""

    class Square(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            up, mem = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta + 1e21 * (job.weight == 11.0)), mem

    adam = ServerOpt(inner=Square(), opt=ServerAdam())
    with pytest.raises(ClientError, match=r"round 1: the server's '.*v' is not finite"):
        small(adam, cohort=COHORTS, rounds=3).run()


def test_the_residual_of_a_round_that_does_not_count_stays_as_it_was():
    """Error feedback would send the huge update's rest in the next round."""
    run = small(Spike(), cohort=[[1, 4], [0, 4], [1, 4]], rounds=3, nonfinite="skip", **CODED)
    states = [loop.memory.get([4]).get(4) for loop in trace(run, 3)]
    assert states[1] is None
    assert torch.equal(states[2].link.delta.e, states[3].link.delta.e)


def test_a_server_that_spoils_itself_loses_one_round(caplog):
    step = lambda self, srv, up, rnd: rec(x=(srv.x + up.delta) / (rnd.round != 1))
    broken = small(own(server_step=step), nonfinite="skip")
    models = [loop.state.srv.x for loop in trace(broken, 4)]
    assert torch.equal(models[1], models[2]) and not torch.equal(models[2], models[3])
    assert "round 2: the server's 'x' is not finite" in caplog.text


def test_a_state_that_was_not_finite_before_is_the_methods_own_affair():
    best = own(server_init=lambda self, x, up: rec(x=x, best=math.inf))
    assert len(small(best).run().history) == 4


def test_the_exchange_before_round_1_has_a_finite_mean():
    probe = lambda self, x, grad: rec(c=torch.full_like(x, 3e38) + 0 * grad(x))
    probing = own(probes=True, probe=probe, server_init=lambda self, x, up: rec(x=x))
    with pytest.raises(ClientError, match="sent before round 1 is finite, and its sum is not"):
        small(probing).run()


# ------------------------------------------------------------------------------- sums of doubles
def test_sums_of_doubles_that_no_double_holds():
    assert total([1e308, 1e308]) == math.inf and average([1e308, 1e308]) == 1e308
    assert math.isnan(total([math.inf, -math.inf])) and math.isnan(average([math.inf, -math.inf]))
    assert total([0.1] * 10) == 1.0
    for values in ([1e200, -1e200], [math.inf, 1.0], [1e308, 1e308, -1e308]):  # of seeds
        assert None not in (mean(values), sd(values), spread(values))


def test_losses_whose_sum_overflows_are_a_line_of_the_log():
    """A loss of 1.5e308 at every step of every client: the mean is that, their sum is nothing."""
    loss = lambda outputs, targets: outputs.sum() * 0 + 1.5e308
    given = {"objective": loss, "metrics": {}, "rounds": 1, "nonfinite": "skip"}
    result = small(FedAvg(), torch.float64, **given).run()
    assert result.history[0]["train_loss"] == pytest.approx(1.5e308)


# --------------------------------------------------------------------------------- it is said once
def diverging():
    """Squared error at a rate that is a little too high: ever larger."""
    local, model = Local(epochs=1, batch=4, lr=1.0), torch.nn.Linear(5, 3).double()
    loss = lambda o, t: (o - 5.0 * t[:, None]).square().mean(1)
    return small(FedAvg(), torch.float64, objective=loss, model=model, local=local, rounds=40)


def test_what_is_wrong_for_forty_rounds_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, "fedloom"):
        diverging().run()
    (said,) = [line for line in caplog.messages if "diverges" in line]
    assert "lower local.lr" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedloom"):
        small(FedAvg(), rounds=40).run()
    assert not caplog.messages, "a run that learns"
