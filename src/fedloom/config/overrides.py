"""Changes of a configuration: `key=value` on the command line."""

from __future__ import annotations

import datetime
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..aggregation import AGGREGATIONS
from ..algorithms.registry import ALGORITHMS
from ..compression.codecs import MAKERS, usual_feedback
from ..core.hyper import Hyper
from ..core.own_parts import is_own, named_here
from ..core.parsing import SizeError, parse_toml, shortened
from ..core.registry import Registry
from ..core.validation import NOTHING, fields_of
from ..data import PARTITIONS, SOURCES
from ..engines.ranks import RankSettings
from ..errors import ConfigError
from ..evaluation.named_metrics import names_of
from ..evaluation.settings import Evaluation
from ..evaluation.stopping import EarlyStop
from ..experiment.settings import Settings
from ..federation.attacks import ATTACKS
from ..federation.availability import Availability
from ..federation.choice import CHOICES
from ..federation.clock import CLOCKS
from ..federation.devices import DEVICES
from ..federation.local import Local
from ..federation.passes import PASSES
from ..federation.private_examples import ExamplePrivacy
from ..federation.sampling import Churn
from ..federation.schedules import SCHEDULES
from ..models import MODELS
from ..objectives import OBJECTIVES
from ..storage.run_directory import Checkpoint
from ..submodels import PRIVATE, SUBMODELS
from ..trackers import TRACKERS
from ..wrappers.registry import SERVERS

Makers = Mapping[str, Callable[..., Any]]
_log = logging.getLogger(__name__)

_BARE = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")  # .1 and 1., which TOML has not
_DOTS = 8  # of a key: the longest one has three

# tables that have a name, and options that depend on it
REGISTRIES: dict[str, Registry[Any]] = {
    "algorithm": ALGORITHMS,
    "server": SERVERS,
    "model": MODELS,
    "data": SOURCES,
    "data.partition": PARTITIONS,
    "local.schedule": SCHEDULES,
    "local.passes": PASSES,
    "objective": OBJECTIVES,
    "submodel": SUBMODELS,
    "private": PRIVATE,
    "compress": MAKERS,
    "compress.down": MAKERS,
    "devices": DEVICES,
    "choose": CHOICES,
    "clock": CLOCKS,
    "aggregation": AGGREGATIONS,
    "attack": ATTACKS,
    "tracker": TRACKERS,
}
# tables without a name, which may contain named ones
PLAIN: Makers = {
    "local": Local,
    "evaluate": Evaluation,
    "checkpoint": Checkpoint,
    "churn": Churn,
    "availability": Availability,
    "ranks": RankSettings,
}
# tables without a name inside of these, written out only if they are given
INNER: Makers = {"local.dp": ExamplePrivacy, "evaluate.stop": EarlyStop}
TABLES: Mapping[str, Any] = {**PLAIN, **INNER, **REGISTRIES}
METRICS = "metrics"  # the key whose list may name own parts
OPTIONAL = ("churn", "availability", "ranks")  # written out only if they are given
RUN = fields_of(Settings)  # the keys outside of all tables
# keys of a named table that are no options of its entry
NESTED: dict[str, tuple[str, ...]] = {
    "data": ("partition", "tests"),
    "submodel": ("capacities", "shares"),
    "compress": ("feedback", "down"),
}


# shorthands of keys, or of their beginnings
SHORT = {
    "partition": "data.partition",
    "tests": "data.tests",
    "data.unseen": "evaluate.unseen",
}
# what other systems call them
SYNONYMS = {
    "batch_size": "local.batch",
    "learning_rate": "local.lr",
    "weight_decay": "local.weight_decay",
    "optimizer": "local.optimiser",
    "local_epochs": "local.epochs",
    "local_steps": "local.steps",
    "local.batch_size": "local.batch",
    "local.learning_rate": "local.lr",
    "local.optimizer": "local.optimiser",
    "server.learning_rate": "server.lr",
    "num_rounds": "rounds",
    "num_server_rounds": "rounds",
    "num_clients": "data.partition.clients",
    "clients_per_round": "cohort",
    "fraction_fit": "cohort",
    "fraction_train": "cohort",
    "dataset": "data",
    "random_seed": "seed",
    "random_state": "seed",
}


def table_at(raw: Any, path: str) -> Mapping[str, Any]:
    """The table at a dotted path; empty if there is none."""
    for key in path.split(".") if path else ():
        raw = raw.get(key, {}) if isinstance(raw, Mapping) else {}
    return raw if isinstance(raw, Mapping) else {}


def in_full(raw: dict[str, Any]) -> dict[str, Any]:
    """The same settings; `key = "name"`, which is short for a table with that name, in full."""
    for path in REGISTRIES:
        outer, _, key = path.rpartition(".")
        table: Any = table_at(raw, outer)
        if key in table and not isinstance(table[key], dict):
            table[key] = {"name": table[key]}
    return raw


def parse_override(text: str) -> tuple[str, Any]:
    """`a.b=c` -> its dotted key and its value: as TOML if it is valid TOML, else as text.

    Raises ConfigError for anything but key=value.

    >>> parse_override("local.lr=0.05"), parse_override("algorithm=fedacg")
    (('local.lr', 0.05), ('algorithm', 'fedacg'))
    """
    path, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not path or not all(path.split(".")) or path.count(".") > _DOTS:
        like = f"algorithm={text}" if is_own(text) else "local.lr=0.05"
        raise ConfigError(f"expected key=value, as in {like}, got '{shortened(text)}'")
    try:
        parsed = parse_toml(f"v = {value}")
    except SizeError as error:
        raise ConfigError(f"command line: the value of {path[:60]} is too large: {error}") from None
    except ValueError:
        return path, float(value) if _BARE.fullmatch(value) else value
    dates = (datetime.date, datetime.time)
    if set(parsed) != {"v"} or isinstance(parsed["v"], dates):
        return path, value
    return path, parsed["v"]


def refuse_repeats(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a line that gives one key two values.

    >>> refuse_repeats(["seed=1", "local.lr=0.1", "seed=1"])
    """
    values: dict[str, tuple[str, Any]] = {}
    for text in overrides:
        path, value = parse_override(text)
        path = full(path, value)
        path = path.removesuffix(".name") if _is_name(path) else path
        first, before = values.setdefault(path, (text, value))
        if text != first and before != value:  # NaN differs from itself
            raise ConfigError(
                f"command line: {first} and {text} give {path} two values; keep one of them"
            )


def refuse_more_rounds(overrides: Sequence[str], planned: Any) -> None:
    """Raise ConfigError for rounds=+50: TOML reads 50, and 50 more are meant."""
    for text in overrides:
        key, _, value = (part.strip() for part in text.partition("="))
        if key == "rounds" and value[:1] == "+" and value[1:].isdecimal():
            raise ConfigError(
                f"command line: {text}: rounds counts all rounds from the start, not more of "
                f"them; this run has {planned}: give rounds={planned + int(value)} for "
                f"{int(value)} more"
            )


def apply(raw: dict[str, Any], overrides: Sequence[str]) -> frozenset[str]:
    """Change a configuration in place, names before options; returns the dotted keys that changed.

    A new name drops the options of the old one. Raises ConfigError.
    """
    changes = []
    for path, value in map(parse_override, overrides):
        key = full(path, value)
        changes.append((key, _load_files(key, value)))
    keys = set()
    for path, value in sorted(changes, key=lambda change: not _is_name(change[0])):
        path = _spelled_out(raw, path)
        table, key = _place(raw, path)
        left_out = path in INNER and value == NOTHING
        if _is_name(path):
            _drop_options(table, path.removesuffix(".name"), value)
        elif isinstance(table.get(key), dict) and not isinstance(value, dict) and not left_out:
            raise ConfigError(
                f"command line: {path} is a table; set one of its keys, {path}.KEY=..."
            )
        table[key] = value
        keys |= {path, *_written_in(path, value)}
    in_full(raw)  # a table may have been given whole
    _one_amount(raw, keys)
    return frozenset(keys)


def metric_list(value: Any) -> Any:
    """Metrics in a text with commas, as a list; any other value as it is."""
    return [*names_of(value)] if isinstance(value, str) and value != NOTHING else value


def _load_files(path: str, value: Any) -> Any:
    """A value; of a name with a file, as seen from the working directory, the file is loaded."""
    value = metric_list(value) if path == METRICS else value
    try:
        if path == METRICS and isinstance(value, list):
            return [named_here(name) for name in value]
        is_part = path.endswith((".of", ".preparation")) or _is_name(path)
        return named_here(value) if is_part else value
    except ConfigError as error:
        key = path.removesuffix(".name")
        raise ConfigError(f"command line: {key}: {error}") from error


def is_divided(source: Callable[..., Any]) -> bool:
    """True if a source of data takes no partition: its data have their clients already."""
    return "partition" not in inspect.signature(source).parameters


def is_short(codec: str) -> bool:
    """True if a codec's name includes its options, as topk:0.01 does, or is a chain."""
    return not is_own(codec) and (":" in codec or "|" in codec)


def keys_at(raw: Mapping[str, Any], path: str) -> Mapping[str, Hyper]:
    """The keys of a table, of a named one for the name that it has; none if that is unknown."""
    maker = TABLES[path]
    if path in REGISTRIES:
        maker = maker.get(str(table_at(raw, path).get("name")))
    return fields_of(maker, NESTED.get(path, ())) if maker else {}


def full(path: str, value: Any) -> str:
    """A key without the shorthands that do not depend on the settings; of a named table, which a
    name alone stands for, the key of its name.
    """
    short = next((s for s in SHORT if f"{path}.".startswith(f"{s}.")), "")
    path = SHORT[short] + path.removeprefix(short) if short else path
    return f"{path}.name" if path in REGISTRIES and not isinstance(value, Mapping) else path


def _is_name(path: str) -> bool:
    return path.endswith(".name") and path.removesuffix(".name") in REGISTRIES


def _written_in(path: str, name: Any) -> list[str]:
    """The keys that may be written in a codec's name, as that of topk:0.01."""
    table, codec = path.removesuffix(".name"), str(name).partition(":")[0]
    within = _is_name(path) and table.startswith("compress") and codec in MAKERS
    return [f"{table}.{key}" for key in fields_of(MAKERS[codec])] if within else []


def _drop_options(table: dict[str, Any], path: str, name: Any) -> None:
    """Take out the options of a table's name, unless it has this one already."""
    old = dict(table)
    if old.get("name") == name:
        return
    remaining = {k: v for k, v in old.items() if k in NESTED.get(path, ())}
    if path == "data" and is_own(name) and is_divided(SOURCES[name]):
        remaining = {}
    if path == "compress" and (name == NOTHING or remaining.get("feedback") == usual_feedback(old)):
        remaining.pop("feedback", None)  # it was the default of the old codec
    if path == "data.partition":  # every partition has `clients`
        keys = keys_at({"data": {"partition": {"name": name}}}, path)
        remaining = {k: v for k, v in old.items() if k in keys}
    table.clear()
    table.update(remaining)


def _place(raw: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The table of a dotted key, made if it is missing, and the key's last part."""
    *tables, key = path.split(".")
    for name in tables:
        raw = raw.setdefault(name, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"command line: {path}: '{name}' is a value, not a table")
    return raw, key


def _spelled_out(raw: dict[str, Any], path: str) -> str:
    """Shorthands: data.alpha is data.partition.alpha, local.decay is local.schedule.decay."""
    table, _, key = path.rpartition(".")
    if path == "local.decay":
        schedule, _ = _place(raw, "local.schedule.name")
        _drop_options(schedule, "local.schedule", "exponential")
        schedule["name"] = "exponential"
        return "local.schedule.decay"
    inside = table == "data" and key not in keys_at(raw, "data")
    return f"data.partition.{key}" if inside and key in keys_at(raw, "data.partition") else path


def _one_amount(raw: dict[str, Any], keys: set[str]) -> None:
    """local.steps on the command line replaces local.epochs of the recipe, and the reverse."""
    local = raw.get("local")
    if isinstance(local, dict) and len({"local.steps", "local.epochs"} & keys) == 1:
        local.pop("epochs" if "local.steps" in keys else "steps", None)
