"""The evidence for sub-models: run what is missing, and append every finished run to
submodels.jsonl.

    python benchmarks/papers/submodels.py [--runs runs/submodels] [--part main] [--seeds 3] [--list]
        [--engine serial]

Needs Fashion-MNIST (`fedloom data get fashion_mnist`). Stop it at any time: the same command goes
on where it was, in the middle of a run too. Parts: main (HeteroFL, FedRolex, ScaleFL, FIARSE and
the ablation of re-masking and bias factor at four sizes), five (five sizes, with FjORD) and cifar
(a small CNN on CIFAR-10), the last two with one seed. What follows the options changes settings:

    python benchmarks/papers/submodels.py --part five --seeds 1 --engine workers:2 rounds=50

The engine is no part of what identifies a run: serial and workers give the same bits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evidence.command import as_command
from evidence.lines import RESULTS, append, made_by, read

from fedloom.config import Config, resolve
from fedloom.storage.identity import digest
from fedloom.storage.run_directory import RunDirectory

LOG = RESULTS / "submodels.jsonl"
SCALEFL = ["submodel=scalefl", "submodel.least=0.4", "objective=self_distillation"]
RIVALS: dict[str, list[str]] = {
    "HeteroFL": ["submodel=heterofl"],
    "FedRolex": ["submodel=fedrolex"],
    "ScaleFL": [*SCALEFL, "model.exits=true"],
    "FIARSE": ["submodel=fiarse"],
}
ABLATION: dict[str, list[str]] = {
    "re-masking alone": ["submodel=fiarse", "submodel.biased=false"],
    "factor alone": ["submodel=fiarse", "submodel.dynamic=false"],
    "Pruning-Greedy": ["submodel=greedy"],
}
FJORD = {"FjORD": ["submodel=fjord", "objective=ordered_distillation"]}
SIZES = "submodel.capacities=[0.04, 0.16, 0.36, 0.64, 1.0]"
CIFAR = [
    "data=cifar10",
    "data.partition=dirichlet_interleaved",
    "data.partition.alpha=0.3",
    "data.partition.clients=100",
    "data.tests=matched",
    "data.crop=4",
    "data.flip=true",
    "model=cnn_fafed_cifar",
    "evaluate.target=0.5",
]
WITHOUT_EXITS = {k: v for k, v in RIVALS.items() if k != "ScaleFL"}  # that network has none
PARTS: dict[str, tuple[dict[str, list[str]], list[str]]] = {
    "main": (RIVALS | ABLATION, []),
    "five": (RIVALS | FJORD, [SIZES]),
    "cifar": (WITHOUT_EXITS | ABLATION | FJORD, CIFAR),
}


def wanted(
    part: str, seeds: int, changes: list[str], engine: str
) -> Iterator[tuple[dict[str, Any], Config]]:
    """What identifies a run, and its configuration; seed by seed, so that a stop leaves whole
    tables.
    """
    methods, common = PARTS[part]
    for seed in range(seeds):
        for method, own in methods.items():
            overrides = [*common, *own, *changes, f"seed={seed}"]
            about = {"part": part, "method": method, "seed": seed, "settings": overrides}
            yield about, resolve("fiarse_fashion", [*overrides, f"engine={engine}"])


def kept(curve: dict[int, float]) -> dict[int, float]:
    """What a line keeps of a curve: round 1 and every fifth, six decimals. With every round's
    exploration a line has 63 KB.
    """
    return {t: round(v, 6) for t, v in curve.items() if int(t) == 1 or int(t) % 5 == 0}


def go(about: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Run, or go on with what is in the folder -> the line."""
    experiment = config.experiment()
    begun = (folder / "config.toml").exists()
    result = experiment.resume(folder, True) if begun else experiment.run(folder, True)
    keep = ("rounds", "parameters", "last", "best", "bytes_up", "bytes_down", "seconds", "sizes")
    every = [k for k in result.history[-1] if "@" in k or k == "untrained"]
    curves = {k: kept(dict(zip(*result.curve(k), strict=True))) for k in every}
    clients = json.loads((RunDirectory(folder).path / "clients.json").read_text("utf-8"))
    own = {"clients": clients["submodel"], "curves": curves}
    return about | {k: result.summary[k] for k in keep} | own | made_by()


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/submodels"))
    parser.add_argument("--part", choices=list(PARTS), default="main")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--engine", default="serial")
    parser.add_argument("--list", action="store_true", help="say what is done and what is missing")
    parser.add_argument("changes", nargs="*", metavar="key=value")
    options = parser.parse_args()
    seeds = options.seeds or (3 if options.part == "main" else 1)
    keys = ("part", "method", "seed", "settings")
    for about, config in wanted(options.part, seeds, options.changes, options.engine):
        done = any(all(line.get(k) == about[k] for k in keys) for line in read(LOG))
        name = f"{options.part}-{about['method'].replace(' ', '-')}-{digest(about['settings'])}"
        if options.list or done:
            print(f"{name}, seed {about['seed']}: {'done' if done else 'missing'}")
            continue
        append(LOG, go(about, config, options.runs / name))


if __name__ == "__main__":
    as_command(main)
