"""Rows that two sites have, counted where the tables of all lie together."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ...core.strict_json import PLAIN, Examples
from .cells import empty, number_name
from .columns import Table

Value = Annotated[str, Field(max_length=200, pattern=PLAIN)]
Row = tuple[str, ...]


class Duplicates(BaseModel):
    """Rows of a site that others have, too. columns: by which rows are alike; shared: by another
    site's name how many rows both have, None: below the least count.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    columns: list[Value] = Field(max_length=10_000)
    shared: dict[Value, Examples | None] = {}


def rows_of(table: Table, columns: Sequence[str], by_identity: bool) -> set[Row]:
    """A table's rows as they are compared. by_identity: the columns say who somebody is, and a row
    with an empty cell among them says it of nobody.
    """
    rows = zip(*(_plain(table, name) for name in columns), strict=True)
    return {row for row in rows if (all if by_identity else any)(row)}


def _plain(table: Table, name: str) -> list[str]:
    """A column's cells as they are compared: numbers by their value, texts without the difference
    of small letters, blanks and forms of a letter; "" of an empty one.
    """
    cells, gaps = table.of(name), empty(table.of(name))

    def of(cell: Any) -> str:
        text = " ".join(unicodedata.normalize("NFKC", str(cell)).casefold().split())
        return number_name(cell) or text

    return ["" if gap else of(cell) for cell, gap in zip(cells, gaps, strict=True)]


def shared_rows(rows: Mapping[str, set[Row]], least: int) -> dict[str, dict[str, int | None]]:
    """{site: {another site: how many rows both have, None below the least count}}."""
    counts: dict[str, dict[str, int | None]] = {name: {} for name in rows}
    for one, other in itertools.combinations(rows, 2):
        count = len(rows[one] & rows[other])
        counts[one][other] = counts[other][one] = count if count >= least else None
    return counts
