"""Data sets of the Hugging Face library: of the hub, or saved on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.data.client_indices import Partition
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import Table, holds_pictures, numbers_of, pictures_of
from fedloom.data.own.tables import as_words, check_columns, dealt
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.data.transforms import Images
from fedloom.errors import DataError, did_you_mean


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
    check_columns(tables[0], target, client, partition)
    columns, raw = _columns(tables, inputs, length, vocabulary)
    transform = None
    if columns[0].dtype == torch.uint8:
        grey = (0.5,) * columns[0].shape[1]
        shift, scale = tuple(mean) or grey, tuple(std) or grey
        transform = Images(mean=shift, std=scale, rotate=rotate, crop=crop, flip=flip)
    details: dict[str, Any] = {"split": split, "inputs": inputs, "target": target}
    name = Path(path).name
    return dealt(name, tables, columns, target, client, partition, seed, details, transform, raw)


def _columns(
    tables: Sequence[Table], name: str, length: int, vocabulary: int
) -> tuple[list[Tensor], Raw | None]:
    """A column of every table: pictures as uint8, texts as words by number, numbers as they are."""
    if holds_pictures(tables[0].of(name)):
        return [pictures_of(part, name) for part in tables], None
    if not isinstance(tables[0].of(name)[0], str):
        return [numbers_of(part, [name]) for part in tables], Columns((name,))
    return as_words(tables, name, length, vocabulary)


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
