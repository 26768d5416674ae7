"""A study of our own: its tables as data (studies/NAME.toml), and the lines of their runs.

A run is known by its recipe and its changes, so that a line counts wherever it stands: in the
study's own file of older lines, docs/results/NAME.jsonl, or in docs/results/papers/lines.jsonl,
where every new one goes.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.algorithms.registry import make_algorithm
from fedloom.cli.method_costs import costs
from fedloom.core.curves import crossing, last_tenth, whole_round
from fedloom.recipes import RECIPES
from fedloom.sweep import split_grid

from ..catalogue import Entry, Protocol, Row
from ..lines import NAME, Line, read
from ..series import points, smoothed

ROOT = Path(__file__).resolve().parents[5]  # of the checkout
RESULTS = ROOT / "docs" / "results"  # older lines, hand-written words, pages, pictures
LINES = RESULTS / "papers"
STUDIES = ("zoo", "compression", "submodels", "robust", "private", "precision")
# where and how a run is computed, and what is read from its curve; the seed stands beside them
_FREE = ("engine", "device", "checkpoint", "memory", "seed", "evaluate.target")
Place = tuple[str, frozenset[str]]


def place(recipe: str, changes: Iterable[str]) -> Place:
    """What a run is known by: its recipe and the changes that decide its numbers.

    >>> place("digits", ["local.lr=1", "local.lr=0.10", "seed=1"])
    ('digits', frozenset({'local.lr=0.1'}))
    """
    found = dict(c.replace(" ", "").split("=", 1) for c in changes)
    kept = {k: v for k, v in found.items() if k not in _FREE and k.split(".")[0] not in _FREE}
    return recipe, frozenset(f"{k}={_plain(v)}" for k, v in kept.items())


def _plain(value: str) -> str:
    """A number as it is shortest: 10 and 10.0 are one setting."""
    try:
        return f"{float(value):.12g}"
    except ValueError:
        return value


@dataclass(frozen=True)
class Table:
    """Rows under one recipe and its changes. rows: {name: changes, one of them with several values
    where it is tuned}; tuned: the table whose choice is taken; target: an accuracy of its own.
    """

    name: str
    title: str
    recipe: str
    changes: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    seeds: int
    tuned: str
    target: float | None = None

    def tried(self, row: str) -> tuple[str, list[str]]:
        """The setting that is tuned and its values; ("", []) of a row that is not."""
        axes = split_grid(self.rows[row])[1]
        return next(iter(axes.items())) if axes else ("", [])

    def typed(self, row: str, choice: Mapping[str, str] | None = None) -> list[str]:
        """The changes of a row at a choice."""
        shared, _ = split_grid(self.rows[row])
        return [*self.changes, *shared, *(f"{k}={v}" for k, v in (choice or {}).items())]

    def entry(self, choices: Mapping[str, Mapping[str, str]]) -> Entry:
        """The table as `fedloom_papers` runs one, of these rows, each at its choice; a row's grid
        is what is tried of it.
        """
        rows = []
        for row, choice in choices.items():
            key, values = self.tried(row)
            grid = {key: tuple(map(float, values))} if key else {}
            changes = " ".join(self.typed(row, choice))
            rows.append(Row(method=row, changes=changes, grid=grid))
        return Entry(
            paper="study",
            name=self.name,
            title=self.title,
            rows=tuple(rows),
            protocols=(Protocol(name=self.name, recipe=self.recipe, dataset=self.title),),
            measures=("test_acc_pct",),
        )


class Study:
    """A study and its lines. tables: by name; tuning: the changes of a run that tries a value."""

    def __init__(self, name: str, lines: Path = RESULTS) -> None:
        file = Path(__file__).parent / "studies" / f"{name}.toml"
        self.name = name
        self.words: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        self.tuning = tuple(self.words.get("tuning", "").split())
        self.tables = {table.name: table for table in self._tables()}
        files = (lines / f"{name}.jsonl", lines / "papers" / NAME)
        self.lines = [line for file in files for line in self._read(file)]
        self._at: dict[Place, dict[int, Line]] = {}
        for line in self.lines:
            at = place(line["recipe"], line["changes"])
            self._at.setdefault(at, {})[line["seed"]] = line

    def text(self, name: str) -> str:
        """What stands beside a table or picture of its page."""
        return str(self.words["texts"][name])

    def _tables(self) -> Iterator[Table]:
        for name, words in self.words["tables"].items():
            rows = {k: v for of in words["rows"].split() for k, v in self._rows(of, words).items()}
            changes = f"{self.words.get('common', '')} {words.get('changes', '')}".split()
            made = Table(
                name=name,
                title=words["title"],
                recipe=words.get("recipe", self.words["recipe"]),
                changes=tuple(changes),
                rows=rows,
                seeds=words.get("seeds", self.words["seeds"]),
                tuned=words.get("tuned", name),
                target=words.get("target"),
            )
            key, _, values = words.get("each", "").partition("=")
            for value in values.split(",") if key else ():
                more, own = (*made.changes, f"{key}={value}"), f"{name}, {float(value):g}"
                yield replace(made, name=own, changes=more, tuned=own)
            if not key:
                yield made

    def _rows(self, of: str, words: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """The rows of a list, without those that set what a table leaves out; a later list has its
        own.
        """
        rows = {row: tuple(text.split()) for row, text in self.words["rows"][of].items()}
        if of != words["rows"].split()[0] or "without" not in words:
            return rows
        apart = f"{words['without']}="
        return {k: v for k, v in rows.items() if not any(w.startswith(apart) for w in v)}

    def runs(
        self, table: str, row: str, choice: Mapping[str, str] | None = None, tuning: bool = False
    ) -> dict[int, Line]:
        """{seed: line} of a row, finished or failed; of one made twice the later."""
        of = self.tables[table]
        changes = [*of.typed(row, choice), *(self.tuning if tuning else ())]
        return dict(sorted(self._at.get(place(of.recipe, changes), {}).items()))

    def trials(self, table: str, row: str) -> dict[str, Line]:
        """{value: line} of what was tried of a row's setting, at the first seed."""
        of = self.tables[self.tables[table].tuned]
        key, values = of.tried(row)
        found = {v: self.runs(of.name, row, {key: v}, tuning=True) for v in values}
        return {v: lines[0] for v, lines in found.items() if 0 in lines}

    def chosen(self, table: str, row: str) -> dict[str, str] | None:
        """The value with the best held-out accuracy as {setting: value}, of equals the greatest as
        text; {} of a row that is not tuned; None before all are there, or if all failed.
        """
        of = self.tables[self.tables[table].tuned]
        key, values = of.tried(row)
        if not key:
            return {}
        lines = self.trials(table, row)
        scored = [(held_out(x), v) for v, x in lines.items() if x["state"] == "finished"]
        return {key: max(scored)[1]} if scored and len(lines) == len(values) else None

    def finals(self, table: str, row: str) -> dict[int, Line]:
        """{seed: line} of a row at what was chosen, finished or failed."""
        choice = self.chosen(table, row)
        return {} if choice is None else self.runs(table, row, choice)

    def finished(self, table: str, row: str) -> dict[int, Line]:
        """{seed: line} of a row's runs that came to their end."""
        return {s: x for s, x in self.finals(table, row).items() if x["state"] == "finished"}

    def first(self, table: str, row: str) -> Line | None:
        """The finished run of a row at seed 0, if there is one."""
        return self.finished(table, row).get(0)

    def there(self, table: str) -> list[str]:
        """The rows of a table with a finished run."""
        return [row for row in self.tables[table].rows if self.finished(table, row)]

    def state(self, tables: Sequence[str] = ()) -> str:
        """What is there of each table, and what is not, as a list; and how many lines do not say
        which code made them.
        """
        said = [self._state(self.tables[name]) for name in tables or self.tables]
        if unnamed := sum(not line.get("commit") for line in self.lines):
            said.append(
                f"- {unnamed} of the {len(self.lines)} lines of this page are from before lines "
                "named a commit and a version; to be re-run."
            )
        return "\n".join(said)

    def _state(self, table: Table) -> str:
        counts = {row: len(self.finals(table.name, row)) for row in table.rows}
        rounds = {x["rounds"] for row in counts for x in self.finished(table.name, row).values()}
        over = f", over {' or '.join(map(str, sorted(rounds)))} rounds" if rounds else ""
        done, whole = sum(min(k, table.seeds) for k in counts.values()), table.seeds * len(counts)
        line = f"- {table.title[0].upper()}{table.title[1:]}: {done} of {whole} runs{over}."
        some = [f"{row} {k} of {table.seeds}" for row, k in counts.items() if 0 < k < table.seeds]
        none = [row for row, k in counts.items() if not k]
        line += f" With fewer seeds: {', '.join(some)}." if some else ""
        return line + (f" Without a run: {', '.join(none)}." if none and done else "")

    # ------------------------------------------------------------------------------------- lines
    def _read(self, file: Path) -> Iterator[Line]:
        """The lines of its recipes, each with what older ones say of their curve themselves: its
        end, its best, its moving average, and when that reached the recipe's target.
        """
        recipes = {table.recipe for table in self.tables.values()}
        for line in read(file):
            curve = points(line, "curve") if line["state"] == "finished" else {}
            if line["recipe"] not in recipes or (
                line["state"] == "finished" and not line["curves"]
            ):
                continue
            if "last" in line or not curve:
                yield line
                continue
            average, best = smoothed(curve), max(curve, key=lambda t: curve[t])
            goal = RECIPES[line["recipe"]]()["evaluate"].get("target")
            place = None if goal is None else crossing(average, goal)
            reached = None if place is None else whole_round(place)
            total = line.get("bytes_up", 0) + line.get("bytes_down", 0)
            yield line | {
                "last": {"round": max(curve), "value": curve[max(curve)]},
                "best": {"round": best, "value": curve[best]},
                "last_ema": average[max(curve)],
                "rounds_to_target_text": f"{line['rounds']}+" if reached is None else f"{reached}",
                "bytes_to_target": None if reached is None else total * reached / line["rounds"],
            }


def late(line: Line) -> float:
    """The mean of the last tenth of the evaluations that a line keeps, which verdicts are on."""
    curve = points(line, "curve")
    found = last_tenth([curve[t] for t in sorted(curve)])
    return float(line["last"]["value"] if found is None else found)


@functools.cache
def vectors_before(algorithm: str) -> int:
    """How many vectors of the model's length each client receives and sends before round 1: the
    model, and what the method asks for there.

    >>> vectors_before("fedavg"), vectors_before("stem"), vectors_before("fafed")
    (0, 2, 3)
    """
    asked = costs(make_algorithm(algorithm)).probe
    return len(asked) + 1 if asked else 0


def sent_by(line: Line) -> Callable[[float], float]:
    """Bytes up and down of all clients by the end of a round: first what all clients say before
    round 1, in float32, then the same in every round.
    """
    recipe = RECIPES[line["recipe"]]()
    changes = dict(c.split("=", 1) for c in line["changes"])
    algorithm = changes.get("algorithm") or recipe["algorithm"]["name"]
    first = 0.0
    if vectors := vectors_before(algorithm):
        first = (
            4.0
            * line["parameters"]
            * vectors
            * int(line.get("population", recipe["data"]["partition"]["clients"]))
        )
    each = (float(line["bytes_up"] + line["bytes_down"]) - first) / line["rounds"]
    return lambda round: first + round * each


def by_bytes(line: Line) -> dict[float, float]:
    """{bytes up and down of all clients until then: test accuracy} of a run."""
    sent = sent_by(line)
    return {sent(t): v for t, v in points(line, "curve").items()}


def held_out(line: Line) -> float:
    """The last accuracy on held-out data."""
    return float(line["curves"]["validation"][-1][1])
