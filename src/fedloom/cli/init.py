"""`fedloom init`: a folder with a commented starter that runs at once."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from shlex import quote

import click

from fedloom.errors import ConfigError

from .printing import PATH

_PYTHON = ".py.txt"  # how the scripts are called in the package, where they are no modules


@click.command("init", short_help="Write a starter: settings, data, a method of your own.")
@click.argument("folder", type=PATH)
def init_command(folder: Path) -> None:
    """Write a starter into a new folder: commented settings, data and a method of your own.

    \b
    fedloom init study
    cd study
    fedloom run config.toml
    python train.py
    """
    from fedloom.data.published.heart import COLUMNS, heart_files

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists and is not empty; give a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(files("fedloom.cli").joinpath("starter").iterdir(), key=str):
            name = source.name
            if name.endswith(_PYTHON):
                name = name.removesuffix(".txt")
            (folder / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "hospitals").mkdir()
        for file in heart_files():
            rows = ",".join(COLUMNS) + "\n" + file.read_text(encoding="utf-8")
            (folder / "hospitals" / f"{file.stem}.csv").write_text(rows, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be written: {error.strerror}") from None
    click.echo(f"a starter is in {folder}; try:")
    for command in (f"cd {quote(str(folder))}", "fedloom run config.toml", "python train.py"):
        click.echo(f"  {command}")
