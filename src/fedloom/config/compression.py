"""The table [compress]: codec and error feedback of client updates, codec of broadcasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..compression.codecs import MAKERS, Codec, Dense, named_codec, usual_feedback
from ..compression.error_feedback import FEEDBACKS, Forget
from ..compression.link import Link, Via
from ..errors import ConfigError, unknown
from .overrides import is_short, named_table
from .validation import NOTHING, Origin, live

Named = Callable[[Mapping[str, Any], str, Origin], dict[str, Any]]
_OWN = ("name", "feedback", "down")  # keys that are no options of the codec


def settings_of(raw: Mapping[str, Any], named: Named, origin: Origin) -> dict[str, Any]:
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


def link_of(values: Mapping[str, Any], origin: Origin) -> Link | None:
    """The link of a complete table; None for an empty one. Raises ConfigError."""
    if not values:
        return None
    with origin.blame("compress", values):
        codec, feedback = _codec(values), FEEDBACKS[values["feedback"]]()
    plain = isinstance(codec, Dense) and type(feedback) is Forget
    with origin.blame("compress.down", values.get("down", ())):
        down = _codec(values["down"]) if "down" in values else None
    return Link({} if plain else Via(codec, feedback), down)


def _codec(values: Mapping[str, Any]) -> Codec:
    options = {k: v for k, v in values.items() if k not in _OWN}
    codec: Codec = MAKERS.make(values["name"], **live(options))
    return codec


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
