"""compression.md: curves, bytes and error norms, as in CFedAvg's Figures 2, 4, 7 and 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedloom.papers.lines import Line
from fedloom.papers.series import points
from fedloom.report.style import Style

from .compression_runs import CLASSES, FEEDBACK, PLAIN, Runs, by_uplink, late
from .drawing import Axis, Panel, Trace, band, panels
from .page import Plot, per_cent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LOOK: Mapping[str, Style] = {
    PLAIN: Style("#000000", "-"),
    "Top-k .9": Style("#0072B2", "-"),
    "Top-k .99": Style("#0072B2", "--"),
    "RD .9": Style("#D55E00", "-"),
    "RD .99": Style("#D55E00", "--"),
    "Top-k .99, no feedback": Style("#56B4E9", "-."),
    "RD .99, no feedback": Style("#E69F00", "-."),
}
WITHOUT = (PLAIN, *(w for w in LOOK if ".99" in w))
ROUNDS = Axis("rounds", low=0)
LATE = "Means of the last tenth of evaluations"
ACCURACY = Axis("test accuracy (%)", 100.0)
LOSS = Axis("training loss", log=True)


def _trace(
    name: str, curve: Mapping[float, float] | Mapping[int, float], style: Style
) -> list[Trace]:
    found = band([curve])
    return [Trace(name, found, style)] if found else []


def fashion(runs: Runs) -> list[str | Plot]:
    """Accuracy and training loss by round, with feedback, and with and without."""
    out: list[str | Plot] = []
    for name, ways, says in (
        ("rounds", FEEDBACK, "with error feedback (as in Figure 4)"),
        ("feedback", WITHOUT, "with and without error feedback (as in Figure 7)"),
    ):
        found = [(p, w) for p in CLASSES for w in ways if runs.fashion(p, w)]
        if found:
            last = "; ".join(f"p={p}, {w} {per_cent(runs.late(p, w))}" for p, w in found)
            alt = f"Test accuracy and training loss by round, {says}. {LATE}: {last}"
            out.append(Plot(f"compression-{name}", alt, partial(_rounds, runs, ways)))
    return out


def _rounds(runs: Runs, ways: Sequence[str]) -> Figure:
    grid, shown = [], [p for p in CLASSES if any(runs.fashion(p, w) for w in ways)]
    for key, said in (("curve", "accuracy"), ("train_loss", "training loss")):
        for p in shown:
            traces = [t for w in ways for t in _trace(w, runs.curve(p, w, key), LOOK[w])]
            grid.append(Panel(f"p={p}: {said}", traces))
    return panels(grid, ROUNDS, [ACCURACY, LOSS], across=len(shown))


def errors(runs: Runs) -> list[str | Plot]:
    """The mean squared norms of update and error."""
    ways = FEEDBACK[1:]
    if not any(runs.curve(p, w, "residual_square") for p in CLASSES for w in ways):
        return []
    kinds = (("delta_square", "‖Δ‖²", "#0072B2"), ("residual_square", "‖e‖²", "#D55E00"))

    def draw() -> Figure:
        grid = []
        for p in (p for p in CLASSES if any(runs.fashion(p, w) for w in ways)):
            for way in ways:
                traces = [
                    t
                    for key, said, colour in kinds
                    for t in _trace(said, runs.curve(p, way, key), Style(colour, "-"))
                ]
                grid.append(Panel(f"p={p}: {way}", traces))
        return panels(grid, ROUNDS, Axis("mean over the clients", log=True), across=len(ways))

    alt = "Mean squared norms of the clients' updates and of what feedback keeps, by round"
    return [Plot("compression-errors", f"{alt} (as in Figure 9)", draw)]


def uplink(runs: Runs) -> list[str | Plot]:
    """Accuracy against what one client has sent, nominal and true."""
    shown = [p for p in CLASSES if any(runs.fashion(p, w) for w in FEEDBACK)]
    if not shown:
        return []

    def draw() -> Figure:
        grid = []
        for true, said in ((False, "nominal"), (True, "true bytes")):
            for p in shown:
                traces = []
                for way in FEEDBACK:
                    if line := runs.fashion(p, way):
                        traces += _trace(way, by_uplink(line, true), LOOK[way])
                grid.append(Panel(f"p={p}: {said}", traces))
        x = Axis("model sizes sent by a client", log=True)
        return panels(grid, x, ACCURACY, across=len(shown))

    alt = "Test accuracy against the model sizes that a client has sent, nominal and in true bytes"
    return [Plot("compression-uplink", f"{alt} (as in Figure 2, without its baseline)", draw)]


def fedpaq(runs: Runs) -> list[str | Plot]:
    """FedAvg and FedACG with FedPAQ, by round and by bytes up."""
    found = {n: runs.by_name[n] for n in runs.plan if n.startswith("fed") and n in runs.by_name}
    looks = {}
    for name in found:
        dash = {"127": "--", "7": ":"}.get(name.rpartition(" ")[2], "-")
        looks[name] = Style("#0072B2" if name.startswith("fedavg") else "#D55E00", dash)
    sent = {
        n: {t * x["bytes_up"] / x["rounds"]: v for t, v in points(x, "curve").items()}
        for n, x in found.items()
    }
    up = Axis("MiB up, all clients", 2**20, log=True)
    alt = "Test accuracy of FedAvg and FedACG with FedPAQ by round and by MiB up"
    return _two("fedpaq", found, looks, sent, up, alt)


def mnist(runs: Runs) -> list[str | Plot]:
    """CFedAvg's own network on MNIST."""
    found = {w: x for w in LOOK if (x := runs.by_name.get(f"mnist p=1, {w}"))}
    sent = {way: by_uplink(line, true=True) for way, line in found.items()}
    up = Axis("model sizes sent by a client, true bytes", log=True)
    alt = "Test accuracy on MNIST by round and by what a client has sent"
    return _two("mnist", found, LOOK, sent, up, alt)


def _two(
    name: str,
    found: Mapping[str, Line],
    looks: Mapping[str, Style],
    sent: Mapping[str, Mapping[float, float]],
    up: Axis,
    alt: str,
) -> list[str | Plot]:
    """Runs by round, and by what they have sent; nothing without a run."""
    if not found:
        return []

    def draw() -> Figure:
        by_round = [t for n, x in found.items() for t in _trace(n, points(x, "curve"), looks[n])]
        by_bytes = [t for n, curve in sent.items() for t in _trace(n, curve, looks[n])]
        grid = [Panel("by round", by_round), Panel("by bytes up", by_bytes, up)]
        return panels(grid, ROUNDS, ACCURACY, across=2)

    last = "; ".join(f"{n} {per_cent(late(x))}" for n, x in found.items())
    return [Plot(f"compression-{name}", f"{alt}. {LATE}: {last}", draw)]
