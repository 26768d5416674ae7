"""The tables of a configuration, complete: every default is written out, also those that follow
from other tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..algorithm import Trait
from ..compression.codecs import MAKERS, named_codec, usual_feedback
from ..compression.error_feedback import FEEDBACKS
from ..core.own_parts import explained, is_own, short
from ..core.registry import Registry
from ..core.validation import NOTHING, Origin, check, fields_of
from ..data import SOURCES, TESTS
from ..errors import ConfigError, unknown
from ..federation.capacities import Capacities, levels_of
from .labels import traits_of
from .overrides import (
    INNER,
    NESTED,
    OPTIONAL,
    PLAIN,
    REGISTRIES,
    TABLES,
    is_divided,
    is_short,
    keys_at,
)

Table = dict[str, Any]
# those that make a method, and what its rounds are like
METHOD = (
    *("algorithm", "objective", "server", "submodel", "private", "choose", "clock", "devices"),
    *("aggregation", "attack", "tracker", "compress"),
)
_ALWAYS = ("algorithm", "objective", "model", "data")  # even if nothing is given
_REQUIRED = ("local.schedule", "data.partition")  # likewise, by what takes them
_USUAL = {"objective": "cross_entropy", "clock": "asynchronous", "local.schedule": "constant"}
_LIKE_NONE = {"aggregation": "mean", "clock": "synchronous"}  # what a run without the table does
_LEVELS = ["1/64", "1/16", "1/4", 1]  # FIARSE's main tables


def complete(raw: Mapping[str, Any], paths: Iterable[str], origin: Origin) -> Table:
    """The tables at these paths, without those that are left out. Raises ConfigError."""
    tables: Table = {}
    for path in paths:
        if path in PLAIN:
            if path in raw or path not in OPTIONAL:
                tables[path] = _plain(raw, path, origin)
            continue
        table = _with_usual(raw, path, tables, origin)
        if not table and path not in (*_ALWAYS, "compress"):
            continue
        special = {"data": _data, "submodel": _submodel, "compress": _compress}.get(path)
        entry = special(table, origin) if special else _table(table, path, origin)
        if entry and entry["name"] != _LIKE_NONE.get(path):
            tables[path] = entry
    return tables


def _with_usual(raw: Mapping[str, Any], path: str, tables: Table, origin: Origin) -> Table:
    """A named table as it is given, with what it has by itself; empty if it is left out."""
    table = dict(raw.get(path, {}))
    if table.get("name") == NOTHING and path not in (*_ALWAYS, "compress"):
        table = {}
    if path == "data":
        with origin.blame(path):
            if "seed" in keys_at(raw, path):  # a user's own source need not take one
                table.setdefault("seed", raw.get("seed", 0))
    if path == "devices" and "clock" in tables and not table:
        return {"name": "lognormal"}
    late = False
    if path == "clock" and path not in raw:
        with origin.blame("algorithm", tables["algorithm"]):
            late = Trait.BUFFERED in traits_of(tables["algorithm"])
    if path in _USUAL and (table or late or path in _ALWAYS):
        table.setdefault("name", _USUAL[path])
    return table


def _table(table: Table, path: str, origin: Origin) -> Table:
    registry = REGISTRIES[path]
    name = _name(table, path, registry, origin)
    with origin.blame(path), explained(name):
        fields_of(maker := registry[name])
    options = {k: v for k, v in table.items() if k != "name"}
    return {"name": name} | _entries(options, path, maker, f"{path} '{short(name)}'", origin)


def _plain(outer: Mapping[str, Any], path: str, origin: Origin) -> Table:
    table = outer.get(path.rpartition(".")[2], {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{origin.of(path)}: {path} must be a table, got {table!r}")
    if path == "local":
        table = _work(table, outer.get("rounds"))
    return _entries(table, path, TABLES[path], f"[{path}]", origin)


def _entries(table: Mapping[str, Any], path: str, maker: Any, label: str, origin: Origin) -> Table:
    inside = {p.rpartition(".")[2]: p for p in TABLES if p.rpartition(".")[0] == path}
    skip = (*inside, *NESTED.get(path, ()))
    options = {k: v for k, v in table.items() if k not in skip}
    values = check(maker, options, path, label, origin, skip)
    for key, inner_path in inside.items():
        if inner_path in INNER:
            if table.get(key, NOTHING) != NOTHING:
                values[key] = _plain(table, inner_path, origin)
            continue
        usual = {"name": _USUAL[inner_path]} if inner_path in _USUAL else {}
        inner = usual | table.get(key, {})
        present = inner and inner.get("name") != NOTHING
        if key in fields_of(maker) if inner_path in _REQUIRED else present:
            values[key] = _table(inner, inner_path, origin)
    return values


def _name(table: Mapping[str, Any], path: str, names: Registry[Any], origin: Origin) -> str:
    """The name of a table, which one of a registry or of a user's own part."""
    if "name" not in table:
        where = origin.of(f"{path}.{next(iter(table), 'name')}")  # which has a setting of it
        raise ConfigError(f"{where}: {path}.name is missing; known: {', '.join(names)}")
    name, where = table["name"], origin.of(f"{path}.name")
    if not isinstance(name, str):
        value = repr(name) if len(repr(name)) < 60 else f"{repr(name)[:50]} ..."
        if path == "data.partition" and isinstance(name, list):
            value += (
                "; save lists of indices in a file, as JSON, and give data.partition = "
                '{name = "lists", file = "split.json"}'
            )
        raise ConfigError(f"{where}: {path} must be a name, got {value}")
    if name not in names and not (names.own and is_own(name)):
        hint = f"; one of your own is FILE.py:NAME, {path}=my_file.py:Mine" if names.own else ""
        raise ConfigError(f"{where}: {unknown(path, short(name), names)}{hint}")
    return name


def _one_of(path: str, name: Any, names: Collection[str], origin: Origin) -> None:
    if name not in names:
        raise ConfigError(f"{origin.of(path)}: {unknown(path, str(name), names)}")


# ------------------------------------------------------------- of which more is to be said
def _work(table: Mapping[str, Any], rounds: Any) -> Table:
    """[local] with an epoch if nothing is said, and with as many rounds of a cosine as the run has:
    a longer continuation keeps these.
    """
    table = dict(table)
    if all(table.get(key) is None for key in ("epochs", "steps", "seconds")):
        table["epochs"] = 1
    rates = table.get("schedule", {})
    if rates.get("name") == "cosine" and type(rounds) is int:
        table["schedule"] = {"rounds": rounds} | rates
    return table


def _data(table: Table, origin: Origin) -> Table:
    """[data] with its partition and test sets. A user's own source need not take a partition: then
    its data have clients already.
    """
    name, tests = table.get("name"), table.get("tests", NOTHING)
    divided = is_own(name) and is_divided(SOURCES[str(name)])
    result = _table(table, "data", origin)
    _one_of("data.tests", tests, (*TESTS, NOTHING), origin)
    for key in ("partition", "tests"):
        if divided and table.get(key, NOTHING) != NOTHING:
            raise ConfigError(
                f"{origin.of(f'data.{key}')}: data.{key} goes with data that are divided here, and "
                f"'{short(str(name))}' takes no argument 'partition'; leave data.{key} out"
            )
    return result | ({} if tests == NOTHING else {"tests": tests})


def _submodel(table: Table, origin: Origin) -> Table:
    """[submodel] with submodel.capacities (a list of shares, "1/64,1/4,1", a table {client: share},
    or a file with one per client) and submodel.shares (of the clients, one for each level), with
    numbers for fractions.
    """
    result, shares = _table(table, "submodel", origin), table.get("shares")
    setting = table.get("capacities", _LEVELS)
    where = origin.of("submodel.capacities")
    setting = [setting] if isinstance(setting, int | float) else setting
    if not isinstance(setting, list | str | dict):
        raise ConfigError(
            f"{where}: submodel.capacities must be a list of shares, '1/64,1/4,1', a table with "
            f"one for each client or a file's name, got {setting!r}"
        )
    by_name = list(setting) if isinstance(setting, dict) else []
    try:
        levels = levels_of([*setting.values()] if isinstance(setting, dict) else setting)
    except ConfigError as error:
        raise ConfigError(f"{where}: submodel.capacities: {error}") from None
    in_a_file = isinstance(setting, str) and "," not in setting and len(levels) > 1
    result["capacities"] = setting if in_a_file else list(levels)
    if by_name:
        result["capacities"] = dict(zip(by_name, levels, strict=True))
    if shares is None:
        return result
    numbers = isinstance(shares, list) and all(type(s) in (int, float) for s in shares)
    if not numbers or len(shares) != len(levels) or in_a_file or by_name:
        raise ConfigError(
            f"{origin.of('submodel.shares')}: submodel.shares must give each of the {len(levels)} "
            f"levels of submodel.capacities its share of the clients, got {shares!r}"
        )
    return result | {"shares": [float(s) for s in shares]}


def capacities_of(table: Mapping[str, Any]) -> Capacities | None:
    """The capacities of an experiment, from a complete table."""
    capacities = table.get("capacities")
    if "shares" not in table or capacities is None:
        return capacities
    return dict(zip(capacities, table["shares"], strict=True))


def _compress(table: Table, origin: Origin) -> Table:
    """[compress] with codecs of both directions and error feedback; empty without a codec."""
    table = _spelled_out(table, "compress", origin)
    down = _spelled_out(table.get("down", {}), "compress.down", origin)
    table["down"] = down if down.get("name") != NOTHING else {}
    if table.get("name", NOTHING) == NOTHING:
        for key in [key for key in table if key not in ("name", "down")]:
            label = f"{origin.of(f'compress.{key}')}: compress.{key}"
            raise ConfigError(
                f"{label} needs a codec, and compress.name is missing or none; known: "
                f"{', '.join(MAKERS)}"
            )
        if not table["down"]:
            return {}
        table["name"] = "dense"
    result = _table(table, "compress", origin)
    feedback = table.get("feedback", usual_feedback(result))
    _one_of("compress.feedback", feedback, FEEDBACKS, origin)
    return result | {"feedback": feedback}


def _spelled_out(table: Mapping[str, Any], path: str, origin: Origin) -> Table:
    """A codec's table; the name "topk:0.01" is short for a name and its options."""
    name = table.get("name")
    if not isinstance(name, str) or not is_short(name):
        return dict(table)
    try:
        name, options = named_codec(name)
    except ConfigError as error:
        raise ConfigError(f"{origin.of(f'{path}.name')}: {error}") from None
    return {**options, **table, "name": name}
