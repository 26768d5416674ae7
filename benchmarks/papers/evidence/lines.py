"""The lines of finished runs, and the scripts that plan and append them."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fedloom
from fedloom.errors import DataError

Line = dict[str, Any]
_SCRIPTS = Path(__file__).resolve().parents[1]
RESULTS = _SCRIPTS.parents[1] / "docs" / "results"  # lines, hand-written words, pages, pictures


def read(path: Path, needs: Callable[[Line], Iterable[str]]) -> list[Line]:
    """The finished runs of a file; none if there is no file. needs: the keys that a line must have.

    A last line without its end is one that is being written, and is left out. Raises DataError,
    with file and line, for any other line that is no JSON object or lacks a key.
    """
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]
    out: list[Line] = []
    for number, line in enumerate(whole.splitlines(), start=1):
        again = f"remove it, and python benchmarks/papers/{path.stem}.py makes it again"
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number} is no JSON ({error.msg}); {again}") from error
        if not isinstance(found, dict):
            raise DataError(f"{path}, line {number} is no object: {line[:60]}; {again}")
        if missing := [key for key in needs(found) if key not in found]:
            raise DataError(f"{path}, line {number} has no {', '.join(missing)}; {again}")
        out.append(found)
    return out


@functools.cache
def made_by() -> dict[str, str | None]:
    """What a line says of the code that ended its run: fedloom's version, and the commit of the
    checkout that fedloom is in ("+dirty" with changes beside the lines themselves; None if it is in
    none). Asked once, so before the first run: a run takes long, and files change meanwhile.
    """
    return {"version": fedloom.__version__, "commit": commit(Path(fedloom.__file__).parent)}


def commit(folder: Path) -> str | None:
    """The commit of the checkout that holds a folder's files; None without git or a checkout."""
    if not _git(folder, "ls-files", "__init__.py"):
        return None  # an installed package, be it in an environment inside a checkout
    changed = _git(
        folder, "status", "--porcelain", "--", ":/", ":(top,exclude)docs/results/*.jsonl"
    )
    head = _git(folder, "rev-parse", "HEAD")
    return f"{head}+dirty" if head and changed else head or None


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing if it fails or is not there."""
    try:
        ran = subprocess.run(
            ["git", "--no-optional-locks", *words], cwd=folder, capture_output=True, text=True
        )
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


@functools.cache
def script(name: str) -> Any:
    """The script that plans and appends the lines, as a module: zoo, compression or submodels."""
    title = f"results_{name}"  # not `name`: Python 3.14 has a module called compression
    spec = importlib.util.spec_from_file_location(title, _SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
