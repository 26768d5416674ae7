"""Libraries that do not come with fedloom: each is in an extra, `pip install fedloom[NAME]`."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import ConfigError, FedloomError


def need(library: str, what: str, extra: str, error: type[FedloomError] = ConfigError) -> Any:
    """Import a library. what: needs it; extra: has it. Raises `error`, which says how to get it.

    >>> need("no_such_library", "a picture", "report")
    Traceback (most recent call last):
        ...
    fedloom.errors.ConfigError: a picture needs no_such_library, which cannot be imported; \
run: pip install fedloom[report]
    """
    try:
        return importlib.import_module(library)
    except ImportError as why:
        raise error(
            f"{what} needs {library}, which cannot be imported; run: pip install fedloom[{extra}]"
        ) from why
