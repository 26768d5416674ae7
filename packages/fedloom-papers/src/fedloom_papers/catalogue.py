"""Every table and figure of the papers, and of our own studies, from the files in `published`.

NAME.toml has rows (methods), parts of protocols, claims, and entries, all as data. `each` makes
several rows or parts of one (its key and a value, which stands for {each} in its words), `at`
several claims (a value stands for {at}), lists of places several measures; `like` takes what an
entry does not say from another one, `of` what a row or claim does not say.
"""

from __future__ import annotations

import importlib.resources
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from fedloom.errors import ConfigError, did_you_mean

from .entry import PAPERS, STUDIES, Claim, Entry, PaperColumn, Protocol, Row, settings_of, tables_of

Words = dict[str, Any]


def substitute(words: Any, name: str, value: Any) -> Any:
    """Words with a value in place of {name}.

    >>> substitute({"setting": "u={each}", "each": [1]}, "each", 0.6)
    {'setting': 'u=0.6', 'each': [1]}
    """
    if isinstance(words, str):
        return words.replace(f"{{{name}}}", str(value))
    if isinstance(words, dict):
        return {key: substitute(inner, name, value) for key, inner in words.items()}
    return words


def expand(words: Mapping[str, Words]) -> Iterator[tuple[str, Words]]:
    """Each key with its words; with `each` a key for each value."""
    for key, spec in words.items():
        rest = {k: v for k, v in spec.items() if k != "each"}
        for value in spec.get("each", [""]):
            yield f"{key}{value}", substitute(rest, "each", value)


class CatalogueFile:
    """A file, read. title: the paper's or the study's."""

    def __init__(self, name: str) -> None:
        file = importlib.resources.files(__package__) / "published" / f"{name}.toml"
        self._words: Words = tomllib.loads(file.read_text(encoding="utf-8"))
        self._paper, self.title = name, str(self._words["title"])
        self._parts = dict(expand(self._words.get("parts", {})))
        self._rows: dict[str, Row] = {}
        for key, words in expand(self._words.get("rows", {})):
            self._rows[key] = self._row(key, **words)

    def entries(self) -> Iterator[Entry]:
        """Its tables and figures."""
        every = self._words["entries"]
        for name, words in every.items():
            like = every[words["like"]] if "like" in words else {}
            yield self._entry(name, like | {k: v for k, v in words.items() if k != "like"})

    # ----------------------------------------------------------------------------- of an entry
    def _row(
        self,
        key: str,
        changes: str = "",
        of: str = "",
        name: str = "",
        method: str = "",
        on: Mapping[str, str] | None = None,
        grid: str | Mapping[str, Sequence[float]] = "",
        setting: str = "",
    ) -> Row:
        """of: the row whose changes it has, too; name: if the key is not; method: of its published
        cells, if the name is not.
        """
        like = self._rows[of] if of else Row(method="", changes="")
        return Row(
            method=method or name or key,
            label=key if method else "",
            changes=f"{like.changes} {changes}".strip(),
            on={**like.on, **(on or {})},
            grid=self._grid(grid),
            setting=setting,
        )

    def _grid(self, words: str | Mapping[str, Sequence[float]]) -> Words:
        """A grid, or the named ones together."""
        grids = self._words.get("grids", {})
        parts = [grids[name] for name in words.split()] if isinstance(words, str) else [words]
        return {key: tuple(v) for grid in parts for key, v in grid.items()}

    def _protocol(self, name: str) -> Protocol:
        """A protocol, whose name says its parts: they are joined in the order of the file. Changes
        are of scales paper and cpu, `always` is of smoke, too.
        """
        names = self._names(name)
        parts = [words for part, words in self._parts.items() if part in names]
        parts = [self._words.get("common", {}), *parts]

        def join(key: str, between: str = " ") -> str:
            return between.join(words[key] for words in parts if key in words)

        why, small = join("why"), join("small")
        why = "it has one scale, paper" if self._words.get("own") else why
        always = join("always")
        return Protocol(
            name=name,
            recipe=join("recipe", ""),
            dataset=join("dataset"),
            setting=";".join(f"{k}={v}" for k, v in settings_of(join("setting", ";")).items()),
            changes=f"{always} {join('changes')}",
            cpu=None if why else f"{join('cpu')} {always if small else ''}",
            smoke=f"{self._words.get('smoke', '')} {always} {join('smoke')}",
            why=why,
            small=small,
            tiny=join("tiny"),
            grid=self._grid(join("grid")),
        )

    def _names(self, name: str) -> list[str]:
        if name in self._parts:
            return [name]
        start, _, last = name.rpartition("-")
        return [*self._names(start), f"-{last}"]

    def _expand_sets(self, names: Sequence[str]) -> list[str]:
        """Names of rows or protocols, a set's in its place."""
        sets = self._words.get("sets", {})
        return [one for name in names for one in sets.get(name, [name])]

    def _entry(self, name: str, words: Words) -> Entry:
        """tables: the files of its numbers, if they have not its name; cpu: what is reduced there,
        if not what the file says.
        """
        default_tables = [name] if name in tables_of(self._paper) else []
        top, tables = self._words, tuple(words.get("tables", default_tables))
        if fact := words.get("fact"):
            return Entry(
                paper=self._paper, name=name, title=words["title"], fact=fact, tables=tables
            )
        texts = top.get("texts", {})
        rows = tuple(self._rows[key] for key in self._expand_sets(words["rows"]))
        protocols = tuple(self._protocol(p) for p in self._expand_sets(words["protocols"]))
        return Entry(
            paper=self._paper,
            name=name,
            title=words["title"],
            tables=tables,
            rows=rows,
            protocols=protocols,
            measures=tuple(m for one in words.get("measures", ()) for m in _measures(one)),
            claims=tuple(
                c for w in words.get("claims", ()) for c in self._claims(rows, protocols, w)
            ),
            raw=top.get("raw", False),
            cpu=str(words.get("cpu") or top.get("cpu", "")),
            notes=(*top.get("opens", ()), *(texts.get(n, n) for n in words.get("notes", ()))),
            study=top.get("own", False),
            seeds=int(words.get("seeds") or top.get("seeds", 3)),
            tuning=top.get("tuning", ""),
            grid_protocol=self._protocol(words["tuned"]) if "tuned" in words else None,
            bases=tuple(top.get("bases", ())),
            alike=tuple(top.get("alike", ())),
            paper_columns=tuple(PaperColumn(**one) for one in top.get("beside", ())),
        )

    def _claims(
        self, rows: Sequence[Row], protocols: Sequence[Protocol], words: str | Words
    ) -> Iterator[Claim]:
        """A claim, or with `at` several. Its words may be of a named one, and more."""
        full: Words = {"of": words} if isinstance(words, str) else dict(words)
        while of := full.pop("of", ""):
            full = self._words["claims"][of] | full
        for value in full.pop("at", [""]):
            yield self._claim(rows, protocols, **substitute(full, "at", value))

    def _claim(
        self,
        rows: Sequence[Row],
        protocols: Sequence[Protocol],
        says: str,
        better: str,
        than: str = "",
        but: str = "",
        on: str | None = None,
        than_on: str = "",
        only: str = "",
        without: str = "",
        **more: Any,
    ) -> Claim:
        """but: the rows that it is not about; only, without: its protocols, * for any words."""
        metric, _, at = (self._words.get("on", "") if on is None else on).partition(" ")
        than_metric, _, than_at = than_on.partition(" ")
        ours, others = better.lower().split(), than.lower().split()
        if but:
            others = [row.key for row in rows if row.key not in {*ours, *but.split()}]

        def fits(protocol: Protocol, patterns: str) -> bool:
            return any(fnmatchcase(protocol.name, one) for one in patterns.split())

        some = only or without
        matching = (p for p in protocols if fits(p, only or "*") and not fits(p, without))
        return Claim(
            text=says,
            better=tuple(ours),
            than=tuple(others),
            metric=metric,
            at=at,
            than_metric=than_metric,
            than_at=than_at,
            protocols=tuple(p.name for p in matching) if some else (),
            **more,
        )


def _measures(words: str | Words) -> Iterator[str]:
    """A measure as "metric at"; with lists of places one for each combination.

    >>> [*_measures({"of": "acc", "size": ["1/4", "1.0"], "round": [1, 2]})][:2]
    ['acc size=1/4;round=1', 'acc size=1/4;round=2']
    """
    if isinstance(words, str):
        yield words
        return
    lists = {key: values for key, values in words.items() if key != "of"}
    for values in itertools.product(*lists.values()):
        at = ";".join(f"{key}={value}" for key, value in zip(lists, values, strict=True))
        yield f"{words['of']} {at}"


_FILES = {name: CatalogueFile(name) for name in (*PAPERS, *STUDIES)}
TITLES = {name: file.title for name, file in _FILES.items()}
ENTRIES: dict[str, Entry] = {e.id: e for file in _FILES.values() for e in file.entries()}


def entries_of(paper: str) -> list[Entry]:
    """The tables and figures of a paper or a study. Raises ConfigError for an unknown one."""
    if paper not in TITLES:
        raise ConfigError(f"unknown paper '{paper}'; {did_you_mean(paper, TITLES)}")
    return [e for e in ENTRIES.values() if e.paper == paper]


def entry(name: str) -> Entry:
    """The table or figure of a name such as fedacg:1a, however its letters are written. Raises
    ConfigError for an unknown one, with the nearest.
    """
    by_lower = {key.lower(): e for key, e in ENTRIES.items()}
    match = ENTRIES.get(name) or by_lower.get(name.lower())
    if match is not None:
        return match
    paper, colon, _ = name.partition(":")
    if not colon and paper in TITLES:
        raise ConfigError(
            f"'{name}' is a paper; give one of its tables (`fedloom paper list {name}`)"
        )
    near = [e.id for e in ENTRIES.values() if e.paper == paper] or [*ENTRIES]
    hint = did_you_mean(name, near)
    hint = hint if hint.startswith("did") else "`fedloom paper list` lists all"
    raise ConfigError(f"unknown table or figure '{name}'; {hint}")
