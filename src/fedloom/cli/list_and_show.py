"""`fedloom list` and `show`: all names, which go together, and what they stand for."""

from __future__ import annotations

import importlib
import inspect
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.core.own_parts import is_own
from fedloom.core.registry import Registry, description_of
from fedloom.errors import ConfigError, FedloomError, did_you_mean, unknown
from fedloom.storage.locks import holder
from fedloom.storage.manifest import check_run

from .printing import as_json, reflowed, table

if TYPE_CHECKING:
    from fedloom.config.help_texts import Setting
    from fedloom.report import Run

_WHERE = {  # topic: the registry of its names, and where a file has the options of one
    "recipes": ("fedloom.recipes:RECIPES", ""),
    "algorithms": ("fedloom.algorithms.registry:ALGORITHMS", ""),
    "servers": ("fedloom.wrappers.registry:SERVERS", "server"),
    "models": ("fedloom.models:MODELS", ""),
    "data": ("fedloom.data:SOURCES", "data"),
    "partitions": ("fedloom.data:PARTITIONS", "data.partition"),
    "objectives": ("fedloom.objectives:OBJECTIVES", "objective"),
    "submodels": ("fedloom.submodels:SUBMODELS", "submodel"),
    "private": ("fedloom.submodels:PRIVATE", "private"),
    "schedules": ("fedloom.federation.schedules:SCHEDULES", "local.schedule"),
    "orders": ("fedloom.federation.passes:PASSES", "local.passes"),
    "codecs": ("fedloom.compression.codecs:MAKERS", "compress"),
    "devices": ("fedloom.federation.devices:DEVICES", "devices"),
    "choices": ("fedloom.federation.choice:CHOICES", "choose"),
    "clocks": ("fedloom.federation.clock:CLOCKS", "clock"),
    "aggregations": ("fedloom.aggregation:AGGREGATIONS", "aggregation"),
    "attacks": ("fedloom.federation.attacks:ATTACKS", "attack"),
    "trackers": ("fedloom.trackers:TRACKERS", "tracker"),
    "engines": ("fedloom.engines:ENGINES", ""),
    "measures": ("fedloom.measures:MEASURES", ""),
    "optimisers": ("fedloom.config.help_texts:OPTIMISERS", ""),
    "settings": ("fedloom.config.help_texts:TABLES", ""),
}
TOPICS = (*_WHERE, "runs")
_CLIENTS = 20  # that are shown of a run
_DEPTH = ("*", "*/*", "*/*/*")  # how deep runs may be below the folder runs


@click.command("list", short_help="List what can be named, what goes together, or your runs.")
@click.argument("topic", required=False, metavar="[TOPIC]")
@click.option("--json", "program", is_flag=True, help="For programs (docs/schemas/list.json).")
@click.option("--compatibility", is_flag=True, help="Which algorithms go with which other parts.")
def list_command(topic: str | None, program: bool, compatibility: bool) -> None:
    """List what can be named in a configuration, or the runs below the folder runs.

    Topics: recipes, algorithms, servers (what one does with the mean update), models, data,
    partitions, objectives, submodels, private (layers of each client), schedules, orders (of a
    client's data, from round to round), codecs (how updates are compressed), devices (how fast
    clients are), choices (of the clients of a round), clocks (when the server makes its step),
    aggregations (what the server makes of updates), attacks (what hostile clients do), trackers
    (who else sees a run), engines, measures (of a run), optimisers (of clients), settings (tables
    without a name), runs. Without one: everything but the runs.

    --compatibility says which algorithms go with which other parts, and why the rest is refused.
    Its topics: objective, server, clock, local, dp, submodel, compress, submodel_compress,
    aggregation, submodel_aggregation, compress_aggregation; without one, all. Asked of the parts
    themselves, without training.
    """
    if program and compatibility:
        raise ConfigError("--compatibility has no --json; give one of them")
    if compatibility:
        click.echo(_compatible(topic))
        return
    if topic is not None and topic not in TOPICS:
        raise ConfigError(unknown("topic", topic, TOPICS))
    if program:
        content = {"runs": _runs()} if topic == "runs" else {"topics": _names(topic)}
        click.echo(as_json(content))
        return
    if topic == "runs":
        lines = [_line(facts) for facts in _runs()]
        none = "  no runs below the folder runs; start one with: fedloom run digits"
        click.echo(table([["folder", "state", "result"], *lines]) if lines else none)
        return
    for name, names in _names(topic).items():
        page = table([[*entry.values()] for entry in names])
        click.echo(page if topic else f"{name}\n{page}\n")


def _names(topic: str | None) -> dict[str, list[dict[str, str]]]:
    registries = {name: registry_of(name) for name in ([topic] if topic else _WHERE)}
    return {
        one: [{"name": name, "about": names.first_line(name)} for name in names]
        for one, names in registries.items()
    }


def _compatible(axis: str | None) -> str:
    from fedloom.cli import compatibility as parts

    pages = []
    for name in parts.AXES if axis is None else [axis]:
        lines, notes = parts.cells(parts.table(name))
        heading = f"{parts.AXES[name].title} ({name})"
        pages.append("\n".join([heading, table(lines), *(f"  {note}" for note in notes)]))
    return "\n\n".join(pages)


@click.command("show", short_help="Explain a name that `list` prints, or a setting.")
@click.argument("name")
def show_command(name: str) -> None:
    """Explain an algorithm, server optimiser, recipe, model, data set, partition, objective, rule
    of sub-models, schedule, order of passes, codec, device profile, clock, aggregation, attack,
    engine, measure, local optimiser, table of settings (run, local, local.dp, evaluate,
    checkpoint, churn, availability, ranks) or a key of one (local.lr, rounds).

    Of an algorithm: state, messages and cost in a round, and its options. Of the
    folder of a run (runs/one, ./one): how far it is, its result, the metrics of each client that
    has a name, and who answered if its clients were elsewhere.
    """
    is_run = Path(name, "config.toml").is_file()
    if is_run and ("/" in name or name not in every_name()):
        click.echo(_run(Path(name)))
        return
    if "/" in name:
        raise ConfigError(f"there is no run in '{name}'; `fedloom list runs` has those below runs/")
    page = _pages_of(name)
    click.echo(reflowed(page, shutil.get_terminal_size().columns) if sys.stdout.isatty() else page)


def _pages_of(name: str) -> str:
    """The page of a name; of several things of one name, all of them. Raises ConfigError."""
    matches = [(topic, registry) for topic in _WHERE if name in (registry := registry_of(topic))]
    if not matches:
        return _setting(name)
    pages = []
    for topic, registry in matches:
        entry, path = registry[name], _WHERE[topic][1]
        more = _SHOW[topic](name, entry) if topic in _SHOW else _with_options(path, name)
        pages.append("\n\n".join([f"{name} ({registry.kind})", _words(entry), *more]).rstrip())
    return "\n\n".join(pages)


def _setting(name: str) -> str:
    """The page of a key of a table without a name. Raises ConfigError for what is none."""
    from fedloom.config.help_texts import TABLES, setting_named, settings_in

    if is_own(name):
        raise ConfigError(
            f"show runs no file; `fedloom check {name}` tries a part, and `fedloom run digits "
            f"KEY={name} --dry-run` prints its settings"
        )
    kinds = {path or topic: topic for topic, (_, path) in _WHERE.items()}
    kinds |= {topic.removesuffix("s"): topic for topic in TOPICS}
    if (kind := kinds.get(name, name if name in TOPICS else None)) is not None:
        raise ConfigError(f"'{name}' is a kind of names; `fedloom list {kind}` has the names")
    keys = {s.key: (s, table) for table in TABLES for s in settings_in(table)}
    if (key := setting_named(name)) in keys:
        setting, where = keys[key]
        return f"{key} (key of the table {where})\n\n{_options([setting])}"
    table = "local.schedule" if name == "local.decay" else name.rpartition(".")[0]
    if (kind := kinds.get(table)) is not None:
        raise ConfigError(
            f"'{name}' is an option of a name; `fedloom show NAME` has its options, and `fedloom "
            f"list {kind}` the names"
        )
    names = {*every_name(), *keys}
    hint = did_you_mean(name, [key for key in names if key.rpartition(".")[0] == table])
    near = f"; {hint}" if hint.startswith("did you mean") else ""
    raise ConfigError(f"unknown name '{name}'{near}; `fedloom list` has all names")


def every_name() -> set[str]:
    """Whatever can be shown."""
    return {key for topic in _WHERE for key in registry_of(topic)}


def registry_of(topic: str) -> Registry[Any]:
    """The registry of a topic, imported on demand."""
    module, _, name = _WHERE[topic][0].partition(":")
    registry: Registry[Any] = getattr(importlib.import_module(module), name)
    return registry


def _runs() -> list[dict[str, Any]]:
    """What is known of every run below the folder runs, see _facts()."""
    from fedloom.report import load_run

    runs = []
    folders = [p.parent for depth in _DEPTH for p in Path("runs").glob(f"{depth}/config.toml")]
    for folder in sorted(folders):
        try:
            runs.append(_facts(load_run(folder)))
        except FedloomError as error:
            runs.append({"folder": str(folder), "damaged": str(error)})
    return runs


def _facts(run: Run) -> dict[str, Any]:
    """A run's folder, state and result; value: None if its last round was not evaluated."""
    column = run.columns.get(run.metric.column)
    last = math.nan if column is None or not len(column) else float(column[-1])
    return {
        "folder": str(run.path),
        "rounds": int(run.rounds[-1]) if run.rounds.size else 0,
        "planned": run.planned,
        "finished": run.finished,
        "running": holder(run.path / ".lock") is not None,
        "metric": run.metric.title,
        "unit": run.metric.unit,
        "value": None if math.isnan(last) else last,
    }


def _line(facts: dict[str, Any]) -> list[str]:
    from fedloom.report.tables import human_value

    if "damaged" in facts:
        return [facts["folder"], "damaged", facts["damaged"]]
    rounds, planned = facts["rounds"], facts["planned"]
    some = "round" if planned == 1 else "rounds"
    state = f"{rounds} {some}" if facts["finished"] else f"{rounds} of {planned} {some}"
    state += ", running now" if facts["running"] else ""
    result = f"{facts['metric']} {human_value(facts['value'], facts['unit'])}"
    return [facts["folder"], state, result]


def _run(folder: Path) -> str:
    from fedloom.report import group_runs, load_run
    from fedloom.report.clients import attendance, client_cells, names_of
    from fedloom.report.differences import measured_how

    check_run(folder)
    run = load_run(folder)
    _, state, result = _line(_facts(run))
    page = table([["run", run.label], ["state", state], ["result", result]])
    heads, lines, count = client_cells(groups := group_runs([run]))
    if lines:  # the worst first
        page += "\n\n" + table([heads, *lines[:_CLIENTS]])
        page += "\n  the others: fedloom report" if count > _CLIENTS else ""
    page += "".join(f"\n\n{line}" for line in measured_how(groups))
    if nodes := attendance(folder, names_of(run)):
        page += "\n\n" + "\n".join([table([nodes.heads, *nodes.lines]), *nodes.left, *nodes.why])
    return page


def _words(part: Any) -> str:
    """A text without its examples, indented."""
    return _indented(description_of(part).partition(">>>")[0])


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.rstrip().splitlines())


# ------------------------------------------------ what a page has below the description of a name
def _algorithm(name: str, make: Any) -> list[str]:
    from fedloom.algorithms.registry import make_algorithm, options
    from fedloom.config.help_texts import as_toml

    from .method_costs import costs

    cost = costs(make_algorithm(name))
    rows = [
        ["server keeps", *_count(cost.server)],
        ["a client keeps", *_count(cost.memory)],
        ["a client is sent", *_count(cost.down)],
        ["a client sends", *_count(cost.up)],
        *([["once before round 1", *_count(cost.probe)]] if cost.probe else []),
        ["gradients per step", f"{cost.gradients:g}", ""],
    ]
    note = "  In a round of a client (a vector is as long as the model):"
    lines = [
        [f"algorithm.{key}", as_toml(o.default), o.text(), o.meaning, o.source]
        for key, o in options(name).items()
    ]
    heads = ["key", "default", "allowed", "meaning", "source"]
    settings = f"  Options:\n{table([heads, *lines])}" if lines else "  It has no options."
    return [note, table(rows), settings]


def _count(vectors: tuple[str, ...]) -> tuple[str, str]:
    number = len(vectors)
    return f"{number} vector{'' if number == 1 else 's'}", ", ".join(vectors)


def _recipe(name: str, _: Any) -> list[str]:
    from fedloom.config import resolve

    return [_indented(resolve(name).to_toml())]


def _model(name: str, make: Any) -> list[str]:
    options = _with_options("model", name)
    if "source" in inspect.signature(make).parameters:  # to show a model must not download it
        return options
    model = make()
    blocks = [*model.named_children(), ("all", model)]
    sizes = [[key, f"{sum(p.numel() for p in block.parameters()):,}"] for key, block in blocks]
    return [*options, f"  With these defaults:\n{table([['block', 'parameters'], *sizes])}"]


def _with_options(path: str, name: str) -> list[str]:
    from fedloom.config.help_texts import options_of

    options = _options(options_of(path, name)) if path else ""
    return [f"  Options:\n{options}"] if options else []


def _options(options: Sequence[Setting]) -> str:
    heads = ["key", "default", "allowed", *(["meaning"] if any(o.about for o in options) else [])]
    lines = [[o.key, o.default, o.allowed, o.about][: len(heads)] for o in options]
    return table([heads, *lines]) if lines else ""


def _settings(name: str, part: Any) -> list[str]:
    from fedloom.config.help_texts import TABLES, options_of_measure, settings_in

    return [_options(settings_in(name) if name in TABLES else options_of_measure(part))]


def _optimiser(name: str, _: Any) -> list[str]:
    return [f"  local.optimiser={name}; rates and moments: fedloom show local"]


_SHOW: dict[str, Callable[[str, Any], list[str]]] = {
    "algorithms": _algorithm,
    "recipes": _recipe,
    "models": _model,
    "settings": _settings,
    "optimisers": _optimiser,
    "measures": _settings,
}
