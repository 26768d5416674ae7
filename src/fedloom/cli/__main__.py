"""The command `fedloom`: its subcommands, and errors as one line.

Only click is imported here; a command is imported when it is asked for, and imports what it needs
when it runs, so that --help is fast.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from fedloom._version import __version__
from fedloom.core.commit import own_commit
from fedloom.core.extras import added, install
from fedloom.core.parsing import shortened
from fedloom.errors import CompositionError, ConfigError, DataError, FedloomError, unknown

from .printing import is_first_rank

USAGE, FAILURE = 2, 1
FIRST = ("demo", "run", "compare", "report", "list")  # what a beginner needs, in this order
MORE = ("advise", "check", "data", "describe", "export", "init", "referee", "replay")
COMMANDS = (*FIRST, *MORE, "show", "sweep")  # in modules of their names, but for these
_MODULES = {
    **dict.fromkeys(("compare", "report"), "compare_and_report"),
    **dict.fromkeys(("list", "show"), "list_and_show"),
    **dict.fromkeys(("referee", "advise"), "referee"),
}
_USAGE = (ConfigError, DataError, CompositionError)
_ADDED = {"deploy": "flower", "paper": "papers"}  # commands of other packages, and their extras


class Commands(click.Group):
    """A group whose errors are one line on stderr: exit code 2 for bad input, 1 for a failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, those of other installed packages too."""
        return sorted({*COMMANDS, *added("fedloom.commands")})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command, loaded when asked for. Raises ConfigError where its package is missing."""
        command: click.Command
        if name in COMMANDS:
            module = importlib.import_module(f".{_MODULES.get(name, name)}", __package__)
            command = getattr(module, f"{name}_command")
            return command
        if (point := added("fedloom.commands").get(name)) is not None:
            command = point.load()
            return command
        if name in _ADDED:
            raise ConfigError(
                f"`fedloom {name}` is of a package of its own; {install(_ADDED[name])}"
            )
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click. Raises ConfigError for a command that there is not."""
        is_name = args[0][:1] != "-" and not ctx.resilient_parsing  # as at Tab
        if is_name and self.get_command(ctx, args[0]) is None:
            raise ConfigError(unknown("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands that a beginner needs, and then the others."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        help_texts = {name: one.get_short_help_str(200) for name, one in commands.items() if one}
        more = [name for name in help_texts if name not in FIRST]
        for heading, names in (("To begin with", FIRST), ("More", more)):
            with formatter.section(heading):
                formatter.write_dl([(name, help_texts[name]) for name in names])

    def main(self, args: Sequence[str] | None = None, *more: Any, **kwargs: Any) -> NoReturn:
        """Run a command and exit with its code."""
        args = [*map(_with_home, sys.argv[1:] if args is None else args)]
        kwargs["standalone_mode"] = False
        self.debug = False
        log, handler = logging.getLogger("fedloom"), OneLine(logging.WARNING)
        log.addHandler(handler)
        try:
            code = super().main(args, *more, **kwargs)
        except Exception as error:  # bad input never ends in a stack trace; --debug shows it
            if self.debug:
                raise
            code = _say(error, args)
        finally:
            log.removeHandler(handler)
        sys.exit(code if isinstance(code, int) else 0)


def _with_home(word: str) -> str:
    """A word of a command line with the home folder in place of ~, also behind --out=."""
    option, path = re.match(r"(--[\w-]+=)?(.*)", word, re.S).groups("")  # type: ignore[union-attr]
    return option + os.path.expanduser(path)


def _say(error: Exception, words: Sequence[str]) -> int:
    """Print one line about an error of this command line -> exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())  # `fedloom data` alone asks for its help
        return 0
    if isinstance(error, click.exceptions.Abort):
        with contextlib.suppress(OSError):  # the terminal may be closed
            click.echo("interrupted", err=True)
        return int(getattr(error.__cause__, "code", 130))
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "fedloom"
        message = _as_setting(error, words) or error.format_message()
        text, code = f"{message} See `{command} --help`", USAGE
    elif isinstance(error, click.ClickException):
        text, code = error.format_message(), error.exit_code
    elif isinstance(error, FedloomError):
        text, code = str(error), USAGE if isinstance(error, _USAGE) else FAILURE
    elif isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        text, code = f"'{shortened(str(error.filename))}': {error.strerror}; choose another", USAGE
    else:
        text = f"{type(error).__name__}: {error} (unexpected: `fedloom --debug ...` shows where)"
        code = FAILURE
    rank = "" if is_first_rank() else f"rank {os.environ['RANK']}: "
    click.echo(f"{rank}error: {' '.join(text.split())}", err=True)
    return code


def _as_setting(error: click.UsageError, words: Sequence[str]) -> str:
    """A setting that was given as an option, --rounds 3, as it is written; "" if it is none."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    from fedloom.config.help_texts import setting_named

    option, key = error.option_name, setting_named(error.option_name)
    if key is None:
        return ""
    i = next((n for n, w in enumerate(words) if w.partition("=")[0] == option), len(words))
    value = "".join(w.partition("=")[2] or "".join(words[i + 1 : i + 2]) for w in words[i:][:1])
    example = "VALUE" if not value or value.startswith("-") else value
    return f"no such option '{option}'; settings have no dashes: write {key}={example}."


class OneLine(logging.Handler):
    """Log records as one line each on the stderr of now, of several ranks from the first."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        text = " ".join(record.getMessage().split())
        if is_first_rank():
            with contextlib.suppress(OSError):  # nobody reads it any more; the work goes on
                sys.stderr.write(f"{record.levelname.lower()}: {text}\n")
                sys.stderr.flush()


def _version(context: click.Context, option: click.Parameter, requested: bool) -> None:
    if requested:
        commit = own_commit()
        print(f"fedloom {__version__}" + (f", commit {commit[:12]}{commit[40:]}" if commit else ""))
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Version."
)
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Federated learning, from a recipe to a report.

    \b
    fedloom demo                                  four methods, in a minute
    fedloom run digits algorithm=scaffold         one run; settings are key=value
    fedloom compare runs/*                        a table of runs
    fedloom report runs/*                         a page with every picture
    fedloom list algorithms                       the names that algorithm= takes
    """
    assert isinstance(ctx.command, Commands)
    ctx.command.debug = debug


def main() -> None:
    """Run the command line."""
    atexit.register(gc.freeze)  # or the interpreter looks through all of torch when it ends
    cli.main(prog_name="fedloom")


if __name__ == "__main__":
    main()
