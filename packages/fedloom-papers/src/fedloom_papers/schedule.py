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
from .lines import evidence, latest, made_by
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
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the list of tables '{file}' cannot be read ({error.strerror or error}); give another"
            ", or run one table with `fedloom paper NAME`"
        ) from error
    except ValueError as error:
        raise ConfigError(f"'{file}' is no TOML: {error}") from error
    if set(found) != {"table"} or not isinstance(found["table"], list) or not found["table"]:
        raise ConfigError(f"'{file}' must have entries [[table]] and nothing else")
    return [_item(words, f"{file}, table {n}") for n, words in enumerate(found["table"], start=1)]


def _item(words: Any, where: str) -> Item:
    try:
        made = Item.model_validate(words)
        rows_of(entry_at(made), [*made.rows, *made.points])
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
    return made


def entry_at(item: Item) -> Entry:
    """The table of an item: the protocols and points that it names. Raises ConfigError."""
    found = with_protocols(entry_of(item.id), item.protocols)
    if found.fact:
        raise ConfigError(f"{item.id} has no runs; `fedloom paper {item.id}` shows it")

    def at(words: str) -> dict[str, str]:
        return {protocol.name: words for protocol in found.protocols}

    known = {key.lower(): words for key, words in item.points.items()}
    rows = (replace(r, on={**r.on, **at(known.get(r.key, ""))}) for r in found.rows)
    return replace(found, rows=tuple(rows)) if known else found


def points_of(entry: Entry, scale: str, items: Sequence[Item]) -> dict[tuple[str, str], str]:
    """{(row, protocol): settings} of a table's rows whose best point a list knows at this scale;
    tables and figures of a paper with the same protocol have the same runs.
    """
    paper, own = entry.id.partition(":")[0], {protocol.name for protocol in entry.protocols}
    return {
        (row.lower(), protocol.name): words
        for item in items
        if item.scale == scale and item.id.partition(":")[0] == paper
        for row, words in item.points.items()
        for protocol in entry_at(item).protocols
        if protocol.name in own
    }


# ------------------------------------------------------------------------------------------ running
def plan_of(item: Item, out: Path, found: Entry | None = None) -> Plan:
    """The runs of an item. found: its table with each row at its best point. Raises ConfigError."""
    found = found or entry_at(item)
    return plan(found, item.scale, out, item.rows, item.seeds, item.changes)


def run_item(
    item: Item, out: Path, run: Callable[[Plan], object], tell: Callable[[Sequence[Choice]], None]
) -> None:
    """Run what a table of the list lacks. run: runs a plan; tell: called with the best points."""
    made = plan_of(item, out)
    if item.tune != "none":
        halve = item.tune == "halving"
        found, choices = at_best_points(made, out, item.changes, halve, run)
        tell(choices)
        made = plan_of(item, out, found)
    run(made)


def others_commit(made: Plan, out: Path) -> str:
    """The commit of lines of this plan that other code made; "" if there is none."""
    wanted, mine = {(run.digest, run.seed) for run in made.runs}, made_by()["commit"]
    used = [line for place, line in latest(evidence(out), made.runs).items() if place in wanted]
    return next((x["commit"] for x in used if x.get("commit") not in (None, mine)), "")
