"""Columns of a table as a model's inputs: texts as numbers, missing values filled, standardised.

Everything is found in the training rows alone and applied to all (`fit`), or agreed beforehand by
rules, a list that a file can hold and that every site applies alike (`preparation_of`):

[[data.rules]]
name = "ward"
kind = "one_hot"                        # number, the default; one_hot; ordinal
values = ["Chirurgie", "Innere"]        # of texts, in order
fill = "Innere"                         # for an empty cell; without it such a cell is an error

A number may have mean and std, which are taken off and divided by.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import shortened
from fedloom.data.own.columns import (
    Floats,
    Table,
    at,
    finite,
    in_order,
    is_number,
    name_of,
    number_name,
    places,
    short,
)
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError, did_you_mean, unknown

if TYPE_CHECKING:
    from pandas import Series


_log = logging.getLogger(__name__)

KINDS = ("one_hot", "ordinal", "number")
FILLS = ("mean", "median", "most_frequent")
# what an empty cell is written as
EMPTY = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL"})
ALL = "*"  # every column that has no rule of its own
_STRANGE = "\x01"  # stands for a text that no training row has
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Kinds = Mapping[str, str | Sequence[str]]
Fills = str | float | Mapping[str, str | float]


@dataclass(frozen=True)
class Column:
    """How a column is turned into numbers. values: of a column of texts, in order; fill: stands for
    a missing value, None if none may be missing; missing: of the training rows; mean, std: what is
    taken off and divided by; agreed: it was not found in the training rows, so an unknown value is
    an error.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    fill: float | str | None = None
    missing: int = 0
    mean: float = 0.0
    std: float = 1.0
    agreed: bool = False

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the numbers that it becomes."""
        if self.kind != "one_hot":
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.values)

    def of(self, table: Table) -> Floats:
        """The numbers (n, k) of a table's column. Raises DataError naming file and row."""
        cells = table.of(self.name)
        whole = self._filled(cells)
        if self.kind == "number":
            return (finite(whole)[:, None] - self.mean) / self.std
        names = whole.map(name_of)
        if self.numeric:
            names = names.map({name: number_name(name) or name for name in names.unique()})
        found = places(names, self.values).numpy()
        wrong = cells[found < 0]
        if len(wrong) and (self.agreed or self.kind == "ordinal"):
            raise self._unknown(wrong)
        if self.kind == "one_hot":  # a value that no training row has is 0 everywhere
            return np.array(np.equal.outer(found, range(len(self.values))), dtype=np.float64)
        return found[:, None].astype(np.float64)

    def cells(self, numbers: Floats) -> list[str]:
        """Cells that become these numbers (n, k)."""
        if self.kind == "number":
            return [repr(float(value)) for value in numbers[:, 0] * self.std + self.mean]
        if self.kind == "one_hot":
            return [self.values[row.argmax()] if row.any() else _STRANGE for row in numbers]
        return [self.values[int(place)] for place in numbers[:, 0]]

    def rule(self) -> dict[str, Any]:
        """What turns a cell into numbers, fit for JSON."""
        kept = {key: getattr(self, key) for key in ("name", "kind", "fill", "mean", "std")}
        return kept | {"values": list(self.values)}

    @property
    def numeric(self) -> bool:
        """Whether all categories are numbers, which may be written in several ways."""
        return all(number_name(value) == value for value in self.values if value != self.fill)

    def _unknown(self, wrong: Series) -> DataError:
        known = f"{', '.join(self.values[:10])}{', ...' if len(self.values) > 10 else ''}"
        said = f"{at(wrong)}: {short(wrong.iloc[0])}"
        if self.agreed:
            return DataError(
                f"{said} is none of the agreed values ({known}); correct the cell, take the row "
                f"out, or add the value to the column's entry in data.rules at every place"
            )
        return DataError(
            f"{said} has no place in the order of the column ({known}); write the whole order into "
            f"columns.{self.name}, or take one_hot"
        )

    def _filled(self, cells: Series) -> Series:
        """Cells without an empty one."""
        if not (missing := empty(cells)).any():
            return cells
        if self.fill is None:
            ways = "median, mean" if self.kind == "number" else "most_frequent"
            way = "fill = ... in the column's entry in data.rules, at every place"
            way = way if self.agreed else f"missing = {ways} or a value of your own"
            raise DataError(
                f"{at(cells[missing])} is empty; fill such cells by {way}, or take the rows out"
            )
        cells = cells.copy()
        cells[missing] = self.fill
        return cells

    def said(self) -> str:
        """What was done, in words; empty for numbers that stay."""
        words = []
        if self.kind == "one_hot":
            words.append(f"one input for each of {len(self.values)} values")
        if self.kind == "ordinal":
            words.append(f"0 to {len(self.values) - 1} for {' < '.join(self.values[:10])}")
        if self.fill is not None:
            fill = f"{self.fill:.6g}" if isinstance(self.fill, float) else f"'{self.fill}'"
            count = "" if self.agreed else f" ({self.missing} in training)"
            words.append(f"missing values as {fill}{count}")
        if (self.mean, self.std) != (0.0, 1.0):
            words.append(f"less {self.mean:.6g}, divided by {self.std:.6g}")
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
        given, columns = list(zip(mean, std, strict=True)), []
        for column in self.columns:
            own, given = given[: len(column.heads)], given[len(column.heads) :]
            if column.kind == "number":
                (first, by), scale = own[0], column.std
                column = replace(column, mean=column.mean + first * scale, std=by * scale)
            elif any(each != (0.0, 1.0) for each in own):
                return None
            columns.append(column)
        return Preparation(tuple(columns))

    def said(self) -> list[str]:
        """A line for every column that was changed."""
        return [line for column in self.columns if (line := column.said())]

    def back(self, stored: Tensor) -> np.ndarray[Any, Any]:
        """Rows of the table (n, columns), as texts, from inputs (n, k)."""
        ends = np.cumsum([len(column.heads) for column in self.columns])[:-1]
        parts = np.split(stored.double().numpy(), ends, axis=1)
        return np.stack(
            [c.cells(part) for c, part in zip(self.columns, parts, strict=True)], axis=1
        )

    def about(self) -> dict[str, Any]:
        """Kind "cells", with the table's columns, the rule of each, and what was done in words."""
        names, rules = [c.name for c in self.columns], [c.rule() for c in self.columns]
        return {"kind": "cells", "columns": names, "rules": rules, "prepared": self.said()}


def empty(cells: Series) -> Bools:
    """Which cells (n,) are missing values."""
    try:
        return (cells.isna() | cells.isin(EMPTY)).to_numpy()  # type: ignore[no-any-return]
    except TypeError:  # lists are in no set
        return cells.isna().to_numpy()  # type: ignore[no-any-return]


def text_cells(cells: Series) -> Series:
    """The cells that are texts and no numbers; none if that are at most half of those that are
    there.
    """
    there = cells[~empty(cells)]
    try:
        there.to_numpy(dtype=np.float64)
        return there[:0]
    except (TypeError, ValueError, OverflowError):
        found = there[[isinstance(cell, str) and not is_number(cell) for cell in there]]
    return found if 2 * len(found) > len(there) else there[:0]


def fit(
    table: Table, names: Sequence[str], kinds: Kinds, fills: Fills | None, standardise: bool
) -> Preparation:
    """Find in the training rows how columns become inputs; see `table`. Raises DataError."""
    for option, given in (("columns", kinds), ("missing", fills)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in (*names, ALL):
                raise DataError(
                    f"{option}.{name}: there is no input of this name; {did_you_mean(name, names)}"
                )
    return Preparation(tuple(_column(table, name, kinds, fills, standardise) for name in names))


def _column(
    table: Table, name: str, kinds: Kinds, fills: Fills | None, standardise: bool
) -> Column:
    cells = table.of(name)
    there = cells[~empty(cells)]
    if not len(there):
        raise DataError(f"{table.where}, column '{name}' is empty in every row; leave it out")
    found = text_cells(there)
    rule = kinds.get(name) or (kinds.get(ALL, "") if len(found) else "number")
    if not rule:
        raise no_rule(found)
    if isinstance(rule, str) and rule not in KINDS:
        raise DataError(f"columns.{name}: {unknown('kind of column', rule, KINDS)}, or its values")
    how = fills.get(name, fills.get(ALL)) if isinstance(fills, Mapping) else fills
    missing = len(cells) - len(there)
    if rule == "number":
        column = Column(name, rule, (), None if how is None else _number_for(there, how), missing)
        if not standardise:
            return column
        numbers = column.of(table)
        return replace(column, mean=float(numbers.mean()), std=float(numbers.std()) or 1.0)
    names = there.map(name_of)
    distinct = names.unique().tolist()
    known = dict(zip(distinct, categories(distinct), strict=True))
    _warn_of_mixed(table, name, [*dict.fromkeys(known.values())])
    fill = how if how is None else name_of(how)
    own = isinstance(fills, Mapping) and name in fills
    if how in FILLS or not (own or isinstance(how, str | None)):  # a number for all is no text
        fill = str(names.map(known).mode().iloc[0])  # of several that are most frequent the first
    if fill is not None and all(map(number_name, known)):
        fill = number_name(fill) or fill
    if isinstance(rule, str):
        values = {*known.values(), *([fill] if missing and fill is not None else [])}
        order = in_order(values, float if all(map(number_name, values)) else None)
        return Column(name, rule, order, fill, missing)
    return Column(name, "ordinal", categories(rule, fill), fill, missing)


def categories(values: Iterable[Any], fill: Any = None) -> tuple[str, ...]:
    """The names of cells: of a column of numbers one for each number, 1 for 1.0 and " 1 ". fill:
    may be a text among numbers.
    """
    names = tuple(map(name_of, values))
    numbers = [number_name(name) or (name if name == fill else None) for name in names]
    return names if None in numbers else tuple(map(str, numbers))


def _warn_of_mixed(table: Table, name: str, cells: Sequence[str]) -> None:
    """Say it if one number in two forms gives two values, because some cells are texts."""
    seen: dict[str, str] = {}
    for cell in cells:
        number = number_name(cell)
        if number and (first := seen.setdefault(number, cell)) != cell:
            text = next(c for c in cells if number_name(c) is None)
            said = "%s, column '%s': '%s' and '%s' are two values, because '%s' is a text; if it "
            said += "stands for a missing cell, leave that empty, else write numbers in one way"
            _log.warning(said, table.where, name, first, cell, text)
            return


def no_rule(found: Series) -> DataError:
    """The error for a column of texts of which nothing says how it becomes numbers."""
    return DataError(
        f"{at(found)}: {short(found.iloc[0])} is a text; write columns.{found.name} = one_hot, or "
        "ordinal, or its values in order; or leave it out of inputs"
    )


def _number_for(there: Series, how: str | float) -> float:
    """What stands for a missing number: of several that are most frequent the smallest."""
    if not isinstance(how, str):
        return float(how)
    if how not in FILLS:
        raise DataError(
            f"missing.{there.name} must be mean, median, most_frequent or a number, got '{how}'"
        )
    numbers = finite(there)
    if how == "most_frequent":
        values, counts = np.unique(numbers, return_counts=True)
        return float(values[counts.argmax()])
    return float(np.mean(numbers) if how == "mean" else np.median(numbers))


# --------------------------------------------------------------------------- rules agreed on before
Rules = Sequence[Mapping[str, Any]]
_PLAIN: dict[str, Any] = {"values": [], "fill": None, "mean": 0.0, "std": 1.0}
_KEYS = ("name", "kind", *_PLAIN)


def preparation_of(rules: Rules) -> Preparation:
    """How these rules make inputs of a table. Raises DataError naming the column."""
    columns = [_agreed(rule) for rule in rules]
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
    found = []
    for column in raw.columns:
        rule = column.rule()
        if column.kind != "number" and column.fill not in column.values:
            rule["fill"] = None  # no cell was empty where the rules were found
        found.append({k: v for k, v in rule.items() if k not in _PLAIN or v != _PLAIN[k]})
    return found


def refuse_besides(given: Mapping[str, Any]) -> None:
    """Raise DataError for an option of `table` that the rules decide."""
    for name, value in given.items():
        if not (value is None or value is False or value == () or value == []):
            raise DataError(f"rules and {name} are both given: rules say it all; keep one of them")


def _agreed(rule: Mapping[str, Any]) -> Column:
    name, kind, fill = rule.get("name"), rule.get("kind", "number"), rule.get("fill")
    if not isinstance(name, str) or not name:
        said = shortened(str(dict(rule)))
        raise DataError(f"rules: an entry has no name: {said}; name the column that it is for")
    wrong = f"rules, column '{name}':"
    for key in rule:
        if key not in _KEYS:
            raise DataError(f"{wrong} unknown key '{key}'; {did_you_mean(str(key), _KEYS)}")
    if kind not in KINDS:
        raise DataError(f"{wrong} {unknown('kind', str(kind), KINDS)}")
    if kind != "number":
        values = _values(rule, wrong)
        filled = None if fill is None else number_name(name_of(fill)) or name_of(fill)
        if filled not in (None, *values):
            known = ", ".join(values[:10])
            raise DataError(f"{wrong} fill must be one of its values ({known}), got '{filled}'")
        return Column(name, kind, values, filled, agreed=True)
    if rule.get("values"):
        raise DataError(f"{wrong} a number has no values; take kind = one_hot or ordinal")
    for key in ("mean", "std", *([] if fill is None else ["fill"])):
        value = rule.get(key, 1.0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise DataError(f"{wrong} {key} must be a number, got {value!r}")
    mean, std = float(rule.get("mean", 0.0)), float(rule.get("std", 1.0))
    if std <= 0:
        raise DataError(f"{wrong} std must be above 0, got {rule['std']}")
    return Column(name, kind, (), None if fill is None else float(fill), 0, mean, std, agreed=True)


def _values(rule: Mapping[str, Any], wrong: str) -> tuple[str, ...]:
    """The categories of a column, in order."""
    given = rule.get("values")
    listed = isinstance(given, list | tuple) and len(given) > 0
    if not listed or not all(type(value) in (str, int, float) for value in given or ()):
        raise DataError(f"{wrong} values must be a list of texts or numbers, got {given!r}")
    for key in ("mean", "std"):
        if rule.get(key, _PLAIN[key]) != _PLAIN[key]:
            raise DataError(f"{wrong} {key} is for numbers; leave it out")
    values = categories(given or (), rule.get("fill"))
    for value in values:
        if values.count(value) > 1:
            raise DataError(f"{wrong} the value {value} is there twice; name it once")
    return values
