"""Numbers in prose: {{KIND:PLACE.FIELD}} in a page written by hand becomes what the lines say, so
that no number is typed. A number may have its decimals: {{KIND:PLACE.FIELD 1}} (two by default).

    {{claim:fedsmoo:8/sam-helps.verdict}}         of a paper's sentence: "the opposite is clear"
    {{claim:fedsmoo:1/headline@c10-100-c3/fedavg.points}}    of one protocol, against one rival
    {{row:fedsmoo:8/feddyn.tested}}                    of a row, in its table's headline measure
    {{row:fiarse:fig4/heterofl@c10-4-10 global_acc_pct size=1/128.tested}}     in another measure
    {{gap:zoo:dirichlet/fedacg/fedavg.points}}    of two rows, in the headline or another measure
    {{cells:flamby:tcga.equal}}                        of single published runs: equal, cells
    {{reruns:fedsmoo/FedWSQ CIFAR.below}}         of others' runs: rows, below, above FedAvg
    {{demo:table.text}}, {{demo:example.text}}    what the two examples of README print
    {{demo:FedAvgM/FedACG.points}}                two rows of that table: points, p (by Holm)
    {{record:2026-11-25_referee/calibration.json#false_studies/all.percent 1}}   of a record: value
                                                  or percent

A claim is named by its words, joined by hyphens (or their beginning), or "headline"; a protocol is
the first with lines and a rival the hardest, unless one is named. Fields of a claim: verdict, ours,
theirs, rival (its name), clear, rivals (how many the sentence names), known (with lines), and those
of a difference: difference (with its sign), points (without), p, holm, saved (per cent of the
other's). Fields of a row: tested, paper.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedloom.cli.results import fitted
from fedloom.errors import ConfigError, did_you_mean
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, against, p_text, paired
from fedloom.report.tables import fixed

from ..board import MeasuredTable, measured_tables
from ..catalogue import entry
from ..entry import Protocol
from ..lines import NAME, Line, evidence, read
from ..plan import plan
from ..schedule import read_items
from ..table import Measure, Table, equal_cells, table
from ..verdicts import WORDS, Reason, find_claim
from .reruns import count_reruns

ROOT = Path(__file__).resolve().parents[5]  # of the checkout
RESULTS = ROOT / "docs" / "results"  # older lines, hand-written words, pages, pictures
LINES = RESULTS / "papers"
PLAN = RESULTS / "plan.toml"
RECORDS = ROOT / "benchmarks" / "records"
DEMO = RECORDS / "2026-11-27_demo" / "demo.json"
MADE = "<!-- Made by `nox -s results` from {} and from lines: write there, not here. -->\n\n"
PAGES = ("README.md.in", "docs/*.md.in")  # of docs/results: tables.py
WIDTH = 80
_PLACEHOLDER = re.compile(r"\{\{(\w+):([^{}]+)\.(\w+)(?: (\d))?\}\}")
Value = str | float | int
Source = Callable[[str, str], Value]  # (place, field) to a text or a number


def fill(text: str, sources: Mapping[str, Source] | None = None) -> str:
    """A text with every placeholder filled. sources: {kind: (place, field) to its value}, SOURCES
    unless others are given. Raises ConfigError, with the placeholder, for one that says nothing.
    """
    by_kind = SOURCES if sources is None else sources

    def one(match: re.Match[str]) -> str:
        kind, place, field, decimals = match.groups()
        try:
            if kind not in by_kind:
                raise ConfigError(f"no kind '{kind}'; {did_you_mean(kind, by_kind)}")
            value = by_kind[kind](place, field)
        except (ConfigError, LookupError) as error:
            raise ConfigError(f"{match.group()}: {error}") from error
        if isinstance(value, str | int):
            return str(value)
        return fixed(value, int(decimals or 2), "+" if field == "difference" else "")

    result = _PLACEHOLDER.sub(one, text)
    if "{{" in result:
        raise ConfigError(f"no placeholder: {result[result.index('{{') :][:60]}")
    return result


def pages() -> dict[Path, str]:
    """{page: its text} of README.md and every page of docs/ that has a PAGE.md.in."""
    sources = [file for pattern in PAGES for file in sorted(ROOT.glob(pattern))]
    return {
        file.with_suffix(""): MADE.format(file.name) + fill(file.read_text("utf-8"))
        for file in sources
    }


def _value(fields: Mapping[str, Value | None], field: str) -> Value:
    """A field. Raises ConfigError for an unknown one, and for one without a number."""
    if field not in fields:
        raise ConfigError(f"no field '{field}'; {did_you_mean(field, fields)}")
    value = fields[field]
    if value is None:
        raise ConfigError(f"no lines have '{field}'")
    return value


# ---------------------------------------------------------------------------------------- of tables
@functools.cache
def lines() -> list[Line]:
    """The committed lines."""
    return evidence(LINES)


@functools.cache
def table_of(name: str) -> MeasuredTable:
    """A table as its page shows it: a paper's at scale cpu, or as `NAME at paper` at its own, each
    row at its best point. Raises ConfigError for one without lines.
    """
    name, _, scale = name.partition(" at ")
    table_entry = entry(name)
    scale = scale or ("paper" if table_entry.study else "cpu")
    items = read_items(PLAN) if scale == "paper" else ()  # where points of its rows may stand
    tables = [*measured_tables(lines(), LINES, [table_entry], [scale], items)]
    if not tables:
        raise ConfigError(f"{name} has no lines")
    return tables[0]


def verdict(name: str, claim: str, protocol: str = "") -> Reason:
    """What a sentence of a table is: its verdict and its comparisons. claim: its words joined by
    hyphens, or "headline"; protocol: the first with lines by default.
    """
    return find_claim(table_of(name).table.claims, claim).at(protocol)


def _claim(place: str, field: str) -> Value:
    name, words, *rival = place.split("/")
    claim, _, protocol = words.partition("@")
    reason = verdict(name, claim, protocol)
    if field == "verdict" and not rival:
        return WORDS[reason.verdict or "not measured"]
    one = reason.against(rival[0]) if rival else reason.hardest
    table = table_of(name).table
    metric = find_claim(table.claims, claim).claim.metric
    scale = _scale(metric or table.entry.headline(table.entry.protocols[0])[0])
    fields = {
        "verdict": WORDS[one.verdict],
        "ours": one.ours and scale * one.ours,
        "theirs": one.theirs and scale * one.theirs,
        "rival": one.other.name,
        "clear": sum(c.verdict == "holds" for c in reason.measured),
        "rivals": len(reason.comparisons),
        "known": len(reason.measured),
        **_difference(one.gap, scale),
    }
    return _value(fields, field)


def _scale(metric: str) -> float:
    """What makes points of a metric's numbers."""
    return 100.0 if metric.endswith("_fraction") else 1.0


def _difference(gap: Paired | None, scale: float) -> dict[str, Value | None]:
    if gap is None:
        return dict.fromkeys(("difference", "points", "p", "holm"))
    return {
        "difference": scale * gap.mean,
        "points": abs(scale * gap.mean),
        "p": p_text(gap.p),
        "holm": p_text(gap.p if gap.p_holm is None else gap.p_holm),
    }


def _split(place: str) -> tuple[Table, list[str], str, Measure | None]:
    """A table, rows, a protocol ("" for the first with lines) and a measure (None: the headline) of
    NAME/ROW[/OTHER][@PROTOCOL][ METRIC[ AT]].
    """
    name, _, words = place.partition("/")
    where, _, measure = words.partition(" ")
    rows, _, protocol = where.partition("@")
    metric, _, at = measure.partition(" ")
    return table_of(name).table, rows.split("/"), protocol, (metric, at) if metric else None


def _protocols(table: Table, protocol: str) -> list[Protocol]:
    return [p for p in table.entry.protocols if protocol in ("", p.name)]


def _row(place: str, field: str) -> Value:
    table, (row,), protocol, measure = _split(place)
    for where in _protocols(table, protocol):
        n = table.number(where, row, measure or table.entry.headline(where))
        if n is not None and n.values:
            late, scale = mean([*n.compared.values()]), _scale(n.quantity.metric)
            values = {"tested": late, "paper": n.published}
            return _value({k: None if v is None else scale * v for k, v in values.items()}, field)
    raise ConfigError(f"no number of row '{row}'")


def _gap(place: str, field: str) -> Value:
    table, (row, other), protocol, measure = _split(place)
    for name in f"{row}&{other}".split("&"):
        if name not in (rows_by_key := {r.key: r for r in table.entry.rows}):
            raise ConfigError(f"no row '{name}'; {did_you_mean(name, rows_by_key)}")
    where = _protocols(table, protocol)[0]
    if measure is None and other in table.entry.bases:
        return _value(_difference(table.less_base(where, other).get(row), 1.0), field)
    metric, at = measure or table.entry.headline(where)
    ours, theirs = (table.compared(where, rows, (metric, at)) for rows in (row, other))
    a, b = (mean([*values.values()]) for values in (ours, theirs))
    saved = None if a is None or not b else 100 * (1 - a / b)
    return _value({**_difference(paired(ours, theirs), _scale(metric)), "saved": saved}, field)


def _cells(place: str, field: str) -> Value:
    folder = RESULTS / "flamby"
    seed_plan = plan(entry(place), "cpu", folder, seeds=5, as_published=True)
    rows = equal_cells(table(seed_plan, read(folder / NAME)).numbers).values()
    counts = {"equal": sum(r.equal for r in rows), "cells": sum(r.cells for r in rows)}
    return _value({**counts}, field)


# --------------------------------------------------------------------------------------- of records
@functools.cache
def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def _demo(place: str, field: str) -> str | float:
    """Of the demo's record: a text, or a difference of two rows."""
    record = _json(DEMO)
    if place == "example":
        return str(record["example"])
    if place == "table":
        rows = [{"unseen_mean": None, **row} for row in record["rows"]]  # a later column
        text = fitted(rows, space=WIDTH).splitlines()
        return "\n".join(line.rstrip() for line in text if not line.startswith("("))
    one, other = place.split("/")
    values = {
        name: {int(s): v for s, v in by_seed.items()} for name, by_seed in record["values"].items()
    }
    gaps = against(values[one], {name: by_seed for name, by_seed in values.items() if name != one})
    gap = gaps[other]
    return abs(100 * gap.mean) if field == "points" else p_text(gap.p_holm)


def _record(place: str, field: str) -> str | float:
    """A value of a record, FILE#KEY/KEY."""
    file, _, keys = place.partition("#")
    value: Any = _json(RECORDS / file)
    for key in keys.split("/"):
        value = value[int(key) if isinstance(value, list) else key]
    number: str | float = 100 * value if field == "percent" else value
    return number


SOURCES: dict[str, Source] = {
    "claim": _claim,
    "row": _row,
    "gap": _gap,
    "cells": _cells,
    "reruns": count_reruns,
    "demo": _demo,
    "record": _record,
}
