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
from .advice import ALONE, BASELINES, Advised, Pick, Screen, bytes_of, mean_of, pick_candidate
from .page import (
    cells_of,
    decided_table,
    delta_words,
    plan_lines,
    provenance,
    rows_table,
    settings_line,
    splits_words,
)
from .study import Study

Json = dict[str, Any]
FORMAT = "fedloom-advice-2"  # docs/schemas/advise.json
_LISTED = 6  # of the methods that were tried


def advice_json(study: Study, advised: Advised, command: str) -> Json:
    """All that was found; command: repeats it. docs/schemas/advise.json explains the keys."""
    pick = pick_candidate(study, advised.candidates)
    cell, (runs, seconds), (whole,) = study.question.cells[0], study.runner.cost, cells_of(study)
    rivals = [method for method in whole["methods"] if method["name"] != ALONE]
    return {
        "format": FORMAT,
        **provenance(study, command),
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
            _method(method.name, each)
            for method, each in study.runs(cell).items()
            if method.name != ALONE
        ],
        "runs": runs,
        "seconds": round(seconds, 1),
        "cells": [{**whole, "methods": rivals}],
    }


def _screen(screen: Screen | None) -> Json | None:
    if screen is None:
        return None
    ranking = [{"name": name, "value": value} for name, value in screen.tried.items()]
    return {**asdict(screen), "tried": ranking, "failed": list(screen.failed)}


def _method(name: str, runs: Sequence[Run | None]) -> Json:
    mean, some = mean_of(runs), [run for run in runs if run is not None]
    return {"name": name, "mean": mean, "bytes": bytes_of(some) if some else None}


def _against_alone(study: Study, pick: Pick) -> str | None:
    """Whether clients fare better than alone, a sentence; None where that was not run."""
    runs = study.runs(study.question.cells[0])
    baseline = next((method for method in runs if method.name == ALONE), None)
    if baseline is None:
        return None
    both = [run for method in (pick.method, baseline) for run in runs[method] if run is not None]
    return next(iter(against_alone(group_runs(both))), None)


# ------------------------------------------------------------------------------------------ page
def advice_page(report: Json, folder: str) -> str:
    """The page; folder: where run.toml is."""
    cell = report["cells"][0]
    methods = {method["name"]: method for method in report["methods"]}
    lines = [f"# Which method for {cell['name']}?", "", _verdict(report), ""]
    lines += [f"- {line}" for line in _reasons(report, methods)]
    lines += ["", "```", f"fedloom run {folder}/run.toml"]
    lines += [f"fedloom deploy new {folder}/run.toml --out fed", "```", ""]
    lines += ["## What was compared", "", *rows_table(cell), *decided_table(report, "method")]
    lines += ["", *(f"- {m['name']}: {settings_line(m)}" for m in cell["methods"])]
    lines += ["", "## Why these", "", _choice(report)]
    skipped = report["skipped"]
    if other := ", ".join(name for name in skipped if name not in BASELINES):
        lines += ["", f"They do not go with these settings (advice.json says why): {other}."]
    lines += [f"\nNot run: {name}: {skipped[name]}." for name in BASELINES if name in skipped]
    lines += ["", "## How it was decided", "", *(f"- {text}" for text in plan_lines(report))]
    return "\n".join(lines) + "\n"


def _choice(report: Json) -> str:
    """How the candidates were chosen."""
    if (screen := report["screen"]) is None:
        return (
            "There was no time to try all methods: FedAvg and the method of the settings are "
            "compared. With more --minutes and another --out the two best of all are."
        )
    ranking, unit = screen["tried"], report["unit"]
    best = [f"{one['name']} {human_value(one['value'], unit)}" for one in ranking[:_LISTED]]
    lost = f" Runs failed of {', '.join(screen['failed'])}." if screen["failed"] else ""
    return (
        f"FedAvg, and the two best of all others: {len(ranking)} methods had {screen['trials']} "
        f"trials each, judged by {splits_words(screen['splits'])}. "
        f"The best: {', '.join(best)}.{lost}"
    )


def _verdict(report: Mapping[str, Any]) -> str:
    """What to take, in a sentence."""
    take, others = report["take"], report["against"]
    if not others:
        return f"**Take {take}**: nothing else goes with what these settings demand."
    if report["decided"]:
        better = all(one["verdict"] == "better" for one in others)
        return f"**Take {take}**: it is {'better than' if better else 'as good as'} the others."
    names = [one["name"] for one in others if one["verdict"] == "undecided"]
    why = {
        "best": "it is ahead in the mean, which may be chance",
        "bytes": "it sends fewer bytes, and is hardly behind in the mean",
        "simpler": "it is the simpler one, and hardly behind in the mean",
    }[report["why"]]
    return f"**Undecided** between {take} and {' and '.join(names)}: **take {take}**, {why}."


def _reasons(report: Mapping[str, Any], methods: Mapping[str, Any]) -> list[str]:
    """What there is to say of the others, of clients alone, of pooled rows, and of the cost."""
    take, unit, out = report["take"], report["unit"], []
    pick = methods[take]
    for one in report["against"]:
        name, other = one["name"], methods[one["name"]]
        sent = f"{human_bytes(pick['bytes'])} a run against {human_bytes(other['bytes'])}"
        gap = "runs of it failed"
        if (ahead := one["ahead"]) is not None:
            points = " points" if unit == "share" else ""
            side = "behind" if ahead < 0 else "ahead"
            by = difference_text(abs(ahead), unit).removeprefix("+")
            gap = f"{side} by {by}{points} in the mean"
        verdict = one["verdict"]
        if verdict == "no difference":
            verdict = f"no difference larger than {delta_words(report)}"
        out.append(f"Against {name}: {verdict} ({gap}; {sent}).")
    if report["alone"]:
        out.append(report["alone"])
    if "pooled" in methods and methods["pooled"]["mean"] is not None:
        both = [human_value(methods[name]["mean"], unit) for name in ("pooled", take)]
        out.append(f"With all rows in one place: {both[0]}; {take}: {both[1]}.")
    out.append(
        f"This took {report['runs']} runs, {report['seconds'] / 60:.1f} minutes of training."
    )
    if report["ended"] == "time":
        out.append("Time was up before the plan's end; run the same command again to resume.")
    return out
