"""Where one method must become another, and where parts change nothing, bit for bit."""

from __future__ import annotations

import functools

import pytest
import torch

import fedloom.algorithms as ours
import fedloom.wrappers as around
from cases import CASES
from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithm import Trait
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks.tiny_federation import experiment, run
from fedloom.compression.codecs import Dense, RandomDropping, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.vector import leaves
from fedloom.objectives import OrderedDistillation
from fedloom.submodels import FIARSE, SUBMODELS
from tiny import bits, near, quadratics, same, small, trace

EQUAL = {
    "FedProx(0) is FedAvg": (ours.fedprox(mu=0.0), FedAvg()),
    "FedACG(0, 0) is FedAvg": (ours.FedACG(lam=0.0, beta=0.0), FedAvg()),
    "FedAvgM(0) is FedAvg": (ours.fedavgm(beta=0.0), FedAvg()),
    "LocalSGD is FedAvg(1)": (LocalSGD(), FedAvg()),
    "FedACG is Lookahead(Prox(LocalSGD))": (
        ours.FedACG(lam=0.8, beta=0.3),
        around.Lookahead(inner=around.Prox(inner=LocalSGD(), mu=0.3), lam=0.8),
    ),
    "Lookahead(0) is nothing": (around.Lookahead(inner=LocalSGD(), lam=0.0), LocalSGD()),
    "FedAvgM is ServerOpt(Momentum)": (
        ours.fedavgm(beta=0.7, server_lr=0.5),
        around.ServerOpt(inner=FedAvg(), opt=around.Momentum(lr=0.5, beta=0.7)),
    ),
    "a clip out of reach is none": (around.Clip(inner=FedAvg(), norm=1e9), FedAvg()),
    "no weight decay is none": (around.WeightDecay(inner=FedAvg(), wd=0.0), FedAvg()),
    "FedSAM(rho 0) is FedAvg": (ours.fedsam(rho=0.0), FedAvg()),
    "FedSpeed(rho 0) is FedDyn": (ours.fedspeed(alpha=0.3, rho=0.0), ours.FedDyn(alpha=0.3)),
    "FedSpeed(mix 0) is FedDyn": (
        ours.fedspeed(alpha=0.3, rho=0.2, mix=0.0),
        ours.FedDyn(alpha=0.3),
    ),
    "FedGAMMA(rho 0) is SCAFFOLD": (ours.fedgamma(rho=0.0), ours.Scaffold()),
    "FedGAMMA is SCAFFOLD with SAM": (
        ours.fedgamma(rho=0.2),
        around.Sam(inner=ours.Scaffold(), rho=0.2),
    ),
    "FedCM(alpha 1) is FedAvg": (ours.FedCM(alpha=1.0), FedAvg()),
    "MoFedSAM(rho 0) is FedCM": (ours.mofedsam(alpha=0.3, rho=0.0), ours.FedCM(alpha=0.3)),
    "MoFedSAM(alpha 1) is FedSAM": (ours.mofedsam(alpha=1.0, rho=0.1), ours.fedsam(rho=0.1)),
    "Sam(rho 0) is nothing": (around.Sam(inner=ours.Scaffold(), rho=0.0), ours.Scaffold()),
    "Sam(rho 0) is nothing around FAFED": (around.Sam(inner=ours.FAFED(), rho=0.0), ours.FAFED()),
    "Average(1) is nothing": (around.ServerOpt(inner=LocalSGD(), opt=around.Average()), LocalSGD()),
    "FedAdam is a server optimiser": (
        ours.fedadam(server_lr=0.2),
        around.ServerOpt(inner=FedAvg(), opt=around.ServerAdam(lr=0.2)),
    ),
    "FedSMOO(rho 0) is FedDyn": (ours.FedSMOO(rho=0.0, beta=4.0), ours.FedDyn(alpha=0.25)),
    "CFedAvg of plain moves is FedAvg": (ours.CFedAvg(), FedAvg()),
    "DiLoCo of plain steps keeps nothing": (
        ours.diloco(),
        around.ServerOpt(inner=FedAvg(), opt=around.Nesterov()),
    ),
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
    one = quadratics(around.Sam(inner=ours.Scaffold(), rho=0.2), (2, 1, 3, 2), local=Local(**local))
    two = quadratics(ours.Scaffold(), (2, 1, 3, 2), local=Local(**local, sam=0.2))
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
