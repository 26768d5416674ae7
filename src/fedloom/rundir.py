"""A run's directory: what it was told, what it did, and checkpoints from which it goes on.

A checkpoint is a folder whose manifest.json is written last: without it the folder does not count.
Everything before it has been forced to the disk by then, client memory included. The log of rounds
is cut back to where the checkpoint was when a run goes on from it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from .errors import CheckpointError, ConfigError
from .files import checksum, remedy, sync_folder, write_atomic
from .memory import ClientMemory
from .storage import freeze, thaw, write_tensors
from .vector import Rec, Vec

__all__ = ["RunDirectory", "State"]

_log = logging.getLogger(__name__)


class State(NamedTuple):
    """What a checkpoint holds beside client memory. extra: JSON of the loop."""

    round: int
    srv: Rec
    buffers: Vec
    extra: dict[str, Any]


class RunDirectory:
    """The files of one run. Raises ConfigError for a folder that cannot be made, CheckpointError
    for a broken one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.memory_folder = self.path / "memory"
        self.rounds = self.path / "rounds.jsonl"

    def create(self) -> None:
        """Make the folder; it must not hold a run already."""
        if self.path.exists() and not self._empty():
            raise ConfigError(
                f"'{self.path}' exists and is not empty; go on with `fedloom resume {self.path}`, "
                "or choose another folder with out="
            )
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"the run directory '{self.path}' cannot be written: {error.strerror}; "
                "choose another with out="
            ) from None

    def _empty(self) -> bool:
        """Say whether nothing is here, or only what a run left that was killed in its first
        moments, before it could be resumed.
        """
        begun = {"checkpoints", "partition.json", "environment.json", "fingerprint.json"}
        return self.path.is_dir() and all(
            p.name in begun or p.name.endswith(".part") or p.name in (".writable", ".lock")
            for p in self.path.iterdir()
        )

    def open(self) -> None:
        """Check that a run is here."""
        if not (self.path / "config.toml").is_file():
            raise CheckpointError(
                f"'{self.path}' is not a run directory: it has no config.toml; "
                "see `fedloom list runs`"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, no other process may run what is here. Raises ConfigError if one does,
        CheckpointError where nothing can be written.
        """
        try:
            import fcntl
        except ImportError:  # no such locks here
            yield
            return
        try:
            lock = open(self.path / ".lock", "a")  # noqa: SIM115  # closed below, with the lock
        except OSError as error:
            raise CheckpointError(f"'{self.path}' cannot be written: {error.strerror}") from None
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"'{self.path}' is being run by another process; wait until it has ended, or "
                    "stop it"
                ) from None
            except OSError as error:
                _log.debug("no lock on this file system: %s", error)
            yield

    # -------------------------------------------------------------------------------- small files
    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file whole."""
        write_atomic(self.path / name, json.dumps(value, indent=1) + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON file. Raises CheckpointError."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / name} cannot be read: {error}") from None

    def read_config(self) -> dict[str, Any]:
        """Read the resolved configuration. Raises CheckpointError."""
        try:
            return tomllib.loads((self.path / "config.toml").read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / 'config.toml'} cannot be read: {error}") from None

    def append_round(self, row: Mapping[str, Any]) -> None:
        """One more line of the log of rounds. Raises CheckpointError."""
        try:
            with open(self.rounds, "a") as f:
                f.write(json.dumps(row) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"'{self.rounds}' cannot be written: {error.strerror or error}; "
                f"{remedy(error)}, then `fedloom resume {self.path}`"
            ) from error

    def read_rounds(self, log_bytes: int, rounds: int) -> list[dict[str, Any]]:
        """The rows of the log until a checkpoint: so many bytes, and a row for each round. Raises
        CheckpointError.
        """
        rows: list[dict[str, Any]] = []
        try:
            raw = self.rounds.read_bytes()[:log_bytes] if log_bytes else b""
        except OSError as error:
            raise CheckpointError(f"'{self.rounds}' cannot be read: {error.strerror}") from None
        for n, line in enumerate(raw.splitlines(), 1):
            try:
                row = json.loads(line)
                if row["round"] != n:
                    raise ValueError(f"it is of round {row['round']}")
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"line {n} of '{self.rounds}' is damaged ({error}); put back the file as it "
                    "was, or start again in another folder"
                ) from None
            rows.append(row)
        if len(rows) != rounds:
            raise CheckpointError(
                f"'{self.rounds}' has {len(rows)} rounds, and its checkpoint {rounds}; put back "
                "the file as it was, or start again in another folder"
            )
        return rows

    # -------------------------------------------------------------------------------- checkpoints
    def save(self, state: State, memory: ClientMemory, keep: int) -> None:
        """Write a checkpoint, then delete those beyond the last `keep`. Raises OSError; then the
        old ones still serve.
        """
        memory.flush()
        folder = self.checkpoints / f"{state.round:08d}"
        if (folder / "manifest.json").exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            shape, tensors = freeze(state.srv)
            tensors = {f"srv/{k}": v for k, v in tensors.items()}
            tensors["buffers"] = state.buffers.detach().cpu().contiguous()
            file = folder / "state.safetensors"
            write_tensors(file, tensors)
            write_atomic(folder / "memory.json", json.dumps(memory.index()))
            _sync_file(self.rounds)
            manifest = {
                "format": 1,
                "round": state.round,
                "srv": shape,
                "log_bytes": self.rounds.stat().st_size if self.rounds.exists() else 0,
                "sha256": {f.name: checksum(f) for f in (file, folder / "memory.json")},
                "extra": state.extra,
            }
            write_atomic(folder / "manifest.json", json.dumps(manifest, indent=1))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync_folder(self.checkpoints)
        self._prune(memory, keep)

    def _prune(self, memory: ClientMemory, keep: int) -> None:
        found = self._found()
        for folder in found[: max(len(found) - keep, 0)]:
            (folder / "manifest.json").unlink(missing_ok=True)  # first it stops being one
            shutil.rmtree(folder, ignore_errors=True)
        kept = []
        for folder in self._found():
            try:
                kept.append(json.loads((folder / "memory.json").read_text()))
            except (OSError, ValueError) as error:
                _log.warning("checkpoint %s is damaged and removed: %s", folder, error)
                (folder / "manifest.json").unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
        memory.discard(kept)

    def _found(self) -> list[Path]:
        return sorted(p.parent for p in self.checkpoints.glob("*/manifest.json"))

    def load(self, memory: ClientMemory, device: torch.device | str = "cpu") -> State | None:
        """The newest checkpoint that is whole, with client memory set to it; None if none was ever
        written.

        A damaged one is passed over with a warning if an older one serves. Raises CheckpointError
        if none does.
        """
        found, problems = self._found(), []
        for folder in reversed(found):
            try:
                state = self._load(folder, memory, device)
            except (CheckpointError, OSError, ValueError, KeyError, SafetensorError) as error:
                problems.append(f"{folder.name}: {error}")
                _log.warning("checkpoint %s is damaged and passed over: %s", folder, error)
                continue
            return state
        if problems:
            raise CheckpointError(
                f"no checkpoint of '{self.path}' can be read ({'; '.join(problems)}); "
                "start again in another folder"
            )
        return None

    def _load(self, folder: Path, memory: ClientMemory, device: torch.device | str) -> State:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, wanted in manifest["sha256"].items():
            if checksum(folder / name) != wanted:
                raise CheckpointError(f"{name} does not have the checksum it was written with")
        tensors = load_file(folder / "state.safetensors")
        srv = thaw(
            manifest["srv"],
            {k.removeprefix("srv/"): v for k, v in tensors.items() if k.startswith("srv/")},
            device,
        )
        size = self.rounds.stat().st_size if self.rounds.exists() else 0
        if size < manifest["log_bytes"]:
            how = "shorter than it was" if size else "gone"
            raise CheckpointError(f"{self.rounds.name} is {how}")
        memory.restore(json.loads((folder / "memory.json").read_text()))
        buffers = tensors["buffers"].to(device)
        return State(
            int(manifest["round"]), srv, buffers, manifest["extra"] | {"log": manifest["log_bytes"]}
        )

    def rewind(self, log_bytes: int, after: int) -> None:
        """Cut the log back to a checkpoint, and drop checkpoints later than `after`, which are
        damaged.
        """
        if self.rounds.exists():
            os.truncate(self.rounds, log_bytes)
        for folder in self.checkpoints.iterdir() if self.checkpoints.exists() else ():
            if folder.is_dir() and folder.name > f"{after:08d}":
                shutil.rmtree(folder, ignore_errors=True)
        for part in self.path.rglob(".*.part"):  # of a write that a kill cut short
            part.unlink(missing_ok=True)


def _sync_file(path: Path) -> None:
    if path.exists():
        with open(path, "rb+") as f:
            os.fsync(f.fileno())
