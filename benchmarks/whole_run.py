"""Where the time of a whole run goes beside its rounds.

    python benchmarks/whole_run.py [fashion_dirichlet rounds=12]

Does what `fedloom run` does, in this process, and prints the wall seconds of each part. Needs the
data set of the recipe; a second call finds it prepared. Last line: the share of evaluations, and
how long after torch's import the first round began.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedloom.engines.client_results import Asked, RangeResult

BEGAN = time.perf_counter()
parts: dict[str, float] = {}
last = BEGAN


def mark(name: str) -> None:
    """The part of this name ended now."""
    global last
    now = time.perf_counter()
    parts[name] = parts.get(name, 0.0) + now - last
    last = now


def main() -> None:
    """Print a table."""
    import torch  # noqa: F401

    mark("import torch")
    from fedloom.cli.printing import illustrate
    from fedloom.cli.run import _workers
    from fedloom.config import resolve
    from fedloom.core.ranks import ALONE
    from fedloom.engines.workers import Workers
    from fedloom.server.rounds import Loop

    words = sys.argv[1:] or ["fashion_dirichlet", "rounds=12"]
    config = resolve(words[0], words[1:])
    mark("import fedloom, settings")
    inside, before = {"evaluations": 0.0}, Loop.score

    def score(self: Loop, *arguments: Any, **options: Any) -> Any:
        a = time.perf_counter()
        try:
            return before(self, *arguments, **options)
        finally:
            inside["evaluations"] += time.perf_counter() - a

    first: list[float] = []
    trained = Workers.round

    def round(self: Workers, asked: Asked) -> RangeResult:
        first.append(time.perf_counter())
        return trained(self, asked)

    # the clock is put around two methods for this process alone: mypy allows no such assignment
    Loop.score, Workers.round = score, round  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as name:
        with _workers(config, ALONE):
            made = config.experiment()
            mark("data")
            result = made.run(Path(name) / "run")
            mark("run")
        illustrate(Path(name) / "run")
        mark("pictures, report")
    rounds = [row["seconds"] for row in result.history]
    parts["run, of which rounds"] = sum(rounds)
    parts["run, of which the first round"] = rounds[0]
    parts["run, of which evaluations"] = inside["evaluations"]
    for key, seconds in parts.items():
        print(f"{key:32} {seconds:8.2f} s")
    whole = sum(parts[k] for k in parts if "of which" not in k)
    share = 100 * inside["evaluations"] / whole
    begun = f"; first round {first[0] - BEGAN - parts['import torch']:.2f} s later" if first else ""
    print(f"whole {whole:.2f} s, evaluations {share:.1f} %, torch's import{begun}")


if __name__ == "__main__":
    main()
