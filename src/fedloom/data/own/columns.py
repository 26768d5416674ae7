"""Tables, and their columns as tensors for engines: numbers, labels, texts, owners; and a
target that is a condition, "num > 0" or "age >= 65 and stage == 'III'".

pandas computes a condition. Before, Python's own parser checks that it has comparisons, arithmetic,
and, or, not, columns, numbers and texts, and nothing else: no call, no attribute, no other name.
"""

from __future__ import annotations

import ast
import itertools
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.extras import need
from fedloom.core.parsing import shortened
from fedloom.data.own.cells import (
    CellError,
    Floats,
    empty,
    finite_numbers,
    is_number,
    name_of,
    number_name,
)
from fedloom.data.raw_inputs import Words, by_frequency, padded
from fedloom.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_log = logging.getLogger(__name__)
_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a file, of several, or of a data set. where: its name in errors; frame: the cells as
    they were read, of CSV as texts, with the file and the row of each as the index.
    """

    where: str
    frame: DataFrame

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame)

    def of(self, name: str) -> Series:
        """The cells of a column (n,). Raises DataError if there is none of this name."""
        if name not in self.frame:
            raise no_column(self.where, name, self.columns)
        return self.frame[name]


def no_column(where: str, name: str, names: Iterable[str]) -> DataError:
    """The error for a table that lacks a column."""
    names = list(names)
    hint = did_you_mean(name, names)
    if names and all(map(is_number, names)):
        hint = f"its first row, {', '.join(names[:5])}, holds no names: give names = [...] for all"
    return DataError(f"{where} has no column '{name}'; {hint}")


def at(cells: Series) -> str:
    """The place of the first of some cells, for errors."""
    where, row = cells.index[0]
    return f"{where}, column '{cells.name}', row {row + 1}"


def as_table(where: str, columns: Mapping[str, Iterable[Any]]) -> Table:
    """A table of columns of equal length. Raises DataError without pandas."""
    pandas = need("pandas", f"to read {where}", "tables", DataError)
    frame = pandas.DataFrame(dict(columns), dtype=object)
    frame.index = pandas.MultiIndex.from_product([[where], range(len(frame))])
    return Table(where, frame)


def join_tables(tables: Sequence[Table], where: str) -> Table:
    """The rows of some tables, one table after the other, in the columns that all have."""
    import pandas

    return Table(where, pandas.concat([table.frame for table in tables], join="inner"))


def first_line(error: Exception) -> str:
    """The first line of an error."""
    return str(error).partition("\n")[0]


def short(value: Any) -> str:
    """A value for an error."""
    return shortened(repr(value))


def refuse_commas(texts: Series) -> None:
    """Raise DataError for texts that all are numbers with a decimal comma."""
    if len(texts) and texts.map(lambda cell: _COMMA.fullmatch(str(cell)) is not None).all():
        raise DataError(f"{at(texts)}: {odd(texts.iloc[0])}")


def odd(value: Any) -> str:
    """What a cell is that people take for a number, and what to do; empty if nothing is known."""
    if _COMMA.fullmatch(str(value)):
        return f'{short(value)} has a decimal comma; give decimal = ","'
    if re.match(r"\s*(\d{4}-\d\d?-\d|\d\d?[./]\d\d?[./]\d\d)", str(value)):
        return f"{short(value)} is a date; leave the column out of inputs, or write days since one"
    return ""


def not_finite(cells: Series) -> DataError:
    """The error for the first of some cells, which is no finite number."""
    first = cells.iloc[0]
    return DataError(f"{at(cells)}: {odd(first) or f'{short(first)} is no finite number'}")


def finite(cells: Series) -> Floats:
    """Cells as numbers (n,). Raises DataError naming the first that is no finite number."""
    try:
        return finite_numbers(cells.to_numpy())
    except CellError as error:
        raise not_finite(cells[error.row :]) from None


def text_cells(cells: Series) -> Series:
    """The cells that are texts and no numbers; none if they are at most half of the nonempty."""
    nonempty = cells[~empty(cells)]
    try:
        nonempty.to_numpy(dtype=np.float64)
        return nonempty[:0]
    except (TypeError, ValueError, OverflowError):
        texts = nonempty[[isinstance(cell, str) and not is_number(cell) for cell in nonempty]]
    return texts if 2 * len(texts) > len(nonempty) else nonempty[:0]


def numbers_of(table: Table, names: Sequence[str]) -> Tensor:
    """Columns of numbers, (n, columns) float32; one column of lists as (n, ...). Raises DataError
    naming column and row for what is no finite number.
    """
    cells = [table.of(name) for name in names]
    first = cells[0].iloc[0]
    if (
        len(cells) == 1
        and hasattr(first, "__len__")
        and not isinstance(first, (str, bytes, Mapping))
    ):
        return _lists(cells[0])
    return torch.from_numpy(np.stack([*map(finite, cells)], axis=1).astype(np.float32))


def _lists(cells: Series) -> Tensor:
    """A column of lists of numbers, all of one shape: integers as int64, others as float32."""
    shape, rows = np.shape(cells.iloc[0]), []
    for row, value in enumerate(cells):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"{at(cells[row:])} is not one array: {error}") from error
        if array.dtype.kind not in "fiub" or array.shape != shape:
            raise DataError(
                f"{at(cells[row:])} has shape {array.shape} and type {array.dtype}; all rows must "
                f"be numbers of shape {shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{at(cells[row:])} holds NaN or infinity")
        rows.append(array)
    whole = np.stack(rows)
    return torch.from_numpy(whole.astype(np.float32 if whole.dtype.kind == "f" else np.int64))


def in_order(names: Iterable[str], number: Callable[[str], float] | None) -> tuple[str, ...]:
    """Distinct names in ascending order: of the numbers that they stand for, or of texts (None)."""
    return tuple(sorted(set(names), key=lambda name: (number(name) if number else 0, name)))


def distinct_names(names: Series) -> tuple[str, ...]:
    """The names of clients or classes in order: whole numbers as numbers, others as texts."""
    distinct = names.unique().tolist()
    whole = all(re.fullmatch("-?[0-9]{1,18}", name) for name in distinct)
    return in_order(distinct, int if whole else None)


def warn_of_look_alikes(where: str, names: Iterable[str]) -> None:
    """Say which distinct names differ by capitals, blanks or the form of a number alone."""
    by_key: dict[str, list[str]] = {}
    for name in names:
        key = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        by_key.setdefault(number_name(name) or key, []).append(short(name))
    if repeated := [" and ".join(same) for same in by_key.values() if len(same) > 1]:
        _log.warning(
            "%s: %s%s differ by capitals, blanks or the form of a number alone and count as "
            "different; if they are one, write them alike",
            *(where, "; ".join(repeated[:5]), "; ..." * (len(repeated) > 5)),
        )


def indices_in(names: Series, order: Iterable[str]) -> Tensor:
    """Where names stand in this order, (n,) int64; -1 for an unknown name."""
    positions = names.map({name: i for i, name in enumerate(order)})
    return torch.tensor(positions.fillna(-1).to_numpy(dtype=np.int64))


def present(table: Table, name: str) -> Series:
    """A column of labels or clients. Raises DataError naming the row of a missing value."""
    cells = table.of(name)
    if len(missing := cells[cells.isna() | (cells == "")]):
        raise DataError(f"{at(missing)} is empty; take such rows out of the table, or fill them in")
    return cells


def labels_of(
    table: Table, name: str | Sequence[str], classes: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """A target column: whole numbers from 0 as labels, other numbers as they are (n,) float32 for
    regression, texts as classes in ascending order, whose names are handed back. Several columns
    are numbers (n, columns) float32.

    Raises DataError naming the row for a label below 0, a class that the training data lack, and
    what is no finite number.
    """
    if not isinstance(name, str):
        return numbers_of(table, name), ()
    if twice := next((c for i, c in enumerate(classes) if c in classes[:i]), None):
        raise DataError(f"class_names has '{twice}' twice; each class needs a name of its own")
    cells = present(table, name)
    if not classes and is_number(cells.iloc[0]):  # a later one that is not is an error
        numbers = torch.from_numpy(finite(cells).astype(np.float32))
        if not bool((numbers == numbers.round()).all()) or any("." in str(v) for v in cells):
            return numbers, ()
        labels = numbers.long()
        if len(wrong := cells[(labels < 0).numpy()]):
            raise DataError(
                f"{at(wrong)}: label {int(float(wrong.iloc[0]))}; labels are 0, 1, 2, ...; for "
                "regression write numbers with a point"
            )
        return labels, ()
    names = cells.map(name_of)
    class_names = tuple(classes) or distinct_names(names)
    if not classes:
        warn_of_look_alikes(f"{table.where}, column '{name}'", class_names)
    labels = indices_in(names, class_names)
    if len(wrong := cells[(labels < 0).numpy()]):
        raise DataError(
            f"{at(wrong)}: class {wrong.iloc[0]!r} is none of {', '.join(class_names[:10])}, those "
            "of the training data or of class_names; correct the cell, or take the row out"
        )
    return labels, class_names


def words_of(
    tables: Sequence[Table], name: str, length: int, vocabulary: int
) -> tuple[list[Tensor], Words]:
    """A column of texts of every table as numbers of words (n, length) int64, by the most frequent
    words of the first table. Raises DataError naming the row for what is no text.
    """
    columns = [table.of(name) for table in tables]
    for cells in columns:
        if len(wrong := cells[[not isinstance(cell, str) for cell in cells]]):
            raise DataError(f"{at(wrong)} is a {type(wrong.iloc[0]).__name__}, no text")
    word_numbers = by_frequency(columns[0], vocabulary)
    return [padded(cells, word_numbers, length) for cells in columns], Words(word_numbers, length)


ANSWERS = ("no", "yes")  # the classes of a condition without class_names
_ALLOWED = (
    *(ast.Expression, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Name, ast.Load, ast.Constant),
    *(ast.List, ast.Tuple),
)
_QUOTED = re.compile("`([^`]+)`")  # a column whose name is no word, as in pandas


def is_condition(target: str, columns: Sequence[str]) -> bool:
    """Whether a target is no column of these and compares something."""
    return target not in columns and bool(re.search(r"[<>]|[=!]=|\bin\b", target))


def columns_in(condition: str) -> list[str]:
    """The columns that a condition names. Raises DataError for anything that is not allowed."""
    return [*_parsed(condition)[1].values()]


def _parsed(condition: str) -> tuple[ast.Expression, dict[str, str]]:
    """A condition by Python's parser, and the column of each of its words."""
    quoted = {name: f"column_{i}_" for i, name in enumerate(_QUOTED.findall(condition))}
    try:
        plain = _QUOTED.sub(lambda match: quoted[match[1]], condition).strip()
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _wrong(condition, first_line(error)) from None
    for node in ast.walk(tree):
        values = [v.value for v in ast.iter_child_nodes(node) if isinstance(v, ast.Constant)]
        are_plain = all(type(value) in (int, float, str) for value in values)
        on_texts = isinstance(node, ast.BinOp) and any(isinstance(value, str) for value in values)
        if not isinstance(node, _ALLOWED) or not are_plain or on_texts:
            raise _wrong(condition, f"it holds a {type(node).__name__}")
    columns = {word: name for name, word in quoted.items()}
    words = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tree, {word: columns.get(word, word) for word in words}


def with_condition(table: Table, condition: str, answers: Sequence[str]) -> Table:
    """The table with a column of the condition's name, whose cells are the first answer where it
    does not hold and the second where it does. Raises DataError naming file, column and row.
    """
    if len({*answers}) != 2 or len(answers) != 2:
        raise DataError(
            f"class_names = {[*answers]}: target = {short(condition)} has two classes; give two "
            "names, first that of the rows for which it does not hold"
        )
    frame, (tree, columns) = table.frame[[]].copy(), _parsed(condition)
    kinds = {}
    for word, name in columns.items():
        cells = present(table, name)
        kinds[word] = "texts" if len(text_cells(cells)) else "numbers"
        frame[word] = finite(cells) if kinds[word] == "numbers" else cells
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        for pair in itertools.pairwise(sides):
            one, other = (_kinds(side, kinds) for side in pair)
            if one and other and not one & other:  # no row would fulfil it
                first, second = (columns.get(side, side) for side in map(ast.unparse, pair))
                raise DataError(
                    f"target = {short(condition)}: in {table.where} {first} is of {min(one)} and "
                    f"{second} of {min(other)}, which never match; compare it with values that "
                    "this column has, numbers without quotes and texts with them"
                )
    try:
        holds = frame.eval(ast.unparse(tree), engine="python").astype(bool)
    except (TypeError, ValueError, AttributeError, NotImplementedError, KeyError) as error:
        raise _wrong(condition, f"{table.where}: {first_line(error)}") from None
    classes = holds.map({False: answers[0], True: answers[1]})
    return Table(table.where, table.frame.assign(**{condition: classes}))


def _kinds(side: ast.expr, kinds: Mapping[str, str]) -> set[str]:
    """What one side of a comparison may be, "numbers" or "texts" or both. kinds: of columns."""
    if isinstance(side, ast.List | ast.Tuple):
        return {kind for each in side.elts for kind in _kinds(each, kinds)}
    if isinstance(side, ast.Constant):
        return {"texts" if isinstance(side.value, str) else "numbers"}
    return {kinds[side.id] if isinstance(side, ast.Name) else "numbers"}


def _wrong(condition: str, why: str) -> DataError:
    return DataError(
        f"target = {short(condition)} is no condition on columns ({why}); write it as in "
        "num > 0, or age >= 65 and stage == 'III' (a name with blanks in `back quotes`)"
    )
