"""Text files of data sets; errors name the damaged file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedloom.core.parsing import decoded, parse_json
from fedloom.errors import DataError


def read_text(path: Path) -> str:
    """A text file in UTF-8, with or without a byte order mark. Raises DataError if it is missing or
    in another encoding.
    """
    try:
        return decoded(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} {error}, or get the file again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path) -> Any:
    """A JSON file. Raises DataError for one that is cut short or no JSON."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is no whole JSON file: {error}; get it again") from error


def read_rows(path: Path, columns: int | None = None, tabs: bool = False) -> Iterator[list[str]]:
    """The rows of a CSV file, or of one with tabs and without quotes; empty lines are left out.

    columns: how many every row must have; None: as many as the first. Raises DataError naming the
    line.
    """
    text = read_text(path)
    if tabs:
        rows: Iterator[list[str]] = (line.split("\t") for line in text.split("\n"))
    else:
        rows = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        for number, row in enumerate(rows, start=1):
            if not any(row):
                continue
            columns = columns or len(row)
            if len(row) != columns:
                raise DataError(
                    f"{path}, row {number}: {len(row)} columns, expected {columns}; the file is "
                    "cut short or altered: get it again"
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{path} is no whole CSV file: {error}; get it again") from error
