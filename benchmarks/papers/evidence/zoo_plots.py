"""zoo.md: curves by family, and the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedloom.report.curve_data import mean
from fedloom.report.style import Style, numbered
from fedloom.report.tables import fixed

from .drawing import Axis, Band, Panel, Trace, band, dots, panels
from .page import Plot
from .zoo_runs import BASE, Zoo

if TYPE_CHECKING:
    from matplotlib.figure import Figure


GREY = Style("#888888", "--")


def plots(zoo: Zoo, part: str) -> list[str | Plot]:
    """The part's pictures, with a line of words before each."""
    if not zoo.ranked(part):
        return []
    words, short = zoo.words_of(part), "" if part == "dirichlet" else f"-{part}"
    ends = {n: mean(list(zoo.values(n, part).values())) or 0.0 for n in zoo.ranked(part)}
    last = ", ".join(f"{n} {fixed(100 * end, 1)}" for n, end in ends.items())
    out: list[str | Plot] = [
        Plot(
            f"zoo-rounds{short}",
            f"Moving average of the test accuracy by round, {words}; means of the last tenth of "
            f"evaluations in per cent: "
            f"{last}",
            lambda: _curves(zoo, part, by_bytes=False),
        ),
        Plot(
            f"zoo-bytes{short}",
            f"Moving average of the test accuracy by MiB sent up and down, {words}",
            lambda: _curves(zoo, part, by_bytes=True),
        ),
    ]
    if part == "dirichlet":
        out.append(
            Plot(
                "zoo-ranking",
                "The mean of the last tenth of evaluations of every seed and its mean, by method",
                lambda: _ranking(zoo),
            )
        )
    return out


def families(zoo: Zoo) -> dict[str, list[str]]:
    """The families of the methods that there are; what is in none is in a last one."""
    known = {n for names in zoo.study.words["families"].values() for n in names} | {BASE}
    more = [n for n in zoo.methods if n not in known]
    found = {
        title: [n for n in names if n in zoo.methods]
        for title, names in zoo.study.words["families"].items()
    }
    return {k: v for k, v in (found | {"Others": more}).items() if v}


def _band(zoo: Zoo, name: str, part: str, by_bytes: bool) -> Band | None:
    """The seeds' moving averages, by round or by bytes."""
    found = band(zoo.curves(name, part))
    if found is None or not by_bytes:
        return found
    runs = zoo.counted(name, part).values()
    sent = tuple(mean([zoo.sent(name, x, t) for x in runs]) or 0.0 for t in found.x)
    return Band(sent, found.mean, found.low, found.high, found.seeds)


def _curves(zoo: Zoo, part: str, by_bytes: bool) -> Figure:
    base, grid = _band(zoo, BASE, part, by_bytes), []
    bands: list[Band] = []
    for title, names in families(zoo).items():
        traces = [Trace(BASE, base, GREY, faint=True)] if base else []
        for i, name in enumerate(names):
            if (found := _band(zoo, name, part, by_bytes)) is not None:
                traces.append(Trace(name, found, numbered(i)))
                bands.append(found)
        if any(not t.faint for t in traces):
            grid.append(Panel(title, traces))
    if base and not grid:
        grid.append(Panel(BASE, [Trace(BASE, base, GREY)]))
    bands += [base] if base else []
    x = Axis("MiB up and down", 2**20, low=0) if by_bytes else Axis("rounds", low=0)
    return panels(grid, x, _heights(bands), across=2, own_legends=True)


def _heights(bands: list[Band]) -> Axis:
    """One axis for all panels, from where most of the curves are: the first rounds of a slow method
    would take half of the height.
    """
    middles = sorted(v for b in bands for v in b.mean[len(b.mean) // 10 :])
    low = middles[len(middles) // 30] if middles else 0.0
    high = max((v for b in bands for v in b.high), default=1.0)
    return Axis("accuracy, EMA (%)", 100.0, low=100 * low - 2, high=100 * high + 1)


def _ranking(zoo: Zoo) -> Figure:
    rows = []
    for name in zoo.ranked("dirichlet"):
        cells = {
            w: [100 * v for v in zoo.values(name, p).values()]
            for p in zoo.parts
            for w in [zoo.words_of(p)]
        }
        rows.append((name, {k: v for k, v in cells.items() if v}))
    return dots(rows, "accuracy, mean of the last tenth of evaluations (%)")
