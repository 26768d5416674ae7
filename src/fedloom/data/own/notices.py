"""What people should look at before anything is trained, by the descriptions of the sites."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from .description import Description


def notices(sites: Mapping[str, Description]) -> list[str]:
    """A line for each site whose labels are all one class, and for each column of texts in which
    two sites have no value in common.
    """
    lines = [
        one_class(name, f"'{label}'") for name, site in sites.items() if (label := _label(site))
    ]
    for column in dict.fromkeys(name for site in sites.values() for name in site.columns):
        for one, other in itertools.combinations(sites, 2):
            if line := _apart(column, one, sites[one], other, sites[other]):
                lines.append(line)
                break  # the first pair says it
    return lines


def one_class(site: str, label: str = "of one class") -> str:
    """What is said of a site all of whose training rows have one label."""
    return (
        f"{site}: all training rows are {label}: are its labels read as those of other sites are? "
        "If not, write target = ... or recode = ... into its own file, below [data]"
    )


def _label(site: Description) -> str | None:
    """The class of all rows of a site; None if there may be another."""
    column = None if site.target is None else site.columns.get(site.target)
    if column is None or column.kind == "number" or len(column.counts) != 1:
        return None
    ((label, count),) = column.counts.items()
    return label if count == site.rows else None


def _apart(name: str, one: str, first: Description, other: str, second: Description) -> str:
    """What is said of a column whose values are others at each of two sites; empty if some are
    common, or if it may be a number at both.
    """
    column, other_column = first.columns.get(name), second.columns.get(name)
    if column is None or other_column is None or "texts" not in (column.kind, other_column.kind):
        return ""
    values, others = [*column.counts], [*other_column.counts]
    if not values or not others or {*values} & {*others}:
        return ""
    by_folded = {value.casefold(): value for value in values}
    recodes = ", ".join(f'"{v}" = "{by_folded.get(v.casefold(), "...")}"' for v in others[:10])
    return (
        f"column '{name}': {one} has {', '.join(values[:10])} and {other} {', '.join(others[:10])},"
        f" none in common. If they mean the same, write into the file of {other}, below [data]: "
        f"recode.{name} = {{ {recodes} }}"
    )
