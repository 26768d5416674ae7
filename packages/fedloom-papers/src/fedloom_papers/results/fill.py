"""Numbers in prose: {{KIND:PLACE.FIELD}} in a page written by hand becomes what the lines say, so
that no number is typed. A number may have its decimals: {{KIND:PLACE.FIELD 1}} (two by default).

    {{claim:fedsmoo:8/sam-helps.verdict}}         of a paper's sentence: "the opposite is clear"
    {{claim:fedsmoo:1/headline@c10-100-c3/fedavg.points}}    of one protocol, against one rival
    {{row:fedsmoo:8/feddyn.tested}}                    of a row, in its table's headline measure
    {{row:fiarse:fig4/heterofl@c10-4-10 global_acc_pct size=1/128.tested}}     in another measure
    {{cells:flamby:tcga.equal}}                        of single published runs: equal, cells
    {{reruns:fedsmoo/FedWSQ CIFAR.below}}         of others' runs: rows, below, above FedAvg
    {{mean:zoo/dirichlet/FedACG|late.percent}}    of a study's row: a measure as its claims name it
    {{gap:zoo/dirichlet/FedACG/FedAvg|late.points}}    of two rows: points, difference, p, holm
    {{case:zoo/FedAvg < FedSAM/FedSMOO less FedSAM.verdict}}    of a study's claim (how its words
                                                  begin) and a case: verdict, numbers, points ...

A claim is named by its words, joined by hyphens, or "headline"; a protocol is the first with lines
and a rival the hardest, unless one is named. Fields of a claim: verdict, ours, theirs, difference
(with its sign), points (without), p, holm, seeds, rival (its name), clear, rivals (how many the
sentence names), known (with lines). Fields of a row: tested, here, sd, paper, held (per cent of
the parameters that a size really has).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from fedloom.errors import ConfigError, did_you_mean
from fedloom.report.curve_data import mean
from fedloom.report.tables import fixed

from ..board import Shown, shown
from ..catalogue import entry
from ..lines import NAME, Line, read
from ..numbers import Number
from ..plan import plan
from ..published_tables import settings_of
from ..series import share_of
from ..table import equal_cells, table
from ..verdicts import WORDS, Reason, judged_claim
from .fill_studies import case_of, gap_of, mean_of, of_difference
from .reruns import counted
from .study import LINES, RESULTS

_PLACEHOLDER = re.compile(r"\{\{(\w+):([^{}]+)\.(\w+)(?: (\d))?\}\}")
Source = Callable[[str, str], "str | float | int"]  # (place, field) to a text or a number


def fill(text: str, sources: Mapping[str, Source] | None = None) -> str:
    """A text with every placeholder filled. sources: {kind: (place, field) to its value}, SOURCES
    unless others are given. Raises ConfigError, with the placeholder, for one that says nothing.
    """
    known = SOURCES if sources is None else sources

    def one(found: re.Match[str]) -> str:
        kind, place, field, decimals = found.groups()
        try:
            if kind not in known:
                raise ConfigError(f"no kind '{kind}'; {did_you_mean(kind, known)}")
            return _shown(known[kind](place, field), field, int(decimals or 2))
        except (ConfigError, LookupError) as error:
            raise ConfigError(f"{found.group()}: {error}") from error

    made = _PLACEHOLDER.sub(one, text)
    if "{{" in made:
        raise ConfigError(f"no placeholder: {made[made.index('{{') :][:60]}")
    return made


def _shown(value: str | float | int, field: str, decimals: int) -> str:
    if isinstance(value, str | int):
        return str(value)
    return fixed(value, decimals, "+" if field == "difference" else "")


def _value(fields: Mapping[str, str | float | int | None], field: str) -> str | float | int:
    """A field. Raises ConfigError for an unknown one, and for one without a number."""
    if field not in fields:
        raise ConfigError(f"no field '{field}'; {did_you_mean(field, fields)}")
    value = fields[field]
    if value is None:
        raise ConfigError(f"no lines have '{field}'")
    return value


# -------------------------------------------------------------------------------- of papers' tables
@functools.cache
def lines() -> list[Line]:
    """The committed lines of the papers' tables."""
    return read(LINES / NAME)


@functools.cache
def table_of(name: str) -> Shown:
    """A paper's table as its page shows it: at scale cpu, each row at its best point. Raises
    ConfigError for one without lines.
    """
    found = [*shown(lines(), LINES, [entry(name)], ["cpu"])]
    if not found:
        raise ConfigError(f"{name} has no lines")
    return found[0]


def verdict(name: str, claim: str, protocol: str = "") -> Reason:
    """What a sentence of a paper's table is: its verdict and its comparisons. claim: its words
    joined by hyphens, or "headline"; protocol: the first with lines by default.
    """
    return judged_claim(table_of(name).found.claims, claim).at(protocol)


def _claim(place: str, field: str) -> str | float | int:
    name, words, *rival = place.split("/")
    claim, _, protocol = words.partition("@")
    found = verdict(name, claim, protocol)
    if field == "verdict" and not rival:
        return WORDS[found.verdict or "not measured"]
    one = found.against(rival[0]) if rival else found.hardest
    gap, scale = one.gap, _scale(name, claim)
    fields: dict[str, str | float | int | None] = {
        "verdict": WORDS[one.verdict],
        "ours": one.ours and scale * one.ours,
        "theirs": one.theirs and scale * one.theirs,
        "rival": one.other.name,
        "clear": sum(c.verdict == "holds" for c in found.known),
        "rivals": len(found.comparisons),
        "known": len(found.known),
        **of_difference(gap, scale),
    }
    return _value(fields, field)


def _of_study(of: Callable[[str], Mapping[str, str | float | int | None]]) -> Source:
    return lambda place, field: _value(of(place), field)


def _scale(name: str, claim: str) -> float:
    """What makes points of a table's numbers."""
    found = table_of(name).found
    of = judged_claim(found.claims, claim).claim
    metric = of.metric or found.entry.headline(found.entry.protocols[0])[0]
    return 100.0 if metric.endswith("_fraction") else 1.0


def _row(place: str, field: str) -> str | float | int:
    name, _, words = place.partition("/")
    where, _, measure = words.partition(" ")
    row, _, protocol = where.partition("@")
    n = _number(table_of(name), row, protocol, tuple(measure.split(" ", 1)) if measure else ())
    scale = 100.0 if n.wanted.metric.endswith("_fraction") else 1.0
    late = mean([*n.compared.values()])
    values = {"tested": late, "here": n.mean, "sd": n.sd, "paper": n.published}
    shown = {k: None if v is None else scale * v for k, v in values.items()}
    return _value(shown | {"held": _held(table_of(name), n)}, field)


def _held(one: Shown, n: Number) -> float | None:
    """How many per cent of the parameters the size of a number really holds."""
    size = share_of(settings_of(n.wanted.at).get("size", "mean"))
    for line in one.found.lines(n.wanted.protocol, n.wanted.row.key).values():
        held = (line.get("sizes") or {}).get("held", {}).get(f"{size:g}")
        return 100.0 * float(held["all"]) / float(line["parameters"]) if held else None
    return None


def _number(one: Shown, row: str, protocol: str, measure: tuple[str, ...]) -> Number:
    """The first number of a row with lines, of this protocol and (metric, at) if they are named."""
    for place in one.found.entry.protocols:
        wanted = measure or one.found.entry.headline(place)
        for n in one.found.numbers_of(place, (wanted[0], wanted[1] if wanted[1:] else "")):
            if n.wanted.row.key == row and protocol in ("", place.name) and n.values:
                return n
    raise ConfigError(f"no number of row '{row}'")


def _cells(place: str, field: str) -> str | float | int:
    folder = RESULTS / "flamby"
    made = plan(entry(place), "cpu", folder, seeds=5, as_published=True)
    found = equal_cells(table(made, read(folder / NAME)).numbers).values()
    counts = {"equal": sum(r.equal for r in found), "cells": sum(r.cells for r in found)}
    return _value({**counts}, field)


SOURCES: dict[str, Source] = {
    "claim": _claim,
    "row": _row,
    "cells": _cells,
    "reruns": counted,
    "mean": _of_study(mean_of),
    "gap": _of_study(gap_of),
    "case": _of_study(case_of),
}
