"""What a table is like, told without telling of anybody: no number is of fewer rows than a least
count.

- A value is told with the number of its rows, if these are at least so many; a rarer one is not
  told at all. A rarer one does not follow from the total either: where all rarer ones together are
  too few, counts of other values are withheld, in the order of the rows in which they come first,
  until they could be any number. So two columns that split the rows in the same way, as a code and
  its word, withhold the same rows.
- Of a column with more than 10 different numbers the least and the largest are one row's. So the
  numbers are put in order and cut into groups of at least so many, which do not overlap. A quantile
  is the mean of the group at its place, or lies between the means of the two groups nearest to it;
  the first and the last group count for none. The mean and the deviation of all numbers are made
  with the lowest and highest moved inwards, half the least count of each, so that no extreme one
  shows.
- All of them are rounded to a tenth of the deviation's first digit or less, because the digits of a
  mean tell of how many rows it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...core.strict_json import PLAIN, Examples, first_of, from_json
from ...errors import DataError
from ..heterogeneity import Labels, labels_of_counts
from .cells import LARGEST, Floats, empty, name_of, number_name
from .columns import Table, finite, in_order, present, refuse_commas, text_cells
from .preparation import DROP
from .tables import files_with

if TYPE_CHECKING:
    from pandas import Series

# options of `table` that tell what columns become, and which other files are for tests
_BECOMES = {
    *("columns", "missing", "standardise", "ddof", "per_client", "rules", "text"),
    "test",
}
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_FEW = 10  # different numbers that are told as values
_GROUPS = 5  # without which only the middle one is told
_MOST = 1000  # values of a column

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Value = Annotated[str, Field(max_length=200, pattern=PLAIN)]
Kind = Literal["number", "values", "texts"]


class ColumnDescription(BaseModel):
    """A column. kind: many different numbers, few of them, or texts. missing: empty cells, None:
    some, or undisclosed. counts: rows of each value, None: withheld; none of numbers. mean,
    deviation: of numbers, None: too few rows; quantiles: about the places 0 (low), 1/4, 1/2, 3/4, 1
    (high) of the numbers in order, see above.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    kind: Kind
    missing: Examples | None
    counts: dict[Value, Examples | None] = Field(default={}, max_length=_MOST)
    mean: Number | None = None
    deviation: Annotated[float, Field(ge=0, le=LARGEST)] | None = None
    quantiles: list[Number | None] = Field(default=[], max_length=len(_QUANTILES))

    @model_validator(mode="after")
    def _fits(self) -> ColumnDescription:
        if self.kind == "values" and any(number_name(value) != value for value in self.counts):
            raise ValueError("a value is no number")
        if (self.mean is None) != (self.deviation is None) or (self.mean is None) == any(
            number is not None for number in self.quantiles
        ):
            raise ValueError("mean, deviation and quantiles are told together")
        return self


class Description(BaseModel):
    """A site's table. least: the least count; rows: None if there are fewer, and then nothing else
    is disclosed. target: the column with the labels, if it is known.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    least: Annotated[int, Field(ge=1, le=10**9)]
    rows: Examples | None
    target: Value | None = None
    columns: dict[Value, ColumnDescription] = Field(default={}, max_length=10_000)

    @model_validator(mode="after")
    def _fits(self) -> Description:
        if self.rows is not None and self.target is not None and self.target not in self.columns:
            raise ValueError("the target is no column")
        for column in self.columns.values():
            if sum(n or 0 for n in [*column.counts.values(), column.missing]) > (self.rows or 0):
                raise ValueError("a column has more cells than there are rows")
        return self


def described(table: Table, names: Sequence[str], target: str | None, least: int) -> Description:
    """What is told of these columns of a site's table, and of its target. Raises DataError."""
    rows = len(table.frame)
    if rows < least:
        return Description(least=least, rows=None, target=target)
    columns = {}
    for name in dict.fromkeys([*names, *([] if target is None else [target])]):
        try:
            columns[name] = _column(table.of(name), least)
        except ValidationError as error:
            why = ": ".join(first_of(error))
            raise DataError(f"{table.where}, column '{name}' cannot be described: {why}") from None
    return Description(least=least, rows=rows, target=target, columns=columns)


def described_table(options: Mapping[str, Any], least: int) -> Description:
    """What is told of a table's training rows, all of one site. options: those of `table`; what a
    column becomes counts for nothing. Raises DataError.
    """
    _, rows, label, names = _training(options)
    return described(rows, names, label, least)


def described_clients(options: Mapping[str, Any], least: int) -> dict[str, Description]:
    """The same of each client of a table: of each file, or of each value of its client column."""
    owner, whole, label, names = _training(options)
    clients = {Path(whole.where).stem: whole}
    if owner is not None:
        rows = whole.frame.groupby(present(whole, owner).map(name_of), sort=True)
        clients = {str(name): Table(f"{whole.where}, {name}", each) for name, each in rows}
    return {name: described(table, names, label, least) for name, table in clients.items()}


def _training(options: Mapping[str, Any]) -> tuple[str | None, Table, str | None, list[str]]:
    """Of `table` with these options: the column that says whose a row is, the training rows, the
    column of the labels, and the others.
    """
    table_options = {name: value for name, value in options.items() if name not in _BECOMES}
    if options.get("missing") == DROP:
        table_options["missing"] = DROP
    target = options.get("target", ())
    files = files_with({**table_options, "target": target})
    rows = files.rows(options.get("class_names", ()))
    label, others = (target, []) if isinstance(target, str) else (None, [*target])
    return files.owner, rows.tables[0], label, rows.inputs + others


def parsed(raw: bytes) -> Description:
    """A description from its JSON, which a site sent. Raises WireError."""
    return from_json(Description, raw, "description")


def _column(cells: Series, least: int) -> ColumnDescription:
    gaps = empty(cells)
    nonempty, missing = cells[~gaps], int(gaps.sum())
    refuse_commas(marked := text_cells(cells))
    if texts := len(marked) > 0:
        names = nonempty.map(name_of)
    else:
        numbers = finite(nonempty)  # raises with the row of a text among numbers
        if len(np.unique(numbers)) > _FEW:
            disclosed = missing if not missing or min(missing, len(nonempty)) >= least else None
            # whether something is disclosed must not tell how many cells are empty
            sure = len(nonempty)
            if disclosed is None:
                sure = min(sure, len(cells) - least + 1)
            groups = sure // least
            return ColumnDescription(
                kind="number", missing=disclosed, **_numbers(numbers, least, groups)
            )
        names = nonempty.map(number_name)
    counts = names.reindex(cells.index, fill_value="").value_counts(sort=False)
    public = _cells({str(name): int(n) for name, n in counts.items()}, least)
    empties = public.pop("", None) if missing else 0
    return ColumnDescription(
        kind="texts" if texts else "values",
        missing=empties,
        counts={name: public[name] for name in in_order(public, None if texts else float)},
    )


def _cells(counts: Mapping[str, int], least: int) -> dict[str, int | None]:
    """What may be told of these counts, whose sum is known. Without it are those below the least
    count; None: withheld, for they could be computed otherwise, the first ones first.

    >>> _cells({"a": 50, "b": 40, "c": 3}, 10), _cells({"a": 50, "b": 6, "c": 7}, 10)
    ({'a': None, 'b': 40}, {'a': 50})
    """
    disclosed: dict[str, int | None] = {k: n for k, n in counts.items() if n >= least}
    free = sum(n for n in counts.values() if n < least)
    if not 0 < free < least:
        return disclosed
    for name in disclosed:
        free += counts[name] - least
        disclosed[name] = None
        if free >= least - 1:  # now the rarer ones may be from 1 to least - 1
            return disclosed
    return {}


def _numbers(values: Floats, least: int, count: int) -> dict[str, Any]:
    """Mean, deviation and quantiles of numbers in so many groups; nothing of fewer than three."""
    if count < 3:
        return {}
    ordered = np.sort(values)
    groups = np.array_split(ordered, count)
    inner = np.clip(ordered, ordered[least // 2], ordered[-1 - least // 2])
    mean, deviation = float(inner.mean()), float(inner.std())
    digits = 1 - math.floor(math.log10(deviation)) if deviation > 0 else 6
    sizes = np.array([len(group) for group in groups])
    centres = (np.cumsum(sizes) - sizes / 2)[1:-1]
    means = [group.mean() for group in groups[1:-1]]
    quantiles: list[float | None] = [None] * len(_QUANTILES)
    for i, quantile in enumerate(_QUANTILES):
        if count >= _GROUPS or quantile == 0.5:  # outside of the centres that of the nearest group
            value = np.interp(quantile * len(ordered), centres, means)
            quantiles[i] = round(float(value), digits)
    statistics = {"mean": round(mean, digits), "deviation": round(deviation, digits)}
    return statistics | {"quantiles": quantiles}


# ------------------------------------------------------------------------------- of several sites
def counts_of(column: ColumnDescription, rows: int) -> dict[str, float]:
    """About how many of a site's rows have each value: those that are withheld share what the
    others leave.
    """
    counts = {value: float(n) for value, n in column.counts.items() if n is not None}
    withheld = column.counts.keys() - counts.keys()
    rest = rows - (column.missing or 0) - sum(counts.values())
    return counts | {value: rest / len(withheld) for value in withheld}


def labels_of(
    descriptions: Mapping[str, Description],
) -> tuple[list[str], dict[str, list[float]], Labels | None]:
    """The labels of all sites; about how many rows of each there are at every site that tells its
    rows, and behind them those that are undisclosed; how much they differ. None, if the labels are
    no values.
    """
    columns = {
        name: (site.columns[site.target], site.rows)
        for name, site in descriptions.items()
        if site.rows is not None and site.target is not None
    }
    if not columns or any(column.kind == "number" for column, _ in columns.values()):
        return [], {}, None
    names = {label for column, _ in columns.values() for label in column.counts}
    numbers = all(number_name(name) == name for name in names)
    labels = in_order(names, float if numbers else None)
    counts = {}
    for name, (column, rows) in columns.items():
        column_counts = counts_of(column, rows)
        counts[name] = [column_counts.get(label, 0.0) for label in labels]
        counts[name].append(rows - sum(counts[name]))
    return [*labels], counts, labels_of_counts(np.array([*counts.values()]))


def notices(sites: Mapping[str, Description]) -> list[str]:
    """A line for each site whose labels are all one class, and for each column of texts in which
    two sites have no value in common.
    """
    lines = []
    for name, site in sites.items():
        column = site.columns.get(site.target or "")
        counts = {} if column is None or column.kind == "number" else column.counts
        if len(counts) == 1 and (label := next(iter(counts))) and counts[label] == site.rows:
            lines.append(
                f"{name}: all training rows are '{label}': are its labels read as those of other "
                "sites are? If not, write target = ... or recode = ... into its own file, below "
                "[data]"
            )
    for column_name in dict.fromkeys(name for site in sites.values() for name in site.columns):
        columns = {n: c for n, s in sites.items() if (c := s.columns.get(column_name)) is not None}
        for one, other in itertools.combinations(columns, 2):
            if line := _apart(column_name, one, columns[one], other, columns[other]):
                lines.append(line)
                break  # the first pair says it
    return lines


def _apart(
    name: str, one: str, first: ColumnDescription, other: str, second: ColumnDescription
) -> str:
    """What is said of a column whose values are others at each of two sites; empty if some are
    common, or if it may be a number at both.
    """
    values, others = [*first.counts], [*second.counts]
    if "texts" not in (first.kind, second.kind) or not values or not others:
        return ""
    if {*values} & {*others}:
        return ""
    by_folded = {value.casefold(): value for value in values}
    recodes = ", ".join(f'"{v}" = "{by_folded.get(v.casefold(), "...")}"' for v in others[:10])
    return (
        f"column '{name}': {one} has {', '.join(values[:10])} and {other} {', '.join(others[:10])},"
        f" none in common. If they mean the same, write into the file of {other}, below [data]: "
        f"recode.{name} = {{ {recodes} }}"
    )
