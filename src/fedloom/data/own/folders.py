"""A folder for each client: of arrays, or of pictures in a folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.core.parsing import user_path
from fedloom.data.client_indices import Partition, read_numpy
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData, check_finite
from fedloom.data.own.columns import warn_of_look_alikes
from fedloom.data.own.in_memory import join
from fedloom.data.partition.without_labels import natural
from fedloom.data.pictures import open_picture
from fedloom.data.published.leaf import SPLITS
from fedloom.data.raw_inputs import Resized
from fedloom.data.transforms import Images
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
