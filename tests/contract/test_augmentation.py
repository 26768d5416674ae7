"""Images in bytes, augmented in batches: every engine sees the same ones."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.core.vector import leaves
from fedloom.data import FederatedData, Images, Ragged
from fedloom.engines.shared_memory import Board, load
from tiny import same, timeless, trace

SIZES = (1, 3, 8, 11, 2)


def images(dtype):
    draw = np.random.default_rng(0)
    count = sum(SIZES)
    return FederatedData(
        name="images",
        inputs=torch.from_numpy(draw.integers(0, 256, (count, 2, 6, 6), dtype=np.uint8)),
        targets=torch.from_numpy(draw.integers(0, 3, count)),
        clients=Ragged.from_sizes(torch.tensor(SIZES), torch.arange(count)),
        test_inputs=torch.from_numpy(draw.integers(0, 256, (20, 2, 6, 6), dtype=np.uint8)),
        test_targets=torch.from_numpy(draw.integers(0, 3, 20)),
        transform=Images(
            mean=(0.4, 0.5), std=(0.2, 0.3), crop=2, flip=True, rotate=15.0, dtype=dtype
        ),
    )


def model(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    return net.to(dtype)


def ends(dtype, engine, name="scaffold", data=None):
    experiment = Experiment(
        algorithm=make_algorithm(name),
        model=model(dtype),
        data=data or images(dtype),
        rounds=3,
        cohort=4,
        local=Local(epochs=2, batch=3, lr=0.1, momentum=0.0),
        seed=2,
        engine=engine,
        device="cpu",
    )
    loop = [*trace(experiment, 3)][-1]
    return loop.state.srv, timeless(loop.log.history)


@functools.cache
def serially(dtype, name="scaffold"):
    return ends(dtype, "serial", name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_have_the_bits_of_serial(dtype, workers, engine_of):
    one, other = ends(dtype, engine_of(f"workers:{workers}")), serially(dtype)
    assert same(one[0], other[0]) and one[1] == other[1]


@pytest.mark.quick("3")
@pytest.mark.parametrize("name", ["scaffold", "fedavg", "fedsmoo"])
@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_vectorised_agrees_with_serial_in_float64(chunk, name):
    one, other = ends(torch.float64, f"vectorised:{chunk}", name), serially(torch.float64, name)
    for a, b in zip(leaves(one[0]), leaves(other[0]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_augmentation_changes_training_and_not_evaluation():
    dtype = torch.float64
    data = images(dtype)
    still = FederatedData(
        name="still",
        inputs=data.inputs,
        targets=data.targets,
        clients=data.clients,
        test_inputs=data.test_inputs,
        test_targets=data.test_targets,
        transform=Images(mean=(0.4, 0.5), std=(0.2, 0.3), dtype=dtype),
    )
    by_bytes, augmented = ends(dtype, "serial", data=still), serially(dtype)
    assert not torch.equal(by_bytes[0].x, augmented[0].x)
    # bytes with a transform are what floats made before are
    floats = FederatedData(
        name="floats",
        inputs=still.ready(data.inputs),
        targets=data.targets,
        clients=data.clients,
        test_inputs=still.ready(data.test_inputs),
        test_targets=data.test_targets,
    )
    assert same(ends(dtype, "serial", data=floats)[0], by_bytes[0])
    assert ends(dtype, "serial", data=floats)[1] == by_bytes[1]


def test_the_experiments_type_is_the_images_type():
    experiment = Experiment(
        algorithm=FedAvg(),
        model=model(torch.float32),
        data=images(torch.float32),
        rounds=1,
        dtype=torch.float64,
        device="cpu",
    )
    assert experiment.run().summary["rounds"] == 1
    assert experiment.data.transform.out == torch.float64


def test_windows_that_share_a_text_are_posted_once_and_come_back_the_same():
    text = torch.arange(100_000, dtype=torch.int64).remainder(251).to(torch.uint8)
    windows = text.unfold(0, 80, 1)
    board = Board()
    try:
        path = board.post({"windows": windows, "again": windows[5:]})
        files = sum(f.stat().st_size for f in board.folder.iterdir())
        assert files < 3 * text.nbytes < windows.nbytes
        got = load(path)
        assert torch.equal(got["windows"], windows) and torch.equal(got["again"], windows[5:])
    finally:
        board.close()
