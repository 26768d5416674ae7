"""`fedloom matrix`: which parts work together."""

from __future__ import annotations

from pathlib import Path

import click

from fedloom.errors import ConfigError


@click.command("matrix", short_help="Say which algorithms go with which other parts.")
@click.argument("axis", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Write the whole page, as Markdown.")
def matrix_command(axis: str | None, out: Path | None) -> None:
    """Say which algorithms go with which other parts, and why the rest is refused.

    AXIS: objective, server, clock, local, submodel, compress, submodel_compress, aggregation,
    submodel_aggregation or compress_aggregation; without one, all.
    Asked of the parts themselves, without training.
    """
    from fedloom.cli.compatibility import AXES, as_markdown, cells, notes, table
    from fedloom.storage.atomic import write_out

    from .printing import table as aligned

    if out is not None:
        if axis is not None:
            raise ConfigError(f"the page has every axis; drop '{axis}' or --out {out}")
        click.echo(str(write_out(out, as_markdown())))
        return
    for name in AXES if axis is None else [axis]:
        found = table(name)
        lines = [f"{found.axis.title} ({name})", aligned([*cells(found)])]
        lines += [f"  {number}. {why}" for why, number in notes(found).items()]
        click.echo("\n".join(lines) + ("\n" if axis is None else ""))
