"""The files of a user's own parts in a configuration: loaded where the user named them, and told by
a hash of their content, so that another version of a file is another configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.own_parts import files_of, hash_of, is_own, load, placed, short, split
from ..core.validation import Origin
from ..errors import CheckpointError, ConfigError
from ..storage.identity import CHANGED
from .overrides import METRICS, REGISTRIES, listed

CODE = "code"  # the table of a configuration: {file: hash of what was in it}
_CODECS = ("compress", "compress.up", "compress.down")  # whose values may be chains
_PLACES = {*REGISTRIES, *_CODECS, "data.preparation"}
_log = logging.getLogger(__name__)


class _Stages:
    """The stages of a chain "a|b", which a table has under a key; to set one changes the table."""

    def __init__(self, table: Any, key: str) -> None:
        self._table, self._key = table, key

    def __iter__(self) -> Iterator[str]:
        return (stage.strip() for stage in self._table[self._key].split("|"))

    def __getitem__(self, at: int) -> str:
        return list(self)[at]

    def __setitem__(self, at: int, name: str) -> None:
        stages = list(self)
        stages[at] = name
        self._table[self._key] = "|".join(stages)


def own_in(raw: Mapping[str, Any], before: str = "") -> Iterator[tuple[Any, Any, str]]:
    """(table, its key, the dotted path of a named table) wherever a user's own part is named; of
    metrics (their list, the place in it, ""), of a chain (its stages, the place, the path).
    """
    for key, value in raw.items():
        path = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from own_in(value, f"{path}.")
        elif path == METRICS and isinstance(value, list):
            yield from ((value, at, "") for at, name in enumerate(value) if is_own(name))
        elif is_own(value) and path.removesuffix(".name") in _PLACES:
            yield raw, key, path.removesuffix(".name")
        elif isinstance(value, str) and (table := path.removesuffix(".of")) in _CODECS:
            chain = _Stages(raw, key)
            yield from ((chain, at, table) for at, name in enumerate(chain) if is_own(name))


def placed_in(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings of a file in this folder, own parts with the absolute paths of their files."""
    if METRICS in raw:
        raw[METRICS] = listed(raw[METRICS])
    for table, key, _ in list(own_in(raw)):
        table[key] = placed(table[key], folder)
    return raw


def load_named(raw: Mapping[str, Any], source: str) -> None:
    """Load the files of all own parts. Raises ConfigError."""
    for table, key, path in own_in(raw):
        with Origin(source).blame(path):
            load(split(table[key])[0])


def files_in(values: Mapping[str, Any]) -> dict[str, str]:
    """{file: hash} of the own parts of a configuration, as they were loaded."""
    found: dict[str, str] = {}
    for table, key, _ in own_in(values):
        found |= files_of(table[key])
    return dict(sorted(found.items()))


def load_again(raw: Mapping[str, Any], recorded: Mapping[str, Any], run: Path, new: bool) -> None:
    """Load the files of a run's own parts, and say so. recorded: their hashes; new: take files that
    have changed since.

    Raises CheckpointError for a file that has changed, ConfigError for one that cannot be loaded.
    """
    named = {split(table[key])[0]: short(table[key]) for table, key, _ in own_in(raw)}
    if not new:
        for file in dict.fromkeys([*named, *recorded]):
            _refuse_changed(file, hash_of(file), recorded, run)
    for file, name in named.items():
        _log.warning("'%s' uses %s: the code of '%s' is run", run, name, file)
        load(file)


def _refuse_changed(file: str, now: str, recorded: Mapping[str, Any], run: Path) -> None:
    then = str(recorded.get(file, "none")).rpartition(CHANGED)[2]
    if now != then:
        raise CheckpointError(
            f"'{file}' has changed since '{run}' began (its content's hash was {then} and is "
            f"{now}); put it back, start a new run, or go on with what it is now: --changed-code"
        )


def joined(recorded: Mapping[str, Any], now: Mapping[str, str], run: Path) -> dict[str, str]:
    """The hashes of a run that goes on with other files than it began with: both are told."""
    out = {}
    for file, found in now.items():
        then = str(recorded.get(file, ""))
        same = then.rpartition(CHANGED)[2] == found
        out[file] = then if same else f"{then or 'none'}{CHANGED}{found}"
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
