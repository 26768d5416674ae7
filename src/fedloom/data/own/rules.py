"""Agreed rules of a table's columns: a list that a file can hold, and every site applies alike.

[[data.rules]]
name = "ward"
kind = "one_hot"                        # number, the default; one_hot; ordinal
values = ["Chirurgie", "Innere"]        # of texts, in order
fill = "Innere"                         # for an empty cell; without it such a cell is an error

A number may have mean and std, which are taken off and divided by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.parsing import shortened
from fedloom.data.own.columns import name_of, number_name
from fedloom.data.own.preparation import KINDS, Column, Preparation, categories
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError, did_you_mean, unknown

Rules = Sequence[Mapping[str, Any]]
_PLAIN: dict[str, Any] = {"values": [], "fill": None, "mean": 0.0, "std": 1.0}
_KEYS = ("name", "kind", *_PLAIN)


def preparation_of(rules: Rules) -> Preparation:
    """How these rules make inputs of a table. Raises DataError naming the column."""
    columns = [_column(rule) for rule in rules]
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


def _column(rule: Mapping[str, Any]) -> Column:
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
