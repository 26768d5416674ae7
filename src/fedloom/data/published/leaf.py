"""LEAF's data sets: FEMNIST and CelebA, from the JSON files that LEAF's scripts write.

A file holds users, num_samples and user_data: {user: {"x": [...], "y": [...]}}; a folder each for
training and test. Shakespeare, whose samples overlap, has a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.pictures import open_picture, pillow
from fedloom.data.published.cache import New, prepared
from fedloom.data.published.catalogue import CATALOGUE
from fedloom.data.published.download import DataDir, data_root
from fedloom.data.published.files import read_json
from fedloom.data.raw_inputs import Resized
from fedloom.data.transforms import Images
from fedloom.errors import DataError

HOME = CATALOGUE["femnist"].home
SPLITS = ("train", "test")
_PARTS = ("images", "labels", "owners")
FEMNIST_CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CELEBA_SIDE = 84  # pixels, as LEAF's loader makes them

Array = np.ndarray[Any, np.dtype[Any]]
_NONE = np.empty(0, np.int64)


class User(NamedTuple):
    """One user of a LEAF file."""

    file: Path
    name: str
    data: dict[str, Any]

    def samples(self) -> tuple[list[Any], list[Any]]:
        """x and y. Raises ValueError."""
        x, y = self.data.get("x"), self.data.get("y")
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise ValueError("there are no lists x and y of one length")
        return x, y


@contextmanager
def altered(user: User) -> Iterator[None]:
    """Raise DataError naming file and user for what cannot be read of a user's data."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DataError(f"{user.file}: user {user.name}: {error}; get the file again") from error


def leaf_files(folder: Path) -> dict[str, list[Path]]:
    """{"train": files, "test": files}. Raises DataError if there is nothing to train on."""
    files = {split: sorted((folder / split).glob("*.json")) for split in SPLITS}
    if not files["train"]:
        raise DataError(
            f"{folder / 'train'} holds no .json files; make them with LEAF's scripts ({HOME}, "
            f"data/{folder.name}/preprocess.sh) and copy data/train and data/test to {folder}, or "
            "set FEDLOOM_DATA to the folder that holds leaf"
        )
    return files


def leaf_users(files: list[Path]) -> Iterator[User]:
    """Every user of some files; a file is in memory only while it is read.

    Raises DataError naming file and user if they are cut short or altered.
    """
    for path in files:
        content = read_json(path)
        if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
            raise DataError(f"{path} is no file of LEAF's: it has no users and user_data")
        for name in content["users"]:
            data = content["user_data"].pop(name, None)
            if not isinstance(data, dict):
                raise DataError(f"{path} names user {name}, but holds no data of it; get it again")
            yield User(path, str(name), data)


def leaf_arrays(
    folder: Path,
    kind: str,
    convert: Callable[[User, int], dict[str, Array]],
    empty: Mapping[str, Array],
) -> dict[str, Array]:
    """{split_name: array}: the arrays that convert makes of every user and its number, joined for
    each split and cached (`prepared`). empty: {name: an array of none}. Raises DataError.
    """
    files = leaf_files(folder)

    def make(new: New) -> None:
        names: dict[str, int] = {}
        for split in SPLITS:
            parts = []
            for user in leaf_users(files[split]):
                with altered(user):
                    parts.append(convert(user, names.setdefault(user.name, len(names))))
            for name, none in empty.items():
                whole = np.concatenate([none, *(part[name] for part in parts)])
                new(f"{split}_{name}", whole.shape, none.dtype)[...] = whole

    return prepared(folder, kind, files["train"] + files["test"], make)


def femnist(partition: Partition, seed: int = 0, data_dir: DataDir = None) -> FederatedData:
    """Load FEMNIST (28 x 28, digits and letters, 62 classes) from <root>/leaf/femnist/{train,test}.

    The partition natural makes a client of every writer. Images stay uint8 and reach the model as
    pixel / 255, white as 1: LEAF does not invert. The JSON files are read once and kept as arrays
    in <root>/leaf/femnist/.prepared. There is no download: LEAF's scripts make the files. Raises
    DataError for files that are missing or damaged, naming the file and the writer.

    Source: Caldas et al., LEAF 2018.
    """
    return load_femnist(data_root(data_dir) / "leaf" / "femnist").divided(partition, seed)


def load_femnist(folder: Path) -> Arrays:
    """The arrays of FEMNIST. Raises DataError."""

    def convert(user: User, owner: int) -> dict[str, Array]:
        x, y = user.samples()
        values = np.asarray(x, dtype=np.float64).reshape(len(x), 1, 28, 28)
        if not ((values >= 0) & (values <= 1)).all():  # NaN is in no range
            raise ValueError("pixels must be in [0, 1]")
        return {
            "images": np.rint(values * 255).astype(np.uint8),
            "labels": _labels(y, len(FEMNIST_CLASSES)),
            "owners": np.full(len(y), owner),
        }

    empty: dict[str, Array] = {
        "images": np.empty((0, 1, 28, 28), np.uint8),
        "labels": _NONE,
        "owners": _NONE,
    }
    train, test = _samples(leaf_arrays(folder, "femnist-1", convert, empty))
    return Arrays(
        name="femnist",
        train=train,
        test=test,
        by="writers",
        class_names=tuple(FEMNIST_CLASSES),
        transform=Images(mean=(0.0,), std=(1.0,)),
    )


def _labels(labels: list[Any], classes: int) -> Array:
    """Labels (n,) int64. Raises ValueError."""
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}")
    return np.array(labels, np.int64)


def _samples(data: Mapping[str, Array]) -> tuple[Samples, Samples]:
    """The samples to train and to test on."""
    arrays = {name: torch.from_numpy(array) for name, array in data.items()}
    train, test = (Samples(*(arrays[f"{s}_{part}"] for part in _PARTS)) for s in SPLITS)
    return train, test


def celeba(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    mean: Sequence[float] = (0.0,) * 3,
    std: Sequence[float] = (1.0,) * 3,
    flip: bool = False,
) -> FederatedData:
    """Load LEAF's task on CelebA, whether a celebrity smiles, from <root>/leaf/celeba.

    That folder holds train and test with LEAF's .json files, and img_align_celeba with the
    pictures, which are made 84 x 84 as LEAF's loader does, once, and kept as arrays in .prepared
    (4 GB for all 200,288, mapped into memory). The partition natural makes a client of every
    celebrity. Inputs are (n, 3, 84, 84), (pixel / 255 - mean) / std, by default as LEAF has them;
    0.5 three times for both is FedACG's code. flip mirrors half of them in training. There is no
    download: the pictures' licence asks for consent. Needs pillow. Raises DataError for files that
    are missing or damaged, naming the file and the celebrity.

    Source: Caldas et al., LEAF 2018; Liu et al., CelebA, ICCV 2015.
    """
    transform = Images(mean=tuple(mean), std=tuple(std), flip=flip)
    return load_celeba(data_root(data_dir) / "leaf" / "celeba", transform).divided(partition, seed)


def load_celeba(folder: Path, transform: Images) -> Arrays:
    """The arrays of LEAF's CelebA. Raises DataError."""
    files, size = leaf_files(folder), (CELEBA_SIDE, CELEBA_SIDE)

    def make(new: New) -> None:
        pillow()
        names: dict[str, int] = {}
        for split in SPLITS:
            users = [*leaf_users(files[split])]
            count = sum(len(user.data.get("y", ())) for user in users)
            images = new(f"{split}_images", (count, 3, *size), np.uint8)
            labels = new(f"{split}_labels", (count,), np.int64)
            owners = new(f"{split}_owners", (count,), np.int64)
            row = 0
            for user in users:
                with altered(user):
                    x, y = user.samples()
                    labels[row : row + len(y)] = _labels(y, 2)
                    owners[row : row + len(y)] = names.setdefault(user.name, len(names))
                    for name in x:
                        path = folder / "img_align_celeba" / Path(str(name)).name
                        images[row] = open_picture(path, size, resize=True)
                        row += 1

    train, test = _samples(prepared(folder, "celeba-1", files["train"] + files["test"], make))
    return Arrays(
        name="celeba",
        train=train,
        test=test,
        by="celebrities",
        class_names=("not smiling", "smiling"),
        transform=transform,
        raw=Resized(),
    )
