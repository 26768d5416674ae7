"""From a recipe or a file with changes to the complete configuration, and to a run."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..algorithm import Algorithm
from ..algorithms.registry import ALGORITHMS
from ..compression.codecs import Dense
from ..compression.error_feedback import FEEDBACKS, Forget
from ..compression.link import FieldCodec, Link
from ..core.device import device_of
from ..core.net import Net
from ..core.own_parts import is_own
from ..core.parsing import user_path
from ..core.validation import Origin, check, live
from ..data import FederatedData, with_client_tests
from ..engines import Workers, is_auto, make_engine
from ..errors import CheckpointError, ConfigError, did_you_mean
from ..experiment.experiment import Experiment
from ..experiment.settings import Settings
from ..federation.capacities import levels_of
from ..models import make_model
from ..storage.identity import CHANGEABLE, differing
from ..storage.manifest import check_file
from ..submodels import SubModel
from ..wrappers.registry import warn_of_two, with_server
from .labels import method_label
from .overrides import (
    NESTED,
    PLAIN,
    REGISTRIES,
    RUN,
    SYNONYMS,
    TABLES,
    apply,
    in_full,
    keys_at,
    refuse_more_rounds,
    table_at,
)
from .own_code import CODE, check_loaded, files_in, load_again, load_named, merge_hashes
from .sources import load, read
from .tables import METHOD, capacities_of, complete

_PARTS = [p for p in METHOD if p not in ("algorithm", "server", "compress")]  # one object each
_TABLES = (*dict.fromkeys(path.partition(".")[0] for path in TABLES),)


@dataclass(frozen=True, eq=False)
class Config:
    """A complete configuration. values: nested tables as in TOML, every default written out.

    >>> config = resolve("digits", ["algorithm=fedacg", "algorithm.lam=0.9"])
    >>> config.values["algorithm"]
    {'name': 'fedacg', 'lam': 0.9, 'beta': 0.01}
    """

    values: Mapping[str, Any]
    origin: Origin

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, which has the files of own parts still to load."""
        vars(self).update(state)
        load_named(self.values, self.origin.source)

    @property
    def algorithm(self) -> str:
        """The algorithm's name; of a user's own, that of its class."""
        name = str(self.values["algorithm"]["name"])
        return ALGORITHMS.label(name) if is_own(name) else name

    @property
    def own_models(self) -> str:
        """The setting by which clients use models of their own; empty without one."""
        if private := self.values.get("private"):
            return f"private = '{private['name']}'"
        if self.part("algorithm").personalises:
            return f"algorithm = '{self.algorithm}'"
        steps = self.values["evaluate"]["finetune"]
        return f"evaluate.finetune = {steps}" if steps else ""

    def to_toml(self) -> str:
        """The configuration as a TOML file that `fedloom run` takes."""
        import tomli_w

        return tomli_w.dumps(dict(self.values))

    def experiment(self, data: FederatedData | None = None, **more: Any) -> Experiment:
        """Make every part, load the data. data: those of data(), if they are loaded already; more:
        further arguments of Experiment, such as on_round.

        Raises ConfigError or DataError with the source of a refused value.
        """
        check_loaded(self.values)
        parts = {path: self.part(path) for path in (*PLAIN, *_PARTS)}
        run = {k: v for k, v in self.values.items() if k in RUN}
        algorithm, data = self._algorithm(), self.data() if data is None else data
        link = self._link()
        with self.origin.blame(""):
            return Experiment(
                algorithm=algorithm,
                model=self._model,
                data=data,
                capacities=capacities_of(self.values.get("submodel", {})),
                compress=link,
                config=self.values,
                **{k: v for k, v in parts.items() if v is not None},
                **live(run),
                **more,
            )

    def options(self, path: str) -> dict[str, Any]:
        """The options of what the table at a dotted path makes, as Python arguments; a table among
        them becomes its object.
        """
        options = live(table_at(self.values, path))
        for key in ("name",) * (path in REGISTRIES) + NESTED.get(path, ()):
            options.pop(key, None)
        inside = {key: f"{path}.{key}" for key in options if f"{path}.{key}" in TABLES}
        return options | {key: self.part(inner) for key, inner in inside.items()}

    def part(self, path: str, **more: Any) -> Any:
        """The object of the table at a dotted path; None if there is none. more: further
        arguments.
        """
        if not (table := table_at(self.values, path)):
            return None
        options, maker = self.options(path), TABLES[path]
        with self.origin.blame(path, options):
            if path in REGISTRIES:
                return maker.make(table["name"], **options, **more)
            return maker(**options)

    def _algorithm(self) -> Algorithm:
        method: Algorithm = self.part("algorithm")
        if "server" not in self.values:
            return method
        server, options = self.values["server"]["name"], self.options("server")
        with self.origin.blame("server", options):
            warn_of_two(method, server)
            return with_server(method, server, options)

    def _link(self) -> Link | None:
        """How updates and broadcasts travel; None if nothing is compressed."""
        if (codec := self.part("compress")) is None:
            return None
        feedback = FEEDBACKS[self.values["compress"]["feedback"]]()
        plain = isinstance(codec, Dense) and type(feedback) is Forget
        return Link({} if plain else FieldCodec(codec, feedback), self.part("compress.down"))

    def submodel(self) -> SubModel | None:
        """The sub-model scheme, which knows the capacities; None without one."""
        part: SubModel | None = self.part("submodel")
        shares = capacities_of(self.values.get("submodel", {}))
        return part if part is None or shares is None else part.settled(levels_of(shares))

    def net(self) -> Net:
        """The model, with its initial weights; no data are loaded."""
        return Net(self._model(), getattr(torch, self.values["dtype"]))

    def _model(self) -> nn.Module:
        options = self.options("model")
        with self.origin.blame("model", options):
            return make_model(self.values["model"]["name"], **options)

    def data(self) -> FederatedData:
        """The data, divided among the clients.

        Raises ConfigError or DataError as experiment() does.
        """
        table, partition = self.values["data"], self.part("data.partition")
        data: FederatedData = self.part("data", **({"partition": partition} if partition else {}))
        with self.origin.blame("data", table):
            data = data.astype(getattr(torch, self.values["dtype"]))
            if "tests" in table:
                seed = table.get("seed", self.values["seed"])
                return with_client_tests(data, partition, table["tests"], seed)
            return data


def resolve(
    source: str | Path,
    overrides: Sequence[str] = (),
    own: Callable[[dict[str, Any], Mapping[str, Any]], None] | None = None,
) -> Config:
    """The configuration of a recipe's name or a TOML file, with changes `key=value`. The files of a
    user's own parts that it names are loaded; own: does so in its place, from the settings and the
    hashes of their files.

    Raises ConfigError, on one line, for unknown names and wrong types.
    """
    raw, label, name = load(source)
    code = raw.pop(CODE, {})  # of a run's file: what its own parts were then
    if own is None:
        load_named(raw, label)
    else:
        own(raw, code)
    return _complete({"name": name, **raw}, label, overrides, fresh=True)


def from_run(
    run: str | Path, overrides: Sequence[str] = (), own: bool = False, changed: bool = False
) -> Config:
    """The configuration of a run directory, with changes that may be made. own: load the files
    of a user's own parts that it names, and say so; changed: even if they have changed since.

    Raises CheckpointError if it is no run directory, its settings were altered or a file has
    changed, ConfigError for a run that Python code started (its model and data are in that code)
    and for a change of a setting that decides the numbers.
    """
    run = user_path(run)
    file = run / "config.toml"
    if not file.is_file():
        raise CheckpointError(
            f"'{run}' is not a run directory: it has no config.toml; see `fedloom list runs`"
        )
    check_file(run, "config.toml")
    raw = read(file)
    if raw.get("source") == "python":
        raise ConfigError(
            f"'{run}' was started from Python, which made its model and data; go on there with "
            f"Experiment(...).resume('{run}'), with the arguments it had"
        )
    refuse_more_rounds(overrides, raw.get("rounds"))
    code = raw.pop(CODE, {})
    if own:
        load_again(raw, code, Path(run), changed)
    new = _complete(raw, f"file '{file}'", overrides)
    old = _complete({**raw, "device": "cpu"}, f"file '{file}'", ())  # its own data may be elsewhere
    if other := differing(old.values, new.values):
        engines = [c.values["engine"] for c in (old, new)]
        if other == ["engine"]:
            raise ConfigError(
                f"command line: engine = '{engines[1]}' cannot replace '{engines[0]}' when a "
                "run goes on; only one with the same bits can, such as another number of workers"
            )
        raise ConfigError(
            f"command line: {other[0]} cannot change when a run goes on; only {CHANGEABLE} can: "
            f"start a new run with `fedloom run {shlex.join([str(file), *overrides])}`"
        )
    hashes = merge_hashes(code, files_in(new.values), Path(run)) if own else code
    return Config({**new.values, CODE: hashes}, new.origin) if hashes else new


def _complete(
    settings: dict[str, Any], source: str, overrides: Sequence[str], fresh: bool = False
) -> Config:
    settings = in_full(copy.deepcopy(settings))
    raw = copy.deepcopy(settings)
    decay = raw["local"].pop("decay", None) if isinstance(raw.get("local"), dict) else None
    if decay is not None:
        if "schedule" in raw["local"]:
            raise ConfigError(f"{source}: local.decay and local.schedule are both given; keep one")
        raw["local"]["schedule"] = {"name": "exponential", "decay": decay}
    origin = Origin(source, apply(raw, overrides))
    _check_keys(raw, origin)
    top = {"dtype": "float32"} | {k: v for k, v in raw.items() if k not in _TABLES}
    method = complete(raw, METHOD, origin)
    old_label = method_label(complete(settings, METHOD, Origin(source))) if "label" in top else None
    if old_label == top.get("label") and "label" not in origin.command_line:
        top.pop("label", None)  # it named the parts that there were before the changes
    top.setdefault("label", method_label(method))
    values = check(Settings, top, "", "the configuration", origin)
    with origin.blame(""):
        Settings(**live(values))  # its rules
        device_of(values["device"])
        engine = None if is_auto(values["engine"]) else make_engine(values["engine"])
        if fresh and isinstance(engine, Workers):  # an existing run may come from another machine
            engine.fit(0)
    values |= {"algorithm": method["algorithm"], **complete(raw, ("model", "data"), origin)}
    values |= method
    values |= {CODE: files} if (files := files_in(values)) else {}
    config = Config(values | complete(raw, PLAIN, origin), origin)
    for path in PLAIN:
        config.part(path)  # the rules between its keys
    return config


def _check_keys(raw: Mapping[str, Any], origin: Origin) -> None:
    """Refuse unknown keys outside of tables, with the dotted key that may be meant."""
    for key in raw:
        if key not in RUN and key not in _TABLES:
            inside = [f"{path}.{key}" for path in TABLES if key in keys_at(raw, path)]
            hint = did_you_mean(key, [*RUN, *_TABLES])
            inside = [SYNONYMS[key]] if key in SYNONYMS else inside
            hint = f"did you mean '{inside[0]}'?" if inside else hint
            raise ConfigError(f"{origin.of(key)}: unknown key '{key}'; {hint}")
