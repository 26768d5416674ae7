"""Everything that `fedloom measure` knows by name."""

from __future__ import annotations

from typing import Any

from fedloom.core.registry import Registry
from fedloom.measures import MEASURES
from fedloom.report.recorded import RECORDED

EVERY: Registry[Any] = Registry("measure", {**MEASURES, **RECORDED})
