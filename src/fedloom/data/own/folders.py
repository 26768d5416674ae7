"""A folder per client: arrays in files, or pictures in a folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays
from fedloom.data.federated import FederatedData
from fedloom.data.own.npy import read_npy, read_npz
from fedloom.data.partition.natural import natural
from fedloom.data.published.tiny_imagenet import open_picture
from fedloom.data.tensors import as_inputs, as_targets
from fedloom.data.transforms import Images
from fedloom.errors import DataError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = ("train", "test")


class Part(NamedTuple):
    """The samples of one client, for training or for testing."""

    inputs: Tensor
    targets: Tensor


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
    root = Path(path)
    if not str(path) or not root.is_dir():
        raise DataError(f"there is no folder '{path}'; give path=, where every client has one")
    clients = _inside(root)
    if not clients:
        raise DataError(f"{root} holds no folders; put every client's data into one of its own")
    classes: tuple[str, ...] = ()
    transform = None
    if any(_is_array(client) for client in clients):
        found = [_arrays(client) for client in clients]
    else:
        classes = _classes(clients)
        found = [_pictures(client, classes, size) for client in clients]
        grey = (0.5,) * found[0]["train"].inputs.shape[1]
        shift, scale = tuple(mean) or grey, tuple(std) or grey
        transform = Images(mean=shift, std=scale, rotate=rotate, crop=crop, flip=flip)
    arrays = _together(root, clients, found, classes, transform)
    return arrays.deal(natural() if partition is None else partition, seed)


def _together(
    root: Path,
    clients: Sequence[Path],
    found: Sequence[dict[str, Part]],
    classes: tuple[str, ...],
    transform: Images | None,
) -> Arrays:
    """The samples of all clients as one data set."""
    train, owners = _joined(clients, [parts["train"] for parts in found])
    tests = [parts.get("test") for parts in found]
    test, test_owners = _joined(clients, tests) if any(tests) else (None, None)
    names = [client.name for client in clients]
    assert train is not None
    return Arrays(
        name=root.name,
        inputs=train.inputs,
        targets=train.targets,
        owners=owners,
        test_inputs=None if test is None else test.inputs,
        test_targets=None if test is None else test.targets,
        test_owners=test_owners,
        by="clients",
        class_names=classes,
        transform=transform,
        details={"client_names": names} if len(names) <= 1000 else {},
    )


def _inside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_array(client: Path) -> bool:
    return (client / "data.npz").is_file() or (client / "inputs.npy").is_file()


def _arrays(client: Path) -> dict[str, Part]:
    """The arrays of a client, training and perhaps test."""
    values: dict[str, Any] = {}
    try:
        if (client / "data.npz").is_file():
            values = read_npz(client / "data.npz")
        else:
            values = {path.stem: read_npy(path) for path in sorted(client.glob("*.npy"))}
    except ValueError as error:
        raise DataError(f"client {client.name}: arrays in {client} are damaged: {error}") from error
    out = {}
    for split, before in (("train", ""), ("test", "test_")):
        names = (f"{before}inputs", f"{before}targets")
        if split == "test" and not any(name in values for name in names):
            continue
        for name in names:
            if name not in values:
                raise DataError(f"client {client.name}: {client} has no array {name}")
        what = f"client {client.name}: {before}"
        part = Part(
            as_inputs(values[names[0]], what=f"{what}inputs"),
            as_targets(values[names[1]], what=f"{what}targets"),
        )
        if len(part.inputs) != len(part.targets) or not len(part.inputs):
            raise DataError(
                f"{what}inputs count {len(part.inputs)} and {before}targets {len(part.targets)} "
                "samples; they must be as many, and at least one"
            )
        _refuse_nan(part.inputs, f"{what}inputs")
        out[split] = part
    return out


def _refuse_nan(inputs: Tensor, what: str) -> None:
    if inputs.is_floating_point() and not bool(inputs.sum().isfinite()):
        rows = (~inputs.isfinite()).reshape(len(inputs), -1).any(dim=1).nonzero()
        if len(rows):
            raise DataError(f"{what} hold NaN or infinity in sample {int(rows[0])}; repair it")


def _class_folders(client: Path, split: str) -> list[Path]:
    inside = _inside(client)
    if {"train"} <= {p.name for p in inside} <= set(SPLITS):
        return _inside(client / split) if (client / split).is_dir() else []
    return inside if split == "train" else []


def _classes(clients: Sequence[Path]) -> tuple[str, ...]:
    names = {p.name for c in clients for split in SPLITS for p in _class_folders(c, split)}
    return tuple(sorted(names))


def _pictures(client: Path, classes: tuple[str, ...], size: int | None) -> dict[str, Part]:
    """The pictures of a client, training and perhaps test."""
    out = {}
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
                    f"client {client.name}: {client} holds neither data.npz nor pictures in a "
                    "folder per class; give it some, or take the folder away"
                )
            continue
        pictures: list[Any] = []
        shape = None if size is None else (size, size)
        for path, _ in files:
            try:
                picture = open_picture(path, shape, size is not None, None)
            except DataError as error:
                raise DataError(f"client {client.name}: {error}") from error
            if pictures and picture.shape != pictures[0].shape:
                raise DataError(
                    f"client {client.name}: {path} has shape {picture.shape}, {files[0][0]} "
                    f"{pictures[0].shape}; all must be alike: give size=, or convert them"
                )
            pictures.append(picture)
        labels = torch.tensor([label for _, label in files])
        out[split] = Part(torch.from_numpy(np.stack(pictures)), labels)
    return out


def _joined(
    clients: Sequence[Path], parts: Sequence[Part | None]
) -> tuple[Part | None, Tensor | None]:
    """The samples of all clients, one after the other, and whose they are."""
    found = [(i, part) for i, part in enumerate(parts) if part is not None]
    first, like = found[0]
    for i, part in found:
        for kind, mine, other in zip(("inputs", "targets"), part, like, strict=True):
            if mine.shape[1:] != other.shape[1:] or mine.dtype != other.dtype:
                raise DataError(
                    f"client {clients[i].name} has {kind} of shape {tuple(mine.shape[1:])} and "
                    f"type {mine.dtype} a sample, client {clients[first].name} "
                    f"{tuple(other.shape[1:])} and {other.dtype}; all must be alike"
                )
    owners = torch.cat([torch.full((len(part.targets),), i) for i, part in found])
    inputs = torch.cat([part.inputs for _, part in found])
    return Part(inputs, torch.cat([part.targets for _, part in found])), owners
