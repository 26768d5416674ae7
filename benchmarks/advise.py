"""Is what `fedloom advise` recommends as good as the best of all methods?

    python benchmarks/advise.py run FOLDER [PLACE ...]   what is missing: hours on a busy machine
    python benchmarks/advise.py page FOLDER              the table of the record

Of each place three steps. *advice*: the command itself. *all*: every method with the settings that
the command found for it on validation splits, and two seeds. *final*: the three best of
*all*, the advice and FedAvg with eight seeds by which nothing was chosen (101 to 108): the best
mean of thirty is too high by chance, and the claim is on seeds that did not choose it. Lines are in
FOLDER/all.jsonl, advice.jsonl, final.jsonl, the runs in FOLDER/runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from fedloom.cli.__main__ import cli
from fedloom.referee import Runs, advised, screened
from fedloom.referee.question import Cell, Method, Question
from fedloom.referee.study import Tuner
from fedloom.report.curve_data import value_of
from fedloom.report.runs import load_run
from fedloom.report.statistics import Paired
from fedloom.study import RunTrials, Trial, run_all, state_of
from fedloom.study.tune import Tuned

HERE = Path(__file__).resolve().parent
OWN = HERE / "advise_data.py"
DIGITS = ("rounds=20", "local.epochs=1", "evaluate.every=2", "evaluate.clients=false")
HEART = ("rounds=10", "local.epochs=1", "evaluate.clients=false")
# where the first record was made, by which the search of now was made (records/2026-11-26_advise)
FIRST = {
    "digits, labels mild": ("digits", "partition.alpha=1", "partition.clients=20", *DIGITS),
    "digits, labels strong": (
        *("digits", "data.partition=classes_per_client", "data.partition.classes=2"),
        *("data.partition.clients=20", "cohort=0.25", *DIGITS),
    ),
    "digits, sizes": ("digits", f"data={OWN}:digits_by_size", "cohort=1.0", *DIGITS, "rounds=12"),
    "digits, features": ("digits", f"data={OWN}:digits_by_hand", *DIGITS),
    "heart, hospitals": ("heart", *HEART),
    "heart, labels": (
        *("heart", "data.partition=dirichlet_unbalanced", "data.partition.alpha=0.5"),
        *("data.partition.clients=8", "data.partition.min_size=8", *HEART),
    ),
    "heart, sizes": ("heart", f"data={OWN}:heart_by_size", *HEART),
    "heart, features": ("heart", f"data={OWN}:heart_by_age", *HEART),
}
HELD_OUT = {
    "digits, labels half": ("digits", "partition.alpha=0.5", "partition.clients=40", *DIGITS),
    "digits, labels three": (
        *("digits", "data.partition=classes_per_client", "data.partition.classes=3"),
        *("data.partition.clients=10", "cohort=0.5", *DIGITS),
    ),
    "digits, sizes of 30": (
        *("digits", f"data={OWN}:digits_by_size", "data.clients=30", "data.factor=0.85"),
        *("cohort=0.2", *DIGITS),
    ),
    "digits, inks": ("digits", f"data={OWN}:digits_by_ink", "cohort=0.5", *DIGITS),
    "heart, labels one": (
        *("heart", "data.partition=dirichlet_unbalanced", "data.partition.alpha=1"),
        *("data.partition.clients=5", "data.partition.min_size=12", *HEART),
    ),
    "heart, sizes of 5": (
        *("heart", f"data={OWN}:heart_by_size", "data.clients=5", "data.factor=0.4", *HEART),
    ),
    "heart, pulse": (
        *("heart", f"data={OWN}:heart_by_column", "data.column=5", "data.clients=4", *HEART),
    ),
    "heart, pressure": (
        *("heart", f"data={OWN}:heart_by_column", "data.column=2", "data.clients=8", *HEART),
    ),
}
# on which rules may be made
SEEN = {
    "digits, Dirichlet 0.3": ("digits", "partition.clients=20", "cohort=0.25", *DIGITS),
    "digits, shards, all take part": (
        *("digits", "data.partition=shards", "data.partition.clients=10", "cohort=1.0", *DIGITS),
        "rounds=12",
    ),
    "digits, Dirichlet of sizes": (
        *("digits", "data.partition=dirichlet_unbalanced", "data.partition.alpha=0.3"),
        *("data.partition.clients=10", "data.partition.min_size=4", "cohort=1.0", *DIGITS),
        "rounds=12",
    ),
    "heart, at random": ("heart", "data.partition=iid", "data.partition.clients=6", *HEART),
}
PLACES = FIRST | HELD_OUT | SEEN
TRIALS, MINUTES, SEEDS, FRESH = 4, 600, (51, 52), range(101, 109)
Line = dict[str, Any]


def cell_of(place: str) -> Cell:
    """A place as the referee's cell; a key that is there twice counts as it is there last."""
    source, *words = PLACES[place]
    return Cell(source, source, dict(word.split("=", 1) for word in words))


def words_of(cell: Cell) -> list[str]:
    """What the command is given: what it does not know goes."""
    return [f"{k}={v}" for k, v in cell.words.items() if k != "evaluate.clients"]


def folder_of(place: str, out: Path) -> Path:
    """Where its runs are."""
    return out / "runs" / re.sub(r"\W+", "-", place)


def tried(place: str, out: Path) -> tuple[Question, dict[Method, Tuned]]:
    """All methods with their settings, as the command searches them: it has the same runs."""
    cell, runs = cell_of(place), Runs(1)
    asked = advised(cell.source, words_of(cell), TRIALS, 9, folder_of(place, out))
    found = screened(asked, MINUTES, runs)
    assert found.screen is not None
    known = {m.name: m for m in (*asked.candidates, *asked.others)}
    methods = tuple(known[name] for name in (one["name"] for one in found.screen["tried"]))
    question = replace(asked.question, methods=methods, pairs=(), trials=found.screen["trials"])
    tuned = Tuner(question, runs).run(found.screen["splits"], all_of_them=True)
    return question, {method: one for (_, method), one in tuned.items()}


def values(trials: Iterable[Trial]) -> list[float | None]:
    """Run what is missing -> what is compared of each run; None: it failed."""
    left = [*trials]
    for _ in run_all(left, RunTrials()):
        pass
    done = [load_run(t.folder) if state_of(t.folder) == "finished" else None for t in left]
    return [None if run is None else value_of(run) for run in done]


def try_all(place: str, out: Path) -> Iterable[Line]:
    """A line for every method: its settings, and seeds that the command does not use."""
    question, tuned = tried(place, out)
    (cell,) = question.cells
    for method, one in tuned.items():
        found = values(question.trial(cell, method, one.choice, seed) for seed in SEEDS)
        more = {"validation": one.score, "settings": one.choice, "values": found}
        yield {"place": place, "method": method.name, **more}


def advice(place: str, out: Path) -> Iterable[Line]:
    """The line of the command itself."""
    cell, folder = cell_of(place), folder_of(place, out)
    plan = ["--trials", f"{TRIALS}", "--seeds", "9", "--minutes", f"{MINUTES}", "--quiet"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        cli.main(["advise", cell.source, *words_of(cell), *plan, "--out", str(folder)])
    found = json.loads((folder / "advice.json").read_text("utf-8"))
    kept = (
        "take",
        "decided",
        "why",
        "settings",
        "against",
        "alone",
        "methods",
        "skipped",
        "screen",
    )
    more = {key: found[key] for key in (*kept, "runs", "seconds", "looks")}
    yield {"place": place, "candidates": found["candidates"], **more}


def final(place: str, out: Path) -> Iterable[Line]:
    """A line for each of the three best, the advice and FedAvg."""
    every = {line["method"]: line for line in lines(out, "all") if line["place"] == place}
    whole = [one for one in every.values() if one.get("values") and None not in one["values"]]
    best = sorted(whole, key=lambda one: -mean(one["values"]))[:3]
    rows = [(f"best {n}", one["method"], one["settings"]) for n, one in enumerate(best, 1)]
    rows.append(("fedavg", "fedavg", every["fedavg"]["settings"]))
    (told,) = (line for line in lines(out, "advice") if line["place"] == place)
    rows.append(("advice", told["take"], told["settings"]))
    cell, folder = cell_of(place), folder_of(place, out)
    asked = advised(cell.source, words_of(cell), TRIALS, 9, folder)
    for role, name, settings in rows:
        method = Method(name, {"algorithm": name})
        found = values(asked.question.trial(cell, method, settings, seed) for seed in FRESH)
        yield {"place": place, "role": role, "method": name, "settings": settings, "values": found}


STEPS = {"advice": advice, "all": try_all, "final": final}


def lines(out: Path, step: str) -> list[Line]:
    """The lines of a step that there are."""
    file = out / f"{step}.jsonl"
    return [json.loads(t) for t in file.read_text("utf-8").splitlines()] if file.is_file() else []


def run(place: str, out: Path) -> None:
    """What is missing of a place. A step's lines are written when it is whole."""
    for step, make in STEPS.items():
        if any(line["place"] == place for line in lines(out, step)):
            continue
        made = [*make(place, out)]
        with (out / f"{step}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in made)
        print(f"{place}: {step}", flush=True)


def page(out: Path) -> str:
    """The table: per cent, points, and the interval of a difference at 95 %."""
    rows = [
        "| place | best of all, seeds 51, 52 | advice | best less advice | FedAvg |",
        "|:--|:--|:--|:--|--:|",
    ]
    for place in HELD_OUT:
        found = {line["role"]: line for line in lines(out, "final") if line["place"] == place}
        if not found:
            continue
        best, told = found["best 1"], found["advice"]
        gap = Paired.of([a - b for a, b in zip(best["values"], told["values"], strict=True)])
        assert gap is not None
        ends = f"{100 * gap.mean:+.2f} ({100 * gap.low:+.2f} to {100 * gap.high:+.2f})"
        cells = [place, *(_cell(found[role]) for role in ("best 1", "advice")), ends]
        cells.append(f"{100 * mean(found['fedavg']['values']):.2f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(line: Line) -> str:
    return f"{line['method']}, {100 * mean(line['values']):.2f}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("places", nargs="*")
    given = parser.parse_args()
    logging.getLogger("fedloom").setLevel(logging.ERROR)
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.what == "page":
        print(page(given.folder))
        return
    for place in given.places or HELD_OUT:
        run(place, given.folder)


if __name__ == "__main__":
    main()
