"""Every kind of layer that models are made of, in every engine."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from test_engines import agree
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import Scaffold
from fedloom.core.vector import leaves
from fedloom.data import from_clients
from fedloom.engines import family_of
from fedloom.errors import ClientError, CompositionError
from fedloom.models import cnn_celeba, lstm_shakespeare, resnet18, transformer_text
from fedloom.models.layers import norm_of
from fedloom.objectives import FedMLB
from fedloom.submodels.private import FedPer
from tiny import agree_within, bits, outcome, results_agree, timeless, trace

SIZES = (3, 8, 5, 11, 2)  # short last batches
KINDS = ["group", "static_batch", "lstm", "transformer", "fedmlb on lstm", "fedmlb on transformer"]
KINDS += ["used twice", "fedmlb on used twice"]


def images(dtype):
    draw = np.random.default_rng(8)
    sample = lambda n: (draw.normal(size=(n, 3, 8, 8)), draw.integers(3, size=n))
    return from_clients([sample(n) for n in SIZES], test=sample(9), dtype=dtype)


def texts(dtype):
    draw = np.random.default_rng(8)
    sample = lambda n: (draw.integers(9, size=(n, 5)), draw.integers(3, size=n))
    return from_clients([sample(n) for n in SIZES], test=sample(9), dtype=dtype)


def convolutions(norm):
    make = norm_of(norm, 2, [4])
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), make(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), make(4)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    )


def used_twice():
    same, norm, drop = nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.3)
    body = nn.Sequential(same, norm, nn.Tanh(), drop, same, norm, drop)
    return nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(30, 6), body, nn.Linear(6, 3))


def model(kind):
    if "twice" in kind:
        return used_twice()
    if "transformer" in kind:
        return transformer_text(9, 3, 6, 8, 2, dropout=0.2)
    if "lstm" in kind:
        return lstm_shakespeare(9, 4, 6)
    return convolutions(kind)


def run(kind, dtype, engine):
    torch.manual_seed(6)
    experiment = Experiment(
        algorithm=FedAvg(),
        model=model(kind).to(dtype),
        data=(images if kind in ("group", "static_batch") else texts)(dtype),
        rounds=3,
        cohort=3,
        objective=FedMLB() if "fedmlb" in kind else None,
        local=Local(epochs=2, batch=4, lr=0.1),
        seed=4,
        device="cpu",
        engine=engine,
    )
    return outcome(experiment, 3)


@functools.cache
def serially(kind, dtype):
    return run(kind, dtype, "serial")


@pytest.mark.quick("group", "lstm", "fedmlb on transformer", "used twice")
@pytest.mark.parametrize("kind", KINDS)
def test_workers_have_the_bits_of_serial_in_float32(kind, engine_of):
    agree(run(kind, torch.float32, engine_of("workers:2")), serially(kind, torch.float32))


@pytest.mark.quick("2")
@pytest.mark.parametrize("chunk", [2, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_vectorised_agrees_with_serial_in_float64(kind, chunk):
    one, other = run(kind, torch.float64, f"vectorised:{chunk}"), serially(kind, torch.float64)
    agree_within(one, other, 1e-12)
    for a, b in zip(one[2], other[2], strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("build", [resnet18, cnn_celeba])
def test_whole_networks_agree_in_both_engines(build):
    draw, ends = np.random.default_rng(8), []
    side = 84 if build is cnn_celeba else 16
    sample = lambda n: (draw.normal(size=(n, 3, side, side)), draw.integers(2, size=n))
    data = from_clients([sample(n) for n in (2, 3)], dtype=torch.float64)
    torch.manual_seed(6)
    module = build(classes=2).double()
    for engine in ("serial", "vectorised"):
        experiment = Experiment(
            algorithm=FedAvg(),
            model=module,
            data=data,
            rounds=1,
            local=Local(epochs=1, batch=2, lr=0.05),
            device="cpu",
            engine=engine,
        )
        ends.append([*trace(experiment, 1)][-1].state.srv.x)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-11)


def on_texts(module, **changes):
    settings = {
        "algorithm": FedAvg(),
        "model": module.double(),
        "data": texts(torch.float64),
        "rounds": 2,
        "local": Local(epochs=1, batch=4, lr=0.1),
        "device": "cpu",
    }
    return Experiment(**(settings | changes))


def test_a_module_that_is_used_twice_is_exported_as_it_was_trained():
    torch.manual_seed(6)
    *_, loop = trace(on_texts(used_twice()), 2)
    net, x = loop.net, loop.state.srv.x
    out = net.export(x)
    assert out[3][0] is out[3][4] and out[3][3] is out[3][6]
    assert type(out[3][3]) is nn.Dropout and len([*out.parameters()]) == len(net.params)
    net.train(False)
    tokens = texts(torch.float64).test_inputs
    torch.testing.assert_close(out(tokens), net(x.clone(), tokens), rtol=0, atol=1e-12)
    assert all(isinstance(p, nn.Parameter) for p in net.module[3][0]._parameters.values())


class Functional(nn.Module):
    """Dropout that no swap can find."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, tokens):
        return torch.nn.functional.dropout(self.head(tokens.double()), 0.5, self.training)


def test_a_model_that_draws_is_not_blamed_on_the_method():
    with pytest.raises(ClientError, match="draws from torch's generator") as found:
        [*trace(on_texts(Functional(), engine="vectorised"), 1)]
    assert "direction" not in str(found.value)


class Scaled(nn.Module):
    """Inputs less a constant, times a parameter; both constants are no sums of powers of two."""

    def __init__(self, shift):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.register_buffer("shift", torch.full((5,), shift))
        self.register_buffer("root", torch.tensor(0.7), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        self.calls = self.calls + 1  # a client's own, from 0 on
        return (inputs - self.shift) * self.scale * self.root / (1 + self.calls)


def constants(norm=False):
    torch.manual_seed(6)
    layers = [nn.Embedding(9, 1), nn.Flatten(), Scaled(0.1), nn.Linear(5, 5), Scaled(0.3)]
    if norm:
        layers += [nn.BatchNorm1d(5, track_running_stats=False)]
    return nn.Sequential(*layers, nn.Linear(5, 3))


PARTS = {
    "plain": {},
    "private": {"private": FedPer(layers=("2",))},
    "coded": {"compress": "topk:0.5"},
    "median": {"aggregation": "median"},
    "a client alone": {"algorithm": Scaffold(option=1), "local": Local(steps=2, batch=3, lr=0.1)},
}


@pytest.mark.parametrize("parts", PARTS)
def test_constant_buffers_travel_in_the_vectorised_engine_as_in_serial(parts, engine_of):
    def end(engine):
        module, given = constants(norm=parts == "a client alone"), {"cohort": 3} | PARTS[parts]
        *_, loop = trace(on_texts(module, engine=engine, **given), 3)
        memory = {i: m for i, m in loop.memory.get(range(5)).items() if m is not None}
        return loop, (
            loop.state.srv,
            memory,
            timeless(loop.log.history),
            timeless(loop.state.ledger.as_dict()),
        )

    one, known = end("serial")
    assert known[3]["up"]["buffers"] == known[3]["down"]["buffers"] > 0
    for engine in ("vectorised:1", "vectorised:2", "vectorised:32"):
        other, found = end(engine)
        assert bits(other.state.buffers) == bits(one.state.buffers)
        assert known[1].keys() == found[1].keys() and known[3] == found[3]
        everything = [leaves(end[0], *end[1].values()) for end in (known, found)]
        for a, b in zip(*everything, strict=True):
            torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=1e-12)
        for a, b in zip(known[2], found[2], strict=True):
            assert a["test_loss"] == pytest.approx(b["test_loss"], abs=1e-12)
    agree(end(engine_of("workers:2+vectorised:2"))[1], end("vectorised:2")[1])


class Late(nn.Module):
    """Changes its buffer from its second forward on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        self.calls = self.calls + 1
        if self.calls > 1:
            self.mean = self.mean + 1
        return inputs - self.mean


class Own(nn.Module):
    """Running statistics of its own making; torch does not count this write."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("var", torch.ones(5))

    def forward(self, inputs):
        return nn.functional.batch_norm(inputs, self.mean, self.var, training=self.training)


class Settled(Own):
    """Its first writes give the values that are there, as those of a converged spectral_norm."""

    def forward(self, inputs):
        self.var.clamp_(min=1)
        return inputs - self.mean


def spectral():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))


CHANGING = {
    "assigned": (lambda: Moving(True), r"Moving \('2'\): it changes its buffer 'mean'"),
    "written": (lambda: Moving(False), r"Moving \('2'\): it changes its buffer 'mean'"),
    "settled": (Settled, r"Settled \('2'\): it changes its buffer 'var'"),
    "own": (Own, r"Own \('2'\): it changes its buffer 'mean'"),
    "spectral": (spectral, r"_SpectralNorm \('2.parametrizations.weight.0'\): .* buffer '_u'"),
}
LAYERS = nn.Embedding(9, 1), nn.Flatten(), nn.Linear(5, 3)


@pytest.mark.parametrize("kind", CHANGING)
def test_a_model_that_changes_a_buffer_is_refused_before_the_run_and_auto_goes_by(kind):
    make, said = CHANGING[kind]
    module = nn.Sequential(*LAYERS[:2], make(), LAYERS[2])
    given = {"local": Local(epochs=1, batch=3, lr=0.1)}  # no batch of one
    for engine in ("vectorised", "vectorised:2", "workers:2+vectorised:2", "workers:2+vectorised"):
        loop = None
        with pytest.raises(CompositionError, match=said):  # without a number already as it is built
            loop = on_texts(module, engine=engine, **given).build()
            loop.engine.open(loop.plan, loop.fed, loop.net)
        assert (loop is None) == engine.endswith("vectorised")
        if loop is not None:
            loop.engine.close()
            assert bits(loop.net.buffers()) == bits(loop.net.init_buffers())
    found = on_texts(module, engine="auto", **given)
    found.run()
    assert found.taken == "auto+serial"
    loop = on_texts(module, engine="serial", **given).build()
    family = family_of(loop.plan, loop.fed, loop.net, 20)
    assert family.family == "serial" and "changes its buffer" in family.why


def test_a_model_that_changes_a_buffer_later_is_refused_when_it_does():
    run = on_texts(nn.Sequential(*LAYERS[:2], Late(), LAYERS[2]), engine="vectorised:2")
    with pytest.raises(CompositionError, match=r"Late \('2'\): it changes its buffer 'mean'"):
        run.run()


class Moving(nn.Module):
    """A moving mean of its inputs that forgets faster at first; written in place, or assigned."""

    def __init__(self, assigns):
        super().__init__()
        self.assigns = assigns
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        if self.training:
            seen = self.seen + 1
            mean = self.mean + (inputs.detach().mean(0) - self.mean) / (3 + seen)
            if self.assigns:
                self.mean, self.seen = mean, seen
            else:
                self.mean.copy_(mean)
                self.seen.copy_(seen)
        return inputs - self.mean


def moving(assigns):
    torch.manual_seed(6)
    layers = nn.Embedding(9, 1), nn.Flatten(), Moving(assigns), nn.Linear(5, 3), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(3, 5), Moving(assigns), nn.Linear(5, 3))


def test_a_buffer_that_forward_assigns_is_averaged_as_one_it_writes_into(engine_of):
    both = []
    for assigns in (False, True):
        ends = [
            on_texts(moving(assigns), cohort=3, engine=engine_of(name)).run()
            for name in ("serial", "workers:2")
        ]
        results_agree(*ends)
        both.append(ends[0])
    results_agree(*both)
    moved = dict(both[1].model.named_buffers())
    assert all(bool(moved[f"{i}.mean"].abs().min() > 0) for i in (2, 6))
    assert all(int(moved[f"{i}.seen"]) == 0 for i in (2, 6))
