"""Which aggregation has a meaning beside which parts of a method. plan.py asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..algorithm import ACCUMULATED, CHANGE, Algorithm, Trait
from .base import Aggregation


class Beside(NamedTuple):
    """The parts of a plan beside its aggregation. averaged: the fields of which the server needs
    plain means; submodel: "" without one; codecs: of the uplink, but for the dense one; unequal:
    aggregation weights differ from client to client.
    """

    algorithm: Algorithm
    averaged: tuple[str, ...]
    submodel: str
    codecs: tuple[str, ...]
    ef21: bool
    unequal: bool


def _submodel(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    if not beside.submodel or (rule.sums and rule.parts):
        return None
    if rule.private:
        why = "how many clients hold a coordinate would be told, and no noise hides it"
    elif rule.sums:
        why = "all clients must send vectors of one length"
    else:
        why = (
            "it compares whole client updates, and a client of a part has no value at the other "
            "coordinates; take norm_bound"
        )
    return beside.submodel, why


def _ef21(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    if not beside.ef21:
        return None
    return "EF21", (
        "the server keeps the mean of what all clients remember, and needs their plain mean; take "
        "compress.feedback = residual"
    )


def _codec(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    if rule.codecs or not beside.codecs:
        return None
    return beside.codecs[0], (
        "clients send every value as an integer of the ring, so that nothing is saved; take "
        "compress = none"
    )


def _second_moment(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    squares = Trait.SECOND_MOMENT in beside.algorithm.traits
    if not squares or not (rule.apart or rule.bounded):
        return None
    return beside.algorithm.method, (
        "its server divides one mean by the root of another, which is of squares: both must be of "
        "the same clients, and neither shortened; take krum"
    )


def _weights(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    traits = beside.algorithm.traits
    divides = Trait.DIVIDES_BY_RATES in traits and (rule.apart or rule.private)
    itself = Trait.WEIGHS_ITSELF in traits and (rule.apart or rule.bounded)
    if not beside.averaged or not (divides or itself):
        return None
    return beside.algorithm.method, (
        "its server divides the mean of one field by that of another: both must be of the same "
        "clients, and neither shortened; take krum"
    )


def _asks(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    if rule.exact or not beside.algorithm.asks:
        return None
    return beside.algorithm.method, (
        "what clients answer before the round is averaged plainly, neither bounded nor hidden, "
        "whatever becomes of their updates"
    )


def _private(rule: Aggregation, beside: Beside) -> tuple[str, str] | None:
    if not rule.private:
        return None
    if beside.algorithm.probes:
        why = "what every client sends before round 1 is neither bounded nor hidden by noise"
        return beside.algorithm.method, why
    if beside.unequal:
        return "weighting by examples", (
            "a client's share must not depend on how much it holds; take weighting=uniform"
        )
    return None


_RULES: tuple[Callable[[Aggregation, Beside], tuple[str, str] | None], ...] = (
    _submodel,
    _ef21,
    _codec,
    _second_moment,
    _weights,
    _asks,
    _private,
)


def misfit(rule: Aggregation, beside: Beside) -> str | None:
    """Why an aggregation has no meaning beside these parts; None if it has."""
    for ask in () if rule.plain else _RULES:
        if found := ask(rule, beside):
            return f"{rule.name} and {found[0]}: {found[1]}"
    return None


def unforgeable(attack: str, beside: Beside) -> str | None:
    """Why an attack of this name cannot make its updates of the honest ones; None if it can."""
    if attack and beside.submodel:
        return (
            f"{attack} and {beside.submodel}: its updates are made of whole honest ones, and a "
            "client of a part has no value at the other coordinates; take another attack"
        )
    if attack and beside.ef21:
        return (
            f"{attack} and EF21: the server keeps the mean of what all clients remember, and no "
            "client remembers a forged update; take compress.feedback=residual"
        )
    return None


def drifts(rule: Aggregation, algorithm: Algorithm) -> str | None:
    """Say if clients add to their own state what the server adds otherwise."""
    own = [name for name, how in algorithm.sent.items() if how in (ACCUMULATED, CHANGE)]
    if rule.plain or rule.exact or not own:
        return None
    return (
        f"{algorithm.method} and {rule.name}: clients add '{own[0]}' to their own state, and the "
        "server what the aggregation makes of it: the two drift apart"
    )
