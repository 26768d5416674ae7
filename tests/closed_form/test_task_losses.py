"""Losses and metrics of texts, pixels and survival times, against numbers by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import CASES
from fedloom import FedAvg
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.data import from_clients, shapes
from fedloom.engines.scores import evaluation_batch
from fedloom.errors import DataError
from fedloom.evaluation.metrics import Concordance, Overlap, Perplexity, TokenAccuracy, accuracy
from fedloom.models import lstm_language_model, unet
from fedloom.objectives import Cox, CrossEntropy, Dice, FedDecorr, FedLC, FedMLB, FedNTD
from tiny import small, trace

# -------------------------------------------------------------------------------------------- texts
WORDS, LENGTH, PAD = 9, 5, 8


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
    return CASES[f"language{', padded' if padding else ''}"].make(dtype=dtype, **changes)


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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, 7)),
            "labels go up to 7; it needs 8",
        ),
        (
            lambda: nn.Sequential(nn.Embedding(WORDS, 2), nn.Flatten(), nn.Linear(10, 9)),
            r"gives \[3, 9\]",
        ),
        (lambda: lstm_language_model(7, 6, 6), r"with tokens up to 7: index out of range"),
    ],
)
def test_models_that_do_not_fit_the_tokens_are_refused_before_training(make, words):
    with pytest.raises(DataError, match=words):
        experiment(model=make()).run()


def test_outputs_of_several_rows_are_refused_for_labels_and_an_axis_of_classes_is_no_guess():
    with pytest.raises(DataError, match=r"gives \[2, 5, 3\] for targets of shape \[2\]"):
        small(FedAvg(), model=nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 3))).run()
    z, y = torch.zeros(2, 5, 5), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(DataError, match="second or on the last axis"):
        CrossEntropy().score(z, (None, y))


# --------------------------------------------------------------------------- a class for each pixel
# two pictures of 1 x 3 pixels and two classes; the logits are logs of probabilities
P = torch.tensor([[[[0.8, 0.5, 0.4]], [[0.2, 0.5, 0.6]]], [[[0.9, 0.1, 0.5]], [[0.1, 0.9, 0.5]]]])
P = P.double()
TRUTH = torch.tensor([[[0, 1, 255]], [[255, 255, 255]]])  # 255 does not count


def test_the_cross_entropy_is_the_mean_over_the_pixels_of_an_example_that_count() -> None:
    loss = CrossEntropy(ignore=255)
    each = loss.score(P.log(), (None, TRUTH))
    assert each.tolist() == pytest.approx([-(math.log(0.8) + math.log(0.5)) / 2, 0])
    assert loss.mean_score(P.log(), (None, TRUTH)).item() == pytest.approx(each[0].item() / 2)
    whole = torch.tensor([[[0, 1, 1]], [[0, 0, 1]]])
    logs = [math.log(v) for v in (0.8, 0.5, 0.6, 0.9, 0.1, 0.5)]
    assert CrossEntropy().mean_score(P.log(), (None, whole)).item() == pytest.approx(-sum(logs) / 6)
    last = P.log().movedim(1, -1)  # (B, H, W, C)
    assert torch.equal(loss.score(last, (None, TRUTH)), each)


def test_the_dice_loss_by_hand() -> None:
    # the first picture, its third pixel left out: class 0 is the first pixel, class 1 the second
    zero = (2 * 0.8 + 1) / (0.8**2 + 0.5**2 + 1 + 1)
    one = (2 * 0.5 + 1) / (0.2**2 + 0.5**2 + 1 + 1)
    result = Dice(ignore=255).score(P.log(), (None, TRUTH))
    assert result.tolist() == pytest.approx([1 - (zero + one) / 2, 0])
    plain, nothing = Dice(ignore=255, smooth=0.0).score(P.log(), (None, TRUTH))
    assert nothing == 1, "no pixel counts, and nothing divides by zero"
    by_paper = (2 * 0.8 / (0.64 + 0.25 + 1) + 2 * 0.5 / (0.04 + 0.25 + 1)) / 2
    assert plain.item() == pytest.approx(1 - by_paper)
    both = Dice(ignore=255, cross_entropy=0.5).score(P.log(), (None, TRUTH))
    entropy = CrossEntropy(ignore=255).score(P.log(), (None, TRUTH))
    assert torch.allclose(both, result + 0.5 * entropy)


def test_a_class_that_an_example_lacks_is_pushed_away_and_right_pictures_cost_nothing() -> None:
    z = torch.zeros(1, 2, 1, 3, dtype=torch.float64, requires_grad=True)
    Dice().score(z, (None, torch.zeros(1, 1, 3, dtype=torch.int64))).sum().backward()
    assert bool((z.grad[:, 1] > 0).all())
    sure = 50.0 * torch.tensor([[[[1.0, -1.0]], [[-1.0, 1.0]]]])
    assert Dice().score(sure, (None, torch.tensor([[[0, 1]]]))).item() == pytest.approx(0)


def test_dice_and_iou_of_a_whole_set_by_hand() -> None:
    # truth 0 0 1 1 | 1 0 (and one that does not count); predictions 0 1 1 1 | 0 0: class 2 nowhere
    truth = [torch.tensor([[[0, 0, 1, 1]]]), torch.tensor([[[1, 0, 255, 255]]])]
    said = [torch.tensor([[[0, 1, 1, 1]]]), torch.tensor([[[0, 0, 1, 2]]])]
    scores = {}
    for kind in ("dice", "iou"):
        metric = Overlap(kind, ignore=255)
        for t, s in zip(truth, said, strict=True):
            metric.update(torch.nn.functional.one_hot(s, 3).movedim(-1, 1).float(), t)
        scores[kind] = metric.compute()
    # class 0: 2 of both, 3 true, 3 said; class 1: 2 of both, 3 true, 3 said
    assert scores == pytest.approx({"dice": 2 / 3, "iou": 1 / 2})
    only = Overlap("dice")
    only.update(torch.tensor([[[[1.0, 1.0]], [[0.0, 0.0]]]]), torch.tensor([[[0, 0]]]))
    assert only.compute() == 1, "a class that is absent in truth and prediction is left out"
    assert math.isnan(Overlap("iou").compute())


def test_the_accuracy_weighs_an_example_by_its_pixels_that_count() -> None:
    metric = TokenAccuracy(255)
    truth = torch.tensor([[[0, 0, 255]], [[0, 1, 1]]])
    assert metric(P.log(), truth).tolist() == pytest.approx([1.0, 2 / 3])  # 0.5 and 0.5: class 0
    assert metric.weight(truth).tolist() == [2, 3]


def test_ignored_pixels_are_no_class_and_are_not_counted() -> None:
    masks = torch.tensor([[[0, 1], [255, 1]], [[255, 255], [255, 0]]])
    data = from_clients([(torch.zeros(1, 1, 2, 2), masks[:1]), (torch.ones(1, 1, 2, 2), masks[1:])])
    assert (data.classes, data.ignored, data.outcome) == (256, None, "pixels")
    data = data.ignoring(255)
    assert (data.classes, data.ignored) == (2, 255)
    assert data.label_counts().tolist() == [[1, 2], [1, 0]]
    assert [data.label_counts_of(i).tolist() for i in (0, 1)] == [[1, 2], [1, 0]]
    with pytest.raises(DataError, match="ignores label 7 and 'yours' label 255"):
        data.ignoring(7)
    with pytest.raises(DataError, match="no pixel counts"):
        from_clients([(torch.zeros(1, 1, 2, 2), masks[:1] * 0 + 9)], ignore=9)


def test_large_pictures_are_evaluated_a_few_at_a_time() -> None:
    sizes = [evaluation_batch(torch.zeros(0, n, n, dtype=torch.int64)) for n in (8, 64, 600)]
    assert sizes == [500, 64, 1]


def test_the_pictures_follow_from_the_seed_and_the_sites_differ() -> None:
    one, other, same = shapes(seed=1), shapes(seed=2), shapes(seed=1)
    assert torch.equal(one.inputs, same.inputs)
    assert not torch.equal(one.inputs, other.inputs)
    assert one.client_names == ("site0", "site1", "site2", "site3")
    assert one.test_clients is not None and one.test_clients.sizes.tolist() == [20] * 4
    assert np.ptp([float(one.client(i)[0].mean()) for i in range(4)]) > 0.1
    assert bool((one.label_counts() > 0).all())


def test_the_u_net_keeps_odd_sizes_and_sees_far() -> None:
    net = unet(channels=2, classes=3).eval()
    x = torch.randn(1, 2, 9, 13, requires_grad=True)
    out = net(x)
    assert out.shape == (1, 3, 9, 13)
    assert (
        sum(p.numel() for p in unet().parameters()) == 29_786
    )  # 680 + 3520 + 13952 + 9280 + 2336 + 18
    out[0, 0, 0, 0].backward()
    assert bool((x.grad[0, :, 8, 12] != 0).all()), "GroupNorm and the lowest level see everything"


# ----------------------------------------------------------------------------------------- survival


def cox(scores, times, events):
    """By FLamby's description: l_i = E_i log(sum of exp(s_j - s_i) over j not after i)."""
    order = np.argsort(-times, kind="stable")
    s, e = scores[order], events[order]
    each = [e[i] * np.log(np.exp(s[: i + 1] - s[i]).sum()) for i in range(len(s))]
    return float(np.mean(each))


def pairs(times, events):
    n = range(len(times))
    return [
        (i, j)
        for i in n
        for j in n
        if events[i]
        and (times[i] < times[j] or (times[i] == times[j] and i != j and not events[j]))
    ]


@pytest.mark.parametrize("ties", [False, True])
def test_the_partial_likelihood_of_a_batch(ties: bool) -> None:
    draw = np.random.default_rng(3)
    scores, times = draw.normal(size=8), draw.integers(1, 4 if ties else 10**6, 8).astype(float)
    events = draw.integers(0, 2, 8).astype(float)
    x = torch.tensor(scores, requires_grad=True)
    batch = (torch.zeros(8, 1), torch.tensor(np.stack([times, events], 1)))
    result = Cox().score(x[:, None], batch)
    assert result.item() == pytest.approx(cox(scores, times, events), rel=1e-12)
    result.backward()
    step = 1e-6
    for i in range(8):
        up, down = scores.copy(), scores.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        slope = (cox(up, times, events) - cox(down, times, events)) / (2 * step)
        assert float(x.grad[i]) == pytest.approx(slope, abs=1e-8)


def test_one_example_and_no_event_have_neither_loss_nor_gradient() -> None:
    for targets in ([[5.0, 1.0]], [[5.0, 0.0], [6.0, 0.0]]):
        s = torch.ones(len(targets), 1, requires_grad=True)
        loss = Cox().score(s, (None, torch.tensor(targets)))
        loss.backward()
        assert loss.item() == 0 and not s.grad.any()


def test_survival_refuses_other_targets() -> None:
    with pytest.raises(DataError, match="time and event"):
        Cox().score(torch.zeros(3, 1), (None, torch.zeros(3)))
    with pytest.raises(DataError, match="one output"):
        Concordance().update(torch.zeros(3, 2), torch.zeros(3, 2))


def test_the_concordance_counts_pairs_and_half_of_ties() -> None:
    draw = np.random.default_rng(1)
    times, events = draw.integers(1, 9, 40).astype(float), draw.integers(0, 2, 40)
    risks = draw.integers(0, 6, 40).astype(float)
    known = pairs(times, events)
    right = sum((risks[i] > risks[j]) + 0.5 * (risks[i] == risks[j]) for i, j in known)
    metric = Concordance()
    for some in np.array_split(np.arange(40), 3):  # in batches
        targets = torch.tensor(np.stack([times[some], events[some]], 1))
        metric.update(torch.tensor(risks[some])[:, None], targets)
    assert metric.compute() == pytest.approx(right / len(known), rel=1e-12)
    metric.reset()
    metric.update(torch.zeros(2), torch.tensor([[1.0, 0], [2, 0]]))
    assert math.isnan(metric.compute()), "nobody's event was seen"


def test_one_output_is_the_logit_of_class_one() -> None:
    z, y = torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64), torch.tensor([1, 1, 0])
    two = torch.cat([torch.zeros_like(z), z], 1)
    loss, net = CrossEntropy(), Net(torch.nn.Linear(1, 1).double())
    assert torch.allclose(loss.score(z, (None, y)), loss.score(two, (None, y)))
    assert torch.allclose(loss.mean_score(z, (None, y)), loss.mean_score(two, (None, y)))
    assert accuracy(z, y).tolist() == [1, 0, 0] == accuracy(two, y).tolist()
    batch = (torch.randn(3, 1, dtype=torch.float64), y)
    assert loss.loss(net, net.init(), batch, net.init(), ()).shape == (3,)
