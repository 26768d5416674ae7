"""A run to be killed: `crash_script.py FOLDER ENGINE` goes on if there is something to go
on from. Says "round N" on stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedloom import Evaluation, Experiment, Local, Saving
from fedloom.algorithms import Scaffold
from fedloom.schedules import Exponential
from tiny import clusters, mlp

ROUNDS = 80


def experiment(engine: str = "serial", rounds: int = ROUNDS, **changes: Any) -> Experiment:
    """SCAFFOLD with client memory, a checkpoint every other round."""
    settings: dict[str, Any] = {
        "algorithm": Scaffold(),
        "model": mlp(),
        "data": clusters(),
        "rounds": rounds,
        "cohort": 4,
        "local": Local(epochs=1, batch=4, lr=0.05, schedule=Exponential(decay=0.99)),
        "seed": 5,
        "engine": engine,
        "device": "cpu",
        "evaluation": Evaluation(every=10),
        "saving": Saving(rounds=2, seconds=None),
        "resident_bytes": 2000,
    }
    return Experiment(**(settings | changes))


def main() -> None:
    folder, engine = Path(sys.argv[1]), sys.argv[2]
    say = lambda row: print("round", row["round"], flush=True)
    exp = experiment(engine, on_round=[say])
    if (folder / "fingerprint.json").exists():
        exp.resume(folder)
    else:
        exp.run(folder)


if __name__ == "__main__":
    main()
