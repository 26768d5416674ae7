"""fedloom as it comes, against a plain loop and the best engine chosen by hand.

    python benchmarks/default.py [--work W1 W2] [--repeats 9] [--settle 8] [--record F]

The works are those of rounds.py, and so is the way to measure: every contender is a process, all do
a round in turn. In the first turns, --settle of them, `auto` decides; they are not counted. The
table has the median of the ratios to the plain loop (two threads) in the same turn, and the largest
memory of the default.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from rounds import WORKS, measured

BY_HAND = {
    "W1": ("serial", "workers:2", "vectorised:50", "vectorised:100", "workers:2+vectorised:50"),
    "W2": ("serial", "workers:2", "vectorised:20"),
    "W3": ("serial", "workers:2", "serial+onednn", "workers:2+onednn"),
    "W4": ("serial", "workers:2"),
}


def ratio(row: dict[str, Any], base: dict[str, Any]) -> float:
    """The median ratio to the plain loop of the same turn."""
    return statistics.median(s / b for s, b in zip(row["s"], base["s"], strict=True))


def column(rows: list[dict[str, Any]]) -> list[str]:
    """What the table says of a work, whose rows are the plain loop, auto, and engines by hand."""
    base, auto, *others = rows
    best = min(others, key=lambda row: ratio(row, base))
    second = statistics.median(base["s"])
    return [
        f"1 ({second:.3g} s)",
        f"{ratio(auto, base):.2f} ({auto['said'].partition(',')[0]})",
        f"{ratio(best, base):.2f} ({best['name']})",
        f"{ratio(auto, base) / ratio(best, base):.2f}",
        f"{auto['gb']:.1f}",
    ]


def main() -> None:
    """Print the table, and add the lines to a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--settle", type=int, default=8, help="turns before those that count")
    parser.add_argument("--record", type=Path, help="a JSON line per contender is added to it")
    options = parser.parse_args()
    columns = {}
    for work in options.work:
        load = os.getloadavg()[0]
        rows = measured(work, ["plain", "auto", *BY_HAND[work]], options.repeats, options.settle)
        columns[work] = column(rows)
        print(f"{work}, load before {load:.1f}: {', '.join(columns[work])}", flush=True)
        if options.record:
            with open(options.record, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(row | {"load": load}) + "\n" for row in rows)
    names = ["plain loop, 2 threads", "as it comes", "best engine by hand"]
    names += ["as it comes / best", "peak GB as it comes"]
    print(f"\n| | {' | '.join(columns)} |\n|:--|{'--:|' * len(columns)}")
    for name, *cells in zip(names, *columns.values(), strict=True):
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
