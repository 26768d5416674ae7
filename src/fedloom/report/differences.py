"""The differences of a comparison: every group less one of them, paired by seed; its answer in
words and one small table; and the settings in which runs differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.core.curves import VALUE_WORDS, Value
from fedloom.errors import ConfigError, did_you_mean
from fedloom.evaluation.declared import OF_SITES
from fedloom.storage.identity import SEEDS, flatten

from .clients import against_alone
from .curve_data import last, mean, value_of
from .runs import Group, Metric, show_value
from .statistics import Paired, against, amount_text, common_seeds, cut, p_text
from .table_text import TESTED_HEADS, columns, interval, select_columns
from .tables import MISSING, Row, human_bytes, human_target, human_value


@dataclass(frozen=True)
class Difference:
    """A group less another one, over the seeds that all groups have. ours, theirs: the means of
    what is compared, in the metric's unit; gap: its p is corrected for the number of differences.
    """

    label: str
    against: str
    metric: Metric
    ours: float
    theirs: float
    gap: Paired
    value: Value = "last-tenth"
    left_out: tuple[str, ...] = ()  # labels of groups with seeds that do not count

    @property
    def words(self) -> str:
        """Both values, the difference, its interval, p, corrected p, and the verdict."""
        both = (human_value(v, self.metric.unit) for v in (self.ours, self.theirs))
        return f"{' less '.join(both)}: {self.gap.words(self.metric.unit)}"


def differences(
    groups: Sequence[Group], other: str | None = None, value: Value = "last-tenth"
) -> list[Difference]:
    """What each group is less another one, over the seeds that all of them have; groups of another
    metric, without a seed in common, or unfinished beside a finished one, are left out. other: the
    label of that other group; by default the first. value: see core.curves.VALUES. Raises
    ConfigError for a label that no group has, and for a value that a run has not.
    """
    labels = [group.label for group in groups]
    if other is not None and other not in labels:
        raise ConfigError(
            f"--against '{other}' is no row of the table; {did_you_mean(other, labels)}"
        )
    if not groups:
        return []
    base = groups[0 if other is None else labels.index(other)]
    theirs = _values(base, value)
    rows = {
        group.label: values
        for group in groups
        if group is not base and group.metric == base.metric and _finished(group) == _finished(base)
        if (values := _values(group, value)).keys() & theirs.keys()
    }
    every = {base.label: theirs, **rows}
    seeds = common_seeds(every.values())
    longer = tuple(label for label, values in every.items() if len(values) > len(seeds))
    # of the base less each row, so that Holm counts them together
    gaps = against(theirs, rows)
    return [
        Difference(
            label,
            base.label,
            base.metric,
            _mean(rows[label], seeds),
            _mean(theirs, seeds),
            gap.turned,
            value,
            longer,
        )
        for label, gap in gaps.items()
    ]


def tested_values(
    groups: Sequence[Group], value: Value, gaps: Sequence[Difference]
) -> dict[str, dict[int, float]]:
    """{label: {seed: value}} over the seeds of the differences, or all seeds of a group."""
    by_label = {group.label: _values(group, value) for group in groups}
    tested = {label for d in gaps for label in (d.label, d.against)}
    seeds = common_seeds(by_label[label] for label in by_label if label in tested)
    return {label: cut(row, seeds) if label in tested else row for label, row in by_label.items()}


def _finished(group: Group) -> bool:
    return any(run.finished for run in group.runs)


def _values(group: Group, value: Value) -> dict[int, float]:
    """{seed: what is compared}, of the seeds that count."""
    by_seed = {run.seed: value_of(run, value) for run in group.averaged_runs}
    return {seed: v for seed, v in by_seed.items() if v is not None}


def _mean(row: dict[int, float], seeds: Sequence[int]) -> float:
    middle = mean(list(cut(row, seeds).values()))
    assert middle is not None
    return middle


def as_lines(gaps: Sequence[Difference]) -> list[str]:
    """The differences as text, a line each below a heading; nothing without one."""
    if not gaps:
        return []
    base, metric = gaps[0].against, gaps[0].metric
    tests = sum(d.gap.p is not None for d in gaps)
    more = cut_to(gaps[0])
    if not tests:
        text = f"Only one seed in common with {base}: no difference can be told from chance "
        return [f"{text}(`fedloom run ... --seeds 3` makes three).", *more]
    points = " in points" if metric.unit == "share" else ""
    name, width = metric.title.replace("_", " "), max(len(d.label) for d in gaps)
    value_words = VALUE_WORDS[gaps[0].value]
    lines = [f"Less {base}{points} ({value_words}, {name}, paired by seed):"]
    lines += [f"  {d.label:<{width}}  {d.words}" for d in gaps]
    comparisons = f"{tests} comparisons" if tests > 1 else "one comparison"
    return [*lines, f"Verdicts are at 5 %, by Holm's p for {comparisons}.", *more]


def measured_how(groups: Sequence[Group]) -> list[str]:
    """What is compared where sites or clients with models of their own measured, in sentences."""
    personal = [group for group in groups if group.runs[0].own_models]
    parts = dict.fromkeys(g.metric for g in groups if g.metric.of_sites and not g.metric.of_clients)
    out = [
        f"{m.title.capitalize()} is the {OF_SITES}: each sent its own, and nobody has the {m.name} "
        "of all rows."
        for m in parts
    ]
    if not personal:
        return out
    none = [
        g.label for g in personal if not any(last(r, r.metric.column) is not None for r in g.runs)
    ]
    measured = [g.label for g in personal if g.label not in none]
    others = [group.label for group in groups if not group.metric.of_clients]
    if none:
        out.append(
            f"{_and(none)}: clients use models of their own, which nothing has measured; run with "
            "data.tests=matched (deployed: evaluate = nodes)."
        )
    if measured and others:
        out.append(
            f"No test compares {_and(measured)} with {_and(others)}: there clients have models of "
            "their own, each measured on its client's own test rows; here one model is measured on "
            "the common ones. Run all with data.tests=matched."
        )
    elif measured:
        out.append(
            "Measured is each client on its own test rows with the model that it uses, because "
            f"clients of {_and(measured)} have models of their own."
        )
    return out


def _and(labels: Sequence[str]) -> str:
    *most, end = labels
    return f"{', '.join(most)} and {end}" if most else end


def cut_to(one: Difference) -> list[str]:
    """That some rows have more seeds than are compared."""
    if not one.left_out:
        return []
    seeds = "the one seed" if one.gap.n == 1 else f"the {one.gap.n} seeds"
    return [f"Compared are {seeds} that all rows have; more have {', '.join(one.left_out)}."]


def difference_columns(label: str, gaps: Sequence[Difference]) -> dict[str, Any]:
    """The numbers of a row of the table, for a file; None where there is no difference."""
    d = next((d for d in gaps if d.label == label), None)
    return {
        "against": d and d.against,
        "pairs": d and d.gap.n,
        "difference": d and d.gap.mean,
        "difference_low": d and d.gap.low,
        "difference_high": d and d.gap.high,
        "p": d and d.gap.p,
        "p_holm": d and d.gap.p_holm,
        "verdict": d and d.gap.verdict,
    }


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
    """False for what only runs from Python, or only those from files, have."""
    if key.startswith("algorithm."):
        return True
    kinds = {flat.get("source") for flat in flats}
    return all(any(key in flat for flat in flats if flat.get("source") == kind) for kind in kinds)


def setting_columns(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For each group {"setting.KEY": its value} of the settings that differ."""
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


_COLUMNS = ("measured", "difference", "p", "bytes", "rounds to target", "bytes to target")


@dataclass(frozen=True)
class Answer:
    """words: a sentence each; heads, lines: the small table, a line for each row."""

    words: list[str]
    heads: list[str]
    lines: list[list[str]]


def answer(groups: Sequence[Group], rows: Sequence[Row], gaps: Sequence[Difference]) -> Answer:
    """The answer of these groups. rows: the comparison with the columns of the differences."""
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
