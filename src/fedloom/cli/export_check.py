"""What a run says about its inputs, whether an exported script computes what its network does, and
the model card. Its headings follow Mitchell et al., "Model Cards for Model Reporting" (FAT* 2019).
"""

from __future__ import annotations

import runpy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn

from fedloom._version import __version__
from fedloom.cli.exported import BATCH, prepare
from fedloom.config import Config
from fedloom.core.net import logits_of
from fedloom.data import FederatedData
from fedloom.data.own.cells import EMPTY
from fedloom.data.own.preparation import PerClient, ranges
from fedloom.data.raw_inputs import recipe
from fedloom.engines.base import one_thread
from fedloom.errors import CheckpointError, ConfigError, FedloomError
from fedloom.evaluation.declared import OF_SITES
from fedloom.report import Run
from fedloom.report.charts import FEW_ROWS
from fedloom.report.clients import attendance, names_of
from fedloom.report.table_text import markdown
from fedloom.storage.atomic import write_out


@dataclass(frozen=True)
class ExportFacts:
    """record: for the script, fit for JSON. row: one input of the network, (1, ...); None if the
    run does not say. data: the run's, None if they are not available, and why.
    """

    record: dict[str, Any]
    row: Tensor | None
    data: FederatedData | None
    why: str

    def lacking(self) -> list[str]:
        """What the export cannot include of how inputs are made, a line."""
        recipe, no = self.record["inputs"], "not exported:"
        of_kind = {
            "own": f"{no} the transform {recipe.get('transform')}, your own code; call it in "
            "prepare()",
            "unknown": f"{no} how inputs are made, which the run does not say",
            "subwords": "the script reads the tokeniser with the package transformers",
        }
        return [of_kind[recipe["kind"]]] if recipe["kind"] in of_kind else []


def collect_facts(
    run: Run,
    config: Config | None,
    round: int,
    capacity: float | None,
    weights: Mapping[str, Tensor],
    client: int | None = None,
) -> ExportFacts:
    """What a run says about the model of a round; capacity: of a sub-model; client: who uses it.
    Raises CheckpointError where inputs are not described, ConfigError where rows are not here.
    """
    elsewhere = run.partition.get("tests_elsewhere")  # how many test rows nodes have
    elsewhere = elsewhere if isinstance(elsewhere, int) else 0
    data, why = _load_data(config, elsewhere)
    inputs = run.partition.get("inputs")
    recipe = dict(inputs) if isinstance(inputs, Mapping) else {}
    recipe = recipe if "kind" in recipe else {"kind": "unknown"}
    owner, spread = "", run.partition.get("ranges") or {}
    if client is not None:
        if data is None:
            raise ConfigError(f"--client: {why}")
        owner = data.client_name(client) if data.client_names else f"client {client}"
        spread = ranges(data, client)
        data, recipe = _client_part(data, client, recipe)
    first = next((v for v in weights.values() if v.is_floating_point()), None)
    tests = None if data is None else data.test_inputs
    common = run.own_models and client is None  # which no site was measured with
    measured = capacity is None and not common and run.clients.get("round") == round
    record = {
        "fedloom": __version__,
        "run": run.path.name,
        "client": owner,
        "round": round,
        "dtype": "float32" if first is None else str(first.dtype).removeprefix("torch."),
        "classes": [str(c) for c in run.partition.get("class_names") or ()],
        "outcome": _outcome(run),
        "threshold": _threshold(run, round),
        "samples": elsewhere if tests is None else len(tests),
        "ranges": spread,
        "reading": _reading(run),
        "recode": run.partition.get("recode") or {},
        "scores": _scores(run, owner) if measured else {},
    }
    return ExportFacts(record, describe(record, recipe, data, run.path), data, why)


def _load_data(config: Config | None, elsewhere: int) -> tuple[FederatedData | None, str]:
    """-> a run's data if they are here, else why not."""
    if elsewhere:
        return None, "the nodes measured it, on test rows that are not here"
    if config is None:
        return None, "the run was started from Python, which alone knows its data"
    try:
        return config.experiment().data, ""
    except FedloomError as error:
        return None, f"the data are not at hand: {error}"


def describe(
    record: dict[str, Any], recipe: dict[str, Any], data: FederatedData | None, run: Path
) -> Tensor | None:
    """Put how inputs are made into the record -> a row made by it, or zeros of its shape."""
    record["inputs"] = recipe
    try:
        whole_numbers = recipe.get("dtype") == "int64" and recipe["shape"]
        record["tokens"] = int(recipe["shape"][0]) if whole_numbers else 1
        if "words" in recipe:
            recipe["words"] = {word: i for i, word in enumerate(recipe["words"])}
        for rule in recipe.get("rules", ()):
            missing = map(str, record.get("reading", {}).get("na_values", ()))
            rule["empty"] = sorted({*EMPTY, *missing})
            if other := record.get("recode", {}).get(rule["name"]):
                rule["recode"] = other
        if data is not None and recipe["kind"] not in ("own", "unknown", "cells_per_client"):
            return prepare(_back(data, data.inputs[:1]), record)
        if data is not None and recipe["kind"] != "cells_per_client":
            return _ready(data, data.inputs[:1], record)
        if not {"shape", "dtype"} <= recipe.keys():
            return None
        kind = recipe["dtype"] if recipe["dtype"] == "int64" else record["dtype"]
        return torch.zeros(1, *recipe["shape"], dtype=getattr(torch, kind))
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"'{run / 'partition.json'}' is damaged, so how inputs are made is not known "
            f"({error!r}); put back the file as it was"
        ) from None


def _client_part(
    data: FederatedData, client: int, common_recipe: dict[str, Any]
) -> tuple[FederatedData, dict[str, Any]]:
    """What a client has; how its inputs are made, of all clients' inputs if they are alike."""
    client_data, raw = data.only(client, tests=True), data.raw
    if not isinstance(raw, PerClient):
        return client_data, common_recipe
    client_raw = raw.by_client[data.client_name(client) if data.client_names else ""]
    return replace(client_data, raw=client_raw), recipe(client_raw, data.transform, data.inputs)


def _outcome(run: Run) -> str:
    kind = (run.partition.get("metric") or {}).get("kind")
    outcome = run.partition.get("outcome", "numbers")
    if outcome == "marks" and run.partition.get("tests_elsewhere") and kind not in ("auc", "brier"):
        return "numbers"  # the server has zeros in their place
    return "classes" if kind == "accuracy" else str(outcome)


def value_at(run: Run, column: str, round: int) -> float | None:
    """What a run's log has in a column after a round; None where there is nothing."""
    row = np.flatnonzero(run.rounds == round)
    return float(run.columns[column][row[-1]]) if column in run.columns and len(row) else None


def _threshold(run: Run, round: int) -> float:
    value = value_at(run, "threshold", round)
    value = run.config.get("evaluate", {}).get("threshold") if value is None else value
    return float(value) if isinstance(value, int | float) else 0.5


def _reading(run: Run) -> dict[str, Any]:
    """How the files of a table are read, where it is not as usual."""
    data = {"na_values": run.partition.get("na_values"), **(run.config.get("data") or {})}
    opts = {k: data.get(k) for k in ("names", "na_values", "encoding", "sep", "decimal", "sheet")}
    return {k: v for k, v in opts.items() if v and not isinstance(v, Mapping)}


def _scores(run: Run, owner: str) -> dict[str, Any]:
    """Every metric of every site by its name, on what it was measured, on how many test rows of its
    own (if they are known), and why it was not. owner: this site alone; "": all.
    """
    metrics = run.clients.get("metrics") or {}
    count = len(next(iter(metrics.values()), ()))
    names = run.clients.get("names") or [f"client {i}" for i in range(count)]
    sites = {name: {k: v[i] for k, v in metrics.items()} for i, name in enumerate(names)}
    sizes = dict(zip(names, run.partition.get("sizes") or (), strict=False))
    rows = dict(zip(names, run.clients.get("test_rows") or (), strict=False))
    why = run.clients.get("why_none") or {}
    if owner:
        i = names.index(owner) if owner in names else -1
        tables = sites, sizes, rows
        sites, sizes, rows = ({k: v for k, v in t.items() if k == owner} for t in tables)
        why = {k: {t: [i] for t, some in v.items() if i in some} for k, v in why.items()}
    details = {"training_rows": sizes, "test_rows": rows, "why_none": why}
    return {"basis": run.clients.get("basis"), "sites": sites, **details}


def verify(code: Path, facts: ExportFacts, module: nn.Module | None) -> None:
    """Compare a script's outputs for raw test rows with the network's. Raises CheckpointError."""
    data, record = facts.data, facts.record
    unchecked = ""
    if data is None or module is None:
        unchecked = facts.why
    elif data.test_inputs is None:
        unchecked = f"{record['client'] or 'the run'} has no test set"
    elif record["inputs"]["kind"] in ("own", "unknown"):
        unchecked = "the inputs' transform is not in the script"
    if unchecked or data is None or module is None:
        click.echo(f"not checked: {unchecked}")
        return
    script, network = runpy.run_path(str(code)), None if record["torch"] else module
    size, network_of_run = max(1, BATCH // record["tokens"]), module.eval()
    with one_thread(), torch.no_grad():
        for site, samples, stored in _test_rows(data):
            for a in range(0, len(stored), size):
                given = script["outputs"](samples[a : a + size], network, site)
                wanted = logits_of(network_of_run(_ready(data, stored[a : a + size], record)))
                if not torch.allclose(given, wanted, rtol=1e-3, atol=1e-5, equal_nan=True):
                    raise CheckpointError(
                        f"'{code}' gives other outputs for raw test rows than the run's network: "
                        "the data or this fedloom are not those of the run; do not use it before "
                        "you know why"
                    )
    click.echo(f"checked: on {record['samples']:,} raw test rows it computes what the run did")


def _test_rows(data: FederatedData) -> Iterator[tuple[str | None, Any, Tensor]]:
    """Whose they are, of sites with numbers of their own; raw test rows; the same as stored."""
    inputs, tests = data.test_inputs, data.test_clients
    assert inputs is not None
    if not isinstance(data.raw, PerClient) or tests is None:
        yield None, _back(data, inputs), inputs
        return
    for i, site in enumerate(data.client_names):
        if len(rows := tests.of(i)):
            yield site, data.raw.by_client[site].back(inputs[rows]), inputs[rows]


def _ready(data: FederatedData, stored: Tensor, record: Mapping[str, Any]) -> Tensor:
    """Stored inputs as the network takes them."""
    rows = data.ready(stored)
    return rows.to(getattr(torch, record["dtype"])) if rows.is_floating_point() else rows


def _back(data: FederatedData, inputs: Tensor) -> Any:
    """The published form of inputs: an array, or texts."""
    return inputs.numpy() if data.raw is None else data.raw.back(inputs)


# ----------------------------------------------------------------------------------------- the card
_SITES = 100  # more are counted, and not listed


def write_card(out: Path, run: Run, facts: ExportFacts) -> None:
    """Write the card of an exported model."""
    record = facts.record
    site = f", {record['client']}'s own model" if record["client"] else ""
    parts = [
        f"# Model card: {run.name}, {run.label}{site}",
        _use(record),
        "## Data and method\n\n" + _list(_origin(run, record)),
        "## Scores\n\n" + _measured(run, record),
        "## Limits\n\n" + _list(_limits(run, facts)),
    ]
    click.echo(f"{write_out(out, chr(10).join(f'{part}{chr(10)}' for part in parts))}: the card")


def _use(record: Mapping[str, Any]) -> str:
    recipe, classes = record["inputs"], record["classes"]
    file = "texts.txt" if "words" in recipe else "samples.npy"
    file = "patients.csv" if recipe.get("columns") else file
    site = " --site SITE" if recipe["kind"] == "cells_per_client" else ""
    code = f"```\npython predict.py {file} --out scores.csv{site}\n```"
    meaning = f"\n\nClasses: {', '.join(classes)}." if classes else ""
    if len(classes) == 2:
        meaning += f" A row is {classes[1]} where that has a probability above "
        meaning += f"{record['threshold']:g}."
    return code + meaning


def _origin(run: Run, record: Mapping[str, Any]) -> Iterator[str]:
    """The data, the method and the versions that made the model."""
    sizes, recipe, env = run.partition.get("sizes") or [], record["inputs"], run.environment
    rows = f", {sum(sizes):,} training rows" if sizes and "every" not in run.partition else ""
    tests = f"; {record['samples']:,} test rows."
    if client := record["client"]:
        count = (record["scores"].get("training_rows") or {}).get(client, "unknown")
        tests = f". {client}: {count} training rows, {record['samples']:,} test rows."
    yield f"{_name(run, 'data')}: {run.summary.get('population', len(sizes)):,} sites{rows}{tests}"
    if (nodes := attendance(run.path, names_of(run))) is not None:
        yield from nodes.left
    yield f"Inputs: {recipe['kind']}, {recipe.get('shape')}; `about.json` says how they are made."
    yield from recipe.get("prepared") or ()
    model = f"{_name(run, 'model')} with {run.summary.get('parameters', 'unknown')} parameters"
    yield f"{run.label}, {model}, round {record['round']} of {run.planned}, seed {run.seed}."
    parts = [f"{key} {env[key]}" for key in ("fedloom", "commit", "torch", "python") if key in env]
    yield f"Run by {', '.join(parts) or 'an unknown version'}, exported by {__version__}."
    yield f"All settings are in the run's `config.toml`; its command: `{env.get('command', '-')}`."


def _measured(run: Run, record: Mapping[str, Any]) -> str:
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
    whole = OF_SITES if run.partition.get("tests_elsewhere") else "all test rows"
    lines = [[whole, "", f"{record['samples']:,}", *map(_number, values.values())]]
    lines = [] if record["client"] else lines
    for site, each in list(sites.items())[:_SITES]:
        counts = [str(sizes.get(site, "-")), str(rows.get(site, "-"))]
        lines.append([site, *counts, *(_number(each.get(name)) for name in values)])
    series = [[e[n] for e in sites.values() if e.get(n) is not None] for n in values]
    for label, stat in (("mean of sites", np.mean), ("standard deviation of sites", np.std)):
        if any(series) and not record["client"]:
            lines.append([label, "", "", *(_number(float(stat(v)) if v else None) for v in series)])
    basis = f"\n\nSites were measured on {record['scores']['basis']}." if sites else ""
    return markdown(["", "training rows", "test rows", *values], lines) + basis


def _limits(run: Run, facts: ExportFacts) -> Iterator[str]:
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
    yield from map(str, run.summary.get("warnings") or ())
    yield from facts.lacking()


def _name(run: Run, table: str) -> str:
    entry = run.config.get(table)
    return str(entry.get("name") if isinstance(entry, Mapping) else entry)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "None is recorded."
