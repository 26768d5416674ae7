"""The default label of a run in tables and legends."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..aggregation import AGGREGATIONS
from ..algorithm import Trait
from ..algorithms.registry import ALGORITHMS
from ..compression.codecs import MAKERS
from ..core.own_parts import is_own
from ..federation.attacks import ATTACKS
from ..objectives import METHODS, OBJECTIVES
from ..submodels import VIEWS
from .validation import live


def method_label(values: Mapping[str, Any]) -> str:
    """The names of the parts that make a method, its algorithm's first.

    values: the tables, complete. The loss is named if it is from a paper.

    >>> method_label({"algorithm": {"name": "fedavg"}, "objective": {"name": "moon"}})
    'FedAvg + MOON'
    """
    name = values["algorithm"]["name"]
    words = [ALGORITHMS.label(name)]
    loss = values["objective"]["name"]
    if is_own(loss):
        words.append(OBJECTIVES.label(loss))
    elif issubclass(objective := OBJECTIVES[loss], METHODS):
        words.append(objective.__name__)
    if "server" in values:
        words.append(values["server"]["name"])
    if "submodel" in values:
        rule = values["submodel"]["name"]
        words.append(VIEWS.label(rule) if is_own(rule) else VIEWS[rule]().name)
    clock = "clock" in values and Trait.BUFFERED not in traits_of(values["algorithm"])
    words += ["asynchronous"] if clock else []
    rules = ("aggregation", AGGREGATIONS), ("attack", ATTACKS)
    words += [known.label(values[key]["name"]) for key, known in rules if key in values]
    compress = values.get("compress", {})
    if compress.get("name", "dense") != "dense":
        words.append(_codec(compress))
    if "down" in compress:
        words.append(f"{_codec(compress['down'])} down")
    return " + ".join(words)


def _codec(table: Mapping[str, Any]) -> str:
    return str(table["of"] if table["name"] == "chain" else MAKERS.label(table["name"]))


def traits_of(table: Mapping[str, Any]) -> frozenset[Trait]:
    """What the algorithm of a complete table declares."""
    options = inspect.signature(ALGORITHMS[table["name"]]).parameters.values()
    needed = {o.name: table[o.name] for o in options if o.default is o.empty and o.name in table}
    return frozenset(ALGORITHMS.make(table["name"], **live(needed)).traits)
