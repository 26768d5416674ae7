"""Generated pictures of discs and squares at several sites, with a class for each pixel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedloom.core.hyper import NonNegative, PositiveInt, checked
from fedloom.core.rng import key
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.partition.without_labels import natural

CLASSES = ("background", "disc", "square")


@checked
def shapes(
    partition: Partition | None = None,
    seed: int = 0,
    sites: PositiveInt = 4,
    samples: PositiveInt = 40,
    test_samples: PositiveInt = 20,
    size: PositiveInt = 24,
    noise: NonNegative = 0.2,
) -> FederatedData:
    """Generate pictures of a disc and a square at sites that differ: no download.

    Inputs are (n, 1, size, size) float32, targets (n, size, size) int64: 0 background, 1 disc, 2
    square, which may hide a part of the disc. Every site has its own brightness of the background
    (0 to 0.5), contrast (0.7 to 1.5) and normal noise (`noise` times 0.5 to 1.5), as scanners have.
    Each site has `samples` training and `test_samples` test pictures; the default partition is
    natural, the sites. Everything follows from the seed.

    >>> data = shapes(sites=2, samples=3, test_samples=1)
    >>> data.sizes.tolist(), data.targets.shape, data.classes
    ([3, 3], torch.Size([6, 24, 24]), 3)
    """
    pictures = [_site(seed, i, samples + test_samples, size, noise) for i in range(sites)]
    x, y = (torch.cat(arrays) for arrays in zip(*pictures, strict=True))
    numbers = torch.arange(len(x))
    each = samples + test_samples
    train, tests = Samples(x, y, numbers // each).split(numbers % each >= samples)
    return Arrays(
        name="shapes",
        train=train,
        test=tests,
        by="sites",
        owner_names=[f"site{i}" for i in range(sites)],
        class_names=CLASSES,
    ).divided(natural() if partition is None else partition, seed)


def _site(seed: int, site: int, count: int, size: int, noise: float) -> tuple[Tensor, Tensor]:
    """Pictures (count, 1, size, size) and the classes of their pixels (count, size, size)."""
    draw = np.random.default_rng(key(seed, "shapes", site))
    background, contrast, level = draw.uniform([0.0, 0.7, 0.5], [0.5, 1.5, 1.5])
    radius = draw.uniform(size / 8, size / 4, (2, count, 1, 1))  # of the disc; half of the square
    y, x = draw.uniform(size / 4, 3 * size / 4, (2, 2, count, 1, 1))  # centres, of both
    rows, columns = np.mgrid[:size, :size]
    down, right = np.abs(rows - y), np.abs(columns - x)  # (2, count, size, size)
    disc = np.hypot(down[0], right[0]) <= radius[0]
    square = np.maximum(down[1], right[1]) <= radius[1]
    classes = np.where(square, 2, disc.astype(np.int64))
    shade = background + contrast * np.array([0.0, 1.0, 0.8])[classes]
    pictures = shade + noise * level * draw.normal(size=classes.shape)
    return torch.from_numpy(pictures.astype(np.float32))[:, None], torch.from_numpy(classes)
