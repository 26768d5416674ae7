"""Rules of columns made of what sites told of their tables, and of no row: what `table` finds in
training rows, the server takes from descriptions. data.columns, data.missing and data.standardise
say what is wanted, as in a simulation.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedloom.data.own.cells import number_name
from fedloom.data.own.columns import in_order
from fedloom.data.own.description import ColumnDescription, Description, counts_of
from fedloom.data.own.preparation import ALL, DROP, FILLS, KINDS, WITH_CATEGORIES, categories
from fedloom.errors import DataError, unknown

Columns = Mapping[str, ColumnDescription]
Table = Mapping[str, Any]


def agreed_rules(reports: Mapping[str, Description], data: Table) -> tuple[list[Table], list[str]]:
    """The rules of all inputs (see data/own/preparation.py), and the names of the classes, none of
    labels that are numbers. reports: by site; data: the run's table [data]. Raises DataError.
    """
    sites = {name: site for name, site in reports.items() if site.rows is not None}
    if not sites:
        raise DataError("no site has as many rows as its least count, so nothing is told of any")
    target = data["target"]
    targets = [target] if isinstance(target, str) else [*target]
    first, one = next(iter(sites.items()))
    for name, site in sites.items():
        if missing := [c for c in one.columns if c not in site.columns]:
            raise _lacks(name, missing[0], first)
        if extra := [c for c in site.columns if c not in one.columns]:
            raise _lacks(first, extra[0], name)
    by_site = {c: {place: site.columns[c] for place, site in sites.items()} for c in one.columns}
    inputs = list(data["inputs"]) or [name for name in by_site if name not in targets]
    if undescribed := [name for name in [*inputs, *targets] if name not in by_site]:
        raise DataError(f"{first} tells nothing of column '{undescribed[0]}', which run.toml names")
    rules = [_rule(name, by_site[name], sites, data) for name in inputs]
    return rules, list(data["class_names"]) or _classes(by_site[targets[0]])


def _lacks(site: str, column: str, other: str) -> DataError:
    return DataError(
        f"{site} has no column '{column}', which {other} has; give all sites the same columns, or "
        "name those to use in data.inputs"
    )


def _classes(columns: Columns) -> list[str]:
    if all(column.kind != "texts" for column in columns.values()):
        return []  # labels 0, 1, 2, ..., or a regression
    return [*in_order((name for column in columns.values() for name in column.counts), None)]


def _rule(name: str, columns: Columns, sites: Mapping[str, Description], data: Table) -> Table:
    texts = [site for site, column in columns.items() if column.kind == "texts"]
    numbers = [site for site, column in columns.items() if column.kind == "number"]
    if texts and numbers:
        raise DataError(
            f"column '{name}' holds numbers at {numbers[0]} and texts at {texts[0]}; write it alike"
        )
    kinds = data.get("columns") or {}
    encoding = kinds.get(name) or (kinds.get(ALL, "") if texts else "number")
    if not encoding:
        raise DataError(
            f"column '{name}' holds texts at {texts[0]}; write data.columns.{name} = one_hot, or "
            "ordinal, or its values in order; or leave it out of data.inputs"
        )
    if isinstance(encoding, str) and encoding not in KINDS:
        raise DataError(f"data.columns.{name}: {unknown('kind of column', encoding, KINDS)}")
    per_client, missing = data["per_client"], data.get("missing")  # each site fills, scales itself
    gap = next((site for site, column in columns.items() if column.missing != 0), "")
    if per_client or missing == DROP:
        gap = ""
    fill = missing.get(name, missing.get(ALL)) if isinstance(missing, Mapping) else missing
    if gap and fill is None:
        raise DataError(
            f"column '{name}' has or may have empty cells at {gap}; fill them by data.missing = "
            "median, mean or most_frequent"
        )
    standardise = False if per_client else data["standardise"]
    rows = {site: sites[site].rows or 0 for site in columns}
    if encoding == "number":
        return _number(name, columns, rows, fill if gap else None, bool(standardise))
    scale = standardise == WITH_CATEGORIES
    return _categories(name, columns, rows, encoding, fill if gap else None, scale)


def _categories(
    name: str,
    columns: Columns,
    rows: Mapping[str, int],
    encoding: str | Sequence[str],
    fill: Any,
    standardise: bool,
) -> Table:
    """The rule of categories. Rarer ones, which no site told, are 0 in all inputs of one_hot."""
    counts: Counter[str] = Counter()
    for site, column in columns.items():
        counts.update(counts_of(column, rows[site]))
    if not counts:
        raise _nothing_to_tell(name)
    numbers = all(number_name(value) == value for value in counts)
    values = in_order(counts, float if numbers else None)
    values = values if isinstance(encoding, str) else categories(encoding)
    kind = encoding if isinstance(encoding, str) else "ordinal"
    rule: dict[str, Any] = {"name": name, "kind": kind, "values": [*values]}
    if kind == "one_hot":
        rule["others"] = True
    if fill is not None:
        most = max(values, key=lambda value: counts[value])  # of several the first
        rule["fill"] = str(fill) if str(fill) in values else most
    if standardise:
        codes = np.arange(len(values))[:, None] if kind == "ordinal" else np.eye(len(values))
        codes = codes[:, kind == "dummy" :]
        fractions = np.array([counts[value] for value in values])[:, None] / counts.total()
        mean = (fractions * codes).sum(axis=0)
        std = np.sqrt((fractions * (codes - mean) ** 2).sum(axis=0))
        scale = {"mean": [_short(v) for v in mean], "std": [_short(v) or 1.0 for v in std]}
        rule |= {k: v[0] for k, v in scale.items()} if kind == "ordinal" else scale
    return rule


def _number(
    name: str, columns: Columns, rows: Mapping[str, int], fill: Any, standardise: bool
) -> Table:
    """The rule of a number: its fill and scale are about those of all rows together."""
    rule: dict[str, Any] = {"name": name, "kind": "number"}
    if fill is None and not standardise:
        return rule
    if fill == "most_frequent":
        raise DataError(
            f"data.missing: no site tells which number is most frequent in '{name}'; take median"
        )
    numbers = [k for place, column in columns.items() if (k := _numbers_of(column, rows[place]))]
    if not numbers:
        raise _nothing_to_tell(name)
    total = sum(site.rows for site in numbers)
    mean = sum(site.rows * site.mean for site in numbers) / total
    square = sum(site.rows * (site.variance + (site.mean - mean) ** 2) for site in numbers) / total
    if fill in FILLS:
        rule["fill"] = _short(mean if fill == "mean" else _median(numbers))
    elif fill is not None:
        rule["fill"] = float(fill)
    if standardise:
        rule |= {"mean": _short(mean), "std": _short(math.sqrt(square)) or 1.0}
    return rule


class _Numbers(NamedTuple):
    """About the numbers of a site's column: rows, mean, variance, and some of them that stand for
    all, each with its rows.
    """

    rows: float
    mean: float
    variance: float
    points: list[tuple[float, float]]


def _numbers_of(column: ColumnDescription, rows: int) -> _Numbers | None:
    if column.kind == "number":
        if column.mean is None or column.deviation is None:
            return None
        present = rows - (column.missing or 0)
        quantiles = [number for number in column.quantiles if number is not None]
        points = [(number, present / len(quantiles)) for number in quantiles]
        return _Numbers(present, column.mean, column.deviation**2, points)
    points = [(float(value), n) for value, n in counts_of(column, rows).items()]
    if not (total := sum(n for _, n in points)):
        return None
    mean = sum(number * n for number, n in points) / total
    variance = sum(n * (number - mean) ** 2 for number, n in points) / total
    return _Numbers(total, mean, variance, points)


def _median(numbers: Sequence[_Numbers]) -> float:
    """The number with half of all rows below it."""
    points = sorted(point for site in numbers for point in site.points)
    ends = itertools.accumulate(n for _, n in points)
    half = sum(n for _, n in points) / 2
    return next(number for (number, _), end in zip(points, ends, strict=True) if end >= half)


def _short(number: float) -> float:
    """A number with six digits, which a file can show."""
    return float(f"{number:.6g}")


def _nothing_to_tell(name: str) -> DataError:
    return DataError(
        f"column '{name}' has no value that a site may tell, because all are of few rows; leave it "
        "out: name the others in data.inputs"
    )
