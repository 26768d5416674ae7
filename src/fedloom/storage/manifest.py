"""The checkpoints of a run folder, and checks that they and the log of rounds are as they were
written.

It needs no torch, because reports use it. It touches only real folders with exactly the names that
a run gives; anything else beside or inside them belongs to somebody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from ..core.parsing import parse_json
from ..errors import CheckpointError
from .atomic import checksum, parts, write_atomic

FORMAT = 2  # 1 had no checksums of the manifest and of the log
FILES = ("manifest.json", "state.safetensors", "memory.json")  # of a checkpoint
_NAME = re.compile(r"[0-9]{8}|[1-9][0-9]{8,}")


def begun(folder: Path) -> bool:
    """True if a run has begun in this folder; False of one with settings only, as `fedloom init`
    writes it. The folder of checkpoints is the first that a run makes; it may be deleted later.
    """
    return any((folder / name).exists() for name in ("checkpoints", "rounds.jsonl", "summary.json"))


def round_folder(checkpoints: Path, round: int) -> Path:
    """The folder of the checkpoint after a round."""
    return checkpoints / f"{round:08d}"


def named(checkpoints: Path) -> list[Path]:
    """Everything with the name of a checkpoint, links too, by round."""
    if not checkpoints.is_dir():
        return []
    return sorted(
        (p for p in checkpoints.iterdir() if _NAME.fullmatch(p.name)), key=lambda p: int(p.name)
    )


def numbered(checkpoints: Path, whole: bool = True) -> list[Path]:
    """The folders of checkpoints by round, without links. whole: those with a manifest."""
    if checkpoints.is_symlink():
        return []
    own = [p for p in named(checkpoints) if p.is_dir() and not p.is_symlink()]
    return [p for p in own if not whole or (p / "manifest.json").is_file()]


def remove(folder: Path) -> None:
    """Delete the files of a checkpoint, the manifest first, and the folder if it is then empty:
    other people's files in it stay.
    """
    with contextlib.suppress(OSError):
        for path in (*(folder / name for name in FILES), *parts(folder)):
            path.unlink(missing_ok=True)
        folder.rmdir()


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest with its checksum: the checkpoint is now valid. Raises OSError."""
    content = {"format": FORMAT, **content}
    sealed = {**content, "checksum": _seal(content)}
    write_atomic(folder / "manifest.json", json.dumps(sealed, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises CheckpointError if it is not as it was written, OSError
    if it cannot be read.
    """
    try:
        found: dict[str, Any] = parse_json((folder / "manifest.json").read_bytes())
        said, kind, round = found.pop("checksum", None), found["format"], found["round"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"manifest.json is damaged ({error})") from None
    old = kind == 1 and said is None  # its other fields are checked as they are used
    if not old and said != _seal(found):
        raise CheckpointError("manifest.json does not have the checksum it was written with")
    if kind not in (1, FORMAT):
        raise CheckpointError(f"manifest.json has format {kind!r}, of a later fedloom")
    if round != int(folder.name):
        raise CheckpointError(f"manifest.json is of round {round!r}")
    return found


def rows_of(manifest: Mapping[str, Any]) -> int:
    """How many rows of the log a checkpoint has: it keeps a row itself that was not written yet."""
    return int(manifest["round"]) - len(manifest["extra"].get("unlogged", []))


class LogError(CheckpointError):
    """A log of rounds that is not as it was written."""


def check_log(manifest: Mapping[str, Any], log: Path) -> None:
    """Raise LogError if the log of rounds, up to a checkpoint, is not as it was then."""
    size, wanted = log.stat().st_size if log.exists() else 0, manifest["log_bytes"]
    if size < wanted:
        raise LogError(f"{log.name} is {'shorter than it was' if size else 'gone'}")
    if "log_sha256" in manifest and wanted and checksum(log, wanted) != manifest["log_sha256"]:
        raise LogError(f"{log.name} does not have the checksum it was written with")


def accepting(run: Path) -> str:
    """What to do about a log that was edited on purpose, as text."""
    return f"take it as it is now with `fedloom resume {quote(str(run))} --accept-log`"


def verify_log(run: Path) -> None:
    """Raise CheckpointError if a run folder's log of rounds does not match its newest whole
    checkpoint. Later rows, and folders without checkpoints, are not checked.
    """
    for folder in reversed(numbered(run / "checkpoints")):
        try:
            manifest = read_manifest(folder)
        except (CheckpointError, OSError):  # damaged, or let go by the run that goes on there
            continue
        try:
            check_log(manifest, run / "rounds.jsonl")
        except CheckpointError as error:
            raise CheckpointError(
                f"'{run}' is damaged: {error}; put back the file as it was, {accepting(run)}, or "
                "run again"
            ) from None
        except OSError:  # its reader reports that
            return
        return


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
