"""A year of faults in a night: federations under faults that seeds decide, in virtual time.

    python benchmarks/faults.py --seeds 10000 [--first 0] [--record faults.json]

Ends with 1 at the first seed after which something does not hold: it prints the seed, what does not
hold, and the smallest schedule of faults with which it does not. `--first SEED --seeds 1` plays it
again. See docs/faults.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # where the simulation is

from fedloom import __version__  # noqa: E402
from support.faults import outcome, smallest  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--record", type=Path, help="a file for the counts")
    args = parser.parse_args()
    began, virtual, came, crashes = time.monotonic(), 0.0, Counter[str](), 0
    for seed in range(args.first, args.first + args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            said, simulation = outcome(Path(folder) / "run", seed)
            if said:
                print(f"seed {seed}: {said}")
                print("\n".join(["fails with", *smallest(Path(folder) / "small", seed)]))
                return 1
        virtual, crashes = virtual + simulation.now, crashes + simulation.crashes
        came.update(name.split()[0] for name in simulation.faults.came)
        if seed % 100 == 99:
            print(f"{seed + 1 - args.first} seeds, {time.monotonic() - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    told = {
        "fedloom": __version__,
        "seeds": [args.first, args.first + args.seeds - 1],
        "violations": 0,
        "faults": dict(sorted(came.items())),
        "server crashes": crashes,
        "virtual seconds": round(virtual),
        "seconds": round(seconds, 1),
        "times real time": round(virtual / seconds),
    }
    print(json.dumps(told, indent=1))
    if args.record:
        args.record.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
