"""The table [data]: a source, how it is divided among the clients, and test sets of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.own_parts import is_own, short
from ..data import SOURCES, TESTS
from ..errors import ConfigError, unknown
from .overrides import is_divided, named_table
from .validation import NOTHING, Origin, known

Named = Callable[[Mapping[str, Any], str, Origin], dict[str, Any]]


def data_table(raw: Mapping[str, Any], seed: int, named: Named, origin: Origin) -> dict[str, Any]:
    """The table of a configuration, complete. named: checks a named table. Raises ConfigError.

    A user's own source need not take a seed, nor a partition: then its data have clients already.
    """
    table = named_table(raw, "data")
    name, divided = table.get("name"), False
    if is_own(name):
        with origin.blame("data"):
            divided = is_divided(SOURCES[str(name)])
    if not is_own(name) or "seed" in known(SOURCES[str(name)]):
        table.setdefault("seed", seed)
    values = named({"data": table}, "data", origin)
    tests = table.get("tests", NOTHING)
    if tests not in (*TESTS, NOTHING):
        said = unknown("data.tests", str(tests), (*TESTS, NOTHING))
        raise ConfigError(f"{origin.of('data.tests')}: {said}")
    for key in ("partition", "tests"):
        if divided and table.get(key, NOTHING) != NOTHING:
            raise ConfigError(
                f"{origin.of(f'data.{key}')}: data.{key} goes with data that are divided here, and "
                f"'{short(str(name))}' takes no argument 'partition'; leave data.{key} out"
            )
    values |= {} if tests == NOTHING else {"tests": tests}
    return values if divided else values | {"partition": named(table, "data.partition", origin)}
