"""Tiny-ImageNet: a folder of JPEG files per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.pictures import open_picture
from fedloom.data.published.cache import New, prepared
from fedloom.data.published.catalogue import CATALOGUE, fetch_set
from fedloom.data.published.download import DataDir, data_root
from fedloom.data.published.files import read_rows, read_text
from fedloom.data.transforms import Fill, Images
from fedloom.errors import DataError

TINY = CATALOGUE["tiny_imagenet"]
TINY_SIDE = 64


def tiny_imagenet(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    download: bool = True,
    mean: Sequence[float] = (0.4802, 0.4481, 0.3975),
    std: Sequence[float] = (0.2770, 0.2691, 0.2821),
    rotate: float = 0.0,
    crop: int = 0,
    crop_chance: float = 1.0,
    flip: bool = False,
    fill: Fill = "black",
) -> FederatedData:
    """Load Tiny-ImageNet (100,000 + 10,000 images of 3 x 64 x 64, 200 classes) from
    <root>/tiny-imagenet-200.

    The published validation images are the test set: the published test images have no labels.
    Options as for `cifar10`. The JPEG files are decoded once and kept as arrays (1.3 GB, mapped
    into memory) in .prepared. Needs pillow; the archive is downloaded if the folder is not there.
    Raises DataError for files that are missing or damaged.

    Source: Le and Yang 2015, Stanford CS231n.
    """
    moves: dict[str, Any] = {"rotate": rotate, "crop": crop, "crop_chance": crop_chance}
    transform = Images(mean=tuple(mean), std=tuple(std), fill=fill, flip=flip, **moves)
    root = data_root(data_dir)
    fetch_set(TINY, root, download)
    folder = root / TINY.place
    return load_tiny(folder, transform).divided(partition, seed)


def tiny_files(folder: Path) -> tuple[list[str], list[tuple[Path, int]], list[tuple[Path, int]]]:
    """The classes' WordNet numbers, and (file, label) of training and test. Raises DataError."""
    numbers = read_text(folder / "wnids.txt").split()
    label = {number: i for i, number in enumerate(numbers)}
    train = [
        (path, label[number])
        for number in numbers
        for path in sorted((folder / "train" / number / "images").glob("*.JPEG"))
    ]
    listing = folder / "val" / "val_annotations.txt"
    test = []
    for row in read_rows(listing, tabs=True):
        if len(row) < 2 or row[1] not in label:
            raise DataError(f"{listing}: {row[0]} is of no class of {folder / 'wnids.txt'}")
        test.append((folder / "val" / "images" / row[0], label[row[1]]))
    if not train or not test:
        raise DataError(f"{folder} holds no pictures; get them from {TINY.home}")
    return numbers, train, test


def load_tiny(folder: Path, transform: Images) -> Arrays:
    """The arrays of Tiny-ImageNet. Raises DataError."""
    numbers, train, test = tiny_files(folder)

    def make(new: New) -> None:
        for split, files in (("train", train), ("test", test)):
            images = new(f"{split}_images", (len(files), 3, TINY_SIDE, TINY_SIDE), np.uint8)
            for row, (path, _) in enumerate(files):
                images[row] = open_picture(path, (TINY_SIDE, TINY_SIDE))

    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    arrays = prepared(folder, f"tiny-1-{len(train)}-{len(test)}", lists, make)

    def samples(split: str, files: list[tuple[Path, int]]) -> Samples:
        labels = torch.tensor([label for _, label in files])
        return Samples(torch.from_numpy(arrays[f"{split}_images"]), labels)

    return Arrays(
        name="tiny_imagenet",
        train=samples("train", train),
        test=samples("test", test),
        class_names=_words(folder, numbers),
        transform=transform,
    )


def _words(folder: Path, numbers: list[str]) -> tuple[str, ...]:
    """The names of the classes: the first word of each; their numbers without words.txt."""
    path = folder / "words.txt"
    if not path.is_file():
        return tuple(numbers)
    rows = (line.partition("\t") for line in read_text(path).splitlines())
    words = {number: text.split(",")[0].strip() for number, _, text in rows}
    return tuple(words.get(number, number) for number in numbers)
