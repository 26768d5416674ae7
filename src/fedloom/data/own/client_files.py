"""Data with their clients as other frameworks keep them: LEAF's JSON, PFLlib's folders of .npz,
and HDF5 with a group for each client.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.extras import need
from fedloom.core.user_paths import user_path
from fedloom.data.federated import FederatedData
from fedloom.data.own.in_memory import from_clients
from fedloom.data.published.files import unpickle
from fedloom.data.published.leaf import SPLITS, leaf_users
from fedloom.errors import DataError

Parts = dict[str, tuple[Any, Any]]  # inputs and targets by the client's name
PathLike = str | os.PathLike[str]


def leaf(path: PathLike = "") -> FederatedData:
    """Load a folder of LEAF's JSON files, train/*.json and perhaps test/*.json, whose x are numbers
    of one shape: every user is a client. One with tests alone never trains, and is measured. Raises
    DataError naming file and user.

    Source: Caldas et al., LEAF 2018.
    """
    folder = _folder(path, "leaf")
    parts = {
        split: {
            user.name: _pair(user.data, f"{user.file}: user {user.name}")
            for user in leaf_users(sorted((folder / split).glob("*.json")))
        }
        for split in SPLITS
    }
    return _data(folder, parts["train"], parts["test"], "train/*.json")


def pfllib(path: PathLike = "") -> FederatedData:
    """Load a folder that PFLlib's scripts wrote: train/0.npz, train/1.npz, ... and test alike, with
    x and y of a client each. Their pickles are read without running code in them. Raises DataError
    naming the file.

    Source: Zhang et al., PFLlib, JMLR 2025.
    """
    folder = _folder(path, "pfllib")
    parts = {
        split: {
            file.stem: _pair(_pickled(file), str(file))
            for file in sorted((folder / split).glob("*.npz"), key=_number)
        }
        for split in SPLITS
    }
    return _data(folder, parts["train"], parts["test"], "train/0.npz")


def hdf5(
    path: PathLike = "", test: PathLike = "", inputs: str = "x", target: str = "y"
) -> FederatedData:
    """Load an HDF5 file with a group for each client, at its top or inside of `examples` as in
    TensorFlow Federated's: datasets `inputs` and `target` in each. test: such a file of tests.
    Needs h5py. Raises DataError naming file and client.
    """
    tests = _groups(test, inputs, target) if str(test) else {}
    return _data(user_path(path), _groups(path, inputs, target), tests, "a group for each client")


def _folder(path: PathLike, source: str) -> Path:
    folder = user_path(path)
    if not str(path) or not folder.is_dir():
        raise DataError(f"there is no folder '{path}'; give data.path, as in {source} it has train")
    return folder


def _pair(content: Any, where: str) -> tuple[Any, Any]:
    """x and y as arrays; floats of x stay, whole numbers of y are labels."""
    content = content if isinstance(content, dict) else {}
    x, y = content.get("x"), content.get("y")
    if x is None or y is None:
        raise DataError(f"{where} has no x and y")
    try:
        arrays = np.asarray(x), np.asarray(y)
    except ValueError as error:  # rows of several lengths
        raise DataError(f"{where}: x or y is not one array: {error}") from error
    if arrays[0].dtype.kind not in "fiub" or arrays[1].dtype.kind not in "fiub":
        raise DataError(
            f"{where}: x and y must be numbers, got {arrays[0].dtype} and {arrays[1].dtype}; for "
            "texts write a table, and give data.text"
        )
    return arrays


def _number(file: Path) -> tuple[int, str]:
    whole = re.fullmatch("[0-9]{1,9}", file.stem)
    return (int(file.stem) if whole else 0, file.stem)


def _pickled(file: Path) -> Any:
    """The dictionary in a client's file of PFLlib's: an array of one pickled object, `data`."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open("data.npy") as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0
            read = np.lib.format.read_array_header_2_0 if version == (2, 0) else read
            _, _, dtype = read(member)
            if not dtype.hasobject:
                raise ValueError("its array 'data' holds no dictionary of x and y")
            content = unpickle(member, file)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} is no file of PFLlib's: {error}") from error
    return content.item() if isinstance(content, np.ndarray) and content.size == 1 else content


def _groups(path: PathLike, inputs: str, target: str) -> Parts:
    """The clients of an HDF5 file."""
    h5py, file = need("h5py", "an HDF5 file", "hdf5", DataError), user_path(path)

    def pairs() -> Iterator[tuple[str, tuple[Any, Any]]]:
        with h5py.File(file) as content:
            top = content.get("examples", content)
            for name, group in top.items():
                where = f"{file}: client {name}"
                keys = [*group] if hasattr(group, "keys") else []
                if inputs not in keys or target not in keys:
                    raise DataError(
                        f"{where} has no '{inputs}' and '{target}', but "
                        f"{', '.join(keys) or 'nothing'}; give data.inputs and data.target"
                    )
                pair = {"x": group[inputs][()], "y": group[target][()]}
                yield name, _pair(pair, where)

    try:
        return dict(pairs())
    except OSError as error:
        raise DataError(f"{file} is no whole HDF5 file: {str(error).splitlines()[0]}") from error


def _data(where: Path, train: Parts, tests: Parts, contents: str) -> FederatedData:
    """The federation of these clients; those with tests alone never train."""
    if not train:
        raise DataError(f"{where} holds no {contents}, so there is nobody to train")
    test_only: Parts = {name: ([], []) for name in tests if name not in train}
    name = where.stem if where.is_file() else where.absolute().name
    return from_clients({**train, **test_only}, client_tests=tests or None, name=name)
