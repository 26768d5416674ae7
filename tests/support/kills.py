"""What is killed at a call to the file system: nothing cleans up behind it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest

from fedloom.storage import atomic


class Killed(BaseException):
    """No handler of errors sees it."""


def killed_at(number: int, act: Callable[[], object]) -> bool:
    """Do something, and be killed at this call to replace or fsync, from 0 -> whether it was."""
    calls = itertools.count()

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if next(calls) == number:
                raise Killed
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync"):
            patch.setattr(atomic.os, name, counted(getattr(os, name)))
        patch.setattr(atomic.Path, "unlink", lambda *a, **k: None)
        try:
            act()
        except Killed:
            return True
    return False
