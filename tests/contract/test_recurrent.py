"""Recurrent networks with dropout under FAFED: two gradients per step, in every engine."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from test_engines import agree
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import FAFED
from fedloom.data import from_clients
from fedloom.errors import CompositionError
from fedloom.federation.schedules import FAFEDTheory
from fedloom.models import LSTM
from tiny import agree_within, outcome

WORDS, CLASSES, LENGTH = 11, 3, 6
SIZES = (3, 8, 5, 11, 2)  # short last batches
# L small enough that rho / (12 L q) is a rate at which something happens
THEORY = FAFEDTheory(N=len(SIZES), q=3, L=0.03, rho=0.1, b=4)


class Classifier(nn.Module):
    """Embedding, a recurrent network, and the classifier on its last output."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.recurrent, self.head = recurrent, nn.Linear(5, CLASSES)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens):
        a = self.embedding(tokens)
        return self.head(self.attention(a, a, a, need_weights=False)[0].mean(1))


MODELS = {
    "ours": lambda: Classifier(LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5)),
    "torch's": lambda: Classifier(nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5)),
    "attention": Attention,
    "named": lambda: Named(),
}


def texts(dtype=torch.float32):
    """Every client's texts have favourite words; the label is where the first word stands."""
    draw = np.random.default_rng(8)

    def sample(n, shares):
        tokens = draw.choice(WORDS, size=(n, LENGTH), p=shares)
        return tokens, tokens[:, 0] % CLASSES

    pairs = [sample(n, draw.dirichlet([0.7] * WORDS)) for n in SIZES]
    return from_clients(pairs, test=sample(20, np.full(WORDS, 1 / WORDS)), dtype=dtype)


def run(model="ours", dtype=torch.float32, algorithm=None, rounds=4, **changes):
    torch.manual_seed(6)
    settings = {
        "algorithm": algorithm or FAFED(c=THEORY.c),
        "model": MODELS[model]().to(dtype),
        "data": texts(dtype),
        "rounds": max(rounds, 1),
        "cohort": 3,
        "local": Local(steps=THEORY.q, batch=4, lr=1.0, schedule=THEORY, probe_batch=12),
        "seed": 4,
        "device": "cpu",
    }
    return outcome(Experiment(**(settings | changes)), rounds)


@functools.cache
def serially(model, dtype):
    return run(model, dtype, engine="serial")


def test_the_schedule_is_a_rate_at_which_every_layer_moves():
    assert THEORY(0, 0) == pytest.approx(0.1 / (12 * 0.03 * 3))  # rho / (12 L q)
    torch.manual_seed(6)
    module, (srv, _, history, _) = MODELS["ours"](), serially("ours", torch.float32)
    moved = (srv.x - torch.cat([p.detach().reshape(-1) for p in module.parameters()])).abs()
    for piece in moved.split([p.numel() for p in module.parameters()]):
        assert piece.max() > 0.01
    assert history[-1]["gradients"] == 2 * history[-1]["steps"] == 2 * 3 * THEORY.q


@pytest.mark.parametrize("model", MODELS)
def test_workers_have_the_bits_of_serial_in_float32(model, engine_of):
    agree(run(model, engine=engine_of("workers:2")), serially(model, torch.float32))


@pytest.mark.parametrize("chunk", [2, 32])
def test_vectorised_agrees_with_serial_in_float64(chunk):
    # FAFED divides by sqrt(v) + rho, which lets rounding grow
    found = run(dtype=torch.float64, engine=f"vectorised:{chunk}")
    agree_within(found, serially("ours", torch.float64), 1e-9)


@pytest.mark.parametrize(("model", "part"), [("torch's", "LSTM"), ("attention", "Multihead")])
def test_dropout_that_cannot_be_reproduced_is_refused_by_name(model, part):
    with pytest.raises(
        CompositionError, match=f"vectorised and {part}.*engine = serial or workers"
    ):
        run(model, engine="vectorised")


class Named(nn.Module):
    """A module of a user's own that calls its dropout layer dropout, as most do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, 4), nn.Dropout(0.5)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens):
        return self.head(self.dropout(self.embedding(tokens)).mean(1))


def test_a_dropout_layer_called_dropout_is_no_dropout_of_its_own():
    local = Local(steps=3, batch=4, lr=0.1)
    ends = [
        run(algorithm=FedAvg(), model="named", local=local, dtype=torch.float64, engine=engine)
        for engine in ("serial", "vectorised:2")
    ]
    torch.testing.assert_close(ends[0][0].x, ends[1][0].x, rtol=0, atol=1e-12)


# ------------------------------------------------------------------- the masks of one step's calls
class Apart(FAFED):
    """FAFED whose v adds up how far two gradients of one step at one point are apart."""

    def direction(self, x, loc, msg, mem, grad, job):
        first = grad(x)
        d, new = super().direction(x, loc, msg, mem, grad, job)
        return d, new._replace(v=loc.v + (grad(x) - first).abs())


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
@pytest.mark.parametrize("model", ["ours", "torch's", "attention"])
def test_all_gradients_of_a_step_see_the_same_masks(model, engine):
    if engine != "serial" and model != "ours":
        pytest.skip("refused, see above")
    local = Local(steps=3, batch=4, lr=0.1)
    before = run(model, algorithm=Apart(), rounds=0, local=local, engine=engine)
    after = run(model, algorithm=Apart(), rounds=1, local=local, engine=engine)
    # the mean of equal vectors may round; other masks give others in the second digit
    torch.testing.assert_close(after[0].v, before[0].v, rtol=1e-6, atol=1e-9)


def test_masks_differ_between_the_steps():
    seen = []

    class Look(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            seen.append(grad(x).clone())  # the engine writes into it again
            return torch.zeros_like(x), loc

    pairs = [([[1] * LENGTH], [0])]
    run(algorithm=Look(), rounds=1, cohort=1.0, data=from_clients(pairs))
    seen = [g for g in seen if g.any()]  # a plan is tried on zeros before
    assert len(seen) == THEORY.q and not torch.equal(seen[0], seen[1])
