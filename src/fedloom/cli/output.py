"""What several commands print and write: a run's result, its pictures and its report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedloom.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from fedloom.result import Result

__all__ = ["expand", "free_folder", "illustrate", "run_folder", "summarise", "table"]


def free_folder(wanted: Path) -> Path:
    """This folder, or with -2, -3, ... behind its name the first that does not exist."""
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def run_folder(name: str, algorithm: str, seed: int) -> Path:
    """Where a run goes if nobody says so."""
    words = [re.sub(r"[^\w.-]+", "-", word).strip("-.") for word in (name, algorithm)]
    return free_folder(Path("runs") / "-".join([*filter(None, words), f"seed{seed}"]))


def summarise(result: Result) -> str:
    """A finished run in a few aligned lines."""
    from fedloom.report import human_bytes, human_seconds
    from fedloom.report.tables import human_target, human_value

    s = result.summary
    metric, unit = s["metric"]["name"], s["metric"]["unit"]
    lines = [("rounds", f"{s['rounds']}, {human_seconds(s['seconds_per_round'])} each")]
    if s["last"]:
        last = f"{human_value(s['last']['value'], unit)} last"
        best = f"{human_value(s['best']['value'], unit)} best (round {s['best']['round']})"
        average = f"{human_value(s['last_ema'], unit)} moving average"
        lines.append((metric, ", ".join([last, best, *([average] if s["last_ema"] else [])])))
    if s["target"] is not None:
        cost = human_bytes(s["bytes_to_target"])
        reached = f" ({cost}, {human_seconds(s['seconds_to_target'])})"
        goal = f"to {human_target(s['target'], unit)}"
        text = s["rounds_to_target_text"]
        lines.append((goal, f"{text} rounds{reached if s['rounds_to_target'] else ''}"))
    traffic = f"{human_bytes(s['bytes_down'])} down, {human_bytes(s['bytes_up'])} up"
    lines += [("traffic", traffic), ("time", f"{human_seconds(s['seconds'])} of training")]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in lines)


def illustrate(run: Path) -> Path | None:
    """Save a run's pictures and its report in its folder -> the report; None without the
    libraries.
    """
    from fedloom.report import load_run, save_curves, write_report

    try:
        save_curves(load_run(run), run / "pictures")
        return write_report(run, run / "report.html")
    except ConfigError as error:  # the report's libraries are not installed
        click.echo(f"no pictures, no report: {error}", err=True)
        return None


def expand(paths: Iterable[str]) -> list[Path]:
    """Run directories; a folder of runs stands for all of them. Raises CheckpointError."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [] if _is_run(path) else sorted(p.parent for p in path.glob("*/config.toml"))
        if not inside and not _is_run(path):
            why = (
                "has no config.toml, nor has a folder in it" if path.is_dir() else "does not exist"
            )
            raise CheckpointError(
                f"'{path}' {why}; give folders that `fedloom run` wrote (see `fedloom list runs`)"
            )
        found += inside or [path]
    return list(dict.fromkeys(found))


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns under headings; the last column is left as it is."""
    rows = [list(heads), *map(list, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    out = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        out.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(out)
