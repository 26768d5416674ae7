"""Where methods end on quadratics with another Hessian and another minimiser at each of eight
clients: in the minimiser of the objective that `weighting` says, or in a known other point.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedloom.algorithms as ours
from fedloom import FedAvg, Local
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import Levels
from tiny import A, B, near, quadratics, trace

N, SIZES = 8, (1, 9, 2, 4, 1, 6, 3, 2)
DRAW = np.random.default_rng(8)
H = DRAW.uniform(0.6, 2.0, (N, 2))
C = DRAW.normal(0, 1, (N, 2))
STEPS = (1, 3, 2, 1, 4, 1, 2, 3)
LIST = (5.0, 0.5, 1.0, 2.0, 4.0, 0.25, 3.0, 1.5)
ALIKE = (1,) * N
WEIGHTS = {"examples": SIZES, "uniform": ALIKE, LIST: LIST}
PAIRS = [(np.tile(h, (n, 1)), np.tile(c, (n, 1))) for h, c, n in zip(H, C, SIZES, strict=True)]
DATA = from_clients(PAIRS, dtype=torch.float64)
ONE = {"local": Local(steps=1, lr=0.4, batch=1), "weighting": LIST}


def minimiser(weights):
    """Of sum_i weights_i f_i."""
    w = np.array(weights, float)[:, None]
    return (w * H * C).sum(0) / (w * H).sum(0)


def end(algorithm, rounds, **changes):
    settings = {
        "model": Variables(torch.zeros(2, dtype=torch.float64)),
        "data": DATA,
        "local": Local(steps=2, lr=0.25, batch=1),
    }
    loop = [*trace(quadratics(algorithm, **(settings | changes)), rounds)][-1]
    return loop.state.srv.x.numpy()


def test_the_objectives_are_apart():
    points = [minimiser(w) for w in (*WEIGHTS.values(), np.square(SIZES))]
    gaps = [np.abs(a - b).max() for k, a in enumerate(points) for b in points[:k]]
    assert min(gaps) > 0.1


# -------------------------------------------------------------------- biased points that are known
@pytest.mark.parametrize("weighting", WEIGHTS, ids=str)
def test_fedavg_ends_in_its_biased_fixed_point(weighting):
    r = 1 - (1 - 0.25 * H) ** 2  # how much of the way to its minimiser a client goes
    w = np.array(WEIGHTS[weighting])[:, None]
    biased = (w * r * C).sum(0) / (w * r).sum(0)
    assert np.abs(biased - minimiser(WEIGHTS[weighting])).max() > 0.005
    near(end(FedAvg(), 50, weighting=weighting), biased, 1e-10)


def test_fedprox_ends_in_its_own_fixed_point():
    # a step is y - lr (a (y - b) + mu (y - x)): a share q of the way to the pulled minimiser
    mu = 0.7
    q = 1 - (1 - 0.25 * (H + mu)) ** 2
    share = q * H / (H + mu)  # of the way from x to the client's minimiser
    w = np.array(SIZES)[:, None]
    near(end(ours.fedprox(mu=mu), 75), (w * share * C).sum(0) / (w * share).sum(0), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "rounds"), [(0.1, 600), (0.5, 200), (1.0, 240)])
def test_fedcm_decays_weights_one_over_alpha_times_as_much(alpha, rounds):
    # at rest D = 0, so that alpha times the gradient is all that holds against the decay
    local = Local(steps=1, lr=0.1, batch=None, weight_decay=0.05)
    *_, loop = trace(quadratics(ours.FedCM(alpha=alpha), local=local), rounds)
    near(loop.state.srv.x, (A * B).mean(0) / (A.mean(0) + 0.05 / alpha))


# --------------------------------------------------------------------------- the weighted minimiser
# any cohort, any number of steps: exactly
EXACT = {
    "scaffold": ours.Scaffold(),
    "scaffold, option I": ours.Scaffold(option=1),
    "feddyn": ours.FedDyn(alpha=3.0),
    "fedspeed": ours.fedspeed(alpha=3.0, rho=0.0),
    "fedsmoo": ours.FedSMOO(rho=0.0, beta=1 / 3),
    "feddc": ours.FedDC(alpha=1.0),
}
OTHERWISE = {
    "local": Local(steps=STEPS, batch=1, lr=0.2),
    "cohort": [[0, 1], [2, 3, 4], [5, 6], [7, 0, 2]],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_three_of_eight_reach_the_weighted_minimiser(name):
    near(end(EXACT[name], 110, cohort=3), minimiser(SIZES), 1e-8)
    near(end(EXACT[name], 130, weighting=LIST, **OTHERWISE), minimiser(LIST), 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_reaches_the_minimiser_to_the_last_digits(option):
    run = quadratics(ours.Scaffold(option=option), cohort=3, local=Local(steps=3, lr=0.1))
    *_, loop = trace(run, 90)
    near(loop.state.srv.x, (A * B).sum(0) / A.sum(0))


@pytest.mark.slow
def test_late_updates_do_not_move_scaffold():
    # only the move of an older model counts less; c is made of exact changes
    clock = Asynchronous(buffer=2, concurrency=4, staleness=0.5)
    devices = Levels(steps_per_second=tuple(1.0 + i for i in range(N)))
    near(end(ours.Scaffold(), 210, clock=clock, devices=devices, cohort=4), minimiser(SIZES), 1e-8)


# a step a round of everybody: no client drifts, exactly
ONE_STEP = {
    "fedavgm": ours.fedavgm(beta=0.5),
    "fedacg": ours.FedACG(lam=0.5, beta=0.1),
    "fedcm": ours.FedCM(alpha=0.4),
    "mofedsam": ours.mofedsam(alpha=0.4, rho=0.0),
    "mimelite": ours.MimeLite(beta=0.5),
    "mime": ours.Mime(beta=0.5),
    "stem": ours.STEM(alpha=0.3),
    "stem, without new gradients": ours.STEM(alpha=0.0),
    "fafed": ours.FAFED(rho=1.0, beta=0.5),
    "fedexp": ours.FedExP(eps=1.0),
    "fedlin": ours.FedLin(),
    "scaffnew": ours.Scaffnew(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step_of_everybody_reaches_the_weighted_minimiser(name):
    near(end(ONE_STEP[name], 80, **ONE), minimiser(LIST), 1e-8)


# whatever weighting says: the objective that is minimised, and after how many rounds
OF_THEIR_OWN = {
    "feddyn": (ours.FedDyn(alpha=1.0, size_scaled=True), SIZES, 230, {"cohort": 4}),
    "feddc": (ours.FedDC(alpha=1.0, size_scaled=True), SIZES, 120, {"cohort": 4}),
    "ifca": (ours.IFCA(clusters=1), ALIKE, 40, {"local": ONE["local"]}),
}


@pytest.mark.parametrize("weighting", WEIGHTS, ids=str)
@pytest.mark.parametrize(
    "name", ["ifca", *(pytest.param(name, marks=pytest.mark.slow) for name in ("feddyn", "feddc"))]
)
def test_some_have_an_objective_of_their_own(name, weighting):
    algorithm, weights, rounds, settings = OF_THEIR_OWN[name]
    near(end(algorithm, rounds, weighting=weighting, **settings), minimiser(weights), 1e-8)


def test_ifca_ends_at_the_minimiser_of_each_cluster():
    experiment = quadratics(ours.IFCA(spread=3.0), local=Local(steps=1, lr=0.4), seed=1)
    *_, loop = trace(experiment, 90)
    mine = np.eye(2)[[int(loop.memory.get([i])[i].alg.mine) for i in range(4)]]  # (clients, k)
    assert (mine.sum(0) > 0).all()
    for j, x in enumerate((loop.state.srv.x, loop.state.srv.x1)):
        own = mine[:, j] == 1
        near(x, (A[own] * B[own]).sum(0) / A[own].sum(0), 1e-8)
    assert [loop.log.history[-1][f"cluster{j}"] for j in (0, 1)] == [*map(float, mine.mean(0))]
