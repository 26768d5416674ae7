"""The user's own tables: CSV, Excel or Parquet files, with a client column or a client per file;
and which of their rows are for testing: other files, or a share of each one's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from fedloom.core.hyper import NonNegativeInt, ShareBelow1
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.own.cells import Bools, empty, name_of
from fedloom.data.own.columns import (
    ANSWERS,
    Table,
    columns_in,
    distinct_names,
    indices_in,
    is_condition,
    join_tables,
    labels_of,
    numbers_of,
    present,
    short,
    text_cells,
    warn_of_look_alikes,
    with_condition,
    words_of,
)
from fedloom.data.own.held_out import split_by_date, split_by_share
from fedloom.data.own.preparation import (
    DROP,
    FitOptions,
    Kinds,
    PerClient,
    Preparation,
    Rules,
    kinds_in,
    no_rule,
    preparation_of,
)
from fedloom.data.own.reading import (
    FILE,
    Paths,
    Reading,
    files_of,
    names_of,
    parts_of,
    several,
    stem,
)
from fedloom.data.partition.without_labels import natural
from fedloom.data.raw_inputs import Columns, Raw
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series


_log = logging.getLogger(__name__)


def table(
    partition: Partition | Paths | None = None,
    seed: int = 0,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "",
    target: str | Sequence[str] = "label",
    client: str | None = None,
    inputs: Sequence[str] = (),
    text: str | None = None,
    test: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    length: int = 64,
    vocabulary: int = 20_000,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    missing: str | float | Mapping[str, str | float] | None = None,
    standardise: bool | Literal["with_categories"] = False,
    date: str | None = None,
    test_from: str | None = None,
    rules: Rules = (),
    class_names: Sequence[str] = (),
    names: Sequence[str] = (),
    na_values: Sequence[str | float] = (),
    encoding: str | Mapping[str, str] = "utf-8",
    sep: str | Mapping[str, str] = ",",
    decimal: str | Mapping[str, str] = ".",
    per_client: bool = False,
    ddof: NonNegativeInt = 0,
    test_share: ShareBelow1 = 0.0,
    test_seed: NonNegativeInt = 0,
    recode: Mapping[str, Mapping[str, str]] | None = None,
    sheet: str = "",
) -> FederatedData:
    """Load CSV, Excel or Parquet files of yours, a row per sample; docs/tables.md explains it.

    path: a file; or a pattern such as "hospitals/*.csv" or a list, and then every file is a client
    of its name. client: the column that says whose a row is; partition natural (the default then)
    makes a client of each. target: a column of whole numbers (labels from 0), of texts (classes) or
    of other numbers; several columns of numbers; or a condition, "num > 0" (no, yes). inputs:
    columns, by default all others; or text: one column of texts. names, na_values, encoding, sep,
    decimal: as pandas.read_csv has them, the last three also by file; names are for files without a
    header; sheet of a workbook. recode: cells that mean another one, {"sex": {"w": "F"}}.

    columns: what a column of texts becomes: one_hot, dummy (without the first value), ordinal, or
    its values in order; "*" stands for all others. missing: what stands for an empty cell: mean,
    median, most_frequent or a value, for all or by column; or drop, and such rows are left out.
    standardise: numbers less their mean, divided by their deviation (n - ddof); with_categories,
    all inputs. Both are found in the training rows of all clients, or per_client in each one's own.
    Or rules and class_names, which fix them (fedloom.data.own.preparation). test: files of test
    rows; or date, a column, and test_from, their first day; or test_share of each client's rows,
    with the classes' shares, drawn from test_seed. Raises DataError naming file, column and row.
    """
    options = {**locals()}
    if isinstance(partition, str | os.PathLike | list | tuple):  # the path came first
        if path:
            raise DataError(f"two paths are given, {partition} and {path}; give a list of files")
        options |= {"path": partition, "partition": None}
    if not options["path"]:
        raise DataError("table needs path=, a CSV, Excel or Parquet file with a header")
    data = files_with(options).data(options["partition"], seed, class_names)
    warn_of_one_class(data)
    return data


def files_with(options: Mapping[str, Any]) -> Files:
    """The files that `table` reads with these of its options. Raises DataError."""

    def part(kind: Any, **others: Any) -> Any:
        field_names = [field.name for field in fields(kind) if field.name in options]
        return kind(**others, **{name: options[name] for name in field_names})

    files: Files = part(Files, reading=part(Reading), options=part(FitOptions))
    return files


class Rows(NamedTuple):
    """Rows for training and, if there are any, for testing; the columns of the inputs; the names of
    the target's classes; how many rows were left out for an empty cell.
    """

    tables: list[Table]
    inputs: list[str]
    classes: Sequence[str]
    dropped: int


@dataclass(frozen=True)
class Files:
    """Files, and what their columns and rows are for, as in `table`. Raises DataError for options
    that do not go together.
    """

    path: Paths
    reading: Reading
    options: FitOptions
    target: str | Sequence[str] = "label"
    client: str | None = None
    inputs: Sequence[str] = ()
    text: str | None = None
    length: int = 64
    vocabulary: int = 20_000
    columns: Kinds | None = None
    per_client: bool = False
    rules: Rules = ()
    test: Paths | None = None
    date: str | None = None
    test_from: str | None = None
    test_share: float = 0.0
    test_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise DataError(f"test_share must be in [0, 1), got {self.test_share}; 0.2 is a fifth")
        if (self.date is None) != (self.test_from is None):
            raise DataError(
                "date and test_from go together: the column of dates, and the first day of the "
                "test set"
            )
        ways = {"test": self.test, "test_from": self.test_from, "test_share": self.test_share}
        names = [name for name, value in ways.items() if value]
        if len(names) > 1:
            raise DataError(f"{names[0]} and {names[1]} are both given; keep one of them")
        missing, standardise = self.options.missing, self.options.standardise
        if isinstance(missing, Mapping) and DROP in missing.values():
            raise DataError("missing = drop is for all columns, not for one; give it alone")
        if self.per_client and missing is None and not standardise:
            raise DataError(
                "per_client = true says where missing and standardise are found; give one of them"
            )
        if self.rules:
            preparation_of(self.rules)  # refuses rules that cannot be
            others: dict[str, Any] = {
                "inputs": self.inputs,
                "text": self.text,
                "columns": self.columns,
            }
            if not self.per_client and missing != DROP:
                others |= {"missing": missing, "standardise": standardise}
            for name, value in others.items():
                if not (value is None or value is False or value in ((), [], {})):
                    raise DataError(
                        f"rules and {name} are both given: rules say it all; keep one of them"
                    )
        if self.text is not None and self.inputs:
            raise DataError("inputs and text are both given; keep one of them")

    @property
    def owner(self) -> str | None:
        """The column that says whose a row is."""
        return FILE if several(self.path) and self.client is None else self.client

    def rows(self, classes: Sequence[str] = ()) -> Rows:
        """The rows of the files. classes: those of the target, if they are given. Raises DataError
        naming file, column and row.
        """
        tests = [] if self.test is None else files_of(self.test)
        self.reading.check_names([*files_of(self.path), *tests])
        tables = [self._read(self.path)]
        if self.test is not None:
            tables.append(self._tests(tables[0], self.test))
        names = self._inputs(tables[0].columns)
        count = sum(len(table.frame) for table in tables)
        if self.options.missing == DROP:
            tables = [self._without_empty(table, names) for table in tables]
        target = self.target
        if isinstance(target, str) and is_condition(target, tables[0].columns):
            classes = tuple(classes) or ANSWERS
            tables = [with_condition(table, target, classes) for table in tables]
        if self.test is None:
            tables, classes = self._divided(tables[0], classes)
        return Rows(tables, names, classes, count - sum(len(table.frame) for table in tables))

    def data(self, partition: Partition | None, seed: int, classes: Sequence[str]) -> FederatedData:
        """The rows as a federation. Raises DataError naming file, column and row."""
        tables, names, classes, dropped = self.rows(classes)
        refuse_ownerless(self.owner, partition)
        inputs, raw = self._converted(tables, names, self._clients(tables, partition))
        target, first = self.target, files_of(self.path)[0]
        details = {
            "target": target if isinstance(target, str) else [*target],
            "prepared": raw.describe() if isinstance(raw, Preparation) else [],
            "dropped": dropped,
            "na_values": [*self.reading.na_values],
            "recode": {k: dict(v) for k, v in (self.reading.recode or {}).items()},
        }
        fields = {
            "name": first.absolute().parent.name if several(self.path) else stem(first),
            "raw": raw,
            "details": {name: value for name, value in details.items() if value},
        }
        return dealt(tables, inputs, target, classes, self.owner, partition, seed, **fields)

    @property
    def input_names(self) -> list[str]:
        """The columns that are named as inputs; none where all others are."""
        if self.rules:
            return [str(rule.get("name", "")) for rule in self.rules]
        if self.text is not None:
            return [self.text]
        return [*self.inputs]

    def _converted(
        self, tables: Sequence[Table], names: Sequence[str], clients: Sequence[Series | None]
    ) -> tuple[list[Tensor], Raw]:
        """The inputs of the training rows and perhaps of test rows. clients: whose each row of each
        table is; None if all are one's. Raises DataError naming file, column and row.
        """
        if self.text is not None:
            return words_of(tables, self.text, self.length, self.vocabulary)
        options = self.options
        finds = options.missing not in (None, DROP) or options.standardise
        if self.rules or self.columns or finds:
            preparation = preparation_of(self.rules)
            if not self.rules:
                preparation = kinds_in(tables[0], names, self.columns or {}, options)
            parts = parts_of(tables[0], clients[0]).items()
            by_client = {name: options.fit_all(preparation, part) for name, (_, part) in parts}
            if not self.per_client:
                return [by_client[""].of(table) for table in tables], by_client[""]
            raw = PerClient(preparation, options, by_client)
            return [raw.of(t, owners) for t, owners in zip(tables, clients, strict=True)], raw
        for name in names:
            if len(texts := text_cells(tables[0].of(name))):
                raise no_rule(texts)
        return [numbers_of(table, names) for table in tables], Columns(tuple(names))

    def _targets(self, columns: Sequence[str]) -> list[str]:
        """The columns that the target is made of."""
        if not isinstance(self.target, str):
            return [*self.target]
        return columns_in(self.target) if is_condition(self.target, columns) else [self.target]

    def _inputs(self, columns: Sequence[str]) -> list[str]:
        """The columns of the inputs."""
        others = {*self._targets(columns), self.owner, self.date, FILE}
        names = self.input_names or [name for name in columns if name not in others]
        if not names:
            raise DataError(
                f"{self.path} has no columns besides {self.target} and {self.owner}; nothing to "
                "learn of"
            )
        return names

    def _read(self, path: Paths, tests: bool = False) -> Table:
        """All rows of one file or of several, in the columns that all have; of several the column
        FILE has the names of the files. tests: they may have no clients.
        """
        files, named = files_of(path), self.input_names
        tables = [self.reading.table(file) for file in files]
        first = tables[0]
        for table in tables:
            owner = None if tests else self.owner
            for name in [*self._targets(first.columns), *named, self.date, owner]:
                if name is not None and name != FILE:
                    table.of(name)
            for one, other in () if named else ((first, table), (table, first)):
                if lacking := [name for name in one.columns if name not in other.columns]:
                    raise DataError(
                        f"{other.where} has no column '{lacking[0]}', which {one.where} has; give "
                        "all files the same columns, or name those to use in inputs="
                    )
        if not several(path):
            return first
        for name, table in zip(names_of(files), tables, strict=True):
            table.frame[FILE] = name
        where = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{first.where}, ..."
        return join_tables(tables, where)

    def _tests(self, whole: Table, path: Paths) -> Table:
        tests = self._read(path, tests=True)
        by_file = self.owner == FILE and FILE in tests.columns
        if by_file and not {*whole.of(FILE)} & {*tests.of(FILE)}:
            raise DataError(
                f"no file of test = {path} is called as one of path = {self.path}; give a client's "
                "files the same name"
            )
        return tests

    def _without_empty(self, table: Table, names: Sequence[str]) -> Table:
        """The rows without an empty cell in inputs and target. Raises DataError for a client that
        has none.
        """
        used = [*names, *self._targets(table.columns)]
        gaps = np.stack([empty(table.of(name)) for name in used])
        complete: Bools = np.logical_not(gaps.any(axis=0))
        clients = table.of(self.owner) if self.owner in table.columns else None
        for rows, part in parts_of(table, clients).values():
            if not complete[rows].any():
                worst = used[int(gaps[:, rows].sum(axis=1).argmax())]
                raise DataError(
                    f"{part.where}: every row has an empty cell, most often in column '{worst}', "
                    "so missing = drop leaves none; take the column out of inputs, or fill it"
                )
        return Table(table.where, table.frame[complete])

    def _divided(self, whole: Table, classes: Sequence[str]) -> tuple[list[Table], Sequence[str]]:
        """Training rows, and test rows where a date or a share tells them; names of classes."""
        if self.date is not None and self.test_from is not None:
            files = FILE if self.owner == FILE else None
            return [*split_by_date(whole, self.date, self.test_from, files)], classes
        if not self.test_share:
            return [whole], classes
        labels, classes = labels_of(whole, self.target, classes)
        clients = None if self.owner is None else present(whole, self.owner).map(name_of)
        return split_by_share(whole, clients, labels, self.test_share, self.test_seed), classes

    def _clients(self, tables: Sequence[Table], partition: Partition | None) -> list[Series | None]:
        """Whose each row of each table is, where each one's own rows matter; None: all are one's.
        Raises DataError if the clients are made by another partition.
        """
        natural_ones = partition is None or isinstance(partition, natural)
        if not self.per_client or getattr(partition, "clients", None) == 1:
            return [None] * len(tables)
        if self.owner is None or not natural_ones:
            raise DataError(
                "per_client = true is for clients that the table itself has; take partition = "
                "natural, or per_client = false"
            )
        owners = [present(t, self.owner).map(name_of) for t in tables if self.owner in t.columns]
        if len(owners) < len(tables):
            raise DataError(
                f"{tables[-1].where} has no column '{self.owner}', so nothing says by whose rows "
                "it is scaled; give it, or take per_client = false"
            )
        return [*owners]


def refuse_ownerless(client: str | None, partition: Partition | None) -> None:
    """Raise DataError if nothing says whose a row is."""
    if client is None and partition is None:
        raise DataError("give client=, the column that says whose a row is, or a partition")
    if client is None and isinstance(partition, natural):
        raise DataError(
            "partition = natural makes a client of each file, or of each value of a column: give "
            "several files, as path = hospitals/*.csv, or client, the column; iid divides one file"
        )


def targets_of(
    tables: Sequence[Table], name: str | Sequence[str], classes: Sequence[str] = ()
) -> tuple[list[Tensor], tuple[str, ...]]:
    """The targets of every table and the names of the classes, which are the first table's if they
    are not given. Raises DataError.
    """
    first, class_names = labels_of(tables[0], name, classes)
    targets = [first]
    for table in tables[1:]:
        others, other_names = labels_of(table, name, class_names)
        if others.dtype != first.dtype or other_names != class_names:
            kinds = [
                f"the texts {', '.join(c[:5])}" if c else t.dtype
                for c, t in ((class_names, first), (other_names, others))
            ]
            raise DataError(
                f"column '{name}' holds {kinds[0]} in {tables[0].where} and {kinds[1]} in "
                f"{table.where}; write both alike"
            )
        targets.append(others)
    return targets, class_names


def dealt(
    tables: Sequence[Table],
    inputs: Sequence[Tensor],
    target: str | Sequence[str],
    class_names: Sequence[str],
    client: str | None,
    partition: Partition | None,
    seed: int,
    **fields: Any,
) -> FederatedData:
    """Divide the rows of a training table and perhaps a test table among clients. fields: of
    `Arrays`.
    """
    targets, classes = targets_of(tables, target, class_names)
    owners = tests = None
    names: tuple[str, ...] = ()
    if client is not None:
        cells = present(tables[0], client).map(name_of)
        names = distinct_names(cells)
        warn_of_look_alikes(f"{tables[0].where}, column '{client}'", names)
        owners = indices_in(cells, names)
        by_client = partition is None or isinstance(partition, natural)
        if by_client and len(tables) > 1 and client in tables[1].columns:
            tests = _test_owners(tables[1], client, names)
    arrays = Arrays(
        train=Samples(inputs[0], targets[0], owners),
        test=Samples(inputs[1], targets[1], tests) if len(tables) > 1 else None,
        by="clients",
        owner_names=names,
        class_names=classes,
        **fields,
    )
    return arrays.divided(natural() if partition is None else partition, seed)


def _test_owners(test: Table, client: str, names: Sequence[str]) -> Tensor:
    """The client of each test row; -1, and a warning, for one that does not train."""
    cells = present(test, client)
    owners = indices_in(cells.map(name_of), names)
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


def warn_of_one_class(data: FederatedData) -> None:
    """Say which clients that the table itself has have training rows of one class alone."""
    several = max(data.classes or 0, len(data.class_names)) > 1 and data.targets.ndim == 1
    if not several or not (data.client_names or data.population == 1) or data.population > 1000:
        return
    single = ((data.label_counts() > 0).sum(1) == 1).nonzero().flatten().tolist()
    if single:
        classes, clients = data.class_names, data.client_names or (data.name,)  # a site's file
        labels = [int(data.client(i)[1][0]) for i in single[:5]]
        names = [classes[label] if classes else label for label in labels]
        examples = [f"'{clients[i]}' ({one})" for i, one in zip(single, names, strict=False)]
        _log.warning(
            "column '%s': all training rows of client %s%s are of one class; alone it would "
            "learn nothing, and its AUC may be undefined: look whether rows are missing there",
            *(data.about["target"], ", ".join(examples), ", ..." * (len(single) > 5)),
        )
