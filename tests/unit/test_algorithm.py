"""Methods as values, wrappers and the order of a step's parts, server optimisers, and the zoo."""

import math
import pickle

import pytest
import torch

from fedloom import FedAvg, LocalSGD
from fedloom.algorithm import CHANGE, MEAN, Job, Round, Trait
from fedloom.algorithms import FedACG, FedNova, Scaffold, diloco, fedams, fedprox
from fedloom.algorithms.more.diloco import DiLoCoSteps
from fedloom.algorithms.registry import ALGORITHMS, label_of, make_algorithm, options
from fedloom.config import resolve
from fedloom.core.hyper import hyper
from fedloom.core.vector import clip, rec
from fedloom.errors import CompositionError, ConfigError
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan
from fedloom.wrappers import (
    Average,
    Clip,
    ClipGrad,
    LocalOpt,
    Lookahead,
    Momentum,
    Nesterov,
    Prox,
    Sam,
    ServerAdagrad,
    ServerAdam,
    ServerAMSGrad,
    ServerOpt,
    ServerWrapper,
    ServerYogi,
    WeightDecay,
    Wrapper,
    build,
)
from fedloom.wrappers.registry import SERVERS, with_server
from support.refusals import refused

X = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
Y = torch.tensor([0.5, 1.0, -1.0], dtype=torch.float64)
JOB = Job(2.0, 3.0, 0.1, 0.3, 0.0, 0.0, -1.0)


def grad(y):
    return torch.tensor([2.0, 5.0, 7.0], dtype=torch.float64) * y


class Recursive(LocalSGD):
    traits = frozenset({Trait.RECURSIVE})


class Mine(LocalSGD):
    strength: float = hyper(0.5, low=0, high=1)


def test_algorithms_are_values():
    assert FedACG(lam=0.5) == FedACG(lam=0.5) != FedACG()
    with pytest.raises(ConfigError, match="give arguments by name"):
        FedACG(0.5)
    for make in ALGORITHMS.values():
        again = pickle.loads(pickle.dumps(make()))
        assert again == make() and again.traits == make().traits
    assert Mine().strength == 0.5 and Mine(strength=1) == Mine(strength=1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: FedAvg(server_lr=math.inf),
        lambda: FedACG(beta=math.nan),
        lambda: Scaffold(option=3),
        lambda: fedprox(mu=-1),
        lambda: Momentum(beta=1.5),
        lambda: Clip(inner=FedAvg(), norm=0),
        lambda: WeightDecay(inner=FedAvg(), wd=-1),
        lambda: Lookahead(inner=FedAvg(), lam=1),
        lambda: Mine(strength=2),
        lambda: make_algorithm("fedacg", lam="high"),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match=r"\w+\.\w+ must be (in|one of) .*got") as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_unknown_names_and_options_come_with_a_suggestion():
    for make, words in (
        (lambda: make_algorithm("fedacgg"), r"'fedacgg'; did you mean 'fedacg'\?"),
        (lambda: make_algorithm("fedacg", lamb=0.1), r"no option 'lamb'; did you mean 'lam'\?"),
        (lambda: with_server(FedAvg(), "adm", {}), "server 'adm'; did you mean 'adam'"),
    ):
        with pytest.raises(ConfigError, match=words):
            make()


def test_a_part_of_ones_own_is_called_by_what_it_is():
    assert label_of(Mine()) == "Mine"
    assert label_of(Prox(inner=Scaffold(), mu=0.1)) == "Prox(Scaffold)"
    assert label_of(ServerOpt(inner=Mine(), opt=Momentum())) == "ServerOpt(Mine, Momentum)"


def started(algorithm):
    """The server's message and a client's state before its first step."""
    msg = algorithm.broadcast(algorithm.server_init(X, None))
    return msg, algorithm.start(msg, algorithm.client_init(X), JOB)[1]


def test_the_parts_of_a_step_come_in_the_documented_order():
    built = build(Prox(inner=LocalSGD(), mu=0.3), 0.5, 0.01, Momentum(beta=0.9))
    msg, loc = started(built)
    d1, loc = built.direction(Y, loc, msg, rec(), grad, JOB)
    d2, loc = built.direction(X, loc, msg, rec(), grad, JOB)
    want = clip(grad(Y) + 0.3 * (Y - X), 0.5) + 0.01 * Y
    torch.testing.assert_close(d1, want, rtol=0, atol=1e-15)
    again = 0.9 * d1 + clip(grad(X), 0.5) + 0.01 * X
    torch.testing.assert_close(d2, again, rtol=0, atol=1e-15)


def test_parts_that_are_not_wanted_are_left_out():
    assert build(FedAvg()) == FedAvg()
    assert build(FedAvg(), 1.0) == Clip(inner=FedAvg(), norm=1.0)
    assert build(FedAvg(), None, 0.1) == WeightDecay(inner=FedAvg(), wd=0.1)
    assert isinstance(build(FedAvg(), opt=Momentum()), LocalOpt)


def test_a_recursion_is_clipped_and_decayed_one_gradient_at_a_time():
    built = build(Recursive(), 0.5, 0.01)
    assert built == ClipGrad(inner=Recursive(), norm=0.5, wd=0.01)
    decayed = ClipGrad(inner=Recursive(), wd=0.2)
    for clipped, want in ((built, clip(grad(Y), 0.5) + 0.01 * Y), (decayed, grad(Y) + 0.2 * Y)):
        msg, loc = started(clipped)
        torch.testing.assert_close(clipped.direction(Y, loc, msg, rec(), grad, JOB)[0], want)


TWICE = Lookahead(inner=Lookahead(inner=FedAvg()))
AHEAD = ServerOpt(inner=Lookahead(inner=FedAvg()), opt=Momentum())


@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [
        (LocalOpt(inner=Clip(inner=Scaffold(), norm=1.0), opt=Momentum()), "momentum and Scaffold"),
        (build(Prox(inner=Scaffold(), mu=0.1), opt=Momentum()), "local.momentum and Scaffold"),
        (Clip(inner=Recursive(), norm=1.0), "Clip and Recursive"),
        (WeightDecay(inner=Prox(inner=Recursive(), mu=0.0), wd=1.0), "WeightDecay and Recursive"),
        (TWICE, "server=lookahead and FedAvg"),
        (AHEAD, "server=momentum and FedAvg"),
        (Prox(inner=FedNova(), mu=0.1), "Prox and FedNova"),
    ],
)
def test_combinations_without_a_meaning_name_both_parts(algorithm, parts):
    refused(lambda: Plan(algorithm, CrossEntropy()), parts, kind=CompositionError)


WRAPPED = [Wrapper(inner=Scaffold()), ServerWrapper(inner=Scaffold())]
WRAPPED += [Lookahead(inner=Prox(inner=Scaffold(), mu=0.1), lam=0.5)]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_a_method_declares_is_true_inside_a_wrapper(wrapped):
    for name in ("compressible_up", "compressible_down", "probes", "method"):
        assert getattr(wrapped, name) == getattr(Scaffold(), name)
    assert wrapped.traits >= Scaffold().traits
    again = pickle.loads(pickle.dumps(wrapped))
    assert again == wrapped and again.compressible_up == {"delta": MEAN, "dc": CHANGE}


def test_a_server_wrapper_that_does_nothing_changes_nothing():
    inner, outer = Scaffold(server_lr=0.7), ServerWrapper(inner=Scaffold(server_lr=0.7))
    a, b = inner.server_init(X, None), outer.server_init(X, None)
    for t in range(3):
        given = rec(delta=Y, dc=X), Round(t, 0.5, 0.1)
        a, b = inner.server_step(a, *given), outer.server_step(b, *given)
        torch.testing.assert_close(b.x, a.x, rtol=0, atol=1e-15)
        assert torch.equal(outer.broadcast(b).c, inner.broadcast(a).c)
        assert torch.equal(outer.model(b), b.x)


def test_server_optimisers_nest():
    alg = Lookahead(inner=ServerOpt(inner=LocalSGD(), opt=Momentum(beta=0.5)), lam=0.8)
    srv, x, m, v = alg.server_init(X, None), X, torch.zeros_like(X), torch.zeros_like(X)
    for t in range(4):
        torch.testing.assert_close(alg.broadcast(srv).x, x + 0.8 * m, rtol=0, atol=1e-15)
        srv = alg.server_step(srv, rec(delta=Y), Round(t, 1.0, 0.1))
        v = 0.5 * v + Y
        m = 0.8 * m + v
        x = x + m
        torch.testing.assert_close(srv.x, x, rtol=0, atol=1e-14)


TYPES = {"average": Average, "momentum": Momentum, "nesterov": Nesterov, "adagrad": ServerAdagrad}
TYPES |= {"adam": ServerAdam, "yogi": ServerYogi, "amsgrad": ServerAMSGrad}


def test_a_name_is_its_optimiser_and_a_methods_defaults_are_its():
    assert [*SERVERS] == [*TYPES, "lookahead"]
    for name, kind in TYPES.items():
        assert type(with_server(FedAvg(), name, {}).opt) is kind
    own = {"fedadagrad": "adagrad", "fedadam": "adam", "fedyogi": "yogi", "fedavgm": "momentum"}
    for method, name in own.items():
        assert make_algorithm(method) == ServerOpt(inner=LocalSGD(), opt=TYPES[name]())
    assert fedams() == ServerOpt(inner=LocalSGD(), opt=ServerAMSGrad())
    assert diloco() == ServerOpt(inner=DiLoCoSteps(), opt=Nesterov())


def algorithm(*changes):
    return resolve("digits", changes).experiment().algorithm


def test_a_server_is_named_on_the_command_line_and_another_one_drops_its_options():
    adam = algorithm("algorithm=scaffold", "server=adam", "server.lr=0.05")
    assert adam.opt == ServerAdam(lr=0.05) and adam.inner.method == "Scaffold"
    assert algorithm("server=lookahead", "server.lam=0.7") == Lookahead(inner=FedAvg(), lam=0.7)
    assert algorithm("server=amsgrad", "server.option=2").opt == ServerAMSGrad(option=2)
    assert algorithm("server=adam", "server.lr=0.05", "server=none") == FedAvg()
    assert algorithm("server=adam", "server=momentum").opt == Momentum()
    config = resolve("digits", ["server=momentum", "server.beta=0.5"])
    assert config.values["server"] == {"name": "momentum", "lr": 1.0, "beta": 0.5}
    assert config.values["label"] == "FedAvg + momentum" and "[server]" in config.to_toml()
    assert "server" not in resolve("digits").values


@pytest.mark.parametrize(
    ("method", "server", "words"),
    [
        ("fedadam", "adam", ["server 'adam'", "own server optimiser, ServerAdam"]),
        ("fedadam", "yogi", ["server 'yogi'", "ServerAdam"]),
        ("fedams", "adagrad", ["ServerAMSGrad"]),
        ("fedavgm", "momentum", [", Momentum, gives"]),
        ("fedadam", "average", []),
        ("fedadam", "lookahead", []),
        ("fedavgm", "adam", []),
        ("scaffold", "adam", []),
    ],
)
def test_an_optimiser_around_another_one_is_said_by_both_names(method, server, words, caplog):
    algorithm(f"algorithm={method}", f"server={server}")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(words)
    assert all(word in said[0] and "\n" not in said[0] for word in words)


def test_sam_at_the_clients_is_outermost():
    config = resolve("digits", ["local.sam=0.1", "local.clip=1.0", "local.momentum=0.5"])
    sam = config.experiment().plan().algorithm
    assert isinstance(sam, Sam) and sam.rho == 0.1


ADAPTIVE = {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001, "v0": None}
USUAL = {  # the hyper-parameters that the pages of the methods name
    **{name: {"server_lr": 1.0} for name in ("fedavg", "fednova", "fedlin", "fedbuff")},
    **{name: {"server_lr": 1.0, "beta": 0.9} for name in ("mime", "mimelite")},
    **dict.fromkeys(("fedadam", "fedyogi"), ADAPTIVE),
    "fedprox": {"mu": 0.001, "server_lr": 1.0},
    "fedavgm": {"beta": 0.9, "server_lr": 1.0},
    "scaffold": {"server_lr": 1.0, "option": 2},
    "fedacg": {"lam": 0.85, "beta": 0.01},
    "cfedavg": {"server_lr": 1.0, "per_step": False},
    "feddyn": {"alpha": 0.1, "size_scaled": False},
    "fedsmoo": {"rho": 0.1, "beta": 10.0, "dynamic": True, "correction": True},
    "fafed": {"alpha": 0.9, "beta": 0.9, "rho": 0.01, "c": None, "ext": 1.0}
    | {"precondition_first_step": False, "a_lag": False, "matrix": "coordinate"},
    "fedadagrad": {"server_lr": 0.03, "beta1": 0.0, "tau": 0.001, "v0": None},
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
    "qfedavg": {"q": 1.0, "lipschitz": None},
    "afl": {"rate": 0.1},
    "ditto": {"server_lr": 1.0, "lam": 1.0},
    "ifca": {"clusters": 2, "spread": 0.1},
    "diloco": {"server_lr": 0.7, "beta": 0.9},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_have_their_papers_numbers_by_default(name):
    assert {key: o.default for key, o in options(name).items()} == USUAL[name]
    method = make_algorithm(name)
    assert method == make_algorithm(name, **USUAL[name])
    assert label_of(method) == ALGORITHMS.label(name)
