"""README's two pictures, docs/pictures/demo.png and docs/pictures/measured_and_published.png.

    fedloom demo
    python benchmarks/papers/front_page.py [--demo runs/demo]

The first is the demo's own. The second shows every table in whose protocol each row has a line for
three seeds: what the paper prints, and what was measured here.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from study import LINES, RESULTS

from fedloom.papers import ENTRIES, Protocol
from fedloom.papers.board import shown
from fedloom.papers.lines import NAME, read
from fedloom.papers.table import Number, Table
from fedloom.report.style import Picture, named, numbered, panels, plain

PICTURES = RESULTS.parent / "pictures"
SEEDS = 3


def accuracies(found: Table, protocol: Protocol) -> list[Number]:
    """The number of every row that its claims are about, if all rows that the paper prints have it
    for three seeds, as an accuracy.
    """
    measure = found.entry.headline(protocol)
    own = [
        number
        for number in found.numbers
        if number.wanted.protocol is protocol
        and (number.wanted.metric, number.wanted.at) == measure
        and number.wanted.cell is not None
        and number.wanted.cell.value is not None
    ]
    here = [number for number in own if len(number.values) >= SEEDS]
    return here if "acc" in measure[0] and len(here) >= max(2, len(own) - 1) else []


def measured_and_published() -> Picture:
    """A panel for each protocol of each table that is there."""
    places = [
        (f"{one.found.entry.id}: {protocol.name}", numbers)
        for one in shown(read(LINES / NAME), LINES, ENTRIES.values())
        for protocol in one.found.entry.protocols
        if (numbers := accuracies(one.found, protocol))
    ]
    made, axes = panels(len(places), width=4.2, height=2.7, across=2)
    for axis, (name, numbers) in zip(axes, places, strict=True):
        for place, number in enumerate(numbers):
            factor = 100.0 if "fraction" in number.wanted.metric else 1.0
            assert number.wanted.cell is not None and number.wanted.cell.value is not None
            printed, mean = factor * number.wanted.cell.value, factor * (number.mean or 0.0)
            axis.plot([printed, mean], [place, place], color="#bbbbbb", linewidth=1)
            axis.plot(printed, place, "o", color=numbered(1).colour, fillstyle="none")
            spread = factor * (number.sd or 0.0)
            axis.errorbar(mean, place, xerr=spread, fmt="o", color=numbered(0).colour, capsize=2)
        plain(axis, "test accuracy (%)", "")
        axis.set_yticks(range(len(numbers)), [n.wanted.row.name for n in numbers])
        axis.invert_yaxis()
        named(axis, name)
    made.suptitle("hollow: published; filled: measured here, three seeds", fontsize=9.5)
    title = "Published beside measured"
    return Picture("measured_and_published", title, f"{title}: {len(places)} protocol(s)", made)


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="folder of a demo")
    given = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(given.demo / "pictures" / "accuracy_by_round.png", PICTURES / "demo.png")
    picture = measured_and_published()
    (PICTURES / f"{picture.name}.png").write_bytes(picture.png)
    print(f"{PICTURES}: demo.png, {picture.name}.png")


if __name__ == "__main__":
    main()
