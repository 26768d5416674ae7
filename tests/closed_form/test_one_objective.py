"""Clients of unequal weight: which objective a method minimises, on quadratics with another Hessian
and another minimiser at each of eight clients.

With p_i = w_i / sum of all w, the one that `weighting` says is sum_i p_i f_i. Some methods have an
objective of their own; which, is pinned below.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import (
    AFL,
    FAFED,
    IFCA,
    STEM,
    FedCM,
    FedDC,
    FedDyn,
    FedExP,
    FedLin,
    FedSMOO,
    Mime,
    MimeLite,
    QFedAvg,
    Scaffnew,
    Scaffold,
    fedavgm,
    fedspeed,
    mofedsam,
)
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import Levels
from tiny import near, quadratics, trace

N, SIZES = 8, (1, 9, 2, 4, 1, 6, 3, 2)
DRAW = np.random.default_rng(8)
H = DRAW.uniform(0.6, 2.0, (N, 2))
C = DRAW.normal(0, 1, (N, 2))
STEPS = (1, 3, 2, 1, 4, 1, 2, 3)
LIST = (5.0, 0.5, 1.0, 2.0, 4.0, 0.25, 3.0, 1.5)
WEIGHTS = {"examples": SIZES, "uniform": (1,) * N, LIST: LIST}
PAIRS = [(np.tile(h, (n, 1)), np.tile(c, (n, 1))) for h, c, n in zip(H, C, SIZES, strict=True)]
DATA = from_clients(PAIRS, dtype=torch.float64)
ONE = Local(steps=1, lr=0.4, batch=1)


def minimiser(weights):
    """Of sum_i weights_i f_i."""
    w = np.array(weights, float)[:, None]
    return (w * H * C).sum(0) / (w * H).sum(0)


def gradients(x):
    return H * (x - C)


def run(algorithm, **changes) -> Experiment:
    settings = {
        "model": Variables(torch.zeros(2, dtype=torch.float64)),
        "data": DATA,
        "local": Local(steps=2, lr=0.25, batch=1),
    }
    return quadratics(algorithm, **(settings | changes))


def end(algorithm, rounds, **changes):
    return [*trace(run(algorithm, **changes), rounds)][-1].state.srv.x.numpy()


def test_the_objectives_are_apart():
    points = [minimiser(w) for w in (*WEIGHTS.values(), np.square(SIZES))]
    gaps = [np.abs(a - b).max() for k, a in enumerate(points) for b in points[:k]]
    assert min(gaps) > 0.1


# ------------------------------------------------------ any cohort, any number of steps: exactly
EXACT = {
    "scaffold": Scaffold(),
    "scaffold, option I": Scaffold(option=1),
    "feddyn": FedDyn(alpha=3.0),
    "fedspeed": fedspeed(alpha=3.0, rho=0.0),
    "fedsmoo": FedSMOO(rho=0.0, beta=1 / 3),
    "feddc": FedDC(alpha=1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["examples", LIST], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_three_of_eight_reach_the_weighted_minimiser(name, weighting):
    found = end(EXACT[name], 110, cohort=3, weighting=weighting)
    near(found, minimiser(WEIGHTS[weighting]), 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_nor_do_unequal_steps_or_other_cohorts_move_it(name):
    local = Local(steps=STEPS, batch=1, lr=0.2)
    cohorts = [[0, 1], [2, 3, 4], [5, 6], [7, 0, 2]]
    found = end(EXACT[name], 130, cohort=cohorts, weighting=LIST, local=local)
    near(found, minimiser(LIST), 1e-8)


def test_fedavg_ends_in_its_weighted_biased_point():
    r = 1 - (1 - 0.25 * H) ** 2
    w = np.array(LIST)[:, None]
    biased = (w * r * C).sum(0) / (w * r).sum(0)
    assert np.abs(biased - minimiser(LIST)).max() > 0.01
    near(end(FedAvg(), 50, weighting=LIST), biased, 1e-10)


@pytest.mark.parametrize("field", [("scaffold", "c"), ("feddyn", "h"), ("fedsmoo", "h")])
@pytest.mark.parametrize("weighting", ["examples", LIST], ids=str)
def test_what_the_server_adds_up_is_the_weighted_sum_of_all_clients(field, weighting):
    name, own = field
    p = np.array(WEIGHTS[weighting]) / sum(WEIGHTS[weighting])
    for loop in trace(run(EXACT[name], cohort=3, weighting=weighting), 12):
        each = {i: getattr(m.alg, own).numpy() for i, m in loop.memory.get(range(N)).items()}
        total = sum((p[i] * v for i, v in each.items()), np.zeros(2))
        near(getattr(loop.state.srv, own), total, 1e-13)
    assert len(each) == N


@pytest.mark.slow
def test_late_updates_do_not_move_scaffold():
    # only the move of an older model counts less; c is made of exact changes
    clock = Asynchronous(buffer=2, concurrency=4, staleness=0.5)
    devices = Levels(steps_per_second=tuple(1.0 + i for i in range(N)))
    found = end(Scaffold(), 210, weighting="examples", clock=clock, devices=devices, cohort=4)
    near(found, minimiser(SIZES), 1e-8)


# ----------------------------------------- a step a round of everybody: no client drifts, exactly
ONE_STEP = {
    "fedavgm": fedavgm(beta=0.5),
    "fedcm": FedCM(alpha=0.4),
    "mofedsam": mofedsam(alpha=0.4, rho=0.0),
    "mimelite": MimeLite(beta=0.5),
    "mime": Mime(beta=0.5),
    "stem": STEM(alpha=0.3),
    "stem, without new gradients": STEM(alpha=0.0),
    "fafed": FAFED(rho=1.0, beta=0.5),
    "fedexp": FedExP(eps=1.0),
    "fedlin": FedLin(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step_of_everybody_reaches_the_weighted_minimiser(name):
    near(end(ONE_STEP[name], 80, weighting=LIST, local=ONE), minimiser(LIST), 1e-8)


@pytest.mark.parametrize("name", ["fedcm", "mimelite", "stem", "fafed"])
def test_what_is_averaged_over_a_cohort_has_the_weights_of_the_moves(name):
    """Clients that are all alike but for their weights: any weighted mean of theirs is theirs."""
    alike = [(np.tile(H[0], (n, 1)), np.tile(C[0], (n, 1))) for n in SIZES]
    data, turns = from_clients(alike, dtype=torch.float64), [[0, 1, 2], [3, 4, 5], [6, 7]]
    local = Local(steps=3, lr=0.1, batch=1)
    ends = [
        end(ONE_STEP[name], 7, data=data, cohort=turns, weighting=w, local=local) for w in WEIGHTS
    ]
    near(ends[0], ends[1], 1e-13)
    near(ends[2], ends[1], 1e-13)


# --------------------------------------------------------------------- objectives of their own
@pytest.mark.slow
@pytest.mark.parametrize("weighting", WEIGHTS, ids=str)
@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [(FedDyn(alpha=1.0, size_scaled=True), 230), (FedDC(alpha=1.0, size_scaled=True), 120)],
    ids=["feddyn", "feddc"],
)
def test_size_scaled_minimises_the_mean_over_examples(algorithm, rounds, weighting):
    # whatever weighting says
    near(end(algorithm, rounds, weighting=weighting, cohort=4), minimiser(SIZES), 1e-8)


@pytest.mark.slow
def test_scaffnew_of_everybody_counts_a_client_by_its_weight_and_its_steps():
    # sum_i p_i lr_sum_i h_i stays 0, for sum_i p_i (x - x_i) = 0; at rest h_i is the gradient
    near(end(Scaffnew(), 40, weighting=LIST), minimiser(LIST), 1e-8)
    local = Local(steps=STEPS, batch=1, lr=0.2)
    found = end(Scaffnew(), 50, weighting=LIST, local=local)
    near(found, minimiser(np.multiply(LIST, STEPS)), 1e-8)


@pytest.mark.parametrize("weighting", WEIGHTS, ids=str)
def test_ifca_counts_the_clients_of_a_cluster_alike(weighting):
    one = IFCA(clusters=1)
    found = end(one, 40, weighting=weighting, local=ONE)
    near(found, minimiser((1,) * N), 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", WEIGHTS, ids=str)
def test_q_fedavg_minimises_a_power_of_the_losses_whatever_weighting_says(weighting):
    x = end(QFedAvg(q=1.0), 60, weighting=weighting, local=ONE)
    losses = (H / 2 * (x - C) ** 2).sum(1)
    near((losses[:, None] * gradients(x)).sum(0), 0.0, 1e-8)


@pytest.mark.slow
def test_afl_ends_where_the_worst_two_are_equally_bad_whatever_weighting_says():
    pairs = [
        (np.full((n, 1), h), np.full((n, 1), c)) for n, h, c in ((4, 1.0, 1.0), (1, 2.0, -1.0))
    ]
    start = Variables(torch.zeros(1, dtype=torch.float64))
    makes = {"data": from_clients(pairs, dtype=torch.float64), "model": start, "local": ONE}
    for weighting in ("examples", "uniform", (0.2, 3.0)):
        x = end(AFL(rate=0.3), 140, weighting=weighting, **makes)
        near((x - 1) ** 2, 2 * (x + 1) ** 2, 1e-8)
