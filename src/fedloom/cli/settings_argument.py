"""What a command runs: a recipe or a file, and changes of settings; the shell offers recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem


def settings_argument(
    metavar: str = "[RECIPE | FILE.toml] [KEY=VALUE ...]",
) -> Callable[[Any], Any]:
    """The argument of a command."""
    return click.argument("settings", nargs=-1, metavar=metavar, shell_complete=recipes)


def recipes(_: click.Context, __: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Recipes that begin so, and files."""
    from fedloom.recipes import RECIPES

    items = [CompletionItem(name) for name in RECIPES if name.startswith(prefix)]
    return items or [CompletionItem(prefix, type="file")]
