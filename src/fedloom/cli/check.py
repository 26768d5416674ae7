"""`fedloom check`: the contract of a user's own parts."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import types

    from fedloom.checks import Report


_MODULE = "fedloom_checked"  # the name of a checked file's module while it is loaded
_WORDS = {True: "ok", False: "FAILED", None: "-"}
_STYLES = {True: "green", False: "bold red", None: "dim"}


@click.command("check", short_help="Check an algorithm, codec or another part of your own.")
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option(
    "--model", metavar="NAME", help="Try it on this model of the file: a module or a function."
)
@click.option(
    "--data", metavar="NAME", help="And on these data of it: a FederatedData or a function."
)
def check_command(target: str, model: str | None, data: str | None) -> None:
    """Check an algorithm, objective, sub-model scheme, codec or aggregation of your own.

    \b
    fedloom check my_algorithm.py            every part that the file defines
    fedloom check my_algorithm.py:Recall     one of them: a class, or an instance
    fedloom check my_algorithm.py --model net --data clients

    Runs the contract that every part of fedloom keeps on a small problem: arguments stay as they
    are, nothing is kept on the part, all engines agree, a run that is stopped goes on, the bill is
    what is sent. Explains what does not hold. Leaves with 1 if anything failed.
    """
    from fedloom.checks import check

    path, name = _split(target)
    failed = 0
    with _loaded(path) as module:
        own = {"model": _own(module, model), "data": _own(module, data)}
        if own["data"] is not None and not hasattr(own["data"], "clients"):
            own["data"] = own["data"]()
        for label, part in _parts(module, name).items():
            report = check(part, name=label, **own)
            _print(report, path)
            failed += len(report.failures)
    if failed:
        what = "one check" if failed == 1 else f"{failed} checks"
        raise click.ClickException(f"{what} of '{path}' failed")


def _parts(module: types.ModuleType, name: str) -> dict[str, Any]:
    from fedloom.checks import parts_of

    return parts_of(module, name)


def _own(module: types.ModuleType, name: str | None) -> Any:
    """The object of a name in the file; None if no name is given. Raises ConfigError."""
    if name is None:
        return None
    if not hasattr(module, name):
        raise ConfigError(
            f"'{module.__file__}' has no '{name}'; {did_you_mean(name, vars(module))}"
        )
    return getattr(module, name)


def _split(target: str) -> tuple[Path, str]:
    """FILE.py[:NAME] -> file, name ("" for all). Raises ConfigError."""
    path, name = Path(target), ""
    if not path.is_file():
        before, _, name = target.rpartition(":")
        path = Path(before or target)
        name = name if before else ""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"'{path}' {what}; give a Python file, as FILE.py or FILE.py:Name")
    if path.suffix != ".py":
        raise ConfigError(f"'{path}' is no Python file; its name must end in .py")
    return path, name


@contextmanager
def _loaded(path: Path) -> Iterator[types.ModuleType]:
    """The module of a file, run as a script beside its neighbours would be.

    Worker processes get its classes by value, because the module has no importable name. Raises
    ConfigError if it cannot be imported.
    """
    folder = str(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(_MODULE, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    sys.modules[_MODULE] = module  # dataclasses look it up there
    try:
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ConfigError(_unimportable(path, error)) from error
        finally:
            del sys.modules[_MODULE]
        yield module
    finally:
        sys.path.remove(folder)


def _unimportable(path: Path, error: BaseException) -> str:
    """One line on why a file could not be imported, and where."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(path.resolve()):
            line = frame.lineno
    place = f", line {line}" if line else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = type(error).__name__
    return f"'{path}' cannot be imported{place}: {kind}: {text}; correct it, then check it again"


def _print(report: Report, path: Path) -> None:
    """A table of the checks, and a paragraph for each that failed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"{report.part} ({report.kind}, {path.name})", no_wrap=True)
    table.add_column("result")
    table.add_column("seconds", justify="right")
    table.add_column("")
    for o in report.outcomes:
        remark = o.why if o.passed is None else ""
        word = Text(_WORDS[o.passed], style=_STYLES[o.passed])
        table.add_row(Text(o.name), word, f"{o.seconds:.2f}", Text(remark, style="dim"))
    console.print(table)
    for o in report.failures:
        click.echo(f"\n{o.name}")
        width = min(console.width, 100)
        for line in textwrap.wrap(o.why, width, initial_indent="  ", subsequent_indent="  "):
            click.echo(line)
    click.echo()
