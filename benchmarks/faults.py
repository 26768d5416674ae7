"""A year of faults in a night: federations under faults that seeds decide, in virtual time.

    python benchmarks/faults.py --seeds 10000 [--first 0] [--out seeds.jsonl] [--record faults.json]

Ends with 1 at the first seed after which something does not hold: it prints the seed, what does not
hold, and the smallest schedule of faults with which it does not. `--first SEED --seeds 1` plays it
again. With --out every finished seed is a line of a file, and those that are there are not run
again. See docs/faults.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # its tensors are small
ROOT = Path(__file__).resolve().parents[1]
for place in ("tests", "packages/fedloom-flower/tests"):  # where the simulation is
    sys.path.insert(0, str(ROOT / place))

from federations.faults import kind_of, outcome, smallest  # noqa: E402
from fedloom import __version__  # noqa: E402

MEMORY = Path("/dev/shm")  # a disk that forgets nothing is not needed: each crash is simulated
Line = dict[str, Any]


def finished(out: Path | None) -> list[Line]:
    """The seeds of a file; a line that a kill cut is left out."""
    if out is None or not out.exists():
        return []
    whole = out.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def run(seeds: Iterable[int], out: Path | None, between: Callable[[], object]) -> list[Line]:
    """Run seeds until one fails -> what came of each. between: is called before every one."""
    lines = finished(out)
    if out is not None and lines:
        out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done, where = {line["seed"] for line in lines}, MEMORY if MEMORY.is_dir() else None
    for seed in (seed for seed in seeds if seed not in done):
        between()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=where) as folder:
            said, simulation = outcome(Path(folder) / "run", seed)
        line = {
            "seed": seed,
            "kind": kind_of(seed),
            "said": said,
            "faults": dict(Counter(name.split()[0] for name in simulation.faults.occurred)),
            "server crashes": simulation.crashes,
            "virtual": round(simulation.now),
            "seconds": round(time.monotonic() - began, 3),
        }
        lines.append(line)
        if said:
            return lines
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if seed % 100 == 99:
            print(f"seed {seed}", flush=True)
    return lines


def told(lines: list[Line]) -> Line:
    """The record of a run."""
    virtual, seconds = (sum(line[key] for line in lines) for key in ("virtual", "seconds"))
    faults = sum((Counter(line["faults"]) for line in lines), Counter[str]())
    return {
        "fedloom": __version__,
        "seeds": len(lines),
        "violations": sum(bool(line["said"]) for line in lines),
        "kinds": dict(sorted(Counter(line["kind"] for line in lines).items())),
        "faults": dict(sorted(faults.items())),
        "server crashes": sum(line["server crashes"] for line in lines),
        "virtual seconds": virtual,
        "seconds": round(seconds, 1),
        "times real time": round(virtual / seconds),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--out", type=Path, help="a file with a line for each finished seed")
    parser.add_argument("--record", type=Path, help="a file for the counts")
    args = parser.parse_args()
    lines = run(range(args.first, args.first + args.seeds), args.out, lambda: None)
    if lines and lines[-1]["said"]:
        seed = lines[-1]["seed"]
        print(f"seed {seed}: {lines[-1]['said']}")
        with tempfile.TemporaryDirectory() as folder:
            print("\n".join(["fails with", *smallest(Path(folder), seed)]))
        return 1
    print(json.dumps(told(lines), indent=1))
    if args.record:
        args.record.write_text(json.dumps(told(lines), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
