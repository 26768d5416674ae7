"""Which rows of a table are for testing: those from a day on, or a share of each client's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.extras import need
from fedloom.data.own.columns import Table, at, short
from fedloom.data.own.reading import parts_of
from fedloom.errors import DataError

if TYPE_CHECKING:
    from pandas import Series
    from torch import Tensor


def split_by_share(
    table: Table, clients: Series | None, labels: Tensor, share: float, seed: int
) -> list[Table]:
    """Training rows, and a share of each client's to test on, both in the table's order, which
    scikit-learn's train_test_split draws. clients: whose each row is (n,), None if all are one's.
    labels: (n,); a client's classes keep their shares (stratify) if it has more than two rows of
    each. Raises DataError for a client with too few rows.
    """
    split = need("sklearn.model_selection", "test_share", "tables", DataError).train_test_split
    test = np.zeros(len(table.frame), dtype=bool)
    for rows, part in parts_of(table, clients).values():
        strata = None if labels.is_floating_point() else labels.numpy()[rows]
        counts = np.unique(np.zeros(1) if strata is None else strata, return_counts=True)[1]
        test_count = math.ceil(share * len(rows))
        if counts.min() <= 2 or len(counts) > min(test_count, len(rows) - test_count):
            strata = None  # each class must come to both sides
        try:
            drawn = split(rows, stratify=strata, test_size=share, random_state=seed)
        except ValueError:
            raise DataError(
                f"{part.where} has {len(rows)} rows, too few for test_share = {share:g}; leave the "
                "client out, or take another share"
            ) from None
        test[drawn[1]] = True
    return [Table(table.where, table.frame[rows]) for rows in (~test, test)]


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
