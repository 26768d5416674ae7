"""A run's directory: its settings, its log, and checkpoints from which it can be resumed.

A checkpoint is a folder whose manifest.json is written last: without it the folder is not valid.
All other files, client states included, are on the disk by then. The manifest has checksums of
itself, of the checkpoint's files, and of the log of rounds up to it; a resumed run cuts the log
back to there. Only a run's own files are ever deleted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..core.hyper import NonNegative, Part, PositiveInt, hyper
from ..core.parsing import parse_json, parse_toml, user_path
from ..core.ranks import ALONE, Group
from ..core.vector import Rec, Vec, tree
from ..errors import CheckpointError, ConfigError
from . import world
from .atomic import checksum, make_folder, parts, remedy, running_checksum, write_atomic
from .client_state import ClientStates
from .locks import hold, holder
from .manifest import (
    BEST,
    FILES,
    GROWING,
    LOG,
    MALFORMED,
    damaged,
    read_file,
    read_object,
    remove,
    resuming,
    round_folders,
    round_paths,
    unseal,
    whole_checkpoint,
    write_manifest,
)
from .records import freeze, thaw, write_tensors

_log = logging.getLogger(__name__)


class Checkpoint(Part, frozen=False, kw_only=False):
    """When the state of a run is written: by rounds, by seconds, or both."""

    title: ClassVar[str] = "checkpoint"
    every_rounds: PositiveInt | None = hyper(
        None, "rounds between two checkpoints, in addition to every_seconds"
    )
    every_seconds: NonNegative | None = hyper(
        60.0, "seconds between two checkpoints; none: only by rounds"
    )
    keep: PositiveInt = hyper(2, "how many checkpoints to keep")
    keep_best: str | None = hyper(
        None,
        "a column such as test_auc or validation_loss: the model with its best value is kept in "
        "best.safetensors; none: no other model than the last",
    )

    def due(self, round: int, last: float, group: Group) -> bool:
        """True if one is due after so many rounds; last: the time.monotonic() of the last one."""
        rounds, seconds = self.every_rounds, self.every_seconds
        if rounds is not None and round % rounds == 0:
            return True
        return seconds is not None and group.first(lambda: world.monotonic() - last > seconds)


class Snapshot(NamedTuple):
    """The content of a checkpoint beside the client states. srv: a record; extra: JSON."""

    round: int
    srv: Rec
    buffers: Vec
    extra: dict[str, Any]


class RunDirectory:
    """The files of one run. Raises ConfigError for a folder that cannot be made, CheckpointError
    for a broken one. group: the ranks of the run; the first one writes, and its error is that of
    all.
    """

    def __init__(self, path: str | Path, group: Group = ALONE) -> None:
        self.path, self.group = user_path(path), group
        self.checkpoints = self.path / "checkpoints"
        self.memory_folder = self.path / "memory"
        self.rounds = self.path / LOG
        self._logged: tuple[int, Any] | None = None  # bytes of the log, and their checksum
        self._replaced: Callable[[], bool] = lambda: False

    @property
    def resume(self) -> str:
        """The command that resumes the run, quoted for a shell."""
        return resuming(self.path)

    @contextlib.contextmanager
    def locked(self, new: bool = False) -> Iterator[None]:
        """Inside, no other process may run here. new: the folder is made and must not contain a run
        already; if two begin at once, the second is refused before it has written anything.

        Raises ConfigError if another process runs here, CheckpointError if nothing can be written,
        or a link would lead the run elsewhere.
        """
        with contextlib.ExitStack() as stack:
            self.group.first(lambda: self._lock(stack, new))
            yield

    def _lock(self, stack: contextlib.ExitStack, new: bool) -> None:
        if new:
            self._make(self.path)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise _unwritable(self.path, "Permission denied")
        self._refuse_links()
        try:
            self._replaced = stack.enter_context(hold(self.path / ".lock"))
        except BlockingIOError as error:
            raise ConfigError(
                f"'{self.path}' is being run by another process ({error.strerror}); wait until it "
                "has ended, or stop it"
            ) from None
        except OSError as error:
            raise CheckpointError(f"'{self.path}' cannot be written: {error.strerror}") from None
        if new:
            world.sync_folder(self.path)  # the lock comes first after a crash, too: see free()
            self._make(self.checkpoints)
            self._sweep(self.path)  # of a process that was killed before anything could be resumed

    def _make(self, folder: Path) -> None:
        if self.path.exists() and not self.free():
            how = "choose another folder (--out, in Python out=)"
            if not self.path.is_dir():
                raise ConfigError(f"'{self.path}' exists and is not a folder; {how}")
            if (self.path / "config.toml").exists():
                resume = self.resume
                with contextlib.suppress(
                    CheckpointError
                ):  # what is damaged is named when the run goes on
                    if self.read_config().get("source") == "python":
                        resume = f"Experiment(...).resume('{self.path}')"
                how = f"go on with {resume} if it is this run, or {how}"
            raise ConfigError(f"'{self.path}' exists and is not empty; {how}")
        try:
            make_folder(folder)
        except OSError as error:
            raise _unwritable(self.path, error.strerror or str(error)) from None

    def free(self) -> bool:
        """True if there is nothing, or only files of a run killed before it could be resumed."""
        if not self.path.is_dir():
            return False
        rest = {p.name for p in self.path.iterdir()} - {p.name for p in parts(self.path)}
        early = {".lock", ".ranks", "checkpoints"}
        early |= {"partition.json", "environment.json", "fingerprint.json"}
        if not rest:
            return True
        folder = self.checkpoints
        bare = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        return ".lock" in rest and rest <= early and bare  # the lock is the first that a run makes

    def holds_run(self) -> bool:
        """True if a run has begun here, and can be resumed."""
        return self.group.first((self.path / "config.toml").is_file)

    def open(self) -> None:
        """Check that a run is here."""
        if not self.holds_run():
            raise CheckpointError(
                f"'{self.path}' is not a run directory: it has no config.toml; "
                "see `fedloom list runs`"
            )

    def holder(self) -> str | None:
        """The process that runs here, as text; None if there is none."""
        return holder(self.path / ".lock")

    def _refuse_links(self) -> None:
        """Raise CheckpointError for a link in place of a file that a run cuts or deletes."""
        paths = [self.path / ".lock", self.rounds, self.checkpoints, self.memory_folder]
        for folder in round_paths(self.checkpoints):
            paths += [folder, *(folder / name for name in FILES)]
        for path in paths:
            if path.is_symlink():
                raise CheckpointError(
                    f"'{path}' is a link, and a run would change what it leads to; put a copy in "
                    "its place"
                )

    def _refuse_strangers(self) -> None:
        """Raise CheckpointError if another run has taken this folder's place."""
        if self._replaced():
            raise CheckpointError(
                f"'{self.path}' was removed while it was being run, and another run has begun "
                "there; this one stops, and leaves that one alone"
            )

    # -------------------------------------------------------------------------------- small files
    def write_json(self, name: str, value: Any, indent: int | None = 1) -> None:
        """Write a JSON file whole. indent None: on one line, ten times as fast."""
        write_atomic(self.path / name, json.dumps(value, indent=indent) + "\n")

    def read_object(self, name: str) -> dict[str, Any]:
        """Read a JSON file that holds an object. Raises CheckpointError."""
        if not (self.path / name).is_file():
            raise CheckpointError(f"'{self.path / name}' cannot be read: it is gone")
        return read_object(self.path, name)

    def read_config(self) -> dict[str, Any]:
        """Read the resolved configuration. Raises CheckpointError."""
        try:
            return parse_toml(read_file(self.path, "config.toml").decode())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / 'config.toml'} cannot be read: {error}") from None

    # ------------------------------------------------------------------------- the log of rounds
    def append_round(self, row: Mapping[str, Any]) -> None:
        """Append a line to the log of rounds. Raises CheckpointError."""
        self.group.first(functools.partial(self._append, json.dumps(row).encode() + b"\n"))

    def _append(self, line: bytes) -> None:
        self._refuse_strangers()
        try:
            size, digest = self._log_state()
            world.append(self.rounds, line)
        except OSError as error:
            raise CheckpointError(
                f"'{self.rounds}' cannot be written: {error.strerror or error}; "
                f"{remedy(error)}, then {self.resume}"
            ) from error
        digest.update(line)
        self._logged = size + len(line), digest

    def _log_state(self) -> tuple[int, Any]:
        """The length of the log and its checksum, to which rows are added as they are written, so
        that checkpoints do not read it again.
        """
        if self._logged is None:
            size = self.rounds.stat().st_size if self.rounds.exists() else 0
            self._logged = size, running_checksum(self.rounds, size) if size else hashlib.sha256()
        return self._logged

    def read_rounds(self, log_bytes: int, rounds: int) -> list[dict[str, Any]]:
        """The log's rows up to a checkpoint: so many bytes, a row per round. Or CheckpointError."""
        return self.group.first(lambda: self._read_rounds(log_bytes, rounds))

    def _read_rounds(self, log_bytes: int, rounds: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        again = "put back the file as it was, or start again in another folder"
        try:
            raw = self.rounds.read_bytes()[:log_bytes] if log_bytes else b""
        except OSError as error:
            raise CheckpointError(f"'{self.rounds}' cannot be read: {error.strerror}") from None
        for n, line in enumerate(raw.splitlines(), 1):
            try:
                rows.append(parse_json(line))
                if rows[-1]["round"] != n:
                    raise ValueError(f"it is of round {rows[-1]['round']}")
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"line {n} of '{self.rounds}' is damaged ({error}); {again}"
                ) from None
        if len(rows) != rounds:
            raise CheckpointError(
                f"'{self.rounds}' has {len(rows)} rounds, and its checkpoint {rounds}; {again}"
            )
        return rows

    def read_log(self) -> list[dict[str, Any]]:
        """All rows of the log; of a last one that is half written there is none. Raises
        CheckpointError.
        """
        raw = self.rounds.read_bytes() if self.rounds.exists() else b""
        return self.read_rounds(raw.rfind(b"\n") + 1, raw.count(b"\n"))

    def least_rounds(self) -> int:
        """How many rounds are done for sure, whether their checkpoints can be read or not: of the
        log's last row there may be none, if the process was killed.
        """
        rows = self.rounds.read_bytes().count(b"\n") if self.rounds.exists() else 0
        return max(rows - 1, 0, *(int(folder.name) for folder in round_folders(self.checkpoints)))

    # -------------------------------------------------------------------------------- checkpoints
    def save(self, state: Snapshot, memory: ClientStates, keep: int) -> None:
        """Write a checkpoint, and keep the last `keep`. Raises OSError: the old ones are valid."""
        self.group.first(self._refuse_strangers)
        index = memory.save()
        self.group.first(lambda: self._save(state, index, memory, keep))

    def _save(self, state: Snapshot, index: Any, memory: ClientStates, keep: int) -> None:
        folder = self.checkpoints / f"{state.round:08d}"
        if (folder / "manifest.json").exists():
            return
        remove(folder)
        make_folder(folder)
        try:
            shape, arrays = freeze(state.srv)
            tensors = {f"srv/{k}": v for k, v in arrays.items()}
            tensors["buffers"] = state.buffers.detach().cpu().contiguous()
            file = folder / "state.safetensors"
            write_tensors(file, tensors)
            write_atomic(folder / "memory.json", json.dumps(index))
            if self.rounds.exists():
                world.sync(self.rounds)
                world.sync_folder(self.path)  # its name
            log_bytes, log = self._log_state()
            manifest = {
                "round": state.round,
                "srv": shape,
                "log_bytes": log_bytes,
                "log_sha256": log.hexdigest(),
                "sha256": {f.name: checksum(f) for f in (file, folder / "memory.json")},
                "extra": state.extra,
            }
            write_manifest(folder, manifest)
        except BaseException:
            remove(folder)
            raise
        world.sync_folder(self.checkpoints)
        self._prune(memory, keep)

    def _prune(self, memory: ClientStates, keep: int) -> None:
        folders = round_folders(self.checkpoints)
        for folder in folders[: max(len(folders) - keep, 0)]:
            remove(folder)
        indexes = []
        for folder in round_folders(self.checkpoints):
            try:
                indexes.append(parse_json((folder / "memory.json").read_text()))
            except (OSError, ValueError) as error:
                _log.warning("checkpoint %s is damaged and removed: %s", folder, error)
                remove(folder)
        memory.discard(indexes)

    def load(
        self,
        memory: ClientStates,
        device: torch.device | str = "cpu",
        older: bool = True,
        before: int | None = None,
    ) -> Snapshot | None:
        """The newest whole checkpoint, with the client states set to it; None if none was ever
        written. before: the newest one before this round (from 1); None if none is kept.

        A damaged one is skipped with a warning if an older one is whole. Raises CheckpointError if
        none is, or, without `older`, if the newest is damaged.
        """
        problems = []
        for folder in self.group.first(lambda: round_folders(self.checkpoints))[::-1]:
            if before is not None and int(folder.name) >= before:
                continue
            try:
                state, index = self.group.first(functools.partial(self._load, folder))
                memory.restore(index)
            except (CheckpointError, OSError, SafetensorError, *MALFORMED) as error:
                if not older:
                    raise CheckpointError(damaged(folder, error)) from None
                problems.append(f"{folder.name}: {error}")
                _log.warning("checkpoint %s is damaged and passed over: %s", folder, error)
                continue
            move = lambda v: v.to(device) if isinstance(v, Tensor) else v
            return state._replace(srv=tree(move, state.srv), buffers=state.buffers.to(device))
        if problems:
            raise CheckpointError(
                f"no checkpoint of '{self.path}' can be read ({'; '.join(problems)}); "
                f"put back the files as they were, or start again in another folder"
            )
        if before is not None:
            return None
        lost = (self.path / "summary.json").exists() or not self.checkpoints.is_dir()
        if lost and self.rounds.exists() and self.rounds.stat().st_size:
            raise CheckpointError(
                f"'{self.path}' has rounds, and its checkpoints are gone; put back "
                f"'{self.checkpoints}' as it was, or start again in another folder"
            )
        return None

    def _load(self, folder: Path) -> tuple[Snapshot, dict[str, Any]]:
        """A checkpoint on the CPU, and the index of its client states."""
        manifest = whole_checkpoint(folder)
        tensors = load_file(folder / "state.safetensors")
        arrays = {k.removeprefix("srv/"): v for k, v in tensors.items() if k.startswith("srv/")}
        extra = manifest["extra"] | {"log": manifest["log_bytes"]}
        round, srv = int(manifest["round"]), thaw(manifest["srv"], arrays)
        index = parse_json((folder / "memory.json").read_text())
        return Snapshot(round, srv, tensors["buffers"], extra), index

    def rewind(self, log_bytes: int, after: int) -> None:
        """Cut the log back to a checkpoint, and delete damaged checkpoints later than `after`."""
        self.group.first(lambda: self._rewind(log_bytes, after))

    def _rewind(self, log_bytes: int, after: int) -> None:
        folders = round_folders(self.checkpoints, whole=False)
        unseal(self.path, BEST, *GROWING)
        for folder in folders:
            if int(folder.name) > after:
                remove(folder)
        if self.rounds.exists():
            world.truncate(self.rounds, log_bytes)
        self._logged = None
        self._sweep(self.path, self.memory_folder, *folders)

    def _sweep(self, *folders: Path) -> None:
        """Remove temporary files of a killed process."""
        for part in itertools.chain.from_iterable(map(parts, folders)):
            world.unlink(part)


def _unwritable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the run directory '{path}' cannot be written: {why}; choose another with out="
    )
