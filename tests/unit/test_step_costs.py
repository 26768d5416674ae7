"""What a local step takes at a client of each size: measured, and as it must be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom import FedAvg, Local
from fedloom.algorithms import Scaffold
from fedloom.cli import dry_run
from fedloom.data import from_clients
from fedloom.engines import one_step
from fedloom.engines.one_step import StepCost, step_costs
from fedloom.experiment import result
from fedloom.experiment.experiment import Experiment
from fedloom.submodels import FIARSE, HeteroFL

D, WIDE = 64 * 96 + 96 + 96 * 10 + 10, 96
SIZES = (1.0, 1 / 4, 1 / 16)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, WIDE), nn.ReLU(), nn.Linear(WIDE, 10))


def experiment(rule, **changes):
    pair = torch.randn(8, 64), torch.arange(8)
    settings = {"local": Local(steps=2, batch=4, lr=0.1), "engine": "serial", "device": "cpu"}
    settings |= {"model": net, "data": from_clients([pair] * 4), "rounds": 2, "submodel": rule}
    return Experiment(**(settings | {"capacities": SIZES, "algorithm": FedAvg()} | changes))


def costs(rule, **changes) -> dict[float, StepCost]:
    loop = experiment(rule, **changes).build()
    return step_costs(loop.plan, loop.fed, loop.net)


def test_what_exists_at_once_is_counted_and_what_is_freed_is_not():
    with one_step._Allocated() as found:
        a = torch.zeros(100)
        b = a + 1  # 800 bytes
        del a
        for _ in range(5):
            b = b * 2  # one more at a time
        b[:50].mul_(2)  # a view and a move in place make nothing
    assert found.peak == 2 * 400


@pytest.mark.parametrize("rule", [FIARSE(), HeteroFL()])
def test_the_part_of_the_model_is_as_long_as_a_client_holds(rule):
    loop = experiment(rule).build()
    held = {p: rule.view(loop.net.init(), loop.net, p, 0).layout.d for p in SIZES}
    found = step_costs(loop.plan, loop.fed, loop.net)
    assert [*found] == sorted(SIZES) and {p: c.held for p, c in found.items()} == {
        p: 4 * m for p, m in held.items()
    }
    assert all(one.seconds > 0 for one in found.values())


def test_a_smaller_net_needs_less_and_behind_a_mask_the_whole_net_computes():
    sliced, masked = costs(HeteroFL(width="budget")), costs(FIARSE())
    assert sliced[1 / 16].peak < sliced[1 / 4].peak < sliced[1.0].peak
    assert sliced[1 / 16].peak < 4 * D < masked[1 / 16].peak
    # weights, the model as it was received, gradients; all else is as long as the part, or smaller
    assert masked[1 / 16].peak < 4 * (3 * D + 20 * D / 16)


def test_the_state_and_the_optimiser_are_as_long_as_the_part():
    adam = {"local": Local(steps=2, batch=4, lr=0.1, optimiser="adam")}
    rule = FIARSE(group="layer")
    plain, more = costs(rule), costs(rule, **adam)
    assert more[1 / 16].peak - plain[1 / 16].peak < 4 * 10 * D / 16
    kept = costs(rule, algorithm=Scaffold())
    assert kept[1.0].kept >= 4 * D
    assert D / 8 < kept[1 / 16].kept <= 4 * 0.07 * D + D / 8 + 64
    assert plain[1 / 16].kept < 64


def test_a_dry_run_says_it_of_every_size_and_a_run_keeps_it():
    trial = experiment(FIARSE(), algorithm=Scaffold())
    cost = dry_run.measure(trial)
    assert [*cost.sizes] == sorted(SIZES)
    kept = {p: one.kept for p, one in cost.sizes.items()}
    own = sum(kept[p] for p in trial.build().fed.capacities)
    assert cost.memory_all == pytest.approx(own, abs=4)
    summary = experiment(FIARSE()).run(progress=False).summary
    assert summary["sizes"]["cost"]["0.0625"]["held"] == cost.sizes[1 / 16].held
    plain = dry_run.measure(experiment(None, capacities=None))
    assert plain.sizes == {}


def test_a_finished_run_keeps_its_summary_when_a_step_after_it_fails(monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(result, "step_costs", broken)
    summary = experiment(FIARSE()).run(progress=False).summary
    assert "held" in summary["sizes"] and "cost" not in summary["sizes"]
    assert "not in the summary: out of memory" in caplog.text
