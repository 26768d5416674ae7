"""Texts of `fedloom list` and `show`, and names for the shell, remembered: they change with
fedloom's sources only, and to make them torch is loaded, which takes seconds.

One file, texts.json, in the folder of core/user_cache.py. A file that cannot be read or written, or
is of other sources, is as if there were none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedloom._version import __version__
from fedloom.core.packages import folders
from fedloom.core.parsing import parse_json
from fedloom.core.user_cache import cache_folder
from fedloom.storage.atomic import write_atomic

_PACKAGE = Path(__file__).resolve().parent.parent


def remembered(key: str, make: Callable[[], str]) -> str:
    """The text of this key, from an earlier call or from make()."""
    folder = cache_folder()
    if folder is None:
        return make()
    file, stamp = folder / "texts.json", _stamp()
    texts: dict[str, object] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = parse_json(file.read_text(encoding="utf-8"))
        texts = dict(found["texts"]) if found["stamp"] == stamp else {}
    if isinstance(known := texts.get(key), str):
        return known
    texts[key] = made = make()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps({"stamp": stamp, "texts": texts}))
    return made


def _stamp() -> str:
    """The sources, recipes of other packages, and what a recipe's engine depends on."""
    state = hashlib.sha256(f"{__version__} {sys.version}".encode())
    state.update(os.environ.get("CUDA_VISIBLE_DEVICES", "-").encode())
    more = (file for folder in folders("fedloom.recipes") for file in folder.glob("*.toml"))
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.toml"), *more]):
        about = path.stat()
        state.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return state.hexdigest()


# ---------------------------------------- names that the shell offers after Tab
def settings_argument(
    metavar: str = "[RECIPE | FILE.toml] [KEY=VALUE ...]",
) -> Callable[[Any], Any]:
    """What a command runs: a recipe or a file, and changes of its settings."""
    return click.argument("settings", nargs=-1, metavar=metavar, shell_complete=recipes)


def recipes(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Recipes that begin so, and files."""
    found = _beginning("recipes", begun)
    return found or [CompletionItem(begun, type="file")]


def names(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Whatever `fedloom show` knows."""
    return _beginning("everything", begun)


def _beginning(what: str, begun: str) -> list[CompletionItem]:
    known = remembered(f"complete {what}", lambda: _known(what)).split()
    return [CompletionItem(name) for name in known if name.startswith(begun)]


def _known(what: str) -> str:
    from .list_and_show import every_name, registry_of

    return " ".join(registry_of("recipes") if what == "recipes" else sorted(every_name()))
