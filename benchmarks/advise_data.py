"""Data whose clients differ in size or in their inputs, for benchmarks/advise.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from fedloom.core.rng import generator
from fedloom.data import FederatedData, by_lists, iid
from fedloom.data.published.heart import heart
from fedloom.data.published.images import digits


def _by_size(n: int, clients: int, factor: float, seed: int) -> list[list[int]]:
    """Rows at random; each client has `factor` times as many as the one before, at least eight."""
    shares = factor ** np.arange(clients)
    sizes = 8 + np.floor((n - 8 * clients) * shares / shares.sum()).astype(int)
    order = torch.randperm(n, generator=generator(seed, "sizes", 0, 0)).tolist()
    ends = np.cumsum(sizes)
    return [order[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def digits_by_size(clients: int = 10, factor: float = 0.6, seed: int = 0) -> FederatedData:
    """Digits of which the first client has most, by default two fifths."""
    n = len(digits(iid(1)).inputs)
    return digits(by_lists(_by_size(n, clients, factor, seed)), seed)


def heart_by_size(clients: int = 8, factor: float = 0.6, seed: int = 0) -> FederatedData:
    """Patients of whom the first client has most, by default two fifths."""
    n = len(heart(iid(1)).inputs)
    return heart(by_lists(_by_size(n, clients, factor, seed)), seed)


def heart_by_column(column: int, clients: int = 6, seed: int = 0) -> FederatedData:
    """Patients by a column (0: age, 2: blood pressure, 5: pulse), the lowest values at the first
    client; the seed draws nothing.
    """
    rows = heart(iid(1)).inputs[:, column].argsort(stable=True)
    return heart(by_lists([part.tolist() for part in rows.chunk(clients)]), seed)


def heart_by_age(clients: int = 6, seed: int = 0) -> FederatedData:
    """Patients by age."""
    return heart_by_column(0, clients, seed)


Look = Callable[[torch.Tensor, int, int], torch.Tensor]  # images, client, 0: training, 1: tests


def _looked_at(name: str, clients: int, seed: int, look: Look) -> FederatedData:
    """Digits as each client sees its own, with all labels; each test image is of one client."""
    data = digits(iid(clients), seed)
    assert data.test_inputs is not None
    owners = torch.arange(len(data.test_inputs)) % clients
    inputs, tests = data.inputs.clone(), data.test_inputs.clone()
    for i in range(clients):
        own, theirs = data.clients.of(i), owners == i
        inputs[own], tests[theirs] = look(inputs[own], i, 0), look(tests[theirs], i, 1)
    return replace(data, name=name, inputs=inputs, test_inputs=tests, raw=None)


def digits_by_ink(clients: int = 16, seed: int = 0) -> FederatedData:
    """Digits of which each client's ink is as dark as its own exponent makes it, every second one's
    paper and ink are exchanged, and which every fourth shifts by a pixel.
    """
    return _looked_at("digits_by_ink", clients, seed, lambda images, i, _: _inked(images, i))


def _inked(images: torch.Tensor, i: int) -> torch.Tensor:
    """Images (n, 1, 8, 8) in [0, 1] as client i sees them."""
    out = images.clamp(0, 1) ** (0.4, 0.7, 1.4, 2.5)[i % 4]
    out = 1 - out if i % 2 else out
    return out.roll(1, dims=-1) if i % 4 == 0 else out


def digits_by_hand(clients: int = 20, seed: int = 0) -> FederatedData:
    """Digits of which each client turns, blurs and spoils its own in its own way."""

    def look(images: torch.Tensor, i: int, tests: int) -> torch.Tensor:
        return _seen(images, i, clients, generator(seed, "noise", tests, i))

    return _looked_at("digits_by_hand", clients, seed, look)


def _seen(images: torch.Tensor, i: int, clients: int, draws: torch.Generator) -> torch.Tensor:
    """Images (n, 1, 8, 8) as client i sees them: turned by -60 to 60 degrees, every second client
    blurred, every third with noise of deviation 0.2.
    """
    angle = torch.tensor((2 * i / (clients - 1) - 1) * np.pi / 3)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    matrix = torch.cat([turn, torch.zeros(2, 1)], 1).expand(len(images), 2, 3)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    out = functional.grid_sample(images, grid, align_corners=False)
    if i % 2:
        out = functional.avg_pool2d(out, 3, stride=1, padding=1)
    if i % 3 == 0:
        out = out + 0.2 * torch.randn(out.shape, generator=draws)
    return out
