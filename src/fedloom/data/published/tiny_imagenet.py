"""Picture files (JPEG, PNG, ...) through pillow, and Tiny-ImageNet, which is a folder of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays
from fedloom.data.federated import FederatedData
from fedloom.data.published.cache import New, prepared
from fedloom.data.published.download import PublishedFile, data_root, fetch_archive
from fedloom.data.published.text_files import read_rows, read_text
from fedloom.data.transforms import Images
from fedloom.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]

TINY = PublishedFile(
    name="tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
)
TINY_SIDE = 64


def refuse_without_pillow() -> None:
    """Raise DataError if pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise DataError(
            "picture files need pillow, which is missing; pip install fedloom[images]"
        ) from error


def open_picture(
    path: Path,
    size: tuple[int, int] | None = None,
    resize: bool = False,
    grey: bool | None = False,
) -> Array:
    """A picture as (3, height, width) uint8, or (1, height, width) if grey; None: as it is.

    size: (height, width) that it must have, or that it is brought to if resize. Raises DataError
    naming the file.
    """
    refuse_without_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        # opened here: given a name, pillow only closes the file of formats that let it
        with path.open("rb") as raw, Image.open(raw) as file:
            picture: Image.Image = file
            if resize and size is not None:
                picture = file.resize((size[1], size[0]))
            return as_array(picture, size, path, grey)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; get the pictures again") from error
    except (
        OSError,
        UnidentifiedImageError,
        SyntaxError,
        ValueError,
        MemoryError,
        Image.DecompressionBombError,
    ) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is no whole picture ({(str(error) or 'too large').splitlines()[0]}); get it "
            "again"
        ) from error


def as_array(
    picture: Any, size: tuple[int, int] | None, where: object, grey: bool | None = False
) -> Array:
    """A pillow picture as (3 or 1, height, width) uint8; where: what an error names."""
    if grey is None:
        grey = picture.mode in ("1", "L")
    array = np.asarray(picture.convert("L" if grey else "RGB"), dtype=np.uint8)
    if size is not None and array.shape[:2] != size:
        raise DataError(
            f"{where} has {array.shape[0]} x {array.shape[1]} pixels, expected {size[0]} x "
            f"{size[1]}; all pictures must be of one size"
        )
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def tiny_imagenet(
    partition: Partition,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    mean: Sequence[float] = (0.4802, 0.4481, 0.3975),
    std: Sequence[float] = (0.2770, 0.2691, 0.2821),
    rotate: float = 0.0,
    crop: int = 0,
    crop_chance: float = 1.0,
    flip: bool = False,
    fill: str = "black",
) -> FederatedData:
    """Load Tiny-ImageNet (100,000 + 10,000 images of 3 x 64 x 64, 200 classes) from
    <root>/tiny-imagenet-200.

    The published validation images are the test set: the published test images have no labels.
    Options as for `cifar10`. The JPEG files are decoded once and kept as arrays (1.3 GB, mapped
    into memory) in .prepared. Needs pillow; the archive is downloaded if the folder is not there.
    Raises DataError for files that are missing or damaged.

    Source: Le and Yang 2015, Stanford CS231n.
    """
    transform = Images(
        mean=tuple(mean),
        std=tuple(std),
        rotate=rotate,
        crop=crop,
        crop_chance=crop_chance,
        flip=flip,
        fill=fill,
    )
    folder = fetch_archive(TINY, data_root(data_dir), "tiny-imagenet-200", download)
    return load_tiny(folder, transform).deal(partition, seed)


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
        raise DataError(f"{folder} holds no pictures; get them from {TINY.url}")
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
    made = prepared(folder, f"tiny-1-{len(train)}-{len(test)}", lists, make)
    return Arrays(
        name="tiny_imagenet",
        inputs=torch.from_numpy(made["train_images"]),
        targets=torch.tensor([label for _, label in train]),
        test_inputs=torch.from_numpy(made["test_images"]),
        test_targets=torch.tensor([label for _, label in test]),
        class_names=_words(folder, numbers),
        transform=transform,
    )


def _words(folder: Path, numbers: list[str]) -> tuple[str, ...]:
    """What the classes are called: the first word of each; their numbers without words.txt."""
    path = folder / "words.txt"
    if not path.is_file():
        return tuple(numbers)
    rows = (line.partition("\t") for line in read_text(path).splitlines())
    words = {number: text.split(",")[0].strip() for number, _, text in rows}
    return tuple(words.get(number, number) for number in numbers)
