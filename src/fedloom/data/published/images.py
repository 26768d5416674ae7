"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and Tiny-ImageNet: how the entries are read. Without a
download: the handwritten digits that scikit-learn carries, and generated pictures of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.extras import install
from fedloom.core.hyper import NonNegative, PositiveInt, checked
from fedloom.core.rng import key
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.partition import dirichlet
from fedloom.data.partition.base import Floats
from fedloom.data.partition.without_labels import natural
from fedloom.data.pictures import open_picture
from fedloom.data.published.download import (
    CATALOGUE,
    DataDir,
    Entry,
    PublishedFile,
    data_root,
    fetch,
    fetch_set,
)
from fedloom.data.published.files import (
    New,
    prepared,
    read_batch,
    read_idx,
    read_rows,
    read_text,
    unpickled,
)
from fedloom.data.raw_inputs import Pixels
from fedloom.data.transforms import Fill, Images
from fedloom.errors import DataError

# images (n, C, H, W) uint8, or (n, H, W), and labels (n,), of training and of testing; names
Content = tuple[Samples, Samples, tuple[str, ...]]
_PARTS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


@dataclass(frozen=True, kw_only=True)
class ImageSet(Entry):
    """An entry of the catalogue, of whose files the first are of training, then of testing, and how
    they are read. key: the prefix of the names of labels in CIFAR's batches; writers: who wrote
    each training image.
    """

    read: Callable[[ImageSet, Sequence[Path]], Content]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    key: bytes = b""
    writers: PublishedFile | None = None


def _read_idx(kind: ImageSet, paths: Sequence[Path]) -> Content:
    """Four files: training images, their labels, test images, their labels."""
    x, y, test_x, test_y = map(read_idx, paths)
    return Samples(x, y.long()), Samples(test_x, test_y.long()), kind.class_names


def _read_cifar(kind: ImageSet, paths: Sequence[Path]) -> Content:
    """Batches of training, one of testing, and the classes' names."""
    *train, test, names = paths
    batches = [read_batch(path, kind.key + b"labels") for path in train]
    images, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    classes = tuple(name.decode() for name in unpickled(names)[kind.key + b"label_names"])
    return Samples(images, labels), Samples(*read_batch(test, kind.key + b"labels")), classes


# -------------------------------------------------------------------------------------- the entries
(QMNIST,) = CATALOGUE["qmnist"].files
MNIST = ImageSet(
    **vars(CATALOGUE["mnist"]),
    read=_read_idx,
    mean=(0.1307,),
    std=(0.3081,),
    class_names=tuple("0123456789"),
    writers=QMNIST,
)
FASHION_MNIST = ImageSet(
    **vars(CATALOGUE["fashion_mnist"]),
    read=_read_idx,
    mean=(0.2860,),
    std=(0.3529,),
    class_names=(
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
)
CIFAR10 = ImageSet(
    **vars(CATALOGUE["cifar10"]),
    read=_read_cifar,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = ImageSet(
    **vars(CATALOGUE["cifar100"]),
    read=_read_cifar,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    key=b"fine_",
)


# ---------------------------------------------------------------------------------------- the sets
def mnist(
    partition: Partition, seed: int = 0, data_dir: DataDir = None, download: bool = True
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
    return load(MNIST, partition, seed, data_dir, download)


def fashion_mnist(
    partition: Partition, seed: int = 0, data_dir: DataDir = None, download: bool = True
) -> FederatedData:
    """Load Fashion-MNIST (60,000 + 10,000 images of 28 x 28) from <root>/fashion-mnist.

    Inputs are (n, 1, 28, 28) float32, (pixel / 255 - 0.2860) / 0.3529; all else as for `mnist`.

    Source: Xiao, Rasul and Vollgraf 2017; normalisation of FAFED's code.
    """
    return load(FASHION_MNIST, partition, seed, data_dir, download)


def cifar10(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    download: bool = True,
    mean: Sequence[float] = CIFAR10.mean,
    std: Sequence[float] = CIFAR10.std,
    rotate: float = 0.0,
    crop: int = 0,
    crop_chance: float = 1.0,
    flip: bool = False,
    fill: Fill = "black",
) -> FederatedData:
    """Load CIFAR-10 (50,000 + 10,000 images of 3 x 32 x 32) from <root>/cifar-10-batches-py.

    The images stay uint8; batches are normalised by mean and std, and in training turned, cropped
    and flipped as `Images` says: rotate=10 crop=4 flip=true is FedACG's augmentation, crop=4
    flip=true FIARSE's, flip=true crop=4 crop_chance=0.5 fill=mean FedSMOO's. The default mean and
    std are those of the training images. FedACG's and FIARSE's code has the same mean, but
    std=[0.2023, 0.1994, 0.2010], the mean of each image's own deviation. root as for `mnist`; every
    file is verified by its published md5, and the archive is downloaded if the folder is not there.
    Raises DataError for files that are missing or damaged.

    Source: Krizhevsky 2009.
    """
    moves: dict[str, Any] = {"rotate": rotate, "crop": crop, "crop_chance": crop_chance}
    transform = Images(mean=tuple(mean), std=tuple(std), fill=fill, flip=flip, **moves)
    return load(CIFAR10, partition, seed, data_dir, download, transform)


def cifar100(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    download: bool = True,
    mean: Sequence[float] = CIFAR100.mean,
    std: Sequence[float] = CIFAR100.std,
    rotate: float = 0.0,
    crop: int = 0,
    crop_chance: float = 1.0,
    flip: bool = False,
    fill: Fill = "black",
) -> FederatedData:
    """Load CIFAR-100 (50,000 + 10,000 images of 3 x 32 x 32, 100 fine classes) from
    <root>/cifar-100-python.

    Options as for `cifar10`.

    Source: Krizhevsky 2009.
    """
    moves: dict[str, Any] = {"rotate": rotate, "crop": crop, "crop_chance": crop_chance}
    transform = Images(mean=tuple(mean), std=tuple(std), fill=fill, flip=flip, **moves)
    return load(CIFAR100, partition, seed, data_dir, download, transform)


def load(
    kind: ImageSet,
    partition: Partition,
    seed: int,
    data_dir: DataDir,
    download: bool,
    transform: Images | None = None,
) -> FederatedData:
    """Fetch, verify, read and partition a set; without a transform as normalised floats."""
    root = data_root(data_dir)
    paths = fetch_set(kind, root, download)
    raw = None if transform is not None else Pixels(255, kind.mean[0], kind.std[0])
    if raw is None:
        train, test, names = kind.read(kind, paths)
    else:
        train, test, names = _normalised(kind, root / kind.place, paths, raw)
    if kind.writers is not None and isinstance(partition, natural):  # by NIST's numbers
        records = read_idx(fetch(kind.writers, root / "qmnist", download))
        train = train._replace(owners=records[:, 2].long())
    return Arrays(
        name=kind.name,
        train=train,
        test=test,
        by="writers",
        class_names=names,
        transform=transform,
        raw=raw,
        details={} if raw is None else {"mean": raw.mean, "std": raw.std},
    ).divided(partition, seed)


def _normalised(kind: ImageSet, folder: Path, paths: Sequence[Path], raw: Pixels) -> Content:
    """The content with images (n, 1, H, W) as floats, which are prepared once."""

    def make(new: New) -> None:
        train, test, _ = kind.read(kind, paths)
        for name, part in zip(_PARTS, (*train[:2], *test[:2]), strict=True):
            image = part.ndim == 3
            stored = raw.store(part).unsqueeze(1) if image else part
            new(name, tuple(stored.shape), stored.numpy().dtype)[...] = stored.numpy()

    # what `make` does with the same files changes with these
    version = f"floats-1-{raw.scale:g}-{raw.mean:g}-{raw.std:g}"
    arrays = prepared(folder, version, paths, make)
    x, y, test_x, test_y = (torch.from_numpy(arrays[name]) for name in _PARTS)
    return Samples(x, y), Samples(test_x, test_y), kind.class_names


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
    table, raw = _table(), Pixels(16)
    images = raw.store(table[:, :-1].reshape(-1, 8, 8)).unsqueeze(1)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        rows = (labels == label).nonzero().flatten()
        order = np.random.default_rng(key(0, "digits test split", label)).permutation(len(rows))
        # a class keeps at least one sample for training
        test_count = min(round(test_share * len(rows)), len(rows) - 1)
        test[rows[torch.from_numpy(order[:test_count])]] = True
    train, tests = Samples(images, labels).split(test)
    arrays = Arrays(
        name="digits",
        train=train,
        test=tests,
        class_names=tuple("0123456789"),
        raw=raw,
        details={"scale": "1/16", "test_share": test_share},
    )
    return arrays.divided(dirichlet(0.3, clients=50) if partition is None else partition, seed)


def _table() -> Floats:
    """The 64 pixels and the label of each image, (1797, 65), from scikit-learn's own file: to
    import scikit-learn takes longer than 30 rounds.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            f"the digits come with scikit-learn, which is missing; run: {install('digits')}"
        )
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # of a version that keeps the file elsewhere

    return np.column_stack(load_digits(return_X_y=True))


TINY = CATALOGUE["tiny_imagenet"]


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
    root, size = data_root(data_dir), (64, 64)
    fetch_set(TINY, root, download)
    folder = root / TINY.place
    numbers, train, test = tiny_files(folder)

    def make(new: New) -> None:
        for split, files in (("train", train), ("test", test)):
            images = new(f"{split}_images", (len(files), 3, *size), np.uint8)
            for row, (path, _) in enumerate(files):
                images[row] = open_picture(path, size)

    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    arrays = prepared(folder, f"tiny-1-{len(train)}-{len(test)}", lists, make)
    x, test_x = (torch.from_numpy(arrays[f"{split}_images"]) for split in ("train", "test"))
    y, test_y = (torch.tensor([label for _, label in files]) for files in (train, test))
    return Arrays(
        name="tiny_imagenet",
        train=Samples(x, y),
        test=Samples(test_x, test_y),
        class_names=_words(folder, numbers),
        transform=transform,
    ).divided(partition, seed)


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


def _words(folder: Path, numbers: list[str]) -> tuple[str, ...]:
    """The names of the classes: the first word of each; their numbers without words.txt."""
    path = folder / "words.txt"
    if not path.is_file():
        return tuple(numbers)
    rows = (line.partition("\t") for line in read_text(path).splitlines())
    words = {number: text.split(",")[0].strip() for number, _, text in rows}
    return tuple(words.get(number, number) for number in numbers)


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
        class_names=("background", "disc", "square"),
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
