"""The papers' methods on Fashion-MNIST: tune, then run three seeds; each finished run is a line of
zoo.jsonl.

    python benchmarks/papers/zoo.py [--only WORD ...] [--list] [--share 1/2] [--part NAME]
        [--seeds 3]

A method's main setting is tried at three values around its paper's, at one seed, over 150 rounds,
on a tenth of the training data that is held out; the best is then run over 300 rounds with all
data. All train with the rate that is the best of three for FedAvg, 0.2, except those whose main
setting is their rate. What has its line is not run again, on any machine; a run that was stopped
goes on from its newest checkpoint below runs/zoo. --share 1/2 and --share 2/2 split the methods
between two processes. --part two is another partition, two labels per client, with the settings
chosen on the first. --part higher tunes and runs every method at FedAvg's best rate, 0.4, whose
rate was not tuned. Needs Fashion-MNIST (FEDLOOM_DATA). Each part takes about two hours on two
cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evidence.command import as_command
from evidence.lines import RESULTS, append, made_by, read

from fedloom.config import resolve
from fedloom.recipes import RECIPES
from fedloom.storage.identity import digest
from fedloom.sweep import Trial, plan, run_trial

LINES, RUNS = RESULTS / "zoo.jsonl", Path("runs/zoo")
RECIPE, TRIED = "zoo_fashion_mnist", 150  # rounds of a trial
WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Method:
    """What the line of a method needs: changes of the recipe, and the setting to try."""

    changes: tuple[str, ...]
    tried: str


def _methods(words: Mapping[str, str]) -> dict[str, Method]:
    split = {name: text.split() for name, text in words.items()}
    return {name: Method(tuple(changes), tried) for name, (*changes, tried) in split.items()}


METHODS = _methods(WORDS["methods"])
# FedAvg's best rate is above the common one, so every method is tuned once more at that rate, or
# over higher ones; and FedAvg with FedCM's and MoFedSAM's other decay
HIGHER = {
    name: replace(method, changes=(*method.changes, "local.lr=0.4"))
    for name, method in METHODS.items()
    if not method.tried.startswith("local.lr=")
} | _methods(WORDS["higher"])


@dataclass(frozen=True)
class Part:
    """A federation that methods are compared on. tuned: the part whose choices are taken."""

    changes: tuple[str, ...] = ()
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    tuned: str = "dirichlet"


TWO = ("data.partition=classes_per_client", "data.partition.classes=2")
PARTS: dict[str, Part] = {
    "dirichlet": Part(),
    "two": Part(changes=TWO),
    "higher": Part(methods=HIGHER, tuned="higher"),
}


def typed(name: str, part: str, stage: str, choice: Mapping[str, str], seed: int) -> list[str]:
    """The changes of the recipe that a run of a method consists of."""
    of = PARTS[part]
    own = [f"rounds={TRIED}", "evaluate.validation=0.1"] if stage == "tuning" else []
    chosen = [f"{key}={value}" for key, value in choice.items()]
    return [*of.methods[name].changes, *of.changes, *own, *chosen, f"seed={seed}"]


def settings_hash(name: str, part: str, stage: str, choice: Mapping[str, str], seed: int) -> str:
    """A hash of the recipe and of what is changed: an option that fedloom gets later, with a
    default, leaves it as it is. Recipes named an engine once, which decides no result.
    """
    recipe = RECIPES[RECIPE]() | {"engine": "workers"}
    return digest([recipe, sorted(typed(name, part, stage, choice, seed))])


def record(method: str, part: str, stage: str, trial: Trial) -> dict[str, Any]:
    """The line of a run: the one that there is, or run it, or go on with it."""
    key = {"method": method, "part": part, "stage": stage}
    key |= {"hash": settings_hash(method, part, stage, trial.choice, trial.seed)}
    for line in read(LINES):
        if all(line[k] == v for k, v in key.items()):
            return line
    state = run_trial(trial, progress=True)
    line = key | {"choice": dict(trial.choice), "seed": trial.seed, "state": state}
    if state == "failed":
        line["why"] = (trial.folder / "failure.txt").read_text(encoding="utf-8").strip()
    else:
        line |= _numbers(trial.folder)
    line |= {"date": datetime.date.today().isoformat(), **made_by()}
    append(LINES, line)
    print(f"done  {method}, {part}, {stage}, seed {trial.seed}, {dict(trial.choice)}", flush=True)
    return line


KEEP = ("last", "best", "last_ema", "last_validation", "rounds_to_target", "bytes_to_target")
ALSO = ("rounds", "parameters", "bytes_up", "bytes_down", "seconds_per_round")


def _numbers(folder: Path) -> dict[str, Any]:
    """A finished run's results, and its curve."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = map(json.loads, (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    curve = [[r["round"], r["test_accuracy"]] for r in rows if r.get("test_accuracy") is not None]
    return {k: summary.get(k) for k in (*KEEP, *ALSO)} | {"curve": curve}


def tuned(name: str, part: str) -> str | None:
    """Try the values -> the best on the held-out data as key=value; None if all failed."""
    method = PARTS[part].methods[name]
    if "," not in method.tried:
        return method.tried
    changes = [*method.changes, f"rounds={TRIED}", "engine=serial", method.tried]
    folder = RUNS / ("tuning" if part == "dirichlet" else f"tuning-{part}") / _folder(name)
    found: list[tuple[float, str]] = []
    for trial in plan(RECIPE, changes, out=folder):
        line = record(name, part, "tuning", trial)
        if line["state"] == "finished":
            ((key, value),) = trial.choice.items()
            found.append((line["last_validation"], f"{key}={value}"))
    return max(found)[1] if found else None


def final(name: str, part: str, best: str, seed: int) -> Trial:
    """A run of a method with the chosen value, on all training data."""
    key, _, value = best.partition("=")
    changes = [*typed(name, part, "final", {key: value}, seed), "engine=serial"]
    code = settings_hash(name, part, "final", {key: value}, seed)
    folder = RUNS / part / _folder(name) / f"seed{seed}-{code}"
    return Trial({key: value}, seed, resolve(RECIPE, changes), folder)


def _folder(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def main() -> None:
    """Run what has no line yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of methods")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--share", default="1/1", help="1/2: the first of two processes")
    parser.add_argument("--part", choices=list(PARTS), default="dirichlet")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    share, shares = map(int, options.share.split("/"))
    part = PARTS[options.part]
    unknown = [n for n in options.only if n not in part.methods]
    if unknown:
        parser.error(f"no method {unknown[0]!r} in this part; there are {', '.join(part.methods)}")
    names = [n for n in part.methods if not options.only or n in options.only][share - 1 :: shares]
    if options.list:
        told(names, options.part)
        return
    for seed in range(options.seeds):  # all methods with one seed first, so that a stop leaves a
        for name in names:  # page with all of them
            best = tuned(name, part.tuned)
            if best is not None:
                trial = final(name, options.part, best, seed)
                record(name, options.part, "final", trial)


def told(names: list[str], part: str) -> None:
    """Say what there is."""
    for name in names:
        there = [(x["part"], x["stage"]) for x in read(LINES) if x["method"] == name]
        tuning = there.count((PARTS[part].tuned, "tuning"))
        print(f"{name}: {tuning} of tuning, {there.count((part, 'final'))} of {part}")


if __name__ == "__main__":
    as_command(main)
