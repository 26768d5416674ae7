"""`fedloom check`: the contract of a user's own parts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.core.own_parts import load, split
from fedloom.errors import ConfigError, did_you_mean

from .printing import as_json, folded, page_width

if TYPE_CHECKING:
    import types


@click.command("check", short_help="Check an algorithm, codec or another part of your own.")
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option(
    "--model", metavar="NAME", help="Try it on this model of the file: a module or a function."
)
@click.option(
    "--data", metavar="NAME", help="And on these data of it: a FederatedData or a function."
)
@click.option("--json", "program", is_flag=True, help="For programs (docs/schemas/check.json).")
def check_command(target: str, model: str | None, data: str | None, program: bool) -> None:
    """Check an algorithm, objective, sub-model scheme, codec, aggregation or stage of your own.

    \b
    fedloom check my_algorithm.py            every part that the file defines
    fedloom check my_algorithm.py:Recall     one of them: a class, or an instance
    fedloom check my_algorithm.py --model net --data clients

    Tries the rules for parts on a small problem: arguments stay as they are, nothing is kept on the
    part, all engines agree, a run that is stopped goes on, the counted bytes are those sent. It
    explains what does not hold. The exit code is 1 if anything failed.
    """
    from fedloom.checks import check, parts_of

    file, name = split(target) if ":" in target else (target, "")
    path = Path(file)
    reports = []
    module = load(path)
    problem = {"model": _object_named(module, model), "data": _object_named(module, data)}
    if problem["data"] is not None and not hasattr(problem["data"], "clients"):
        problem["data"] = problem["data"]()
    for label, part in parts_of(module, name).items():
        reports.append(check(part, name=label, **problem))
        for line in [] if program else [*str(reports[-1]).splitlines(), ""]:
            click.echo(folded(line, page_width()))
    if program:
        click.echo(as_json({"parts": [asdict(r) | {"passed": r.passed} for r in reports]}))
    if failed := sum(len(report.failures) for report in reports):
        count = "one check" if failed == 1 else f"{failed} checks"
        raise click.ClickException(f"{count} of '{path}' failed")


def _object_named(module: types.ModuleType, name: str | None) -> Any:
    """The object of a name in the file; None if no name is given. Raises ConfigError."""
    if name is None:
        return None
    if not hasattr(module, name):
        raise ConfigError(
            f"'{module.__file__}' has no '{name}'; {did_you_mean(name, vars(module))}"
        )
    return getattr(module, name)
