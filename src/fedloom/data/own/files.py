"""Which files a path stands for, what they are called, and their rows together."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.user_paths import user_path
from fedloom.data.own.columns import Table, join_tables
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series

FILE = "(file)"  # the column that says from which file a row is
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Places = np.ndarray[Any, np.dtype[np.intp]]
COMPRESSED = (".gz", ".bz2", ".xz")


def several(path: Paths) -> bool:
    """True if a path stands for several files: a list, or a pattern such as hospitals/*.csv."""
    if isinstance(path, str | os.PathLike):
        return glob.has_magic(os.fspath(path)) and not user_path(path).is_file()
    return True


def files_of(path: Paths) -> list[Path]:
    """The files of a path, a pattern or a list, in order. Raises DataError if nothing matches."""
    if not isinstance(path, str | os.PathLike):
        if not path:
            raise DataError("path is an empty list; give at least one file")
        return [file for one in path for file in files_of(one)]
    full_path = user_path(path)
    if not several(path):
        if full_path.is_dir():
            raise DataError(f"{path} is a folder; give the files in it, as in {path}/*.csv")
        return [full_path]
    files = sorted(map(Path, glob.glob(str(full_path), recursive=True)))
    if not files:
        raise DataError(
            f"no file matches '{path}' (seen from {os.getcwd()}); give path= files that are there"
        )
    return files


def stem(file: Path) -> str:
    """A file's name without folder and ending, and without that of its compression.

    >>> stem(Path("sites/lyon.csv")), stem(Path("sites/lyon.csv.gz"))
    ('lyon', 'lyon')
    """
    return file.with_suffix("").stem if file.suffix in COMPRESSED else file.stem


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
    names = [*map(stem, files)]
    if len(set(names)) < len(names):
        common = os.path.commonpath([file.parent.absolute() for file in files])
        paths = [file.absolute().relative_to(common) for file in files]
        names = [path.with_name(stem(path)).as_posix() for path in paths]
    return names


def joined_files(
    path: Paths, tables: Sequence[Table], required: Collection[str], others: bool
) -> Table:
    """The rows of a path's files, one after the other, in the columns that all have; of several the
    column FILE has the names of the files. required: columns that every file must have; others:
    every file must have the same columns. Raises DataError naming the file.
    """
    for table in tables:
        for name in required:
            table.of(name)
        for one, other in ((tables[0], table), (table, tables[0])) if others else ():
            if lacking := [name for name in one.columns if name not in other.columns]:
                raise DataError(
                    f"{other.where} has no column '{lacking[0]}', which {one.where} has; give all "
                    "files the same columns, or name those to use in inputs="
                )
    if not several(path):
        return tables[0]
    for name, table in zip(names_of(files_of(path)), tables, strict=True):
        table.frame[FILE] = name
    where = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{tables[0].where}, ..."
    return join_tables(tables, where)


def parts_of(table: Table, clients: Series | None) -> dict[str, tuple[Places, Table]]:
    """The places and the rows of each client by its name, which errors name by its file, or by its
    name where a column has that. clients: whose each row is (n,); None: all are one's, "".
    """
    if clients is None:
        return {"": (np.arange(len(table.frame)), table)}
    parts = {}
    for name, rows in table.frame.groupby(clients.to_numpy()).indices.items():
        frame = table.frame.take(rows)
        file = frame.index[0][0]
        where = file if clients.name == FILE else f"{file}, client '{name}'"
        parts[str(name)] = rows, Table(where, frame)
    return parts
