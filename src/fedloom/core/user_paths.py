"""Paths as users write them: ~ is their home folder."""

from __future__ import annotations

import os
import re
from pathlib import Path


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gave, with ~ or ~NAME at its beginning as that home folder.

    >>> user_path("~/runs/a") == Path.home() / "runs" / "a", str(user_path("runs/~"))
    (True, 'runs/~')
    """
    return Path(os.path.expanduser(path))


def with_home(word: str) -> str:
    """A word of a command line, ~/runs or --out=~/runs, with the home folder in place of ~, as a
    shell makes only of the first one.

    >>> with_home("--out=~/runs") == f"--out={Path.home()}/runs", with_home("path=~/a")
    (True, 'path=~/a')
    """
    option, path = re.match(r"(--[\w-]+=)?(.*)", word, re.S).groups("")  # type: ignore[union-attr]
    return option + os.path.expanduser(path)
