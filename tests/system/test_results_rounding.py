"""The result pages say the same wherever they are made: no digit depends on how a Python adds."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from results_lines import RESULTS, SCRIPTS, load

PAGES = load("results_pages", SCRIPTS / "pages.py")
_sum: Callable[..., Any] = builtins.sum


def one_after_another(values: Iterable[Any], start: Any = 0) -> Any:
    """sum() until Python 3.11."""
    for value in values:
        start = start + value
    return start


def compensated(values: Iterable[Any], start: Any = 0) -> Any:
    """sum() from Python 3.12 on, which keeps what rounding takes from a sum of floats."""
    found = list(values)
    floats = any(isinstance(v, float) for v in found)
    if start == 0 and floats and all(isinstance(v, (int, float)) for v in found):
        return math.fsum(found)
    return _sum(found, start)


@pytest.mark.parametrize("add", [one_after_another, compensated])
@pytest.mark.parametrize("name", ["zoo", "compression", "submodels"])
def test_pages_on_every_python(
    name: str, add: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "sum", add)
    made = PAGES.page(name).text()
    monkeypatch.undo()
    assert made == (RESULTS / f"{name}.md").read_text()
