"""Columns of a table as a model's inputs, by rules: found in training rows, or agreed on before as
docs/tables.md shows (`data.rules`). A number may have mean and std, which are taken off and divided
by; one_hot and dummy lists of them, one for each input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import shortened
from fedloom.data.own.cells import CellError, Floats, inputs, name_of, number_name
from fedloom.data.own.columns import Table, at, not_finite, short
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
