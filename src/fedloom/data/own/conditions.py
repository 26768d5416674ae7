"""A target that is a condition on columns, "num > 0" or "age >= 65 and stage == 'III'".

pandas computes it. Before, Python's own parser checks that it has comparisons, arithmetic, and, or,
not, columns, numbers and texts, and nothing else: no call, no attribute, no name besides columns.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence

from fedloom.data.own.columns import Table, finite, first_line, present, short, text_cells
from fedloom.errors import DataError

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
    words = _words(condition)
    try:
        tree = ast.parse(_plain(condition, words), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _wrong(condition, first_line(error)) from None
    for node in ast.walk(tree):
        values = [v.value for v in ast.iter_child_nodes(node) if isinstance(v, ast.Constant)]
        are_plain = all(type(value) in (int, float, str) for value in values)
        on_texts = isinstance(node, ast.BinOp) and any(isinstance(value, str) for value in values)
        if not isinstance(node, _ALLOWED) or not are_plain or on_texts:
            raise _wrong(condition, f"it holds a {type(node).__name__}")
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    columns = {word: name for name, word in words.items()}
    return list(dict.fromkeys(columns.get(name, name) for name in names))


def with_condition(table: Table, condition: str, answers: Sequence[str]) -> Table:
    """The table with a column of the condition's name, whose cells are the first answer where it
    does not hold and the second where it does. Raises DataError naming file, column and row.
    """
    frame, words = table.frame[[]].copy(), _words(condition)
    kinds = {}
    for name in columns_in(condition):
        cells, word = present(table, name), words.get(name, name)
        kinds[word] = "texts" if len(text_cells(cells)) else "numbers"
        frame[word] = finite(cells) if kinds[word] == "numbers" else cells
    _refuse_other_kinds(table.where, condition, words, kinds)
    try:
        holds = frame.eval(_plain(condition, words), engine="python").astype(bool)
    except (TypeError, ValueError, AttributeError, NotImplementedError, KeyError) as error:
        raise _wrong(condition, f"{table.where}: {first_line(error)}") from None
    classes = holds.map({False: answers[0], True: answers[1]})
    return Table(table.where, table.frame.assign(**{condition: classes}))


def _refuse_other_kinds(
    where: str, condition: str, words: Mapping[str, str], kinds: Mapping[str, str]
) -> None:
    """Raise DataError for a comparison of numbers with texts, which no row would fulfil. kinds: of
    each column, "numbers" or "texts".
    """
    names = {word: name for name, word in words.items()}
    for node in ast.walk(ast.parse(_plain(condition, words), mode="eval")):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        for pair in itertools.pairwise(sides):
            one, other = (_kinds(side, kinds) for side in pair)
            if one and other and not one & other:
                side_names = [names.get(side, side) for side in map(ast.unparse, pair)]
                raise DataError(
                    f"target = {short(condition)}: in {where} {side_names[0]} is of {min(one)} and "
                    f"{side_names[1]} of {min(other)}, which never match; compare it with values "
                    "that this column has, numbers without quotes and texts with them"
                )


def _kinds(side: ast.expr, kinds: Mapping[str, str]) -> set[str]:
    """What one side of a comparison may be, "numbers" or "texts" or both. kinds: of columns."""
    if isinstance(side, ast.List | ast.Tuple):
        return {kind for each in side.elts for kind in _kinds(each, kinds)}
    if isinstance(side, ast.Constant):
        return {"texts" if isinstance(side.value, str) else "numbers"}
    return {kinds[side.id] if isinstance(side, ast.Name) else "numbers"}


def _words(condition: str) -> dict[str, str]:
    """A word for each column in back quotes."""
    names = dict.fromkeys(_QUOTED.findall(condition))
    return {name: f"column_{i}_" for i, name in enumerate(names)}


def _plain(condition: str, words: Mapping[str, str]) -> str:
    """The condition with these words."""
    return _QUOTED.sub(lambda match: words[match[1]], condition).strip()


def _wrong(condition: str, why: str) -> DataError:
    return DataError(
        f"target = {short(condition)} is no condition on columns ({why}); write it as in "
        "num > 0, or age >= 65 and stage == 'III' (a name with blanks in `back quotes`)"
    )
