"""The JSON Schemas of docs/schemas, made by pydantic: of what `--json` prints, from the records
below, and of a file of settings, from the fields of its tables. `nox -s docs` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedloom.config.overrides import INNER, NESTED, PLAIN, REGISTRIES, RUN
from fedloom.core.hyper import Hyper
from fedloom.core.validation import NOTHING, fields_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SHARE = Field(description="share: 0.8 is 80 %; else empty")


def of(meaning: str) -> Any:
    """A key with this meaning."""
    return Field(description=meaning)


class Record(BaseModel):
    """An object with these keys, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# ------------------------------------------------------------------------------------ fedloom list
class Entry(Record):
    name: str = of("as a configuration writes it")
    about: str = of("its first line")


class Topics(Record):
    topics: dict[str, list[Entry]] = of("by topic, such as algorithms")


class RunState(Record):
    folder: str
    rounds: int = of("that are done")
    planned: int = of("rounds of its settings")
    finished: bool
    running: bool = of("a process holds the folder now")
    metric: str = of("the headline")
    unit: str = SHARE
    value: float | None = of("on the test set after the last round; null: that was not evaluated")


class Damaged(Record):
    folder: str
    damaged: str = of("why it cannot be read")


class Runs(Record):
    runs: list[RunState | Damaged] = of(
        "of `fedloom list runs --json`: those below the folder runs"
    )


# ----------------------------------------------------------------------------------- fedloom check
class Outcome(Record):
    name: str
    passed: bool | None = of("null: left out")
    seconds: float
    why: str = of("why it failed or was left out; else empty")


class Part(Record):
    part: str = of("its name in the file")
    kind: str = of("algorithm, codec, ...")
    passed: bool = of("no check failed")
    outcomes: list[Outcome]


class Parts(Record):
    parts: list[Part]


# -------------------------------------------------------------------------------- fedloom describe
class Described(Record):
    kind: str = of("number: more than 10 different ones; values: fewer; texts")
    missing: int | None = of("empty cells; null: some, or not told")
    counts: dict[str, int | None] = of("rows of each value; null: withheld")
    mean: float | None = of("of numbers, without extremes; null: too few rows")
    deviation: float | None = of("of numbers, without extremes")
    quantiles: list[float | None] = of("low, 25 %, median, 75 %, high: means of groups")


class Site(Record):
    least: int = of("nothing is told of fewer rows")
    rows: int | None = of("null: fewer than that, and nothing else is told")
    target: str | None = of("the column with the labels")
    columns: dict[str, Described] = of("by name")


class Labels(Record):
    pairs: float = of("total variation of two sites, mean over all pairs")
    from_all: float = of("total variation of a site and all, mean")
    divergence: float = of("KL of a site and all in nats, mean")
    jensen_shannon: float = of("of a site and all in bits, mean")


class Description(Record):
    sites: dict[str, Site] = of("by the files' names")
    labels: Labels | None = of("how much the sites' labels differ; null without a target of values")


# --------------------------------------------------------------------------------- fedloom compare
class Row(Record):
    """setting.KEY: a setting that differs; client_METRIC_worst and so on: of a further metric."""

    model_config = ConfigDict(extra="allow")
    label: str = of("the row's name")
    state: str = of("what is odd about its runs, else empty")
    metric: str
    unit: str = SHARE
    higher_is_better: bool | None
    seeds: int = of("runs that count")
    rounds: int
    value: str = of("which value of a run is tested, see --value")
    value_mean: float | None = of("mean of what is tested")
    value_sd: float | None = of("standard deviation over seeds; null of one")
    last_mean: float | None
    last_sd: float | None
    best_mean: float | None
    ema_mean: float | None = of("last moving average")
    client_worst: float | None = of("the metric at the worst client")
    client_tenth: float | None = of("below which a tenth fares worse")
    client_spread: float | None = of("standard deviation between clients")
    label_distance: float | None
    size_gini: float | None
    target: float | None
    reached: int | None = of("seeds that reached the target")
    not_reached: int | None
    rounds_to_target: float | None = of("mean over the seeds that reached it")
    bytes_to_target: float | None
    gradients_to_target: float | None
    seconds_to_target: float | None
    bytes: float | None = of("up and down, all clients")
    seconds_per_round: float | None
    seconds: float | None
    simulated_to_target: float | None
    simulated_seconds: float | None


class Compared(Row):
    """setting.KEY: a setting that differs; client_METRIC_worst and so on: of a further metric."""

    against: str | None = of("the row that it is compared with")
    pairs: int | None = of("seeds of the difference")
    difference: float | None = of("this row less the other")
    difference_low: float | None = of("end of the 95 % interval")
    difference_high: float | None
    p: float | None
    p_holm: float | None = of("corrected by Holm")
    verdict: str | None = of("above, below or undecided")


# ------------------------------------------------------------------ fedloom referee, fedloom advise
class Tuned(Record):
    name: str
    settings: dict[str, str] = of("KEY: value, what was compared and what was tuned")
    trials: int
    failed_trials: int
    without_effect: list[str] = of("settings of which all values gave equal curves")
    first_seed: int
    values: list[float | None] = of("what is tested, seed by seed; null: the run failed")


class Comparison(Record):
    method: str
    against: str = of("the rival")
    verdict: str = of("better, worse, no difference (larger than delta) or undecided")
    pairs: int | None = of("seeds at the look that decided, or the last one")
    difference: float | None = of("the method less the rival, mean")
    sd: float | None = of("standard deviation of the differences")
    low: float | None = of("end of the interval, which holds at every look and for all together")
    high: float | None
    level: float | None = of("of that interval as a plain one")
    p: float | None = of("Student's, two-sided")
    bound: float | None = of("the p at or below which the difference counts")
    failures: int = of("runs of the two that failed; if there is one, there is no test")


class Cell(Record):
    name: str
    source: str = of("the recipe or file")
    changes: list[str]
    seeds: int
    methods: list[Tuned]
    comparisons: list[Comparison]
    rows: list[Row] = of("as of fedloom compare")


class Study(Record):
    format: str
    version: str
    commit: str | None
    command: str = of("repeats it")
    metric: str
    unit: str = SHARE
    delta: float | None = of("the difference that does not matter")
    error: float = of("of all comparisons and looks together")
    looks: list[int] = of("seeds after which there was a test")
    ended: str = of("plan, or time: the same command resumes")
    trials: int = of("of each method in each cell")
    splits: int = of("validation splits that judged each trial")
    cells: list[Cell]


class Referee(Study):
    vary: str = of("the setting whose values are compared")
    method: str
    against: list[str]


class Rival(Record):
    name: str
    verdict: str = of("better, no difference (larger than delta) or undecided")
    ahead: float | None = of("mean of the one taken less that of the other; null: runs failed")


class Tried(Record):
    name: str
    value: float = of("of its best trial, mean over the splits")


class Screen(Record):
    splits: int = of("validation splits that judged each trial")
    trials: int = of("of each method")
    tried: list[Tried] = of("the best first")
    failed: list[str] = of("methods of which every trial failed")


class Mean(Record):
    name: str
    mean: float | None = of("of what is compared, over the seeds; null: a run failed")
    bytes: float | None = of("up and down in a run, mean")


class Advice(Study):
    source: str = of("the recipe or file")
    take: str = of("the candidate to take; its settings are in run.toml")
    decided: bool = of("whether seeds decided all comparisons with it")
    why: str = of("best: the best mean; bytes, simpler (FedAvg): hardly behind it, and that")
    settings: dict[str, str] = of("what differs from the user's, as it was chosen")
    against: list[Rival]
    alone: str | None = of("whether clients fare better than alone; null: not run")
    candidates: list[str] = of("what is compared: FedAvg, and the two best on validation splits")
    skipped: dict[str, str] = of("what is not compared: why")
    screen: Screen | None = of("how all methods did on validation splits; null: no time for it")
    methods: list[Mean]
    runs: int = of("that finished")
    seconds: float = of("of training, all runs together")


# {name: the command, what it prints}
PRINTED: dict[str, tuple[str, Any]] = {
    "advise": ("advise ... --json", Advice),
    "check": ("check FILE.py --json", Parts),
    "compare": ("compare RUN... --json FILE", list[Compared]),
    "describe": ("describe FILE... --json", Description),
    "list": ("list [TOPIC] --json", Topics | Runs),
    "referee": ("referee ... --json", Referee),
}


# -------------------------------------------------------------------------------- files of settings
def settings() -> dict[str, Any]:
    """The JSON Schema of a file of settings, for editors: [algorithm] has the keys of the name that
    it gives. Shorthands, and names that other systems have, are not in it.
    """
    return {"type": "object", "properties": _keys(RUN) | _inside("")}


def _inside(path: str) -> dict[str, Any]:
    """The tables inside of one, by their keys."""
    places = [p for p in (*PLAIN, *INNER, *REGISTRIES) if p.rpartition(".")[0] == path]
    return {p.rpartition(".")[2]: _named(p) if p in REGISTRIES else _plain(p) for p in places}


def _plain(path: str) -> dict[str, Any]:
    inside = _inside(path)
    keys = _keys(fields_of({**PLAIN, **INNER}[path], inside))
    return {"type": "object", "properties": keys | inside, "additionalProperties": False}


def _named(path: str) -> dict[str, Any]:
    """A name, or a table with one and its options; other names are those of own parts."""
    registry, tables = REGISTRIES[path], []
    for name, maker in registry.items():
        keys = {"name": {"const": name}} | _keys(fields_of(maker, NESTED.get(path, ())))
        about = registry.first_line(name)
        tables.append({"properties": keys, "required": ["name"], "description": about})
    tables.append({"properties": {"name": {"pattern": r"\.py:"}}, "required": ["name"]})
    table = {"type": "object", "properties": _inside(path), "anyOf": tables}
    return {"anyOf": [{"type": "string"}, table]}


def _keys(rules: Mapping[str, Hyper]) -> dict[str, Any]:
    """What each key may be; none is a text in TOML."""
    found = {}
    for key, rule in rules.items():
        kinds = [{"const": NOTHING} if kind == {"type": "null"} else kind for kind in rule.kinds]
        about = "; ".join(filter(None, (rule.meaning, rule.source)))
        found[key] = {"anyOf": kinds, "description": about}
    return found


def page(title: str, schema: Mapping[str, Any]) -> str:
    """A file of docs/schemas."""
    whole = {"$schema": DIALECT, **schema, "title": f"fedloom {title}"}
    return f"{json.dumps(whole, indent=1)}\n"


def pages() -> dict[str, str]:
    """{path below docs: text} of what is printed."""
    return {
        f"schemas/{name}.json": page(title, TypeAdapter(kind).json_schema())
        for name, (title, kind) in PRINTED.items()
    }
