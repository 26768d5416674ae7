"""From a table to its runs: every row, protocol and seed, each set of settings once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.config import Config, resolve
from fedloom.core.own_parts import is_own, named_here, short, split
from fedloom.errors import ConfigError, FedloomError, did_you_mean
from fedloom.recipes import RECIPES
from fedloom.storage.identity import flatten, run_digest

from . import flamby
from .entry import SCALES, Entry, Protocol, Row

T = TypeVar("T")
_AMOUNTS = ("local.steps", "local.epochs")


@dataclass(frozen=True, eq=False)
class PaperRun:
    """One run. digest: of all settings that decide its numbers, without the seed; several rows may
    need the same run. changes: those of the recipe; rounds: how many it has in all.
    """

    protocol: Protocol
    row: Row
    scale: str
    seed: int
    recipe: str
    changes: tuple[str, ...]
    rounds: int
    digest: str
    folder: Path

    @functools.cached_property
    def config(self) -> Config:
        """Its settings, complete and checked: of the first seed when it is planned, of the others
        when they are needed.
        """
        return resolve(self.recipe, [*self.changes, f"seed={self.seed}"])

    @property
    def title(self) -> str:
        """What it is, for progress."""
        return f"{self.protocol.name} {self.row.key} seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """The runs of a table at a scale, and what cannot run: {(protocol, row): reason}.

    digests: {(protocol, row, seed): digest}, of which several may be of one run. as_published: with
    the authors' weights and random numbers.
    """

    entry: Entry
    scale: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    runs: tuple[PaperRun, ...]
    refusals: Mapping[tuple[str, str], str]
    digests: Mapping[tuple[str, str, int], str] = field(default_factory=dict)
    as_published: bool = False

    def settings(self, protocol: Protocol, row: str) -> dict[str, str]:
        """The settings of a row's runs as text, with dotted keys; empty where none can run."""
        runs = {run.digest: run for run in reversed(self.runs)}
        digest = self.digests.get((protocol.name, row, self.seeds[0]), "")
        flat = flatten(runs[digest].config.values) if digest in runs else {}
        return {k: f"{v:g}" if isinstance(v, float) else str(v or "none") for k, v in flat.items()}


def changes_of(protocol: Protocol, row: Row, scale: str) -> list[str]:
    """What a row changes of its protocol's recipe, each key once, the last value."""
    changes: dict[str, str] = {"evaluate.target": "none"}  # targets are read from the curve
    for word in f"{protocol.at(scale)} {row.at(protocol, scale)}".split():
        key, _, value = word.partition("=")
        if key in _AMOUNTS:  # one of them replaces the other
            changes.pop(_AMOUNTS[1 - _AMOUNTS.index(key)], None)
        changes.pop(key, None)
        changes[key] = value
    return [f"{key}={value}" for key, value in changes.items()]


def paper_rounds(protocol: Protocol) -> int:
    """The rounds of a protocol in the paper."""
    words = dict(word.split("=", 1) for word in protocol.changes.split())
    return int(words["rounds"] if "rounds" in words else RECIPES[protocol.recipe]()["rounds"])


def rows_of(entry: Entry, names: Sequence[str] = ()) -> tuple[Row, ...]:
    """The rows of these names, all without any. Raises ConfigError for an unknown one."""
    return _select({row.key: row for row in entry.rows}, names, f"{entry.id} has no row")


def with_protocols(entry: Entry, names: Sequence[str]) -> Entry:
    """A table with some of its protocols, all without a name. Raises ConfigError, also for one that
    has no runs.
    """
    if entry.fact:
        raise ConfigError(f"{entry.id} has no runs: a test compares it (tests/facts.py)")
    by_name = {p.name.lower(): p for p in entry.protocols}
    return replace(entry, protocols=_select(by_name, names, f"{entry.id} has no protocol"))


def _select(by_name: Mapping[str, T], names: Sequence[str], unknown: str) -> tuple[T, ...]:
    for name in names:
        if name.lower() not in by_name:
            raise ConfigError(f"{unknown} '{name}'; {did_you_mean(name, by_name)}")
    keys = {name.lower() for name in names} or {*by_name}
    return tuple(one for key, one in by_name.items() if key in keys)


def with_custom_rows(entry: Entry, names: Sequence[str]) -> tuple[Entry, list[str]]:
    """A table with a row for every method of a user's own among names (FILE.py:NAME), and the keys
    of all rows named. Its claims are about the paper's own rows.

    Raises ConfigError for a file that cannot be loaded.
    """
    rows, keys = list(entry.rows), []
    for name in names:
        if is_own(name):
            rows.append(_custom_row(name, [row.key for row in rows]))
        keys.append(rows[-1].key if is_own(name) else name)
    claims = [
        replace(c, than=c.than or tuple(r.key for r in entry.rows if r.key not in c.better))
        for c in entry.claims
    ]
    if len(rows) == len(entry.rows):
        return entry, keys
    return replace(entry, rows=tuple(rows), claims=tuple(claims)), keys


def _custom_row(name: str, keys: Sequence[str]) -> Row:
    full = named_here(name)
    if len(full.split()) > 1:
        raise ConfigError(f"'{full}' has a blank, which a row cannot have; move the file")
    ALGORITHMS.entry(full)
    row = Row(method=split(name)[1], changes=f"algorithm={full}", custom=True)
    return replace(row, label=f"{row.method} ({short(name)})") if row.key in keys else row


def plan(
    entry: Entry,
    scale: str,
    out: Path,
    rows: Sequence[str] = (),
    seeds: int = 1,
    more: Sequence[str] = (),
    as_published: bool = False,
) -> Plan:
    """Every run of a table; all configurations are checked, no data are read.

    more: changes of every run, after all others. as_published: with the authors' seeds, weights and
    random numbers, of FLamby. Raises ConfigError for an unknown scale or row,
    and for changes that no row takes.
    """
    if scale not in SCALES:
        raise ConfigError(f"unknown scale '{scale}'; known: {', '.join(SCALES)}")
    selected_rows = rows_of(entry, rows)
    numbers = tuple(flamby.seeds_of(seeds) if as_published else range(seeds))
    runs: dict[tuple[str, int], PaperRun] = {}
    refusals: dict[tuple[str, str], str] = {}
    digests: dict[tuple[str, str, int], str] = {}
    problems: list[FedloomError] = []
    first: PaperRun | None
    for protocol, row in pairs(entry, selected_rows):
        if protocol.cpu is None and scale in (("cpu", "smoke") if entry.study else ("cpu",)):
            refusals[protocol.name, row.key] = f"not at scale {scale}: {protocol.why}"
            continue
        try:
            first = None
            for seed in numbers:
                published_changes = flamby.as_published(protocol, row, seed) if as_published else []
                run = _run(protocol, row, scale, seed, out, [*published_changes, *more], first)
                first = run
                runs.setdefault((run.digest, seed), run)
                digests[protocol.name, row.key, seed] = run.digest
        except FedloomError as error:
            problems.append(error)
            refusals[protocol.name, row.key] = " ".join(str(error).split())
    if problems and (more or as_published) and not runs:
        raise ConfigError(str(problems[0]))
    all_runs = tuple(runs.values())
    return Plan(entry, scale, numbers, selected_rows, all_runs, refusals, digests, as_published)


def pairs(entry: Entry, rows: Sequence[Row]) -> Iterator[tuple[Protocol, Row]]:
    """A protocol's rows one after the other, as far as the paper prints or we measure them."""
    compared = {(w.protocol.name, w.row.key) for w in entry.quantities()}
    for protocol in entry.protocols:
        for row in rows:
            if (protocol.name, row.key) in compared:
                yield protocol, row


def _run(
    protocol: Protocol,
    row: Row,
    scale: str,
    seed: int,
    out: Path,
    more: Sequence[str],
    like: PaperRun | None,
) -> PaperRun:
    """like: the same row's run at another seed."""
    recipe = protocol.recipe_at(scale)
    changes = [*changes_of(protocol, row, scale), *more]
    if like is not None and like.changes == tuple(changes):
        start = like.folder.name.removesuffix(f"-seed{like.seed}")
        return replace(like, seed=seed, folder=like.folder.with_name(f"{start}-seed{seed}"))
    config = resolve(recipe, [*changes, f"seed={seed}"])
    digest, rounds = digest_of(config.values), int(config.values["rounds"])
    folder = out / scale / f"{config.values['name']}-{config.algorithm}-{digest}-seed{seed}"
    run = PaperRun(protocol, row, scale, seed, recipe, tuple(changes), rounds, digest, folder)
    run.__dict__["config"] = config
    return run


def digest_of(values: Mapping[str, Any]) -> str:
    """A hash of the settings that decide a run's numbers, but for its seed: the same for the same
    row at every seed.
    """
    data = {k: v for k, v in values["data"].items() if k != "seed"}
    return run_digest({k: v for k, v in values.items() if k != "seed"} | {"data": data})
