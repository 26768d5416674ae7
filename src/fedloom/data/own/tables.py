"""The user's own tables: CSV or Parquet files, with a client column or a client per file."""

from __future__ import annotations

import glob
import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import (
    Table,
    at,
    distinct_names,
    joined,
    labels_of,
    name_of,
    numbers_of,
    places,
    present,
    read_table,
    short,
    words_of,
)
from fedloom.data.own.preparation import (
    Rules,
    fit,
    no_rule,
    preparation_of,
    refuse_besides,
    text_cells,
)
from fedloom.data.partition.without_labels import natural
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.data.transforms import Images
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series


FILE = "(file)"  # the column that says from which file a row is
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_log = logging.getLogger(__name__)


def table(
    partition: Partition | Paths | None = None,
    seed: int = 0,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "",
    target: str = "label",
    client: str | None = None,
    inputs: Sequence[str] = (),
    text: str | None = None,
    test: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    length: int = 64,
    vocabulary: int = 20_000,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    missing: str | float | Mapping[str, str | float] | None = None,
    standardise: bool = False,
    date: str | None = None,
    test_from: str | None = None,
    rules: Rules = (),
    class_names: Sequence[str] = (),
) -> FederatedData:
    """Load CSV or Parquet files of yours, a row per sample.

    path: a file; or a pattern such as "hospitals/*.csv" or a list, and then every file is a client
    of its name; in Python it may come first. client: the column that says whose a row is; partition
    natural (the default then) makes a client of each, any other partition ignores it. target: whole
    numbers are labels from 0, texts are classes, other numbers are for regression. inputs: columns
    of numbers, by default all others; or text: one column of texts, as numbers of words (n, length)
    with a vocabulary made of the training rows, as in `ag_news`. test: files with the same columns;
    where they say whose a row is, every client is also measured on its own rows. Or date, a column,
    and test_from: rows from that day on are the test set.

    columns: what a column of texts becomes: one_hot, ordinal, or its values in order; "*" stands
    for all others. missing: what stands for an empty cell: mean, median, most_frequent or a value,
    for all or by column; where a number is given for all, texts take the most frequent one.
    standardise: numbers less their mean, divided by their standard deviation. All of it is found in
    the training rows; or rules, a list with an entry for each column (see
    fedloom.data.own.preparation), and class_names say it beforehand, so that columns mean the same
    at every place. Raises DataError naming file, column and row.
    """
    partition, path = _sorted_out(partition, path)
    how = preparation_of(rules) if rules else None
    if how is not None:
        given = {"inputs": inputs, "text": text, "columns": columns, "missing": missing}
        refuse_besides(given | {"standardise": standardise})
        inputs = [column.name for column in how.columns]
    if several(path) and client is None:
        client = FILE
    if text is not None and inputs:
        raise DataError("inputs and text are both given; keep one of them")
    used = [*inputs, *([] if text is None else [text])]
    needed = [c for c in (target, date, client, *used) if c not in (None, FILE)]
    tables = _tables(path, test, (needed, not used), client, (date, test_from))
    refuse_ownerless(client, partition)
    names = list(inputs) or [c for c in tables[0].columns if c not in (target, client, date, FILE)]
    if text is None and not names:
        raise DataError(f"{path} has no columns besides {target} and {client}; nothing to learn of")

    about: dict[str, Any] = {"target": target}
    raw: Raw
    if how is None and text is None and (columns or missing is not None or standardise):
        how = fit(tables[0], names, columns or {}, missing, standardise)
    if how is not None:
        made, raw = [how.of(part) for part in tables], how
        about |= {"prepared": lines} if (lines := how.said()) else {}
    elif text is not None:
        made, raw = words_of(tables, text, length, vocabulary)
    else:
        made, raw = _plain(tables, names), Columns(tuple(names))
    dealing = (_called(path), tables, made, target, client, partition, seed, about)
    return dealt(*dealing, raw=raw, class_names=class_names)


def _sorted_out(partition: Any, path: Paths) -> tuple[Partition | None, Paths]:
    """Partition and path, if the path came first."""
    if isinstance(partition, str | os.PathLike | list | tuple):
        if path:
            raise DataError(f"two paths are given, {partition} and {path}; give a list of files")
        partition, path = None, partition
    if not path:
        raise DataError("table needs path=, a CSV or Parquet file with a header")
    return partition, path


def _called(path: Paths) -> str:
    """The name of the data set: the file's, or of several their folder's."""
    first = files_of(path)[0]
    return first.absolute().parent.name if several(path) else first.stem


def _tables(
    path: Paths,
    test: Paths | None,
    kept: tuple[Sequence[str], bool],
    client: str | None,
    split: tuple[str | None, str | None],
) -> list[Table]:
    """The training rows and, if there are any, the test rows. kept: see read_files; split: date,
    test_from."""
    whole, (date, test_from) = read_files(path, *kept), split
    if (date is None) != (test_from is None):
        raise DataError(
            "date and test_from go together: the column of dates, and the first day of the test set"
        )
    if date is not None and test_from is not None:
        if test is not None:
            raise DataError("test and test_from are both given; keep one of them")
        return [*split_by_date(whole, date, test_from, client)]
    if test is None:
        return [whole]
    own = [name for name in kept[0] if name != client]  # a test file may have no clients
    tests = read_files(test, own, kept[1])
    names = set(whole.of(client)) if client == FILE and FILE in tests.columns else set()
    if names and not names & set(tests.of(FILE)):
        raise DataError(
            f"no file of test = {test} is called as one of path = {path}; give a client's files "
            "the same name"
        )
    return [whole, tests]


def _plain(tables: Sequence[Table], names: Sequence[str]) -> list[Tensor]:
    """Columns of every table as numbers, as they are."""
    for name in names:
        if len(found := text_cells(tables[0].of(name))):
            raise no_rule(found)
    return [numbers_of(part, names) for part in tables]


def refuse_ownerless(client: str | None, partition: Partition | None) -> None:
    """Raise DataError if nothing says whose a row is."""
    if client is None and partition is None:
        raise DataError("give client=, the column that says whose a row is, or a partition")


def targets_of(
    tables: Sequence[Table], name: str, classes: Sequence[str] = ()
) -> tuple[list[Tensor], tuple[str, ...]]:
    """The targets of every table and the names of the classes, which are the first table's if they
    are not given. Raises DataError.
    """
    first, known = labels_of(tables[0], name, classes)
    targets = [first, *(labels_of(table, name, known)[0] for table in tables[1:])]
    if targets[-1].dtype != first.dtype:
        raise DataError(
            f"column '{name}' holds {first.dtype} in {tables[0].where} and {targets[-1].dtype} in "
            f"{tables[-1].where}; write both alike"
        )
    return targets, known


def dealt(
    name: str,
    tables: Sequence[Table],
    inputs: Sequence[Tensor],
    target: str,
    client: str | None,
    partition: Partition | None,
    seed: int,
    details: dict[str, Any],
    transform: Images | None = None,
    raw: Raw | None = None,
    class_names: Sequence[str] = (),
) -> FederatedData:
    """Divide the rows of a training table and perhaps a test table among clients."""
    targets, classes = targets_of(tables, target, class_names)
    owners = tests = None
    names: tuple[str, ...] = ()
    if client is not None:
        cells = present(tables[0], client).map(name_of)
        names = distinct_names(cells)
        owners = places(cells, names)
        details |= {"client_names": list(names)} if len(names) <= 1000 else {}
        by_client = partition is None or isinstance(partition, natural)
        if by_client and len(tables) > 1 and client in tables[1].columns:
            tests = _test_owners(tables[1], client, names)
    arrays = Arrays(
        name=name,
        inputs=inputs[0],
        targets=targets[0],
        test_inputs=inputs[1] if len(inputs) > 1 else None,
        test_targets=targets[1] if len(targets) > 1 else None,
        owners=owners,
        test_owners=tests,
        by="clients",
        owner_names=names,
        class_names=classes,
        transform=transform,
        raw=raw,
        details=details,
    )
    return arrays.divided(natural() if partition is None else partition, seed)


def _test_owners(test: Table, client: str, names: Sequence[str]) -> Tensor:
    """The client of each test row; -1, and a warning, for one that does not train."""
    cells = present(test, client)
    owners = places(cells.map(name_of), names)
    absent = cells[(owners < 0).numpy()]
    if len(absent) == len(cells):
        raise DataError(
            f"{test.where}: no row is of a client that trains (the first is of "
            f"{short(cells.iloc[0])}); name the same clients, or leave out the column '{client}', "
            "and all rows are one test set"
        )
    if len(absent):
        others = sorted({*map(str, absent)})
        some = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        _log.warning(
            "%s: %d of %d test rows are left out: they are of clients without rows to train on, %s",
            *(test.where, len(absent), len(cells), some),
        )
    return owners


# --------------------------------------------------- which files, and which rows are for testing
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
