"""What steps and runs cost, measured and as it must be: a client of each size, and --dry-run."""

import time

import pytest
import torch
from torch import nn

from fedloom import FedAvg, Local
from fedloom.algorithms import FedSAM, Scaffold
from fedloom.cli import dry_run
from fedloom.cli.dry_run import estimate, measure
from fedloom.config import resolve
from fedloom.data import from_clients
from fedloom.engines import one_step
from fedloom.engines.one_step import step_costs
from fedloom.evaluation.settings import Evaluation
from fedloom.experiment import result
from fedloom.experiment.experiment import Experiment
from fedloom.submodels import FIARSE, HeteroFL

WIDE = 96
WHOLE = 64 * WIDE + WIDE + WIDE * 10 + 10
SIZES = (1.0, 1 / 4, 1 / 16)


def experiment(rule, **changes):
    pair = torch.randn(8, 64), torch.arange(8)
    net = lambda: nn.Sequential(nn.Linear(64, WIDE), nn.ReLU(), nn.Linear(WIDE, 10))
    settings = {"local": Local(steps=2, batch=4, lr=0.1), "engine": "serial", "device": "cpu"}
    settings |= {"model": net, "data": from_clients([pair] * 4), "rounds": 2, "submodel": rule}
    return Experiment(**(settings | {"capacities": SIZES, "algorithm": FedAvg()} | changes))


def costs(rule, **changes):
    loop = experiment(rule, **changes).build()
    return step_costs(loop.plan, loop.fed, loop.net)


def test_what_exists_at_once_is_counted_and_what_is_freed_is_not():
    with one_step._Allocated() as allocated:
        a = torch.zeros(100)
        b = a + 1  # 800 bytes
        del a
        for _ in range(5):
            b = b * 2  # one more at a time
        b[:50].mul_(2)  # a view and a move in place make nothing
    assert allocated.peak == 2 * 400


@pytest.mark.parametrize("rule", [FIARSE(), HeteroFL()])
def test_the_part_of_the_model_is_as_long_as_a_client_holds(rule):
    loop = experiment(rule).build()
    held = {p: 4 * rule.view(loop.net.init(), loop.net, p, 0).layout.d for p in SIZES}
    measured = step_costs(loop.plan, loop.fed, loop.net)
    assert [*measured] == sorted(SIZES) and {p: c.held for p, c in measured.items()} == held
    assert all(one.seconds > 0 for one in measured.values())


def test_a_smaller_net_needs_less_and_behind_a_mask_the_whole_net_computes():
    sliced, masked = costs(HeteroFL(width="budget")), costs(FIARSE())
    assert sliced[1 / 16].peak < sliced[1 / 4].peak < sliced[1.0].peak
    assert sliced[1 / 16].peak < 4 * WHOLE < masked[1 / 16].peak
    # weights, the model as it was received, gradients; all else is as long as the part, or smaller
    assert masked[1 / 16].peak < 4 * (3 * WHOLE + 20 * WHOLE / 16)


def test_the_state_and_the_optimiser_are_as_long_as_the_part():
    adam, rule = Local(steps=2, batch=4, lr=0.1, optimiser="adam"), FIARSE(group="layer")
    plain, more = costs(rule), costs(rule, local=adam)
    assert more[1 / 16].peak - plain[1 / 16].peak < 4 * 10 * WHOLE / 16
    kept = costs(rule, algorithm=Scaffold())
    assert kept[1.0].kept >= 4 * WHOLE
    assert WHOLE / 8 < kept[1 / 16].kept <= 4 * 0.07 * WHOLE + WHOLE / 8 + 64
    assert plain[1 / 16].kept < 64


def test_a_dry_run_says_it_of_every_size_and_a_run_keeps_it():
    trial = experiment(FIARSE(), algorithm=Scaffold())
    cost = measure(trial)
    assert [*cost.sizes] == sorted(SIZES)
    own = sum(cost.sizes[p].kept for p in trial.build().fed.capacities)
    assert cost.memory_all == pytest.approx(own, abs=4)
    summary = experiment(FIARSE()).run(progress=False).summary
    assert summary["sizes"]["cost"]["0.0625"]["held"] == cost.sizes[1 / 16].held
    assert measure(experiment(None, capacities=None)).sizes == {}


def test_a_finished_run_keeps_its_summary_when_a_step_after_it_fails(monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(result, "step_costs", broken)
    summary = experiment(FIARSE()).run(progress=False).summary
    assert "held" in summary["sizes"] and "cost" not in summary["sizes"]
    assert "not in the summary: out of memory" in caplog.text


D, K, TESTS, EXAMPLES = 6, 3, 11, (8, 12)


def linear(**parts):
    draw = torch.Generator().manual_seed(0)
    some = lambda n: (torch.randn(n, D, generator=draw), torch.arange(n) % K)
    data = from_clients([some(n) for n in EXAMPLES], test=some(TESTS))
    given = {"algorithm": FedAvg(), "model": nn.Linear(D, K), "data": data, "rounds": 4}
    given |= {"local": Local(epochs=2, batch=4, lr=0.1), "cohort": 2}
    return Experiment(**given | {"engine": "serial", "device": "cpu"} | parts)


@pytest.mark.parametrize(("method", "passes"), [(FedAvg(), 1), (FedSAM(rho=0.1), 2)])
def test_operations_are_those_of_every_gradient_and_every_evaluation(method, passes):
    """A linear model: D K multiplications forward, and as many for the gradient of its weights."""
    cost = measure(linear(algorithm=method))
    gradients, evaluations = passes * 4 * 2 * sum(EXAMPLES), 4 * TESTS
    assert cost.operations == 2 * D * K * (2 * gradients + evaluations)
    assert cost.evaluated == evaluations and cost.client_rounds == 8


@pytest.mark.parametrize(("every", "times"), [(1, 5), (2, 3), (5, 1), (7, 1), (0, 1)])
def test_the_last_round_is_evaluated_too(every, times):
    cost = measure(linear(rounds=5, evaluate=Evaluation(every=every)))
    assert cost.evaluated == times * TESTS


def test_an_evaluation_is_timed_and_not_found_in_a_cache():
    def slow(outputs, targets):
        time.sleep(0.02)
        return (outputs.argmax(1) == targets).float()

    assert measure(linear(metrics={"slow": slow})).seconds_evaluation >= 4 * 0.02


def test_of_a_large_model_one_step_on_few_examples_is_timed(monkeypatch):
    monkeypatch.setattr(dry_run, "_SHORT", 2.0 * D * K * 2 * 3)
    cost = measure(linear())
    assert cost.by == "by a step on 3 examples" and 0 < cost.seconds_evaluation < cost.seconds


@pytest.mark.parametrize("load", [0.0, 9.0])
def test_a_busy_machine_is_named(monkeypatch, load):
    monkeypatch.setattr(dry_run.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(dry_run, "processors", lambda: 2)
    said = estimate(resolve("digits", ["rounds=2"]), 1)
    assert ("9 programs share 2 processors" in said) == (load > 0)
