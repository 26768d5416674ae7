"""Seconds of a model's step that were measured here, so that the next estimate need not.

One small file, steps.json, in the folder of core/user_cache.py. An entry holds for one month, one
machine, and one version of fedloom and torch. A file that cannot be read or written is as if there
were none.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..core.parsing import parse_json
from ..core.user_cache import cache_folder
from ..engines.base import processors
from ..storage.atomic import write_atomic

DAYS, MOST = 30, 200  # that an entry holds; entries


def key_of(*work: object) -> str:
    """A short name of work on this machine."""
    machine = (platform.node(), platform.machine(), platform.processor(), processors())
    text = repr((__version__, torch.__version__, machine, *work))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def remembered(key: str) -> tuple[float, float] | None:
    """Seconds of a sample in training and in a test; None if they are not known, or too old."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        entry = _entries(_file())[key]
        age = datetime.date.today() - datetime.date.fromisoformat(entry["day"])
        train, test = map(float, entry["seconds"])
        if 0 <= age.days < DAYS and min(train, test) > 0 and max(train, test) < float("inf"):
            return train, test
    return None


def remember(key: str, seconds: tuple[float, float]) -> None:
    """Write them down."""
    file = _file()
    if file is None:
        return
    entries = {k: v for k, v in _entries(file).items() if k != key}
    entries = dict(list(entries.items())[1 - MOST :])
    entries[key] = {"day": datetime.date.today().isoformat(), "seconds": seconds}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(entries, indent=1))


def _file() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "steps.json"


def _entries(file: Path | None) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = parse_json(file.read_text(encoding="utf-8")) if file else None
        if isinstance(found, dict):
            return found
    return {}
