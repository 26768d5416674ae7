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

    def fit_all(self, preparation: Preparation, table: Table) -> Preparation:
        """The same of all columns."""
        return Preparation(tuple(self.of(column, table) for column in preparation.columns))

    def fill(self, nonempty: Series, kind: str, cells: Series) -> float | str | None:
        """What stands for an empty cell of a column. nonempty: its other cells."""
        missing, name = self.missing, cells.name
        method = missing.get(name, missing.get(ALL)) if isinstance(missing, Mapping) else missing
        if method in (None, DROP):
            return None
        by_name = isinstance(missing, Mapping) and name in missing
        if not len(nonempty) and (method in FILLS or (kind != "number" and not by_name)):
            raise all_empty(cells, f", or say what stands there: missing.{name} = 0, a value")
        if kind == "number":
            return _number_for(nonempty, method)
        numbers = {name: number_name(name) for name in {*map(name_of, nonempty)}}
        numeric, fill = all(numbers.values()), name_of(method)
        if method in FILLS or not (
            by_name or isinstance(method, str)
        ):  # a number for all is no text
            names = map(name_of, nonempty)
            fill = str(_most_frequent([numbers[name] if numeric else name for name in names]))
        return number_name(fill) or fill if numeric else fill


def fit(table: Table, names: Sequence[str], kinds: Kinds, options: FitOptions) -> Preparation:
    """Find in the training rows how columns become inputs; see `table`. Raises DataError."""
    return options.fit_all(kinds_in(table, names, kinds, options), table)


def kinds_in(table: Table, names: Sequence[str], kinds: Kinds, options: FitOptions) -> Preparation:
    """The same without what stands for an empty cell, and without a scale."""
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
    _warn_of_mixed(table, name, [*levels])
    warn_of_look_alikes(f"{table.where}, column '{name}'", levels)
    if not isinstance(kind, str):
        return Column(name, "ordinal", categories(kind, fill))
    values = {*levels, *([str(fill)] if len(nonempty) < len(cells) and fill is not None else [])}
    order = in_order(values, float if all(map(number_name, values)) else None)
    return Column(name, kind, order)


def _warn_of_mixed(table: Table, name: str, cells: Sequence[str]) -> None:
    """Say it if one number in two forms gives two values, because some cells are texts."""
    first_forms: dict[str, str] = {}
    for cell in cells:
        number = number_name(cell)
        if number and (first := first_forms.setdefault(number, cell)) != cell:
            text = next(c for c in cells if number_name(c) is None)
            line = "%s, column '%s': '%s' and '%s' are two values, because '%s' is a text; if it "
            line += "stands for a missing cell, leave that empty, else write numbers in one way"
            _log.warning(line, table.where, name, first, cell, text)
            return


def all_empty(cells: Series, or_else: str = "") -> DataError:
    """The error for a column without a single value in a file, or at a client."""
    where = f"{cells.index[0][0]}, column '{cells.name}'"
    return DataError(f"{where} is empty in every row; leave it out of inputs{or_else}")


def no_rule(texts: Series) -> DataError:
    """The error for a column of texts of which nothing says how it becomes numbers."""
    cure = f"write columns.{texts.name} = one_hot, or ordinal, or its values in order; or leave it"
    problem = odd(texts.iloc[0]) or f"{short(texts.iloc[0])} is a text; {cure} out of inputs"
    return DataError(f"{at(texts)}: {problem}")


def _number_for(nonempty: Series, method: str | float) -> float:
    """What stands for a missing number: of several that are most frequent the smallest."""
    if not isinstance(method, str):
        return float(method)
    if method not in FILLS:
        raise DataError(
            f"missing.{nonempty.name} must be mean, median, most_frequent or a number, got "
            f"'{method}'"
        )
    numbers = finite(nonempty)
    if method == "most_frequent":
        return float(_most_frequent(numbers))
    return float(numbers.mean() if method == "mean" else np.median(numbers))


def _most_frequent(values: Any) -> Any:
    """The most frequent of some values, of several the first in order."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts.argmax()]
