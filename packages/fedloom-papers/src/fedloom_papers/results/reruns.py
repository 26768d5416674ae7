"""A second published column: what others got who ran a paper's method again, from
published/PAPER_reruns.csv (per cent; every row names its source).
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Sequence
from typing import NamedTuple

from fedloom.report.tables import MISSING, fixed

from ..entry import published, settings_of, tables_of

_MORE = ("clients", "participation", "model")  # columns that no page shows
_ACCURACIES = ("acc_ema_pct", "test_acc_pct")


class Rerun(NamedTuple):
    """A line of the file. setting: of the paper's own cell under the same protocol, "" where it has
    none; values: {method: accuracy in per cent}, the paper's own method last.
    """

    source: str
    dataset: str
    partition: str
    rounds: str
    setting: str
    values: dict[str, float]

    @property
    def gap(self) -> float:
        """The paper's own method less FedAvg, in points."""
        return [*self.values.values()][-1] - self.values["FedAvg"]


def reruns(paper: str) -> list[Rerun]:
    """What others got of a paper's method; nothing where nobody's table was found."""
    file = importlib.resources.files("fedloom_papers") / "published" / f"{paper}_reruns.csv"
    if not file.is_file():
        return []
    fields, runs = Rerun._fields[:-1], []
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        values = {k: float(v) for k, v in row.items() if k not in (*fields, *_MORE) and v}
        runs.append(Rerun(**{field: row[field] for field in fields}, values=values))
    return runs


def printed_accuracy(paper: str, method: str, one: Rerun) -> float | None:
    """What the paper prints of a method at the end under the same protocol."""
    values = [
        (float(cell.at.partition("=")[2] or 0), cell.value)
        for table in (tables_of(paper) if one.setting else ())
        for cell in published(paper, table)
        if cell.method == method and cell.dataset == one.dataset and cell.metric in _ACCURACIES
        if cell.has(settings_of(one.setting)) and cell.value is not None
    ]
    return max(values)[1] if values else None


def count_reruns(place: str, field: str) -> int:
    """For `fill`: in how many rows of PAPER/SOURCE [DATA SET] the paper's method is `below` or
    `above` FedAvg, of so many `rows`; names by how they begin.
    """
    paper, _, rest = place.partition("/")
    source, _, dataset = rest.partition(" ")
    some = [one for one in reruns(paper) if one.source.startswith(source)]
    gaps = [one.gap for one in some if one.dataset.startswith(dataset)]
    counts = {"below": sum(gap < 0 for gap in gaps), "above": sum(gap > 0 for gap in gaps)}
    return {**counts, "rows": len(gaps)}[field]


def section(paper: str) -> list[str]:
    """The table as lines of the page."""
    runs = reruns(paper)
    if not runs:
        return []
    names = list(dict.fromkeys(name for one in runs for name in one.values))
    method = [*runs[0].values][-1]
    names = [n for n in names if n != method] + [method]
    head = ["source", "data set", "partition", "rounds", *names, f"{method} less FedAvg"]
    rows = [
        [
            "" if one.source == before else one.source,
            *(one.dataset, one.partition, one.rounds or MISSING),
            *(_cell(one.values.get(name)) for name in names),
            fixed(one.gap, 2, "+"),
            _cell(printed_accuracy(paper, method, one)),
        ]
        for before, one in zip(("", *(x.source for x in runs)), runs, strict=False)
    ]
    caption = (
        f"Accuracies in per cent of others who ran {method} again, with data, networks and rates "
        f"of their choice; *in the paper*: {method} under the same protocol in its own paper.\n"
    )
    return ["## Run again by others\n", caption, f"{markdown([*head, 'in the paper'], rows, 3)}\n"]


def _cell(value: float | None) -> str:
    return MISSING if value is None else fixed(value, 2)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first `texts` columns to the left, the numbers to the right."""
    marks = [":--"] * texts + ["--:"] * (len(head) - texts)
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], marks, *cells[1:]))
