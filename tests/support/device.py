"""The device that the contract runs on besides the CPU: the stand-in, or a real one.

FEDLOOM_TEST_DEVICE names another, such as cuda (`make gpu`).
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.checks.compare import unequal, unlike
from fedloom.core.vector import leaves, tree

from .pretend_device import NAME

__all__ = ["BOUND", "DEVICE", "REAL", "agree", "lies_there", "rows_agree"]

DEVICE = os.environ.get("FEDLOOM_TEST_DEVICE", NAME)
REAL = DEVICE != NAME
# of the largest value of a vector, in float64, between one engine on the CPU and the same engine on
# a real device, after the few rounds of a contract run; the stand-in has the CPU's bits
BOUND = 1e-8


def agree(one: Any, want: Any, bits: bool = not REAL) -> None:
    """Assert that two records, the second of the CPU, hold the same: bits, or within the bound."""
    one = tree(lambda v: v.cpu() if isinstance(v, Tensor) else v, one)
    found = unequal(one, want) if bits else unlike(one, want, BOUND)
    assert not found, found


def rows_agree(one: list[dict[str, Any]], want: list[dict[str, Any]], bits: bool) -> None:
    """The same of two histories without their clocks."""
    if bits:
        assert one == want
        return
    for row, other in zip(one, want, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            assert row[name] == pytest.approx(value, rel=BOUND, abs=BOUND), name


def lies_there(*records: Any) -> bool:
    """Say whether every vector of these records is on the device."""
    kind = torch.device(DEVICE).type
    return all(v.device.type == kind for v in leaves(*records) if isinstance(v, Tensor))
