"""Which settings tell one run from another, as of 0.4.0.

A setting that is added here changes the digest of every run and line of evidence there is. So
give it its value of before in NEW of storage/identity.py: then this list does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedloom.config.resolve import resolve
from fedloom.storage.identity import comparable

LIST = Path(__file__).with_name("settings.txt")
RUNS = {
    "digits": ("digits", []),
    "submodels": ("digits", ["submodel=fiarse", "compress=topk:0.1"]),
    "fafed": ("digits", ["algorithm=fafed", "clock=asynchronous", "devices=lognormal"]),
    "heart": ("heart", ["local.dp.noise=1"]),
}


def dotted(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{before}{key}.")
        else:
            yield before + key


@pytest.mark.parametrize("name", RUNS)
def test_no_setting_came_without_its_value_of_before(name: str) -> None:
    recipe, changes = RUNS[name]
    have = sorted(dotted(comparable(resolve(recipe, changes).values)))
    lines = LIST.read_text(encoding="utf-8").splitlines()
    want = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    assert have == want, "give a new setting its value of before: NEW in storage/identity.py"
