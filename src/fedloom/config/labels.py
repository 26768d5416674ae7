"""The default label of a run in tables and legends."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..aggregation import AGGREGATIONS
from ..algorithm import Trait
from ..algorithms.registry import ALGORITHMS
from ..compression.codecs import MAKERS
from ..core.own_parts import each_stage, is_own
from ..core.validation import live
from ..federation.attacks import ATTACKS
from ..objectives import METHODS, OBJECTIVES
from ..submodels import SUBMODELS


def method_label(values: Mapping[str, Any]) -> str:
    """The names of the parts that make a method, its algorithm's first.

    values: the tables, complete. The loss is named if it is from a paper.

    >>> method_label({"algorithm": {"name": "fedavg"}, "objective": {"name": "moon"}})
    'FedAvg + MOON'
    """
    return " + ".join(method_parts(values).values())


def method_parts(values: Mapping[str, Any]) -> dict[str, str]:
    """{key: name} of those parts, the algorithm first.

    >>> method_parts({"algorithm": {"name": "fedacg"}, "objective": {"name": "cross_entropy"}})
    {'algorithm': 'FedACG'}
    """
    parts = {"algorithm": ALGORITHMS.label(values["algorithm"]["name"])}
    loss = values["objective"]["name"]
    if is_own(loss):
        parts["objective"] = OBJECTIVES.label(loss)
    elif issubclass(objective := OBJECTIVES[loss], METHODS):
        parts["objective"] = objective.__name__
    if "server" in values:
        parts["server"] = values["server"]["name"]
    if "submodel" in values:
        name = values["submodel"]["name"]
        parts["submodel"] = SUBMODELS.label(name) if is_own(name) else SUBMODELS[name]().name
    if "clock" in values and Trait.BUFFERED not in traits_of(values["algorithm"]):
        parts["clock"] = "asynchronous"
    for key, registry in (("aggregation", AGGREGATIONS), ("attack", ATTACKS)):
        if key in values:
            parts[key] = registry.label(values[key]["name"])
    compress = values.get("compress", {})
    if compress.get("name", "dense") != "dense":
        parts["compress"] = _codec(compress)
    if "down" in compress:
        parts["compress.down"] = f"{_codec(compress['down'])} down"
    return parts


def folder_name(values: Mapping[str, Any], of: Collection[str] | None = None) -> str:
    """What a folder of runs is called: the run's name, the algorithm's, the other parts that make
    the method. of: the keys of the parts that are named; None: all.

    >>> folder_name({"name": "a", "algorithm": {"name": "fedavg"}, "objective": {"name": "moon"}})
    'a-fedavg-MOON'
    """
    name = str(values["algorithm"]["name"])
    parts = method_parts(values) | ({} if is_own(name) else {"algorithm": name})
    words = [values["name"], *(word for key, word in parts.items() if of is None or key in of)]
    return "-".join(filter(None, (re.sub(r"[^\w.-]+", "-", word).strip("-.") for word in words)))


def _codec(table: Mapping[str, Any]) -> str:
    chain = str(table.get("of")) if table["name"] == "chain" else table["name"]
    return each_stage(chain, MAKERS.label)


def traits_of(table: Mapping[str, Any]) -> frozenset[Trait]:
    """What the algorithm of a complete table declares."""
    options = inspect.signature(ALGORITHMS[table["name"]]).parameters.values()
    required = {o.name: table[o.name] for o in options if o.default is o.empty and o.name in table}
    return frozenset(ALGORITHMS.make(table["name"], **live(required)).traits)
