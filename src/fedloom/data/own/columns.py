"""Columns of a table as tensors for engines: numbers, labels, texts, images, owners."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import shortened
from fedloom.data.pictures import as_array
from fedloom.data.published.text_files import read_text
from fedloom.data.published.vocabulary import by_frequency, padded
from fedloom.errors import DataError, did_you_mean

PARQUET = (".parquet", ".pq")
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length. where: the file or data set that errors name. origin: of rows that
    come from several files, or are a part of one: the files, and file and row of each, (n, 2).
    """

    where: str
    columns: Mapping[str, Sequence[Any]]
    origin: tuple[Sequence[str], np.ndarray[Any, Any]] | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def at(self, name: str, row: int) -> str:
        """The place of a value, for errors; row counts from 0."""
        where = self.where
        if self.origin is not None:
            files, places = self.origin
            where, row = files[places[row, 0]], places[row, 1]
        return f"{where}, column '{name}', row {row + 1}"

    def taken(self, chosen: np.ndarray[Any, Any]) -> Table:
        """Some rows, which keep their places. chosen: (n,) bool."""
        rows = np.flatnonzero(chosen).tolist()
        files, places = self.origin or origin_of([self])
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return Table(self.where, columns, (files, places[rows]))

    def of(self, name: str) -> Sequence[Any]:
        """A column. Raises DataError if there is none of this name."""
        if name not in self.columns:
            raise DataError(
                f"{self.where} has no column '{name}'; {did_you_mean(name, self.columns)}"
            )
        return self.columns[name]


def origin_of(tables: Sequence[Table]) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The `origin` of all rows of some tables, one table after the other."""
    places = [
        np.stack([np.full(len(table), i), np.arange(len(table))], axis=1)
        for i, table in enumerate(tables)
    ]
    return [table.where for table in tables], np.concatenate(places)


def read_table(path: Path) -> Table:
    """A CSV file whose first row names the columns, every value a text; or a Parquet file, by its
    ending. Raises DataError; needs pandas, or pyarrow for Parquet.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    read, needed = (_csv, "pandas") if path.suffix not in PARQUET else (_parquet, "pyarrow")
    try:
        names, columns = read(path)
    except ImportError as error:
        raise DataError(
            f"to read {path.name} needs {needed}, which is missing; pip install fedloom[tables]"
        ) from error
    if len(set(names)) < len(names):
        raise DataError(f"{path} names a column twice: {', '.join(names)}")
    if not columns[0]:
        raise DataError(f"{path} has no rows below its header; is it a table with a header?")
    return Table(str(path), dict(zip(names, columns, strict=True)))


def _csv(path: Path) -> tuple[list[str], list[list[str]]]:
    import pandas

    text = io.StringIO(whole := read_text(path))
    if not whole.strip():
        raise DataError(f"{path} is empty; it needs a header and rows below it")
    try:  # the header is read as a row, because pandas would rename duplicates
        frame = pandas.read_csv(text, header=None, dtype=object, keep_default_na=False)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise DataError(f"{path} is no whole CSV file: {_first(error)}; get it again") from error
    columns = [frame[place].tolist() for place in frame]
    header = columns[0][0]
    if len(columns) == 1 and (mark := next((m for m in ";\t" if m in header), "")):
        raise DataError(
            f"{path} has one column, {short(header)}: its cells are separated by "
            f"{'tabs' if mark != ';' else 'semicolons'}; save it with commas"
        )
    return [column[0].strip() for column in columns], [column[1:] for column in columns]


def _parquet(path: Path) -> tuple[list[str], list[list[Any]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except (OSError, pyarrow.ArrowException) as error:
        said = _first(error)
        raise DataError(f"{path} is no whole Parquet file: {said}; get it again") from error
    return table.column_names, [column.to_pylist() for column in table.columns]


def _first(error: Exception) -> str:
    """The first line of an error."""
    return str(error).partition("\n")[0]


def numbers_of(table: Table, names: Sequence[str]) -> Tensor:
    """Columns of numbers, (n, columns) float32; one column of lists as (n, ...).

    Raises DataError naming column and row for what is no finite number.
    """
    if len(names) == 1 and _is_list(table.of(names[0])[0]):
        return _lists(table, names[0])
    columns = []
    for name in names:
        values = np.empty(len(table.of(name)), dtype=np.float64)
        for row, value in enumerate(table.of(name)):
            try:
                values[row] = float(value)
            except (TypeError, ValueError, OverflowError):
                values[row] = math.nan
            if not abs(values[row]) <= LARGEST:  # NaN is not
                raise DataError(f"{table.at(name, row)}: {short(value)} is no finite number")
        columns.append(values)
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def short(value: Any) -> str:
    """A value for an error."""
    return shortened(repr(value))


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, Mapping))


def _lists(table: Table, name: str) -> Tensor:
    """A column of lists of numbers, all of one shape: integers as int64, others as float32."""
    values = table.of(name)
    shape = np.shape(values[0])
    rows = []
    for row, value in enumerate(values):
        where = table.at(name, row)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"{where} is not one array: {error}") from error
        if array.dtype.kind not in "fiub" or array.shape != shape:
            raise DataError(
                f"{where} has shape {array.shape} and type {array.dtype}; all rows must be numbers "
                f"of shape {shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{where} holds NaN or infinity")
        rows.append(array)
    joined = np.stack(rows)
    kind = np.float32 if joined.dtype.kind == "f" else np.int64
    return torch.from_numpy(joined.astype(kind))


@dataclass(frozen=True)
class Codes:
    """Names and their numbers, in order, of classes or of clients."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Codes:
        """The distinct values in ascending order: whole numbers as numbers, others as texts."""
        distinct = {name_of(value) for value in values}
        whole = all(re.fullmatch("-?[0-9]{1,18}", name) for name in distinct)
        return cls(tuple(sorted(distinct, key=int if whole else str)))

    def numbers(self, values: Sequence[Any], where: str) -> Tensor:
        """The numbers of names, (n,) int64; -1 for an unknown name."""
        place = {name: i for i, name in enumerate(self.names)}
        return torch.tensor([place.get(name_of(value), -1) for value in values], dtype=torch.int64)


def name_of(value: Any) -> str:
    """A value as a name; 3.0, which tables make of 3 beside missing values, is 3."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def number_name(value: Any) -> str | None:
    """A finite number as the one text that stands for it; None for anything else.

    >>> number_name("1.0"), number_name(" 01 "), number_name(0.50), number_name("I")
    ('1', '1', '0.5', None)
    """
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or "_" in text:
        return None
    return str(int(text)) if text.lstrip("+-").isdecimal() else name_of(number)  # of any length


def present(table: Table, name: str) -> Sequence[Any]:
    """A column of labels or clients. Raises DataError naming the row of a missing value."""
    for row, value in enumerate(values := table.of(name)):
        if value is None or value == "" or value != value:
            raise DataError(
                f"{table.at(name, row)} is empty; take such rows out of the table, or fill them in"
            )
    return values


def labels_of(table: Table, name: str, classes: Codes | None = None) -> tuple[Tensor, Codes | None]:
    """A target column: whole numbers from 0 as labels, other numbers as they are (n,) float32 for
    regression, texts as classes in ascending order, which are handed back.

    Raises DataError naming the row for a label below 0, a class that the training data lack, and
    what is no finite number.
    """
    values = present(table, name)
    if classes is None and _numeric(values):
        numbers = numbers_of(table, [name])[:, 0]
        if not bool((numbers == numbers.round()).all()) or any("." in str(v) for v in values):
            return numbers, None
        labels = numbers.long()
        if int(labels.min()) < 0:
            row = int((labels < 0).nonzero()[0])
            raise DataError(
                f"{table.at(name, row)}: label {int(labels[row])}; labels are 0, 1, 2, ...; for "
                "regression write numbers with a point"
            )
        return labels, None
    classes = classes or Codes.of(values)
    labels = classes.numbers(values, table.where)
    if bool((labels < 0).any()):
        row = int((labels < 0).nonzero()[0])
        raise DataError(
            f"{table.at(name, row)}: class {values[row]!r} is none of "
            f"{', '.join(classes.names[:10])}, those of the training data or of class_names; "
            "correct the cell, or take the row out"
        )
    return labels, classes


def _numeric(values: Sequence[Any]) -> bool:
    """True if the first value is a number; a later one that is not is an error."""
    try:
        float(values[0])
    except (TypeError, ValueError):
        return False
    return True


def texts_of(
    table: Table, name: str, length: int, vocabulary: Mapping[str, int] | int
) -> tuple[Tensor, Mapping[str, int]]:
    """A column of texts as numbers of words (n, length) int64; vocabulary: of the training texts,
    or its size. Raises DataError naming the row for what is no text.
    """
    texts = table.of(name)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise DataError(f"{table.at(name, row)} is a {kind}, no text")
    if isinstance(vocabulary, int):
        vocabulary = by_frequency(texts, vocabulary)
    return padded(texts, vocabulary, length), vocabulary


def holds_pictures(values: Sequence[Any]) -> bool:
    """True if a column begins with a pillow image, whole or damaged."""
    try:
        return hasattr(values[0], "convert")
    except (OSError, SyntaxError, ValueError):  # as pillow refuses one
        return True


def pictures_of(table: Table, name: str) -> Tensor:
    """A column of pillow images of one size, (n, 3 or 1, H, W) uint8; each is decoded only when it
    is read. Raises DataError naming the row.
    """
    values, size, grey = table.of(name), None, None
    out = np.empty(0, dtype=np.uint8)
    for row in range(len(values)):
        where = table.at(name, row)
        try:
            picture = values[row]
            if not hasattr(picture, "convert"):
                raise DataError(f"{where} is a {type(picture).__name__}, no picture")
            array = as_array(picture, size, where, grey)
        except DataError:
            raise
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"{where} is no whole picture ({_first(error)}); take it out"
            ) from error
        if size is None:
            size, grey = (array.shape[1], array.shape[2]), array.shape[0] == 1
            out = np.empty((len(values), *array.shape), dtype=np.uint8)
        out[row] = array
    return torch.from_numpy(out)
