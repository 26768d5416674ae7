"""The user's own tables: a CSV or Parquet file with a client column, a Hugging Face data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import (
    Codes,
    Table,
    holds_pictures,
    labels_of,
    numbers_of,
    pictures_of,
    present,
    read_table,
    texts_of,
)
from fedloom.data.partition.natural import natural
from fedloom.data.raw_inputs import Columns, Raw, Words
from fedloom.data.transforms import Images
from fedloom.errors import DataError, did_you_mean


def table(
    partition: Partition | None = None,
    seed: int = 0,
    path: str | os.PathLike[str] = "",
    target: str = "label",
    client: str | None = None,
    inputs: Sequence[str] = (),
    text: str | None = None,
    test: str | os.PathLike[str] | None = None,
    length: int = 64,
    vocabulary: int = 20_000,
) -> FederatedData:
    """Load a CSV or Parquet file of yours, a row per sample.

    client: the column that says whose a row is; partition natural (the default then) makes a client
    of each, any other partition ignores it. target: whole numbers are labels from 0,
    texts are classes, other numbers are for regression. inputs: columns of numbers, by default all
    others; or text: one column of texts, as numbers of words (n, length) with a vocabulary made of
    the training rows, as in `ag_news`. test: a file with the same columns; where it has the client
    column, every client is also measured on its own rows. Raises DataError naming file, column and
    row.
    """
    if not str(path):
        raise DataError("table needs path=, a CSV or Parquet file with a header")
    tables = [read_table(Path(path))] + ([] if test is None else [read_table(Path(test))])
    _check_columns(tables[0], target, client, partition)
    names = list(inputs) or [c for c in tables[0].columns if c not in (target, client)]
    if text is None and not names:
        raise DataError(f"{path} has no columns besides {target} and {client}; nothing to learn of")
    if text is not None and inputs:
        raise DataError("inputs and text are both given; keep one of them")

    raw: Raw = Columns(tuple(names))
    if text is None:
        columns = [numbers_of(part, names) for part in tables]
    else:
        columns, raw = _texts(tables, text, length, vocabulary)
    about = {"target": target}
    return _dealt(Path(path).stem, tables, columns, target, client, partition, seed, about, raw=raw)


def _texts(
    tables: Sequence[Table], name: str, length: int, vocabulary: int
) -> tuple[list[Tensor], Words]:
    """A column of texts of every table as words by number, by the words of the first table."""
    known: Any = vocabulary
    columns = []
    for part in tables:
        made, known = texts_of(part, name, length, known)
        columns.append(made)
    return columns, Words(known, length)


def _check_columns(
    table: Table, target: str, client: str | None, partition: Partition | None
) -> None:
    """Raise DataError for missing columns, and if no column names the clients."""
    if client is None and partition is None:
        raise DataError("give client=, the column that says whose a row is, or a partition")
    for name in (target, *([] if client is None else [client])):
        table.of(name)


def _dealt(
    name: str,
    tables: Sequence[Table],
    inputs: Sequence[Tensor],
    target: str,
    client: str | None,
    partition: Partition | None,
    seed: int,
    details: dict[str, Any],
    transform: Images | None = None,
    raw: Raw | None = None,
) -> FederatedData:
    """Divide the rows of a training table and perhaps a test table among clients."""
    targets, classes = labels_of(tables[0], target)
    test_targets = None
    if len(tables) > 1:
        test_targets, _ = labels_of(tables[1], target, classes)
        if test_targets.dtype != targets.dtype:
            raise DataError(
                f"column '{target}' holds {targets.dtype} in {tables[0].where} and "
                f"{test_targets.dtype} in {tables[1].where}; write both alike"
            )
    owners = tests = None
    names: tuple[str, ...] = ()
    if client is not None:
        who = Codes.of(present(tables[0], client))
        names, owners = who.names, who.numbers(tables[0].of(client), tables[0].where)
        details |= {"client_names": list(who.names)} if len(who.names) <= 1000 else {}
        if len(tables) > 1 and client in tables[1].columns:
            tests = who.numbers(present(tables[1], client), tables[1].where)
    arrays = Arrays(
        name=name,
        inputs=inputs[0],
        targets=targets,
        test_inputs=inputs[1] if len(inputs) > 1 else None,
        test_targets=test_targets,
        owners=owners,
        test_owners=tests,
        by="clients",
        owner_names=names,
        class_names=() if classes is None else classes.names,
        transform=transform,
        raw=raw,
        details=details,
    )
    return arrays.divided(natural() if partition is None else partition, seed)


def hugging_face(
    partition: Partition | None = None,
    seed: int = 0,
    path: str = "",
    config: str | None = None,
    split: str = "train",
    test_split: str | None = "test",
    inputs: str = "image",
    target: str = "label",
    client: str | None = None,
    length: int = 64,
    vocabulary: int = 20_000,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    rotate: float = 0.0,
    crop: int = 0,
    flip: bool = False,
) -> FederatedData:
    """Load any image, text or number data set of the Hugging Face hub, or one on disk.

    path: its name, or a folder that `save_to_disk` wrote; config: which of its configurations.
    inputs, target, client: names of columns. Pictures stay uint8 and are normalised and augmented
    in batches, as for `cifar10` (mean 0.5 and std 0.5 by default); texts become numbers of words,
    as for `ag_news`; lists of numbers stay. test_split: "none" for no test set. Needs the library
    datasets. Raises DataError naming the data set, column and row.
    """
    if not path:
        raise DataError("hugging_face needs path=, a name on the hub or a folder")
    splits = [split] + ([] if test_split is None else [test_split])
    chosen = [inputs, target] + ([] if client is None else [client])
    whole = _from_hub(path, config)
    tables = [_hub_table(whole, path, name, chosen) for name in splits]
    _check_columns(tables[0], target, client, partition)
    columns, raw = _columns(tables, inputs, length, vocabulary)
    transform = None
    if columns[0].dtype == torch.uint8:
        grey = (0.5,) * columns[0].shape[1]
        shift, scale = tuple(mean) or grey, tuple(std) or grey
        transform = Images(mean=shift, std=scale, rotate=rotate, crop=crop, flip=flip)
    details: dict[str, Any] = {"split": split, "inputs": inputs, "target": target}
    name = Path(path).name
    return _dealt(name, tables, columns, target, client, partition, seed, details, transform, raw)


def _columns(
    tables: Sequence[Table], name: str, length: int, vocabulary: int
) -> tuple[list[Tensor], Raw | None]:
    """A column of every table: pictures as uint8, texts as words by number, numbers as they are."""
    if holds_pictures(tables[0].of(name)):
        return [pictures_of(part, name) for part in tables], None
    if not isinstance(tables[0].of(name)[0], str):
        return [numbers_of(part, [name]) for part in tables], Columns((name,))
    return _texts(tables, name, length, vocabulary)


def _from_hub(path: str, config: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "hugging_face needs the library datasets, which is missing; pip install "
            "fedloom[huggingface]"
        ) from error
    try:
        if _saved(path):
            return datasets.load_from_disk(path)
        return datasets.load_dataset(path, config)
    except Exception as error:  # the library raises all kinds of errors, also without a network
        said = str(error).splitlines()
        raise DataError(
            f"data set '{path}' cannot be loaded ({type(error).__name__}: "
            f"{said[0] if said else ''}); give a name of the hub with a network, or a folder of "
            "save_to_disk"
        ) from error


def _saved(path: str) -> bool:
    return any((Path(path) / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _hub_table(whole: Any, path: str, split: str, columns: Sequence[str]) -> Table:
    """Some columns of a split; a picture is only decoded as it is read."""
    if not hasattr(whole, "keys"):
        raise DataError(f"data set '{path}' has no splits; save a DatasetDict with {split}")
    if split not in whole:
        known = did_you_mean(split, list(whole.keys()))
        raise DataError(
            f"data set '{path}' has no split '{split}'; {known} (test_split=none for no test set)"
        )
    part = whole[split].with_format(None)  # it may have been saved to give tensors
    if not len(part):
        raise DataError(f"data set '{path}', split '{split}' is empty")
    where = f"data set '{path}', split '{split}'"
    found = {n: part[n] for n in part.column_names if n in columns}
    # otherwise the library reads row by row
    return Table(where, {n: v if holds_pictures(v) else v[:] for n, v in found.items()})
