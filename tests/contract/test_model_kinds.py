"""Models with dropout, buffers and modules that are used twice: what is refused, and how they are
exported, billed and averaged. That engines agree on them is in test_engines_agree.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import FAFED
from fedloom.data import from_clients
from fedloom.engines import family_of
from fedloom.errors import ClientError, CompositionError
from fedloom.models import cnn_celeba, resnet18
from support.federations import THEORY, on_texts, texts
from support.modules import Attention, Moving, constants, moving, our_lstm, torchs_lstm, used_twice
from tiny import bits, results_agree, trace


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


def test_a_module_that_is_used_twice_is_exported_as_it_was_trained():
    *_, loop = trace(on_texts(torch.float64, model=used_twice), 2)
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
        [*trace(on_texts(torch.float64, model=Functional(), engine="vectorised"), 1)]
    assert "direction" not in str(found.value)


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
    module = nn.Sequential(*LAYERS[:2], make(), LAYERS[2]).double()
    given = {"local": Local(epochs=1, batch=3, lr=0.1)}  # no batch of one
    for engine in ("vectorised", "vectorised:2", "workers:2+vectorised:2", "workers:2+vectorised"):
        loop = None
        with pytest.raises(CompositionError, match=said):  # without a number already as it is built
            loop = on_texts(torch.float64, model=module, cohort=1.0, engine=engine, **given).build()
            loop.engine.open(loop.plan, loop.fed, loop.net)
        assert (loop is None) == engine.endswith("vectorised")
        if loop is not None:
            loop.engine.close()
            assert bits(loop.net.buffers()) == bits(loop.net.init_buffers())
    found = on_texts(torch.float64, model=module, cohort=1.0, engine="auto", **given)
    found.run()
    assert found.used_engine == "auto+serial"
    loop = on_texts(torch.float64, model=module, cohort=1.0, engine="serial", **given).build()
    family = family_of(loop.plan, loop.fed, loop.net, 20)
    assert family.family == "serial" and "changes its buffer" in family.why


def test_a_model_that_changes_a_buffer_later_is_refused_when_it_does():
    run = on_texts(
        torch.float64, model=nn.Sequential(*LAYERS[:2], Late(), LAYERS[2]), engine="vectorised:2"
    )
    with pytest.raises(CompositionError, match=r"Late \('2'\): it changes its buffer 'mean'"):
        run.run()


def test_a_buffer_that_forward_assigns_is_averaged_as_one_it_writes_into():
    both = [on_texts(torch.float32, model=lambda a=a: moving(a)).run() for a in (False, True)]
    results_agree(*both)
    moved = dict(both[1].model.named_buffers())
    assert all(bool(moved[f"{i}.mean"].abs().min() > 0) for i in (2, 6))
    assert all(int(moved[f"{i}.seen"]) == 0 for i in (2, 6))


def test_constant_buffers_are_billed_both_ways():
    ledger = on_texts(torch.float32, model=constants).run().ledger
    assert ledger.up["buffers"] == ledger.down["buffers"] > 0


# ----------------------------------------------------------------------------------------- dropout
FAFED_LOCAL = Local(steps=THEORY.q, batch=4, lr=1.0, schedule=THEORY, probe_batch=12)


@pytest.mark.slow
def test_fafeds_schedule_is_a_rate_at_which_every_layer_of_an_lstm_moves():
    assert THEORY(0, 0) == pytest.approx(0.1 / (12 * 0.03 * 3))  # rho / (12 L q)
    fafed = {"algorithm": FAFED(c=THEORY.c), "local": FAFED_LOCAL, "rounds": 4}
    first, *_, loop = [
        (t.state.srv.x, t) for t in trace(on_texts(torch.float32, model=our_lstm, **fafed), 4)
    ]
    moved = (loop[0] - first[0]).abs()
    for piece in moved.split([p.numel() for p in our_lstm().parameters()]):
        assert piece.max() > 0.01
    row = loop[1].log.history[-1]
    assert row["gradients"] == 2 * row["steps"] == 2 * 3 * THEORY.q


@pytest.mark.parametrize(("model", "part"), [(torchs_lstm, "LSTM"), (Attention, "Multihead")])
def test_dropout_that_cannot_be_reproduced_is_refused_by_name(model, part):
    said = f"vectorised and {part}.*engine = serial or workers"
    with pytest.raises(CompositionError, match=said):
        on_texts(torch.float32, model=model, engine="vectorised").run()


class Apart(FAFED):
    """FAFED whose v adds up how far two gradients of one step at one point are apart."""

    def direction(self, x, loc, msg, mem, grad, job):
        first = grad(x)
        d, new = super().direction(x, loc, msg, mem, grad, job)
        return d, new._replace(v=loc.v + (grad(x) - first).abs())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "engine"),
    [
        (our_lstm, "serial"),
        (our_lstm, "vectorised:2"),
        (torchs_lstm, "serial"),
        (Attention, "serial"),
    ],
)
def test_all_gradients_of_a_step_see_the_same_masks(model, engine):
    run = on_texts(torch.float32, model=model, algorithm=Apart(), local=FAFED_LOCAL, engine=engine)
    before, after = [loop.state.srv.v for loop in trace(run, 1)]
    # the mean of equal vectors may round; other masks give others in the second digit
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-9)


def test_masks_differ_between_the_steps():
    seen = []

    class Look(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            seen.append(grad(x).clone())  # the engine writes into it again
            return torch.zeros_like(x), loc

    data = from_clients([([[1] * 5], [0])])
    local = Local(steps=3, batch=4, lr=0.1)
    run = on_texts(
        torch.float32, model=our_lstm, algorithm=Look(), data=data, cohort=1.0, local=local
    )
    [*trace(run, 1)]
    seen = [g for g in seen if g.any()]  # a plan is tried on zeros before
    assert len(seen) == 3 and not torch.equal(seen[0], seen[1])
