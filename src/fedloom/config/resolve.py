"""From a recipe or a file and changes to the complete configuration, and from that to a run."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from ..algorithms.registry import make_algorithm
from ..core.net import Net
from ..data import PARTITIONS, SOURCES, TESTS, FederatedData, with_client_tests
from ..engines import Workers, make_engine
from ..errors import CheckpointError, ConfigError, DataError, did_you_mean, unknown
from ..experiment.experiment import Experiment
from ..federation.capacities import levels_of
from ..federation.devices import DEVICES
from ..federation.local import Local
from ..federation.sampling import Turnover
from ..federation.schedules import SCHEDULES
from ..models import make_model
from ..objectives import OBJECTIVES
from ..recipes import RECIPES
from ..server.evaluation import Evaluation
from ..server.rounds import Saving
from ..storage.identity import CHANGEABLE, differing
from ..submodels import VIEWS, Rule
from ..wrappers.registry import warn_of_two, with_server
from .capacities import capacities_of, dealing
from .compression import link_of, settings_of
from .labels import method_label
from .overrides import ALIASES, NESTED, REGISTRIES, apply, named_table, refuse_more_rounds
from .settings import PLAIN, Settings, check_device, engine_for
from .sources import load, read
from .validation import NOTHING, Origin, check, keyed, known, live, model_of, worded

_TABLES = (
    "algorithm",
    "server",
    "model",
    "data",
    "local",
    "evaluate",
    "checkpoint",
    "memory",
    "objective",
    "submodel",
    "compress",
    "devices",
    "turnover",
)


@dataclass(frozen=True, eq=False)
class Config:
    """A complete configuration. values: nested tables as in TOML, every default written out.

    >>> config = resolve("digits", ["algorithm=fedacg", "algorithm.lam=0.9"])
    >>> config.values["algorithm"]
    {'name': 'fedacg', 'lam': 0.9, 'beta': 0.01}
    """

    values: Mapping[str, Any]
    origin: Origin

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return str(self.values["algorithm"]["name"])

    def to_toml(self) -> str:
        """The configuration as a TOML file that `fedloom run` takes."""
        import tomli_w

        return tomli_w.dumps(dict(self.values))

    def experiment(self, **more: Any) -> Experiment:
        """Make every part, load the data. more: further arguments of Experiment, such as on_round.

        Raises ConfigError or DataError for what no part accepts, naming where it came from.
        """
        v = self.values
        name, options = self._named("algorithm")
        with self._blame("algorithm"):
            algorithm = make_algorithm(name, **options)
        if "server" in v:
            with self._blame("server"):
                server, options = self._named("server")
                warn_of_two(algorithm, server)
                algorithm = with_server(algorithm, server, options)
        local = {k: x for k, x in v["local"].items() if k != "schedule"}
        with self._blame("local"):
            rates = self._make("local.schedule", SCHEDULES)
            training = Local(**live(local), schedule=rates)
        with self._blame("evaluate"):
            evaluation = Evaluation(**live(v["evaluate"]))
        checkpoint = live(v["checkpoint"])
        data = self.data()
        turnover = None
        if "turnover" in v:
            with self._blame("turnover"):
                turnover = Turnover(**live(v["turnover"]))
        with self._blame("compress"):
            link = link_of(v.get("compress", {}))
        with self._blame("objective"):
            loss = self._make("objective", OBJECTIVES)
        submodel, devices = self._optional("submodel", VIEWS), self._optional("devices", DEVICES)
        with self._blame(""):
            return Experiment(
                algorithm=algorithm,
                model=self._model,
                data=data,
                rounds=v["rounds"],
                cohort=v["cohort"],
                local=training,
                loss=loss,
                submodel=submodel,
                capacities=capacities_of(v.get("submodel", {})),
                compress=link,
                devices=devices,
                seed=v["seed"],
                sampling=v["sampling"],
                turnover=turnover,
                weighting=v["weighting"],
                nonfinite=v["nonfinite"],
                evaluation=evaluation,
                engine=v["engine"],
                device=v["device"],
                dtype=getattr(torch, v["dtype"]),
                channels_last=v.get("channels_last"),
                saving=Saving(
                    checkpoint.get("every_rounds"), checkpoint["every_seconds"], checkpoint["keep"]
                ),
                resident_bytes=v.get("memory", {}).get("resident_bytes"),
                config=v,
                **more,
            )

    def _named(self, path: str) -> tuple[str, dict[str, Any]]:
        table: Any = self.values
        for part in path.split("."):
            table = table[part]
        skip = ("name", *NESTED.get(path, ()))
        return table["name"], live({k: v for k, v in table.items() if k not in skip})

    def _make(self, path: str, registry: Mapping[str, Callable[..., Any]]) -> Any:
        name, options = self._named(path)
        with keyed(path, options):
            return registry[name](**options)

    def _optional(self, path: str, registry: Mapping[str, Callable[..., Any]]) -> Any:
        if path not in self.values:
            return None
        with self._blame(path):
            return self._make(path, registry)

    def rule(self) -> Rule | None:
        """The rule of sub-models, which knows the capacities; None without one."""
        made: Rule | None = self._optional("submodel", VIEWS)
        given = capacities_of(self.values.get("submodel", {}))
        return made if made is None or given is None else made.settled(levels_of(given))

    def net(self) -> Net:
        """The model, with weights of its own; no data are loaded."""
        return Net(self._model(), getattr(torch, self.values["dtype"]))

    def _model(self) -> nn.Module:
        name, options = self._named("model")
        with self._blame("model"):
            return make_model(name, **options)

    def data(self) -> FederatedData:
        """The data, dealt to the clients.

        Raises ConfigError or DataError as experiment() does.
        """
        data, kind = self._data(), self.values["data"].get("tests")
        if kind is None:
            return data
        with self._blame("data"):
            partition = self._make("data.partition", PARTITIONS)
            return with_client_tests(data, partition, kind, self.values["data"]["seed"])

    def _data(self) -> FederatedData:
        name, options = self._named("data")
        with self._blame("data.partition"):
            partition = self._make("data.partition", PARTITIONS)
        with self._blame("data"):
            data = SOURCES[name](partition=partition, **options)
        return data.astype(getattr(torch, self.values["dtype"]))

    @contextmanager
    def _blame(self, table: str) -> Iterator[None]:
        """Say of a refused value which source and table it came from."""
        try:
            yield
        except (ConfigError, DataError) as error:
            own = [k for k in self.origin.typed if _is_meant(k, table, str(error))]
            named = self.origin.typed & {f"{table}.name", f"{table}.down.name"}
            where = "command line" if own or named else self.origin.source
            where += f", [{table}]" if table else ""
            said = worded(str(error), table, self.values.get(table, ()))
            raise type(error)(f"{where}: {said}") from error


def _is_meant(path: str, table: str, error: str) -> bool:
    """Say whether an error names this key of a table, or outside of tables its whole path."""
    if not table and "." in path:
        return path in error
    inside = not table or path.startswith(f"{table}.")
    return inside and re.search(rf"\b{path.rpartition('.')[2]}\b", error) is not None


def resolve(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a recipe's name or a TOML file, with changes `key=value`.

    Raises ConfigError, on one line, for whatever is unknown or of a wrong type.
    """
    raw, said, name = load(source)
    config = _complete({"name": name, **raw}, said, overrides, here=True)
    if str(source) not in RECIPES or "engine" in config.origin.typed:
        return config
    suits = engine_for(config.values["engine"], config.values["device"])
    return Config({**config.values, "engine": suits}, config.origin)


def from_run(run: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a run directory, with changes that a run may go on with.

    Raises CheckpointError for what is no run directory, ConfigError for a run that Python code
    started (its model and data are in that code) and for a change of what decides the numbers.
    """
    file = Path(run) / "config.toml"
    if not file.is_file():
        raise CheckpointError(
            f"'{run}' is not a run directory: it has no config.toml; see `fedloom list runs`"
        )
    raw = read(file)
    if raw.get("source") == "python":
        raise ConfigError(
            f"'{run}' was started from Python, which made its model and data; go on there with "
            f"Experiment(...).resume('{run}'), with the arguments it had"
        )
    refuse_more_rounds(overrides, raw.get("rounds"))
    asked = _complete(raw, f"file '{file}'", overrides)
    kept = _complete({**raw, "device": "cpu"}, f"file '{file}'", ())  # its own may be elsewhere
    if changed := differing(kept.values, asked.values):
        engines = [c.values["engine"] for c in (kept, asked)]
        if changed == ["engine"]:
            raise ConfigError(
                f"command line: engine = '{engines[1]}' cannot replace '{engines[0]}' when a "
                "run goes on; only the number of workers can change"
            )
        raise ConfigError(
            f"command line: {changed[0]} cannot change when a run goes on; only {CHANGEABLE} can: "
            f"start a new run with `fedloom run {shlex.join([str(file), *overrides])}`"
        )
    return asked


def _complete(
    given: dict[str, Any], source: str, overrides: Sequence[str], here: bool = False
) -> Config:
    raw = copy.deepcopy(given)
    decay = raw["local"].pop("decay", None) if isinstance(raw.get("local"), dict) else None
    if decay is not None:
        if "schedule" in raw["local"]:
            raise ConfigError(f"{source}: local.decay and local.schedule are both given; keep one")
        raw["local"]["schedule"] = {"name": "exponential", "decay": decay}
    origin = Origin(source, apply(raw, overrides))
    _check_keys(raw, origin)
    top = {k: v for k, v in raw.items() if k not in _TABLES}
    parts = _method(raw, origin)
    before = method_label(_method(copy.deepcopy(given), Origin(source))) if "label" in top else None
    if before == top.get("label") and "label" not in origin.typed:
        top.pop("label", None)  # it named the parts that there were before the changes
    top.setdefault("label", method_label(parts))
    values = check(Settings, top, "", "the configuration", origin)
    values["algorithm"] = parts["algorithm"]
    values["model"] = _named(raw, "model", origin)
    values["data"] = _data(raw, values["seed"], origin)
    values |= parts
    for table, model in PLAIN.items():
        if found := _plain(raw, table, model(), origin):
            values[table] = found
    check_device(values["device"], origin)
    try:
        engine = None if values["engine"] == "auto" else make_engine(values["engine"])
        if here and isinstance(engine, Workers):  # a run that is there may be of another machine
            engine.fit(0)
    except ConfigError as error:
        raise ConfigError(f"{origin.of('engine')}: {error}") from None
    return Config(values, origin)


def _method(raw: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """The tables that make a method."""
    algorithm = _named(raw, "algorithm", origin)
    objective = _named(raw, "objective", origin, "cross_entropy")
    return {"algorithm": algorithm, "objective": objective, **_extras(raw, origin)}


def _extras(raw: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """The tables that may be left out; the name "none" leaves one out too."""
    found: dict[str, Any] = {}
    for path in ("server", "submodel", "devices"):
        table = named_table(raw, path)
        if table and table.get("name") != NOTHING:
            found[path] = _named(raw, path, origin)
    if "submodel" in found:
        found["submodel"] |= dealing(named_table(raw, "submodel"), origin)
    if "turnover" in raw:
        found["turnover"] = _plain(raw, "turnover", model_of(Turnover), origin)
    if compress := settings_of(raw, _named, origin):
        found["compress"] = compress
    return found


def _check_keys(raw: Mapping[str, Any], origin: Origin) -> None:
    """Unknown keys outside tables, with the dotted key that may be meant."""
    for key in raw:
        if key in Settings.model_fields or key in _TABLES:
            continue
        inside = [f"{t}.{key}" for t, make in PLAIN.items() if key in make().model_fields]
        inside += [f"{p}.{key}" for p in REGISTRIES if key in _options(raw, p)]
        hint = did_you_mean(key, [*Settings.model_fields, *_TABLES])
        hint = f"did you mean '{inside[0]}'?" if inside else hint
        raise ConfigError(f"{origin.of(key)}: unknown key '{key}'; {hint}")


def _options(raw: Mapping[str, Any], path: str) -> list[str]:
    """The keys of a named table as it is named here; none if it has no known name."""
    *tables, key = path.split(".")
    place = raw
    for table in tables:
        place = named_table(place, table)
    make = REGISTRIES[path].get(str(named_table(place, key).get("name")))
    return known(make, NESTED.get(path, ())) if make else []


def _plain(
    raw: Mapping[str, Any], path: str, model: type[BaseModel], origin: Origin
) -> dict[str, Any]:
    table = raw.get(path, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{origin.of(path)}: {path} must be a table, got {table!r}")
    own = {k: v for k, v in table.items() if (path, k) != ("local", "schedule")}
    if path == "local" and all(own.get(k) is None for k in ("epochs", "steps", "seconds")):
        own["epochs"] = 1
    values = check(model, own, path, f"[{path}]", origin)
    if path == "local":
        rates = named_table(table, "schedule")
        if rates.get("name") == "cosine" and type(raw.get("rounds")) is int:
            rates.setdefault("rounds", raw["rounds"])  # what a longer continuation keeps
        values["schedule"] = _named({"schedule": rates}, "local.schedule", origin, "constant")
    return values


def _named(
    place: Mapping[str, Any], path: str, origin: Origin, default: str | None = None
) -> dict[str, Any]:
    """A table with a name and the options that belong to it, complete."""
    registry, key = REGISTRIES[path], path.rpartition(".")[2]
    table = named_table(place, key)
    name = table.pop("name", default)
    if name is None:
        raise ConfigError(f"{origin.source}: {path}.name is missing; known: {', '.join(registry)}")
    if not isinstance(name, str):
        raise ConfigError(f"{origin.of(f'{path}.name')}: {path} must be a name, got {name!r}")
    name = ALIASES.get((path, name), name)
    if name not in registry:
        raise ConfigError(f"{origin.of(f'{path}.name')}: {unknown(path, name, registry)}")
    inner = NESTED.get(path, ())
    table = {k: v for k, v in table.items() if k not in inner}
    model = model_of(registry[name], frozenset(inner))
    return {"name": name, **check(model, table, path, f"{path} '{name}'", origin)}


def _data(raw: Mapping[str, Any], seed: int, origin: Origin) -> dict[str, Any]:
    table = named_table(raw, "data")
    table.setdefault("seed", seed)
    values = _named({"data": table}, "data", origin)
    tests = table.get("tests", NOTHING)
    if tests not in (*TESTS, NOTHING):
        said = unknown("data.tests", str(tests), (*TESTS, NOTHING))
        raise ConfigError(f"{origin.of('data.tests')}: {said}")
    values |= {} if tests == NOTHING else {"tests": tests}
    return values | {"partition": _named(table, "data.partition", origin)}
