"""Models with dropout, buffers, a state or modules that are used twice, and the data that they see:
what is refused, and how they are exported, billed and averaged. That engines agree on them is in
test_engines_agree.py.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import CASES
from fedloom import FedAvg, Local
from fedloom.data import Images, from_clients
from fedloom.engines import family_of
from fedloom.errors import ClientError, CompositionError
from fedloom.federation.federation import Federation
from fedloom.models import lstm_language_model, lstm_shakespeare
from fedloom.objectives import CrossEntropy
from support.federations import (
    READ_ON,
    STREAMS,
    VOCABULARY,
    images,
    on_texts,
    reading,
    small_images_net,
    stream,
    texts,
)
from support.modules import Attention, Moving, constants, moving, our_lstm, torchs_lstm, used_twice
from tiny import bits, outcome, results_agree, same, small, trace


def test_a_module_that_is_used_twice_is_exported_as_it_was_trained():
    *_, loop = trace(on_texts(torch.float64, model=used_twice), 2)
    net, x = loop.net, loop.state.srv.x
    out = net.export(x)
    assert out[3][0] is out[3][4] and out[3][3] is out[3][6]
    assert type(out[3][3]) is nn.Dropout and len([*out.parameters()]) == len(net.params)
    net.train(False)
    tokens = texts(torch.float64).test_inputs
    torch.testing.assert_close(out(tokens), net(x.clone(), tokens), rtol=0, atol=1e-12)
    assert all(isinstance(p, nn.Parameter) for p in net.module[3][0].parameters())


# ---------------------------------------------------------------------------------------- buffers
class Own(nn.Module):
    """Running statistics of its own making; torch does not count this write."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("var", torch.ones(5))

    def forward(self, inputs):
        return F.batch_norm(inputs, self.mean, self.var, training=self.training)


class Settled(Own):
    """Its first writes give the values that are there, as those of a converged spectral_norm."""

    def forward(self, inputs):
        self.var.clamp_(min=1)
        return inputs - self.mean


CHANGING = {
    "assigned": (lambda: Moving(True), r"Moving \('2'\): it changes its buffer 'mean'"),
    "written": (lambda: Moving(False), r"Moving \('2'\): it changes its buffer 'mean'"),
    "settled": (Settled, r"Settled \('2'\): it changes its buffer 'var'"),
    "own": (Own, r"Own \('2'\): it changes its buffer 'mean'"),
    "spectral": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5)),
        r"_SpectralNorm \('2.parametrizations.weight.0'\): .* buffer '_u'",
    ),
}
LAYERS = nn.Embedding(9, 1), nn.Flatten(), nn.Linear(5, 3)


@pytest.mark.parametrize("kind", CHANGING)
def test_a_model_that_changes_a_buffer_is_refused_before_the_run_and_auto_goes_by(kind):
    make, words = CHANGING[kind]
    module = nn.Sequential(*LAYERS[:2], make(), LAYERS[2]).double()
    local = Local(epochs=1, batch=3, lr=0.1)  # no batch of one
    run = lambda engine: on_texts(
        torch.float64, model=module, cohort=1.0, engine=engine, local=local
    )
    for engine in ("vectorised", "vectorised:2", "workers:2+vectorised:2", "workers:2+vectorised"):
        loop = None
        with pytest.raises(CompositionError, match=words):  # without a number as it is built
            loop = run(engine).build()
            loop.engine.open(loop.plan, loop.fed, loop.net)
        assert (loop is None) == engine.endswith("vectorised")
        if loop is not None:
            loop.engine.close()
            assert bits(loop.net.buffers()) == bits(loop.net.init_buffers())
    auto = run("auto")
    auto.run()
    assert auto.used_engine == "auto+serial"
    loop = run("serial").build()
    family = family_of(loop.plan, loop.fed, loop.net, 20)
    assert family.family == "serial" and "changes its buffer" in family.why


class Late(nn.Module):
    """Changes its buffer from its second forward on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        self.calls = self.calls + 1
        self.mean = self.mean + 1 if self.calls > 1 else self.mean
        return inputs - self.mean


def test_a_model_that_changes_a_buffer_later_is_refused_when_it_does():
    model = nn.Sequential(*LAYERS[:2], Late(), LAYERS[2])
    with pytest.raises(CompositionError, match=r"Late \('2'\): it changes its buffer 'mean'"):
        on_texts(torch.float64, model=model, engine="vectorised:2").run()


def test_a_buffer_that_forward_assigns_is_averaged_as_one_it_writes_into():
    both = [on_texts(torch.float32, model=lambda a=a: moving(a)).run() for a in (False, True)]
    results_agree(*both)
    moved = dict(both[1].model.named_buffers())
    assert all(bool(moved[f"{i}.mean"].abs().min() > 0) for i in (2, 6))
    assert all(int(moved[f"{i}.seen"]) == 0 for i in (2, 6))


def test_constant_buffers_are_billed_both_ways():
    ledger = on_texts(torch.float32, model=constants).run().ledger
    assert ledger.up["buffers"] == ledger.down["buffers"] > 0


# ---------------------------------------------------------------------------------------- dropout
class Functional(nn.Module):
    """Dropout that no swap can find."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, tokens):
        return F.dropout(self.head(tokens.double()), 0.5, self.training)


def test_a_model_that_draws_is_not_blamed_on_the_method():
    with pytest.raises(ClientError, match="draws from torch's generator") as error:
        on_texts(torch.float64, model=Functional(), engine="vectorised").run()
    assert "direction" not in str(error.value)


@pytest.mark.parametrize(("model", "part"), [(torchs_lstm, "LSTM"), (Attention, "Multihead")])
def test_dropout_that_cannot_be_reproduced_is_refused_by_name(model, part):
    with pytest.raises(
        CompositionError, match=f"vectorised and {part}.*engine = serial or workers"
    ):
        on_texts(torch.float32, model=model, engine="vectorised").run()


def test_masks_differ_between_the_steps():
    seen = []

    class Look(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            seen.append(grad(x).clone())  # the engine writes into it again
            return torch.zeros_like(x), loc

    parts = {"data": from_clients([([[1] * 5], [0])]), "cohort": 1.0, "rounds": 1}
    local = Local(steps=3, batch=4, lr=0.1)
    on_texts(torch.float32, model=our_lstm, algorithm=Look(), local=local, **parts).run()
    gradients = [g for g in seen if g.any()]  # a plan is tried on zeros before
    assert len(gradients) == 3 and not torch.equal(gradients[0], gradients[1])


# ------------------------------------------------------------------------------- images in bytes
def test_augmentation_changes_training_and_not_evaluation():
    data = images(torch.float64)
    still = dataclasses.replace(
        data, transform=Images(mean=(0.4, 0.5), std=(0.2, 0.3), dtype=torch.float64)
    )
    # bytes with a transform are what floats made before are
    floats = dataclasses.replace(
        data,
        inputs=still.ready(data.inputs),
        test_inputs=still.ready(data.test_inputs),
        transform=None,
    )
    make = CASES["images, scaffold"].make
    moved, by_bytes, by_floats = (
        outcome(make(dtype=torch.float64, data=d), 2) for d in (data, still, floats)
    )
    assert not torch.equal(by_bytes[0].x, moved[0].x)
    assert same(by_floats[0], by_bytes[0]) and by_floats[2:] == by_bytes[2:]


def test_the_experiments_type_is_the_images_type():
    data, local = images(torch.float32), Local(epochs=1, batch=3, lr=0.1)
    run = small(FedAvg(), torch.float64, data=data, model=small_images_net(), local=local)
    run.rounds = 1
    run.run()
    assert run.data.transform.out == torch.float64


# ------------------------------------------------------- texts in order: streams, and a state along
BATCH, STEPS = READ_ON.batch, READ_ON.steps
stateless = lambda: nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)).double()


def readers(clients=range(4)):
    return from_clients([stream(i) for i in clients], test=stream(0), dtype=torch.float64)


def language_model():
    torch.manual_seed(6)
    return lstm_language_model(VOCABULARY, 4, 4, dropout=0.0).double()


def test_a_pass_is_all_whole_batches():
    fed = Federation(readers(), Local(epochs=1, batch=BATCH, order="text"))
    assert [fed.steps(i) for i in range(4)] == [5, 4, 2, 1]
    assert [fed.first(i, 3) for i in range(4)] == [0, 0, 0, 0]


def plain(client, rounds, carried=True):
    """One client's training by hand: hidden state is handed on, but not over a missed round."""
    net = language_model()
    inputs, targets = (torch.from_numpy(v) for v in stream(client))
    streams = min(BATCH, STREAMS[client])
    length = STREAMS[client] // streams
    state, last = None, -1
    for round in rounds:
        state = state if last == round - 1 else None
        last = round
        for k in range(round * STEPS, (round + 1) * STEPS):
            rows = torch.arange(streams) * length + k % length
            if state is None or k % length == 0 or not carried:
                state = net.zeros(streams)
            outputs, state = net((inputs[rows], state))
            state = tuple(v.detach() for v in state)
            loss = F.cross_entropy(outputs.flatten(0, 1), targets[rows].flatten())
            net.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.5 * p.grad
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("client", range(4))
def test_one_client_trains_as_a_plain_loop_does(client, engine):
    x = reading(model=language_model(), data=readers([client]), engine=engine).run().state.x
    torch.testing.assert_close(x, plain(client, range(4)), rtol=0, atol=1e-9)
    if client < 2:  # there are passes of more than one batch, so the state matters
        assert not torch.allclose(x, plain(client, range(4), carried=False), atol=1e-6)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_who_missed_a_round_begins_from_zeros(engine):
    class Only(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            up, own = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta * (job.weight == STREAMS[0])), own

    parts = {"algorithm": Only(), "cohort": [[0], [1], [0], [0]]}
    x = reading(model=language_model(), engine=engine, **parts).run().state.x
    torch.testing.assert_close(x, plain(0, [0, 2, 3]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"local": Local(steps=STEPS, batch=BATCH)},
            r"LanguageModel and local.order = shuffled.*= text",
        ),
        ({"model": stateless()}, r"LanguageModel and Sequential: .* no state"),
        (
            {"model": lstm_shakespeare(VOCABULARY, 4, 4).double()},
            r"gives \[3, 7\]; a language model gives",
        ),
    ],
)
def test_a_language_model_needs_a_state_its_texts_in_order_and_a_row_a_token(changes, words):
    with pytest.raises(CompositionError, match=words):
        reading(**({"model": language_model()} | changes)).run()


def test_the_order_may_be_anothers_too():
    assert reading(model=stateless(), objective=CrossEntropy(), rounds=1).run().last > 0
    run = small(FedAvg(), local=Local(epochs=1, batch=4, order="text")).run()
    assert run.history[-1]["answered"] == 4
