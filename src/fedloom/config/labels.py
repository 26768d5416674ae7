"""The default label of a run in tables and legends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algorithm import Trait
from ..algorithms.registry import ALGORITHMS
from ..objectives import METHODS, OBJECTIVES
from ..submodels import VIEWS


def method_label(values: Mapping[str, Any]) -> str:
    """The names of the parts that make a method, its algorithm's first.

    values: the tables, complete. The loss is named if it is from a paper.

    >>> method_label({"algorithm": {"name": "fedavg"}, "objective": {"name": "moon"}})
    'FedAvg + MOON'
    """
    name = values["algorithm"]["name"]
    words = [ALGORITHMS.label(name)]
    if issubclass(objective := OBJECTIVES[values["objective"]["name"]], METHODS):
        words.append(objective.__name__)
    if "server" in values:
        words.append(values["server"]["name"])
    if "submodel" in values:
        words.append(VIEWS[values["submodel"]["name"]]().name)
    clock = "clock" in values and Trait.BUFFERED not in ALGORITHMS.make(name).traits
    words += ["asynchronous"] if clock else []
    words += [values[k]["name"] for k in ("aggregation", "attack") if k in values]
    compress = values.get("compress", {})
    if compress.get("name", "dense") != "dense":
        words.append(_codec(compress))
    if "down" in compress:
        words.append(f"{_codec(compress['down'])} down")
    return " + ".join(words)


def _codec(table: Mapping[str, Any]) -> str:
    return str(table["of"] if table["name"] == "chain" else table["name"])
