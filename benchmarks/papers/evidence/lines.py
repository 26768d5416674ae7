"""The lines of finished runs, and the scripts that plan and append them."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedloom.core.commit import commit
from fedloom.errors import DataError
from fedloom.papers.lines import made_by

__all__ = ["RESULTS", "Line", "commit", "made_by", "read", "script"]

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
