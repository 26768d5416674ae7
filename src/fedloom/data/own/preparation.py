"""Columns of a table as a model's inputs, by rules: found in training rows, or agreed on before as
docs/tables.md shows (`data.rules`). A number may have mean and std, which are taken off and divided
by; one_hot and dummy lists of them, one for each input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import shortened
from fedloom.data.federated import FederatedData
from fedloom.data.own.cells import CellError, Floats, empty, inputs, name_of, number_name
from fedloom.data.own.columns import (
    Table,
    at,
    finite,
    in_order,
    not_finite,
    odd,
    short,
    text_cells,
    warn_of_look_alikes,
)
from fedloom.data.own.reading import parts_of
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError, did_you_mean, unknown

if TYPE_CHECKING:
    from pandas import Series


KINDS = ("one_hot", "dummy", "ordinal", "number")
_STRANGE = "\x01"  # stands for a text that no training row has


@dataclass(frozen=True)
class Column:
    """How a column is turned into numbers. values: of a column of texts, in order; fill: stands for
    a missing value, None if none may be missing; missing: of the training rows; mean, std: what is
    taken off and divided by, one for all inputs or for each; predefined: not by the training
    rows, so an unknown value is an error, but for `others`: then it is 0 everywhere.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    fill: float | str | None = None
    missing: int = 0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    predefined: bool = False
    others: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that have an input each; none of numbers and of an order."""
        if self.kind not in ("one_hot", "dummy"):
            return ()
        return self.values[self.kind == "dummy" :]

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the numbers that it becomes."""
        if self.kind not in ("one_hot", "dummy"):
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.inputs)

    def of(self, table: Table) -> Floats:
        """The numbers (n, k) of a table's column. Raises DataError naming file and row."""
        cells = table.of(self.name)
        try:
            return inputs(cells.to_numpy(), vars(self), strict=self.predefined)
        except CellError as error:
            raise self._refusal(cells[error.row :], error.why) from None

    def cells(self, numbers: Floats) -> list[str]:
        """Cells that become these numbers (n, k)."""
        numbers = numbers * np.asarray(self.std) + np.asarray(self.mean)
        if self.kind == "number":
            return [repr(float(value)) for value in numbers[:, 0]]
        if self.kind == "ordinal":
            return [self.values[round(code)] for code in numbers[:, 0]]
        none = self.values[0] if self.kind == "dummy" else _STRANGE
        return [self.inputs[row.argmax()] if (row > 0.5).any() else none for row in numbers]

    def rule(self) -> dict[str, Any]:
        """What turns a cell into numbers, fit for JSON."""
        entry = {key: getattr(self, key) for key in ("name", "kind", "fill")}
        entry |= {"others": True} if self.others else {}
        for key, plain in (("mean", (0.0,)), ("std", (1.0,))):
            scale = getattr(self, key)
            entry[key] = [*scale] if self.inputs and scale != plain else scale[0]
        return entry | {"values": [*self.values]}

    def _refusal(self, cells: Series, why: str) -> DataError:
        """The error for the first of some cells."""
        if why == "number":
            return not_finite(cells)
        if why == "empty":
            ways = "median, mean" if self.kind == "number" else "most_frequent"
            way = f"missing = {ways} or a value of your own"
            if self.predefined:
                way = "fill = ... in the column's entry in data.rules, at every place"
            problem = f"is empty; fill such cells by {way}, or take the rows out"
            return DataError(f"{at(cells)} {problem}")
        values = f"({', '.join(self.values[:10])}{', ...' if len(self.values) > 10 else ''})"
        problem = (
            f"has no place in the order of the column {values}; write the whole order into "
            f"columns.{self.name}, or take one_hot"
        )
        if self.predefined:
            problem = (
                f"is none of the agreed values {values}; correct the cell, take the row out, or "
                "add the value to the column's entry in data.rules at every place"
            )
        return DataError(f"{at(cells)}: {short(cells.iloc[0])} {problem}")

    def describe(self) -> str:
        """What was done, in words; empty for numbers that stay."""
        words = []
        if self.kind in ("one_hot", "dummy"):
            rest = f" but {self.values[0]}" if self.kind == "dummy" else ""
            rest += ", none for others" if self.others else ""
            words.append(f"one input for each of {len(self.values)} values{rest}")
        if self.kind == "ordinal":
            words.append(f"0 to {len(self.values) - 1} for {' < '.join(self.values[:10])}")
        if self.fill is not None:
            fill = f"{self.fill:.6g}" if isinstance(self.fill, float) else f"'{self.fill}'"
            count = "" if self.predefined else f" ({self.missing} in training)"
            words.append(f"missing values as {fill}{count}")
        if (self.mean, self.std) != ((0.0,), (1.0,)):
            mean, std = (", ".join(f"{v:.6g}" for v in scale) for scale in (self.mean, self.std))
            words.append(f"less {mean}, divided by {std}")
        return f"{self.name}: {', '.join(words)}" if words else ""


@dataclass(frozen=True)
class Preparation:
    """The rules for all columns of a model's inputs; rows of the table are its raw samples."""

    columns: tuple[Column, ...]

    def of(self, table: Table) -> Tensor:
        """The inputs (n, k) float32 of a table's rows."""
        parts = [column.of(table) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(head for column in self.columns for head in column.heads)

    @property
    def numbers(self) -> list[bool]:
        """Of each input whether it is a number; the others are categories."""
        return [column.kind == "number" for column in self.columns for _ in column.heads]

    def scaled(self, mean: Sequence[float], std: Sequence[float]) -> Preparation | None:
        """The rules that also take off a mean of each input (k,), and divide by std; None if there
        are none, because categories would have a scale.
        """
        columns = []
        for column, (less, by) in self.parts(torch.tensor([mean, std], dtype=torch.float64)):
            if column.kind == "number":
                first, scale = column.mean[0] + float(less[0]) * column.std[0], column.std[0]
                column = replace(column, mean=(first,), std=(float(by[0]) * scale,))
            elif (less != 0.0).any() or (by != 1.0).any():
                return None
            columns.append(column)
        return Preparation(tuple(columns))

    def describe(self) -> list[str]:
        """A line for every column that was changed."""
        return [line for column in self.columns if (line := column.describe())]

    def parts(self, stored: Tensor) -> list[tuple[Column, Floats]]:
        """Each column, and its part (n, ...) of inputs (n, k)."""
        ends = np.cumsum([len(column.heads) for column in self.columns])[:-1]
        return [*zip(self.columns, np.split(stored.double().numpy(), ends, axis=1), strict=True)]

    def back(self, stored: Tensor) -> np.ndarray[Any, Any]:
        """Rows of the table (n, columns), as texts, from inputs (n, k)."""
        return np.stack([column.cells(part) for column, part in self.parts(stored)], axis=1)

    def about(self) -> dict[str, Any]:
        """Kind "cells", with the table's columns, the rule of each, and what was done in words."""
        names, rules = [c.name for c in self.columns], [c.rule() for c in self.columns]
        return {"kind": "cells", "columns": names, "rules": rules, "prepared": self.describe()}


def categories(values: Iterable[Any], fill: Any = None) -> tuple[str, ...]:
    """The names of cells: of a column of numbers one for each number, 1 for 1.0 and " 1 ". fill:
    may be a text among numbers.
    """
    names = tuple(map(name_of, values))
    numbers = [number_name(name) or (name if name == fill else None) for name in names]
    return names if None in numbers else tuple(map(str, numbers))


# --------------------------------------------------------------------------- rules agreed on before
Rules = Sequence[Mapping[str, Any]]
_PLAIN: dict[str, Any] = {"values": [], "fill": None, "mean": 0.0, "std": 1.0}
_KEYS = ("name", "kind", "others", *_PLAIN)


def preparation_of(rules: Rules) -> Preparation:
    """How these rules make inputs of a table. Raises DataError naming the column."""
    columns = [_column_of(rule) for rule in rules]
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"rules, column '{name}': it has two entries; keep one")
    return Preparation(tuple(columns))


def rules_of(raw: Raw | None) -> list[dict[str, Any]]:
    """The rules that made the inputs of a table; none for inputs of another kind."""
    if isinstance(raw, Columns):
        return [{"name": name, "kind": "number"} for name in raw.names]
    if not isinstance(raw, Preparation):
        return []
    entries = []
    for column in raw.columns:
        rule = column.rule()
        if column.kind != "number" and column.fill not in column.values:
            rule["fill"] = None  # no cell was empty where the rules were found
        entries.append({k: v for k, v in rule.items() if k not in _PLAIN or v != _PLAIN[k]})
    return entries


def _column_of(rule: Mapping[str, Any]) -> Column:
    name, kind, others = rule.get("name"), rule.get("kind", "number"), rule.get("others", False)
    if not isinstance(name, str) or not name:
        text = shortened(str(dict(rule)))
        raise DataError(f"rules: an entry has no name: {text}; name the column that it is for")
    try:
        for key in rule:
            if key not in _KEYS:
                raise ValueError(f"unknown key '{key}'; {did_you_mean(str(key), _KEYS)}")
        if kind not in KINDS:
            raise ValueError(unknown("kind", str(kind), KINDS))
        if others and (kind != "one_hot" or others is not True):
            raise ValueError(f"others = true is for one_hot, got {others!r} of {kind}")
        values, fill = _values_and_fill(rule, kind)
        column = Column(name, kind, values, fill, predefined=True, others=others)
        mean, std = (_scale(rule.get(key, _PLAIN[key]), key, column) for key in ("mean", "std"))
        if np.min(std) <= 0:
            raise ValueError(f"std must be above 0, got {rule['std']}")
    except ValueError as error:
        raise DataError(f"rules, column '{name}': {error}") from None
    return replace(column, mean=mean, std=std)


def _values_and_fill(
    rule: Mapping[str, Any], kind: str
) -> tuple[tuple[str, ...], float | str | None]:
    """The categories of a column in order, none of numbers, and what stands for an empty cell."""
    raw_values, fill = rule.get("values"), rule.get("fill")
    if kind == "number":
        if raw_values:
            raise ValueError("a number has no values; take kind = one_hot or ordinal")
        if not (fill is None or _is_finite(fill)):
            raise ValueError(f"fill must be a number, got {fill!r}")
        return (), None if fill is None else float(fill)
    is_list = isinstance(raw_values, list | tuple) and len(raw_values) > 0
    if not is_list or not all(type(value) in (str, int, float) for value in raw_values or ()):
        raise ValueError(f"values must be a list of texts or numbers, got {raw_values!r}")
    values = categories(raw_values or (), fill)
    if repeated := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"the value {repeated[0]} is there twice; name it once")
    fill = None if fill is None else number_name(name_of(fill)) or name_of(fill)
    if fill not in (None, *values):
        raise ValueError(f"fill must be one of its values ({', '.join(values[:10])}), got '{fill}'")
    return values, fill


def _scale(value: Any, key: str, column: Column) -> tuple[float, ...]:
    """A mean or std: a number, or of categories a list with one for each input."""
    count = len(column.inputs)
    if not count or value == _PLAIN[key]:
        if _is_finite(value):
            return (float(value),)
        raise ValueError(f"{key} must be a number, got {value!r}")
    is_list = isinstance(value, list | tuple) and all(map(_is_finite, value))
    if not is_list or len(value) != count:
        raise ValueError(f"{key} must be {count} numbers, one an input, got {value!r}")
    return tuple(map(float, value))


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# -------------------------------------------------------------------------- found in training rows
DROP = "drop"  # a value of missing: rows with an empty cell are left out
WITH_CATEGORIES = "with_categories"  # a value of standardise
ALL = "*"  # every column that has no rule of its own
Kinds = Mapping[str, str | Sequence[str]]
Fills = str | float | Mapping[str, str | float]


def _most_frequent(values: Any) -> Any:
    """The most frequent of some values, of several the first in order."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts.argmax()]


FILLS: Mapping[str, Callable[[Floats], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "most_frequent": _most_frequent,
}


@dataclass(frozen=True)
class FitOptions:
    """What is found in training rows besides categories: missing, standardise, ddof of `table`."""

    missing: Fills | None = None
    standardise: bool | str = False
    ddof: int = 0

    def of(self, column: Column, table: Table) -> Column:
        """The column with its fill, mean and deviation in these rows. Raises DataError."""
        cells = table.of(column.name)
        gaps = empty(cells)
        fill = self.fill(cells[~gaps], column.kind, cells)
        fill = column.fill if fill is None else fill
        column = replace(column, missing=int(gaps.sum()), fill=fill)
        scaled = column.kind == "number" or self.standardise == WITH_CATEGORIES
        if not (self.standardise and scaled):
            return column
        numbers = column.of(table)
        if len(numbers) <= self.ddof:
            raise DataError(
                f"{table.where}, column '{column.name}': {len(numbers)} training rows have no "
                f"deviation with ddof = {self.ddof}; take ddof = 0, or leave the client out"
            )
        mean = tuple(float(each.mean()) for each in numbers.T)
        std = tuple(float(each.std(ddof=self.ddof)) or 1.0 for each in numbers.T)
        return replace(column, mean=mean, std=std)

    def fit_all(self, preparation: Preparation, table: Table) -> Preparation:
        """The same of all columns."""
        return Preparation(tuple(self.of(column, table) for column in preparation.columns))

    def fill(self, nonempty: Series, kind: str, cells: Series) -> float | str | None:
        """What stands for an empty cell of a column. nonempty: its other cells."""
        missing, name = self.missing, str(cells.name)
        method = missing.get(name, missing.get(ALL)) if isinstance(missing, Mapping) else missing
        if method is None or method == DROP:
            return None
        by_name, is_number = isinstance(missing, Mapping) and name in missing, kind == "number"
        if not len(nonempty) and (method in FILLS or (not is_number and not by_name)):
            raise all_empty(cells, f", or say what stands there: missing.{name} = 0, a value")
        if is_number and isinstance(method, str):
            if method not in FILLS:
                ways = ", ".join(FILLS)
                raise DataError(f"missing.{name} must be {ways} or a number, got '{method}'")
            return float(FILLS[method](finite(nonempty)))
        if is_number:
            return float(method)
        names = [name_of(cell) for cell in nonempty]
        numbers = {name: number_name(name) for name in {*names}}
        numeric, fill = all(numbers.values()), name_of(method)
        if method in FILLS or not (by_name or isinstance(method, str)):  # a number is no text
            fill = str(_most_frequent([numbers[name] if numeric else name for name in names]))
        return number_name(fill) or fill if numeric else fill


def kinds_in(table: Table, names: Sequence[str], kinds: Kinds, options: FitOptions) -> Preparation:
    """How columns become inputs, found in training rows, without what stands for an empty cell and
    without a scale. Raises DataError.
    """
    for option, by_column in (("columns", kinds), ("missing", options.missing)):
        for name in by_column if isinstance(by_column, Mapping) else ():
            if name not in (*names, ALL):
                raise DataError(
                    f"{option}.{name}: there is no input of this name; {did_you_mean(name, names)}"
                )
    return Preparation(tuple(_column(table, name, kinds, options) for name in names))


def _column(table: Table, name: str, kinds: Kinds, options: FitOptions) -> Column:
    """What kind of column it is, and its values."""
    cells = table.of(name)
    nonempty = cells[~empty(cells)]
    if not len(nonempty):
        raise all_empty(cells)
    texts = text_cells(nonempty)
    kind = kinds.get(name) or (kinds.get(ALL, "") if len(texts) else "number")
    if not kind:
        raise no_rule(texts)
    if isinstance(kind, str) and kind not in KINDS:
        raise DataError(f"columns.{name}: {unknown('kind of column', kind, KINDS)}, or its values")
    if kind == "number":
        return Column(name, kind)
    fill = options.fill(nonempty, "", cells)
    levels = dict.fromkeys(categories(dict.fromkeys(map(name_of, nonempty))))
    warn_of_look_alikes(f"{table.where}, column '{name}'", levels)
    if not isinstance(kind, str):
        return Column(name, "ordinal", categories(kind, fill))
    values = {*levels, *([str(fill)] if len(nonempty) < len(cells) and fill is not None else [])}
    order = in_order(values, float if all(map(number_name, values)) else None)
    return Column(name, kind, order)


def all_empty(cells: Series, or_else: str = "") -> DataError:
    """The error for a column without a single value in a file, or at a client."""
    where = f"{cells.index[0][0]}, column '{cells.name}'"
    return DataError(f"{where} is empty in every row; leave it out of inputs{or_else}")


def no_rule(texts: Series) -> DataError:
    """The error for a column of texts of which nothing says how it becomes numbers."""
    cure = f"write columns.{texts.name} = one_hot, or ordinal, or its values in order; or leave it"
    problem = odd(texts.iloc[0]) or f"{short(texts.iloc[0])} is a text; {cure} out of inputs"
    return DataError(f"{at(texts)}: {problem}")


@dataclass(frozen=True)
class PerClient(Raw):
    """Columns that mean the same at all clients, with the fills and the scale of each one's own
    training rows. common: without these; by_client: by its name, "" for data of one client.
    """

    common: Preparation
    fit_options: FitOptions
    by_client: Mapping[str, Preparation]

    def of(self, table: Table, clients: Series | None) -> Tensor:
        """The inputs (n, k) float32 of rows of these clients; rows of others are zeros."""
        out = torch.zeros(len(table.frame), len(self.common.heads))
        for name, (rows, part) in parts_of(table, clients).items():
            if name in self.by_client:
                out[torch.from_numpy(rows)] = self.by_client[name].of(part)
        return out

    def numbers(self, client: str) -> dict[str, dict[str, Any]]:
        """What was found at a client: {column: {fill, mean, std}}, fit for JSON."""
        rules = {column.name: column.rule() for column in self.by_client[client].columns}
        keys = ("fill", "mean", "std")
        return {name: {key: rule[key] for key in keys} for name, rule in rules.items()}

    def about(self) -> dict[str, Any]:
        """Kind "cells_per_client": the columns' rules without fill and scale, how these are found,
        and those of each client ("sites").
        """
        settings = {k: v for k, v in vars(self.fit_options).items() if v not in (None, False, 0)}
        sites = {name: self.numbers(name) for name in self.by_client}
        return self.common.about() | {"kind": "cells_per_client", "found": settings, "sites": sites}


Ranges = dict[str, list[float]]


def ranges(data: FederatedData, client: int | None = None) -> Ranges:
    """The lowest and the highest number of all training rows in each column of numbers, in the
    column's own unit. Nothing for inputs of another kind, and where rows are elsewhere. client: of
    its rows alone.
    """
    raw = data.raw
    if data.roll is not None or data.inputs.ndim != 2:
        return {}
    if isinstance(raw, Columns):
        raw = Preparation(tuple(Column(name, "number") for name in raw.names))
    parts = [(raw, data.inputs if client is None else data.client(client)[0])]
    if isinstance(raw, PerClient):
        clients = {n: i for i, n in enumerate(data.client_names) if client in (None, i)}
        parts = [(raw.by_client.get(n), data.client(i)[0]) for n, i in clients.items()]
    out: Ranges = {}
    for preparation, rows in parts:
        if isinstance(preparation, Preparation):
            for name, (low, high) in _of(preparation, rows).items():
                lowest, highest = out.get(name, (low, high))
                out[name] = [min(low, lowest), max(high, highest)]
    return out


def _of(preparation: Preparation, inputs: Tensor) -> Ranges:
    """inputs: (n, k), in float32, so to seven digits of the largest number of a column."""
    ranges = {}
    for column, stored in preparation.parts(torch.stack([*inputs.aminmax(dim=0)])):
        if column.kind == "number":
            mean, std = column.mean[0], column.std[0]
            ends = [float(v) * std + mean for v in stored[:, 0]]
            digits = 6 - math.floor(math.log10(max(std, *map(abs, ends))))
            ranges[column.name] = [round(end, digits) for end in ends]
    return ranges
