"""LEAF's Shakespeare: every role of the plays is a client, 80 characters predict the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.published.download import DataDir, data_root
from fedloom.data.published.leaf import User, leaf_arrays
from fedloom.data.raw_inputs import Characters
from fedloom.data.transforms import Tokens
from fedloom.errors import DataError

# in LEAF's order; what is not in it counts as the last, as str.find's -1 does in LEAF's one-hot
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80

Array = np.ndarray[Any, np.dtype[Any]]


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
    folder = data_root(data_dir) / "leaf" / "shakespeare"
    return load_shakespeare(folder, test_samples).divided(partition, seed)


def load_shakespeare(folder: Path, test_samples: int | None = None) -> Arrays:
    """The arrays of Shakespeare. Raises DataError."""

    def convert(user: User, owner: int) -> dict[str, Array]:
        text, starts = _text(user)
        # the last windows are cut off, so that every window has a next character
        return {"text": text, "owners": np.where(starts, owner, -1).astype(np.int32)}

    empty: dict[str, Array] = {"text": np.empty(0, np.uint8), "owners": np.empty(0, np.int32)}
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
    )


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
