"""Which tests are slow: those of tests/slow.txt, which `nox -s slow` measures, and those with the
mark.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

SLOW = frozenset(Path(__file__).with_name("tests").joinpath("slow.txt").read_text().splitlines())
TIMES = os.environ.get("FEDLOOM_TEST_TIMES", "")  # a file that gets seconds and name of each test


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before `-m` chooses."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.listed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the processor time of a test and of what it starts."""
    before = sum(os.times()[:4])
    result = yield
    if TIMES:
        with open(TIMES, "a", encoding="utf-8") as file:
            file.write(f"{sum(os.times()[:4]) - before:.2f}\t{item.nodeid}\n")
    return result
