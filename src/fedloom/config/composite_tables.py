"""The tables of settings that are more than an entry and its options: [data] with its partition and
test sets, [submodel] with how much of the model a client can hold, [compress] with codecs of both
directions and error feedback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..compression.codecs import MAKERS, named_codec, usual_feedback
from ..compression.error_feedback import FEEDBACKS
from ..core.own_parts import is_own, short
from ..core.validation import NOTHING, Origin, known
from ..data import SOURCES, TESTS
from ..errors import ConfigError, unknown
from ..federation.capacities import Capacities, levels_of
from .overrides import is_divided, is_short, named_table

Named = Callable[[Mapping[str, Any], str, Origin], dict[str, Any]]
_LEVELS = ["1/64", "1/16", "1/4", 1]  # FIARSE's main tables


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


def checked_capacities(table: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Check submodel.capacities (a list of shares, "1/64,1/4,1", or a file with one per client) and
    submodel.shares (of the clients, one for each level) -> both, with numbers for fractions.

    Raises ConfigError.
    """
    given, shares = table.get("capacities", _LEVELS), table.get("shares")
    where = origin.of("submodel.capacities")
    if isinstance(given, int | float):
        given = [given]
    if not isinstance(given, list | str):
        raise ConfigError(
            f"{where}: submodel.capacities must be a list of shares, '1/64,1/4,1' or a file's "
            f"name, got {given!r}"
        )
    try:
        levels = levels_of(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: submodel.capacities: {error}") from None
    listed = isinstance(given, str) and "," not in given and len(levels) > 1
    out: dict[str, Any] = {"capacities": given if listed else list(levels)}
    if shares is None:
        return out
    numbers = isinstance(shares, list) and all(type(s) in (int, float) for s in shares)
    if not numbers or len(shares) != len(levels) or listed:
        raise ConfigError(
            f"{origin.of('submodel.shares')}: submodel.shares must give each of the {len(levels)} "
            f"levels of submodel.capacities its share of the clients, got {shares!r}"
        )
    return out | {"shares": [float(s) for s in shares]}


def capacities_of(table: Mapping[str, Any]) -> Capacities | None:
    """The capacities of an experiment, from a checked table."""
    given = table.get("capacities")
    if "shares" not in table or given is None:
        return given
    return dict(zip(given, table["shares"], strict=True))


def compress_table(raw: Mapping[str, Any], named: Named, origin: Origin) -> dict[str, Any]:
    """The table of a configuration, complete; empty if nothing is compressed.

    named: checks a named table. Raises ConfigError.
    """
    table = _spelled(raw, "compress", origin)
    down, up = table.pop("down", None), table.pop("up", None)
    if up is not None:
        if "name" in table:
            raise ConfigError(
                f"{origin.of('compress.up')}: compress.up and compress.name both name the codec of "
                "client updates; keep one of them"
            )
        table |= _spelled({"up": up}, "up", origin)
    below = {} if down is None else _spelled({"down": down}, "down", origin)
    if below.get("name") == NOTHING:
        below = {}
    if table.get("name", NOTHING) == NOTHING:
        _refuse_options_of_nothing(table, origin)
        if not below:
            return {}
        table["name"] = "dense"
    feedback = table.pop("feedback", None)
    values = named({"compress": table}, "compress", origin)
    if feedback is None:
        feedback = usual_feedback(values)
    if feedback not in FEEDBACKS:
        where = origin.of("compress.feedback")
        raise ConfigError(f"{where}: {unknown('feedback', str(feedback), FEEDBACKS)}")
    values["feedback"] = feedback
    if below:
        values["down"] = named({"down": below}, "compress.down", origin)
    return values


def _refuse_options_of_nothing(table: Mapping[str, Any], origin: Origin) -> None:
    others = [key for key in table if key != "name"]
    if not others:
        return
    where = origin.of(f"compress.{others[0]}")
    if "name" in table:
        raise ConfigError(f"{where}: compress.{others[0]} goes with a codec, and compress is none")
    raise ConfigError(
        f"{where}: compress.{others[0]} needs a codec, and compress.name is missing; known: "
        f"{', '.join(MAKERS)}"
    )


def _spelled(place: Mapping[str, Any], key: str, origin: Origin) -> dict[str, Any]:
    """A named table; "topk:0.01" is short for a name and its options."""
    table = named_table(place, key)
    name = table.get("name")
    if isinstance(name, str) and is_short(name):
        try:
            short, options = named_codec(name)
        except ConfigError as error:
            raise ConfigError(f"{origin.source}: {error}") from None
        table = {**options, **table, "name": short}
    return table
