"""Which files a table is read from, and which rows are for testing."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fedloom.data.own.columns import Table, origin_of, read_table, short
from fedloom.errors import DataError, did_you_mean

FILE = "(file)"  # the column that says from which file a row is
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def is_path(value: Any) -> bool:
    """True for a path, a pattern, or a list of them."""
    return isinstance(value, str | os.PathLike | list | tuple)


def several(path: Paths) -> bool:
    """True if a path stands for several files: a list, or a pattern such as hospitals/*.csv."""
    if isinstance(path, str | os.PathLike):
        return glob.has_magic(os.fspath(path)) and not Path(path).is_file()
    return True


def files_of(path: Paths) -> list[Path]:
    """The files of a path, a pattern or a list, in order. Raises DataError if nothing matches."""
    if not isinstance(path, str | os.PathLike):
        if not path:
            raise DataError("path is an empty list; give at least one file")
        return [file for one in path for file in files_of(one)]
    if not several(path):
        if Path(path).is_dir():
            raise DataError(f"{path} is a folder; give the files in it, as in {path}/*.csv")
        return [Path(path)]
    found = sorted(map(Path, glob.glob(os.fspath(path), recursive=True)))
    if not found:
        raise DataError(
            f"no file matches '{path}' (seen from {os.getcwd()}); give path= files that are there"
        )
    return found


def names_of(files: Sequence[Path]) -> list[str]:
    """A name per file: without folder and ending, or with the folders where that is not enough.

    >>> names_of([Path("sites/lyon.csv"), Path("sites/bonn.csv")])
    ['lyon', 'bonn']
    >>> names_of([Path("sites/lyon/visits.csv"), Path("sites/bonn/visits.csv")])
    ['lyon/visits', 'bonn/visits']
    """
    if len(set(files)) < len(files):
        twice = Counter(files).most_common(1)[0][0]
        raise DataError(f"{twice} is given twice; every file is a client: name it once")
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        common = os.path.commonpath([file.parent.absolute() for file in files])
        names = [file.absolute().relative_to(common).with_suffix("").as_posix() for file in files]
    return names


def read_files(path: Paths, needed: Collection[str], others: bool) -> Table:
    """All rows of one file or of several; of several the column FILE has the names of the files.

    needed: columns that every file must have; others: every file must have the same columns. Those
    that all files have are kept. Raises DataError naming the file.
    """
    files = files_of(path)
    if not several(path):
        return read_table(files[0])
    tables = [read_table(file) for file in files]
    _check_alike(tables, needed, others)
    names = names_of(files)
    kept = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    columns: dict[str, list[Any]] = {
        name: [value for table in tables for value in table.of(name)] for name in kept
    }
    columns[FILE] = [
        name for name, table in zip(names, tables, strict=True) for _ in range(len(table))
    ]
    where = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{files[0]}, ..."
    return Table(where, columns, origin_of(tables))


def _check_alike(tables: Sequence[Table], needed: Collection[str], others: bool) -> None:
    """Raise DataError for a file that lacks a column, or has one more than the first."""
    first = tables[0]
    for table in tables:
        for name in needed:
            if name not in table.columns:
                raise DataError(
                    f"{table.where} has no column '{name}'; {did_you_mean(name, table.columns)}"
                )
        for one, other in ((first, table), (table, first)) if others else ():
            for name in one.columns:
                if name not in other.columns:
                    raise DataError(
                        f"{other.where} has no column '{name}', which {one.where} has; give all "
                        "files the same columns, or name those to use in inputs="
                    )


def split_by_date(
    table: Table, date: str, test_from: str, client: str | None
) -> tuple[Table, Table]:
    """The rows before a date for training, and those from it on for testing.

    date: a column of dates as in 2024-03-31 or 2024-03-31 14:00. Raises DataError naming the row
    of a date that cannot be read, and for a side without rows.
    """
    try:
        import pandas
    except ImportError as error:
        raise DataError(
            "to split by date needs pandas, which is missing; pip install fedloom[tables]"
        ) from error
    how = {"format": "ISO8601", "errors": "coerce", "utc": True}

    def read(values: Sequence[Any]) -> Any:
        return pandas.to_datetime(pandas.Series([*values], dtype=object), **how)

    border = read([test_from])[0]
    if border is pandas.NaT:
        raise DataError(f"test_from = {short(test_from)} is no date; write it as in 2024-03-31")
    values = table.of(date)
    days = read(values)
    if bool(days.isna().any()):
        row = int(days.isna().to_numpy().argmax())
        raise DataError(
            f"{table.at(date, row)}: {short(values[row])} is no date; write dates as in 2024-03-31 "
            "or 2024-03-31 14:00"
        )
    later = (days >= border).to_numpy()
    if later.all() or not later.any():
        lacking = "before" if later.all() else "on or after"
        raise DataError(
            f"{table.where} has no rows {lacking} {test_from} in column '{date}' (they go from "
            f"{days.min():%Y-%m-%d} to {days.max():%Y-%m-%d}); choose test_from between these"
        )
    parts = table.taken(~later), table.taken(later)
    if client == FILE:
        _check_trained(*parts, f"before {test_from} in column '{date}'")
    return parts


def _check_trained(train: Table, test: Table, when: str) -> None:
    """Refuse files without training rows."""
    known = set(train.of(FILE))
    absent = sorted({str(name) for name in test.of(FILE) if name not in known})
    if absent:
        raise DataError(
            f"client '{absent[0]}' has no rows {when}, so nothing to train on; choose a later "
            "test_from, or leave its file out"
        )
