"""A class for each pixel: cross-entropy, Dice loss, Dice and IoU, against numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedloom.data import from_clients, shapes
from fedloom.engines.scores import evaluation_batch
from fedloom.errors import DataError
from fedloom.evaluation.metrics import Overlap, TokenAccuracy
from fedloom.models import unet
from fedloom.objectives import CrossEntropy, Dice, FedNTD

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
    found = Dice(ignore=255).score(P.log(), (None, TRUTH))
    assert found.tolist() == pytest.approx([1 - (zero + one) / 2, 0])
    plain, nothing = Dice(ignore=255, smooth=0.0).score(P.log(), (None, TRUTH))
    assert nothing == 1, "no pixel counts, and nothing divides by zero"
    by_paper = (2 * 0.8 / (0.64 + 0.25 + 1) + 2 * 0.5 / (0.04 + 0.25 + 1)) / 2
    assert plain.item() == pytest.approx(1 - by_paper)
    both = Dice(ignore=255, cross_entropy=0.5).score(P.log(), (None, TRUTH))
    entropy = CrossEntropy(ignore=255).score(P.log(), (None, TRUTH))
    assert torch.allclose(both, found + 0.5 * entropy)


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


def test_another_cross_entropy_ignores_alike() -> None:
    z, y = P.log()[:1], TRUTH[:1]
    changed = torch.cat([z[..., :2], z[..., 2:] + torch.tensor([3.0, 0.0]).view(1, 2, 1, 1)], -1)
    loss = FedNTD(ignore=255)
    assert torch.equal(loss.score(z, (None, y)), loss.score(changed, (None, y)))


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
