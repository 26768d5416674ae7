"""What a table's columns become, found in training rows: the kind and the values of a column, what
stands for an empty cell, mean and deviation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.data.own.cells import empty, name_of, number_name
from fedloom.data.own.columns import (
    Table,
    at,
    finite,
    in_order,
    odd,
    short,
    text_cells,
    warn_of_look_alikes,
)
from fedloom.data.own.preparation import KINDS, Column, Preparation, categories
from fedloom.errors import DataError, did_you_mean, unknown

if TYPE_CHECKING:
    from pandas import Series

FILLS = ("mean", "median", "most_frequent")
DROP = "drop"  # a value of missing: rows with an empty cell are left out
WITH_CATEGORIES = "with_categories"  # a value of standardise
ALL = "*"  # every column that has no rule of its own
Kinds = Mapping[str, str | Sequence[str]]
Fills = str | float | Mapping[str, str | float]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """What is found in training rows besides categories: missing, standardise, ddof of `table`."""

    missing: Fills | None = None
    standardise: bool | str = False
    ddof: int = 0

    def of(self, column: Column, table: Table) -> Column:
        """The column with its fill, mean and deviation in these rows. Raises DataError."""
        cells = table.of(column.name)
        gaps = empty(cells)
        fill = self.fill(cells[~gaps], column.kind, cells)
        column = replace(
            column, missing=int(gaps.sum()), fill=column.fill if fill is None else fill
        )
        if not self.standardise or (
            column.kind != "number" and self.standardise != WITH_CATEGORIES
        ):
            return column
        numbers = column.of(table)
        if len(numbers) <= self.ddof:
            raise DataError(
                f"{table.where}, column '{column.name}': {len(numbers)} training rows have no "
                f"deviation with ddof = {self.ddof}; take ddof = 0, or leave the client out"
            )
        mean = tuple(float(each.mean()) for each in numbers.T)
        std = tuple(float(each.std(ddof=self.ddof)) or 1.0 for each in numbers.T)
        if column.inputs:
            return replace(column, mean=mean, std=std)
        return replace(column, mean=mean[0], std=std[0])

    def filled(self, how: Preparation, table: Table) -> Preparation:
        """The same of all columns."""
        return Preparation(tuple(self.of(column, table) for column in how.columns))

    def fill(self, there: Series, kind: str, cells: Series) -> float | str | None:
        """What stands for an empty cell of a column. there: the cells that are not empty."""
        given, name = self.missing, cells.name
        how = given.get(name, given.get(ALL)) if isinstance(given, Mapping) else given
        if how in (None, DROP):
            return None
        own = isinstance(given, Mapping) and name in given
        if not len(there) and (how in FILLS or (kind != "number" and not own)):
            raise all_empty(cells, f", or say what stands there: missing.{name} = 0, a value")
        if kind == "number":
            return _number_for(there, how)
        numbers = {name: number_name(name) for name in {*map(name_of, there)}}
        numeric, fill = all(numbers.values()), name_of(how)
        if how in FILLS or not (own or isinstance(how, str)):  # a number for all is no text
            names = map(name_of, there)
            fill = str(_most_frequent([numbers[name] if numeric else name for name in names]))
        return number_name(fill) or fill if numeric else fill


def fit(table: Table, names: Sequence[str], kinds: Kinds, how: Finding) -> Preparation:
    """Find in the training rows how columns become inputs; see `table`. Raises DataError."""
    return how.filled(kinds_in(table, names, kinds, how), table)


def kinds_in(table: Table, names: Sequence[str], kinds: Kinds, how: Finding) -> Preparation:
    """The same without what stands for an empty cell, and without a scale."""
    for option, given in (("columns", kinds), ("missing", how.missing)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in (*names, ALL):
                raise DataError(
                    f"{option}.{name}: there is no input of this name; {did_you_mean(name, names)}"
                )
    return Preparation(tuple(_column(table, name, kinds, how) for name in names))


def _column(table: Table, name: str, kinds: Kinds, how: Finding) -> Column:
    """What kind of column it is, and its values."""
    cells = table.of(name)
    there = cells[~empty(cells)]
    if not len(there):
        raise all_empty(cells)
    found = text_cells(there)
    rule = kinds.get(name) or (kinds.get(ALL, "") if len(found) else "number")
    if not rule:
        raise no_rule(found)
    if isinstance(rule, str) and rule not in KINDS:
        raise DataError(f"columns.{name}: {unknown('kind of column', rule, KINDS)}, or its values")
    if rule == "number":
        return Column(name, rule)
    fill = how.fill(there, "", cells)
    known = dict.fromkeys(categories(dict.fromkeys(map(name_of, there))))
    _warn_of_mixed(table, name, [*known])
    warn_of_look_alikes(f"{table.where}, column '{name}'", known)
    if not isinstance(rule, str):
        return Column(name, "ordinal", categories(rule, fill))
    values = {*known, *([str(fill)] if len(there) < len(cells) and fill is not None else [])}
    order = in_order(values, float if all(map(number_name, values)) else None)
    return Column(name, rule, order)


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


def all_empty(cells: Series, or_else: str = "") -> DataError:
    """The error for a column without a single value in a file, or at a client."""
    where = f"{cells.index[0][0]}, column '{cells.name}'"
    return DataError(f"{where} is empty in every row; leave it out of inputs{or_else}")


def no_rule(found: Series) -> DataError:
    """The error for a column of texts of which nothing says how it becomes numbers."""
    how = f"write columns.{found.name} = one_hot, or ordinal, or its values in order; or leave it"
    said = odd(found.iloc[0]) or f"{short(found.iloc[0])} is a text; {how} out of inputs"
    return DataError(f"{at(found)}: {said}")


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
        return float(_most_frequent(numbers))
    return float(numbers.mean() if how == "mean" else np.median(numbers))


def _most_frequent(values: Any) -> Any:
    """The most frequent of some values, of several the first in order."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts.argmax()]
