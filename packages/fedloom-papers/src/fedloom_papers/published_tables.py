"""The numbers that the papers print: one CSV file per table in `published`, laid out as printed."""

from __future__ import annotations

import csv
import functools
import importlib.resources
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

PAPERS = ("fedacg", "fiarse", "fafed", "cfedavg", "fedsmoo", "fedwmsam", "flamby")
STUDIES = ("zoo", "compression", "submodels", "robust", "private", "precision")  # our own
_BY_SEED = "method,dataset,metric,seed,value\n"  # how a file of single runs begins


@dataclass(frozen=True)
class Cell:
    """A cell of a printed table.

    setting: the column's and the row's settings, {"clients": "100", "u": "0.6"}; metric: with its
    unit, such as acc_ema_pct; at: "round=500", "acc=81" (per cent), "size=1/64" or "". value: as
    printed, None where the paper prints no number, as in "1000+", which is then the text. seeds:
    the value of each seed, of a paper that publishes its runs; value and std are made of them.
    """

    method: str
    dataset: str
    setting: Mapping[str, str]
    metric: str
    at: str
    value: float | None
    std: float | None
    text: str
    seeds: Mapping[int, float] = field(default_factory=dict)

    def has(self, settings: Mapping[str, str]) -> bool:
        """True if the cell has all these settings; numbers are compared as numbers.

        >>> published("fedsmoo", "8")[0].has({"participation": "0.1", "c": "3"})
        True
        """
        return all(same(self.setting.get(k, ""), v) for k, v in settings.items())


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

    A file has blocks, as the printed table: four lines of headings over the columns, of which an
    empty one is that to its left ("-" for none), and a line for each method, with its own settings
    after a semicolon. Or a line for each seed, see _BY_SEED.
    """
    file = importlib.resources.files(__package__) / "published" / f"{paper}_table{table}.csv"
    if not file.is_file():
        return ()
    text = file.read_text(encoding="utf-8")
    if text.startswith(_BY_SEED):
        return tuple(_of_runs(text))
    out = []
    for block in text.split("\n\n"):
        lines = [*csv.reader(block.splitlines())]
        columns = [*zip(*(_spanning(heads) for _, *heads in lines[:4]), strict=True)]
        for name, *texts in lines[4:]:
            method, _, row_setting = name.partition(";")
            for text, (dataset, setting, metric, at) in zip(texts, columns, strict=True):
                if text:
                    settings = settings_of(setting) | settings_of(row_setting)
                    number = _number_of(text)
                    out.append(Cell(method, dataset, settings, metric, at, *number))
    return tuple(out)


def _of_runs(text: str) -> Iterator[Cell]:
    """The cells of a file with a line for each seed."""
    cells: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = row["method"], row["dataset"], row["metric"]
        cells.setdefault(key, {})[int(row["seed"])] = float(row["value"])
    for (method, dataset, metric), seeds in cells.items():
        middle, spread = fmean(seeds.values()), stdev(seeds.values())
        yield Cell(method, dataset, {}, metric, "", middle, spread, "", seeds)


def _spanning(heads: Sequence[str]) -> list[str]:
    """Headings, an empty one as the one to its left."""
    full: Iterator[str] = itertools.accumulate(heads, lambda left, head: head or left)
    return ["" if head == "-" else head for head in full]


def _number_of(text: str) -> tuple[float | None, float | None, str]:
    """Value, standard deviation and text of a printed cell.

    >>> _number_of("79.52±0.13"), _number_of("1000+")
    ((79.52, 0.13, ''), (None, None, '1000+'))
    """
    value, _, std = text.partition("±")
    try:
        return float(value), float(std) if std else None, ""
    except ValueError:
        return None, None, text


@functools.cache
def tables_of(paper: str) -> tuple[str, ...]:
    """The tables of a paper that have a file, in the order of their names."""
    folder = importlib.resources.files(__package__) / "published"
    start = f"{paper}_table"
    names = (file.name for file in folder.iterdir())
    return tuple(sorted(n.removeprefix(start)[:-4] for n in names if n.startswith(start)))
