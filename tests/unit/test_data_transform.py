"""Normalising and augmenting batches, against the same moves one pixel at a time."""

import math

import numpy as np
import pytest
import torch

from fedloom import Local
from fedloom.data import FederatedData, Images, Ragged, Tokens, from_clients
from fedloom.federation.federation import Federation
from support.refusals import refused

NORMS = {"mean": (0.2, 0.4), "std": (0.5, 2.0)}
PLAIN = Images(**NORMS, dtype=torch.float64)
MEAN, STD = (np.array(v)[:, None, None] for v in NORMS.values())


def pictures(count=6, seed=0):
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(1, 256, (count, 2, 7, 5), dtype=np.uint8))


def draws_of(count):
    return torch.from_numpy(np.random.default_rng(1).random((count, 5)))


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


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize(
    "moves",
    [
        {},
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
    transform = Images(**NORMS, fill=fill, dtype=torch.float64, **moves)
    images, draws = pictures(24), draws_of(24)
    moved = transform.augmented(images, draws)
    for image, draw, one in zip(images.numpy(), draws.tolist(), moved, strict=True):
        raw = by_hand(image, draw, transform, fill == "black")
        expected = np.where(np.isnan(raw), 0.0, (raw / 255 - MEAN) / STD)
        np.testing.assert_allclose(one.numpy(), expected, rtol=0, atol=1e-12)
    expected = torch.from_numpy((images.numpy() / 255 - MEAN) / STD)
    torch.testing.assert_close(transform.plain(images), expected, rtol=0, atol=1e-15)
    assert bool(transform.draws) == bool(moves) and images.dtype == torch.uint8
    assert transform.out == torch.float64 and transform.astype(torch.float32).out == torch.float32


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mean": (0.0, 0.0)}, "mean has 2 and std 1"),
        ({"std": (0.0,)}, "std must be a list of numbers in"),
        ({"mean": (math.nan,)}, "mean must be a list of numbers, got"),
        ({"crop": -1}, "crop must be ... got -1"),
        ({"crop": 1.5}, "got 1.5"),
        ({"crop_chance": 1.1}, "crop_chance must be in"),
        ({"rotate": -1.0}, "rotate must be in"),
        ({"fill": "white"}, "fill must be one of black, mean, got"),
        ({"dtype": torch.float16}, "float16"),
    ],
)
def test_values_out_of_range_are_refused(options, says):
    refused(lambda: Images(**({"mean": (0.0,), "std": (1.0,)} | options)), says)


# --------------------------------------------------------------- in the data and in the federation
def stored(transform=None):
    return FederatedData(
        name="stored", inputs=pictures(6), targets=torch.arange(6) % 3,
        clients=Ragged.from_lists([[0, 3], [1, 2, 4, 5]]),
        transform=transform or Images(**NORMS, crop=2, flip=True),
    )  # fmt: skip


def test_images_stay_bytes_and_reach_the_model_as_floats():
    data, rows = stored(), torch.tensor([1, 4])
    fed = Federation(data, Local(batch=2), seed=4)
    assert data.inputs.dtype == torch.uint8 and data.classes == 3
    inputs, targets = fed.batch(rows)
    assert torch.equal(inputs, data.transform.plain(data.inputs[rows]))
    assert targets.tolist() == [1, 1]
    draws = fed.draws(1, 0, 0, 2)
    moved = data.transform.augmented(data.inputs[rows], draws)
    assert torch.equal(fed.batch(rows, draws)[0], moved)
    assert data.astype(torch.float64).ready(data.inputs).dtype == torch.float64
    pairs = [(pictures(2), [0, 1]), (pictures(3), [1, 1, 0])]
    own = from_clients(pairs, test=(pictures(1), [0]), transform=Images(**NORMS))
    assert own.inputs.dtype == own.test_inputs.dtype == torch.uint8
    assert own.about["std"] == [0.5, 2.0] and own.sizes.tolist() == [2, 3]


def test_draws_depend_on_seed_round_client_and_step_and_on_nothing_else():
    draws = lambda *place, seed=4, batch=2: Federation(stored(), Local(batch=batch), seed).draws(
        *place
    )
    one = draws(1, 2, 3, 4)
    assert one.shape == (4, 5) and one.min() >= 0 and one.max() < 1
    assert torch.equal(one, draws(1, 2, 3, 4, batch=1))
    others = [draws(0, 2, 3, 4), draws(1, 1, 3, 4), draws(1, 2, 2, 4), draws(1, 2, 3, 4, seed=5)]
    assert not any(torch.equal(one, other) for other in others)
    assert Federation(stored(Images(**NORMS)), Local()).draws(0, 0, 0, 2) is None


def test_tokens_as_targets_are_counted_one_by_one():
    inputs, targets = torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[0, 3], [3, 3], [1, 0]])
    clients = Ragged.from_lists([[0, 2], [1]])
    data = FederatedData(name="text", inputs=inputs, targets=targets, clients=clients)
    assert data.classes == 4 and data.label_counts_of(0).tolist() == [2, 1, 0, 1]
    assert data.label_counts().tolist() == [[2, 1, 0, 1], [0, 0, 0, 2]]
    assert data.astype(torch.float64).inputs.dtype == torch.int64
    words = Tokens()
    assert (words.draws, words.out, words.astype(torch.float64)) == (0, torch.int64, words)


def test_a_table_of_counts_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("fedloom.data.federated.LARGEST_TABLE", 5)
    refused(stored().label_counts, "2 clients by 3 classes is too large ... label_counts_of")
    assert stored().label_counts_of(1).tolist() == [0, 2, 2]
