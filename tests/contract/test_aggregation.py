"""Aggregations and attacks in every engine, with every other axis, and after a stop."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fedloom.aggregation import (
    AGGREGATIONS,
    CentredClipping,
    DifferentialPrivacy,
    DiscreteGaussian,
    Gather,
    GeometricMedian,
    IntegerRing,
    Krum,
    Median,
    NormBound,
    TrimmedMean,
)
from fedloom.algorithm import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.checks import check
from fedloom.checks.compare import unequal, unlike
from fedloom.checks.tiny_federation import Trial, experiment, finish, run
from fedloom.compression.codecs import QSGD, TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import Link, Via
from fedloom.core.vector import rec
from fedloom.deployment.shapes import refuse
from fedloom.errors import CompositionError, NotFiniteError
from fedloom.federation.attacks import ATTACKS, Alie, InnerProduct, LabelFlip, SignFlip
from fedloom.storage.run_directory import Checkpoint
from fedloom.submodels import HeteroFL
from tiny import clusters, quadratics, small, trace

PRIVATE: dict[str, Any] = {"sampling": "poisson", "weighting": "uniform"}
CASES: dict[str, dict[str, Any]] = {
    "median": {"aggregation": Median()},
    "trimmed_mean": {"aggregation": TrimmedMean(trim=0.3)},
    "krum": {"aggregation": Krum(hostile=0.1, several=2), "cohort": 5},
    "geometric_median": {"aggregation": GeometricMedian()},
    "centred_clipping": {"aggregation": CentredClipping(radius=0.1)},
    "norm_bound": {"aggregation": NormBound(norm=0.1), "compress": Link(Via(QSGD(), Residual()))},
    "dp": {"aggregation": DifferentialPrivacy(clip=0.1, noise=0.1, quantile=0.5), **PRIVATE},
    "integer_ring": {"aggregation": IntegerRing()},
    "discrete_gaussian": {
        "aggregation": DiscreteGaussian(clip=0.1, noise=0.1, honest=2),
        "weighting": "uniform",
    },
    "norm_bound, parts": {
        "aggregation": NormBound(norm=0.1),
        "submodel": HeteroFL(),
        "capacities": (1.0, 0.5),
    },
    "mean, sign flip": {"attack": SignFlip(share=0.4)},
    "mean, alie": {"attack": Alie(share=0.4, strength=1.0)},
    "dp, alie": {
        "aggregation": DifferentialPrivacy(clip=0.1, noise=0.1),
        "attack": Alie(share=0.4, strength=1.0),
        **PRIVATE,
    },
    "median, label flip": {"aggregation": Median(), "attack": LabelFlip(share=0.4)},
}

COLUMNS = {"hostile", "chosen", "shortened", "epsilon", "clip"}
SILENT = ("median", "trimmed_mean", "geometric_median", "centred_clipping", "integer_ring")


pytestmark = pytest.mark.usefixtures("accounts_at_hand")


def trial(case: str, dtype: torch.dtype, **changes: Any) -> Trial:
    return experiment(dtype, **({"algorithm": Scaffold(), **CASES[case]} | changes))


@functools.cache
def serially(case: str, dtype: torch.dtype) -> Any:
    return run(trial(case, dtype))


def test_every_name_has_a_case() -> None:
    known = {name.partition(",")[0] for name in CASES}
    assert known == set(AGGREGATIONS) and {"sign_flip", "alie", "label_flip"} <= set(ATTACKS)


@pytest.mark.quick("median", "krum", "dp", "discrete_gaussian", "mean, alie")
@pytest.mark.parametrize("case", CASES)
def test_many_clients_at_once_agree_with_one_after_another(case: str) -> None:
    ends = [run(trial(case, torch.float64, engine="vectorised:3")), serially(case, torch.float64)]
    assert not unlike(*(end._replace(history=[]) for end in ends), 1e-9)
    one, other = ([{k: row[k] for k in COLUMNS & row.keys()} for row in e.history] for e in ends)
    for a, b in zip(one, other, strict=True):
        assert a == {k: v if isinstance(v, list) else pytest.approx(v) for k, v in b.items()}
    assert any(one) or case in SILENT


@pytest.mark.quick("median", "discrete_gaussian", "mean, alie")
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c in ("krum", "norm_bound") else pytest.mark.slow) for c in CASES],
)
def test_workers_have_the_bits_of_one_process(case: str, engine_of: Any) -> None:
    end = run(trial(case, torch.float32, engine=engine_of("workers:2")))
    assert not unequal(end, serially(case, torch.float32))


@pytest.mark.parametrize("case", ["krum", "centred_clipping", "dp", "dp, alie"])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(case: str, tmp_path: Any) -> None:
    saving = Checkpoint(every_rounds=1, every_seconds=None)
    trial(case, torch.float32, rounds=2, checkpoint=saving).run(tmp_path / "run")
    second = trial(case, torch.float32, checkpoint=saving)
    second.resume(tmp_path / "run")
    assert not unequal(finish(second.loop), serially(case, torch.float32))


def _with_statistics() -> dict[str, Any]:
    layers = torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
    return {"model": torch.nn.Sequential(*layers), "data": clusters(sizes=[4, 8, 12, 8, 4])}


def test_running_statistics_go_through_the_rule_or_are_refused_by_name() -> None:
    parts = _with_statistics()
    loop = [*trace(small(FedAvg(), aggregation=Median(), cohort=3, **parts), 1)][-1]
    rows = []
    for i in loop.cohorts.of(0):
        one = [*trace(small(FedAvg(), cohort=[[i]], **parts), 1)][-1]
        rows.append(one.state.buffers)
    torch.testing.assert_close(loop.state.buffers, torch.stack(rows).median(0).values)
    with pytest.raises(CompositionError, match=r"NormBound and Sequential: .*'1.running_mean'"):
        small(FedAvg(), aggregation=NormBound(), **parts).build()


def test_what_a_round_of_rows_costs_is_what_the_updates_cost() -> None:
    """The bill of a client does not depend on the rule, but for the ring's 8 bytes a value."""
    bills = {}
    for rule in ("mean", "median", "norm_bound", "integer_ring"):
        loop = [*trace(quadratics(Scaffold(), aggregation=rule), 1)][-1]
        bills[rule] = loop.state.ledger.up
    assert bills["mean"] == bills["median"] == bills["norm_bound"]
    assert bills["integer_ring"] == bills["mean"]  # float64 has 8 bytes too
    loop = [*trace(small(Scaffold(), aggregation="integer_ring"), 1)][-1]
    plain = [*trace(small(Scaffold()), 1)][-1]
    assert loop.state.ledger.up["delta"] == 2 * plain.state.ledger.up["delta"]
    loop = [*trace(small(FedAvg(), aggregation="integer_ring", **_with_statistics()), 1)][-1]
    assert loop.state.ledger.up["buffers"] == 8 * loop.state.ledger.answers * len(
        loop.state.buffers
    )


def test_integers_of_a_client_that_leave_the_sum_no_room_are_refused() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    part = rec(
        n=1.0, mass=3.0, weight=3.0, delta=torch.tensor([1 << 43]), uniform=rec(), buffers=none
    )
    assert IntegerRing().arrived(part).mass == 3 and IntegerRing().arrived(part).n == 1.0
    with pytest.raises(NotFiniteError, match="its integers are too large to be added up"):
        IntegerRing().arrived(part._replace(delta=-part.delta - 1))


class _Overwritten(NormBound):
    def leaf(self, part: Any, told: Any, seed: int, round: int, client: int) -> Any:
        return part


class _OneField(NormBound):
    def root(self, total: Any, state: Any, seed: int, round: int) -> Any:
        found = super().root(total._replace(n=total.n), state, seed, round)
        return found._replace(up=rec(delta=found.up.delta))


def test_the_contract_of_a_user_s_own_rule_is_checked() -> None:
    report = check(Gather(f=lambda rows, weights: rows.amax(0)), engines=("vectorised:3",))
    assert report.passed and report.kind == "aggregation", str(report)
    for broken, words in (
        (_Overwritten(), "hands on the delta that it was given"),
        (_OneField(), "give every field that uniform has"),
    ):
        report = check(broken, engines=())
        assert words in report.failures[0].why, str(report)


@pytest.mark.parametrize("attack", [Alie(share=0.3), InnerProduct(share=0.3)])
@pytest.mark.parametrize(
    "changes",
    [
        {"compress": Link(Via(TopK(ratio=0.1), EF21())), "algorithm": FedAvg()},
        {"submodel": HeteroFL(), "capacities": (0.5, 1.0), "algorithm": FedAvg()},
    ],
    ids=["EF21", "HeteroFL"],
)
def test_a_refusal_of_forged_updates_names_the_attack(attack: Any, changes: Any) -> None:
    with pytest.raises(CompositionError) as told:
        experiment(torch.float32, attack=attack, **changes).plan()
    assert str(told.value).startswith(f"{type(attack).__name__} and ")
    assert "norm_bound" not in str(told.value)


def test_a_deployment_refuses_an_attack_for_what_it_is() -> None:
    """The mean of forged updates is a sum like another one; the attack is of a simulation."""
    refuse(experiment(torch.float32, attack=Alie(share=0.3), algorithm=FedAvg()).plan())
