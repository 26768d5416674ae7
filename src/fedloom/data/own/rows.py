"""Which rows of a table are for testing: other files, those from a day on, or a share of each
client's, drawn by scikit-learn; and whether all rows of a client are of one class.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.extras import need
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import Table, at, short
from fedloom.data.own.reading import Paths, parts_of
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series
    from torch import Tensor


@dataclass(frozen=True)
class HeldOut:
    """How test rows are told; see `table`. Raises DataError for two ways at once."""

    test: Paths | None = None
    date: str | None = None
    test_from: str | None = None
    test_share: float = 0.0
    test_seed: int = 0

    def __post_init__(self) -> None:
        if (self.date is None) != (self.test_from is None):
            raise DataError(
                "date and test_from go together: the column of dates, and the first day of the "
                "test set"
            )
        if not 0 <= self.test_share < 1:
            raise DataError(f"test_share must be in [0, 1), got {self.test_share}; 0.2 is a fifth")
        ways = {"test": self.test, "test_from": self.test_from}
        ways |= {"test_share": self.test_share or None}
        names = [name for name, value in ways.items() if value is not None]
        if len(names) > 1:
            raise DataError(f"{names[0]} and {names[1]} are both given; keep one of them")


def split_by_share(
    table: Table, clients: Series | None, labels: Tensor | None, held_out: HeldOut
) -> tuple[Table, Table]:
    """The rows for training and those for testing, both in the table's order: of each client a
    share that `sklearn.model_selection.train_test_split` draws from held.test_seed.

    clients: whose each row is (n,), None if all are one's; labels: (n,) int64, None for regression.
    A client's classes keep their shares (stratify) if it has more than two rows of each. Raises
    DataError for a client with too few rows.
    """
    split = need("sklearn.model_selection", "test_share", "tables", DataError).train_test_split
    test = np.zeros(len(table.frame), dtype=bool)
    for rows, part in parts_of(table, clients).values():
        strata = None if labels is None else labels.numpy()[rows]
        counts = np.unique(strata, return_counts=True)[1] if strata is not None else np.array([0])
        test_count = math.ceil(held_out.test_share * len(rows))
        if counts.min() <= 2 or len(counts) > min(test_count, len(rows) - test_count):
            strata = None  # each class must come to both sides
        options = {"test_size": held_out.test_share, "random_state": held_out.test_seed}
        try:
            test[split(rows, stratify=strata, **options)[1]] = True
        except ValueError:
            raise DataError(
                f"{part.where} has {len(rows)} rows, too few for test_share = "
                f"{held_out.test_share:g}; leave the client out, or take another share"
            ) from None
    return Table(table.where, table.frame[~test]), Table(table.where, table.frame[test])


def split_by_date(
    table: Table, date: str, test_from: str, files: str | None
) -> tuple[Table, Table]:
    """The rows before a date for training, and those from it on for testing.

    date: a column of dates as in 2024-03-31 or 2024-03-31 14:00; files: the column of their names,
    where each must have rows to train on. Raises DataError naming the row of a date that cannot be
    read, and for a side without rows.
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
    absent = sorted({*test.of(files)} - {*train.of(files)}) if files is not None else []
    if absent:
        raise DataError(
            f"client '{absent[0]}' has no rows before {test_from} in column '{date}', so nothing "
            "to train on; choose a later test_from, or leave its file out"
        )
    return train, test


_log = logging.getLogger(__name__)


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
