"""What tells whether files of a run are as they were written: a manifest.json in its folder, with
the size and checksum of every file that is read later, and one in each checkpoint.

It finds damage and accidents. It is no signature: who can change a file can write the manifest
anew. A file that the manifest does not name is read as it is: the run still writes it, or was
killed while it did. Only real folders with exactly the names that a run gives are touched; anything
else beside or inside them belongs to somebody else. It needs no torch, because reports use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from ..core.parsing import parse_json
from ..errors import CheckpointError
from . import world
from .atomic import checksum, parts, write_atomic

# what wrong kinds of values in a file of JSON raise
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
FORMAT = 3  # 2 had other fields of a run's state
FILES = ("manifest.json", "state.safetensors", "memory.json")  # of a checkpoint
ROUND = re.compile(r"[0-9]{8}|[1-9][0-9]{8,}")

LOG = "rounds.jsonl"
GROWING = (LOG, "clients.jsonl")  # a run that goes on adds lines
SETTINGS = ("config.toml", "fingerprint.json")  # a run is resumed with them
# what a run writes as it begins or goes on, and at its end
FIRST = ("partition.json", "environment.json", *SETTINGS)
BEST = "best.safetensors"  # see Checkpoint.keep_best
LAST = ("model.safetensors", BEST, "ledger.json", "clients.json", "summary.json")


# ------------------------------------------------------------------------------------ the manifests
def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest with its checksum: a checkpoint is now valid. Raises OSError."""
    content = {"format": FORMAT, **content}
    sealed = {**content, "checksum": _digest(content)}
    write_atomic(folder / "manifest.json", json.dumps(sealed, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises CheckpointError if it is not as it was written, OSError
    if it cannot be read.
    """
    manifest = _read(folder, "round")
    if manifest["round"] != int(folder.name):
        raise CheckpointError(f"manifest.json is of round {manifest['round']!r}")
    return manifest


def _read(folder: Path, key: str) -> dict[str, Any]:
    """The content of a manifest, which has this key."""
    try:
        content: dict[str, Any] = parse_json((folder / "manifest.json").read_bytes())
        recorded, kind, _ = content.pop("checksum", None), content["format"], content[key]
    except MALFORMED as error:
        raise CheckpointError(f"manifest.json is damaged ({error})") from None
    if recorded != _digest(content):
        raise CheckpointError("manifest.json does not have the checksum it was written with")
    if kind != FORMAT:
        raise CheckpointError(f"manifest.json has format {kind!r}, of another version of fedloom")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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


# ------------------------------------------------------------------------------------- checkpoints
def has_begun(folder: Path) -> bool:
    """True if a run has begun in this folder; False of one with settings only, as `fedloom init`
    writes it. The folder of checkpoints is the first that a run makes; it may be deleted later.
    """
    return any((folder / name).exists() for name in ("checkpoints", LOG, "summary.json"))


def round_paths(checkpoints: Path) -> list[Path]:
    """Everything with the name of a checkpoint, links too, by round."""
    if not checkpoints.is_dir():
        return []
    names = (p for p in checkpoints.iterdir() if ROUND.fullmatch(p.name))
    return sorted(names, key=lambda p: int(p.name))


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


def whole_checkpoint(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises CheckpointError if it, the checkpoint's files or the log
    of rounds up to it are not as they were written, or if it names other files. Raises OSError.
    """
    manifest = read_manifest(folder)
    sums, log = manifest["sha256"], folder.parent.parent / LOG
    if change := altered(log, manifest["log_bytes"], manifest["log_sha256"]):
        raise CheckpointError(change)
    if set(sums) != {*FILES[1:]}:
        raise CheckpointError(f"manifest.json names other files than {' and '.join(FILES[1:])}")
    for name in FILES[1:]:
        if (folder / name).is_symlink() or not (folder / name).is_file():
            raise CheckpointError(f"{name} is gone, or is a link")
        if checksum(folder / name) != sums[name]:
            raise CheckpointError(f"{name} does not have the checksum it was written with")
    return manifest


def damaged(folder: Path, error: Exception) -> str:
    """What is said of the newest checkpoint of a run, if it is not as it was written."""
    return (
        f"'{folder}' is damaged: {error}; put back the file as it was, or go on from the "
        f"checkpoint before it with {resuming(folder.parent.parent)}"
    )


# -------------------------------------------------------------------------------- a run's own files
def check_file(run: Path, name: str) -> None:
    """Raise CheckpointError if a file was altered, OSError if it cannot be read. One that was
    deleted counts as never written, but for the log.
    """
    file, before = run / name, None
    while (entry := _entries(run).get(name)) and (file.exists() or name == LOG):
        change = altered(file, *entry, whole=name not in GROWING)
        if not change:
            return
        if entry == before:  # else a run may have written it anew meanwhile
            raise CheckpointError(f"'{run}' is damaged: {change}; {_remedy(run, name)}")
        before = entry


def read_file(run: Path, name: str) -> bytes:
    """The content of a file. Raises CheckpointError if it was altered, OSError."""
    check_file(run, name)
    return (run / name).read_bytes()


def read_object(run: Path, name: str) -> dict[str, Any]:
    """The object in a file of JSON; empty if there is no such file. Raises CheckpointError."""
    if not (run / name).is_file():
        return {}
    try:
        content = parse_json(read_file(run, name))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__} instead of an object")
    except (OSError, ValueError) as error:
        raise unreadable(run / name, error) from error
    return content


def check_log(run: Path) -> None:
    """Raise CheckpointError if the log of rounds is not as it was at the end of the run, or at the
    newest whole checkpoint of one that has not ended. Later rows are not checked.
    """
    if LOG in _entries(run):
        return check_file(run, LOG)
    for folder in reversed(round_folders(run / "checkpoints")):
        try:
            manifest = read_manifest(folder)
        except (CheckpointError, OSError):  # damaged, or let go by the run that goes on there
            continue
        with contextlib.suppress(OSError, *MALFORMED):  # its reader reports that
            if change := altered(run / LOG, manifest["log_bytes"], manifest["log_sha256"]):
                raise CheckpointError(f"'{run}' is damaged: {change}; {_remedy(run, LOG)}")
        return


def check_run(run: Path) -> None:
    """Raise CheckpointError if any file that is here was altered, also of the newest checkpoint."""
    for name in (*FIRST, *LAST, *GROWING):
        check_file(run, name)
    check_log(run)
    for folder in round_folders(run / "checkpoints")[-1:]:
        try:
            whole_checkpoint(folder)
        except (CheckpointError, OSError, *MALFORMED) as error:
            raise CheckpointError(damaged(folder, error)) from None


def _remedy(run: Path, name: str) -> str:
    if name == LOG:
        return "put back the file as it was, or run again"
    if name in (*FIRST, *LAST) and name not in SETTINGS:
        return f"put back the file as it was, or write it anew with {resuming(run)}"
    return (
        "put back the file as it was; if it was changed on purpose, delete "
        f"{quote(str(run / 'manifest.json'))}: no file is then checked"
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
    files = {name: entry for name, entry in _entries(run).items() if name not in names}
    for file in (run / name for name in names if (run / name).is_file()):
        if file.name in GROWING:
            world.sync(file)  # else a crash would make the manifest wrong
        files[file.name] = _Entry(file.stat().st_size, checksum(file))
    _write(run, files)


def unseal(run: Path, *names: str) -> None:
    """Let these files be what they are. Raises OSError."""
    files = _entries(run)
    if not files.keys().isdisjoint(names):
        _write(run, {name: entry for name, entry in files.items() if name not in names})


def is_finished(run: Path, summary: Mapping[str, Any]) -> bool:
    """Whether a run is at its end; summary: what it wrote there. One that has begun to go on from
    its end, for more rounds, is not: it has taken the log out of the manifest. Raises
    CheckpointError.
    """
    files = _entries(run)
    return summary.get("finished") is True and (LOG in files or not files)


class _Entry(NamedTuple):
    bytes: int
    sha256: str


def _entries(run: Path) -> dict[str, _Entry]:
    """The files that the manifest of a run names; none without one."""
    try:
        files = _read(run, "files")["files"]
        return {k: _Entry(int(one["bytes"]), str(one["sha256"])) for k, one in files.items()}
    except FileNotFoundError:
        return {}
    except (CheckpointError, OSError, *MALFORMED) as error:
        raise CheckpointError(
            f"'{run}' is damaged: {error}; put back its manifest.json as it was, or delete it: no "
            "file is then checked"
        ) from None


def _write(run: Path, files: Mapping[str, _Entry]) -> None:
    write_manifest(run, {"files": {name: entry._asdict() for name, entry in files.items()}})


# ------------------------------------------------------------------------------------ to go on with
def resuming(run: Path) -> str:
    """The command that resumes a run, quoted for a shell."""
    if deployed(run):
        return f"`fedloom deploy run {quote(str(run.parent))}`"
    return f"`fedloom run --resume {quote(str(run))}`"


def deployed(run: Path) -> bool:
    """Whether a run is a federation's, beside whose settings it lies."""
    return (run.parent / "federation.toml").is_file()
