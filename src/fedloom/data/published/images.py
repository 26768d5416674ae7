"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100: one table, and the loader of its entries; and the
handwritten digits that scikit-learn carries, data without a download.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.extras import install
from fedloom.core.rng import key
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, check_labels
from fedloom.data.federated import FederatedData
from fedloom.data.partition import dirichlet
from fedloom.data.partition.base import Floats
from fedloom.data.partition.without_labels import natural
from fedloom.data.published.cache import New, prepared
from fedloom.data.published.download import DataDir, PublishedFile, data_root, fetch, fetch_archive
from fedloom.data.published.files import read_batch, read_idx, unpickled
from fedloom.data.raw_inputs import Pixels
from fedloom.data.transforms import Fill, Images
from fedloom.errors import DataError

# images (n, C, H, W) uint8, or (n, H, W), and labels (n,), of training and of testing; names
Content = tuple[Tensor, Tensor, Tensor, Tensor, tuple[str, ...]]
_PARTS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A data set: its folder, its files with their published checksums, its reader.

    files: of training, then of testing, then others; archive: that contains them, if they are not
    downloaded one by one; key: the prefix of the names of labels in CIFAR's batches; writers: who
    wrote each training image.
    """

    name: str
    folder: str
    about: str
    files: tuple[PublishedFile, ...]
    read: Callable[[ImageSet, Sequence[Path]], Content]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int = 10
    class_names: tuple[str, ...] = ()
    archive: PublishedFile | None = None
    key: bytes = b""
    writers: PublishedFile | None = None

    @property
    def home(self) -> str:
        """Where the files are from."""
        return self.archive.url if self.archive else self.files[0].url.rpartition("/")[0]


def _read_idx(kind: ImageSet, paths: Sequence[Path]) -> Content:
    """Four files: training images, their labels, test images, their labels."""
    arrays = [read_idx(path) for path in paths]
    for images, labels, path in zip(arrays[::2], arrays[1::2], paths[::2], strict=True):
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{path} has shape {images.shape} and its labels {labels.shape}; expected (n, "
                "rows, columns) and (n,)"
            )
    train, test = (check_labels(_whole(arrays[i]), kind.classes, paths[i]) for i in (1, 3))
    pictures, tests = (torch.from_numpy(arrays[i]) for i in (0, 2))
    return pictures, train, tests, test, kind.class_names


def _whole(values: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _read_cifar(kind: ImageSet, paths: Sequence[Path]) -> Content:
    """Batches of training, one of testing, and the classes' names."""
    *train, test, names = paths
    batches = [read_batch(path, kind.key + b"labels", kind.classes) for path in train]
    images, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    tests, test_labels = read_batch(test, kind.key + b"labels", kind.classes)
    classes = tuple(name.decode() for name in unpickled(names)[kind.key + b"label_names"])
    return images, labels, tests, test_labels, classes


# --------------------------------------------------------------------------------------- the table
def _files(home: str, *sums: tuple[str, str]) -> tuple[PublishedFile, ...]:
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


def _batches(name: str, md5: str, sums: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an archive of CIFAR's home, {file in it: md5}."""
    archive = PublishedFile(name=name, md5=md5, url=f"https://www.cs.toronto.edu/~kriz/{name}")
    files = tuple(PublishedFile(name=n, md5=m, url=archive.url) for n, m in sums.items())
    return {"archive": archive, "files": files, "read": _read_cifar}


MNIST = ImageSet(
    name="mnist",
    folder="mnist",
    about="70,000 grey images of 28 x 28, 10 classes",
    files=_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    ),
    read=_read_idx,
    mean=(0.1307,),
    std=(0.3081,),
    class_names=tuple("0123456789"),
    writers=QMNIST,
)
FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    folder="fashion-mnist",
    about=MNIST.about,
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
    read=_read_idx,
    mean=(0.2860,),
    std=(0.3529,),
    class_names=(
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
)
CIFAR10 = ImageSet(
    name="cifar10",
    folder="cifar-10-batches-py",
    about="60,000 colour images of 32 x 32, 10 classes",
    **_batches(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = ImageSet(
    name="cifar100",
    folder="cifar-100-python",
    about="60,000 colour images of 32 x 32, 100 classes",
    **_batches(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    classes=100,
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
    how: dict[str, Any] = {"rotate": rotate, "crop": crop, "crop_chance": crop_chance, "flip": flip}
    transform = Images(mean=tuple(mean), std=tuple(std), fill=fill, **how)
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
    how: dict[str, Any] = {"rotate": rotate, "crop": crop, "crop_chance": crop_chance, "flip": flip}
    transform = Images(mean=tuple(mean), std=tuple(std), fill=fill, **how)
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
    folder = root / kind.folder
    if kind.archive is not None:
        fetch_archive(kind.archive, root, kind.folder, download)
        download = False
    paths = [fetch(file, folder, download) for file in kind.files]
    raw = None if transform is not None else Pixels(255, kind.mean[0], kind.std[0])
    if raw is None:
        inputs, labels, tests, test_labels, names = kind.read(kind, paths)
    else:
        inputs, labels, tests, test_labels, names = _normalised(kind, folder, paths, raw)
    return Arrays(
        name=kind.name,
        inputs=inputs,
        targets=labels,
        test_inputs=tests,
        test_targets=test_labels,
        owners=_writers(kind, labels, partition, root, download),
        by="writers",
        class_names=names,
        transform=transform,
        raw=raw,
        details={} if raw is None else {"mean": raw.mean, "std": raw.std},
    ).divided(partition, seed)


def _normalised(kind: ImageSet, folder: Path, paths: Sequence[Path], raw: Pixels) -> Content:
    """The content with images (n, 1, H, W) as floats, which are prepared once."""

    def make(new: New) -> None:
        parts = kind.read(kind, paths)[:4]
        for name, part in zip(_PARTS, parts, strict=True):
            image = part.ndim == 3
            made = raw.store(part).unsqueeze(1) if image else part
            new(name, tuple(made.shape), made.numpy().dtype)[...] = made.numpy()

    # what `make` does with the same files changes with these
    version = f"floats-1-{raw.scale:g}-{raw.mean:g}-{raw.std:g}"
    found = prepared(folder, version, paths, make)
    train, labels, tests, test_labels = (torch.from_numpy(found[name]) for name in _PARTS)
    return train, labels, tests, test_labels, kind.class_names


def _writers(
    kind: ImageSet, labels: Tensor, partition: Partition, root: Path, download: bool
) -> Tensor | None:
    """The writer of each training image, by NIST's number; read only on demand."""
    if kind.writers is None or not isinstance(partition, natural):
        return None
    path = fetch(kind.writers, root / "qmnist", download)
    table = _whole(read_idx(path))
    if table.ndim != 2 or table.shape[1] < 3 or len(table) != len(labels):
        raise DataError(
            f"{path} has shape {tuple(table.shape)}; expected ({len(labels)}, 8), a row per image"
        )
    if len(wrong := (table[:, 0] != labels).nonzero()):
        row = int(wrong[0])
        raise DataError(
            f"{path} says that image {row} shows {int(table[row, 0])}, but its label is "
            f"{int(labels[row])}; the two files do not belong together"
        )
    return table[:, 2].contiguous()


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
    return arrays.divided(dirichlet(0.3, clients=50) if partition is None else partition, seed)


def _table() -> Floats:
    """The 64 pixels and the label of each image, (1797, 65), from scikit-learn's own file: to
    import scikit-learn takes longer than 30 rounds.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError(
            f"the digits come with scikit-learn, which is missing; run: {install('digits')}"
        )
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # of a version that keeps the file elsewhere

    return np.column_stack(load_digits(return_X_y=True))
