"""Normalising and augmenting batches, against the same moves one pixel at a time."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from fedloom import Local
from fedloom.data import FederatedData, Images, Ragged, Tokens, Transform, from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.federation.federation import Federation

PLAIN = Images(mean=(0.2, 0.4), std=(0.5, 2.0), dtype=torch.float64)


def pictures(count=6, channels=2, height=7, width=5, seed=0):
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(1, 256, (count, channels, height, width), dtype=np.uint8))


def draws_of(count, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).random((count, 5)))


def by_hand(image, draw, transform, black):
    """Turn, then pad and cut, then mirror: each of them pixel by pixel on the last one's result."""
    channels, height, width = image.shape
    angle, chance, down, right, mirror = draw
    filler = np.zeros(channels) if black else np.full(channels, np.nan)  # nan stands for the mean
    turned = np.empty(image.shape)
    turn = (2 * angle - 1) * math.radians(transform.rotate)
    middle = ((height - 1) / 2, (width - 1) / 2)
    for i in range(height):
        for j in range(width):
            y, x = i - middle[0], j - middle[1]
            row = round(y * math.cos(turn) - x * math.sin(turn) + middle[0])
            column = round(y * math.sin(turn) + x * math.cos(turn) + middle[1])
            inside = 0 <= row < height and 0 <= column < width
            turned[:, i, j] = image[:, row, column] if inside else filler
    pad = transform.crop
    framed = np.empty((channels, height + 2 * pad, width + 2 * pad))
    framed[:] = filler[:, None, None]
    framed[:, pad : pad + height, pad : pad + width] = turned
    top = left = pad
    if chance < transform.crop_chance:
        top, left = math.floor(down * (2 * pad + 1)), math.floor(right * (2 * pad + 1))
    out = framed[:, top : top + height, left : left + width]
    return out[:, :, ::-1] if transform.flip and mirror < 0.5 else out


def test_pixels_are_normalised_by_channel():
    images = pictures()
    mean, std = np.array([0.2, 0.4])[:, None, None], np.array([0.5, 2.0])[:, None, None]
    expected = torch.from_numpy((images.numpy() / 255 - mean) / std)
    torch.testing.assert_close(PLAIN.plain(images), expected, rtol=0, atol=1e-15)
    assert PLAIN.astype(torch.float32).plain(images).dtype == torch.float32
    assert images.dtype == torch.uint8 and PLAIN.draws == 0
    assert torch.equal(PLAIN.augmented(images, draws_of(6)), PLAIN.plain(images))


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize(
    "moves",
    [
        {"flip": True},
        {"crop": 2},
        {"crop": 3, "crop_chance": 0.5},
        {"rotate": 30.0},
        {"rotate": 180.0},
        {"rotate": 20.0, "crop": 2, "flip": True},
        {"rotate": 90.0, "crop": 1, "crop_chance": 0.4, "flip": True},
    ],
)
def test_moves_are_those_of_the_definition(moves, fill):
    transform = Images(mean=(0.2, 0.4), std=(0.5, 2.0), fill=fill, dtype=torch.float64, **moves)
    images, draws = pictures(24), draws_of(24)
    got = transform.augmented(images, draws)
    for image, draw, one in zip(images.numpy(), draws.tolist(), got, strict=True):
        raw = by_hand(image, draw, transform, fill == "black")
        mean, std = np.array([0.2, 0.4])[:, None, None], np.array([0.5, 2.0])[:, None, None]
        expected = np.where(np.isnan(raw), 0.0, (raw / 255 - mean) / std)
        np.testing.assert_allclose(one.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("transform", [PLAIN, Tokens(), Images(mean=(0.0,), std=(1.0,), crop=4)])
def test_transforms_are_values_that_travel(transform):
    assert isinstance(transform, Transform)
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert transform.astype(torch.float32).out in (torch.float32, torch.int64)
    assert str(transform.about())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mean": (0.0, 0.0)}, "mean has 2 and std 1"),
        ({"std": (0.0,)}, "std must be a list of numbers in"),
        ({"mean": (math.nan,)}, "mean must be a list of numbers, got"),
        ({"crop": -1}, "crop must be .*got -1"),
        ({"crop": 1.5}, "got 1.5"),
        ({"crop_chance": 1.1}, "crop_chance must be in"),
        ({"rotate": -1.0}, "rotate must be in"),
        ({"fill": "white"}, "fill must be one of black, mean, got"),
        ({"dtype": torch.float16}, "float16"),
    ],
)
def test_values_out_of_range_are_refused(options, says):
    with pytest.raises((ConfigError, DataError), match=says):
        Images(**({"mean": (0.0,), "std": (1.0,)} | options))


# ---- in the data and in the federation


def stored(transform=None, **changes):
    transform = transform or Images(mean=(0.2, 0.4), std=(0.5, 2.0), crop=2, flip=True)
    options = {
        "name": "stored",
        "inputs": pictures(6),
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "clients": Ragged.from_lists([[0, 3], [1, 2, 4, 5]]),
        "test_inputs": pictures(2, seed=5),
        "test_targets": torch.tensor([0, 2]),
        "transform": transform,
    }
    return FederatedData(**(options | changes))


def test_images_stay_bytes_and_reach_the_model_as_floats():
    data = stored()
    assert data.inputs.dtype == torch.uint8 and data.classes == 3
    fed = Federation(data, Local(batch=2), seed=4)
    inputs, targets = fed.batch(torch.tensor([1, 4]))
    assert torch.equal(inputs, data.transform.plain(data.inputs[[1, 4]]))
    assert targets.tolist() == [1, 1]
    draws = fed.draws(1, 0, 0, 2)
    assert torch.equal(
        fed.batch(torch.tensor([1, 4]), draws)[0],
        data.transform.augmented(data.inputs[[1, 4]], draws),
    )
    assert data.astype(torch.float64).ready(data.inputs).dtype == torch.float64


def test_draws_depend_on_seed_round_client_and_step_and_on_nothing_else():
    fed = Federation(stored(), Local(batch=2), seed=4)
    one = fed.draws(1, 2, 3, 4)
    assert one.shape == (4, 5) and one.min() >= 0 and one.max() < 1
    assert torch.equal(one, Federation(stored(), Local(batch=1), seed=4).draws(1, 2, 3, 4))
    others = [fed.draws(0, 2, 3, 4), fed.draws(1, 1, 3, 4), fed.draws(1, 2, 2, 4)]
    others.append(Federation(stored(), Local(batch=2), seed=5).draws(1, 2, 3, 4))
    assert not any(torch.equal(one, other) for other in others)
    plain = stored(Images(mean=(0.0, 0.0), std=(1.0, 1.0)))
    assert Federation(plain, Local()).draws(0, 0, 0, 2) is None


def test_bytes_without_a_transform_are_refused_with_both_ways_out():
    with pytest.raises(DataError, match=r"transform=Images\(\.\.\.\), or divide images by 255"):
        FederatedData(
            name="bytes",
            inputs=pictures(2),
            targets=torch.zeros(2),
            clients=Ragged.from_lists([[0, 1]]),
        )


def test_your_own_bytes_keep_their_type_with_a_transform():
    transform = Images(mean=(0.2, 0.4), std=(0.5, 2.0))
    pairs = [(pictures(2), [0, 1]), (pictures(3, seed=2), [1, 1, 0])]
    data = from_clients(pairs, test=(pictures(1), [0]), transform=transform)
    assert data.inputs.dtype == data.test_inputs.dtype == torch.uint8
    assert data.about["std"] == [0.5, 2.0] and data.sizes.tolist() == [2, 3]


def test_tokens_as_targets_are_counted_one_by_one():
    targets = torch.tensor([[0, 3], [3, 3], [1, 0]])
    data = FederatedData(
        name="text",
        inputs=torch.zeros(3, 2, dtype=torch.int64),
        targets=targets,
        clients=Ragged.from_lists([[0, 2], [1]]),
    )
    assert data.classes == 4
    assert data.label_counts().tolist() == [[2, 1, 0, 1], [0, 0, 0, 2]]
    assert data.label_counts_of(0).tolist() == [2, 1, 0, 1]
    assert data.astype(torch.float64).inputs.dtype == torch.int64


def test_a_table_of_counts_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("fedloom.data.federated.LARGEST_TABLE", 5)
    with pytest.raises(DataError, match=r"2 clients by 3 classes is too large.*label_counts_of"):
        stored().label_counts()
    assert stored().label_counts_of(1).tolist() == [0, 2, 2]
