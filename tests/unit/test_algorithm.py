"""Hyper-parameters, wrappers and the zoo."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
import torch

from fedloom import FedAvg, LocalSGD
from fedloom.algorithm import CHANGE, MEAN, Algorithm, Job, Round, Trait
from fedloom.algorithms import FedACG, Scaffold, fedavgm, fedprox
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, options
from fedloom.core.hyper import hyper
from fedloom.core.vector import clip, rec
from fedloom.errors import CompositionError, ConfigError
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan
from fedloom.wrappers import (
    Clip,
    ClipGrad,
    LocalOpt,
    Lookahead,
    Momentum,
    Prox,
    ServerOpt,
    ServerWrapper,
    WeightDecay,
    Wrapper,
    build,
)

X = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
Y = torch.tensor([0.5, 1.0, -1.0], dtype=torch.float64)
JOB = Job(2.0, 3.0, 0.1, 0.3, 0.0, 0.0, -1.0)


def grad(y):
    return torch.tensor([2.0, 5.0, 7.0], dtype=torch.float64) * y


class Recursive(LocalSGD):
    traits = frozenset({Trait.RECURSIVE})


def direction(algorithm, x=Y):
    mem = algorithm.client_init(X)
    _, loc = algorithm.start(algorithm.broadcast(algorithm.server_init(X, None)), mem, JOB)
    msg = algorithm.broadcast(algorithm.server_init(X, None))
    return algorithm.direction(x, loc, msg, mem, grad, JOB)[0]


# -------------------------------------------------------------------------------------- dataclasses
def test_algorithms_are_frozen_and_compare_by_value():
    one = FedACG(lam=0.5)
    assert one == FedACG(lam=0.5) and hash(one) == hash(FedACG(lam=0.5)) and one != FedACG()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.lam = 0.1
    with pytest.raises(TypeError):
        FedACG(0.5)
    for make in ALGORITHMS.values():
        again = pickle.loads(pickle.dumps(make()))
        assert again == make() and again.traits == make().traits


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: FedAvg(server_lr=0),
        lambda: FedAvg(server_lr=math.inf),
        lambda: FedACG(lam=1.0),
        lambda: FedACG(lam=-0.1),
        lambda: FedACG(beta=math.nan),
        lambda: Scaffold(option=3),
        lambda: fedprox(mu=-1),
        lambda: fedavgm(beta=1.0),
        lambda: Momentum(beta=1.5),
        lambda: Clip(inner=FedAvg(), norm=0),
        lambda: WeightDecay(inner=FedAvg(), wd=-1),
        lambda: Lookahead(inner=FedAvg(), lam=1),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match=r"must be (in|one of) .*got") as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_an_algorithm_of_ones_own_gets_fields_and_ranges():
    class Mine(LocalSGD):
        strength: float = hyper(0.5, low=0, high=1)

    assert Mine().strength == 0.5 and Mine(strength=1) == Mine(strength=1)
    with pytest.raises(ConfigError, match=r"Mine.strength must be in \[0, 1\], got 2"):
        Mine(strength=2)


# ----------------------------------------------------------------------------------------- wrappers
def test_prox_pulls_towards_the_received_model():
    assert torch.equal(direction(Prox(inner=LocalSGD(), mu=0.3)), grad(Y) + 0.3 * (Y - X))


def test_the_parts_of_a_step_come_in_the_documented_order():
    built = build(Prox(inner=LocalSGD(), mu=0.3), 0.5, 0.01, Momentum(beta=0.9))
    want = clip(grad(Y) + 0.3 * (Y - X), 0.5) + 0.01 * Y
    torch.testing.assert_close(direction(built), want, rtol=0, atol=1e-15)
    srv = built.server_init(X, None)
    _, loc = built.start(built.broadcast(srv), rec(), JOB)
    d1, loc = built.direction(Y, loc, srv, rec(), grad, JOB)
    d2, loc = built.direction(X, loc, srv, rec(), grad, JOB)
    again = 0.9 * d1 + clip(grad(X), 0.5) + 0.01 * X
    torch.testing.assert_close(d2, again, rtol=0, atol=1e-15)


def test_parts_that_are_not_asked_for_are_left_out():
    assert build(FedAvg()) == FedAvg()
    assert build(FedAvg(), 1.0) == Clip(inner=FedAvg(), norm=1.0)
    assert build(FedAvg(), None, 0.1) == WeightDecay(inner=FedAvg(), wd=0.1)
    assert isinstance(build(FedAvg(), opt=Momentum()), LocalOpt)


def test_a_recursion_is_clipped_and_decayed_one_gradient_at_a_time():
    built = build(Recursive(), 0.5, 0.01)
    assert built == ClipGrad(inner=Recursive(), norm=0.5, wd=0.01)
    torch.testing.assert_close(direction(built), clip(grad(Y), 0.5) + 0.01 * Y)
    torch.testing.assert_close(direction(ClipGrad(inner=Recursive(), wd=0.2)), grad(Y) + 0.2 * Y)


def test_combinations_without_a_meaning_name_both_parts():
    for wrong in (
        lambda: LocalOpt(inner=Scaffold(), opt=Momentum()),
        lambda: LocalOpt(inner=Clip(inner=Scaffold(), norm=1.0), opt=Momentum()),
        lambda: build(Prox(inner=Scaffold(), mu=0.1), opt=Momentum()),
    ):
        with pytest.raises(CompositionError, match=r"LocalOpt and Scaffold"):
            Plan(wrong(), CrossEntropy())
    with pytest.raises(CompositionError, match=r"Clip and Recursive"):
        Plan(Clip(inner=Recursive(), norm=1.0), CrossEntropy())
    with pytest.raises(CompositionError, match=r"WeightDecay and Recursive"):
        Plan(WeightDecay(inner=Prox(inner=Recursive(), mu=0.0), wd=1.0), CrossEntropy())


WRAPPED = [
    Wrapper(inner=Scaffold()),
    Prox(inner=Scaffold(), mu=0.1),
    ServerWrapper(inner=Scaffold()),
    Lookahead(inner=Prox(inner=Scaffold(), mu=0.1), lam=0.5),
]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_a_method_declares_is_true_inside_a_wrapper(wrapped):
    for name in ("sent", "approximate", "probes", "method"):
        assert getattr(wrapped, name) == getattr(Scaffold(), name)
    assert wrapped.traits >= Scaffold().traits
    again = pickle.loads(pickle.dumps(wrapped))
    assert again == wrapped and again.sent == {"delta": MEAN, "dc": CHANGE}


def test_a_server_wrapper_that_does_nothing_changes_nothing():
    up = rec(delta=Y, dc=X)
    inner, outer = Scaffold(server_lr=0.7), ServerWrapper(inner=Scaffold(server_lr=0.7))
    a, b = inner.server_init(X, None), outer.server_init(X, None)
    for t in range(3):
        rnd = Round(t, 0.5, 0.1)
        a, b = inner.server_step(a, up, rnd), outer.server_step(b, up, rnd)
        torch.testing.assert_close(b.x, a.x, rtol=0, atol=1e-15)
        assert torch.equal(outer.broadcast(b).c, inner.broadcast(a).c)
        assert torch.equal(outer.model(b), b.x)


def test_server_optimisers_nest():
    alg = Lookahead(inner=ServerOpt(inner=LocalSGD(), opt=Momentum(beta=0.5)), lam=0.8)
    srv, x, m, v = (
        alg.server_init(X, None),
        X.clone(),
        torch.zeros(3).double(),
        torch.zeros(3).double(),
    )
    for t in range(4):
        torch.testing.assert_close(alg.broadcast(srv).x, x + 0.8 * m, rtol=0, atol=1e-15)
        srv = alg.server_step(srv, rec(delta=Y), Round(t, 1.0, 0.1))
        v = 0.5 * v + Y
        m = 0.8 * m + v
        x = x + m
        torch.testing.assert_close(srv.x, x, rtol=0, atol=1e-14)


def test_scaffold_only_counts_who_answered():
    srv = Scaffold(server_lr=0.5).server_init(X, None)
    out = Scaffold(server_lr=0.5).server_step(srv, rec(delta=Y, dc=X), Round(0, 0.25, 0.1))
    assert torch.equal(out.x, X + 0.5 * Y) and torch.equal(out.c, 0.25 * X)


# ----------------------------------------------------------------------------------------- the zoo
def test_every_entry_can_be_made_by_name():
    for name in ALGORITHMS:
        assert isinstance(make_algorithm(name), Algorithm)
        assert ALGORITHMS.label(name)
        defaults = {o.name: o.default for o in options(name)}
        assert make_algorithm(name, **defaults) == make_algorithm(name)


def test_unknown_names_and_options_come_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"'fedacgg'; did you mean 'fedacg'\?"):
        make_algorithm("fedacgg")
    with pytest.raises(ConfigError, match=r"no option 'lamb'; did you mean 'lam'\?"):
        make_algorithm("fedacg", lamb=0.1)
    with pytest.raises(ConfigError, match=r"algorithm.lam must be a number .*got 'high'"):
        make_algorithm("fedacg", lam="high")
    with pytest.raises(ConfigError, match=r"lam must be in \[0, 1\), got 1.5"):
        make_algorithm("fedacg", lam=1.5)


def test_options_are_those_of_the_parts():
    known = {o.name: o for o in options("fedavgm")}
    assert known["beta"].allowed == "in [0, 1)" and known["server_lr"].allowed == "in (0, inf)"
    assert {o.name for o in options("scaffold")} == {"server_lr", "option"}
