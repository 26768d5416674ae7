"""The answer of a comparison in words and one small table: which method is better, by how much,
whether that may be chance, and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedloom.core.curves import VALUE_WORDS

from .clients import against_alone
from .curve_data import mean
from .differences import Difference, measured_how, tested_values
from .runs import Group, Metric
from .statistics import Paired, against, amount_text, p_text
from .table_text import TESTED_HEADS, columns, interval, select_columns
from .tables import Row, human_bytes, human_target, human_value

_COLUMNS = ("measured", "difference", "p", "bytes", "rounds to target", "bytes to target")


@dataclass(frozen=True)
class Answer:
    """words: a sentence each; heads, lines: the small table, a line for each row."""

    words: list[str]
    heads: list[str]
    lines: list[list[str]]


def answer(groups: Sequence[Group], rows: Sequence[Row], gaps: Sequence[Difference]) -> Answer:
    """The answer of these groups; rows: the comparison with the columns of the differences.

    Values are those that are tested: of a group that is not, its own seeds'.
    """
    value = rows[0]["value"]
    values = tested_values(groups, value, gaps)
    means = {label: Paired.of([*by_seed.values()]) for label, by_seed in values.items()}
    every = columns(rows)
    present = {column.name for column in every}
    name, *others = select_columns(every, [n for n in _COLUMNS if n in present])
    same = len({row["metric"] for row in rows}) == 1
    head = f"{groups[0].metric.title.replace('_', ' ') if same else 'metric'}, "
    head += f"{TESTED_HEADS[value]} (95 %)"
    middle = [_middle(means.get(row["label"]), row["unit"]) for row in rows]
    cells = zip(name.cells, middle, *(c.cells for c in others), strict=True)
    heads = [name.head, head, *(c.head for c in others)]
    words = _words(groups, rows, gaps, values)
    words += measured_how(groups) + against_alone(groups)
    return Answer(words, heads, [list(line) for line in cells])


def _middle(estimate: Paired | None, unit: str) -> str:
    """A mean and its interval."""
    if estimate is None or estimate.sd is None:
        return human_value(None if estimate is None else estimate.mean, unit)
    low, high = (human_value(v, unit) for v in (estimate.low, estimate.high))
    if unit == "share":
        low = low.removesuffix(" %")
    return f"{human_value(estimate.mean, unit)} ({low} to {high})"


def _words(
    groups: Sequence[Group],
    rows: Sequence[Row],
    gaps: Sequence[Difference],
    values: Mapping[str, Mapping[int, float]],
) -> list[str]:
    """The best, the next one and their difference; whether that may be chance, corrected for all
    that the best is compared with; the cost of these two. values: {label: {seed: value}}.
    """
    metric, by_label = groups[0].metric, {row["label"]: row for row in rows}
    if not gaps:
        first = groups[0].label
        if len(groups) > 1:
            return [f"No row has a seed, a metric and a state in common with {first}."]
        middle = human_value(mean([*values[first].values()]), metric.unit)
        return [f"{first}: {middle} {_metric_words(metric, rows)}.", _cost(rows[0])]
    if metric.higher_is_better is None:
        return [f"Nothing says whether {metric.name} is better higher or lower."]
    base, high = gaps[0].against, metric.higher_is_better
    tested = {base: gaps[0].theirs} | {d.label: d.ours for d in gaps}
    best, second = sorted(tested, key=lambda label: tested[label], reverse=high)[:2]
    gap = against(values[best], {label: values[label] for label in tested if label != best})[second]
    by = amount_text(gap.mean, metric.unit)
    lead = (
        f"{best} has the {'highest' if high else 'lowest'} {_metric_words(metric, rows)}: "
        f"{human_value(tested[best], metric.unit)}, {by} {'above' if high else 'below'} "
        f"{second}, the next."
    )
    chance = _chance(f"{best} less {second}", gap, metric)
    return [lead, chance, *(_cost(by_label[label]) for label in (best, second))]


def _metric_words(metric: Metric, rows: Sequence[Row]) -> str:
    return f"{metric.title.replace('_', ' ')} ({VALUE_WORDS[rows[0]['value']]})"


def _chance(of: str, gap: Paired, metric: Metric) -> str:
    """Whether a difference may be chance."""
    if gap.p is None:
        return (
            "One seed cannot tell this from chance; `fedloom run ... --seeds 3` makes three "
            "that can."
        )
    row = {"difference": gap.mean, "difference_low": gap.low, "difference_high": gap.high}
    p = p_text(gap.p if gap.p_holm is None else gap.p_holm)
    verdict = "That may be chance" if gap.verdict == "undecided" else "That is more than chance"
    between = interval(row | {"unit": metric.unit}, "difference")
    unit = " points" if metric.unit == "share" else ""
    return f"{verdict}: {of} is {between}{unit}, p {p} by Holm, {gap.n} seeds."


def _cost(row: Row) -> str:
    """What a row took to its target, and in all."""
    name, spent = row["label"], human_bytes(row["bytes"])
    whole = f"{spent} in {row['rounds']} rounds"
    if row["target"] is None:
        return f"{name} sends {whole}."
    goal = human_target(row["target"], row["unit"])
    if row["rounds_to_target"] is None:
        return f"{name} does not reach {goal}; it sends {whole}."
    rounds = f"{row['rounds_to_target']:.1f}".removesuffix(".0")
    some = f" ({row['reached']} of {row['seeds']} seeds)" if row["not_reached"] else ""
    needs = f"{rounds} rounds and {human_bytes(row['bytes_to_target'])}"
    return f"{name} reaches {goal} after {needs}{some}; it sends {whole}."
