"""Data sets of the Hugging Face library: of the hub, or saved on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.extras import need
from fedloom.core.parsing import user_path
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import (
    Table,
    as_table,
    first_line,
    join_tables,
    no_column,
    numbers_of,
    warn_of_look_alikes,
    words_of,
)
from fedloom.data.own.tables import dealt, refuse_ownerless, targets_of
from fedloom.data.partition.without_labels import natural
from fedloom.data.pictures import as_array
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.data.transforms import Images
from fedloom.errors import DataError, did_you_mean

Shape = tuple[int, int, int]  # channels, height and width of a picture


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
    refuse_ownerless(client, partition)
    whole = _from_hub(path, config)
    splits = [_split(whole, path, name) for name in (split, test_split) if name is not None]
    tables: list[Table] = []
    for rows, where in splits:
        tables.append(_table(rows, where, [inputs, target], client, tables))
    classes = _joined_classes([rows for rows, _ in splits], target)
    columns, raw = _inputs(tables, inputs, length, vocabulary)
    fields = {
        "name": Path(path).name,
        "transform": _transform(columns[0], mean, std, rotate=rotate, crop=crop, flip=flip),
        "raw": raw,
        "details": {"split": split, "inputs": inputs, "target": target},
    }
    return dealt(tables, columns, target, classes, client, partition, seed, **fields)


def _table(
    rows: Any, where: str, required: Sequence[str], client: str | None, previous: Sequence[Table]
) -> Table:
    """Some columns of a Dataset of the library, read at once, otherwise it reads row by row; of
    pictures, if the first one holds them, as arrays like those of the tables before, and of named
    classes their names. Raises DataError for another thing, for one with a transform, and for one
    that lacks a column that is needed.
    """
    try:
        format_options = (getattr(rows, "format", None) or {}).get("format_kwargs")
        rows = rows.with_format(None)  # it may have been saved to give tensors
        names, count = rows.column_names, len(rows)
    except (AttributeError, TypeError) as error:
        raise DataError(
            f"{where} is a {type(rows).__name__}; give Datasets of the library datasets"
        ) from error
    if format_options:
        raise DataError(
            f"{where} has a format with {', '.join(format_options)} (set_transform, with_format), "
            "and rows are read once, as stored; apply it by .map(), or take it off by "
            ".with_format(None) and let fedloom augment: crop=4, flip=True"
        )
    if not count:
        raise DataError(f"{where} is empty")
    for name in required:
        if name not in names:
            raise no_column(where, name, names)
    inputs = required[0]
    columns = {name: rows[name] for name in names if name in (*required, client)}
    for name in columns.keys() - {inputs}:
        if class_names := _class_names(rows, name):  # -1 stands for no class
            inside = range(len(class_names))
            columns[name] = [class_names[v] if v in inside else v for v in columns[name]]
    like = _pixels(previous[0], inputs) if previous else None
    if like is not None or _holds_pictures(columns[inputs]):
        columns[inputs] = [*_pictures(columns[inputs], f"{where}, column '{inputs}'", like)]
    return as_table(where, {name: values[:] for name, values in columns.items()})


def _inputs(
    tables: Sequence[Table], name: str, length: int, vocabulary: int
) -> tuple[list[Tensor], Raw | None]:
    """A column of every table: pictures as uint8, texts as words by number, numbers as they are."""
    if isinstance(tables[0].of(name).iloc[0], str):
        return words_of(tables, name, length, vocabulary)
    if _pixels(tables[0], name) is None:
        return [numbers_of(table, [name]) for table in tables], Columns((name,))
    return [torch.from_numpy(np.stack(table.of(name).tolist())) for table in tables], None


def _pixels(table: Table, name: str) -> Shape | None:
    """The shape of the first picture of a column; None if it holds no pictures."""
    first = table.of(name).iloc[0]
    return first.shape if getattr(first, "dtype", None) == np.uint8 else None


def _holds_pictures(values: Sequence[Any]) -> bool:
    """True if a column begins with a pillow image, whole or damaged."""
    try:
        return hasattr(values[0], "convert")
    except (OSError, SyntaxError, ValueError):  # as pillow refuses one
        return True


def _pictures(
    values: Sequence[Any], where: str, like: Shape | None
) -> Iterator[np.ndarray[Any, Any]]:
    """Pillow images as uint8 arrays of one shape, (3 or 1, H, W); each is decoded only when it is
    read. Raises DataError naming the row.
    """
    for row in range(len(values)):
        cell = f"{where}, row {row + 1}"
        try:
            picture = values[row]
            if not hasattr(picture, "convert"):
                raise DataError(f"{cell} is a {type(picture).__name__}, no picture")
            array = as_array(
                picture, like and like[1:], cell, None if like is None else like[0] == 1
            )
        except DataError:
            raise
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"{cell} is no whole picture ({first_line(error)}); take it out"
            ) from error
        like = like or (array.shape[0], array.shape[1], array.shape[2])
        yield array


def _from_hub(path: str, config: str | None) -> Any:
    datasets = need("datasets", "data = hugging_face", "huggingface", DataError)
    try:
        folder = user_path(path)
        if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(path, config)
    except Exception as error:  # the library raises all kinds of errors, also without a network
        lines = str(error).splitlines()
        raise DataError(
            f"data set '{path}' cannot be loaded ({type(error).__name__}: "
            f"{lines[0] if lines else ''}); give a name of the hub with a network, or a folder of "
            "save_to_disk"
        ) from error


def _split(whole: Any, path: str, split: str) -> tuple[Any, str]:
    """A split of a data set of the hub, and its name in errors."""
    if not hasattr(whole, "keys"):
        raise DataError(f"data set '{path}' has no splits; save a DatasetDict with {split}")
    if split not in whole:
        hint = did_you_mean(split, list(whole.keys()))
        raise DataError(
            f"data set '{path}' has no split '{split}'; {hint} (test_split=none for no test set)"
        )
    return whole[split], f"data set '{path}', split '{split}'"


def from_partitions(
    parts: Any,
    test: Any = "test",
    inputs: str = "image",
    target: str = "label",
    name: str = "yours",
    length: int = 64,
    vocabulary: int = 20_000,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    crop: int = 0,
    flip: bool = False,
) -> FederatedData:
    """Make a client of every part that another library has made: of each partition of a
    `flwr_datasets.FederatedDataset`, of each split of a Hugging Face `DatasetDict` ({name:
    Dataset}), or of each of a list of `Dataset`s.

    test: the common test set: a split's name (which is no client then; without such a split there
    is no test set), a Dataset, or None. inputs, target: names of columns, which are converted as by
    `hugging_face`. Classes that have names (ClassLabel) are joined by these, in the order of the
    first part. Raises DataError naming client, column and row.
    """
    clients, tests = _parts(parts, test)
    if not clients:
        raise DataError("there are no partitions; give at least one Dataset")
    required = [inputs, target]
    train: list[Table] = []
    for client, rows in clients.items():
        train.append(_table(rows, f"client {client}", required, None, train))
    tables = [join_tables(train, "the clients")]
    if tests is not None:
        tables.append(_table(tests, "test", required, None, train))
    columns, raw = _inputs(tables, inputs, length, vocabulary)
    sizes = torch.tensor([len(table.frame) for table in train])
    owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    every = [*clients.values(), *([] if tests is None else [tests])]
    targets, classes = targets_of(tables, target, _joined_classes(every, target))
    has_names = not all(isinstance(client, int) for client in clients)
    return Arrays(
        name=name,
        train=Samples(columns[0], targets[0], owners),
        test=None if tests is None else Samples(columns[1], targets[1]),
        by="clients",
        owner_names=[str(client) for client in clients] if has_names else (),
        class_names=classes,
        transform=_transform(columns[0], mean, std, crop=crop, flip=flip),
        raw=raw,
    ).divided(natural(), seed=0)


def _parts(parts: Any, test: Any) -> tuple[dict[Any, Any], Any]:
    """-> {name or number: Dataset} of the clients, and the test set."""
    if hasattr(parts, "load_partition"):
        return _of_flower(parts), parts.load_split(test) if isinstance(test, str) else test
    if isinstance(parts, Mapping):
        clients = dict(parts)
        return clients, clients.pop(test, None) if isinstance(test, str) else test
    return dict(enumerate(parts)), None if isinstance(test, str) else test


def _of_flower(parts: Any) -> dict[Any, Any]:
    """The partitions of a FederatedDataset; with the names that a natural partitioner has."""
    if len(parts.partitioners) != 1:
        raise DataError(
            f"the FederatedDataset has {len(parts.partitioners)} partitioners; give one with a "
            "single partitioner, of the training split"
        )
    first = parts.load_partition(0)  # only then some partitioners know how many there are
    maker = next(iter(parts.partitioners.values()))
    names = getattr(maker, "partition_id_to_natural_id", None) or {}
    clients = {names.get(0, 0): first}
    for i in range(1, maker.num_partitions):
        clients[names.get(i, i)] = parts.load_partition(i)
    return clients


def _class_names(part: Any, target: str) -> tuple[str, ...]:
    """The names of a ClassLabel column; none of another."""
    feature = (getattr(part, "features", None) or {}).get(target)
    return tuple(getattr(feature, "names", None) or ())


def _joined_classes(parts: Sequence[Any], target: str) -> tuple[str, ...]:
    """The names of the classes of all parts; none if they have none."""
    names = tuple(dict.fromkeys(name for part in parts for name in _class_names(part, target)))
    warn_of_look_alikes(f"column '{target}'", names)
    return names


def _transform(inputs: Tensor, mean: Sequence[float], std: Sequence[float], **moves: Any) -> Any:
    """The transform of pictures; None for other inputs."""
    if inputs.dtype != torch.uint8:
        return None
    return Images.centred(inputs.shape[1], mean, std, **moves)
