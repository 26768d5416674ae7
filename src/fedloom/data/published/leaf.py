"""LEAF's data sets, from JSON files that LEAF's scripts write: FEMNIST, CelebA, and Shakespeare,
where every role of the plays is a client and 80 characters predict the next.

A file holds users, num_samples and user_data: {user: {"x": [...], "y": [...]}}; a folder each for
training and test.
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
from fedloom.data.published.download import CATALOGUE, DataDir, data_root
from fedloom.data.published.files import New, prepared, read_json
from fedloom.data.raw_inputs import Characters, Resized
from fedloom.data.transforms import Images, Tokens
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
    folder = data_root(data_dir) / "leaf" / "femnist"
    train, test = _samples(leaf_arrays(folder, "femnist-1", convert, empty))
    return Arrays(
        name="femnist",
        train=train,
        test=test,
        by="writers",
        class_names=tuple(FEMNIST_CLASSES),
        transform=Images(mean=(0.0,), std=(1.0,)),
    ).divided(partition, seed)


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
    folder, size = data_root(data_dir) / "leaf" / "celeba", (CELEBA_SIDE, CELEBA_SIDE)
    files = leaf_files(folder)

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
    ).divided(partition, seed)


# in LEAF's order; what is not in it counts as the last, as str.find's -1 does in LEAF's one-hot
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80


def shakespeare(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    test_samples: int | None = None,
) -> FederatedData:
    """Load LEAF's Shakespeare from <root>/leaf/shakespeare/{train,test}: 80 characters in, the next
    one out, 80 symbols.

    The partition natural makes a client of every role. Inputs reach the model as (n, 80) int64,
    targets are (n,) int64. A user holds LEAF's windows ("x" and "y"), or the text that they are cut
    from ("raw"), of which every window counts: then the text is stored once, and the windows share
    it. test_samples: at most about so many test windows, evenly spaced; LEAF has a tenth of all,
    far too many for every round. There is no download: LEAF's scripts make the files. Raises
    DataError for files that are missing or damaged, naming the file and the role.

    Source: Caldas et al., LEAF 2018.
    """
    if test_samples is not None and test_samples < 1:
        raise DataError(f"test_samples must be at least 1, got {test_samples}")

    def convert(user: User, owner: int) -> dict[str, Array]:
        text, starts = _text(user)
        # the last windows are cut off, so that every window has a next character
        return {"text": text, "owners": np.where(starts, owner, -1).astype(np.int32)}

    empty: dict[str, Array] = {"text": np.empty(0, np.uint8), "owners": np.empty(0, np.int32)}
    folder = data_root(data_dir) / "leaf" / "shakespeare"
    arrays = leaf_arrays(folder, "shakespeare-1", convert, empty)
    tests = None
    if len(arrays["test_text"]) > LENGTH:
        tests = _windows(arrays["test_text"], arrays["test_owners"])
        usable = tests.owned()
        if test_samples is not None and usable is not None:
            tests = tests.at(usable[:: -(-len(usable) // test_samples)])
    return Arrays(
        name="shakespeare",
        train=_windows(arrays["train_text"], arrays["train_owners"]),
        test=tests,
        by="roles",
        class_names=tuple(ALPHABET),
        transform=Tokens(),
        raw=Characters(ALPHABET),
        details={"length": LENGTH} | ({"test_samples": test_samples} if test_samples else {}),
    ).divided(partition, seed)


def _windows(text: Array, owners: Array) -> Samples:
    """Every window of the joined texts as a view of it, the character after it, and its owner."""
    whole = torch.from_numpy(text)
    count = len(whole) - LENGTH
    whose = torch.from_numpy(owners)[:count].long()
    return Samples(whole.unfold(0, LENGTH, 1)[:count], whole[LENGTH:].long(), whose)


def encode(text: str) -> Array:
    """A text as positions in the alphabet, uint8.

    >>> encode("a\\n").tolist(), encode("\\u00e9").tolist()
    ([53, 0], [79])
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    table = np.full(129, len(ALPHABET) - 1, dtype=np.uint8)
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    numbers: Array = table[np.minimum(codes, 128)]
    return numbers


def _text(user: User) -> tuple[Array, Array]:
    """The text of a user, and for each character whether a window of the user's begins there."""
    if (raw := user.data.get("raw")) is not None:
        if not isinstance(raw, str) or len(raw) <= LENGTH:
            raise ValueError(f"the role has no text of more than {LENGTH} characters")
        return encode(raw), np.arange(len(raw)) < len(raw) - LENGTH
    x, y = user.samples()
    if any(len(window) != LENGTH or len(next_) != 1 for window, next_ in zip(x, y, strict=True)):
        raise ValueError(f"windows must have {LENGTH} characters, and the next one alone follows")
    return _merge_windows(x, y)


def _merge_windows(x: list[str], y: list[str]) -> tuple[Array, Array]:
    """LEAF's windows as one text: most begin one character after the one before."""
    pieces: list[str] = []
    starts: list[int] = []
    length, tail = 0, ""
    for window, following in zip(x, y, strict=True):
        if window == tail:  # the next window of the same text
            starts.append(length - LENGTH)
            pieces.append(following)
        else:
            starts.append(length)
            pieces += window, following
            length += LENGTH
        length += 1
        tail = window[1:] + following
    begins = np.zeros(length, dtype=bool)
    begins[starts] = True
    return encode("".join(pieces)), begins
