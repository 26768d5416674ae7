"""Texts: the loss of an example is the mean over its tokens, padding left out; perplexity."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import DataError
from fedloom.evaluation.metrics import Perplexity, TokenAccuracy, accuracy
from fedloom.models import lstm_language_model
from fedloom.objectives import CrossEntropy, FedDecorr, FedLC, FedMLB, FedNTD
from support.federations import sentences
from tiny import small, trace

WORDS, LENGTH, PAD = 9, 5, 8
SIZES = (3, 6, 5)


def logits(n=4):
    torch.manual_seed(1)
    return torch.randn(n, LENGTH, WORDS, dtype=torch.float64)


def words(n=4, padding=True):
    """The first text is whole, the others end in 1, 2, ... places of padding; the last is empty."""
    torch.manual_seed(2)
    out = torch.randint(PAD, (n, LENGTH))
    if padding:
        for i in range(n):
            out[i, LENGTH - i if i < n - 1 else 0 :] = PAD
    return out


def by_hand(z, y, ignore):
    """Mean over the tokens that count, text by text, in plain numbers."""
    out = []
    for one, text in zip(z.tolist(), y.tolist(), strict=True):
        each = [
            math.log(sum(math.exp(v) for v in row)) - row[t]
            for row, t in zip(one, text, strict=True)
            if t != ignore
        ]
        out.append(sum(each) / len(each) if each else 0.0)
    return out


@pytest.mark.parametrize("ignore", [None, PAD])
def test_an_examples_loss_is_the_mean_over_its_tokens(ignore):
    z, y, objective = logits(), words(), CrossEntropy(ignore=ignore)
    want = by_hand(z, y, ignore)
    for outputs in (z, z.movedim(-1, 1)):
        assert objective.score(outputs, (None, y)).tolist() == pytest.approx(want, abs=1e-12)
        mean = objective.mean_score(outputs, (None, y))
        assert float(mean) == pytest.approx(sum(want) / 4, abs=1e-12)


def test_a_label_is_a_text_of_one_token():
    z, y = logits()[:, 0], words()[:, 0]
    torch.testing.assert_close(
        CrossEntropy().score(z, (None, y)), F.cross_entropy(z, y, reduction="none")
    )


def test_the_metrics_are_means_over_all_tokens():
    z, y = logits(), words()
    told = (y != PAD).reshape(-1)
    right = (z.argmax(-1) == y).reshape(-1)[told].double().mean()
    loss = F.cross_entropy(z.reshape(-1, WORDS)[told], y.reshape(-1)[told])
    for metric, want in ((TokenAccuracy(PAD), right), (Perplexity(PAD), loss)):
        share = metric.weight(y).double()
        assert share.tolist() == [5, 4, 3, 0]
        assert float((metric(z, y) * share).sum() / share.sum()) == pytest.approx(float(want))
    assert accuracy(z, y).tolist() == (z.argmax(-1) == y).float().mean(1).tolist()


def test_classes_that_may_be_on_either_axis_are_refused():
    z, y = torch.zeros(2, 5, 5), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(DataError, match="second or on the last axis"):
        CrossEntropy().score(z, (None, y))


# ------------------------------------------------------------------- other objectives, both layouts
class Turned(nn.Module):
    """The language model with its classes on the second axis."""

    def __init__(self, inner):
        super().__init__()
        self.first = nn.Sequential(*[inner.get_submodule(n) for n in inner.blocks[:-1]])
        self.last = nn.Sequential(inner.head)
        self.last.register_forward_hook(lambda module, inputs, out: out.movedim(-1, 1))
        self.blocks = ("first", "last")

    def forward(self, tokens):
        return self.last(self.first(tokens))


class Straight(Turned):
    def __init__(self, inner):
        super().__init__(inner)
        self.last = nn.Sequential(inner.head)


@pytest.mark.parametrize("objective", [FedMLB(), FedNTD(), FedLC(), FedDecorr()])
@pytest.mark.parametrize("ignore", [None, PAD])
def test_all_objectives_take_both_layouts_and_leave_padding_out(objective, ignore):
    import dataclasses

    objective = dataclasses.replace(objective, ignore=ignore)
    torch.manual_seed(0)
    inner = lstm_language_model(WORDS, 4, 4, dropout=0.0).double()
    inputs, y = words(padding=False), words()
    mem = rec(counts=torch.bincount(y.reshape(-1), minlength=WORDS).double())

    def value(build, targets):
        net = Net(build(inner))
        x = net.init()
        return objective.loss(net, 1.1 * x, (inputs, targets), x, mem)

    one, other = value(Straight, y), value(Turned, y)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    # the empty text has a loss of nothing
    if ignore is not None and not isinstance(objective, FedDecorr):
        assert float(one[-1]) == 0 and float(one[0]) > 0


# ------------------------------------------------------------------------------------ a federation
def experiment(dtype=torch.float32, padding=False, **changes):
    torch.manual_seed(6)
    settings = {
        "algorithm": FedAvg(),
        "model": lstm_language_model(WORDS, 6, 6, dropout=0.2).to(dtype),
        "data": sentences(dtype, padding),
        "rounds": 3,
        "cohort": 2,
        "local": Local(epochs=2, batch=4, lr=0.5, clip=0.25),
        "seed": 4,
        "device": "cpu",
    }
    return Experiment(**(settings | changes))


@pytest.mark.parametrize("padding", [False, True])
def test_the_log_has_the_perplexity_of_all_tokens_of_the_test_set(padding):
    *_, loop = trace(experiment(torch.float64, padding=padding), 3)
    net, data = loop.net, loop.fed.data
    with torch.no_grad(), net.evaluating():
        z = net(loop.state.srv.x, data.test_inputs)
    told = data.test_targets != PAD
    loss = F.cross_entropy(z[told], data.test_targets[told])
    row = loop.log.history[-1]
    assert row["test_perplexity"] == pytest.approx(math.exp(float(loss)), rel=1e-12)
    assert row["test_accuracy"] == pytest.approx(
        float((z.argmax(-1) == data.test_targets)[told].double().mean())
    )
    assert loop.headline == "perplexity" and not loop.state.curve.higher_is_better


@pytest.mark.slow
def test_a_language_model_learns():
    local = Local(epochs=4, batch=3, lr=3.0, clip=0.25)
    model = lstm_language_model(WORDS, 12, 12, dropout=0.0)
    result = experiment(rounds=30, cohort=1.0, local=local, model=model).run()
    assert result.history[0]["test_perplexity"] > 7 and result.best < 5
    assert result.summary["metric"]["higher_is_better"] is False


def test_clients_with_texts_of_their_own_get_their_own_perplexity():
    pairs = [tuple(v.numpy() for v in sentences().client(i)) for i in range(3)]
    data = from_clients(pairs, client_tests=pairs)
    result = experiment(data=data).run()
    inputs, y = (torch.from_numpy(v) for v in pairs[1])
    with torch.no_grad():
        loss = F.cross_entropy(result.model(inputs).flatten(0, 1), y.flatten())
    assert result.clients[1] == pytest.approx(math.exp(float(loss)), rel=1e-5)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            lambda: nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, 7)),
            "labels go up to 7; it needs 8",
        ),
        (
            lambda: nn.Sequential(nn.Embedding(WORDS, 2), nn.Flatten(), nn.Linear(10, 9)),
            r"gives \[3, 9\]",
        ),
    ],
)
def test_outputs_that_do_not_fit_the_tokens_are_refused(model, says):
    with pytest.raises(DataError, match=says):
        experiment(model=model()).run()


def test_a_word_that_is_not_in_the_vocabulary_is_refused_before_training():
    model = lstm_language_model(7, 6, 6)
    with pytest.raises(DataError, match=r"with tokens up to 7: index out of range"):
        experiment(model=model).run()


def test_labels_need_outputs_of_one_row():
    with pytest.raises(DataError, match=r"gives \[2, 5, 3\] for targets of shape \[2\]"):
        small(FedAvg(), model=nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 3))).run()
