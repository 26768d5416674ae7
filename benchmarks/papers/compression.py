"""The compression runs: each finished one is a line of compression.jsonl.

    python benchmarks/papers/compression.py [--only WORD ...] [--list] [--engine workers:2]

A run that was stopped goes on from its newest checkpoint (below runs/compression); one that has its
line is not run again. Needs Fashion-MNIST and MNIST (FEDLOOM_DATA). About three hours on two
cores. CFedAvg on Fashion-MNIST in small (as in its Figures 4, 7 and 9, without p = 10), two curves
of its Figure 1 (its own network on MNIST, 30 rounds), FedACG with FedPAQ.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from evidence.command import as_command
from evidence.lines import RESULTS, append, made_by, read

from fedloom.config import from_run, resolve

LINES, RUNS = RESULTS / "compression.jsonl", Path("runs/compression")

# name of the way -> what is added on the command line
WAYS = {
    "uncompressed": ["compress=none"],
    "topk .9": ["compress=topk:0.1"],
    "topk .99": ["compress=topk:0.01"],
    "dropping .9": ["compress=dropping:0.1"],
    "dropping .99": ["compress=dropping:0.01"],
    "topk .99, no feedback": ["compress=topk:0.01", "compress.feedback=forget"],
    "dropping .99, no feedback": ["compress=dropping:0.01", "compress.feedback=forget"],
}


def plan() -> dict[str, tuple[str, list[str]]]:
    """{name: (recipe, changes)}, the cheapest first."""
    runs: dict[str, tuple[str, list[str]]] = {}
    for classes in (1, 2, 5):
        for way, changes in WAYS.items():
            more = [f"data.partition.classes={classes}", *changes]
            runs[f"fashion p={classes}, {way}"] = ("cfedavg_fashion", more)
    for algorithm in ("fedavg", "fedacg"):
        name = [f"algorithm={algorithm}"]
        runs[f"{algorithm}"] = ("fedacg_fedpaq", [*name, "compress=none"])
        for levels in (7, 127):
            runs[f"{algorithm}, fedpaq {levels}"] = (
                "fedacg_fedpaq",
                [*name, f"compress=fedpaq:{levels}"],
            )
    for way in ("uncompressed", "topk .99"):
        runs[f"mnist p=1, {way}"] = ("cfedavg_mnist", WAYS[way])
    return runs


def run(name: str, recipe: str, changes: list[str], engine: str) -> dict[str, Any]:
    """Run, or go on -> its line."""
    folder = RUNS / "".join(c if c.isalnum() else "-" for c in name)
    changes = [*changes, f"engine={engine}"]
    if (folder / "config.toml").is_file():
        result = from_run(folder, [f"engine={engine}"]).experiment().resume(folder, progress=True)
    else:
        result = resolve(recipe, changes).experiment().run(folder, progress=True)
    keys = ("last", "best", "last_ema", "rounds_to_target_text", "bytes_to_target")
    keys += ("rounds", "seed", "parameters", "bytes_up", "bytes_down", "seconds_per_round")
    curve = [
        {k: row[k] for k in CURVE if row.get(k) is not None}
        for row in result.history
        if row["round"] % 5 == 0 or row["round"] == 1
    ]
    return {
        "run": name,
        "recipe": recipe,
        "changes": changes,
        **{k: result.summary[k] for k in keys},
        "date": datetime.date.today().isoformat(),
        **made_by(),
        "curve": curve,
    }


CURVE = ("round", "test_accuracy", "train_loss", "delta_square", "residual_square")


def main() -> None:
    """Run what has no line yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="words that a run's name must have")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--engine", default="workers:2")
    options = parser.parse_args()
    done = {line["run"] for line in read(LINES)}
    chosen = {k: v for k, v in plan().items() if all(word in k for word in options.only)}
    if not chosen:
        parser.error(f"no run has {' '.join(options.only)} in its name; --list names them")
    for name, (recipe, changes) in chosen.items():
        if options.list or name in done:
            print(f"{'done' if name in done else 'open'}  {name}: {recipe} {' '.join(changes)}")
            continue
        line = run(name, recipe, changes, options.engine)
        append(LINES, line)
        print(f"done  {name}: {line['last']}")


if __name__ == "__main__":
    as_command(main)
