"""CIFAR-10 and CIFAR-100, from the publisher's pickles, which are read without running what is in
them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, check_labels
from fedloom.data.federated import FederatedData
from fedloom.data.published.download import PublishedFile, data_root, fetch_archive, verify
from fedloom.data.transforms import Images
from fedloom.errors import DataError

HOME = "https://www.cs.toronto.edu/~kriz/"
SHAPE = (3, 32, 32)


@dataclass(frozen=True, kw_only=True)
class CifarSet:
    """Say what makes a CIFAR: its folder, archive, and files with their published md5s.

    train, test: names of the batches; labels: the key of the labels in them; names: (file, key) of
    the classes' names. ordered: whether a batch with another md5 is refused; CIFAR-100 also goes
    round in another order of the same images.
    """

    name: str
    folder: str
    archive: PublishedFile
    md5: dict[str, str]
    train: tuple[str, ...]
    test: str
    labels: bytes
    names: tuple[str, bytes]
    classes: int
    ordered: bool


CIFAR10 = CifarSet(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive=PublishedFile(
        name="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        url=HOME + "cifar-10-python.tar.gz",
    ),
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    labels=b"labels",
    names=("batches.meta", b"label_names"),
    classes=10,
    ordered=True,
)
CIFAR100 = CifarSet(
    name="cifar100",
    folder="cifar-100-python",
    archive=PublishedFile(
        name="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        url=HOME + "cifar-100-python.tar.gz",
    ),
    md5={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    train=("train",),
    test="test",
    labels=b"fine_labels",
    names=("meta", b"fine_label_names"),
    classes=100,
    ordered=False,
)


def cifar10(
    partition: Partition,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
    rotate: float = 0.0,
    crop: int = 0,
    crop_chance: float = 1.0,
    flip: bool = False,
    fill: str = "black",
) -> FederatedData:
    """Load CIFAR-10 (50,000 + 10,000 images of 3 x 32 x 32) from <root>/cifar-10-batches-py.

    The images stay uint8; batches are normalised by mean and std, and in training turned, cropped
    and flipped as `Images` says: rotate=10 crop=4 flip=true is FedACG's augmentation, crop=4
    flip=true FIARSE's, flip=true crop=4 crop_chance=0.5 fill=mean FedSMOO's. root as for `mnist`;
    every file is verified by its published md5, and the archive is downloaded if the folder is not
    there. Raises DataError for files that are missing or damaged.

    Source: Krizhevsky 2009.
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
    return load(CIFAR10, data_dir, download, transform).deal(partition, seed)


def cifar100(
    partition: Partition,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    mean: Sequence[float] = (0.5071, 0.4865, 0.4409),
    std: Sequence[float] = (0.2673, 0.2564, 0.2762),
    rotate: float = 0.0,
    crop: int = 0,
    crop_chance: float = 1.0,
    flip: bool = False,
    fill: str = "black",
) -> FederatedData:
    """Load CIFAR-100 (50,000 + 10,000 images of 3 x 32 x 32, 100 fine classes) from
    <root>/cifar-100-python.

    Options as for `cifar10`. A copy with other md5s than the publisher's is taken if it is whole
    (500 and 100 images a class): the same images go round in another order.

    Source: Krizhevsky 2009.
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
    return load(CIFAR100, data_dir, download, transform).deal(partition, seed)


def load(
    kind: CifarSet,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    transform: Images | None = None,
) -> Arrays:
    """The arrays of a set, verified. Raises DataError."""
    folder = fetch_archive(kind.archive, data_root(data_dir), kind.folder, download)
    if kind.ordered:
        for name, md5 in kind.md5.items():
            verify(folder / name, md5, kind.archive.url)
    inputs, targets = read_batches(kind, folder, kind.train)
    tests, test_targets = read_batches(kind, folder, (kind.test,))
    if not kind.ordered:
        for labels, path in ((targets, kind.train[0]), (test_targets, kind.test)):
            counts = torch.bincount(labels, minlength=kind.classes)
            if int(counts.min()) != int(counts.max()):
                raise DataError(
                    f"{folder / path} has {int(counts.min())} to {int(counts.max())} images a "
                    f"class; equally many are published: get it from {kind.archive.url}"
                )
    names = _unpickled(folder / kind.names[0])[kind.names[1]]
    return Arrays(
        name=kind.name,
        inputs=inputs,
        targets=targets,
        test_inputs=tests,
        test_targets=test_targets,
        class_names=tuple(name.decode() for name in names),
        transform=transform,
    )


def read_batches(kind: CifarSet, folder: Path, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 of some batches, one after the other."""
    images: Tensor | None = None
    labels: list[Tensor] = []
    start = 0
    for name in names:
        batch = _unpickled(folder / name)
        rows: Any = batch.get(b"data")
        own: Any = batch.get(kind.labels)
        _check_batch(folder / name, kind, rows, own)
        if len(names) == 1:
            images = torch.from_numpy(rows)
        else:  # one array for all batches, which are of one size, and no second copy of any
            if images is None:
                images = torch.empty(len(rows) * len(names), rows.shape[1], dtype=torch.uint8)
            images[start : start + len(rows)] = torch.from_numpy(rows)
        start += len(rows)
        labels.append(check_labels(torch.tensor(own), kind.classes, folder / name))
    assert images is not None
    return images[:start].view(-1, *SHAPE), torch.cat(labels)


def _check_batch(path: Path, kind: CifarSet, rows: Any, labels: Any) -> None:
    whole = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.ndim == 2
    if not whole or rows.shape[1] != 3072 or not isinstance(labels, list):
        raise DataError(
            f"{path} holds no 'data' (n, 3072) uint8 with '{kind.labels.decode()}': it is no batch "
            f"of {kind.name}; get it from {kind.archive.url}"
        )
    if len(rows) != len(labels):
        raise DataError(f"{path} has {len(rows)} images, but {len(labels)} labels; get it again")


class _Unpickler(pickle.Unpickler):
    """Reads arrays and plain values; anything else in a pickle is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "_reconstruct": np.empty(0).__reduce__()[0],
            "ndarray": np.ndarray,
            # later versions of numpy warn of the flags that these old files give as numbers
            "dtype": lambda kind, *flags: np.dtype(
                kind.decode() if isinstance(kind, bytes) else kind
            ),
        }
        if module.split(".")[0] != "numpy" or name not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data do not need")
        return allowed[name]


def _unpickled(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            value = _Unpickler(file, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{path} is cut short or altered ({type(error).__name__}: {error}); get it again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is no batch of images: it holds a {type(value).__name__}")
    return value
