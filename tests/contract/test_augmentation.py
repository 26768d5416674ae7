"""Images in bytes, augmented in batches, and texts whose windows share their memory."""

from __future__ import annotations

import torch

from cases import CASES
from fedloom import Experiment, FedAvg
from fedloom.data import FederatedData, Images
from fedloom.engines.shared_memory import Board, load
from support.federations import images, small_images_net
from tiny import outcome, same


def end(data):
    return outcome(CASES["images, scaffold"].make(dtype=torch.float64, data=data), 2)


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
    by_bytes, augmented = end(still), end(data)
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
    again = end(floats)
    assert same(again[0], by_bytes[0]) and again[2:] == by_bytes[2:]


def test_the_experiments_type_is_the_images_type():
    experiment = Experiment(
        algorithm=FedAvg(),
        model=small_images_net(),
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
