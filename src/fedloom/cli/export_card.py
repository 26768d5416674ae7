"""The model card of an export: what the run recorded, in Markdown, and nothing else.

Its headings follow Mitchell et al., "Model Cards for Model Reporting" (FAT* 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedloom.evaluation.declared import OF_SITES
from fedloom.report import Run
from fedloom.report.charts import FEW_ROWS
from fedloom.report.clients import attendance, names_of
from fedloom.report.tables import human_seconds
from fedloom.storage.atomic import write_out

from .export_check import ExportFacts, value_at

_SITES = 100  # more are counted, and not listed
_LOCAL = ("epochs", "steps", "batch", "lr", "optimiser")  # settings of local work


def write_card(out: Path, run: Run, facts: ExportFacts) -> None:
    """Write the card of an exported model."""
    record = facts.record
    client = record["client"]
    parts = [
        f"# Model card: {run.name}, {run.label}" + (f", {client}'s own model" if client else ""),
        _use(record),
        "## Data\n\n" + _data(run, record),
        "## Method\n\n" + _method(run, record),
        "## Scores\n\n" + _scores(run, record),
        "## Limits\n\n" + _list(_limits(run, facts)),
        "## How it was made\n\n" + _provenance(run, record),
    ]
    click.echo(f"{write_out(out, chr(10).join(f'{part}{chr(10)}' for part in parts))}: the card")


def _use(record: Mapping[str, Any]) -> str:
    recipe = record["inputs"]
    file = "texts.txt" if "words" in recipe else "samples.npy"
    file = "patients.csv" if recipe.get("columns") else file
    site = " --site SITE" if recipe["kind"] == "cells_per_client" else ""
    code = f"```\npython predict.py {file} --out scores.csv{site}\n```"
    classes = record["classes"]
    if not classes:
        return code
    meaning = f"Classes: {', '.join(classes)}."
    if len(classes) == 2:
        meaning += (
            f" A row is {classes[1]} where that has a probability above {record['threshold']:g}."
        )
    return f"{code}\n\n{meaning}"


def _data(run: Run, record: Mapping[str, Any]) -> str:
    sizes = run.partition.get("sizes") or []
    clients = run.summary.get("population", len(sizes))
    rows = f", {sum(sizes):,} training rows" if sizes and "every" not in run.partition else ""
    tests = f"; {record['samples']:,} test rows."
    if client := record["client"]:
        count = (record["scores"].get("training_rows") or {}).get(client, "unknown")
        tests = f". {client}: {count} training rows, {record['samples']:,} test rows."
    lines = [f"{_name(run, 'data')}: {clients:,} sites{rows}{tests}"]
    if (nodes := attendance(run.path, names_of(run))) is not None and nodes.left:
        lines.append(_list(nodes.left))
    rules = record["inputs"].get("rules") or []
    columns = [rule["name"] for rule in rules] or record["inputs"].get("columns")
    if columns:
        lines.append(f"Columns: {', '.join(columns)}. `about.json` has what each becomes.")
    else:
        lines.append(f"An input: {record['inputs']['kind']}, {record['inputs'].get('shape')}.")
    if prepared := record["inputs"].get("prepared"):
        lines.append(_list(prepared))
    return "\n\n".join(lines)


def _method(run: Run, record: Mapping[str, Any]) -> str:
    local = {k: v for k, v in (run.config.get("local") or {}).items() if k in _LOCAL}
    rows = {
        "model": f"{_name(run, 'model')}, {run.summary.get('parameters', 'unknown')} parameters",
        "private layers": str((run.config.get("private") or {}).get("name", "")),
        "cohort": str(run.config.get("cohort", "")),
        "rounds": f"{record['round']} of {run.planned}",
        "seed": str(run.seed),
        "time that passed, with waiting for nodes": _passed(run),
        "local work": ", ".join(f"{k} {v}" for k, v in local.items() if v is not None),
    }
    return f"{run.label}. All settings are in the run's `config.toml`.\n\n" + _table(
        ["setting", "value"], [[key, value] for key, value in rows.items() if value]
    )


def _passed(run: Run) -> str:
    """How long a deployed run took; nothing of others, whose time says nothing of a use."""
    seconds = float(run.seconds[-1]) if run.deployed and run.rounds.size else 0.0
    return human_seconds(seconds) if seconds else ""


def _scores(run: Run, record: Mapping[str, Any]) -> str:
    """A line for all test rows, one for each site, and their mean and spread; of a client's own
    model that of this site.
    """
    names = [n.removeprefix("test_") for n in run.columns if n.startswith("test_") and "@" not in n]
    names = [name for name in names if not name.endswith("_ema")]
    names = [name for name in names if name != "loss"] or names
    values = {n: value_at(run, f"test_{n}", record["round"]) for n in names}
    sites, sizes, rows = (
        record["scores"].get(key) or {} for key in ("sites", "training_rows", "test_rows")
    )
    if None in values.values() or not values or (record["client"] and not sites):
        return "The run measured nothing after this round."
    whole = OF_SITES if run.partition.get("tests_elsewhere") else ""
    lines = [
        [whole or "all test rows", "", f"{record['samples']:,}", *map(_number, values.values())]
    ]
    lines = [] if record["client"] else lines
    for site, each in list(sites.items())[:_SITES]:
        counts = [str(sizes.get(site, "-")), str(rows.get(site, "-"))]
        lines.append([site, *counts, *(_number(each.get(name)) for name in values)])
    series = [[e[n] for e in sites.values() if e.get(n) is not None] for n in values]
    for label, stat in (("mean of sites", np.mean), ("standard deviation of sites", np.std)):
        if any(series) and not record["client"]:
            lines.append([label, "", "", *(_number(float(stat(v)) if v else None) for v in series)])
    basis = f"\n\nSites were measured on {record['scores']['basis']}." if sites else ""
    return _table(["", "training rows", "test rows", *values], lines) + basis


def _limits(run: Run, facts: ExportFacts) -> Iterable[str]:
    record = facts.record
    for name, reasons in (record["scores"].get("why_none") or {}).items():
        for why, some in reasons.items():
            total = "" if record["client"] else f" of {len(some)} sites"
            yield f"{name}{total} is missing: {why}"
    rows = record["scores"].get("test_rows") or {}
    if few := [f"{site} ({count})" for site, count in rows.items() if count < FEW_ROWS][:_SITES]:
        yield f"Sites with fewer than {FEW_ROWS} test rows: {', '.join(few)}."
    if run.own_models and not record["client"]:
        yield "The sites of this run use models of their own, and this is the server's."
    if not record["scores"]:
        yield "No score of single sites is recorded for this model."
    if record["inputs"].get("columns"):
        yield (
            "`predict.py` refuses categories and texts that training did not have, and counts rows "
            "outside of the training rows' ranges."
            if record["ranges"]
            else "The ranges of the training rows are not recorded, so `predict.py` cannot say "
            "whether a row lies outside of them."
        )
    yield from map(str, run.summary.get("warnings") or ())
    yield from facts.lacking()


def _provenance(run: Run, record: Mapping[str, Any]) -> str:
    env = run.environment
    parts = [f"{key} {env[key]}" for key in ("fedloom", "commit", "torch", "python") if key in env]
    words = [f"The run: {', '.join(parts)}."] if parts else []
    words += [f"Its command: `{env['command']}`."] if env.get("command") else []
    return "\n\n".join([*words, f"Exported from `{run.path.name}` by fedloom {record['fedloom']}."])


def _name(run: Run, table: str) -> str:
    entry = run.config.get(table)
    return str(entry.get("name") if isinstance(entry, Mapping) else entry)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "None is recorded."


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(c.replace('|', '/') for c in row)} |" for row in rows)
