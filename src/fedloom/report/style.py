"""The style of pictures: colours and marks per algorithm, sizes, legends, text taken literally."""

from __future__ import annotations

import functools
import io
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedloom.core.extras import need
from fedloom.core.parsing import user_path

from ..storage.atomic import write_out
from .curve_data import Curve
from .runs import Group
from .tables import human_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
WIDTH, HEIGHT = 5.6, 3.9  # inches, of a picture with one pair of axes
# Okabe and Ito's palette for colour-blind readers, without its yellow, which is faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
# nine, so that colour and mark together repeat only after 63 groups, and lines differ in grey too
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_SMALL, _INK, _FAINT = 9.0, "#222222", "#d8d8d8"
_FEW = 40  # measured points up to which each gets a mark; of more about ten do


@dataclass(frozen=True)
class Style:
    """Colour, dash and mark of a line."""

    colour: str
    dash: str
    mark: str = "o"


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawn figure with its file name (no ending) and the words that go with it."""

    name: str
    title: str
    alt: str
    figure: Figure

    @functools.cached_property
    def png(self) -> bytes:
        """The file; drawn once, however many places show it."""
        return png(self.figure)

    def as_bytes(self, kind: str) -> bytes:
        """The file in a format: png, svg or pdf."""
        return self.png if kind == "png" else vectors(self.figure, kind)


def nth_style(i: int) -> Style:
    """Give the i-th colour and mark; after seven the colours repeat with another dash."""
    dash = _DASHES[i // len(_COLOURS) % len(_DASHES)]
    return Style(_COLOURS[i % len(_COLOURS)], dash, _MARKS[i % len(_MARKS)])


def style_of(group: Group) -> Style:
    """The style of a group, the same in every picture."""
    return nth_style(group.place)


def figure(width: float, height: float) -> Figure:
    """An empty figure (inches) of no global state. Raises ConfigError without matplotlib."""
    need("matplotlib", "a picture", "report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(fig)
    return fig


def panels(
    count: int,
    width: float = 2.8,
    height: float = 2.5,
    across: int = 4,
    sharey: bool | Literal["row"] = False,
) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes (inches), at most `across` in a row -> it, and they."""
    across = min(count, across)
    rows = -(-count // across)
    fig = figure(max(WIDTH, width * across), height * rows)
    axes = fig.subplots(rows, across, squeeze=False, sharey=sharey).ravel().tolist()
    for spare in axes[count:]:
        spare.set_visible(False)
    return fig, axes[:count]


def is_first(axes: Axes) -> bool:
    """Whether a panel stands at the left, where the vertical axis is named."""
    spec = axes.get_subplotspec()
    return spec is None or spec.is_first_col()


def name_panel(axes: Axes, text: str) -> None:
    """Give one of several panels its name."""
    axes.set_title(shorten(text, 48), fontsize=9.5, loc="left")


def plain(axes: Axes, x: str, y: str) -> None:
    """Label the axes, whole numbers at the ticks, and remove unnecessary lines."""
    # on two lines where a column of 3.4 inches would cut it
    axes.set_xlabel("\n".join(textwrap.wrap(shorten(x, 80), 44)), color=_INK)
    axes.set_ylabel(shorten(y, 40), color=_INK)
    axes.tick_params(labelsize=_SMALL, colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        if hasattr(formatter := axis.get_major_formatter(), "set_useOffset"):
            formatter.set_useOffset(False)


def line_with_band(axes: Axes, x: Any, mean: Any, low: Any, high: Any, style: Style) -> Any:
    """Draw a group's mean and the band of its seeds, with marks -> the line."""
    every = 1 if len(x) <= _FEW else len(x) // 10
    look: dict[str, Any] = {
        "color": style.colour,
        "lw": 1.7,
        "marker": style.mark,
        "markevery": every,
    }
    (line,) = axes.plot(x, mean, style.dash, ms=3.0 if every == 1 else 4.0, **look)
    if list(low) != list(high):
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, lw=0)
    return line


def line_chart(
    name: str, title: str, y: str, lines: Sequence[tuple[str, Style, Curve]], log: bool = False
) -> Picture:
    """Draw curves by round, each with its label and style, in a picture of its own."""
    fig = figure(WIDTH, HEIGHT)
    axes = fig.add_subplot()
    handles = [line_with_band(axes, c.x, c.mean, c.low, c.high, style) for _, style, c in lines]
    if log:
        axes.set_yscale("log")
    by_label = [(label, curve) for label, _, curve in lines]
    finish(axes, "rounds", y, by_label)
    legend_below(fig, handles, [label for label, _, _ in lines])
    return Picture(name, title, f"Line chart of {y} by round. {last_values(by_label)}", fig)


def finish(
    axes: Axes, x: str, y: str, curves: Sequence[tuple[str, Curve]], notes: Sequence[str] = ()
) -> None:
    """Label the axes of curves that begin at 0, and say above them what the band is."""
    plain(axes, x, y)
    if x == "rounds":
        axes.locator_params(axis="x", integer=True, nbins=8, steps=[1, 2, 5, 10])
    axes.set_xlim(left=0)
    band = ["mean over the seeds; band: lowest to highest"]
    notes = [*(band if any(curve.seeds > 1 for _, curve in curves) else []), *notes]
    if notes:
        axes.set_title("\n".join(notes), fontsize=8.5, color="#555555", loc="left")


def last_values(curves: Sequence[tuple[str, Curve]], unit: str = "") -> str:
    """The last mean of each labelled curve, in words."""
    values = [(label, float(curve.mean[-1])) for label, curve in curves]
    texts = [
        f"{label} {human_value(value, unit) if np.isfinite(value) else 'not finite'}"
        for label, value in values
    ]
    return f"Last values: {'; '.join(texts)}."


def spans_widely(curves: Iterable[Curve]) -> bool:
    """Whether positive curves span a factor of 50, so that a logarithmic axis shows them better."""
    values = np.concatenate([np.zeros(0), *(curve.mean for curve in curves)])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > 50 * values.min())


def legend_below(fig: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put the legend under the axes, where it covers no line, in as many columns as fit."""
    texts = [shorten(label, 48) for label in labels]
    letters = fig.get_figwidth() * 13  # side by side
    fitting = max(1, min(len(texts), 4, int(letters // (max(map(len, texts), default=0) + 7))))
    rows = max(1, -(-len(texts) // fitting))
    fig.set_figheight(fig.get_figheight() + 0.19 * (rows - 1))  # the axes keep theirs
    fig.legend(
        list(handles),
        texts,
        loc="outside lower center",
        ncols=-(-len(texts) // rows),  # no more rows than needed, but even ones
        fontsize=_SMALL,
        handlelength=2.6,  # long enough for a dash on either side of the mark
        frameon=False,
    )


def shorten(text: str, letters: int) -> str:
    """Make one line of at most so many letters that matplotlib takes literally.

    Dollar signs would start a formula, and a leading underscore hides a legend's entry.

    >>> shorten("$5", 10), shorten("accuracy", 5), shorten("_x", 5)
    ('\\\\$5', 'accu…', ' _x')
    """
    line = " ".join(text.split())
    line = line if len(line) <= letters else f"{line[: letters - 1]}…"
    return (" " if line.startswith("_") else "") + line.replace("$", r"\$")


def png(fig: Figure) -> bytes:
    """Draw a figure as PNG; letters that the font lacks become boxes without a warning."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.image import imsave

    out = io.BytesIO()
    canvas: Any = FigureCanvasAgg(fig)
    with _boxes():
        canvas.draw()  # once: savefig draws twice where a layout is computed
    metadata: Any = {"Software": None}
    imsave(out, canvas.buffer_rgba(), format="png", origin="upper", dpi=fig.dpi, metadata=metadata)
    return out.getvalue()


def vectors(fig: Figure, kind: str) -> bytes:
    """Draw a figure as svg or pdf, the same bytes each time; letters are outlines or embedded."""
    from matplotlib import rc_context

    out, date = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}[kind]
    with _boxes(), rc_context({"svg.hashsalt": "fedloom", "pdf.fonttype": 42}):
        fig.savefig(out, format=kind, metadata={date: None})
    return out.getvalue()


@contextmanager
def _boxes() -> Iterator[None]:
    """Letters that the font lacks become boxes, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def save_pictures(
    pictures: Sequence[Picture], folder: str | Path, kinds: Sequence[str] = ("png",)
) -> list[Path]:
    """Write drawn pictures in each format (png, svg, pdf) -> the files."""
    return [
        write_out(user_path(folder) / f"{picture.name}.{kind}", picture.as_bytes(kind))
        for picture in pictures
        for kind in kinds
    ]
