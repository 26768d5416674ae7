"""One self-contained HTML page about one run or many: tables, pictures, settings, environment."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fedloom._version import __version__
from fedloom.core.curves import Value
from fedloom.core.extras import need
from fedloom.core.parsing import user_path
from fedloom.errors import ConfigError
from fedloom.evaluation.declared import OF_SITES
from fedloom.storage.atomic import write_out
from fedloom.storage.identity import flatten

from .charts import field_bytes
from .clients import attendance, client_cells, names_of, preparation_lines, unseen_cells
from .curve_data import best, last
from .curves import all_pictures
from .differences import answer, cut_to, difference_columns, differences, distinct, setting_cells
from .runs import Group, Run, group_runs, load_run, show_value
from .style import DPI, Picture, save_pictures, style_of
from .submodels import size_cells
from .table_text import table_cells
from .tables import (
    common_skew,
    comparison,
    human_bytes,
    human_seconds,
    human_target,
    human_value,
)


class _Image(NamedTuple):
    """A picture as the template wants it; width in CSS pixels."""

    title: str
    alt: str
    data: str
    width: int


class _Table(NamedTuple):
    """Headings and cells; `swatches` are colours beside the first cells."""

    heads: list[str]
    lines: list[list[str]]
    swatches: Sequence[str] = ()


def write_report(
    paths: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    target: float | None = None,
    title: str | None = None,
    pictures: str | Path | None = None,
    value: Value = "last-tenth",
) -> Path:
    """Read run directories and write one HTML file that needs nothing else, not even the network.

    Works for one run and for many, finished or not; runs that differ only in the seed are put
    together.  `target` (the metric's unit) finds the rounds to it anew on the EMA curves; pictures:
    a folder that gets them as files too, see save_curves; value: what of each run is tested, see
    core.curves.VALUES.  Returns the file.  Raises CheckpointError for what is not a run directory,
    ConfigError if there is none, a library is missing, or a run has no such value.
    """
    page, drawings = _page(paths, target, title, value)
    if pictures is not None:
        save_pictures(drawings, pictures)
    return write_out(user_path(out), page)


class NotebookReport:
    """A report on a notebook's page; its text is the HTML."""

    def __init__(self, page: str, height: int) -> None:
        self.page, self.height = page, height

    def __repr__(self) -> str:
        return f"<report, {len(self.page):,} characters of HTML>"

    def _repr_html_(self) -> str:
        """The report in a frame of its own, so that its style and the notebook's do not meet."""
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe style="{style}" srcdoc="{escape(self.page)}"></iframe>'


def show_report(
    paths: Sequence[str | Path] | str | Path,
    *,
    target: float | None = None,
    title: str | None = None,
    height: int = 600,
    value: Value = "last-tenth",
) -> NotebookReport:
    """The report of `write_report` inline, as the last line of a notebook's cell; no file is
    written. height: of its frame, in pixels. Raises what `write_report` raises.
    """
    return NotebookReport(_page(paths, target, title, value)[0], height)


def _page(
    paths: Sequence[str | Path] | str | Path,
    target: float | None,
    title: str | None,
    value: Value,
) -> tuple[str, list[Picture]]:
    """The HTML of a report, and its pictures."""
    need("jinja2", "a report", "report")
    from jinja2 import Environment, StrictUndefined

    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise ConfigError("no runs were given to report; give at least one run directory")
    groups = group_runs(load_run(path) for path in paths)
    source = files("fedloom.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pictures = all_pictures(groups, target, value)
    context = _context(groups, pictures, target, title, value)
    return environment.from_string(source).render(context), pictures


def _context(
    groups: Sequence[Group],
    pictures: Sequence[Picture],
    target: float | None,
    title: str | None,
    value: Value,
) -> dict[str, Any]:
    runs = [run for group in groups for run in group.runs]
    gaps = differences(groups, value=value)
    rows = [
        row | difference_columns(row["label"], gaps) for row in comparison(groups, target, value)
    ]
    heads, lines = table_cells(rows)
    short, clients = answer(groups, rows, gaps), client_cells(groups)
    colours = [style_of(group).colour for group in groups]
    return {
        "title": title or _title(groups),
        "version": __version__,
        "facts": _facts(groups),
        "unfinished": sum(not run.finished for run in runs),
        "table": _Table(heads, lines, colours),
        "words": short.words,
        "short": _Table(short.heads, short.lines, colours),
        "against": gaps[0].against if gaps else "",
        "left_out": cut_to(gaps[0]) if gaps else [],
        "curves": _images(
            pictures, "_by_round", "_by_seconds", "_by_simulated", "train_loss", "test_loss"
        ),
        "traffic": _images(pictures, "_by_bytes", "ledger"),
        "clients": _images(pictures, "partition", "clients", "reliability"),
        "by_client": (_Table(*clients[:2]), clients[2]),
        "unseen": _Table(*unseen_cells(groups)),
        "prepared": preparation_lines(groups),
        "attended": _attendance_tables(groups),
        "sizes": _coloured(groups, size_cells(groups)),
        "by_size": _images(pictures, "sizes"),
        "measures": _images(pictures, "measures"),
        "fields": _fields(groups),
        "differences": _Table(*setting_cells(groups, within=True)),
        "configurations": [(group.label, group.runs[0].config_text) for group in groups],
        "runs": _runs(groups),
        "environment": _environment(runs),
    }


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(run.name for group in groups for run in group.runs))
    if len(names) == 1:
        return names[0]
    labels = [group.label for group in groups]
    return ", ".join(labels) if len(labels) <= 4 else f"{len(labels)} configurations compared"


def _facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Collect the facts that all the runs share."""
    runs = [run for group in groups for run in group.runs]
    goals = [(run.target, run.metric.unit) for run in runs]
    facts = {
        "data": [_name(run, "data") for run in runs],
        "model": [_name(run, "model") for run in runs],
        "parameters": [_grouped(run.summary.get("parameters")) for run in runs],
        "clients": [common_skew(groups) or _grouped(r.summary.get("population")) for r in runs],
        "cohort": [_value_text(run.config.get("cohort")) for run in runs],
        "rounds": [_grouped(run.planned) for run in runs],
        "engine": [_value_text(run.summary.get("engine")) for run in runs],
        "metric": [_metric(run) for run in runs],
        "threshold": [_threshold(run) for run in runs],
        "target": ["" if t is None else human_target(t, unit) for t, unit in goals],
    }
    return [
        (key, values[0]) for key, values in facts.items() if len(set(values)) == 1 and values[0]
    ]


def _images(pictures: Sequence[Picture], *names: str) -> list[_Image]:
    return [
        _Image(
            picture.title,
            picture.alt,
            "data:image/png;base64," + base64.b64encode(picture.png).decode(),
            round(picture.figure.get_figwidth() * DPI),
        )
        for name in names
        for picture in pictures
        if (name in picture.name if name.startswith("_") else picture.name.split("-")[0] == name)
    ]


def _coloured(
    groups: Sequence[Group], cells: tuple[list[str], list[list[str]]], place: int = 0
) -> _Table:
    """Headings and lines as a table; place: of the group's label in a line."""
    heads, lines = cells
    colour = {group.label: style_of(group).colour for group in groups}
    return _Table(heads, lines, [colour[line[place]] for line in lines])


def _fields(groups: Sequence[Group]) -> _Table:
    lines = [
        [g.label, item.direction, item.field, human_bytes(item.each), human_bytes(item.total)]
        for g in groups
        for item in field_bytes(g)
    ]
    heads = ["algorithm", "direction", "field", "per client and round", "in total"]
    return _coloured(groups, (heads, lines))


def _attendance_tables(groups: Sequence[Group]) -> list[tuple[str, _Table, list[str]]]:
    """Of every deployed run: whose, who answered, and why updates were refused."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    attendances = [(label, run, attendance(run.path, names_of(run))) for label, run in runs]
    return [
        (f"{label}, seed {run.seed}", _Table(roll.heads, roll.lines), [*roll.left, *roll.why])
        for label, run, roll in attendances
        if roll is not None
    ]


def _runs(groups: Sequence[Group]) -> _Table:
    heads = ["folder", "algorithm", "seed", "state", "best", "last", "bytes", "time"]
    lines = []
    for group in groups:
        for run in group.runs:
            rounds, unit = len(run.rounds), run.metric.unit
            state = "finished" if run.finished else f"unfinished: {rounds} of {run.planned} rounds"
            values = [human_value(v, unit) for v in (best(run), last(run, run.metric.column))]
            totals = [human_bytes(run.total("bytes")), human_seconds(run.total("seconds"))]
            identity = [run.path.resolve().name, group.label, str(run.seed), state]
            lines.append([*identity, *values, *totals])
    return _coloured(groups, (heads, lines), 1)


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Give each entry with all its different values."""
    flats = [flatten(run.environment) for run in runs if run.environment]
    keys = dict.fromkeys(key for one in flats for key in one)
    return [(key, distinct(flats, key)) for key in keys]


def _name(run: Run, table: str) -> str:
    value = run.config.get(table)
    return _value_text(value.get("name") if isinstance(value, Mapping) else value)


def _metric(run: Run) -> str:
    name = run.metric.title.replace("_", " ")
    name += f", {OF_SITES}" if run.metric.of_sites and not run.metric.of_clients else ""
    if run.metric.higher_is_better is None:
        return name
    return f"{name} ({'higher' if run.metric.higher_is_better else 'lower'} is better)"


def _threshold(run: Run) -> str:
    """The rule of the threshold, and the last one that was chosen by it."""
    rule, thresholds = (
        (run.config.get("evaluate") or {}).get("threshold", 0.5),
        run.columns.get("threshold"),
    )
    if thresholds is not None and thresholds.size:
        return f"{rule}: {thresholds[-1]:.3g}"
    return "" if rule == 0.5 else _value_text(rule)


def _grouped(value: Any) -> str:
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else _value_text(value)


def _value_text(value: Any) -> str:
    return "" if value is None else show_value(value)
