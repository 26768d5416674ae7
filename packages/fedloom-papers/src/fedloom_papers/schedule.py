"""A list of tables to run, most telling first, until they are done or time is up.

The list is a TOML file of [[table]] entries (docs/results/plan.toml): which rows, protocols and
seeds of which table at which scale, and how it is tuned. A table's lines come from one commit: a
later one may change numbers, so a table that was begun is gone on with from where it was begun.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveInt,
    ValidationError,
)

from fedloom.errors import ConfigError, did_you_mean

from .catalogue import entry as entry_of
from .entry import Entry
from .lines import code_version, evidence, latest
from .plan import Plan, plan, rows_of, with_protocols
from .tune import Choice, at_best_points


class Item(BaseModel):
    """A table of the list. id: as `fedloom paper` names it; rows, protocols: all without any; tune:
    "none", "grid" or "halving" (run the grid first); points: {row: settings, as "local.lr=0.1"} of
    rows whose best point is known; changes: of every run; hours: what it takes on two processors,
    for readers alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    scale: Literal["paper", "cpu", "smoke"] = "cpu"
    rows: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    seeds: PositiveInt = 3
    tune: Literal["none", "grid", "halving"] = "none"
    points: Mapping[str, str] = Field(default_factory=dict)
    changes: tuple[str, ...] = ()
    hours: NonNegativeFloat = 0.0

    @property
    def title(self) -> str:
        """As progress names it."""
        part = ", ".join((*self.protocols, *self.rows))
        return f"{self.id} at scale {self.scale}" + (f" ({part})" if part else "")


def read_items(file: Path) -> list[Item]:
    """The tables of a list. Raises ConfigError, with the file and the entry, for what is none."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the list of tables '{file}' cannot be read ({error.strerror or error}); give another"
            ", or run one table with `fedloom paper NAME`"
        ) from error
    except ValueError as error:
        raise ConfigError(f"'{file}' is no TOML: {error}") from error
    if set(data) != {"table"} or not isinstance(data["table"], list) or not data["table"]:
        raise ConfigError(f"'{file}' must have entries [[table]] and nothing else")
    return [_item(words, f"{file}, table {n}") for n, words in enumerate(data["table"], start=1)]


def _item(words: Any, where: str) -> Item:
    try:
        item = Item.model_validate(words)
        rows_of(entry_at(item), [*item.rows, *item.points])
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{where} has no key '{key}'; {did_you_mean(key, Item.model_fields)}"
            ) from error
        raise ConfigError(f"{where}: {key}: {first['msg']}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return item


def entry_at(item: Item) -> Entry:
    """The table of an item: the protocols and points that it names. Raises ConfigError."""
    entry = with_protocols(entry_of(item.id), item.protocols)

    def at(words: str) -> dict[str, str]:
        return {protocol.name: words for protocol in entry.protocols}

    points = {key.lower(): words for key, words in item.points.items()}
    rows = (replace(r, on={**r.on, **at(points.get(r.key, ""))}) for r in entry.rows)
    return replace(entry, rows=tuple(rows)) if points else entry


def points_of(entry: Entry, scale: str, items: Sequence[Item]) -> dict[tuple[str, str], str]:
    """{(row, protocol): settings} of a table's rows whose best point a list knows at this scale;
    tables and figures of a paper with the same protocol have the same runs.
    """
    paper, names = entry.id.partition(":")[0], {protocol.name for protocol in entry.protocols}
    return {
        (row.lower(), protocol.name): words
        for item in items
        if item.scale == scale and item.id.partition(":")[0] == paper
        for row, words in item.points.items()
        for protocol in entry_at(item).protocols
        if protocol.name in names
    }


# ------------------------------------------------------------------------------------------ running
def plan_of(item: Item, out: Path, entry: Entry | None = None) -> Plan:
    """The runs of an item. entry: its table with each row at its best point. Raises ConfigError."""
    entry = entry or entry_at(item)
    return plan(entry, item.scale, out, item.rows, item.seeds, item.changes)


def run_item(
    item: Item, out: Path, run: Callable[[Plan], object], report: Callable[[Sequence[Choice]], None]
) -> None:
    """Run what a table of the list lacks. run: runs a plan; report: gets the best points."""
    plan = plan_of(item, out)
    if item.tune != "none":
        halve = item.tune == "halving"
        entry, choices = at_best_points(plan, out, item.changes, halve, run)
        report(choices)
        plan = plan_of(item, out, entry)
    run(plan)


def others_commit(plan: Plan, out: Path) -> str:
    """The commit of lines of this plan that other code made; "" if there is none."""
    keys, current = {(run.digest, run.seed) for run in plan.runs}, code_version()["commit"]
    used = [line for key, line in latest(evidence(out), plan.runs).items() if key in keys]
    return next((x["commit"] for x in used if x.get("commit") not in (None, current)), "")
