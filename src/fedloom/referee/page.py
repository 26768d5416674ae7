"""What a study or an advice found, as JSON, and as the one page of Markdown that is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._version import __version__
from ..core.commit import own_commit
from ..core.curves import VALUE_WORDS
from ..report import as_markdown as table_of
from ..report import comparison, group_runs
from ..report.clients import against_alone
from ..report.curve_data import value_of
from ..report.runs import Run
from ..report.statistics import LEVEL, RHO, Decision, amount_text, difference_text
from ..report.table_text import columns, markdown
from ..report.tables import human_bytes, human_value
from .advice import ALONE, BASELINES, Advised, Pick, bytes_of, mean_of, pick_candidate
from .question import Cell, Method
from .study import Study

Json = dict[str, Any]
FORMAT, ADVICE_FORMAT = "fedloom-referee-1", "fedloom-advice-2"  # see docs/schemas
_LISTED = 6  # of the methods that were tried
_COLUMNS = ("seeds", "rounds to target", "bytes to target", "worst client")  # of the page
_VERDICTS = ("better", "worse", "no difference", "undecided")


def as_json(study: Study, command: str) -> Json:
    """All that a study found; command: repeats it. docs/schemas/referee.json explains the keys."""
    method, *rivals = study.question.methods
    return {
        "format": FORMAT,
        **provenance(study, command),
        "vary": study.question.vary,
        "method": method.name,
        "against": [rival.name for rival in rivals],
        "cells": cells_of(study),
    }


def provenance(study: Study, command: str) -> Json:
    """By which code, measure and plan a study found what it found."""
    metric = study.runner.metric
    return {
        "version": __version__,
        "commit": own_commit(),
        "command": command,
        "metric": metric.name,
        "unit": metric.unit,
        "delta": study.delta,
        "error": round(1 - LEVEL, 9),
        "looks": list(study.looks),
        "ended": "time" if study.over else "plan",
        "trials": study.question.trials,
        "splits": study.splits,
    }


def cells_of(study: Study) -> list[Json]:
    """What was run and found in every cell."""
    out, decided = [], study.decisions()
    for cell in study.question.cells:
        table = study.runs(cell)
        every = (run for runs in table.values() for run in runs if run)
        # beside an advice clients train alone: they have no model to stand beside the server's
        rows = comparison(group_runs(run for run in every if not run.own_models))
        out.append(
            {
                "name": cell.name,
                "source": cell.source,
                "changes": [f"{key}={value}" for key, value in cell.words.items()],
                "seeds": len(next(iter(table.values()))),
                "methods": [_method(study, cell, method, runs) for method, runs in table.items()],
                "comparisons": [
                    _pair(study, pair, decided[cell, *pair], table) for pair in study.question.pairs
                ],
                "rows": [dict(row) for row in rows],
            }
        )
    return out


def _method(study: Study, cell: Cell, method: Method, runs: Sequence[Run | None]) -> Json:
    """What a method was run with, and what was compared, seed by seed (None: it failed)."""
    tuned = study.tuned[cell, method]
    return {
        "name": method.name,
        "settings": {**method.words, **tuned.choice},
        "trials": tuned.trials,
        "failed_trials": tuned.failed,
        "without_effect": list(tuned.without_effect),
        "first_seed": study.trial(cell, method, 1).seed,
        "values": [run and value_of(run) for run in runs],
    }


def _pair(
    study: Study,
    pair: tuple[Method, Method],
    decision: Decision,
    runs: Mapping[Method, Sequence[Run | None]],
) -> Json:
    """A comparison: the verdict, and the difference of the method and its rival."""
    test, failures = decision.pairs, sum([*runs[method]].count(None) for method in pair)
    return {
        "method": pair[0].name,
        "against": pair[1].name,
        "verdict": study.verdict(decision),
        "pairs": test and test.n,
        "difference": test and test.mean,
        **{name: test and getattr(test, name) for name in ("sd", "low", "high", "level", "p")},
        "bound": decision.bound,
        "failures": failures,
    }


def advice_json(study: Study, advised: Advised, command: str) -> Json:
    """All that was found; command: repeats it. docs/schemas/advise.json explains the keys."""
    pick = pick_candidate(study, advised.candidates)
    cell, (runs, seconds), (whole,) = study.question.cells[0], study.runner.cost, cells_of(study)
    rivals = [method for method in whole["methods"] if method["name"] != ALONE]
    return {
        "format": ADVICE_FORMAT,
        **provenance(study, command),
        "source": cell.source,
        "take": pick.method.name,
        "decided": all(one["verdict"] != "undecided" for one in pick.against),
        "why": pick.why,
        "settings": {**pick.method.words, **study.tuned[cell, pick.method].choice},
        "against": pick.against,
        "alone": _against_alone(study, pick),
        "candidates": [method.name for method in advised.candidates],
        "skipped": dict(advised.skipped),
        "screen": advised.screen,
        "methods": [
            {"name": m.name, "mean": mean_of(each), "bytes": bytes_of(each) if any(each) else None}
            for m, each in study.runs(cell).items()
            if m.name != ALONE
        ],
        "runs": runs,
        "seconds": round(seconds, 1),
        "cells": [{**whole, "methods": rivals}],
    }


def _against_alone(study: Study, pick: Pick) -> str | None:
    """Whether clients fare better than alone, a sentence; None where that was not run."""
    runs = study.runs(study.question.cells[0])
    baseline = next((method for method in runs if method.name == ALONE), None)
    if baseline is None:
        return None
    both = [run for method in (pick.method, baseline) for run in runs[method] if run is not None]
    return next(iter(against_alone(group_runs(both))), None)


# ------------------------------------------------------------------------------------------ page
def as_markdown(report: Mapping[str, Any]) -> str:
    """The page for a pull request."""
    lines = [f"# {report['method']} against {', '.join(report['against'])}", ""]
    lines += [f"- {text}" for text in _summary(report)] + ["", *decided_table(report)]
    for cell in report["cells"]:
        lines += ["", f"## {cell['name']}", ""]
        lines += rows_table(cell)
        lines += [f"- {settings_line(method)}" for method in cell["methods"]]
    lines += ["", "## How it was decided", "", *(f"- {text}" for text in plan_lines(report))]
    return "\n".join(lines) + "\n"


def rows_table(cell: Mapping[str, Any]) -> list[str]:
    """The table of a cell's methods; nothing if no run finished."""
    if not cell["rows"]:
        return []
    titles = (cell["rows"][0]["metric"].replace("_", " "), *_COLUMNS)
    names = [c.name for c in columns(cell["rows"]) if c.name in titles]
    return [table_of(cell["rows"], names).rstrip(), ""]


def _summary(report: Mapping[str, Any]) -> list[str]:
    """Of each rival in how many cells the method is better, worse, ...; and what is odd."""
    out = []
    for name in report["against"]:
        pairs = [c for cell in report["cells"] for c in cell["comparisons"] if c["against"] == name]
        verdicts = [pair["verdict"] for pair in pairs]
        counts = [
            f"{_words(verdict, report)} in {verdicts.count(verdict)} of {len(verdicts)} cells"
            for verdict in _VERDICTS
            if verdict in verdicts
        ]
        out.append(f"**{name}**: {', '.join(counts)}.")
        if failed := sum(pair["failures"] for pair in pairs):
            out.append(f"{failed} runs of it and of {name} failed: no test is made there.")
    for cell in report["cells"]:
        for method in cell["methods"]:
            for key in method["without_effect"]:
                out.append(f"**{key} has no effect** on {method['name']} in {cell['name']}.")
    return out


def _words(verdict: str, report: Mapping[str, Any]) -> str:
    return (
        f"no difference larger than {delta_words(report)}"
        if verdict == "no difference"
        else verdict
    )


def delta_words(report: Mapping[str, Any]) -> str:
    """The difference that does not matter."""
    return amount_text(report["delta"], report["unit"])


def decided_table(report: Mapping[str, Any], first: str = "cell") -> list[str]:
    """The table of verdicts. first: its first column, cell or method."""
    points = ", points" if report["unit"] == "share" else ""
    heads, lines = [first, "against", f"difference{points}", "p", "seeds", "verdict"], []
    for cell in report["cells"]:
        for one in cell["comparisons"]:
            gap = p = "-"
            if one["difference"] is not None:
                ends = [one["difference"], one["low"], one["high"]]
                texts = ["-" if v is None else difference_text(v, report["unit"]) for v in ends]
                gap = f"{texts[0]} ({texts[1]} to {texts[2]})"
            if one["p"] is not None:
                p = f"{one['p']:.2g} {'≤' if one['p'] <= one['bound'] else '>'} {one['bound']:.2g}"
            label = cell["name"] if first == "cell" else one["method"]
            cells = [label, one["against"], gap, p, str(one["pairs"] or cell["seeds"])]
            lines.append([*cells, f"**{_words(one['verdict'], report)}**"])
    return markdown(heads, lines, ":--").splitlines()


def settings_line(method: Mapping[str, Any]) -> str:
    """What a method was run with, as a line."""
    notes = [f"{method['trials']} trials"] if method["trials"] else ["nothing to tune"]
    notes += [f"{method['failed_trials']} of them failed"] if method["failed_trials"] else []
    words = " ".join(f"{key}={value}" for key, value in method["settings"].items())
    return f"`{words}` ({', '.join(notes)})"


def splits_words(count: int) -> str:
    """By what settings were chosen."""
    return "a validation split" if count == 1 else f"the mean of {count} validation splits"


def plan_lines(report: Mapping[str, Any]) -> list[str]:
    """How settings were chosen, and how verdicts were made: what a reviewer must know."""
    count = sum(len(cell["comparisons"]) for cell in report["cells"])
    looks = ", ".join(map(str, report["looks"]))
    lines = [
        f"Tested is the {VALUE_WORDS['last-tenth']} of the {report['metric']} on the test set, "
        "paired by seed. Rounds and bytes to the target and the worst client stand beside it.",
        f"Every method with a setting to tune had {report['trials']} trials in each cell, chosen "
        f"by {splits_words(report['splits'])} at seeds that the comparison does not use; trials of "
        "a setting without effect do not count.",
        f"Seeds were added to all methods of a cell at once, from "
        f"{report['cells'][0]['methods'][0]['first_seed']} on. The plan was fixed before the first "
        f"test: a look after {looks} seeds."
        + (" Time was up before its end." if report["ended"] == "time" else ""),
        f"Student's t, two-sided. For differences that are about normal, {100 * report['error']:g} "
        f"% is the error of all comparisons ({count}) and all looks: (n / N)^{RHO:g} of it is "
        "spent after n of N seeds (Lan and DeMets; Kim and DeMets), with Holm's rule at each look. "
        "A difference counts if its p is at most what stands behind it. The intervals hold "
        "together, at every look.",
    ]
    if report["delta"] is not None:
        lines.append(
            f"No difference larger than {delta_words(report)}: the interval lies within that."
        )
    commit = f", commit {report['commit']}" if report["commit"] else ""
    return [*lines, f"fedloom {report['version']}{commit}; again: `{report['command']}`"]


# ------------------------------------------------------------------------------- page of an advice
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
            side = "behind" if ahead < 0 else "ahead"
            gap = f"{side} by {amount_text(ahead, unit)} in the mean"
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
