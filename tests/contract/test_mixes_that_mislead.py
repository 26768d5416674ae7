"""Mixes of parts that each work alone, and together would be another method than the name says."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from fedloom import Evaluation, FedAvg
from fedloom.aggregation import IntegerRing, Krum, Median, NormBound
from fedloom.algorithms import FedDC, FedDyn, MimeLite, Scaffold
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.dropout import choice, seeded
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.errors import CompositionError, NotFiniteError
from fedloom.federation.sampling import Churn
from fedloom.objectives import MOON, FedDecorr, FedMLB, FedNTD
from fedloom.report import group_runs, load_run
from fedloom.report.charts import field_bytes
from fedloom.submodels import FjORD, HeteroFL
from tiny import clusters, quadratics, small, trace

NOW = 0


def net() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]
        return Net(nn.Sequential(*layers).double())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    inputs = torch.randn(9, 6, generator=g, dtype=torch.float64)
    return inputs, torch.randint(0, 4, (9,), generator=g)


# --------------------------------------------------------------------------------- ordered dropout
@pytest.mark.slow
@pytest.mark.parametrize("objective", [MOON(), FedDecorr(), FedMLB()], ids=lambda o: o.name)
def test_a_loss_that_walks_through_the_blocks_trains_the_drawn_part_only(objective):
    view = FjORD(widths=(0.25, 1.0)).view(None, net(), 0.25, NOW)
    part = view.net
    x = torch.full_like(part.init(), 0.1) + part.init()
    mem = objective.init(rec(counts=torch.ones(4, dtype=torch.float64), d=len(x)))
    if mem:
        mem = mem._replace(prev=-x, seen=torch.ones_like(mem.seen))
    part.train()
    for seed in range(20):
        with seeded(seed):
            drawn = int(choice(len(part.parts)))
            total = objective.mean(part, part.live(x), batch(), x.clone(), mem)
            result = torch.autograd.grad(total, part.params)
        outside = torch.cat([g.flatten() for g in result])[part.parts[drawn] == 0]
        assert drawn == len(part.parts) - 1 or (len(outside) and not outside.any())


# ------------------------------------------------------------------------------------- the scaler
@pytest.mark.parametrize("capacity", [1 / 4, 1 / 16])
def test_a_teacher_that_is_the_pupil_teaches_nothing_whatever_the_scaler(capacity):
    view = HeteroFL(scaler=True).view(None, net(), capacity, NOW)
    part, x = view.net, view.take(rec(x=net().init())).x
    part.train()
    pupil = FedNTD(beta=1.0)  # of this form, the distance alone
    pull = torch.autograd.grad(
        pupil.mean(part, part.live(x), batch(), x.clone(), rec()), part.params
    )
    assert max(float(g.abs().max()) for g in pull) < 1e-12
    assert all(m.training for m in part.module.modules())


# ------------------------------------------------------------------- what is lost is lost for good
@pytest.fixture
def remarks(caplog):
    """A function: method, settings -> what is said as its run is built."""

    def build(method, copies=(1, 1, 1, 1), **settings):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedloom"):
            method = make_algorithm(method) if isinstance(method, str) else method
            quadratics(method, copies, **settings).build()
        return caplog.text

    return build


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "feddc", "fedsmoo"])
def test_a_sum_that_loses_something_is_said(method, remarks):
    via = lambda ratio, feedback: {"compress": FieldCodec(TopK(ratio=ratio), feedback)}
    assert "feedback=residual" in remarks(method, **via(0.5, Forget()))
    assert "feedback=residual" not in remarks(method, **via(0.5, Residual()))
    assert not remarks(method, **via(1.0, Forget()))
    assert not remarks("fedavg", **via(0.5, Forget()))


@pytest.mark.parametrize("forget", [True, False])
def test_churn_that_forgets_says_what_stays_behind(forget, remarks):
    said = remarks("scaffold", churn=Churn(active=3, forget=forget))
    assert ("churn.forget" in said) == forget


def plainly(kind, **fields):
    """A method that averages these plainly; field: what of the answer."""
    means = lambda self, up, job: rec(**{name: getattr(up, own) for name, own in fields.items()})
    return type("Plain", (kind,), {"unweighted": means})()


FOUR = (1, 2, 3, 4)
TWO = {
    "dc": plainly(Scaffold, dc="dc"),
    "h": plainly(FedDyn, h="delta"),
    "g": plainly(MimeLite, g="g"),
    "h and dg": FedDC(size_scaled=True),
}


@pytest.mark.parametrize("field", TWO)
def test_two_kinds_of_means_in_one_method_are_said(field, remarks):
    for copies, weighting, told in (
        (FOUR, "examples", True),
        (FOUR, (0.1, 1.0, 1.0, 1.0), True),
        (FOUR, "uniform", False),
        ((2,) * 4, "examples", False),
    ):
        said = remarks(TWO[field], copies, weighting=weighting)
        assert (f"averages {field} plainly" in said) == ("weighting=uniform" in said) == told


@pytest.mark.parametrize("method", sorted(set(ALGORITHMS) - {"fedbuff"}))
def test_no_method_of_ours_has_two_kinds_of_means(method, remarks):
    assert "weighting=uniform" not in remarks(method, FOUR)


@pytest.mark.parametrize("rule", ["median", Krum(hostile=0.0), "norm_bound"])
def test_a_rule_of_rows_makes_no_weighted_sums(rule, remarks):
    said = "weighted sums" in remarks(MimeLite(), FOUR, aggregation=rule)
    assert said == (rule != "norm_bound")
    uniform = remarks(MimeLite(), FOUR, aggregation=rule, weighting="uniform")
    assert "weighted sums" not in uniform


def test_ef21_knows_no_cohorts_weights():
    link = FieldCodec(TopK(ratio=0.5), EF21())
    with pytest.raises(CompositionError, match=r"EF21 and MimeLite: .* this cohort's weights"):
        quadratics(MimeLite(), (1, 2, 3, 4), compress=link).build()
    quadratics(MimeLite(), (1, 2, 3, 4), compress=link, weighting="uniform").build()
    quadratics(Scaffold(), (1, 2, 3, 4), compress=link).build()


# -------------------------------------------------------------------------------- aggregations


def test_running_statistics_go_through_the_rule_or_are_refused_by_name():
    layers = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
    parts = {"model": nn.Sequential(*layers), "data": clusters(sizes=[4, 8, 12, 8, 4])}
    loop = [*trace(small(FedAvg(), aggregation=Median(), cohort=3, **parts), 1)][-1]
    rows = []
    for i in loop.cohorts.of(0):
        one = [*trace(small(FedAvg(), cohort=[[i]], **parts), 1)][-1]
        rows.append(one.state.buffers)
    torch.testing.assert_close(loop.state.buffers, torch.stack(rows).median(0).values)
    with pytest.raises(CompositionError, match=r"NormBound and Sequential: .*'1.running_mean'"):
        small(FedAvg(), aggregation=NormBound(), **parts).build()


def test_integers_of_a_client_that_leave_the_sum_no_room_are_refused():
    none = torch.zeros(0, dtype=torch.int64)
    part = rec(
        n=1.0, mass=3.0, weight=3.0, delta=torch.tensor([1 << 43]), unweighted=rec(), buffers=none
    )
    assert IntegerRing().arrived(part).mass == 3 and IntegerRing().arrived(part).n == 1.0
    with pytest.raises(NotFiniteError, match="its integers are too large to be added up"):
        IntegerRing().arrived(part._replace(delta=-part.delta - 1))


# --------------------------------------------------------------------------------- the evaluation


def test_a_target_that_nobody_looked_for_is_not_missed(caplog):
    run = quadratics(make_algorithm("fedavg"), evaluate=Evaluation(every=0, target=1.0), rounds=3)
    assert run.run().summary["rounds_to_target_text"] == ""
    assert "evaluate.target = 1 has no effect" in caplog.text


def test_another_factor_of_the_average_is_said_to_come_too_late(tmp_path, caplog):
    settings = {"rounds": 2, "evaluate": Evaluation(ema=0.9)}
    quadratics(make_algorithm("fedavg"), **settings).run(tmp_path / "run")
    settings |= {"rounds": 3, "evaluate": Evaluation(ema=0.5)}
    with caplog.at_level(logging.WARNING, "fedloom"):
        quadratics(make_algorithm("fedavg"), **settings).resume(tmp_path / "run")
    assert "evaluate.ema stays 0.9" in caplog.text


def test_bytes_of_a_field_leave_the_exchange_before_round_one_out(tmp_path):
    run = quadratics(make_algorithm("fafed"), rounds=3, cohort=2, weighting="uniform")
    result = run.run(tmp_path / "run")
    (group,) = group_runs([load_run(tmp_path / "run")])
    found = {(f.direction, f.field): f for f in field_bytes(group)}
    assert found["up", "delta"].each == found["down", "x"].each == 16  # two doubles
    assert found["up", "delta"].total == 3 * 2 * 16
    assert found["down", "x"].total == 3 * 2 * 16 + 4 * 16 == result.ledger.down["x"]
