"""Cells of a table as a model's inputs, by rules: dictionaries that JSON and TOML can hold.

{"name": "ward", "kind": "one_hot", "values": ["A", "B"], "fill": "A"}

kind: number; one_hot, an input for each value; dummy, for each but the first; ordinal, the place in
values. fill: for an empty cell. mean, std: taken off and divided by, of one_hot and dummy a list
with one for each input. others: an unknown value is 0 in all inputs. An export adds empty, texts
that mark an empty cell, and recode, {cell: what is read in its place}.

Training and exported models both use this file: an export has a copy, which needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

# what an empty cell is written as
EMPTY = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL"})
LARGEST = float(np.finfo(np.float32).max)
Cells = np.ndarray[Any, np.dtype[Any]]  # (n,) of objects
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class CellError(ValueError):
    """A cell that becomes no input. row: from 0; why: "empty", "number" or "category"."""

    def __init__(self, row: int, why: str, message: str) -> None:
        super().__init__(message)
        self.row, self.why = row, why


def inputs(cells: Cells, rule: Mapping[str, Any], strict: bool = False) -> Floats:
    """The inputs (n, k) of a column's cells. strict: an unknown value of one_hot is an error, as it
    is of dummy and ordinal, unless the rule has `others`. Raises CellError.
    """
    cells, fill, kind = recoded(cells, rule), rule["fill"], rule["kind"]
    gaps = empty(cells, rule.get("empty", EMPTY))
    if gaps.any():
        if fill is None:
            row = int(gaps.argmax())
            message = f"{cells[row] or 'it'} is empty, and in training no such cell was"
            raise CellError(row, "empty", f"{message}; fill it")
        cells = np.where(gaps, np.array(fill, object), cells)
    if kind == "number":
        numbers = finite_numbers(cells)[:, None]
    else:
        codes = category_codes(cells, rule)
        unknown, zeros = codes < 0, not strict or rule.get("others", False)
        if unknown.any() and not (kind == "one_hot" and zeros):
            row = int(unknown.argmax())
            message = f"{cells[row]!r} is none of {', '.join(rule['values'])}"
            raise CellError(row, "category", message)
        numbers = codes[:, None].astype(np.float64)
        if kind != "ordinal":
            numbers = (numbers == np.arange(kind == "dummy", len(rule["values"]))).astype(float)
    scaled: Floats = (numbers - np.array(rule["mean"])) / np.array(rule["std"])
    return scaled


def recoded(cells: Cells, rule: Mapping[str, Any]) -> Cells:
    """Cells with what is read in their place."""
    if not (other := rule.get("recode")):
        return cells
    return np.fromiter((other.get(name_of(cell), cell) for cell in cells), object, len(cells))


def empty(cells: Cells, markers: Container[str] = EMPTY) -> Bools:
    """Which cells (n,) are missing values."""
    return np.fromiter((_is_empty(cell, markers) for cell in cells), bool, len(cells))


def _is_empty(cell: Any, markers: Container[str]) -> bool:
    if isinstance(cell, str):
        return cell in markers
    if cell is None or isinstance(cell, float | int):
        return cell is None or cell != cell
    return not hasattr(cell, "__len__") and str(cell) in ("nan", "NaT", "<NA>")


def finite_numbers(cells: Cells) -> Floats:
    """Cells as numbers (n,). Raises CellError for the first that is no finite one of float32."""
    try:
        numbers: Floats = cells.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([float(cell) if is_number(cell) else math.nan for cell in cells])
    if (wrong := ~(np.abs(numbers) <= LARGEST)).any():  # NaN is not
        row = int(wrong.argmax())
        raise CellError(row, "number", f"{cells[row]!r} is no finite number")
    return numbers


def category_codes(cells: Cells, rule: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Places among a rule's values (n,), -1 of another; among numbers 1, "1.0", " 01 " are one."""
    positions = {value: code for code, value in enumerate(rule["values"])}
    numeric = all(number_name(value) == value for value in positions if value != rule["fill"])
    names = [name_of(cell) for cell in cells]
    codes = {name: positions.get((numeric and number_name(name)) or name, -1) for name in {*names}}
    return np.array([codes[name] for name in names], dtype=np.int64)


def is_number(value: Any) -> bool:
    """True for what Python reads as a number, also as an infinite one."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def name_of(value: Any) -> str:
    """A value as a name; 3.0, which tables make of 3 beside missing values, is 3."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def number_name(value: Any) -> str | None:
    """A finite number as the one text that stands for it; None for anything else.

    >>> number_name("1.0"), number_name(" 01 "), number_name(0.50), number_name("I")
    ('1', '1', '0.5', None)
    """
    text = str(value).strip()
    if not is_number(text) or not math.isfinite(number := float(text)) or "_" in text:
        return None
    return str(int(text)) if text.lstrip("+-").isdecimal() else name_of(number)  # of any length
