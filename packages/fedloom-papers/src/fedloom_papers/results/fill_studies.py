"""What `fill` takes from our own studies: their rows, differences of two rows, and claims."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fedloom.errors import ConfigError, did_you_mean
from fedloom.report.statistics import Paired, p_text, paired

from . import compression, submodels, zoo
from .claims import Reader, claims, middle
from .page import Case, Claim
from .study import Study

STUDIES = ("zoo", "submodels", "compression", "robust", "private")
Fields = Mapping[str, "str | float | int | None"]


@functools.cache
def study(name: str) -> Study:
    """A study and its committed lines. Raises ConfigError for an unknown one."""
    if name not in STUDIES:
        raise ConfigError(f"no study '{name}'; {did_you_mean(name, STUDIES)}")
    return Study(name)


def reader(name: str, table: str) -> Reader:
    """What the claims of a table read. Raises ConfigError for an unknown table."""
    known = study(name)
    if table not in known.tables:
        raise ConfigError(f"no table '{table}'; {did_you_mean(table, known.tables)}")
    if name == "zoo":
        return zoo.reader(zoo.Zoo(known, table, (table,)))
    made = submodels.Part(table, known).reader if name == "submodels" else compression.reader(known)
    return functools.partial(Reader, **{**vars(made), "table": table})()


@functools.cache
def claims_of(name: str, table: str) -> list[Claim]:
    """The claims of a study; of sub-models those of a table."""
    if name == "zoo":
        return zoo.claims_of(zoo.Zoo(study(name)))
    return claims(reader(name, table or next(iter(study(name).tables))))


def mean_of(place: str) -> Fields:
    """Of STUDY/TABLE/ROW|MEASURE the mean over the seeds, as `percent` or as `value`."""
    of, (row,), measure = _place(place)
    values = of.values(row, measure)
    value = middle(values) if values else None
    return {"value": value, "percent": value and 100 * value, "seeds": len(values)}


def gap_of(place: str) -> Fields:
    """Of STUDY/TABLE/ROW/OTHER|MEASURE the difference, in points; of the zoo's methods and FedAvg
    with p corrected as on its page.
    """
    of, (row, other), measure = _place(place)
    gap = paired(of.values(row, measure), of.values(other, measure))
    if of.study.name == "zoo" and other in (zoo.BASE, zoo.OWN_RATE) and measure == "late":
        gap = zoo.less(zoo.Zoo(of.study), other, [row], of.table).get(row)
    return fields(gap)


def case_of(place: str) -> Fields:
    """Of STUDY[@TABLE]/CLAIM/CASE its verdict and numbers. CLAIM, CASE: how their words begin."""
    where, _, rest = place.partition("/")
    name, _, table = where.partition("@")
    words, _, of = rest.partition("/")
    found = [
        case
        for one in claims_of(name, table)
        for case in one.cases
        if one.says.startswith(words) and case.of.startswith(of)
    ]
    if not found:
        raise ConfigError(f"no case '{of}' of a claim '{words}'")
    case: Case = found[0]
    return {"verdict": case.verdict, "numbers": case.numbers, **fields(case.gap)}


def _place(place: str) -> tuple[Reader, list[str], str]:
    """The reader of STUDY/TABLE/ROW[/OTHER]|MEASURE, the rows, and the measure. Raises ConfigError
    for an unknown row.
    """
    where, _, measure = place.partition("|")
    name, table, *rows = where.split("/")
    of = reader(name, table)
    for row in rows:
        if not of.has([row]):
            raise ConfigError(f"no row '{row}'; {did_you_mean(row, of.study.tables[table].rows)}")
    return of, rows, measure or "late"


def fields(gap: Paired | None) -> Fields:
    """A difference of shares in points, and its p."""
    return of_difference(gap, 100.0)


def of_difference(gap: Paired | None, scale: float) -> Fields:
    """The fields of a difference; scale: what makes points of it."""
    if gap is None:
        return dict.fromkeys(("difference", "points", "p", "holm", "seeds"))
    return {
        "difference": scale * gap.mean,
        "points": abs(scale * gap.mean),
        "p": p_text(gap.p),
        "holm": p_text(gap.p if gap.p_holm is None else gap.p_holm),
        "seeds": gap.n,
    }
