"""The options of commands that draw pictures for a paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from fedloom.errors import ConfigError

_KINDS = ("png", "svg", "pdf")
_COLUMN = 3.4  # inches; a page has two of them


class Figures(NamedTuple):
    """Where pictures go, in which formats, and how wide a column is (inches)."""

    folder: Path
    kinds: list[str]
    column: float


def figure_options(drawn: str) -> Callable[[Any], Any]:
    """The options --figures, --format and --column. drawn: the help of the first."""
    options = [
        click.option("--figures", metavar="FOLDER", help=drawn),
        click.option(
            "--format",
            "kinds",
            metavar="KINDS",
            help="Of --figures: png, svg, pdf.  [default: pdf]",
        ),
        click.option(
            "--column", type=float, help="Of --figures: a column in inches.  [default: 3.4]"
        ),
    ]

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def wanted(folder: str | None, kinds: str | None, column: float | None) -> Figures | None:
    """What these options ask for; None for no pictures. Raises ConfigError."""
    formats = [word.strip().lower() for word in (kinds or "pdf").split(",")]
    for word in formats:
        if word not in _KINDS:
            known = ", ".join(_KINDS)
            raise ConfigError(f"--format must be of {known}, got '{word}'; several as pdf,svg")
    if column is not None and not 1 <= column <= 20:
        raise ConfigError(f"--column must be in [1, 20] inches, got {column:g}")
    if folder is not None:
        return Figures(Path(folder), list(dict.fromkeys(formats)), column or _COLUMN)
    if kinds is not None or column is not None:
        raise ConfigError("--format and --column are of --figures; give its folder too")
    return None
