"""Hyper-parameters, wrappers and the zoo."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
import torch

from fedloom import FedAvg, LocalSGD
from fedloom.algorithm import CHANGE, MEAN, Algorithm, Job, Oracle, Round, Trait
from fedloom.algorithms import FedACG, FedNova, Scaffold, fedavgm, fedprox
from fedloom.algorithms.registry import ALGORITHMS, label_of, make_algorithm, options
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
        with pytest.raises(CompositionError, match=r"local.momentum and Scaffold"):
            Plan(wrong(), CrossEntropy())
    with pytest.raises(CompositionError, match=r"Clip and Recursive"):
        Plan(Clip(inner=Recursive(), norm=1.0), CrossEntropy())
    with pytest.raises(CompositionError, match=r"WeightDecay and Recursive"):
        Plan(WeightDecay(inner=Prox(inner=Recursive(), mu=0.0), wd=1.0), CrossEntropy())
    for outside, name in (
        (Lookahead(inner=Lookahead(inner=FedAvg())), "server=lookahead"),
        (ServerOpt(inner=Lookahead(inner=FedAvg()), opt=Momentum()), "server=momentum"),
    ):
        with pytest.raises(CompositionError, match=f"{name} and FedAvg"):
            Plan(outside, CrossEntropy())
    with pytest.raises(CompositionError, match="Prox and FedNova"):
        Plan(Prox(inner=FedNova(), mu=0.1), CrossEntropy())


WRAPPED = [
    Wrapper(inner=Scaffold()),
    Prox(inner=Scaffold(), mu=0.1),
    ServerWrapper(inner=Scaffold()),
    Lookahead(inner=Prox(inner=Scaffold(), mu=0.1), lam=0.5),
]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_a_method_declares_is_true_inside_a_wrapper(wrapped):
    for name in ("compressible_up", "compressible_down", "probes", "method"):
        assert getattr(wrapped, name) == getattr(Scaffold(), name)
    assert wrapped.traits >= Scaffold().traits
    again = pickle.loads(pickle.dumps(wrapped))
    assert again == wrapped and again.compressible_up == {"delta": MEAN, "dc": CHANGE}


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


# ----------------------------------------------------------------------------------------- the zoo


USUAL = {  # the hyper-parameters that the pages of the methods name
    "fedavg": {"server_lr": 1.0},
    "fedprox": {"mu": 0.001, "server_lr": 1.0},
    "fedavgm": {"beta": 0.9, "server_lr": 1.0},
    "scaffold": {"server_lr": 1.0, "option": 2},
    "fedacg": {"lam": 0.85, "beta": 0.01},
    "fednova": {"server_lr": 1.0},
    "cfedavg": {"server_lr": 1.0, "per_step": False},
    "feddyn": {"alpha": 0.1, "size_scaled": False},
    "fedsmoo": {"rho": 0.1, "beta": 10.0, "dynamic": True, "correction": True},
    "fafed": {"alpha": 0.9, "beta": 0.9, "rho": 0.01, "c": None, "ext": 1.0}
    | {"precondition_first_step": False, "a_lag": False, "matrix": "coordinate"},
    "fedadagrad": {"server_lr": 0.03, "beta1": 0.0, "tau": 0.001, "v0": None},
    "fedadam": {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001, "v0": None},
    "fedyogi": {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001, "v0": None},
    "fedams": {"server_lr": 0.03, "beta1": 0.9, "beta2": 0.99, "eps": 0.001, "option": 1}
    | {"start": 0.0, "corrected": False},
    "fedcm": {"server_lr": 1.0, "alpha": 0.1},
    "feddc": {"alpha": 0.01, "eta0": None, "size_scaled": False},
    "fedsam": {"rho": 0.01, "server_lr": 1.0},
    "mofedsam": {"alpha": 0.1, "rho": 0.01, "server_lr": 1.0},
    "fedgamma": {"rho": 0.01, "server_lr": 1.0},
    "fedspeed": {"alpha": 0.1, "rho": 0.1, "mix": 1.0},
    "stem": {"alpha": 0.1, "c": None},
    "naive_adaptive": {"beta": 0.9, "eps": 0.0},
    "fedexp": {"eps": 0.001},
    "scaffnew": {},
    "mime": {"server_lr": 1.0, "beta": 0.9},
    "mimelite": {"server_lr": 1.0, "beta": 0.9},
    "fedlin": {"server_lr": 1.0},
    "qfedavg": {"q": 1.0, "lipschitz": None},
    "afl": {"rate": 0.1},
    "ditto": {"server_lr": 1.0, "lam": 1.0},
    "ifca": {"clusters": 2, "spread": 0.1},
    "diloco": {"server_lr": 0.7, "beta": 0.9},
    "fedbuff": {"server_lr": 1.0},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_have_their_papers_numbers_by_default(name):
    assert {key: o.default for key, o in options(name).items()} == USUAL[name]
    made = make_algorithm(name)
    assert made == make_algorithm(name, **USUAL[name]) and label_of(made) == ALGORITHMS.label(name)
    for key, value in USUAL[name].items():
        other = {bool: not value, int: 2}.get(type(value), 0.5)
        if value != other and not isinstance(value, str | tuple):
            assert make_algorithm(name, **{key: other}) != made, key
    # a client at rest: what it sends is nothing, whatever the method
    zero = torch.zeros(3, dtype=torch.float64)
    srv, mem = made.server_init(X, rec(m=zero, v=zero)), made.client_init(X)
    msg = made.broadcast(srv)
    still = Oracle(torch.zeros_like, torch.sum)
    job = JOB._replace(full=still)
    if made.asks:
        answer, mem = made.ask(msg, mem, job)
        msg = rec(**msg._asdict(), **answer._asdict())
    x, loc = made.start(msg, mem, job)
    d, loc = made.direction(x, loc, msg, mem, still, job)
    up, _ = made.finish(x - JOB.lr * d, loc, msg, mem, job)
    assert not up.delta.any() and up.weight == 2.0
    assert torch.equal(made.model(srv), X)


def test_what_a_parameter_is_called_with_comes_first():
    alpha, rho, _ = options("fedspeed").values()
    assert alpha.source == "FL-Simulator: 0.1, its lambda; paper: 1 / lambda"
    assert alpha.meaning == "strength of the dual" and rho.source == "FL-Simulator: 0.1"
    assert rho.text() == "in [0, inf)"


def test_the_ten_methods_are_those_to_write():
    assert Algorithm.__abstractmethods__ == {
        *("server_init", "broadcast", "server_step", "model", "unweighted"),
        *("probe", "client_init", "start", "direction", "finish"),
    }
    assert not LocalSGD().unweighted(rec(), JOB) and LocalSGD().probe(X, grad) is None
    assert {n for n in ALGORITHMS if make_algorithm(n).probes} == {"fafed", "stem"}
    assert {n for n in ALGORITHMS if make_algorithm(n).plain} >= {"fedavg", "fednova", "cfedavg"}
    assert not make_algorithm("scaffold").plain
    later = JOB.at(0.2, 1.0)
    assert later == JOB._replace(lr=0.2, step=1.0) and later.size == 1.0


def test_a_part_of_ones_own_is_called_by_what_it_is():
    class Mine(LocalSGD):
        pass

    assert label_of(Mine()) == "Mine"
    assert label_of(Prox(inner=Scaffold(), mu=0.1)) == "Prox(Scaffold)"
    assert label_of(ServerOpt(inner=Mine(), opt=Momentum())) == "ServerOpt(Mine, Momentum)"


def test_unknown_names_and_options_come_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"'fedacgg'; did you mean 'fedacg'\?"):
        make_algorithm("fedacgg")
    with pytest.raises(ConfigError, match=r"no option 'lamb'; did you mean 'lam'\?"):
        make_algorithm("fedacg", lamb=0.1)
    with pytest.raises(ConfigError, match=r"FedACG.lam must be in \[0, 1\), got 'high'"):
        make_algorithm("fedacg", lam="high")
    with pytest.raises(ConfigError, match=r"lam must be in \[0, 1\), got 1.5"):
        make_algorithm("fedacg", lam=1.5)
