"""The seal of a run folder: its manifest.json has the size and the checksum of every file that is
read later, as the run wrote it.

It finds damage and accidents. It is no signature: who can change a file can write the manifest
anew. A file that the manifest does not name is read as it is: the run still writes it, was killed
while it did, or is of a fedloom that wrote no such manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from ..core.parsing import parse_json
from ..errors import CheckpointError
from . import world
from .atomic import checksum
from .manifest import (
    MALFORMED,
    altered,
    check_files,
    check_log,
    damaged,
    read_manifest,
    read_sealed,
    resuming,
    round_folders,
    write_manifest,
)

LOG = "rounds.jsonl"
GROWING = (LOG, "clients.jsonl")  # a run that goes on adds lines
SETTINGS = ("config.toml", "fingerprint.json")  # a run is resumed with them
# what a run writes as it begins or goes on, and at its end
FIRST = ("partition.json", "environment.json", *SETTINGS)
BEST = "best.safetensors"  # see Checkpoint.keep_best
LAST = ("model.safetensors", BEST, "ledger.json", "clients.json", "summary.json")


class _File(NamedTuple):
    size: int
    digest: str


class Seal:
    """The files of a run folder, read as the run wrote them. Raises CheckpointError for a damaged
    manifest.
    """

    def __init__(self, run: str | Path) -> None:
        self.run = Path(run)
        self._files = _read_entries(self.run)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises CheckpointError if it was altered, OSError."""
        self.check(name)
        return (self.run / name).read_bytes()

    def read_object(self, name: str) -> dict[str, Any]:
        """The object in a file of JSON; empty if there is no such file. Raises CheckpointError."""
        file = self.run / name
        if not file.is_file():
            return {}
        try:
            content = parse_json(self.read(name))
            if not isinstance(content, dict):
                raise ValueError(f"it holds a {type(content).__name__} instead of an object")
        except (OSError, ValueError) as error:
            raise unreadable(file, error) from error
        return content

    def check(self, name: str) -> None:
        """Raise CheckpointError if a file was altered, OSError if it cannot be read. One that was
        deleted counts as never written, but for the log.
        """
        file = self.run / name
        while (entry := self._files.get(name)) and (file.exists() or name == LOG):
            change = altered(file, *entry, whole=name not in GROWING)
            if not change:
                return
            self._files = _read_entries(self.run)
            if self._files.get(name) == entry:  # else a run has written it anew meanwhile
                raise CheckpointError(f"'{self.run}' is damaged: {change}; {self._remedy(name)}")

    def check_log(self) -> None:
        """Raise CheckpointError if the log of rounds is not as it was at the end of the run, or at
        the newest whole checkpoint of one that has not ended. Later rows are not checked.
        """
        if LOG in self._files:
            return self.check(LOG)
        for folder in reversed(round_folders(self.run / "checkpoints")):
            try:
                manifest = read_manifest(folder)
            except (CheckpointError, OSError):  # damaged, or let go by the run that goes on there
                continue
            try:
                check_log(manifest, self.run / LOG)
            except CheckpointError as error:
                raise CheckpointError(
                    f"'{self.run}' is damaged: {error}; {self._remedy(LOG)}"
                ) from None
            except (OSError, *MALFORMED):  # its reader reports that
                return
            return

    def check_all(self) -> None:
        """Raise CheckpointError if any file that is here was altered, also of the newest
        checkpoint.
        """
        for name in (*FIRST, *LAST, *GROWING):
            self.check(name)
        self.check_log()
        for folder in round_folders(self.run / "checkpoints")[-1:]:
            try:
                check_files(folder, read_manifest(folder))
            except (CheckpointError, OSError, *MALFORMED) as error:
                raise CheckpointError(damaged(folder, error)) from None

    def _remedy(self, name: str) -> str:
        if name == LOG:
            return "put back the file as it was, or run again"
        if name in (*FIRST, *LAST) and name not in SETTINGS:
            return f"put back the file as it was, or write it anew with {resuming(self.run)}"
        return (
            "put back the file as it was; if it was changed on purpose, delete "
            f"{quote(str(self.run / 'manifest.json'))}: no file is then checked"
        )


def unreadable(file: Path, error: Exception, where: str = "") -> CheckpointError:
    """The error for a file of a run that is no more what a run writes; where: in it."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return CheckpointError(
        f"'{file}' cannot be read{where} ({type(error).__name__}: {reason}); put back the file as "
        "it was, or remove the folder and run again"
    )


@contextlib.contextmanager
def resealed(run: Path, *names: str) -> Iterator[None]:
    """Inside, a run writes these files, which nothing vouches for until the end. Raises OSError."""
    unseal(run, *names)
    yield
    seal(run, *names)


def seal(run: Path, *names: str) -> None:
    """Note how these files are now, of those that are there. Raises OSError."""
    files = _read_entries(run)
    for file in (run / name for name in names):
        files.pop(file.name, None)
        if file.is_file():
            if file.name in GROWING:
                world.sync(file)  # else a crash would make the manifest wrong
            files[file.name] = _File(file.stat().st_size, checksum(file))
    _write(run, files)


def unseal(run: Path, *names: str) -> None:
    """Let these files be what they are. Raises OSError."""
    files = _read_entries(run)
    if stale := {name for name in names if name in files}:
        _write(run, {name: file for name, file in files.items() if name not in stale})


def is_finished(run: Path, summary: Mapping[str, Any]) -> bool:
    """Whether a run is at its end; summary: what it wrote there. One that has begun to go on from
    its end, for more rounds, is not: it has taken the log out of the manifest. Raises
    CheckpointError.
    """
    files = _read_entries(run)
    return summary.get("finished") is True and (LOG in files or not files)


def _read_entries(run: Path) -> dict[str, _File]:
    """The files that the manifest names; none without a manifest."""
    try:
        files = read_sealed(run, "files")["files"]
        return {name: _File(int(one["bytes"]), str(one["sha256"])) for name, one in files.items()}
    except FileNotFoundError:
        return {}
    except (CheckpointError, OSError, *MALFORMED) as error:
        raise CheckpointError(
            f"'{run}' is damaged: {error}; put back its manifest.json as it was, or delete it: no "
            "file is then checked"
        ) from None


def _write(run: Path, files: dict[str, _File]) -> None:
    entries = {name: {"bytes": file.size, "sha256": file.digest} for name, file in files.items()}
    write_manifest(run, {"files": entries})
