"""Folders and files with clients in them: a folder for each, of arrays or of pictures in a folder
per class; LEAF's JSON, PFLlib's folders of .npz, and HDF5 with a group for each client.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.core.extras import need
from fedloom.core.parsing import user_path
from fedloom.data.client_indices import Partition, read_numpy
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import warn_of_look_alikes
from fedloom.data.own.in_memory import from_clients, join
from fedloom.data.partition.without_labels import natural
from fedloom.data.pictures import open_picture
from fedloom.data.published.files import unpickle
from fedloom.data.published.leaf import SPLITS, leaf_users
from fedloom.data.raw_inputs import Resized
from fedloom.data.transforms import Images
from fedloom.data.validation import check_finite
from fedloom.errors import DataError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


Part = tuple[Any, Any]  # inputs and targets of one client, for training or for testing


def folders(
    partition: Partition | None = None,
    seed: int = 0,
    path: str | os.PathLike[str] = "",
    size: int | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    rotate: float = 0.0,
    crop: int = 0,
    flip: bool = False,
) -> FederatedData:
    """Load a folder of yours that holds a folder per client; clients are in order of their names.

    A client's folder holds arrays: data.npz with inputs and targets, and perhaps test_inputs and
    test_targets, or these as single .npy files; or pictures: a folder per class, or such folders
    below train and test. Classes are those of all clients, in order of their names. Pictures are
    brought to size x size pixels, or must be of one size; they stay uint8 and are normalised (mean
    0.5, std 0.5 by default) and augmented in batches, as for `cifar10`; they need pillow. Names
    that begin with a dot are left out. The default partition is natural. Raises DataError naming
    the client and the file.
    """
    root = user_path(path)
    if not str(path) or not root.is_dir():
        raise DataError(f"there is no folder '{path}'; give path=, where every client has one")
    clients = _inside(root)
    if not clients:
        raise DataError(f"{root} holds no folders; put every client's data into one of its own")
    array_files = [client / name for client in clients for name in ("data.npz", "inputs.npy")]
    arrays = any(file.is_file() for file in array_files)
    classes = () if arrays else _classes(clients)
    samples: list[dict[str, Part]] = []
    for client in clients:
        try:
            samples.append(_arrays(client) if arrays else _pictures(client, classes, size))
        except DataError as error:
            raise DataError(f"client {client.name}: {error}") from error
    transform = None
    if not arrays:
        channels, moves = samples[0]["train"][0].shape[1], {"rotate": rotate, "crop": crop}
        transform = Images.centred(channels, mean, std, flip=flip, **moves)
    names = [client.name for client in clients]
    tested = any("test" in parts for parts in samples)
    return Arrays(
        name=root.name,
        train=_join(names, samples, "train", transform),
        test=_join(names, samples, "test", transform) if tested else None,
        by="clients",
        owner_names=names,
        class_names=classes,
        transform=transform,
        raw=None if size is None or arrays else Resized(),
    ).divided(natural() if partition is None else partition, seed)


def _inside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _arrays(client: Path) -> dict[str, Part]:
    """The arrays of a client, training and perhaps test."""
    values: dict[str, Any] = {}
    try:
        whole = client / "data.npz"
        for path in [whole] if whole.is_file() else sorted(client.glob("*.npy")):
            values |= read_numpy(path)
    except ValueError as error:
        raise DataError(f"arrays in {client} are damaged: {error}") from error
    out: dict[str, Part] = {}
    for split, before in (("train", ""), ("test", "test_")):
        names = (f"{before}inputs", f"{before}targets")
        if split == "test" and not any(name in values for name in names):
            continue
        for name in names:
            if name not in values:
                raise DataError(f"{client} has no array {name}")
        if not values[names[0]].size:
            raise DataError(f"{before}inputs of {client} hold no samples")
        out[split] = (values[names[0]], values[names[1]])
    return out


def _class_folders(client: Path, split: str) -> list[Path]:
    inside = _inside(client)
    if {"train"} <= {p.name for p in inside} <= set(SPLITS):
        return _inside(client / split) if (client / split).is_dir() else []
    return inside if split == "train" else []


def _classes(clients: Sequence[Path]) -> tuple[str, ...]:
    names = {p.name for c in clients for split in SPLITS for p in _class_folders(c, split)}
    warn_of_look_alikes("folders of classes", sorted(names))
    return tuple(sorted(names))


def _pictures(client: Path, classes: tuple[str, ...], size: int | None) -> dict[str, Part]:
    """The pictures of a client, training and perhaps test."""
    out: dict[str, Part] = {}
    for split in SPLITS:
        files = [
            (path, classes.index(folder.name))
            for folder in _class_folders(client, split)
            for path in sorted(folder.iterdir())
            if path.suffix.lower() in PICTURES and not path.name.startswith(".")
        ]
        if not files:
            if split == "train":
                raise DataError(
                    f"{client} holds neither data.npz nor pictures in a folder per class; give it "
                    "some, or take the folder away"
                )
            continue
        pictures: list[Any] = []
        shape = None if size is None else (size, size)
        for path, _ in files:
            picture = open_picture(path, shape, size is not None, None)
            if pictures and picture.shape != pictures[0].shape:
                raise DataError(
                    f"{path} has shape {picture.shape}, {files[0][0]} {pictures[0].shape}; all "
                    "must be alike: give size=, or convert them"
                )
            pictures.append(picture)
        labels = torch.tensor([label for _, label in files])
        out[split] = (torch.from_numpy(np.stack(pictures)), labels)
    return out


def _join(
    names: Sequence[str], samples: Sequence[dict[str, Part]], split: str, transform: Images | None
) -> Samples:
    """The samples of all clients, one after the other, and their owners. Raises DataError."""
    indices = [i for i, parts in enumerate(samples) if split in parts]
    pairs = {f"client {names[i]}": samples[i][split] for i in indices}
    inputs, targets, lists = join(pairs, transform=transform)
    for part, name in enumerate(pairs):
        check_finite(f"{name}: {split} inputs", inputs[lists.of(part)])
    return Samples(inputs, targets, torch.tensor(indices)[lists.owners()])


Parts = dict[str, tuple[Any, Any]]  # inputs and targets by the client's name
PathLike = str | os.PathLike[str]


def leaf(path: PathLike = "") -> FederatedData:
    """Load a folder of LEAF's JSON files, train/*.json and perhaps test/*.json, whose x are numbers
    of one shape: every user is a client. One with tests alone never trains, and is measured. Raises
    DataError naming file and user.

    Source: Caldas et al., LEAF 2018.
    """
    return _data_of(
        path,
        "*.json",
        lambda files: ((user.name, user.data, f"{user.file}: user") for user in leaf_users(files)),
    )


def pfllib(path: PathLike = "") -> FederatedData:
    """Load a folder that PFLlib's scripts wrote: train/0.npz, train/1.npz, ... and test alike, with
    x and y of a client each. Their pickles are read without running code in them. Raises DataError
    naming the file.

    Source: Zhang et al., PFLlib, JMLR 2025.
    """

    def number(file: Path) -> tuple[int, str]:
        whole = re.fullmatch("[0-9]{1,9}", file.stem)
        return (int(file.stem) if whole else 0, file.stem)

    return _data_of(
        path,
        "*.npz",
        lambda files: ((f.stem, _pickled(f), f"{f}: client") for f in sorted(files, key=number)),
    )


def hdf5(
    path: PathLike = "", test: PathLike = "", inputs: str = "x", target: str = "y"
) -> FederatedData:
    """Load an HDF5 file with a group for each client, at its top or inside of `examples` as in
    TensorFlow Federated's: datasets `inputs` and `target` in each. test: such a file of tests.
    Needs h5py. Raises DataError naming file and client.
    """
    tests = _groups(test, inputs, target) if str(test) else {}
    return _data(user_path(path), _groups(path, inputs, target), tests, "a group for each client")


def _data_of(
    path: PathLike,
    files: str,
    read: Callable[[list[Path]], Iterable[tuple[str, Any, str]]],
) -> FederatedData:
    """The clients of such files in the folders train and test. read: the name, the content and the
    place in errors of each client.
    """
    folder = user_path(path)
    if not str(path) or not folder.is_dir():
        raise DataError(f"there is no folder '{path}'; give data.path, a folder that has train")
    train, tests = (
        {name: _pair(content, f"{where} {name}") for name, content, where in read(each)}
        for each in (sorted((folder / split).glob(files)) for split in SPLITS)
    )
    return _data(folder, train, tests, f"train/{files}")


def _pair(content: Any, where: str, inputs: str = "x", target: str = "y") -> tuple[Any, Any]:
    """What a client has under these two names."""
    keys = [*content] if hasattr(content, "keys") else []
    if inputs not in keys or target not in keys:
        raise DataError(
            f"{where} has no '{inputs}' and '{target}', but {', '.join(keys) or 'nothing'}; for "
            "HDF5 give data.inputs and data.target"
        )
    return content[inputs], content[target]


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

    try:
        with h5py.File(file) as content:
            top = content.get("examples", content).items()
            pairs = {n: _pair(group, f"{file}: client {n}", inputs, target) for n, group in top}
            return {name: (x[()], y[()]) for name, (x, y) in pairs.items()}
    except OSError as error:
        raise DataError(f"{file} is no whole HDF5 file: {str(error).splitlines()[0]}") from error


def _data(where: Path, train: Parts, tests: Parts, contents: str) -> FederatedData:
    """The federation of these clients; those with tests alone never train."""
    if not train:
        raise DataError(f"{where} holds no {contents}, so there is nobody to train")
    test_only: Parts = {name: ([], []) for name in tests if name not in train}
    name = where.stem if where.is_file() else where.absolute().name
    return from_clients({**train, **test_only}, client_tests=tests or None, name=name)
