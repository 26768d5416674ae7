"""submodels.md: FIARSE, its rivals and its ablation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from fedloom.core.curves import crossing, last_tenth, whole_round
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, paired
from fedloom.report.style import numbered
from fedloom.report.tables import MISSING

from ..figures import curves_side_by_side, histograms, one_legend
from ..lines import Line
from ..series import Band, band, points
from .claims import Reader, claims, named
from .page import (
    Page,
    Plot,
    claims_table,
    mib,
    per_cent,
    points_of,
    reached_cell,
    seeds_cell,
    table,
)
from .study import Study, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "FIARSE"
COLUMNS = {"local": "local_accuracy", "global": "test_accuracy"}
# the 2 x 2: what re-masking at every step and the bias factor do, alone and together
SQUARE = (
    ("Pruning-Greedy", "no", "no"),
    ("re-masking alone", "yes", "no"),
    ("factor alone", "no", "yes"),
    (OURS, "yes", "yes"),
)


# --------------------------------------------------------------------------------------- the lines
@dataclass(frozen=True)
class Part:
    """One part of the evidence: its methods, and the lines that there are with what it plans."""

    name: str
    study: Study

    @property
    def table(self) -> Table:
        """Its rows and changes."""
        return self.study.tables[self.name]

    @property
    def rivals(self) -> list[str]:
        """The rules that are compared, without the ablation's variants."""
        return [m for m in self.table.rows if m not in self.study.words["rows"]["ablation"]]

    def runs(self, method: str) -> dict[int, Line]:
        """{seed: line}; nothing of a method that is not planned."""
        return self.study.finished(self.name, method) if method in self.table.rows else {}

    @property
    def there(self) -> list[str]:
        """The methods with a finished run."""
        return self.study.there(self.name)

    @property
    def sizes(self) -> list[str]:
        """The sizes among the clients, as columns name them, in rising order."""
        found = {s for m in self.there for x in self.runs(m).values() for s in x["sizes"]["global"]}
        return sorted(found - {"mean"}, key=float)

    @property
    def reader(self) -> Reader:
        """What its claims read."""
        every = {size for line in self.runs(OURS).values() for size in by_size(line)}
        return Reader(
            self.study,
            self.name,
            self.measured,
            self.study.finished,
            sizes=self.sizes,
            every=[*map(str, sorted(every))],
            goal=f"{100 * self.target:g} %",
        )

    def values(self, method: str, name: str) -> dict[int, float]:
        """{seed: value} of a measure."""
        return self.reader.values(method, name)

    def curves(self, method: str, column: str) -> list[dict[int, float]]:
        """The seeds' {round: value} of a column such as test_accuracy@0.25."""
        return [points(x, column) for x in self.runs(method).values()]

    @property
    def target(self) -> float:
        """The accuracy that rounds are counted to: the recipe's, or what the part sets instead."""
        return self.table.target or float(RECIPES[self.table.recipe]()["evaluate"]["target"])

    def measured(self, line: Line, name: str) -> float | None:
        """What claims compare: the accuracy `local@SIZE` or `global@SIZE` (or `mean`), of the last
        tenth of evaluations, after the `last` round or of the last `ten`; `unseen@SIZE`, trained
        or not; the clients' `skewness`; `rounds@SIZE` to the target; what was `gained` a round in
        points, and what a round `replaced`, in the `first` or `last` part of the rounds.
        """
        kind, _, place = name.partition("@")
        if kind == "skewness":
            return skewness([float(v) for v in line["clients"] if v is not None])
        if kind == "unseen":
            return by_size(line).get(float(place))
        if kind == "rounds":
            found = crossing(points(line, f"test_accuracy@{place}"), self.target)
            return None if found is None else float(whole_round(found))
        if kind.startswith("gained"):
            return end(rises(points(line, f"explored@{place}")), kind, 2)
        if kind.startswith("replaced"):
            return end(points(line, f"replaced@{place}"), kind, 5)
        size, _, how = place.partition(" ")
        if how == "last":
            value = line["sizes"][kind].get(size)
            return None if value is None else float(value)
        curve = points(line, f"{COLUMNS[kind]}@{size}")
        values = [curve[t] for t in sorted(curve)]
        if how == "ten":
            return math.fsum(values[-10:]) / 10 if len(values) >= 10 else None
        return last_tenth(values)


def by_size(line: Line) -> dict[float, float]:
    """{size: accuracy on the common test set} after the last round: sizes trained or not."""
    about = line["sizes"]
    found = {float(s): float(v) for s, v in about["global"].items() if s != "mean"}
    more = about.get("unseen") or []
    return found | {float(row["capacity"]): float(row["global"]) for row in more}


def rises(curve: Mapping[int, float]) -> dict[int, float]:
    """By how many points a curve of shares rises a round, {round: since the evaluation before}."""
    return {t: 100 * (curve[t] - curve[s]) / (t - s) for s, t in pairwise(sorted(curve))}


def end(curve: Mapping[int, float], which: str, parts: int) -> float | None:
    """The mean of a curve's first or last part of so many; None of a short one."""
    values = [curve[t] for t in sorted(curve)]
    length = len(values) // parts
    own = values[:length] if which.endswith("first") else values[len(values) - length :]
    return math.fsum(own) / length if length else None


def skewness(values: Sequence[float]) -> float | None:
    """Fisher's moment coefficient E[(x - m)^3] / s^3; negative with a longer tail to the left.

    >>> skewness([1.0, 2.0, 3.0]), skewness([0.0, 3.0, 3.0]) < 0, skewness([1.0, 1.0])
    (0.0, True, None)
    """
    if not values:
        return None
    middle = math.fsum(values) / len(values)
    second = math.fsum((v - middle) ** 2 for v in values) / len(values)
    third = math.fsum((v - middle) ** 3 for v in values) / len(values)
    return third / second**1.5 if second > 0 else None


# -------------------------------------------------------------------------------------- the tables
def accuracies(part: Part, kind: str, how: str = "") -> str:
    """One row for each method: the sizes and their mean. how: as in `Part.measured`."""
    head = ["method", "seeds", *map(named, part.sizes), "mean"]
    rows = []
    for method in part.there:
        found = [part.values(method, f"{kind}@{s}{how}") for s in (*part.sizes, "mean")]
        cells = [seeds_cell([*values.values()]) for values in found]
        rows.append([method, str(len(part.runs(method))), *cells])
    return table(head, rows)


def traffic(part: Part) -> str:
    """Bytes, what a size really holds, and rounds to the target."""
    sizes = [*map(named, part.sizes)]
    head = ["method", "MiB down", "MiB up", *(f"{size} holds, %" for size in sizes)]
    head += [f"rounds to {100 * part.target:g} %, {size}" for size in sizes]
    rows = []
    for method in part.there:
        runs = [*part.runs(method).values()]
        held = [runs[0]["sizes"]["held"].get(s) for s in part.sizes]
        reached = [[part.measured(x, f"rounds@{s}") for x in runs] for s in part.sizes]
        rows.append(
            [
                method,
                mib(mean([x["bytes_down"] for x in runs])),
                mib(mean([x["bytes_up"] for x in runs])),
                *(f"{100 * h['all'] / runs[0]['parameters']:.2f}" if h else MISSING for h in held),
                *(reached_cell(rounds, runs) for rounds in reached),
            ]
        )
    return table(head, rows)


def square(part: Part, how: str = "") -> str:
    """The ablation: local and global mean, and what each adds to Pruning-Greedy."""
    head = ["method", "re-masking", "factor", "local mean", "less neither", "global mean"]
    rows = []
    for method, masks, factor in SQUARE:
        if not part.runs(method):
            continue
        cells = []
        for name in (f"{kind}@mean{how}" for kind in COLUMNS):
            own, base = (part.values(m, name) for m in (method, SQUARE[0][0]))
            gap: Paired | None = paired(own, base) if method != SQUARE[0][0] else None
            cells += [seeds_cell([*own.values()]), "" if gap is None else points_of(gap)]
        rows.append([method, masks, factor, *cells])
    return table([*head, "less neither"], rows, texts=3)


# ------------------------------------------------------------------------------------- the pictures
def _drawn(part: Part, grid: Sequence[tuple[str, Mapping[str, Band]]], x: str, y: str) -> Figure:
    """Panels with one legend below; each method has its style in all pictures."""
    look = {m: numbered(i) for i, m in enumerate([*part.table.rows, *map(named, part.sizes)])}
    made, axes, drawn = curves_side_by_side(grid, look, x, y)
    one_legend(made, drawn, {})
    if x.startswith("size"):
        ticks = {4.0**-i: named(str(4.0**-i)) for i in range(5)}
        for place in axes:
            place.set_xscale("log")
            place.set_xticks([*ticks], [*ticks.values()])
            place.minorticks_off()
    return made


def _bands(part: Part, methods: Sequence[str], column: str) -> dict[str, Band]:
    curves = {m: part.curves(m, column) for m in methods}
    return {m: band([{t: 100 * v for t, v in c.items()} for c in own]) for m, own in curves.items()}


def by_round(part: Part) -> list[str | Plot]:
    """Accuracy on the common test set by round, a panel for each size; the rivals, the ablation."""
    out: list[str | Plot] = []
    ablation = [m for m in part.there if m not in part.rivals or m == OURS]
    for name, methods, said in (
        ("rounds", [m for m in part.there if m in part.rivals], "of the rules"),
        ("ablation", ablation if len(ablation) > 1 else [], "of FIARSE and its ablation"),
    ):
        if methods:
            grid = [(named(s), _bands(part, methods, f"test_accuracy@{s}")) for s in part.sizes]
            last = "; ".join(
                f"{m}, {named(s)}: {per_cent(mean([*part.values(m, f'global@{s}').values()]))}"
                for m in methods
                for s in part.sizes
            )
            alt = (
                f"{part.table.title}: global accuracy {said} by round and size. Means of the last "
            )
            alt += f"tenth of evaluations: {last}"
            draw = partial(_drawn, part, grid, "rounds", "global accuracy (%)")
            out.append(Plot(f"submodels-{part.name}-{name}", alt, draw))
    return ["### By round", *out] if out else []


def clients(part: Part) -> list[str | Plot]:
    """How many clients reach which local accuracy, each with its own size; seeds together."""
    known = {
        m: [100 * float(v) for x in part.runs(m).values() for v in x["clients"] if v is not None]
        for m in part.there
    }
    known = {m: values for m, values in known.items() if values}
    if not known:
        return []

    def draw() -> Figure:
        look = {m: numbered(i) for i, m in enumerate(part.table.rows)}
        grid = [(m, {m: values}) for m, values in known.items()]
        return histograms(grid, look, "local accuracy (%)", "% of clients")[0]

    ends = "; ".join(f"{m} {per_cent(math.fsum(v) / len(v) / 100)}" for m, v in known.items())
    alt = f"{part.table.title}: clients by local accuracy, the seeds together. Means: {ends}"
    return ["### Clients by local accuracy", Plot(f"submodels-{part.name}-clients", alt, draw)]


def unseen(part: Part) -> list[str | Plot]:
    """Accuracy against size, trained or not."""
    found = {
        m: band([{s: 100 * v for s, v in by_size(x).items()} for x in part.runs(m).values()])
        for m in part.there
        if m in part.rivals
    }
    if not any(len(curve) > len(part.sizes) for curve in found.values()):
        return []
    title = f"trained: {', '.join(named(s).removeprefix('size ') for s in part.sizes)}"
    x, y = "size: share of the model", "global accuracy (%)"
    draw = partial(_drawn, part, [(title, found)], x, y)
    alt = f"{part.table.title}: global accuracy of sub-models of every size, trained or not"
    return ["### Sizes that nobody trained", Plot(f"submodels-{part.name}-unseen", alt, draw)]


def explored(part: Part) -> list[str | Plot]:
    """What FIARSE's sizes have held so far, and how much of them a round replaces."""
    kinds = {
        "explored": "held so far",
        "trained": "held so far, by a client that took part",
        "replaced": "replaced by a round",
    }
    grid = [
        (said, {named(s): _bands(part, [OURS], f"{column}@{s}")[OURS] for s in part.sizes})
        for column, said in kinds.items()
    ]
    if not any(grid[0][1].values()):
        return []
    words = (
        "Of FIARSE; definitions of ours, as the paper's curves have none: the share of the "
        "coordinates that a size has held so far, the same in rounds in which a client of that "
        "size took part, and the share of its part that the last round replaced."
    )
    alt = f"{part.table.title}: exploration and model difference of FIARSE by round and size"
    draw = partial(_drawn, part, grid, "rounds", "coordinates (%)")
    plot = Plot(f"submodels-{part.name}-explored", f"{alt} (as in Figure 7)", draw)
    return ["### Exploration and model difference", words, plot]


# ----------------------------------------------------------------------------------------- the page
def section(part: Part) -> list[str | Plot]:
    """All of a part."""
    out: list[str | Plot] = [
        f"## {part.table.title}",
        part.study.text("legend"),
        "### Local accuracy",
    ]
    out += [accuracies(part, "local"), "### Global accuracy", accuracies(part, "global")]
    out += [
        "### Local accuracy, mean of the last 10 evaluations",
        accuracies(part, "local", " ten"),
    ]
    out += ["### Global accuracy, mean of the last 10 evaluations"]
    out += [accuracies(part, "global", " ten"), "### Messages and rounds", traffic(part)]
    if sum(bool(part.runs(m)) for m, _, _ in SQUARE) > 1:
        out += ["### Re-masking and bias factor"]
        out += ["Means of the last tenth of evaluations, which verdicts are on:", square(part)]
        out += ["After the last round:", square(part, " last")]
        out += ["Means of the last 10 evaluations:", square(part, " ten")]
    return [*out, *by_round(part), *clients(part), *unseen(part), *explored(part)]


def make(study: Study, words: str) -> Page:
    """The page."""
    parts = [Part(name, study) for name in study.tables]
    there = [part for part in parts if part.there]
    out: list[str | Plot] = ["## What there is", study.state()]
    for part in there:
        out += [] if part is not there[0] else ["## FIARSE's claims"]
        one = max(len(part.runs(m)) for m in part.there) == 1
        out += [f"### {part.table.title}", claims_table(claims(part.reader), one_seed=one)]
    out += [study.text("note")] if there else []
    return Page("submodels", words, [*out, *(piece for part in there for piece in section(part))])
