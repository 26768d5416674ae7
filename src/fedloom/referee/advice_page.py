"""An advice as JSON, and as the page that is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..report import group_runs
from ..report.clients import against_alone
from ..report.runs import Run
from ..report.statistics import difference_text
from ..report.tables import human_bytes, human_value
from .advice import ALONE, BESIDE, Advised, Screen, Taken, bytes_of, mean_of, taken
from .page import (
    cells_of,
    decided_table,
    delta_words,
    found_by,
    plan_lines,
    rows_table,
    settings_line,
    splits_words,
)
from .study import Study

Found = dict[str, Any]
FORMAT = "fedloom-advice-2"  # docs/schemas/advise.json
_SHOWN = 6  # of the methods that were tried


def advice_json(study: Study, advised: Advised, command: str) -> Found:
    """All that was found; command: repeats it. docs/schemas/advise.json explains the keys."""
    pick = taken(study, advised.candidates)
    cell, (runs, seconds), (whole,) = study.question.cells[0], study.runner.cost, cells_of(study)
    rivals = [method for method in whole["methods"] if method["name"] != ALONE]
    return {
        "format": FORMAT,
        **found_by(study, command),
        "source": cell.source,
        "take": pick.method.name,
        "decided": pick.decided,
        "why": pick.why,
        "settings": {**pick.method.words, **study.tuned[cell, pick.method].choice},
        "against": [
            {"name": one.other.name, "verdict": one.verdict, "ahead": one.ahead}
            for one in pick.against
        ],
        "alone": _against_alone(study, pick),
        "candidates": [method.name for method in advised.candidates],
        "skipped": dict(advised.skipped),
        "screen": _screen(advised.screen),
        "methods": [
            _method(method.name, own)
            for method, own in study.runs(cell).items()
            if method.name != ALONE
        ],
        "runs": runs,
        "seconds": round(seconds, 1),
        "cells": [{**whole, "methods": rivals}],
    }


def _screen(screen: Screen | None) -> Found | None:
    if screen is None:
        return None
    tried = [{"name": name, "value": value} for name, value in screen.tried.items()]
    return {**asdict(screen), "tried": tried, "failed": list(screen.failed)}


def _method(name: str, runs: Sequence[Run | None]) -> Found:
    mean, some = mean_of(runs), [run for run in runs if run is not None]
    return {"name": name, "mean": mean, "bytes": bytes_of(some) if some else None}


def _against_alone(study: Study, pick: Taken) -> str | None:
    """Whether clients fare better than alone, a sentence; None where that was not run."""
    runs = study.runs(study.question.cells[0])
    alone = next((method for method in runs if method.name == ALONE), None)
    if alone is None:
        return None
    both = [run for method in (pick.method, alone) for run in runs[method] if run is not None]
    return next(iter(against_alone(group_runs(both))), None)


# ------------------------------------------------------------------------------------------ page
def advice_page(found: Found, folder: str) -> str:
    """The page; folder: where run.toml is."""
    cell = found["cells"][0]
    methods = {method["name"]: method for method in found["methods"]}
    lines = [f"# Which method for {cell['name']}?", "", _said(found), ""]
    lines += [f"- {line}" for line in _reasons(found, methods)]
    lines += ["", "```", f"fedloom run {folder}/run.toml"]
    lines += [f"fedloom deploy new {folder}/run.toml --out fed", "```", ""]
    lines += ["## What was compared", "", *rows_table(cell), *decided_table(found, "method")]
    lines += ["", *(f"- {m['name']}: {settings_line(m)}" for m in cell["methods"])]
    lines += ["", "## Why these", "", _tried(found)]
    skipped = found["skipped"]
    if other := ", ".join(name for name in skipped if name not in BESIDE):
        lines += ["", f"They do not go with these settings (advice.json says why): {other}."]
    lines += [f"\nNot run: {name}: {skipped[name]}." for name in BESIDE if name in skipped]
    lines += ["", "## How it was decided", "", *(f"- {said}" for said in plan_lines(found))]
    return "\n".join(lines) + "\n"


def _tried(found: Found) -> str:
    """How the candidates were chosen."""
    if (screen := found["screen"]) is None:
        return (
            "There was no time to try all methods: FedAvg and the method of the settings are "
            "compared. With more --minutes and another --out the two best of all are."
        )
    tried, unit = screen["tried"], found["unit"]
    best = [f"{one['name']} {human_value(one['value'], unit)}" for one in tried[:_SHOWN]]
    lost = f" Runs failed of {', '.join(screen['failed'])}." if screen["failed"] else ""
    return (
        f"FedAvg, and the two best of all others: {len(tried)} methods had {screen['trials']} "
        f"trials each, judged by {splits_words(screen['splits'])}. "
        f"The best: {', '.join(best)}.{lost}"
    )


def _said(found: Mapping[str, Any]) -> str:
    """What to take, in a sentence."""
    take, others = found["take"], found["against"]
    if not others:
        return f"**Take {take}**: nothing else goes with what these settings demand."
    if found["decided"]:
        better = all(one["verdict"] == "better" for one in others)
        return f"**Take {take}**: it is {'better than' if better else 'as good as'} the others."
    names = [one["name"] for one in others if one["verdict"] == "undecided"]
    why = {
        "best": "it is ahead in the mean, which may be chance",
        "bytes": "it sends fewer bytes, and is hardly behind in the mean",
        "simpler": "it is the simpler one, and hardly behind in the mean",
    }[found["why"]]
    return f"**Undecided** between {take} and {' and '.join(names)}: **take {take}**, {why}."


def _reasons(found: Mapping[str, Any], methods: Mapping[str, Any]) -> list[str]:
    """What there is to say of the others, of clients alone, of pooled rows, and of the cost."""
    take, unit, out = found["take"], found["unit"], []
    mine = methods[take]
    for one in found["against"]:
        name, other = one["name"], methods[one["name"]]
        sent = f"{human_bytes(mine['bytes'])} a run against {human_bytes(other['bytes'])}"
        gap = "runs of it failed"
        if (ahead := one["ahead"]) is not None:
            points = " points" if unit == "share" else ""
            side = "behind" if ahead < 0 else "ahead"
            by = difference_text(abs(ahead), unit).removeprefix("+")
            gap = f"{side} by {by}{points} in the mean"
        verdict = one["verdict"]
        if verdict == "no difference":
            verdict = f"no difference larger than {delta_words(found)}"
        out.append(f"Against {name}: {verdict} ({gap}; {sent}).")
    if found["alone"]:
        out.append(found["alone"])
    if "pooled" in methods and methods["pooled"]["mean"] is not None:
        both = [human_value(methods[name]["mean"], unit) for name in ("pooled", take)]
        out.append(f"With all rows in one place: {both[0]}; {take}: {both[1]}.")
    out.append(f"This took {found['runs']} runs, {found['seconds'] / 60:.1f} minutes of training.")
    if found["ended"] == "time":
        out.append("Time was up before the plan's end; run the same command again to resume.")
    return out
