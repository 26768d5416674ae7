"""compression.md: compressed runs on Fashion-MNIST, FedACG with FedPAQ, CFedAvg's MNIST network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedloom.core.curves import at
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean
from fedloom.report.style import Style
from fedloom.report.tables import MISSING, fixed

from ..figures import curves_side_by_side, one_legend
from ..lines import Line
from ..series import Band, band, points, roughness
from .claims import Reader, claims
from .page import Page, Plot, claims_table, mib, per_cent, table
from .study import Study, late

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES = ("p=1", "p=2", "p=5")
PLAIN = "uncompressed"
FEEDBACK = (PLAIN, "Top-k .9", "Top-k .99", "RD .9", "RD .99")
LOOK: Mapping[str, Style] = {
    PLAIN: Style("#000000", "-"),
    "Top-k .9": Style("#0072B2", "-"),
    "Top-k .99": Style("#0072B2", "--"),
    "RD .9": Style("#D55E00", "-"),
    "RD .99": Style("#D55E00", "--"),
    "Top-k .99, no feedback": Style("#56B4E9", "-."),
    "RD .99, no feedback": Style("#E69F00", "-."),
    "‖Δ‖²": Style("#0072B2", "-"),
    "‖e‖²": Style("#D55E00", "-"),
    **{
        f"{method}{more}": Style(colour, dash)
        for method, colour in (("fedavg", "#0072B2"), ("fedacg", "#D55E00"))
        for more, dash in (("", "-"), (", fedpaq 127", "--"), (", fedpaq 7", ":"))
    },
}
WITHOUT = (PLAIN, "Top-k .99", "RD .99", "Top-k .99, no feedback", "RD .99, no feedback")
BUDGETS = (0.5, 1.0, 2.0)  # model sizes that a client has sent
BOTH = (10.0, 20.0, 60.0, 100.0)  # model sizes; a round without compression has two


# --------------------------------------------------------------------------------------- the lines
Curve = Callable[[Line], dict[float, float]]


def share(changes: Sequence[str]) -> float:
    """The share of the coordinates that a way sends.

    >>> share(["compress=topk:0.01"]), share(["compress=none"])
    (0.01, 1.0)
    """
    ways = [c.partition("=")[2] for c in changes if c.startswith("compress=")]
    return float(ways[-1].partition(":")[2] or 1) if ways else 1.0


def after(curve: Mapping[float, float], budget: float) -> float | None:
    """A curve by models sent where a client has sent so many: on straight lines between
    evaluations, and the end of a run that sends less in all; None before its first evaluation.

    >>> after({2.0: 0.1, 10.0: 0.5}, 6.0), after({2.0: 0.1}, 60.0), after({2.0: 0.1}, 1.0)
    (0.30000000000000004, 0.1, None)
    """
    return at(curve, min(budget, max(curve)))


def sent(line: Line) -> float:
    """What one answer really is, in models of float32: bytes with everything that goes with them,
    the mean over all rounds and clients.
    """
    recipe = RECIPES[line["recipe"]]()
    population, cohort = int(recipe["data"]["partition"]["clients"]), float(recipe["cohort"])
    answers = round(cohort if cohort > 1 else population * cohort) * line["rounds"]
    return float(line["bytes_up"] / (answers * 4 * line["parameters"]))


def by_both_ways(line: Line) -> dict[float, float]:
    """{model sizes that one client has sent and received, in true bytes: accuracy}."""
    each = sent(line) * (1 + line["bytes_down"] / line["bytes_up"])
    return {each * t: v for t, v in points(line, "curve").items()}


def by_uplink(line: Line, true: bool) -> dict[float, float]:
    """{model sizes that one client has sent: accuracy}: nominal (the kept share, CFedAvg's unit),
    or true bytes; every round has the same share of the run's bytes.
    """
    each = sent(line) if true else share(line["changes"])
    return {each * t: v for t, v in points(line, "curve").items()}


def measured(line: Line, name: str) -> float | None:
    """What claims compare: `late`, the `average` accuracy over the rounds, its `roughness`,
    ‖e‖² over ‖Δ‖² at the `end`, the `growth` of ‖e‖², `uplink`: the accuracy after so many
    models sent, nominal or true, `both`: after so many both ways, the `bytes` up, MiB to the
    `target`, and the `last` value and moving average (`ema`).
    """
    name, _, where = name.partition("@")
    curve = points(line, "curve")
    if name == "uplink":
        unit, models = where.split()
        return after(by_uplink(line, unit == "true"), float(models))
    if name == "both":
        return after(by_both_ways(line), float(where))
    if name == "target":
        return None if line["bytes_to_target"] is None else float(line["bytes_to_target"] / 2**20)
    if name == "end":
        kept, update = (fifth(points(line, f"{k}_square"), 1) for k in ("residual", "delta"))
        return kept / update if kept is not None and update else None
    if name == "growth":
        error = points(line, "residual_square")
        last, before = fifth(error, 1), fifth(error, 2)
        return last / before if last is not None and before and len(error) >= 10 else None
    kinds: dict[str, Callable[[], float | None]] = {
        "late": lambda: late(line),
        "average": lambda: mean([*curve.values()]),
        "roughness": lambda: roughness(curve),
        "bytes": lambda: float(line["bytes_up"]),
        "last": lambda: float(line["last"]["value"]),
        "ema": lambda: float(line["last_ema"]),
    }
    return kinds[name]()


def fifth(curve: Mapping[int, float], number: int) -> float | None:
    """The mean of a curve's last fifth (number 1) or the one before (2); None of nothing."""
    values = [curve[t] for t in sorted(curve)]
    size = max(1, len(values) // 5)
    own = values[-number * size : len(values) - (number - 1) * size]
    return math.fsum(own) / len(own) if own else None


def there(study: Study) -> list[str]:
    """The tables of Fashion-MNIST with a finished run."""
    return [table for table in TABLES if study.there(table)]


def fashion(study: Study, rows: Sequence[str]) -> list[tuple[str, str, Line]]:
    """(table, row, line) of these ways on Fashion-MNIST."""
    found = [(p, way, study.first(p, way)) for p in TABLES for way in rows]
    return [(p, way, line) for p, way, line in found if line]


# -------------------------------------------------------------------------------------- the tables
HEAD = ["last tenth", "less uncompressed", "last", "best", "EMA, last", "rounds to target"]
HEAD += ["MiB to target", "MiB up", "MiB down", "model sizes an answer"]


def _row(name: str, line: Line, plain: Line | None) -> list[str]:
    less = "" if plain is None or plain is line else fixed(100 * (late(line) - late(plain)), 2, "+")
    return [
        name,
        per_cent(late(line)),
        less,
        per_cent(line["last"]["value"]),
        per_cent(line["best"]["value"]),
        per_cent(line["last_ema"]),
        line["rounds_to_target_text"] or MISSING,
        mib(line["bytes_to_target"]),
        mib(line["bytes_up"]),
        mib(line["bytes_down"]),
        f"{sent(line):.4f}",
    ]


def ways(study: Study, p: str) -> str:
    """The ways of compression with so many classes per client."""
    plain, found = study.first(p, PLAIN), {w: study.first(p, w) for w in study.tables[p].rows}
    rows = [[*_row(w, x, plain), f"{share(x['changes']):g}"] for w, x in found.items() if x]
    return table(["way", *HEAD, "nominal"], rows)


def named(study: Study, of: str, before: str = "") -> str:
    """The runs of another table, each beside the uncompressed one."""
    found = {row: study.first(of, row) for row in study.tables[of].rows}
    plain = {row: study.first(of, PLAIN if before else row.partition(",")[0]) for row in found}
    rows = [_row(before + row, line, plain[row]) for row, line in found.items() if line]
    return table(["run", *HEAD], rows)


def after_models(study: Study, heads: Sequence[str], *curves: tuple[Curve, Sequence[float]]) -> str:
    """Accuracy when a client has sent so many model sizes. curves: what gives a run's curve by
    model sizes, and the sizes.
    """
    rows = []
    for p, way, line in fashion(study, FEEDBACK):
        found = [after(curve(line), size) for curve, sizes in curves for size in sizes]
        rows.append([p[2:], way, *map(per_cent, found)])
    return table(["p", "way", *heads], rows, texts=2)


# ------------------------------------------------------------------------------------- the pictures
LATE = "Means of the last tenth of evaluations"
Grid = list[tuple[str, dict[str, Band]]]


def _curve(line: Line, key: str = "curve") -> Band:
    """A run's curve; accuracies in per cent."""
    return band([{t: (100 if key == "curve" else 1) * v for t, v in points(line, key).items()}])


def _percent(curve: Mapping[float, float]) -> Band:
    return band([{x: 100 * v for x, v in curve.items()}])


def _drawn(
    grid: Grid, x: str, y: str | Sequence[str], across: int, log: str = "", below: int = 0
) -> Figure:
    """Panels with one legend below. y: of all, or of each row; log: the axes with powers of ten, of
    the panels from `below` on.
    """
    made, axes, drawn = curves_side_by_side(grid, LOOK, x, y, across, shared=True)
    for place in axes[below:]:
        place.set(**{f"{axis}scale": "log" for axis in log})
    one_legend(made, drawn, {})
    return made


def by_round(study: Study) -> list[str | Plot]:
    """Accuracy and training loss by round, with feedback, and with and without."""
    out: list[str | Plot] = []
    for name, rows, says in (
        ("rounds", FEEDBACK, "with error feedback (as in Figure 4)"),
        ("feedback", WITHOUT, "with and without error feedback (as in Figure 7)"),
    ):
        if found := fashion(study, rows):
            last = "; ".join(f"{p}, {way} {per_cent(late(line))}" for p, way, line in found)
            alt = f"Test accuracy and training loss by round, {says}. {LATE}: {last}"
            grid: Grid = [
                (f"{p}: {said}", {w: _curve(x, key) for q, w, x in found if q == p})
                for key, said in (("curve", "accuracy"), ("train_loss", "training loss"))
                for p in there(study)
            ]
            wide, ys = len(there(study)), ["test accuracy (%)", "training loss"]
            draw = partial(_drawn, grid, "rounds", ys, wide, "y", wide)
            out.append(Plot(f"compression-{name}", alt, draw))
    return out


def errors(study: Study) -> list[str | Plot]:
    """The mean squared norms of update and error."""
    grid: Grid = [
        (
            f"{p}: {way}",
            {"‖Δ‖²": _curve(line, "delta_square"), "‖e‖²": _curve(line, "residual_square")},
        )
        for p, way, line in fashion(study, FEEDBACK[1:])
    ]
    if not any(curve for _, curves in grid for curve in curves.values()):
        return []
    alt = "Mean squared norms of the clients' updates and of what feedback keeps, by round"
    draw = partial(_drawn, grid, "rounds", "mean over the clients", 4, "y")
    return [Plot("compression-errors", f"{alt} (as in Figure 9)", draw)]


def uplink(study: Study) -> list[str | Plot]:
    """Accuracy against what one client has sent, nominal and true."""
    found = fashion(study, FEEDBACK)
    if not found:
        return []
    grid: Grid = [
        (f"{p}: {said}", {w: _percent(by_uplink(x, true)) for q, w, x in found if q == p})
        for true, said in ((False, "nominal"), (True, "true bytes"))
        for p in there(study)
    ]
    words = "model sizes sent by a client"
    draw = partial(_drawn, grid, words, "test accuracy (%)", len(there(study)), "x")
    alt = "Test accuracy against the model sizes that a client has sent, nominal and in true bytes"
    return [Plot("compression-uplink", f"{alt} (as in Figure 2, without its baseline)", draw)]


def two(study: Study, of: str, alt: str) -> list[str | Plot]:
    """The runs of another table by round, and by what a client has sent; nothing without a run."""
    found = {row: x for row in study.tables[of].rows if (x := study.first(of, row))}
    if not found:
        return []
    grid: Grid = [
        ("by round", {row: _curve(x) for row, x in found.items()}),
        ("by models sent by a client", {n: _percent(by_uplink(x, True)) for n, x in found.items()}),
    ]
    last = "; ".join(f"{row} {per_cent(late(x))}" for row, x in found.items())
    draw = partial(_drawn, grid, "", "test accuracy (%)", 2, "x", 1)
    return [Plot(f"compression-{of}", f"{alt}. {LATE}: {last}", draw)]


# ----------------------------------------------------------------------------------------- the page
def reader(study: Study) -> Reader:
    """What claims read."""
    return Reader(study, "p=5", measured, study.finished)


def state(study: Study) -> str:
    """What is there, and what is not."""
    return study.state() + (
        "\n- Not among the runs: Figure 2's baseline, FedAvg with one local step; p=10; CFedAvg's "
        "experiments on CIFAR-10; further seeds."
    )


def make(study: Study, words: str) -> Page:
    """The page."""
    parts: list[str | Plot] = ["## What there is", state(study)]
    if any(study.there(name) for name in study.tables):
        parts += ["## CFedAvg's and FedACG's claims"]
        parts += [claims_table(claims(reader(study)), one_seed=True), study.text("note")]
    if there(study):
        parts += ["## Fashion-MNIST, 20 clients", study.text("legend")]
        for p in there(study):
            classes = "1 class" if p == "p=1" else f"{p[2:]} classes"
            parts += [f"### {p}: {classes} per client", ways(study, p)]
        parts += ["### By round", *by_round(study)]
        parts += [
            "### At equal bytes, both ways",
            study.text("both_ways"),
            after_models(study, [f"{b:g}" for b in BOTH], (by_both_ways, BOTH)),
        ]
        heads = [f"{b:g}, {unit}" for unit in ("nominal", "true") for b in BUDGETS]
        both = ((partial(by_uplink, true=true), BUDGETS) for true in (False, True))
        parts += ["### At equal uplink", study.text("uplink"), after_models(study, heads, *both)]
        parts += uplink(study)
        if norms := errors(study):
            parts += ["### Error norms", *norms]
    if study.there("fedpaq"):
        alt = "Test accuracy of FedAvg and FedACG with FedPAQ by round and by models sent"
        parts += [
            "## FedACG with FedPAQ",
            study.text("fedpaq"),
            named(study, "fedpaq"),
            *two(study, "fedpaq", alt),
        ]
    if study.there("mnist"):
        alt = "Test accuracy on MNIST by round and by what a client has sent"
        parts += [
            "## MNIST, CFedAvg's network",
            study.text("mnist"),
            named(study, "mnist", "mnist p=1, "),
        ]
        parts += two(study, "mnist", alt)
    return Page("compression", words, parts)
