"""Calls that are timed in turn, so that a busy minute of the machine meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")


def seconds(calls: Mapping[K, Callable[[], object]], repeats: int) -> dict[K, list[float]]:
    """Seconds of every call, one of each after the other; the first turn is left out."""
    times: dict[K, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: found[1:] for name, found in times.items()}
