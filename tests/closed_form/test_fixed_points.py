"""Where one method must become another, where parts change nothing, bit for bit, and where methods
end on quadratics: in the minimiser that `weighting` says, or in a known other point.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import fedloom.algorithms as ours
from cases import CASES
from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithm import Trait
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks.tiny_federation import experiment, run
from fedloom.compression.codecs import Dense, RandomDropping, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.net import Variables
from fedloom.core.vector import leaves
from fedloom.data import from_clients
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import Levels
from fedloom.objectives import OrderedDistillation
from fedloom.submodels import FIARSE, SUBMODELS
from fedloom.wrappers import (
    Average,
    Clip,
    Lookahead,
    Momentum,
    Nesterov,
    Prox,
    Sam,
    ServerAdam,
    ServerOpt,
    WeightDecay,
)
from tiny import A, B, bits, near, quadratics, same, small, trace

DYN, SCAFFOLD = ours.FedDyn(alpha=0.3), ours.Scaffold()


EQUAL = {
    "FedProx(0) is FedAvg": (ours.fedprox(mu=0.0), FedAvg()),
    "FedACG(0, 0) is FedAvg": (ours.FedACG(lam=0.0, beta=0.0), FedAvg()),
    "FedAvgM(0) is FedAvg": (ours.fedavgm(beta=0.0), FedAvg()),
    "LocalSGD is FedAvg(1)": (LocalSGD(), FedAvg()),
    "FedACG is Lookahead(Prox(LocalSGD))": (
        ours.FedACG(lam=0.8, beta=0.3),
        Lookahead(inner=Prox(inner=LocalSGD(), mu=0.3), lam=0.8),
    ),
    "Lookahead(0) is nothing": (Lookahead(inner=LocalSGD(), lam=0.0), LocalSGD()),
    "FedAvgM is ServerOpt(Momentum)": (
        ours.fedavgm(beta=0.7, server_lr=0.5),
        ServerOpt(inner=FedAvg(), opt=Momentum(lr=0.5, beta=0.7)),
    ),
    "a clip out of reach is none": (Clip(inner=FedAvg(), norm=1e9), FedAvg()),
    "no weight decay is none": (WeightDecay(inner=FedAvg(), wd=0.0), FedAvg()),
    "FedSAM(rho 0) is FedAvg": (ours.fedsam(rho=0.0), FedAvg()),
    "FedSpeed(rho 0) is FedDyn": (ours.fedspeed(alpha=0.3, rho=0.0), DYN),
    "FedSpeed(mix 0) is FedDyn": (ours.fedspeed(alpha=0.3, rho=0.2, mix=0.0), DYN),
    "FedGAMMA(rho 0) is SCAFFOLD": (ours.fedgamma(rho=0.0), SCAFFOLD),
    "FedGAMMA is SCAFFOLD with SAM": (ours.fedgamma(rho=0.2), Sam(inner=SCAFFOLD, rho=0.2)),
    "FedCM(alpha 1) is FedAvg": (ours.FedCM(alpha=1.0), FedAvg()),
    "MoFedSAM(rho 0) is FedCM": (ours.mofedsam(alpha=0.3, rho=0.0), ours.FedCM(alpha=0.3)),
    "MoFedSAM(alpha 1) is FedSAM": (ours.mofedsam(alpha=1.0, rho=0.1), ours.fedsam(rho=0.1)),
    "Sam(rho 0) is nothing": (Sam(inner=SCAFFOLD, rho=0.0), SCAFFOLD),
    "Sam(rho 0) is nothing around FAFED": (Sam(inner=ours.FAFED(), rho=0.0), ours.FAFED()),
    "Average(1) is nothing": (ServerOpt(inner=LocalSGD(), opt=Average()), LocalSGD()),
    "FedAdam is a server optimiser": (
        ours.fedadam(server_lr=0.2),
        ServerOpt(inner=FedAvg(), opt=ServerAdam(lr=0.2)),
    ),
    "FedSMOO(rho 0) is FedDyn": (ours.FedSMOO(rho=0.0, beta=4.0), ours.FedDyn(alpha=0.25)),
    "CFedAvg of plain moves is FedAvg": (ours.CFedAvg(), FedAvg()),
    "DiLoCo of plain steps": (ours.diloco(), ServerOpt(inner=FedAvg(), opt=Nesterov())),
}


# torch.equal, not the bytes: x + 0 m may turn -0 into 0
@pytest.mark.parametrize("name", EQUAL)
def test_limit(name):
    one, other = (
        [loop.state.srv.x for loop in trace(small(algorithm), 3)] for algorithm in EQUAL[name]
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[-1])


def test_sam_at_the_clients_is_the_wrapper():
    local = {"epochs": 1, "batch": 1, "lr": 0.1}
    one = quadratics(Sam(inner=SCAFFOLD, rho=0.2), (2, 1, 3, 2), local=Local(**local))
    two = quadratics(SCAFFOLD, (2, 1, 3, 2), local=Local(**local, sam=0.2))
    for a, b in zip(trace(one, 5), trace(two, 5), strict=True):
        assert torch.equal(a.state.srv.x, b.state.srv.x)


# ------------------------------------------------------------------- capacity 1, ratio 1, and both
LOSSLESS = {
    "dense": FieldCodec(Dense(), Residual()),
    "top": FieldCodec(TopK(ratio=1.0), Residual()),
    "top by layer": FieldCodec(TopK(ratio=1.0, scope="layer"), Forget()),
    "dropping": FieldCodec(RandomDropping(ratio=1.0), Residual()),
}
PARTIAL = [name for name in ALGORITHMS if Trait.WHOLE_MODEL not in make_algorithm(name).traits]


def ends(name, **parts):
    """What the server has learnt, and what every client remembers of the algorithm, as bits."""
    *_, loop = trace(small(make_algorithm(name), **parts), 3)
    rows = loop.memory.get(range(loop.fed.population))
    tensors = leaves(loop.state.srv, *(rows[i].alg for i in sorted(rows)))
    return [bits(v + 0.0) for v in tensors]  # -0 and 0 are one number


base = functools.cache(ends)


@pytest.mark.parametrize("name", PARTIAL)
def test_capacity_one_is_the_base_algorithm(name):
    assert ends(name, submodel=FIARSE(), capacities=[1.0]) == base(name)


RULES = [*SUBMODELS, "scalefl, as its code", "fjord, distilled", "fjord, FedNTD", "fiarse, shards"]
RULES += ["fiarse, masked steps", "heterofl, budget", "fedrolex, no scaler", "fjord, scaffold"]


class SelfTaught(OrderedDistillation):
    """The same loss, without a rule that draws parts."""

    needs = None


@pytest.mark.parametrize("case", RULES)
def test_every_scheme_at_capacity_one_is_the_base_algorithm(case):
    trial = CASES[case].make(capacities=[1.0])
    loss = trial.objective
    if isinstance(loss, OrderedDistillation):
        loss = SelfTaught(**vars(loss))
    parts = {"algorithm": trial.algorithm, "objective": loss, "model": trial.model}
    one, other = run(trial), run(experiment(**parts, local=trial.local))
    assert same(one.srv, other.srv)
    assert all(same(one.memory[i], other.memory[i]) for i in other.memory)
    assert (one.up, one.down) == (other.up, other.down)


@pytest.mark.parametrize(
    ("name", "codec"), [*((n, "top") for n in ALGORITHMS), *(("scaffold", c) for c in LOSSLESS)]
)
def test_ratio_one_is_the_base_algorithm(name, codec):
    assert ends(name, compress=LOSSLESS[codec]) == base(name)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedacg", "feddyn", "mime"])
def test_both_at_once_are_the_base_algorithm_and_anything_less_is_another_run(name):
    less = FieldCodec(TopK(ratio=0.9), Residual())
    parts = {"submodel": FIARSE(), "capacities": [1.0]}
    assert ends(name, compress=LOSSLESS["top"], **parts) == base(name)
    assert ends(name, compress=less) != base(name)
    if name in PARTIAL:
        parts["capacities"] = [0.3, 1.0]
        assert ends(name, **parts) != base(name)
        assert ends(name, compress=LOSSLESS["top"], **parts) == ends(name, **parts)
        assert ends(name, compress=less, **parts) != ends(name, **parts)


# other sums of the same: equal but for rounding
NEAR = [
    *((FieldCodec(via.codec, EF21()), 1e-13) for via in LOSSLESS.values()),
    *((Link(down=via.codec), 1e-13) for via in LOSSLESS.values()),
]


@pytest.mark.parametrize(("link", "atol"), NEAR)
def test_ratio_one_with_ef21_or_on_the_way_down_is_the_base_algorithm_of_everybody(link, atol):
    settings = {"cohort": 1.0, "weighting": "uniform"}
    for_all = [
        [*trace(small(ours.FedACG(), torch.float64, **settings, **parts), 4)][-1].state.srv
        for parts in ({}, {"compress": link})
    ]
    for a, b in zip(*map(leaves, for_all), strict=True):
        near(a, b, atol)


# ------------------------------------------------------------------------------- where methods end
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
