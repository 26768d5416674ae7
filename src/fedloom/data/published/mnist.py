"""Data sets by name. Each function returns a FederatedData with the set's own test split."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.rng import key
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, check_labels
from fedloom.data.federated import FederatedData
from fedloom.data.own.folders import folders
from fedloom.data.own.tables import hugging_face, table
from fedloom.data.partition import dirichlet
from fedloom.data.partition.natural import natural
from fedloom.data.published.cifar import cifar10, cifar100
from fedloom.data.published.download import PublishedFile, data_root, fetch
from fedloom.data.published.leaf import celeba, femnist
from fedloom.data.published.shakespeare import shakespeare
from fedloom.data.published.text_classification import ag_news, sst2
from fedloom.data.published.tiny_imagenet import tiny_imagenet
from fedloom.data.published.wikitext import wikitext2
from fedloom.data.raw_inputs import Pixels
from fedloom.errors import DataError


@dataclass(frozen=True, kw_only=True)
class IdxSet:
    """Say what makes an MNIST-like set: folder, normalisation, names, and its files in the order
    training images, training labels, test images, test labels. writers: who wrote each training
    image.
    """

    name: str
    folder: str
    mean: float
    std: float
    class_names: tuple[str, ...]
    files: tuple[PublishedFile, PublishedFile, PublishedFile, PublishedFile]
    writers: PublishedFile | None = None


def _files(home: str, *sums: tuple[str, str]) -> Any:
    """Pair the four standard names with (md5 of the .gz, md5 of its content)."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        PublishedFile(
            name=f"{name}-ubyte.gz", md5=md5, md5_plain=plain, url=f"{home}{name}-ubyte.gz"
        )
        for name, (md5, plain) in zip(names, sums, strict=True)
    )


QMNIST = PublishedFile(
    name="qmnist-train-labels-idx2-int.gz",
    md5="0058f8dd561b90ffdd0f734c6a30e5e4",
    md5_plain="1d43300e7f41ddcbf7fd006cbe865af9",  # our own, of the published file's content
    url="https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
    "qmnist-train-labels-idx2-int.gz",
)
MNIST = IdxSet(
    name="mnist",
    folder="mnist",
    mean=0.1307,
    std=0.3081,
    class_names=tuple("0123456789"),
    files=_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    ),
    writers=QMNIST,
)
FASHION_MNIST = IdxSet(
    name="fashion_mnist",
    folder="fashion-mnist",
    mean=0.2860,
    std=0.3529,
    class_names=(
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
)


def digits(
    partition: Partition | None = None, seed: int = 0, test_share: float = 0.2
) -> FederatedData:
    """Load the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries: no download.

    Inputs are (n, 1, 8, 8) float32 in [0, 1]. The test set is test_share (in [0, 1)) of every
    class by one fixed permutation: it does not depend on seed. The default partition is
    dirichlet(0.3, clients=50). Raises DataError without scikit-learn or for a share out of range.

    Source: Alpaydin and Kaynak 1998, UCI repository, as given by sklearn.datasets.load_digits.
    """
    if not 0 <= test_share < 1:
        raise DataError(f"test_share must be in [0, 1), got {test_share}; 0.2 holds out a fifth")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits come with scikit-learn, which is missing; pip install fedloom[digits]"
        ) from error
    bunch = load_digits()
    raw = Pixels(16)
    images = raw.store(bunch.images).unsqueeze(1)
    labels = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        rows = (labels == label).nonzero().flatten()
        order = np.random.default_rng(key(0, "digits test split", label)).permutation(len(rows))
        # a class keeps at least one sample for training
        held = min(round(test_share * len(rows)), len(rows) - 1)
        test[rows[torch.from_numpy(order[:held])]] = True
    arrays = Arrays(
        name="digits",
        inputs=images[~test],
        targets=labels[~test],
        test_inputs=images[test],
        test_targets=labels[test],
        class_names=tuple("0123456789"),
        raw=raw,
        details={"scale": "1/16", "test_share": test_share},
    )
    return arrays.deal(dirichlet(0.3, clients=50) if partition is None else partition, seed)


def mnist(
    partition: Partition,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> FederatedData:
    """Load MNIST (60,000 + 10,000 digits of 28 x 28) from <root>/mnist.

    Inputs are (n, 1, 28, 28) float32, (pixel / 255 - 0.1307) / 0.3081. root is data_dir, else the
    environment variable FEDLOOM_DATA, else the user's cache. Files that are missing are downloaded
    from their home unless download is False; every file is verified by its published md5. Raises
    DataError for files that are missing or damaged, on one line.

    The partitions natural and writers make clients of the 539 people who wrote the training images
    (19 to 131 each), whom <root>/qmnist/qmnist-train-labels-idx2-int names; it is downloaded too.

    Source: LeCun, Bottou, Bengio and Haffner 1998; normalisation of FAFED's code; the writers:
    Yadav and Bottou, QMNIST, NeurIPS 2019.
    """
    return _load(MNIST, partition, seed, data_dir, download)


def fashion_mnist(
    partition: Partition,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> FederatedData:
    """Load Fashion-MNIST (60,000 + 10,000 images of 28 x 28) from <root>/fashion-mnist.

    Inputs are (n, 1, 28, 28) float32, (pixel / 255 - 0.2860) / 0.3529; all else as for `mnist`.

    Source: Xiao, Rasul and Vollgraf 2017; normalisation of FAFED's code.
    """
    return _load(FASHION_MNIST, partition, seed, data_dir, download)


SOURCES: dict[str, Callable[..., FederatedData]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "femnist": femnist,
    "celeba": celeba,
    "shakespeare": shakespeare,
    "wikitext2": wikitext2,
    "ag_news": ag_news,
    "sst2": sst2,
    "folders": folders,
    "table": table,
    "hugging_face": hugging_face,
}


def _load(
    kind: IdxSet,
    partition: Partition,
    seed: int,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
) -> FederatedData:
    folder, raw = data_root(data_dir) / kind.folder, Pixels(255, kind.mean, kind.std)
    paths = [fetch(file, folder, download) for file in kind.files]
    train, labels, test, test_labels = (_decoded(path) for path in paths)
    for images, targets, path in ((train, labels, paths[0]), (test, test_labels, paths[2])):
        if images.ndim != 3 or targets.ndim != 1 or len(images) != len(targets):
            raise DataError(
                f"{path} has shape {images.shape} and its labels {targets.shape}; expected (n, "
                "rows, columns) and (n,)"
            )
    arrays = Arrays(
        name=kind.name,
        inputs=raw.store(train).unsqueeze(1),
        targets=check_labels(_labels(labels), 10, paths[1]),
        test_inputs=raw.store(test).unsqueeze(1),
        test_targets=check_labels(_labels(test_labels), 10, paths[3]),
        owners=_writers(kind, labels, partition, data_dir, download),
        by="writers",
        class_names=kind.class_names,
        raw=raw,
        details={"mean": kind.mean, "std": kind.std},
    )
    return arrays.deal(partition, seed)


def _labels(values: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _writers(
    kind: IdxSet,
    labels: np.ndarray[Any, np.dtype[Any]],
    partition: Partition,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
) -> Tensor | None:
    """Who wrote each training image, by NIST's number; only looked up when somebody asks."""
    if kind.writers is None or not isinstance(partition, natural):
        return None
    folder = data_root(data_dir) / "qmnist"
    path = fetch(kind.writers, folder, download)
    table = _decoded(path)
    if table.ndim != 2 or table.shape[1] < 3 or len(table) != len(labels):
        raise DataError(
            f"{path} has shape {table.shape}; expected ({len(labels)}, 8), a row per image"
        )
    if not np.array_equal(table[:, 0], labels):
        row = int(np.flatnonzero(table[:, 0] != labels)[0])
        raise DataError(
            f"{path} says that image {row} shows {int(table[row, 0])}, but its label is "
            f"{int(labels[row])}; the two files do not belong together"
        )
    return _labels(table[:, 2])


def _decoded(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    state = path.stat()
    return _decoded_once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)  # two sets of four files: several seeds in one process decode once
def _decoded_once(path: Path, mtime: int, size: int) -> np.ndarray[Any, np.dtype[Any]]:
    array = read_idx(path)
    array.flags.writeable = False
    return array


TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the array of an idx file (gzipped if the name ends in .gz), in native byte order.

    The format: two zero bytes, a type code, the number of dimensions, each dimension as a
    big-endian 32-bit integer, then the values. Raises DataError for a file that is missing,
    truncated, longer than its header says, or not idx.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, MemoryError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; get the file again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{path} is no idx file: it begins with {raw[:4].hex() or 'nothing'}")
    start = 4 + 4 * raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", count=raw[3], offset=4))
    dtype = np.dtype(TYPES[raw[2]])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise DataError(
            f"{path} has {len(raw)} bytes, but its header (shape {shape}, type {dtype}) asks for "
            f"{expected}; get the file again"
        )
    if len(shape) > 32:
        raise DataError(f"{path} has {len(shape)} dimensions; data sets have a few")
    values = np.frombuffer(raw, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))
