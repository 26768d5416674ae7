"""Who answered in the rounds of a federation: clients.jsonl of a deployed run, client by client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.storage.seal import Seal

from .runs import Run, read_rows

_HEADS = {  # what a row names: the column
    "answered": "counted",
    "lost": "no answer",
    "late": "late",
    "refused": "refused",
    "spare": "not needed",
    "unused": "round had too few",
}
_REASONS = 5  # of one client


class Attendance(NamedTuple):
    """The table of a run, and why updates were refused, a line each."""

    heads: list[str]
    lines: list[list[str]]
    why: list[str]


def attendance(path: Path, names: Sequence[str] = ()) -> Attendance | None:
    """How often each client was asked and what came of it, over all draws of all rounds; None if
    the run in this folder was not deployed. names: of the clients. Raises CheckpointError.
    """
    Seal(path).check("clients.jsonl")
    draws = [
        draw for row in read_rows(path / "clients.jsonl") for draw in (*row.get("redrawn", ()), row)
    ]
    if not draws:
        return None
    asked = Counter(i for draw in draws for i in draw["asked"])
    came = Counter(pair for draw in draws for pair in _outcomes(draw))
    said: dict[int, Counter[str]] = {}
    for draw in draws:
        for i, kind in _outcomes(draw):
            if kind == "refused":
                said.setdefault(i, Counter())[draw["refused"].get(str(i), "no reason")] += 1
    kinds = [kind for kind in _HEADS if kind == "answered" or any(k == kind for _, k in came)]
    everybody = sorted({*asked, *range(len(names))})
    called = {i: f"{i} {names[i]}" if i < len(names) and names[i] else str(i) for i in everybody}
    lines = [
        [called[i], f"{asked[i]:,}", *(f"{came[i, kind]:,}" for kind in kinds)] for i in everybody
    ]
    why = [
        f"{called[i]}: {count} x {reason}"
        for i in sorted(said)
        for reason, count in said[i].most_common(_REASONS)
    ]
    return Attendance(["client", "asked", *(_HEADS[kind] for kind in kinds)], lines, why)


def names_of(run: Run) -> list[str]:
    """The clients' names, as clients.toml has them; nothing if it has none."""
    found = run.partition.get("client_names") or ()
    return [] if "every" in run.partition else list(map(str, found))


def _outcomes(draw: Mapping[str, Any]) -> set[tuple[int, str]]:
    """(client, what came of asking it) of a draw."""
    named = {i: kind for kind in _HEADS if kind != "refused" for i in draw.get(kind, ())}
    return {(i, named.get(i, "refused")) for i in draw["asked"]}
