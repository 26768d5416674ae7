"""The files of a user's own parts in a configuration: loaded where the user named them, and told by
a hash of their content, so that another version of a file is another configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..core.own_parts import each_stage, files_of, hash_of, is_own, load, placed, short, split
from ..core.validation import Origin
from ..errors import CheckpointError, ConfigError
from ..storage.identity import CHANGED
from .overrides import METRICS, REGISTRIES, metric_list

CODE = "code"  # the table of a configuration: {file: hash of what was in it}
_PLACES = {*REGISTRIES, "data.preparation"}
_CHAINS = ("compress.of", "compress.down.of")
_log = logging.getLogger(__name__)


def each_own(
    raw: Mapping[str, Any], change: Callable[[str, str], str], before: str = ""
) -> dict[str, Any]:
    """Settings with every name of a user's own part changed, also among metrics and in a chain of
    codecs. change(dotted path of its table, "" of a metric; name).
    """
    out = dict(raw)
    for key, value in raw.items():
        path = f"{before}{key}"
        table = path.removesuffix(".name")
        if isinstance(value, Mapping):
            out[key] = each_own(value, change, f"{path}.")
        elif path == METRICS and isinstance(value, list):
            out[key] = [change("", name) if is_own(name) else name for name in value]
        elif isinstance(value, str) and (table in _PLACES or path in _CHAINS):
            table = table.removesuffix(".of")
            out[key] = each_stage(value, partial(change, table))
    return out


def own_in(raw: Mapping[str, Any]) -> dict[str, str]:
    """{name: dotted path of its table} of a user's own parts in settings."""
    paths: dict[str, str] = {}

    def note(path: str, name: str) -> str:
        paths.setdefault(name, path)
        return name

    each_own(raw, note)
    return paths


def placed_in(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings of a file in this folder, own parts with the absolute paths of their files."""
    if METRICS in raw:
        raw[METRICS] = metric_list(raw[METRICS])
    return each_own(raw, lambda _, name: placed(name, folder))


def load_named(raw: Mapping[str, Any], source: str) -> None:
    """Load the files of all own parts. Raises ConfigError."""
    for name, path in own_in(raw).items():
        with Origin(source).blame(path):
            load(split(name)[0])


def files_in(values: Mapping[str, Any]) -> dict[str, str]:
    """{file: hash} of the own parts of a configuration, as they were loaded."""
    return dict(sorted(pair for name in own_in(values) for pair in files_of(name).items()))


def load_again(raw: Mapping[str, Any], recorded: Mapping[str, Any], run: Path, new: bool) -> None:
    """Load the files of a run's own parts, and say so. recorded: their hashes; new: take files that
    have changed since.

    Raises CheckpointError for a file that has changed, ConfigError for one that cannot be loaded.
    """
    names = {split(name)[0]: short(name) for name in own_in(raw)}
    if not new:
        for file in dict.fromkeys([*names, *recorded]):
            _refuse_changed(file, hash_of(file), recorded, run)
    for file, name in names.items():
        _log.warning("'%s' uses %s: the code of '%s' is run", run, name, file)
        load(file)


def _refuse_changed(file: str, now: str, recorded: Mapping[str, Any], run: Path) -> None:
    then = str(recorded.get(file, "none")).rpartition(CHANGED)[2]
    if now != then:
        raise CheckpointError(
            f"'{file}' has changed since '{run}' began (its content's hash was {then} and is "
            f"{now}); put it back, start a new run, or go on with what it is now: --changed-code"
        )


def merge_hashes(recorded: Mapping[str, Any], now: Mapping[str, str], run: Path) -> dict[str, str]:
    """The hashes of a run that goes on with other files than it began with: both are told."""
    out = {}
    for file, code in now.items():
        then = str(recorded.get(file, ""))
        same = then.rpartition(CHANGED)[2] == code
        out[file] = then if same else f"{then or 'none'}{CHANGED}{code}"
        if not same:
            _log.warning("'%s' goes on with another '%s' than it began with", run, file)
    return out


def check_loaded(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a file was loaded anew, with another content, since a configuration was
    made.
    """
    now = files_in(values)
    for file, then in values.get(CODE, {}).items():
        if file in now and now[file] != then.rpartition(CHANGED)[2]:
            raise ConfigError(f"'{file}' has changed since these settings were made; resolve again")
