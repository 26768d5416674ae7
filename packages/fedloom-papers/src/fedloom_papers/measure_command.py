"""`fedloom paper measure`: curvature, loss surface, divergence, CKA and more of a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fedloom._version import __version__
from fedloom.cli.printing import table
from fedloom.errors import ConfigError
from fedloom.storage.atomic import write_out


@click.command("measure", short_help="Measure a run's model: curvature, loss surface.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("name", metavar="MEASURE")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE ...]")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file.  [default: RUN/measures/MEASURE.json]"
)
def measure_command(run: Path, name: str, settings: tuple[str, ...], out: Path | None) -> None:
    """Measure a run at its newest checkpoint, and write the numbers to a JSON file beside it.

    \b
    fedloom paper measure runs/a hessian examples=2000    top eigenvalue and trace
    fedloom paper measure runs/a surface points=21        the loss around it
    fedloom paper measure runs/a divergence               of next local models
    fedloom paper measure runs/a cka layers='["layer*"]'  their layers, by pair

    Settings: `fedloom show hessian`. `fedloom report` draws what is there. The run stays as it is.
    """
    from fedloom.config import from_run, parse_override
    from fedloom.core.validation import Origin, check, live
    from fedloom.measures import MEASURES
    from fedloom.report import load_run

    make, loaded = MEASURES.entry(name), load_run(run)
    overrides = dict(map(parse_override, settings))
    origin = Origin("command line", frozenset(overrides))
    all_settings = check(make, overrides, "", f"measure '{name}'", origin, skip=("every",))
    if loaded.config.get("source") == "python":
        raise ConfigError(
            f"'{run}' was started from Python, which made its model and data; measure it there "
            f"with {make.__name__}().of(Experiment(...).open('{run}'))"
        )
    # as its newest checkpoint left it
    restored = from_run(loaded.path, ["device=auto"], own=True).experiment().open(loaded.path)
    result = make(**live(all_settings)).of(restored)
    out = out or run / "measures" / f"{name}.json"
    record = {"measure": name, "fedloom": __version__, "settings": all_settings, **result}
    write_out(out, json.dumps(record) + "\n")
    click.echo(_number_table(result))
    click.echo(f"  numbers in {out}")


def _number_table(result: dict[str, Any]) -> str:
    """The numbers of a result, without its long lists."""
    rows: list[tuple[str, str]] = []
    for key, value in result.items():
        if isinstance(value, dict) and all(isinstance(v, float | None) for v in value.values()):
            rows += [(f"{key} {k}", _number(v)) for k, v in list(value.items())[:40]]
        elif isinstance(value, int | float | str):
            rows.append((key.replace("_", " "), _number(value)))
    return table(rows)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
