"""What a finite answer may do to the server: the new state is looked at before it replaces the
old.
"""

from __future__ import annotations

import logging
import math

import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.arithmetic import average, total
from fedloom.core.vector import leaves, rec
from fedloom.errors import ClientError
from fedloom.wrappers import ServerAdam, ServerOpt
from support.own_methods import Spike
from tiny import small, trace

ENGINES = ["serial", "workers:2", "vectorised:2"]
COHORTS = [[0, 4, 5], [1, 4, 6], [0, 2, 3, 4, 6]]


def attacked(algorithm, engine, **changes):
    return small(algorithm, cohort=COHORTS, rounds=3, engine=engine, **changes)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_whose_sum_is_not_finite_counts_no_update(engine, engine_of, caplog):
    """Server and client states stay as they were, and the next round goes on from there."""
    loops = [
        (loop.state.srv, loop.memory.get(range(7)), [*loop.log.history])
        for loop in trace(attacked(Spike(), engine_of(engine), nonfinite="skip"), 3)
    ]
    servers, memories, (*_, history) = zip(*loops, strict=True)
    for before, after in [(0, 1), (2, 3)]:  # the rounds of the attack
        assert all(map(torch.equal, leaves(servers[before]), leaves(servers[after])))
        assert memories[before].keys() == memories[after].keys()
    assert not torch.equal(servers[1].x, servers[2].x)
    assert [row.get("skipped") for row in history] == [[0, 4, 5], None, [0, 2, 3, 4, 6]]
    assert [row["answered"] for row in history] == [0, 3, 0]
    assert "round 3: the server's 'x' is not finite after server_step()" in caplog.text


def test_a_server_that_is_not_finite_stops_the_run_and_what_was_learnt_stays(tmp_path):
    class Later(Spike):
        def finish(self, x, loc, msg, mem, job):
            return super().finish(x, loc, msg, mem, job._replace(round=job.round + 1))

    run = attacked(Later(), "serial")
    with pytest.raises(ClientError, match=r"round 2: the server's 'x' is not finite") as caught:
        run.run(tmp_path / "run")
    assert "\n" not in str(caught.value)
    saved = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["00000001"]


def test_a_second_moment_that_overflows_is_caught_though_the_mean_is_finite():
    """1e20 has a finite float32, its square has none."""

    class Square(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            up, mem = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta + 1e21 * (job.weight == 11.0)), mem

    adam = ServerOpt(inner=Square(), opt=ServerAdam())
    with pytest.raises(ClientError, match=r"round 1: the server's '.*v' is not finite"):
        small(adam, cohort=COHORTS, rounds=3).run()


def test_the_residual_of_a_round_that_does_not_count_stays_as_it_was():
    """Error feedback would send the huge update's rest in the next round."""
    link = FieldCodec(TopK(ratio=0.1), Residual())
    run = small(Spike(), cohort=[[1, 4], [0, 4], [1, 4]], rounds=3, nonfinite="skip", compress=link)
    loops = [loop.memory.get([4]).get(4) for loop in trace(run, 3)]
    assert loops[1] is None
    assert torch.equal(loops[2].link.delta.e, loops[3].link.delta.e)


class Broken(FedAvg):
    """Its server divides by zero in round 2, whoever answers."""

    def server_step(self, srv, up, rnd):
        x = srv.x + up.delta
        return rec(x=x / 0 if rnd.round == 1 else x)


def test_a_server_that_spoils_itself_loses_one_round(caplog):
    loops = [
        (loop.state.srv.x, loop.memory) for loop in trace(small(Broken(), nonfinite="skip"), 4)
    ]
    assert torch.equal(loops[1][0], loops[2][0]) and not torch.equal(loops[2][0], loops[3][0])
    assert "round 2: the server's 'x' is not finite" in caplog.text


def test_a_state_that_was_not_finite_before_is_the_methods_own_affair():
    class Best(FedAvg):
        def server_init(self, x, up):
            return rec(x=x, best=math.inf)

    assert len(small(Best()).run().history) == 4


# ------------------------------------------------------------------------------- sums of doubles
def test_sums_of_doubles_that_no_double_holds():
    assert total([1e308, 1e308]) == math.inf
    assert math.isnan(total([math.inf, -math.inf]))
    assert average([1e308, 1e308]) == 1e308
    assert math.isnan(average([math.inf, -math.inf]))
    assert total([0.1] * 10) == 1.0


def test_losses_whose_sum_overflows_are_a_line_of_the_log():
    """A loss of 1.5e308 at every step of every client: the mean is that, their sum is nothing."""
    run = small(
        FedAvg(),
        torch.float64,
        objective=lambda outputs, targets: outputs.sum() * 0 + 1.5e308,
        metrics={},
        rounds=1,
        nonfinite="skip",
    )
    result = run.run()
    assert result.history[0]["train_loss"] == pytest.approx(1.5e308)


# --------------------------------------------------------------------------------- it is said once
def test_a_run_that_diverges_says_so_once(caplog):
    """Squared error at a rate that is a little too high: forty rounds, ever larger, one line."""
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = small(
            FedAvg(),
            torch.float64,
            objective=lambda o, t: (o - 5.0 * t[:, None]).square().mean(1),
            model=torch.nn.Linear(5, 3).double(),
            local=Local(epochs=1, batch=4, lr=1.0),
            rounds=40,
        ).run()
    assert result.history[-1]["train_loss"] > 1e6 * result.history[0]["train_loss"]
    said = [r.getMessage() for r in caplog.records if "diverges" in r.getMessage()]
    assert len(said) == 1 and "lower local.lr" in said[0]


def test_accuracy_at_chance_for_long_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, "fedloom"):
        small(FedAvg(), local=Local(steps=1, batch=4, lr=1e-9), rounds=40, data=balanced()).run()
    said = [r.getMessage() for r in caplog.records if "at chance" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith("round 20: ")


def test_a_run_that_learns_says_nothing(caplog):
    with caplog.at_level(logging.WARNING, "fedloom"):
        small(FedAvg(), rounds=40).run()
    assert not caplog.records


def balanced():
    """Labels that have nothing to do with the inputs."""
    from fedloom.data import from_clients

    draw = torch.Generator().manual_seed(1)
    sets = [(torch.randn(n, 5, generator=draw), torch.arange(n) % 3) for n in (30, 30, 30, 30, 90)]
    return from_clients([(x.numpy(), y.numpy()) for x, y in sets[:-1]], test=sets[-1])


def test_the_exchange_before_round_1_has_a_finite_mean():
    class Probing(FedAvg):
        probes = True

        def probe(self, x, grad):
            return rec(c=torch.full_like(x, 3e38) + 0 * grad(x))

        def server_init(self, x, up):
            return rec(x=x)

    with pytest.raises(ClientError, match="sent before round 1 is finite, and its sum is not"):
        small(Probing()).run()


@pytest.mark.parametrize("values", [[1e200, -1e200], [math.inf, 1.0], [1e308, 1e308, -1e308]])
def test_means_and_deviations_of_seeds_that_diverged_are_no_exceptions(values):
    from fedloom.report.curve_data import mean, sd
    from fedloom.study.sweep import spread

    assert mean(values) is not None and sd(values) is not None
    assert spread(values) is not None
