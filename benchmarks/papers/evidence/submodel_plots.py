"""submodels.md: curves, histograms, unseen sizes and exploration, as in FIARSE's Figures 2 to 7."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedloom.report.style import Style, numbered

from .drawing import Axis, Panel, Trace, band, panels, steps
from .page import Plot, per_cent
from .submodel_runs import Part, size_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ROUNDS = Axis("rounds", low=0)


def _look(part: Part, method: str) -> Style:
    return numbered(part.planned.index(method))


def _traces(part: Part, methods: list[str], column: str) -> list[Trace]:
    found = [(m, band(part.curves(m, column))) for m in methods]
    return [Trace(m, b, _look(part, m)) for m, b in found if b is not None]


def by_round(part: Part) -> list[str | Plot]:
    """Accuracy on the common test set by round, a panel for each size; the rivals, the ablation."""
    out: list[str | Plot] = []
    ablation = [m for m in part.there if m not in part.rivals or m == "FIARSE"]
    for name, methods, said in (
        ("rounds", [m for m in part.there if m in part.rivals], "of the rules"),
        ("ablation", ablation if len(ablation) > 1 else [], "of FIARSE and its ablation"),
    ):
        if not methods:
            continue

        def draw(methods: list[str] = methods) -> Figure:
            grid = [
                Panel(f"size {size_name(s)}", _traces(part, methods, f"test_accuracy@{s}"))
                for s in part.sizes
            ]
            across = 3 if len(grid) > 4 else 2
            return panels(grid, ROUNDS, Axis("global accuracy (%)", 100.0), across)

        last = "; ".join(
            f"{m}, size {size_name(s)}: {per_cent(part.average(m, 'global', s))}"
            for m in methods
            for s in part.sizes
        )
        alt = f"{part.table.title}: global accuracy {said} by round and size. Means of the last "
        alt += f"tenth of evaluations: {last}"
        out.append(Plot(f"submodels-{part.name}-{name}", alt, draw))
    return ["### By round", *out] if out else []


def histograms(part: Part) -> list[str | Plot]:
    """How many clients reach which local accuracy."""
    methods = [m for m in part.there if part.clients(m)]
    if not methods:
        return []

    def draw() -> Figure:
        grid = [(m, part.clients(m)) for m in methods]
        seeds = [len(part.runs(m)) for m in methods]
        return steps(grid, [_look(part, m) for m in methods], seeds)

    ends = "; ".join(
        f"{m} {per_cent(math.fsum(part.clients(m)) / len(part.clients(m)))}" for m in methods
    )
    alt = f"{part.table.title}: clients by local accuracy, bins of five points, mean of the seeds"
    name = f"submodels-{part.name}-clients"
    return ["### Clients by local accuracy", Plot(name, f"{alt}. Means: {ends}", draw)]


def unseen(part: Part) -> list[str | Plot]:
    """Accuracy against size, trained or not."""
    found = [(m, band(part.unseen(m))) for m in part.there if m in part.rivals]
    if not any(b is not None and len(b.x) > len(part.sizes) for _, b in found):
        return []

    def draw() -> Figure:
        traces = [Trace(m, b, _look(part, m)) for m, b in found if b is not None]
        every = {x for t in traces for x in t.band.x}
        ticks = {4.0**-i: size_name(4.0**-i) for i in range(5) if 4.0**-i in every}
        x = Axis("size: share of the model", log=True, ticks=ticks)
        trained = ", ".join(map(size_name, part.sizes))
        grid = [Panel(f"trained: {trained}", traces)]
        return panels(grid, x, Axis("global accuracy (%)", 100.0), across=1)

    alt = f"{part.table.title}: global accuracy of sub-models of every size, trained or not"
    return ["### Sizes that nobody trained", Plot(f"submodels-{part.name}-unseen", alt, draw)]


def explored(part: Part) -> list[str | Plot]:
    """What FIARSE's sizes have held so far, and how much of them a round replaces."""
    method = "FIARSE"
    kinds = (
        ("explored", "held so far"),
        ("trained", "held so far, by a client that took part"),
        ("replaced", "replaced by a round"),
    )
    if not any(c for s in part.sizes for c in part.curves(method, f"explored@{s}")):
        return []

    def draw() -> Figure:
        grid = []
        for column, said in kinds:
            found = [(s, band(part.curves(method, f"{column}@{s}"))) for s in part.sizes]
            traces = [
                Trace(f"size {size_name(s)}", b, numbered(i))
                for i, (s, b) in enumerate(found)
                if b is not None
            ]
            grid.append(Panel(said, traces))
        share = Axis("coordinates (%)", 100.0)
        return panels(grid, ROUNDS, share, across=3, shared=False)

    words = (
        "Of FIARSE; definitions of ours, as the paper's curves have none: the share of the "
        "coordinates that a size has held so far, the same in rounds in which a client of that "
        "size took part, and the share of its part that the last round replaced."
    )
    alt = f"{part.table.title}: exploration and model difference of FIARSE by round and size"
    plot = Plot(f"submodels-{part.name}-explored", f"{alt} (as in Figure 7)", draw)
    return ["### Exploration and model difference", words, plot]
