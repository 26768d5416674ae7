"""A paper's tables and figures from its file in `published`, as PAPER.toml beside its numbers.

The file has rows (methods), parts of protocols, claims, and entries, all as data. A text a|b|c is
of several things at once: in a key and its values the first, second, third of each (`picked`), in
names of protocols and measures every combination (`spread`).
"""

from __future__ import annotations

import importlib.resources
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from .entry import Beside, Claim, Entry, Protocol, Row
from .published_tables import settings_of, tables_of

Words = dict[str, Any]


def spread(text: str) -> list[str]:
    """Every combination of the alternatives in a text, the first changing last.

    >>> spread("c10|c100-500"), spread("loss round=1|2")
    (['c10-500', 'c100-500'], ['loss round=1', 'loss round=2'])
    """
    pieces = (piece.split("|") for piece in re.split("([-;= ])", text))
    return ["".join(made) for made in itertools.product(*pieces)]


def picked(words: Mapping[str, Any]) -> Iterator[tuple[str, Words]]:
    """Each key with its own words, of keys and words with alternatives one after the other.

    >>> [*picked({"a|b": {"changes": "x=1|2 y=3"}})]
    [('a', {'changes': 'x=1 y=3'}), ('b', {'changes': 'x=2 y=3'})]
    """
    for key, own in words.items():
        for n in range(_count(key)):
            yield (_pick(key, n), _pick(own, n)) if _count(key) > 1 else (key, own)


def _count(text: str) -> int:
    return max(piece.count("|") for piece in text.split()) + 1


def _pick(words: Any, n: int) -> Any:
    if isinstance(words, str):
        pieces = re.split("([;= ])", words)
        return "".join(p.split("|")[n] if "|" in p else p for p in pieces)
    if isinstance(words, dict):
        return {key: _pick(own, n) for key, own in words.items()}
    return words


class Reading:
    """A paper's file, read. title: the paper's."""

    def __init__(self, paper: str) -> None:
        file = importlib.resources.files(__package__) / "published" / f"{paper}.toml"
        self._words: Words = tomllib.loads(file.read_text(encoding="utf-8"))
        self._paper, self.title = paper, str(self._words["title"])
        self._parts = dict(picked(self._words.get("parts", {})))
        self._rows: dict[str, Row] = {}
        for key, words in picked(self._words.get("rows", {})):
            self._rows[key] = self._row(key, **words)

    def entries(self) -> list[Entry]:
        """Its tables and figures."""
        return [self._entry(name, **words) for name, words in picked(self._words["entries"])]

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
        own = {place: words for places, words in (on or {}).items() for place in spread(places)}
        return Row(
            method=method or name or key,
            label=key if method else "",
            changes=f"{like.changes} {changes}".strip(),
            on={**like.on, **own},
            grid=self._grid(grid),
            setting=setting,
        )

    def _grid(self, words: str | Mapping[str, Sequence[float]]) -> Words:
        """A grid, or the named ones together."""
        grids = self._words.get("grids", {})
        found = [grids[name] for name in words.split()] if isinstance(words, str) else [words]
        return {key: tuple(v) for grid in found for key, v in grid.items()}

    def _protocol(self, name: str) -> Protocol:
        """A protocol, whose name says its parts: they are joined in the order of the file. Changes
        are of scales paper and cpu, `always` is of smoke, too.
        """
        names = self._names(name)
        own = [words for part, words in self._parts.items() if part in names]
        own = [self._words.get("common", {}), *own]

        def joined(key: str, between: str = " ") -> str:
            return between.join(words[key] for words in own if key in words)

        why, alone, small = joined("why"), joined("whole_smoke"), joined("small")
        why = "it has one scale, paper" if self._words.get("own") else why
        always = joined("always")
        return Protocol(
            name=name,
            recipe=joined("recipe", ""),
            dataset=joined("dataset"),
            setting=";".join(f"{k}={v}" for k, v in settings_of(joined("setting", ";")).items()),
            changes=f"{always} {joined('changes')}",
            cpu=None if why else f"{joined('cpu')} {always if small else ''}",
            smoke=alone or f"{self._words.get('smoke', '')} {always} {joined('smoke')}",
            why=why,
            small=small,
            tiny=joined("tiny"),
            grid=self._grid(joined("grid")),
        )

    def _names(self, name: str) -> list[str]:
        if name in self._parts:
            return [name]
        start, _, last = name.rpartition("-")
        return [*self._names(start), f"-{last}"]

    def _entry(
        self,
        name: str,
        title: str,
        fact: str = "",
        rows: Sequence[str] = (),
        protocols: str = "",
        tables: str = "",
        measures: Sequence[str] = (),
        claims: Sequence[str | Words] = (),
        notes: Sequence[str] = (),
        cpu: str = "",
        **more: Any,
    ) -> Entry:
        """tables: the files of its numbers, if they have not its name; more: of a study of ours."""
        own = [name] if name in tables_of(self._paper) else []
        made = Entry(
            paper=self._paper,
            name=name,
            title=title,
            fact=fact,
            tables=tuple(tables.split() or own),
        )
        if fact:
            return made
        texts, sets = self._words.get("texts", {}), self._words.get("sets", {})
        keys = [key for one in rows for word in sets.get(one, [one]) for key in spread(word)]
        places = [self._protocol(p) for word in protocols.split() for p in spread(word)]
        made = replace(
            made,
            rows=tuple(self._rows[key] for key in keys),
            protocols=tuple(places),
            measures=tuple(m for word in measures for m in spread(word)),
            raw=self._words.get("raw", False),
            cpu=cpu or self._words.get("cpu", ""),
            own=self._words.get("own", False),
            seeds=int(more.get("seeds") or self._words.get("seeds", 3)),
            tuning=self._words.get("tuning", ""),
            tried_in=self._protocol(more["tuned"]) if "tuned" in more else None,
            bases=tuple(self._words.get("bases", ())),
            alike=tuple(self._words.get("alike", ())),
            beside=tuple(Beside(**one) for one in self._words.get("beside", ())),
            panels={k: tuple(v) for k, v in self._words.get("panels", {}).items()},
            notes=(*self._words.get("opens", ()), *(texts.get(note, note) for note in notes)),
        )
        said = [c for words in claims for c in self._claims(made, words)]
        return replace(made, claims=tuple(said))

    def _claims(self, entry: Entry, words: str | Words) -> Iterator[Claim]:
        """A claim, or with alternatives several. Its words may be of a named one, and more."""
        full: Words = {"of": words} if isinstance(words, str) else dict(words)
        while of := full.pop("of", ""):
            full = self._words["claims"][of] | full
        for place in full.pop("at", [""]):
            for _, one in picked({full["says"]: full}):
                yield self._claim(entry, place, **one)

    def _claim(
        self,
        entry: Entry,
        place: str,
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
        """place: added to what is measured, and to the words; but: the rows that it is not about;
        only, without: its protocols, * for any words.
        """
        (metric, at), (than_metric, than_at) = (
            _measure(words, place)
            for words in (self._words.get("on", "") if on is None else on, than_on)
        )
        apart = {*better.split(), *but.split()}
        rest = [row.key for row in entry.rows if row.key not in apart] if but else than.split()

        def fits(protocol: Protocol, words: str) -> bool:
            names = (name for word in words.split() for name in spread(word))
            return any(fnmatchcase(protocol.name, name) for name in names)

        places = [
            p.name
            for p in entry.protocols
            if (only or without) and fits(p, only or "*") and not fits(p, without)
        ]
        said = ", ".join(f"{k} {v}" for k, v in settings_of(place).items())
        return Claim(
            text=f"{says}, {said}" if said else says,
            better=tuple(better.split()),
            than=tuple(rest),
            metric=metric,
            at=at,
            than_metric=than_metric,
            than_at=than_at,
            protocols=tuple(places),
            **more,
        )


def _measure(words: str, place: str) -> tuple[str, str]:
    """A measure, "metric at", with a further place."""
    metric, _, at = words.partition(" ")
    return metric, ";".join(filter(None, (at, place))) if metric else ""
