"""Runs that are stopped while a command goes through several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from fedloom import Experiment


@contextmanager
def failing_in_run(number: int, error: BaseException | type[BaseException]) -> Iterator[None]:
    """Inside, this error comes in the first round of the run of this number."""
    run, calls = Experiment.run, list[int]()

    def fail(row: Any) -> None:
        raise error

    def counted(self: Experiment, *given: Any, **more: Any) -> Any:
        calls.append(1)
        one = replace(self, on_round=[fail]) if len(calls) == number else self
        return run(one, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "run", counted)
        yield
