"""From the rows of tables to a model's inputs: as they are, by rules or what is found in training
rows of all clients or of each, as words, or by a transformer of scikit-learn's kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedloom.core.own_parts import find, is_own
from fedloom.data.own.cells import empty
from fedloom.data.own.columns import Table, first_line, numbers_of, text_cells, words_of
from fedloom.data.own.files import parts_of
from fedloom.data.own.fitting import DROP, FitOptions, Kinds, kinds_in, no_rule
from fedloom.data.own.preparation import Preparation, Rules, preparation_of
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame, Series


@runtime_checkable
class Transformer(Protocol):
    """A fitted transformer, as scikit-learn's."""

    def transform(self, frame: Any) -> Any:
        """Rows of a data frame -> inputs (n, k)."""
        ...


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


@dataclass(frozen=True)
class Transformed(Raw):
    """What a transformer of the user's makes of columns."""

    name: str
    columns: tuple[str, ...]

    def about(self) -> dict[str, Any]:
        """Kind "own": no file can hold the transformer."""
        return {"kind": "own", "transform": self.name, "columns": list(self.columns)}


@dataclass(frozen=True)
class Making:
    """How inputs are made; see `table`. Raises DataError for options that do not go together."""

    fit_options: FitOptions
    inputs: Sequence[str] = ()
    text: str | None = None
    length: int = 64
    vocabulary: int = 20_000
    columns: Kinds | None = None
    per_client: bool = False
    rules: Rules = ()
    preparation: Any = None

    def __post_init__(self) -> None:
        missing, standardise = self.fit_options.missing, self.fit_options.standardise
        fitted = {"columns": self.columns or None, "missing": missing, "standardise": standardise}
        if isinstance(missing, Mapping) and DROP in missing.values():
            raise DataError("missing = drop is for all columns, not for one; give it alone")
        if self.per_client and missing is None and not standardise:
            raise DataError(
                "per_client = true says where missing and standardise are found; give one of them"
            )
        if self.per_client or missing == DROP:
            fitted = {"columns": fitted["columns"]}
        if self.rules:
            preparation_of(self.rules)  # refuses rules that cannot be
            _refuse_besides({"inputs": self.inputs, "text": self.text} | fitted, "rules")
        if self.preparation is not None:
            others = {"rules": self.rules, "text": self.text, "per_client": self.per_client}
            _refuse_besides(others | fitted, "preparation")
        if self.text is not None and self.inputs:
            raise DataError("inputs and text are both given; keep one of them")

    @property
    def input_names(self) -> list[str]:
        """The columns that are named as inputs; none where all others are."""
        if self.rules:
            return [str(rule.get("name", "")) for rule in self.rules]
        if self.text is not None:
            return [self.text]
        return [*self.inputs] or [*getattr(self.transformer, "feature_names_in_", ())]

    @cached_property
    def transformer(self) -> Any:
        """The preparation, which a function of a user's file may make."""
        preparation = self.preparation
        if is_own(preparation):
            preparation = find(preparation)
            preparation = preparation if isinstance(preparation, Transformer) else preparation()
        if preparation is not None and not isinstance(preparation, Transformer):
            raise DataError(
                f"preparation is a {type(preparation).__name__} and has no transform(); give a "
                "fitted transformer of scikit-learn, or FILE.py:NAME of one"
            )
        return preparation

    def of(
        self, tables: Sequence[Table], names: Sequence[str], clients: Sequence[Series | None]
    ) -> tuple[list[Tensor], Raw]:
        """The inputs of the training rows and perhaps of test rows. clients: whose each row of each
        table is; None if all are one's. Raises DataError naming file, column and row.
        """
        if self.preparation is not None:
            return self._transformed(tables, names)
        if self.text is not None:
            return words_of(tables, self.text, self.length, self.vocabulary)
        if self.rules or self.columns or self._finds:
            preparation = preparation_of(self.rules) if self.rules else None
            kinds = self.columns or {}
            preparation = preparation or kinds_in(tables[0], names, kinds, self.fit_options)
            parts = parts_of(tables[0], clients[0]).items()
            fill = self.fit_options.fit_all
            by_client = {name: fill(preparation, part) for name, (_, part) in parts}
            if not self.per_client:
                return [by_client[""].of(table) for table in tables], by_client[""]
            raw = PerClient(preparation, self.fit_options, by_client)
            return [raw.of(t, owners) for t, owners in zip(tables, clients, strict=True)], raw
        for name in names:
            if len(texts := text_cells(tables[0].of(name))):
                raise no_rule(texts)
        return [numbers_of(table, names) for table in tables], Columns(tuple(names))

    @property
    def _finds(self) -> bool:
        return self.fit_options.missing not in (None, DROP) or bool(self.fit_options.standardise)

    def _transformed(
        self, tables: Sequence[Table], names: Sequence[str]
    ) -> tuple[list[Tensor], Raw]:
        tensors, transformer = [], self.transformer
        for table in tables:
            try:
                output = transformer.transform(_numeric(table, names))
                array = np.asarray(getattr(output, "toarray", lambda output=output: output)())
                tensors.append(torch.from_numpy(array.astype(np.float32)))
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise DataError(
                    f"{table.where}: the preparation, a {type(transformer).__name__}, cannot "
                    f"transform its rows: {first_line(error)}"
                ) from error
        return tensors, Transformed(type(transformer).__name__, tuple(names))


def _refuse_besides(options: Mapping[str, Any], option: str) -> None:
    """Raise DataError for an option of `table` that another one, `option`, decides."""
    for name, value in options.items():
        if not (value is None or value is False or value == () or value == []):
            message = f"{option} and {name} are both given: {option} say"
            message += "" if option.endswith("s") else "s"
            raise DataError(f"{message} it all; keep one of them")


def _numeric(table: Table, names: Sequence[str]) -> DataFrame:
    """Columns as a transformer expects them: numbers as numbers, texts as texts, an empty cell as
    NaN.
    """
    import pandas

    columns = {}
    for name in names:
        cells = table.of(name).reset_index(drop=True)
        texts = len(text_cells(cells)) > 0
        cells = cells.mask(empty(cells))
        columns[name] = cells if texts else pandas.to_numeric(cells)
    return pandas.DataFrame(columns)
