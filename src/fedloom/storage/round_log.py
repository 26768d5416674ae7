"""rounds.jsonl, the log of a run: a line of JSON per round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.parsing import parse_json
from ..errors import CheckpointError
from . import world
from .atomic import running_checksum


class RoundLog:
    """The log in a file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: tuple[int, Any] | None = None  # bytes so far, and their checksum

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line. Raises OSError."""
        line = json.dumps(row).encode() + b"\n"
        size, state = self.state()
        world.append(self.path, line)
        state.update(line)
        self._state = size + len(line), state

    def state(self) -> tuple[int, Any]:
        """The length of the log and its checksum, to which rows are added as they are written, so
        that checkpoints do not read it again.
        """
        if self._state is None:
            size = self.path.stat().st_size if self.path.exists() else 0
            state = running_checksum(self.path, size) if size else hashlib.sha256()
            self._state = size, state
        return self._state

    def read(self, log_bytes: int, rounds: int) -> list[dict[str, Any]]:
        """The rows up to a checkpoint: so many bytes, a row per round. Or CheckpointError."""
        rows: list[dict[str, Any]] = []
        try:
            raw = self.path.read_bytes()[:log_bytes] if log_bytes else b""
        except OSError as error:
            raise CheckpointError(f"'{self.path}' cannot be read: {error.strerror}") from None
        for n, line in enumerate(raw.splitlines(), 1):
            try:
                row = parse_json(line)
                if row["round"] != n:
                    raise ValueError(f"it is of round {row['round']}")
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"line {n} of '{self.path}' is damaged ({error}); put back the file as it "
                    "was, or start again in another folder"
                ) from None
            rows.append(row)
        if len(rows) != rounds:
            raise CheckpointError(
                f"'{self.path}' has {len(rows)} rounds, and its checkpoint {rounds}; put back "
                "the file as it was, or start again in another folder"
            )
        return rows

    def cut(self, size: int) -> None:
        """Cut the log back to so many bytes."""
        if self.path.exists():
            world.truncate(self.path, size)
        self._state = None

    def sync(self) -> None:
        """Force the log to the disk."""
        if self.path.exists():
            world.sync(self.path)
            world.sync_folder(self.path.parent)  # its name
