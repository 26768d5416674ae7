"""What is found in training rows, of all clients or of each: kinds and values of columns, fills,
mean and deviation; and the ranges of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data.federated import FederatedData
from fedloom.data.own.cells import Floats, empty, name_of, number_name
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
from fedloom.data.own.preparation import (
    KINDS,
    Column,
    Preparation,
    categories,
)
from fedloom.data.own.reading import parts_of
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError, did_you_mean, unknown

if TYPE_CHECKING:
    from pandas import Series

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
    for preparation, inputs in parts:
        if isinstance(preparation, Preparation):
            for name, (low, high) in _of(preparation, inputs).items():
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
