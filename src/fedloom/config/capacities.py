"""The keys of [submodel] that say how much of the model a client can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..federation.capacities import Capacities, levels_of
from .validation import Origin

_LEVELS = ["1/64", "1/16", "1/4", 1]  # FIARSE's main tables


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
