"""A second published column: what others got who ran a paper's method again, from
published/PAPER_reruns.csv (per cent; every row names its source).
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass

from fedloom.report.tables import MISSING, fixed

from ..catalogue import TITLES, published
from ..published_tables import settings_of, tables_of
from ..study_tables import markdown

_PLACES = (
    "source",
    "dataset",
    "partition",
    "clients",
    "participation",
    "rounds",
    "model",
    "setting",
)
_ACCURACIES = ("acc_ema_pct", "test_acc_pct")


@dataclass(frozen=True)
class Rerun:
    """A line of the file. setting: of the paper's own cell under the same protocol, "" where it has
    none; values: {method: accuracy in per cent}, the paper's own method last.
    """

    source: str
    dataset: str
    partition: str
    clients: str
    participation: str
    rounds: str
    model: str
    setting: str
    values: dict[str, float]

    @property
    def less(self) -> float:
        """The paper's own method less FedAvg, in points."""
        return [*self.values.values()][-1] - self.values["FedAvg"]


def reruns(paper: str) -> list[Rerun]:
    """What others got of a paper's method; nothing where nobody's table was found."""
    file = importlib.resources.files("fedloom_papers") / "published" / f"{paper}_reruns.csv"
    if not file.is_file():
        return []
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return [
        Rerun(
            **{place: row[place] for place in _PLACES},
            values={k: float(v) for k, v in row.items() if k not in _PLACES and v},
        )
        for row in rows
    ]


def printed(paper: str, method: str, one: Rerun) -> float | None:
    """What the paper prints of a method at the end under the same protocol."""
    values = [
        (float(cell.at.partition("=")[2] or 0), cell.value)
        for table in (tables_of(paper) if one.setting else ())
        for cell in published(paper, table)
        if cell.method == method and cell.dataset == one.dataset and cell.metric in _ACCURACIES
        if cell.has(settings_of(one.setting)) and cell.value is not None
    ]
    return max(values)[1] if values else None


def counted(place: str, field: str) -> int:
    """For `fill`: in how many rows of PAPER/SOURCE [DATA SET] the paper's method is `below` or
    `above` FedAvg, of so many `rows`; names by how they begin.
    """
    paper, _, rest = place.partition("/")
    source, _, dataset = rest.partition(" ")
    gaps = [
        one.less
        for one in reruns(paper)
        if one.source.startswith(source) and one.dataset.startswith(dataset)
    ]
    return {
        "below": sum(gap < 0 for gap in gaps),
        "above": sum(gap > 0 for gap in gaps),
        "rows": len(gaps),
    }[field]


def section(paper: str) -> list[str]:
    """The table as lines of the page."""
    found = reruns(paper)
    if not found:
        return []
    names = list(dict.fromkeys(name for one in found for name in one.values))
    own = names[-1]
    names = [n for n in names if n != own] + [own]
    head = ["source", "data set", "partition", "rounds", *names, f"{own} less FedAvg"]
    rows = [
        [*_place(one), *(_cell(one.values.get(n)) for n in names), fixed(one.less, 2, "+"), there]
        for one, there in _beside(paper, own, found)
    ]
    said = (
        f"Accuracies in per cent that others print, or got, who ran {own} again. They chose data, "
        f"networks and rates of their own; *in the paper* is {own} under the same protocol in "
        f"{TITLES[paper].split(' (')[0]}'s paper, where it has one.\n"
    )
    return ["## Run again by others\n", said, f"{markdown([*head, 'in the paper'], rows, 3)}\n"]


def _beside(paper: str, own: str, found: list[Rerun]) -> Iterator[tuple[Rerun, str]]:
    for one in found:
        yield one, _cell(printed(paper, own, one))


def _place(one: Rerun) -> list[str]:
    return [one.source, one.dataset, one.partition, one.rounds or MISSING]


def _cell(value: float | None) -> str:
    return MISSING if value is None else fixed(value, 2)
