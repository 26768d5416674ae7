"""zoo.md: the papers' methods on Fashion-MNIST."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.algorithms.registry import make_algorithm
from fedloom.cli.method_costs import costs
from fedloom.core.curves import at_equal, crossing, whole_round
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, common_seeds, corrected, p_text, paired
from fedloom.report.style import Style, numbered
from fedloom.report.tables import MISSING, fixed

from ..catalogue import published
from ..figures import curves_side_by_side, dots
from ..lines import Line
from ..published_tables import settings_of
from ..series import Band, band, points, roughness, smoothed
from ..verdicts import verdict_on
from .claims import NOISE, Reader, claims
from .page import (
    Claim,
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
from .study import Study, by_bytes, held_out, late, sent_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE, OWN_RATE = "FedAvg", "FedAvg, rate of its own"
NUISANCES = ("weight_decay", "clip")  # settings of no method: alike, or the methods do not compare
GOAL = 80  # the recipe's target, in per cent


@functools.cache
def gradients(algorithm: str) -> float:
    """Gradients of a batch per local step, measured."""
    return costs(make_algorithm(algorithm)).gradients


class Published(NamedTuple):
    """A column of a paper's table: where it is, the method that the paper proposes, and accuracies
    in per cent by method, with FedAvg among them.
    """

    source: str
    own: str
    values: Mapping[str, float]


def columns(study: Study) -> list[Published]:
    """The columns that a study is set beside."""
    out = []
    for one in study.words["published"]:
        paper, name, metric, at, dataset, setting = one["cells"]
        scale = 100 if metric.endswith("_fraction") else 1
        values = {
            cell.method: round(scale * cell.value, 2)
            for cell in published(paper, name)
            if (cell.metric, cell.at, cell.dataset) == (metric, at, dataset)
            if cell.value is not None and cell.has(settings_of(setting))
        }
        out.append(Published(one["source"], one["own"], values))
    return out


# --------------------------------------------------------------------------------------- the lines
@dataclass(frozen=True)
class Zoo:
    """A study's methods. tuned: the table whose trials choose; parts: those with its choice."""

    study: Study
    tuned: str = "dirichlet"
    parts: tuple[str, ...] = ("dirichlet", "two")

    @property
    def methods(self) -> Mapping[str, Sequence[str]]:
        """{name: its changes of the recipe}."""
        return self.study.tables[self.tuned].rows

    def tried(self, name: str) -> tuple[str, list[str]]:
        """The setting that is tuned, and its values; of one that is not its last setting."""
        key, _, values = self.methods[name][-1].partition("=")
        return key, values.split(",")

    def trials(self, name: str) -> dict[str, Line]:
        """{value: line} of what was tried."""
        return self.study.trials(self.tuned, name)

    def chosen(self, name: str) -> str | None:
        """The value with the best held-out accuracy, or the only one."""
        found = self.study.chosen(self.tuned, name)
        return None if found is None else next(iter(found.values()), self.tried(name)[1][0])

    def variants(self, name: str) -> list[str]:
        """A method and what it is with a second alpha."""
        return [n for n in self.methods if n == name or n.startswith(f"{name}, alpha")]

    def variant(self, name: str) -> str:
        """A method with the better alpha by the held-out data, where both were tuned."""

        def score(n: str) -> float:
            line = self.trials(n).get(self.chosen(n) or "", {})
            return held_out(line) if line else 0.0

        return max(self.variants(name), key=score, default=name)

    def unequal(self, name: str, other: str = BASE) -> str:
        """The nuisance settings in which two methods' runs differ, as words; empty if they do not:
        then a difference of accuracy is one of the methods.
        """
        ours, theirs = (self.nuisances(n) for n in (name, other))
        return "; ".join(
            f"{key} {ours[key]} against {theirs[key]}" for key in ours if ours[key] != theirs[key]
        )

    def nuisances(self, name: str) -> dict[str, str]:
        """The settings of no method, as its runs have them."""
        of = self.study.tables[self.tuned]
        local = RECIPES[of.recipe]()["local"]
        typed = of.typed(name, self.study.chosen(self.tuned, name))
        set_to = dict(c.split("=", 1) for c in typed)
        found = {k: set_to.get(f"local.{k}", local.get(k, "none")) for k in NUISANCES}
        return {k: v if v == "none" else f"{float(v):g}" for k, v in found.items()}

    @functools.cached_property
    def seeds(self) -> dict[str, list[int]]:
        """{part: the seeds that all its methods with finished runs have}."""
        return {
            part: common_seeds(
                dict.fromkeys(self.study.finished(part, n), 0.0) for n in self.methods
            )
            for part in self.parts
        }

    def counted(self, part: str, name: str) -> dict[int, Line]:
        """{seed: line} of the finished runs with the seeds that all methods have."""
        lines = self.study.finished(part, name)
        return {seed: lines[seed] for seed in self.seeds[part] if seed in lines}

    def values(self, name: str, part: str) -> dict[int, float]:
        """{seed: the mean of the last tenth of its evaluations}, which verdicts are on."""
        found = {s: late(x) for s, x in self.counted(part, name).items()}
        return {s: v for s, v in found.items() if v is not None}

    def ranked(self, part: str) -> list[str]:
        """Methods with finished runs, the highest mean of what verdicts are on first."""
        means = {n: mean([*self.values(n, part).values()]) for n in self.methods}
        return sorted(
            (n for n in means if means[n] is not None), key=lambda n: (-(means[n] or 0), n)
        )

    def gap(self, name: str, other: str) -> Paired | None:
        """One method less another, seed by seed, in the part that chose."""
        return paired(self.values(name, self.tuned), self.values(other, self.tuned))

    def at_equal_bytes(self, name: str, part: str) -> dict[int, tuple[float, float]]:
        """{seed: a method's accuracy and FedAvg's} after as many bytes, up and down, as FedAvg
        sends in all: at the last tenth of FedAvg's evaluations. Nothing of one that sends less.
        """
        base, own = self.counted(part, BASE), self.counted(part, name)
        both = {s: at_equal(by_bytes(own[s]), by_bytes(base[s])) for s in own if s in base}
        return {s: pair for s, pair in both.items() if pair is not None}

    def algorithm(self, name: str) -> str:
        """The algorithm that a method runs."""
        return dict(c.split("=", 1) for c in self.methods[name])["algorithm"]


def measured(line: Line, name: str) -> float | None:
    """What claims compare: `late`, or the `roughness` of the accuracy."""
    return late(line) if name == "late" else roughness(points(line, "curve"))


def reader(zoo: Zoo) -> Reader:
    """What claims read."""
    return Reader(zoo.study, zoo.tuned, measured, zoo.counted, zoo.unequal)


def claims_of(zoo: Zoo) -> list[Claim]:
    """The papers' claims with their verdicts."""
    best: list[dict[str, Any]] = [
        {
            "says": f"{column.own} is the best of its table's {len(column.values)} methods",
            "where": column.source,
            "test": "first",
            "measure": "late",
            "own": zoo.variant(column.own),
            "rivals": [zoo.variant(n) for n in column.values if n != column.own],
        }
        for column in columns(zoo.study)
    ]
    return claims(reader(zoo), best)


# -------------------------------------------------------------------------------------- the tables
def results(zoo: Zoo, part: str) -> str:
    """One row for each method that has a finished or failed run."""
    head = ["method", "tuned", "seeds", "last tenth", f"less {BASE}", "p by Holm"]
    head += ["last", "best", "EMA, last", f"rounds to {GOAL} %", f"MiB to {GOAL} %"]
    head += ["MiB in all", f"at {BASE}'s MiB", "gradients", "s per round", "failed"]
    ranked = zoo.ranked(part)
    names = ranked + [n for n in zoo.methods if n not in ranked and zoo.study.finals(part, n)]
    beside = less(zoo, BASE, names, part)
    return table(head, [_row(zoo, name, part, beside.get(name)) for name in names], texts=2)


def _row(zoo: Zoo, name: str, part: str, less: Paired | None) -> list[str]:
    """less: this method less FedAvg, with p corrected for all that the papers name."""
    every, runs = zoo.study.finals(part, name), [*zoo.counted(part, name).values()]
    failed = len(every) - len(zoo.study.finished(part, name))
    times = mean([x["seconds_per_round"] for x in runs])
    reached = {i: _reached(x) for i, x in enumerate(runs)}
    there = [sent_by(runs[i])(t) for i, t in reached.items() if t is not None]
    return [
        name,
        f"{zoo.tried(name)[0].rpartition('.')[2]} {zoo.chosen(name)}",
        str(len(runs)),
        seeds_cell([*zoo.values(name, part).values()]),
        *(("", "") if less is None else (points_of(less), p_text(less.p_holm))),
        *(seeds_cell([x[key]["value"] for x in runs]) for key in ("last", "best")),
        seeds_cell([x["last_ema"] for x in runs]),
        reached_cell([*reached.values()], runs),
        mib(mean(there)),
        mib(mean([x["bytes_up"] + x["bytes_down"] for x in runs])),
        seeds_cell([ours for ours, _ in zoo.at_equal_bytes(name, part).values()]),
        f"{gradients(zoo.algorithm(name)):g}",
        MISSING if times is None else f"{times:.2f}",
        f"{failed} of {len(every)}" if failed else "",
    ]


def _reached(line: Line) -> int | None:
    """The round at whose end the moving average has reached the goal, on straight lines between its
    evaluations; None if it never has.
    """
    place = crossing(smoothed(points(line, "curve")), GOAL / 100)
    return None if place is None else whole_round(place)


def beside_the_papers(zoo: Zoo) -> list[str | Plot]:
    """For each paper's table: every method's distance from FedAvg, there and here."""
    out: list[str | Plot] = []
    for column in columns(zoo.study):
        names = {v: n for n in column.values if n != BASE for v in zoo.variants(n)}
        there = {v: column.values[n] - column.values[BASE] for v, n in names.items()}
        found = {v: gap for v, gap in there.items() if zoo.gap(v, BASE) is not None}
        if not found:
            continue
        bases = [b for b in (BASE, OWN_RATE) if b in zoo.methods]
        head = ["method", "in the paper"]
        for base in bases:
            head += [f"less {BASE} at {zoo.chosen(base) or '?'}", "p by Holm"]
        every = [less(zoo, base, [*found], zoo.tuned) for base in bases]
        rows = []
        for name, gap in found.items():
            own = [gaps.get(name) for gaps in every]
            cells = [
                c for g in own for c in (points_of(g), p_text(None if g is None else g.p_holm))
            ]
            rows.append([name, f"{gap:+.2f}", *cells, _sign(zoo, name, gap, own)])
        out += [f"### Less {BASE}, in points: {column.source}", table([*head, "sign"], rows)]
    return [*out, zoo.study.text("signs")] if out else []


def less(zoo: Zoo, base: str, names: Sequence[str], part: str) -> dict[str, Paired]:
    """{method: less FedAvg}. One family for Holm, wherever it is shown: every method that one of
    the papers' tables sets beside FedAvg; only these have a corrected p, if they are judged.
    """
    family = {v for column in columns(zoo.study) for n in column.values for v in zoo.variants(n)}
    family -= {BASE, OWN_RATE}
    every = {n: paired(zoo.values(n, part), zoo.values(base, part)) for n in {*names, *family}}
    found = {n: gap for n, gap in every.items() if gap is not None and n != base}
    judged = {n: gap for n, gap in found.items() if n in family and not zoo.unequal(n)}
    found |= corrected(judged, len(family))
    return {n: found[n] for n in names if n in found}


def _sign(zoo: Zoo, name: str, there: float, gaps: Sequence[Paired | None]) -> str:
    """Whether the distance from FedAvg has the paper's sign. gaps: from FedAvg at each rate."""
    if reason := zoo.unequal(name):
        return f"not judged: {reason}"
    words = {"holds": "as there", "does not hold": "the other way"}
    signed = [replace(g, mean=math.copysign(1, there) * g.mean) for g in gaps if g is not None]
    seen = [words.get(verdict_on(g, noise=NOISE)) for g in signed]
    if not seen[0]:
        return "undecided"
    return seen[0] if len(set(seen)) == 1 else f"{seen[0]}, at the common rate only"


def at_the_higher_rate(zoo: Zoo, high: Zoo) -> list[str | Plot]:
    """The runs at rate 0.4 as far as there are: what was tried, and the one seed of what was chosen
    beside the same seed at the common rate. Nothing is tested.
    """
    rows = []
    for name in high.methods:
        lines, (key, values) = high.trials(name), high.tried(name)
        if not lines:
            continue
        tried = ", ".join(f"{v}: {per_cent(held_out(x))}" for v, x in lines.items())
        missing = f"; {len(values) - len(lines)} of {len(values)} not tried"
        runs = (of.study.first(part, name) for of, part in ((high, "higher"), (zoo, zoo.tuned)))
        ends = [per_cent(late(x)) if x else MISSING for x in runs]
        tried += missing if len(lines) < len(values) else ""
        rows.append([name, f"`{key}`", tried, high.chosen(name) or MISSING, *ends])
    if not rows:
        return []
    head = ["method", "setting", "held-out accuracy, %", "chosen", "at 0.4, seed 0"]
    return [
        "## At rate 0.4, as far as it was run",
        zoo.study.text("higher"),
        table([*head, "at 0.2, seed 0"], rows, texts=4),
    ]


def tuning(zoo: Zoo) -> str:
    """Every value that was tried, with its held-out accuracy; the chosen one in bold."""
    rows = []
    for name in zoo.methods:
        lines, (key, values) = zoo.trials(name), zoo.tried(name)
        if not lines:
            continue
        best, cells = zoo.chosen(name), []
        for value in values:
            shown = "open" if value not in lines else "failed"
            if value in lines and lines[value]["state"] == "finished":
                shown = per_cent(held_out(lines[value]))
            cells.append(f"**{value}: {shown}**" if value == best else f"{value}: {shown}")
        edge = "at the edge" if best in (values[0], values[-1]) else ""
        rows.append([name, f"`{key}`", ", ".join(cells), edge])
    return table(["method", "setting", "held-out accuracy, %", "chosen"], rows, texts=4)


def failures(zoo: Zoo) -> str:
    """A line for each run that failed, and its reason; of all parts."""
    rows = []
    for name in zoo.methods:
        key = zoo.tried(name)[0]
        ended = [("tuning", v, x) for v, x in zoo.trials(name).items()]
        for part in zoo.parts:
            finals = zoo.study.finals(part, name).values()
            ended += [(zoo.study.tables[part].title, zoo.chosen(name) or "", x) for x in finals]
        for stage, value, x in ended:
            if x["state"] == "failed":
                why = (x.get("reason") or "no reason given").splitlines()[0]
                rows.append([name, stage, f"{key}={value}", str(x["seed"]), why])
    return table(["method", "stage", "value", "seed", "why"], rows, texts=5) if rows else ""


def state(zoo: Zoo) -> str:
    """What is there, and what is not; a method with one value needs no tuning."""
    every = {n: len(zoo.tried(n)[1]) for n in zoo.methods}
    untuned = [n for n, count in every.items() if len(zoo.trials(n)) < count and count > 1]
    said = f"- {len(zoo.methods) - len(untuned)} of {len(zoo.methods)} methods are tuned.\n"
    said += f"- Not yet tuned: {', '.join(untuned)}.\n" if untuned else ""
    return said + zoo.study.state(zoo.parts)


# ------------------------------------------------------------------------------------- the pictures
def plots(zoo: Zoo, part: str) -> list[str | Plot]:
    """The part's pictures."""
    if not zoo.ranked(part):
        return []
    words, short = zoo.study.tables[part].title, "" if part == "dirichlet" else f"-{part}"
    ends = {n: mean([*zoo.values(n, part).values()]) or 0.0 for n in zoo.ranked(part)}
    last = ", ".join(f"{n} {fixed(100 * end, 1)}" for n, end in ends.items())
    average = "Moving average of the test accuracy by"
    by_round = (
        f"{average} round, {words}; means of the last tenth of evaluations in per cent: {last}"
    )
    out: list[str | Plot] = [
        Plot(f"zoo-rounds{short}", by_round, lambda: _curves(zoo, part, by_bytes=False)),
        Plot(
            f"zoo-bytes{short}",
            f"{average} MiB sent up and down, {words}",
            lambda: _curves(zoo, part, by_bytes=True),
        ),
    ]
    said = "The mean of the last tenth of evaluations of every seed and its mean, by method"
    return [*out, Plot("zoo-ranking", said, lambda: _ranking(zoo))] if part == "dirichlet" else out


def families(zoo: Zoo) -> dict[str, list[str]]:
    """The families of the methods that there are; what is in none is in a last one."""
    known: dict[str, list[str]] = zoo.study.words["families"]
    more = [n for n in zoo.methods if n != BASE and all(n not in names for names in known.values())]
    found = {title: [n for n in names if n in zoo.methods] for title, names in known.items()}
    return {title: names for title, names in (found | {"Others": more}).items() if names}


def _band(zoo: Zoo, name: str, part: str, by_bytes: bool) -> Band:
    """The seeds' moving averages in per cent, by round or by MiB."""
    runs = zoo.counted(part, name).values()
    found = band([{t: 100 * v for t, v in smoothed(points(x, "curve")).items()} for x in runs])
    if not by_bytes:
        return found
    sent = {t: mean([sent_by(x)(t) for x in runs]) or 0.0 for t, *_ in found}
    return [(sent[t] / 2**20, *values) for t, *values in found]  # type: ignore[misc]  # mypy loses the length at *


def _curves(zoo: Zoo, part: str, by_bytes: bool) -> Figure:
    """A panel for each family, with FedAvg in each; a legend below each."""
    grid, look = [], {BASE: Style("#888888", "--")}
    for title, names in families(zoo).items():
        look |= {name: numbered(i) for i, name in enumerate(names)}
        curves = {name: _band(zoo, name, part, by_bytes) for name in names}
        if any(curves.values()):
            grid.append((title, {BASE: _band(zoo, BASE, part, by_bytes)} | curves))
    grid = grid or [(BASE, {BASE: _band(zoo, BASE, part, by_bytes)})]
    x = "MiB up and down" if by_bytes else "rounds"
    made, axes, drawn = curves_side_by_side(grid, look, x, "accuracy, EMA (%)", across=2)
    bands = [curve for _, curves in grid for curve in curves.values()]
    for place, handles in zip(axes, drawn, strict=True):
        place.set(xlim=(0, None), ylim=_heights(bands))
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 3}
        place.legend([*handles.values()], [*handles], fontsize=7, frameon=False, **below)
    return made


def _heights(bands: Sequence[Band]) -> tuple[float, float]:
    """From where most of the curves are: the first rounds of a slow method would take half of the
    height.
    """
    middles = sorted(middle for b in bands for _, middle, _, _ in b[len(b) // 10 :])
    return middles[len(middles) // 30] - 2, 1 + max(high for b in bands for *_, high in b)


def _ranking(zoo: Zoo) -> Figure:
    ranked = zoo.ranked("dirichlet")
    rows = {
        p: [(n, [100 * v for v in zoo.values(n, p).values()], None) for n in ranked]
        for p in zoo.parts
    }
    there = {part: [row for row in own if row[1]] for part, own in rows.items()}
    words = "mean of the last tenth of evaluations (%)"
    return dots([(zoo.study.tables[part].title, words, own) for part, own in there.items() if own])


# ----------------------------------------------------------------------------------------- the page
def make(study: Study, words: str) -> Page:
    """The page."""
    zoo, high = Zoo(study), Zoo(study, "higher", ("higher",))
    parts: list[str | Plot] = ["## What there is", state(zoo)]
    for part in zoo.parts:
        said = zoo.study.tables[part].title[0].upper() + zoo.study.tables[part].title[1:]
        if any(study.finals(part, n) for n in zoo.methods):
            parts += [f"## {said}", study.text("legend"), results(zoo, part)]
            parts += plots(zoo, part)
            parts += beside_the_papers(zoo) if part == zoo.tuned else []
        if part == "dirichlet":
            parts += at_the_higher_rate(zoo, high)
    if parts[-1] != parts[1]:
        parts += ["## The papers' claims", claims_table(claims_of(zoo)), study.text("note")]
    if any(zoo.trials(n) for n in zoo.methods):
        parts += ["## Tuning", study.text("tuning"), tuning(zoo)]
    if failed := failures(zoo):
        parts += ["## Failed runs", failed]
    return Page("zoo", words, parts)
