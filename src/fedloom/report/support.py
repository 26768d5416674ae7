"""What the other files of the report share: optional libraries and atomic writing."""

from __future__ import annotations

import importlib
import os
import secrets
from pathlib import Path

from fedloom.errors import CheckpointError, ConfigError

__all__ = ["need", "write_atomic"]


def need(module: str, purpose: str) -> None:
    """Import an optional library or raise a ConfigError that says how to get it.

    >>> need("json", "reading")
    >>> need("no_such_library", "pictures")
    Traceback (most recent call last):
        ...
    fedloom.errors.ConfigError: pictures need no_such_library, which cannot be imported; \
run: pip install fedloom[report]
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} need {module}, which cannot be imported; run: pip install fedloom[report]"
        ) from error


def write_atomic(path: Path, content: bytes) -> Path:
    """Write a file under a temporary name beside it, then put it in place; make missing folders.

    A reader sees the old file or the new one, never half of one.  Raises CheckpointError if the
    place cannot be written.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CheckpointError(
            f"cannot write '{path}' ({reason}); choose a file in a folder that can be written"
        ) from error
    return path
