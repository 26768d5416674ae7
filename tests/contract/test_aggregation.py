"""Aggregations and attacks in every engine, with every other axis, and after a stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedloom.aggregation import (
    Gather,
    IntegerRing,
    Median,
    NormBound,
)
from fedloom.algorithm import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.checks import check
from fedloom.checks.tiny_federation import experiment
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.vector import rec
from fedloom.errors import CompositionError, NotFiniteError
from fedloom.federation.attacks import Alie, InnerProduct
from fedloom.submodels import HeteroFL
from fedloom_flower.shapes import refuse
from tiny import clusters, quadratics, small, trace

pytestmark = pytest.mark.usefixtures("accounts_at_hand")


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
        n=1.0, mass=3.0, weight=3.0, delta=torch.tensor([1 << 43]), unweighted=rec(), buffers=none
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
        (_OneField(), "give every field that unweighted has"),
    ):
        report = check(broken, engines=())
        assert words in report.failures[0].why, str(report)


@pytest.mark.parametrize("attack", [Alie(share=0.3), InnerProduct(share=0.3)])
@pytest.mark.parametrize(
    "changes",
    [
        {"compress": Link(FieldCodec(TopK(ratio=0.1), EF21())), "algorithm": FedAvg()},
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
