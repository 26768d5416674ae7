"""The settings in which runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.storage.identity import SEEDS, flatten

from .runs import Group, show_value
from .tables import MISSING

# of a comparison: the rows' own names, and the seeds that are one row
_NAMES = ("name", "label", "source", "out", *SEEDS, "data.about.seed", "data.split")


def setting_cells(
    groups: Sequence[Group], within: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for every setting that differs between the groups, as text, one cell for
    each group. within: those that differ between the runs of one group too, such as the seed.
    """
    flats = [[flatten(run.config) for run in group.runs] for group in groups]
    every = [flat for group in flats for flat in group]
    lines = []
    for key in dict.fromkeys(key for flat in every for key in flat if _is_comparable(key, every)):
        cells = [distinct(group, key) for group in flats]
        inside = any(len({_cell(f, key) for f in group}) > 1 for group in flats)
        if (within and inside) or (len(set(cells)) > 1 and (within or key not in _NAMES)):
            lines.append([key, *cells])
    return ["setting", *(group.label for group in groups)], lines


def describe_values(values: Sequence[str], names: Sequence[str]) -> str:
    """A setting's values in one text: the commonest first, then whose the others are.

    >>> describe_values(["sgd", "adam", "sgd"], ["FedAvg", "FedACG", "FedProx"])
    'sgd; adam: FedACG'
    """
    first = max(values, key=values.count)
    parts = [first] if values.count(first) > 1 else []
    for value in dict.fromkeys(v for v in values if v not in parts):
        owners = [name for name, other in zip(names, values, strict=True) if other == value]
        parts.append(f"{value}: {', '.join(owners)}")
    return "; ".join(parts)


def _is_comparable(key: str, flats: Sequence[Mapping[str, Any]]) -> bool:
    """False for what is known of runs from Python alone, or of runs from files alone: these have
    other words for their data and their model.
    """
    if key.startswith("algorithm."):
        return True
    kinds = {flat.get("source") for flat in flats}
    return all(any(key in flat for flat in flats if flat.get("source") == kind) for kind in kinds)


def setting_columns(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For each group {"setting.KEY": its value} of the settings that differ; None where a group
    has no such setting, a text where its runs have several values.
    """
    keys = [line[0] for line in setting_cells(groups)[1]]
    out = []
    for group in groups:
        flats = [flatten(run.config) for run in group.runs]
        same = {key: len({_cell(flat, key) for flat in flats}) == 1 for key in keys}
        values = {k: flats[0].get(k) if same[k] else distinct(flats, k) for k in keys}
        out.append({f"setting.{key}": value for key, value in values.items()})
    return out


def distinct(flats: Sequence[Mapping[str, Any]], key: str) -> str:
    """All different values of a setting, as text."""
    return ", ".join(dict.fromkeys(_cell(flat, key) for flat in flats))


def _cell(flat: Mapping[str, Any], key: str) -> str:
    return show_value(flat[key]) if key in flat else MISSING
