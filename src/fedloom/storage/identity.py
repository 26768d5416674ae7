"""Which settings may differ between two runs: the only list of them. The fingerprint of a run that
is resumed, `run --seeds`, `sweep`, `compare` and `report` use it.

A setting that is not named here decides the numbers of a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ..core.own_parts import is_own, short

Table = Mapping[str, Any]

# How a run is called, and where it is computed and kept: no number depends on it. The family
# of an engine (bits_of) decides how numbers are rounded, so that a run cannot go on in another one;
# but two runs in two engines are runs of one method.
FREE = (
    "name",
    "label",
    "source",
    "out",
    "engine",
    "device",
    "checkpoint",
    "ranks",
    "resident_bytes",
    "tracker",
)
# How far a run goes, and what is measured. A run may go on with others, for the rounds until then
# stay what they are; two runs with different ones have different results.
LATER = ("rounds", "evaluate")
# of these what has already decided something by then
FIXED = ("evaluate.validation", "evaluate.ema")
SEEDS = ("seed", "data.seed")
# settings that came later, and the value that stands for what all runs did before; those of a
# part that a file names have the part's name
NEW: dict[str, tuple[Any, str | None]] = {
    "local.precision": ("full", None),
    "local.clip_pull": (True, None),
    "local.lr_by_client": ([], None),
    "evaluate.finetune": (0, None),
    "evaluate.unseen": (0.0, None),
    "algorithm.matrix": ("coordinate", None),
    "aggregation.secure": (False, None),
    "aggregation.threshold": (0.6, None),
    "aggregation.colluding": (0.05, None),
    "data.standardise": (False, "table"),
    "data.rules": ([], "table"),
    "data.class_names": ([], "table"),
    "data.names": ([], "table"),
    "data.sheet": ("", "table"),
    "data.na_values": ([], "table"),
    "data.encoding": ("utf-8", "table"),
    "data.sep": (",", "table"),
    "data.decimal": (".", "table"),
    "data.per_client": (False, "table"),
    "data.ddof": (0, "table"),
    "data.test_share": (0.0, "table"),
    "data.test_seed": (0, "table"),
    "evaluate.threshold": (0.5, None),
    "data.mean": ([0.0] * 3, "celeba"),
    "data.std": ([1.0] * 3, "celeba"),
}

# between the hashes of a file of code with which a run began and goes on
CHANGED = ", then "

# what a run of Python objects tells of its data, and no number depends on
DESCRIPTIVE = ("class_names", "client_names")

CHANGEABLE = (
    "rounds, the number of workers (engine=workers:4), device, checkpoint, resident_bytes, "
    "tracker, name, label and evaluate (but for validation and ema)"
)


def may_change(setting: str) -> bool:
    """True if a run may be resumed with another value of a dotted setting.

    >>> may_change("evaluate.target"), may_change("evaluate.ema"), may_change("local.lr")
    (True, False, False)
    """
    return setting.partition(".")[0] in (*FREE, *LATER) and setting not in FIXED


def fixed_parts(config: Table) -> dict[str, Any]:
    """The parts of a configuration that a run and its continuation share, except the engine; of
    files of code that changed in between, what they were at the beginning.
    """
    parts = {k: v for k, v in comparable(config).items() if not may_change(k)}
    if isinstance(files := parts.get("code"), Mapping):
        parts["code"] = {k: str(v).partition(CHANGED)[0] for k, v in files.items()}
    return parts


def comparable(config: Table) -> dict[str, Any]:
    """A configuration without the settings that came later and have the value of before, and with
    own parts as they are called anywhere.
    """
    out, python = portable(config), config.get("source") == "python"
    for setting, (then, name) in NEW.items():
        if name is None or not python:
            out = _without(out, setting.split("."), then, name)
    if python and isinstance(out.get("data"), Mapping):
        out["data"] = {k: v for k, v in out["data"].items() if k not in DESCRIPTIVE}
    return out


def _without(table: Table, path: list[str], then: Any, name: str | None) -> dict[str, Any]:
    """A table without the setting at a path, if that is `then`, in a part of this name."""
    key, *rest = path
    value = table.get(key)
    if rest:
        inner = _without(value, rest, then, name) if isinstance(value, Mapping) else value
        return dict(table) if key not in table else {**table, key: inner}
    if key in table and value == then and name in (None, table.get("name")):
        return {k: v for k, v in table.items() if k != key}
    return dict(table)


def differing(old: Table, new: Table) -> list[str]:
    """The settings that prevent a run with the configuration `old` from being resumed with
    `new`; empty if none does. Both are complete.

    >>> differing({"seed": 0, "engine": "workers:2"}, {"seed": 1, "engine": "workers:4"})
    ['seed']
    """
    one, other = flatten(portable(old)), flatten(portable(new))
    keys = [k for k in dict.fromkeys([*one, *other]) if one.get(k) != other.get(k)]
    engine = str(new.get("engine", "serial"))
    before = str(old.get("engine", "serial"))
    bits = bits_of(before)  # auto takes them, and "vectorised" the run's number of clients at once
    same = bits_of(engine) in ("auto", bits, bits.partition(":")[0])
    return [k for k in keys if not (same if k == "engine" else may_change(k))]


def portable(config: Table) -> dict[str, Any]:
    """A configuration that names a user's own files without their folders: what was in them, which
    `code` tells by a hash, decides numbers, and not where they are.

    >>> portable({"algorithm": {"name": "/home/a/mine.py:Mine"}, "code": {"/home/a/mine.py": "1f"}})
    {'algorithm': {'name': 'mine.py:Mine'}, 'code': {'mine.py': '1f'}}
    """
    out: dict[str, Any] = {}
    for key, value in config.items():
        out[key] = portable(value) if isinstance(value, Mapping) else value
        if key in ("name", "of") and isinstance(value, str):  # of a part, of a chain
            out[key] = short(value)
        if isinstance(value, list):  # of metrics
            out[key] = [short(entry) if is_own(entry) else entry for entry in value]
    if isinstance(files := config.get("code"), Mapping):
        hashes: dict[str, str] = {}
        for file, code in files.items():  # two files may have one name
            name = PurePath(file).name
            hashes[name] = " and ".join(filter(None, (hashes.get(name), str(code))))
        out["code"] = hashes
    return out


def run_digest(config: Table) -> str:
    """A short hash of all settings that decide the results of a run."""
    return digest({k: v for k, v in comparable(config).items() if k not in FREE})


def group_of(config: Table) -> str:
    """The same text for runs that differ only in their seed, and in settings that decide no number.
    A label makes a group of its own.

    >>> one = {"seed": 0, "device": "cpu", "algorithm": {"name": "fedavg"}, "data": {"seed": 0}}
    >>> other = {"seed": 1, "algorithm": {"name": "fedavg"}, "data": {"seed": 1}}
    >>> group_of(one) == group_of(other)
    True
    """
    settings = deciding(config)
    return f"{settings.get('algorithm', {}).get('name', '')}-{digest(comparable(settings))[:8]}"


def deciding(config: Table) -> dict[str, Any]:
    """The settings that all runs of a group share. Of the description of a Python run's data what
    does not follow the seed.
    """
    data = {k: v for k, v in dict(config.get("data") or {}).items() if k != "seed"}
    if config.get("source") == "python":
        split = (data.get("about") or {}).get("partition")
        data = {"name": data.get("name"), "clients": data.get("clients"), "partition": split}
    settings = {k: v for k, v in comparable(config).items() if k == "label" or not varies(k)}
    return settings | {"data": data}


def varies(setting: str) -> bool:
    """True if a dotted setting may differ between the runs of one group."""
    return setting in SEEDS or setting.partition(".")[0] in FREE


def bits_of(engine: str) -> str:
    """The part of an engine's name that decides its bits: how a client's round is computed, and not
    how many processes or ranks share the clients.

    >>> [bits_of(f"{first}vectorised:20") for first in ("", "workers:2+", "auto+", "ranks+")]
    ['vectorised:20', 'vectorised:20', 'vectorised:20', 'vectorised:20']
    >>> [bits_of(name) for name in ("workers:2", "workers+onednn", "auto+serial", "ranks", "auto")]
    ['serial', 'serial+onednn', 'serial', 'serial', 'auto']
    """
    engine = "serial" if engine == "ranks" else engine.removeprefix("ranks+").removeprefix("auto+")
    first, plus, rest = engine.partition("+")
    if first.partition(":")[0] != "workers":
        return engine
    return rest if rest.startswith("vectorised") else f"serial{plus}{rest}"


def digest(value: Any, digits: int = 12) -> str:
    """A short hash of anything JSON can hold. digits: hexadecimal ones, of at most 64."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]


def flatten(config: Table, prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into one level of dotted keys.

    >>> flatten({"seed": 1, "model": {"name": "mlp"}})
    {'seed': 1, 'model.name': 'mlp'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
