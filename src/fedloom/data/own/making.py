"""From the rows of tables to a model's inputs: as they are, by rules or what is found in training
rows of all clients or of each, or as words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.data.own.columns import Table, numbers_of, text_cells, words_of
from fedloom.data.own.files import parts_of
from fedloom.data.own.fitting import DROP, FitOptions, Kinds, kinds_in, no_rule
from fedloom.data.own.preparation import Preparation, Rules, preparation_of
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series


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
            for name, value in ({"inputs": self.inputs, "text": self.text} | fitted).items():
                if not (value is None or value is False or value in ((), [])):
                    raise DataError(
                        f"rules and {name} are both given: rules say it all; keep one of them"
                    )
        if self.text is not None and self.inputs:
            raise DataError("inputs and text are both given; keep one of them")

    @property
    def input_names(self) -> list[str]:
        """The columns that are named as inputs; none where all others are."""
        if self.rules:
            return [str(rule.get("name", "")) for rule in self.rules]
        if self.text is not None:
            return [self.text]
        return [*self.inputs]

    def of(
        self, tables: Sequence[Table], names: Sequence[str], clients: Sequence[Series | None]
    ) -> tuple[list[Tensor], Raw]:
        """The inputs of the training rows and perhaps of test rows. clients: whose each row of each
        table is; None if all are one's. Raises DataError naming file, column and row.
        """
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
