"""The checkpoints of a run folder and their manifests, which tell whether files are as they were
written. The run folder has a manifest too (seal.py).

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
from . import world
from .atomic import checksum, parts, write_atomic

# what wrong kinds of values in a file of JSON raise
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
FORMAT = 3  # 2 had other fields of a run's state
FILES = ("manifest.json", "state.safetensors", "memory.json")  # of a checkpoint
ROUND = re.compile(r"[0-9]{8}|[1-9][0-9]{8,}")


def has_begun(folder: Path) -> bool:
    """True if a run has begun in this folder; False of one with settings only, as `fedloom init`
    writes it. The folder of checkpoints is the first that a run makes; it may be deleted later.
    """
    return any((folder / name).exists() for name in ("checkpoints", "rounds.jsonl", "summary.json"))


def round_folder(checkpoints: Path, round: int) -> Path:
    """The folder of the checkpoint after a round."""
    return checkpoints / f"{round:08d}"


def round_paths(checkpoints: Path) -> list[Path]:
    """Everything with the name of a checkpoint, links too, by round."""
    if not checkpoints.is_dir():
        return []
    return sorted(
        (p for p in checkpoints.iterdir() if ROUND.fullmatch(p.name)), key=lambda p: int(p.name)
    )


def round_folders(checkpoints: Path, whole: bool = True) -> list[Path]:
    """The folders of checkpoints by round, without links. whole: those with a manifest."""
    if checkpoints.is_symlink():
        return []
    folders = [p for p in round_paths(checkpoints) if p.is_dir() and not p.is_symlink()]
    return [p for p in folders if not whole or (p / "manifest.json").is_file()]


def remove(folder: Path) -> None:
    """Delete the files of a checkpoint, the manifest first, and the folder if it is then empty:
    other people's files in it stay.
    """
    with contextlib.suppress(OSError):
        for path in (*(folder / name for name in FILES), *parts(folder)):
            world.unlink(path)
        world.rmdir(folder)


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest with its checksum: a checkpoint is now valid. Raises OSError."""
    content = {"format": FORMAT, **content}
    sealed = {**content, "checksum": _seal(content)}
    write_atomic(folder / "manifest.json", json.dumps(sealed, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises CheckpointError if it is not as it was written, OSError
    if it cannot be read.
    """
    manifest = read_sealed(folder, "round")
    if manifest["round"] != int(folder.name):
        raise CheckpointError(f"manifest.json is of round {manifest['round']!r}")
    return manifest


def read_sealed(folder: Path, key: str) -> dict[str, Any]:
    """The content of a manifest, which has this key. Raises CheckpointError if it is not as it was
    written, OSError if it cannot be read.
    """
    try:
        content: dict[str, Any] = parse_json((folder / "manifest.json").read_bytes())
        recorded, kind, _ = content.pop("checksum", None), content["format"], content[key]
    except MALFORMED as error:
        raise CheckpointError(f"manifest.json is damaged ({error})") from None
    if recorded != _seal(content):
        raise CheckpointError("manifest.json does not have the checksum it was written with")
    if kind != FORMAT:
        raise CheckpointError(f"manifest.json has format {kind!r}, of another version of fedloom")
    return content


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise CheckpointError if the files of a checkpoint are not as they were written, or its
    manifest names others. Raises OSError.
    """
    sums = manifest["sha256"]
    if set(sums) != {*FILES[1:]}:
        raise CheckpointError(f"manifest.json names other files than {' and '.join(FILES[1:])}")
    for name in FILES[1:]:
        if (folder / name).is_symlink() or not (folder / name).is_file():
            raise CheckpointError(f"{name} is gone, or is a link")
        if checksum(folder / name) != sums[name]:
            raise CheckpointError(f"{name} does not have the checksum it was written with")


def damaged(folder: Path, error: Exception) -> str:
    """What is said of the newest checkpoint of a run, if it is not as it was written."""
    return (
        f"'{folder}' is damaged: {error}; put back the file as it was, or go on from the "
        f"checkpoint before it with {resuming(folder.parent.parent)}"
    )


def check_log(manifest: Mapping[str, Any], log: Path) -> None:
    """Raise CheckpointError if the log of rounds, up to a checkpoint, is not as it was then."""
    if change := altered(log, manifest["log_bytes"], manifest.get("log_sha256")):
        raise CheckpointError(change)


def altered(path: Path, size: int, digest: str | None, whole: bool = False) -> str:
    """How the first bytes of a file differ from what was written, in words; empty if they do not.
    whole: it has no others. Raises OSError.
    """
    exists = path.exists()
    now = path.stat().st_size if exists else 0
    if now < size:
        return f"{path.name} is {'shorter than it was' if exists else 'gone'}"
    if whole and now > size:
        return f"{path.name} is longer than it was"
    if digest is not None and size and checksum(path, size) != digest:
        return f"{path.name} does not have the checksum it was written with"
    return ""


def resuming(run: Path) -> str:
    """The command that resumes a run, quoted for a shell."""
    if deployed(run):
        return f"`fedloom deploy run {quote(str(run.parent))}`"
    return f"`fedloom run --resume {quote(str(run))}`"


def deployed(run: Path) -> bool:
    """Whether a run is a federation's, beside whose settings it lies."""
    return (run.parent / "federation.toml").is_file()


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
