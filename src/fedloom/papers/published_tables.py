"""The numbers that the papers print: one CSV file per table in `published`, a row per cell."""

from __future__ import annotations

import csv
import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass

PAPERS = ("fedacg", "fiarse", "fafed", "cfedavg", "fedsmoo")


@dataclass(frozen=True)
class Cell:
    """A cell of a printed table.

    setting: the column's and the row's settings, {"clients": "100", "u": "0.6"}; metric: with its
    unit, such as acc_ema_pct; at: "round=500", "acc=81" (per cent), "size=1/64" or "". value: as
    printed, None where the paper prints no number, as in "1000+", which is then the text.
    """

    paper: str
    table: str
    method: str
    dataset: str
    setting: Mapping[str, str]
    metric: str
    at: str
    value: float | None
    std: float | None
    text: str

    def has(self, wanted: Mapping[str, str]) -> bool:
        """True if the cell has all these settings; numbers are compared as numbers.

        >>> published("fedsmoo", "8")[0].has({"participation": "0.1", "c": "3"})
        True
        """
        return all(same(self.setting.get(k, ""), v) for k, v in wanted.items())


def same(one: str, other: str) -> bool:
    """True for equal texts, or texts of equal numbers.

    >>> same("0.10", "0.1"), same("iid", "dirichlet")
    (True, False)
    """
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def settings_of(text: str) -> dict[str, str]:
    """`a=b;c` as {"a": "b", "c": ""}.

    >>> settings_of("clients=100;partition=iid")
    {'clients': '100', 'partition': 'iid'}
    """
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {key: value for key, _, value in pairs}


@functools.cache
def published(paper: str, table: str) -> tuple[Cell, ...]:
    """The cells of a table in the order of the file; none for a table without numbers. A table in
    parts, such as FAFED's 2_low, is named with its part.
    """
    file = importlib.resources.files(__package__) / "published" / f"{paper}_table{table}.csv"
    if not file.is_file():
        return ()
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple(
        Cell(
            row["paper"],
            row["table"],
            row["method"],
            row["dataset"],
            settings_of(row["setting"]),
            row["metric"],
            row["at"],
            float(row["value"]) if row["value"] else None,
            float(row["std"]) if row["std"] else None,
            row["value_text"],
        )
        for row in rows
    )


@functools.cache
def tables_of(paper: str) -> tuple[str, ...]:
    """The tables of a paper that have a file, in the order of their names."""
    folder = importlib.resources.files(__package__) / "published"
    start = f"{paper}_table"
    names = (file.name for file in folder.iterdir())
    return tuple(sorted(n.removeprefix(start)[:-4] for n in names if n.startswith(start)))


def value_of(paper: str, table: str, method: str, metric: str, at: str, **setting: str) -> float:
    """One printed number. Raises LookupError unless exactly one cell is meant.

    >>> value_of("fedsmoo", "8", "FedSMOO", "test_acc_pct", "round=800")
    81.58
    """
    dataset = setting.pop("dataset", None)
    found = [
        c.value
        for c in published(paper, table)
        if (c.method, c.metric, c.at) == (method, metric, at)
        and dataset in (None, c.dataset)
        and c.has(setting)
        and c.value is not None
    ]
    if len(found) != 1:
        raise LookupError(f"{paper}, table {table}: {len(found)} cells of {method}, {metric} {at}")
    return found[0]
