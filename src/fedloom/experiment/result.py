"""The result of a run, and the files that it writes at its end."""

from __future__ import annotations

import functools
import logging
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.curves import Value, tested
from ..core.extras import install
from ..core.own_parts import short
from ..core.vector import Rec, tree
from ..engines import Ranks
from ..engines.base import Remote
from ..engines.one_step import step_costs
from ..engines.scores import add
from ..errors import ConfigError, unknown
from ..evaluation.clients import NOT_MEASURED, PerClient
from ..evaluation.declared import OF_SITES, unit_of
from ..evaluation.metrics import brier
from ..evaluation.sizes import text
from ..server.rounds import Run
from ..server.state import Ledger
from ..storage.identity import group_of
from ..storage.manifest import BEST, GROWING, LAST, resealed
from ..storage.rank_states import RankStates
from ..storage.records import disk_errors, write_model
from ..storage.run_directory import RunDirectory
from .provenance import engine_text, explained_disk, site_means

if TYPE_CHECKING:
    import pandas

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Result:
    """history: one row per round. model: the trained module, in evaluation mode. state: the
    server's record.

    clients: the headline metric per client, None for a client without test samples;
    client_metrics: every metric of the run so. path: the run directory, if there is one.
    client_names, examples: the clients' names, if they have some, and how many training samples
    each has. own_models: clients use models of their own, not the server's. best_model: the one
    with the best value of checkpoint.keep_best, None without that. unseen: names, rows and metrics
    of the clients that never train.
    """

    history: list[dict[str, Any]]
    model: nn.Module
    ledger: Ledger
    summary: dict[str, Any]
    state: Rec
    clients: list[float | None]
    path: Path | None = None
    client_names: tuple[str, ...] = ()
    examples: tuple[int, ...] = ()
    client_metrics: Mapping[str, list[float | None]] = field(default_factory=dict)
    own_models: bool = False
    best_model: nn.Module | None = None
    unseen: Mapping[str, Any] = field(default_factory=dict)

    def curve(self, column: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a column of the history, where it was measured. Raises ConfigError
        if no round has such a column.
        """
        columns = {name for row in self.history for name in row}
        if column not in columns:
            raise ConfigError(f"result.history: {unknown('column', column, columns)}")
        return self._curve(column)

    def _curve(self, column: str) -> tuple[list[int], list[float]]:
        rows = [r for r in self.history if r.get(column) is not None]
        return [r["round"] for r in rows], [r[column] for r in rows]

    def to_pandas(self, value: Value = "last-tenth") -> pandas.DataFrame:
        """The history as a data frame, a row for each round; needs pandas.

        Its last column, `tested`, is what `fedloom compare --value` would compare if the run had
        ended at that evaluation of the test set. value: see core.curves.VALUES. Raises ConfigError
        for an unknown one.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                f"a data frame needs pandas, which is missing; {install('report')}"
            ) from error

        def column(name: str) -> dict[int, float]:
            return {i: r[name] for i, r in enumerate(self.history) if r.get(name) is not None}

        metric = self.summary["metric"]
        metric_args = metric["name"], metric["higher_is_better"], value
        values = tested(column, *metric_args, of_clients=self.own_models)
        frame = pandas.DataFrame(self.history)
        frame["tested"] = pandas.Series(values, dtype=float)
        return frame

    @property
    def last(self) -> float | None:
        """The headline metric on the test set after the last round."""
        last = self.summary["last"]
        return None if last is None else float(last["value"])

    @property
    def best(self) -> float | None:
        """Its best finite value over all evaluations."""
        best = self.summary["best"]
        return None if best is None else float(best["value"])

    def __repr__(self) -> str:
        """One line: the method, rounds, the headline metric, and what it cost."""
        from . import notebook

        return notebook.line(self.summary)

    def _repr_html_(self) -> str:
        """A short table and the curve: what a notebook shows."""
        from . import notebook

        name = f"test_{self.summary['metric']['name']}"
        return notebook.page(self.summary, self.per_client(), self._curve(name))

    def per_client(self) -> list[dict[str, Any]]:
        """A row per client, the worst first: client (its name or number), examples, and every
        metric, of which the headline decides; those that were not measured come last. A client that
        never trains has no examples, and unseen = True.
        """
        headline = self.summary["metric"]
        names = self.client_names or range(len(self.clients))
        rows: list[dict[str, Any]] = [
            {"client": name, "examples": size, headline["name"]: value}
            | {metric: each[i] for metric, each in self.client_metrics.items()}
            for i, (name, size, value) in enumerate(
                zip(names, self.examples, self.clients, strict=True)
            )
        ]
        unseen = self.unseen or {"names": (), "metrics": {}}
        rows += [
            {"client": name, "examples": 0, "unseen": True}
            | {metric: each[i] for metric, each in unseen["metrics"].items()}
            for i, name in enumerate(unseen["names"])
        ]
        sign = -1.0 if headline["higher_is_better"] is False else 1.0
        measured = [row for row in rows if row[headline["name"]] is not None]
        unmeasured = [row for row in rows if row[headline["name"]] is None]
        return sorted(measured, key=lambda row: sign * row[headline["name"]]) + unmeasured


def finish(run: Run, names: Mapping[str, str], rounds: int, config: Mapping[str, Any]) -> Result:
    """Collect the result, and write summary, ledger, per-client scores and the final model.

    names: the run's names in the summary; rounds: how many were planned.
    """
    names = {**names, "algorithm": short(names["algorithm"])}
    scores = _per_client(run)
    clients = scores.values[run.headline]
    by_client, by_size = _by_size(run)
    summary = _summary(run, names, rounds, group_of(config)) | by_size
    unseen = _unseen(run)
    client_names = run.fed.data.client_names
    summary |= scores.columns(run.fed.metrics, run.state.curve.higher_is_better, client_names)
    module = run.net.export(run.model(), run.state.buffers).cpu()
    folder = run.checkpoints.folder
    if folder is not None:
        record = {"round": run.state.round, "metric": run.headline, "basis": scores.basis}
        record |= {"values": clients, "metrics": scores.values, "why_none": scores.why}
        if run.accounts is not None and not run.plan.aggregation.unkeyed:
            record |= {"example_epsilon": run.accounts.values(run.state.trained)}
        record |= {"unseen": unseen} if unseen else {}
        record |= by_client | ({"names": list(client_names)} if client_names else {}) | _tests(run)
        write = functools.partial(_write, folder, module, run.state.ledger.as_dict())
        with explained_disk(folder, "the results", f"then {folder.resume}"):
            run.group.first(functools.partial(write, record, summary))
    path = None if folder is None else folder.path
    state = tree(lambda v: v.cpu() if isinstance(v, Tensor) else v, run.state.srv)
    sizes = tuple(run.fed.data.sizes.tolist())
    parts = (run.log.history, module, run.state.ledger, summary, state, clients, path)
    best = _best_model(run)
    return Result(*parts, client_names, sizes, scores.values, run.plan.personalises, best, unseen)


def _unseen(run: Run) -> dict[str, Any]:
    """What the clients' file says of those that never train: names, rows, metrics of each."""
    unseen, metrics = run.fed.data.unseen, run.fed.metrics
    if unseen is None:
        return {}
    scores = [run.evaluator.unseen(run, i) for i in range(unseen.clients.count)]
    names = [*metrics] or ["loss"]
    each = {name: [score.mean(name, metrics) for score in scores] for name in names}
    finite = {k: [v if math.isfinite(v) else None for v in values] for k, values in each.items()}
    return {"names": list(unseen.names), "rows": unseen.clients.sizes.tolist(), "metrics": finite}


def _best_model(run: Run) -> nn.Module | None:
    """The model with the best value of the column that checkpoint.keep_best names."""
    folder, best = run.checkpoints.folder, run.log.selection.best
    if best is None or best.value is None or folder is None:
        return run.best_model
    from safetensors.torch import load_model

    module = run.exported()
    with disk_errors():
        load_model(module, folder.path / BEST)
    return module


def _write(
    folder: RunDirectory, module: nn.Module, ledger: Any, clients: Any, summary: dict[str, Any]
) -> None:
    with resealed(folder.path, *LAST, *GROWING):
        write_model(folder.path / "model.safetensors", module)
        folder.write_json("ledger.json", ledger)
        many = len(clients["values"] or ()) > 10_000
        folder.write_json("clients.json", clients, None if many else 1)
        folder.write_json("summary.json", summary)  # last: if it is there, all is there


def _to_target(run: Run) -> dict[str, Any]:
    """When the moving average reached evaluate.target, and what it had cost. If the only evaluation
    is the one at the end, which no schedule has, it is that one's.
    """
    name, target, history = f"test_{run.headline}", run.evaluator.settings.target, run.log.history
    means = {r["round"]: r[f"{name}_ema"] for r in history if r.get(f"{name}_ema") is not None}
    if not run.state.curve.at and history[-1].get(name) is not None:
        means = {run.state.round: history[-1][name]}
    first, text = None, ""
    spent: tuple[int | None, float | None] = None, None
    if target is not None and means:
        higher = run.state.curve.higher_is_better
        good = (t for t, mean in means.items() if (mean >= target if higher else mean <= target))
        first = next(good, None)
        text = f"{run.state.round}+" if first is None else str(first)
    if first is not None:
        spent = run.state.ledger.until(first, history)
    each = any("seconds" in r for r in history)  # none of a private deployment
    return {
        "target": target,
        "rounds_to_target": first,
        "rounds_to_target_text": text,
        "bytes_to_target": spent[0],
        "seconds_to_target": spent[1] if each else None,
    }


def _summary(run: Run, names: Mapping[str, str], rounds: int, group: str) -> dict[str, Any]:
    name, curve, ledger = f"test_{run.headline}", run.state.curve, run.state.ledger
    evaluations = [(r["round"], r[name]) for r in run.log.history if r.get(name) is not None]
    best, ranked = None, curve.higher_is_better is not None
    for round, value in evaluations:
        if not ranked or not math.isfinite(value):
            continue
        if best is None or curve.better(value, best[1]):
            best = (round, value)
    averages = [r[f"{name}_ema"] for r in run.log.history if r.get(f"{name}_ema") is not None]
    each = [r["seconds"] for r in run.log.history if "seconds" in r]  # none of a private deployment
    validation = [r for r in run.log.history if r.get(f"validation_{run.headline}") is not None]
    return {
        "metric": {
            "name": run.headline,
            "higher_is_better": curve.higher_is_better,
            "unit": unit_of(run.headline),
            **({"of": OF_SITES} if run.headline in site_means(run) else {}),
        },
        **names,
        **run.plan.aggregation.summary(run.state.aggregation, run.state.round),
        **(
            run.accounts.summary(run.state.trained)
            if run.accounts and not run.plan.aggregation.unkeyed
            else {}
        ),
        **run.log.monitor.verdict,
        "seed": run.fed.seed,
        "rounds": run.state.round,
        "finished": run.state.round >= rounds,
        **_ended_early(run),
        "population": run.fed.population,
        "parameters": run.net.layout.d,
        "best": _point(best),
        "last": _point(evaluations[-1] if evaluations else None),
        "last_ema": averages[-1] if averages else None,
        "last_validation": validation[-1][f"validation_{run.headline}"] if validation else None,
        **(reached := _to_target(run)),
        "bytes_up": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        "seconds": ledger.seconds if each else None,
        "seconds_per_round": statistics.median(each) if each else None,
        **_simulated(run, reached["rounds_to_target"]),
        "engine": engine_text(run.engine),
        **_balance(run),
        "group": group,
    }


def _ended_early(run: Run) -> dict[str, Any]:
    """The round that a metric or a function of the user's made the last, and the best model."""
    entries: dict[str, Any] = {}
    if run.log.selection.over or run.state.ends == run.state.round:
        entries["stopped"] = run.state.round
    if run.log.selection.best is not None:
        entries["best_model"] = run.log.selection.best.as_dict()
    return entries


def _simulated(run: Run, reached: int | None) -> dict[str, float]:
    """The seconds that the described devices would have taken, whole and to the target."""
    if not run.state.ledger.simulated:
        return {}
    entries = {"simulated_seconds": run.state.ledger.simulated}
    if reached is None:
        return entries
    until = (r["simulated_seconds"] for r in run.log.history if r["round"] <= reached)
    return entries | {"simulated_to_target": math.fsum(until)}


def _balance(run: Run) -> dict[str, Any]:
    """What the ranks did, and the bytes of client states that left this one."""
    if not isinstance(run.engine, Ranks) or not isinstance(run.memory, RankStates):
        return {}
    return {"ranks": run.engine.balance() | {"state_bytes_sent": run.memory.bytes_sent}}


def _point(point: tuple[int, float] | None) -> dict[str, Any] | None:
    return None if point is None else {"round": point[0], "value": point[1]}


def _per_client(run: Run) -> PerClient:
    """Every metric per client; see Evaluator.client_values."""
    data = run.fed.data
    nobody: list[float | None] = [None] * run.fed.population
    none = PerClient(dict.fromkeys([*run.fed.metrics] or ["loss"], nobody), {}, NOT_MEASURED)
    if run.evaluator.settings.clients and run.evaluator.at_nodes:
        return run.evaluator.client_values(run, add([*run.evaluator.at_nodes.values()]))
    if record := _read_clients(run):
        return PerClient(record["metrics"], record["why_none"], record["basis"])
    if not run.evaluator.settings.clients or data.test_inputs is None or not run.fed.metrics:
        return none
    assert data.test_targets is not None
    by_class = data.classes is not None and data.test_targets.ndim == 1
    if data.test_clients is None and not by_class:
        return none
    scores = run.size_scores().get(1.0)  # the whole model
    return run.evaluator.client_values(run, scores or run.evaluator.tested(run), last=True)


def _read_clients(run: Run) -> dict[str, Any]:
    """The clients' file of a deployed run that has ended: nodes are not asked again."""
    folder = run.checkpoints.folder if isinstance(run.engine, Remote) else None
    if folder is None or not (folder.path / "clients.json").is_file():
        return {}
    record = folder.read_object("clients.json")
    return record if record.get("round") == run.state.round else {}


def _tests(run: Run) -> dict[str, Any]:
    """Entries of the clients' file: the number of each client's own test rows, if they are known;
    and if `brier` of two classes is measured, the bins of the reliability curve, of all test rows
    and of each client's.
    """
    data, metrics, nodes = run.fed.data, run.fed.metrics, run.evaluator.at_nodes
    if nodes:
        count = [nodes[i].examples if i in nodes else 0 for i in range(run.fed.population)]
        counts = {i: torch.tensor(score.bins) for i, score in nodes.items() if score.bins}
        each = [counts[i].tolist() if i in counts else [] for i in range(run.fed.population)]
        bins = torch.stack([*counts.values()]).sum(0).tolist() if counts else []
        curve = {"reliability": {"bins": bins, "clients": each}} if counts else {}
        return {"test_rows": count} | curve
    if record := _read_clients(run):
        return {key: record[key] for key in ("test_rows", "reliability") if key in record}
    tests = data.test_clients
    entries: dict[str, Any] = {} if tests is None else {"test_rows": tests.sizes.tolist()}
    personal, has_brier = run.plan.personalises, any(m is brier for m in metrics.values())
    if data.test_inputs is None or personal or not has_brier:  # nobody uses the common model
        return entries
    from ..evaluation.reliability import binned

    each_row = binned(run.evaluator.tested(run), metrics, data.test_targets)
    if each_row is None:
        return entries
    lists = [] if tests is None or tests.count > 1000 else map(tests.of, range(tests.count))
    client_bins = [each_row[rows].sum(0).tolist() for rows in lists]
    return entries | {"reliability": {"bins": each_row.sum(0).tolist(), "clients": client_bins}}


def _by_size(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Additional entries of a run with sub-models: for the clients' file, for the summary."""
    sizes = run.evaluator.sizes
    if sizes is None:
        return {}, {}
    x = run.model()
    scores = run.size_scores()
    local, basis = sizes.local(scores)
    part = {"rule": sizes.rule.name, "capacities": list(run.fed.capacities)}
    columns = sizes.columns(scores)
    cohorts = [row.get("clients") for row in run.log.history]  # where not only a draw decides
    trained = {
        i
        for t, cohort in enumerate(cohorts)
        for i in (run.cohorts.of(t) if cohort is None else cohort)
    }
    outside = [i for i in range(run.fed.population) if i not in trained]
    summary = {
        "rule": sizes.rule.name,
        "held": {text(c): sizes.counts(x, c, run.state.round) for c in sizes.levels},
        **_size_costs(run),
        "global": _of(columns, f"test_{sizes.metric}@"),
        "local": _of(columns, f"local_{sizes.metric}@"),
        "outside_clients": len(outside),
        "unseen": sizes.unseen(run.engine, run.evaluator.current(run), outside),
        **sizes.explored(run.state.explored),
    }
    return {"submodel": part | {"values": local, "basis": basis}}, {"sizes": summary}


def _size_costs(run: Run) -> dict[str, Any]:
    """What a local step of a client of each size takes, where clients are of this process and a
    step of each works.
    """
    if isinstance(run.engine, Remote):
        return {}
    try:
        costs = step_costs(run.plan, run.fed, run.net)
    except Exception as error:  # also a stranger's: the run is over, and its summary is worth more
        _log.warning("what a step of each size takes is not in the summary: %s", error)
        return {}
    return {"cost": {text(c): cost._asdict() for c, cost in costs.items()}}


def _of(columns: Mapping[str, float], start: str) -> dict[str, float]:
    """The columns with this prefix, by the rest of their names."""
    return {k.removeprefix(start): v for k, v in columns.items() if k.startswith(start)}
