"""Which files a table is read from, and which rows are for testing."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.data.own.columns import Table, at, joined, read_table, short
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series

FILE = "(file)"  # the column that says from which file a row is
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


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
    names = names_of(files) if several(path) else []
    tables = [read_table(file) for file in files]
    for table in tables:
        for name in needed:
            table.of(name)
        for one, other in ((tables[0], table), (table, tables[0])) if others else ():
            if lacking := [name for name in one.columns if name not in other.columns]:
                raise DataError(
                    f"{other.where} has no column '{lacking[0]}', which {one.where} has; give all "
                    "files the same columns, or name those to use in inputs="
                )
    if not several(path):
        return tables[0]
    for name, table in zip(names, tables, strict=True):
        table.frame[FILE] = name
    where = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{files[0]}, ..."
    return joined(tables, where)


def split_by_date(
    table: Table, date: str, test_from: str, client: str | None
) -> tuple[Table, Table]:
    """The rows before a date for training, and those from it on for testing.

    date: a column of dates as in 2024-03-31 or 2024-03-31 14:00. Raises DataError naming the row
    of a date that cannot be read, and for a side without rows.
    """
    import pandas

    def read(values: Any) -> Series:
        return pandas.to_datetime(values, format="ISO8601", errors="coerce", utc=True)

    cells = table.of(date)
    border, days = read(test_from), read(cells)
    if border is pandas.NaT:
        raise DataError(f"test_from = {short(test_from)} is no date; write it as in 2024-03-31")
    if len(wrong := cells[days.isna()]):
        raise DataError(
            f"{at(wrong)}: {short(wrong.iloc[0])} is no date; write dates as in 2024-03-31 or "
            "2024-03-31 14:00"
        )
    later = days >= border
    if later.all() or not later.any():
        lacking = "before" if later.all() else "on or after"
        raise DataError(
            f"{table.where} has no rows {lacking} {test_from} in column '{date}' (they go from "
            f"{days.min():%Y-%m-%d} to {days.max():%Y-%m-%d}); choose test_from between these"
        )
    train, test = Table(table.where, table.frame[~later]), Table(table.where, table.frame[later])
    absent = sorted({*test.of(FILE)} - {*train.of(FILE)}) if client == FILE else []
    if absent:
        raise DataError(
            f"client '{absent[0]}' has no rows before {test_from} in column '{date}', so nothing "
            "to train on; choose a later test_from, or leave its file out"
        )
    return train, test
