"""The lines of finished runs, and the scripts that plan and append them."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedloom.core.commit import commit
from fedloom.papers.lines import append, made_by
from fedloom.papers.lines import read as read_lines

__all__ = ["RESULTS", "Line", "append", "commit", "made_by", "read", "script"]

Line = dict[str, Any]
_SCRIPTS = Path(__file__).resolve().parents[1]
RESULTS = _SCRIPTS.parents[1] / "docs" / "results"  # lines, hand-written words, pages, pictures


def read(path: Path, needs: Callable[[Line], Iterable[str]] = lambda _: ()) -> list[Line]:
    """The finished runs of a file; none if there is no file. needs: the keys that a line must have.
    Raises DataError, with file and line, for a line that is none.
    """
    return read_lines(path, needs, f"and python benchmarks/papers/{path.stem}.py makes it again")


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
