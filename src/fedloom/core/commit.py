"""The commit from which the running fedloom was made."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
BUILT = "_commit.txt"  # written into a wheel when it is built: requirements/commit_hook.py


@functools.cache
def own_commit() -> str | None:
    """The commit of this fedloom: of its checkout, or the one that its wheel was built from. None
    if neither is known. Asked once: files of a checkout change while a run goes on.
    """
    if head := commit(PACKAGE):
        return head
    try:
        return (PACKAGE / BUILT).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def commit(folder: Path) -> str | None:
    """The commit of the checkout that holds a folder's files, "+dirty" with changes beside lines of
    evidence; None without git or a checkout.
    """
    if not _git(folder, "ls-files", "__init__.py"):
        return None  # an installed package, be it in an environment inside a checkout
    changes = _git(
        folder, "status", "--porcelain", "--", ":/", ":(top,exclude)docs/results/*.jsonl"
    )
    head = _git(folder, "rev-parse", "HEAD")
    return f"{head}+dirty" if head and changes else head or None


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing if it fails or is not there."""
    try:
        ran = subprocess.run(
            ["git", "--no-optional-locks", *words], cwd=folder, capture_output=True, text=True
        )
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
