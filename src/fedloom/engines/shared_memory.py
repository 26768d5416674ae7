"""Objects for other processes of this machine: large tensors go through shared memory, the rest is
pickled by value.

cloudpickle takes lambdas and classes of the user's own script, so a script needs no `if __name__ ==
"__main__"`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from ..core.vector import aligned, as_bytes

# not "fedloom-": versions before this one remove what begins so and has a number that they do not
# know, though its owner may live in another container
_PREFIX = "fedloom.board-"

_LARGE = 1 << 16  # bytes; below, a file of its own costs more than a copy


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles plain CPU tensors as bytes; large ones as a file's name if there is a folder."""

    def __init__(self, out: io.BytesIO, folder: Path | None = None, stem: str = "") -> None:
        super().__init__(out, protocol=5)
        self._folder, self._stem, self._count = folder, stem, 0
        self._names: dict[
            int, tuple[Tensor, str]
        ] = {}  # keeps the tensors alive, so that ids stay theirs

    def persistent_id(self, obj: Any) -> Any:
        if self._folder is None or not _is_plain(obj) or obj.nbytes < _LARGE:
            return None
        if id(obj) not in self._names:
            name = f"{self._stem}.{self._count}"
            self._count += 1
            _bytes_of(_stored(obj)).tofile(self._folder / name)
            self._names[id(obj)] = (obj, name)
        place = (tuple(obj.shape), obj.stride(), obj.storage_offset()) if _overlaps(obj) else None
        shape = tuple(_stored(obj).shape)
        return self._names[id(obj)][1], str(obj.dtype).removeprefix("torch."), shape, place

    def reducer_override(self, obj: Any) -> Any:
        if _is_plain(obj) and not obj.requires_grad:
            name = str(obj.dtype).removeprefix("torch.")
            return _tensor, (_bytes_of(obj), name, tuple(obj.shape))
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def persistent_load(self, pid: Any) -> Tensor:
        name, dtype, shape, place = pid
        # copy on write: a process that writes by mistake changes its own page only
        whole = _tensor(np.memmap(self._folder / name, np.uint8, mode="c"), dtype, shape)
        return whole if place is None else whole.as_strided(*place)


def _is_plain(obj: Any) -> bool:
    """True for a CPU tensor that is of no subclass."""
    return type(obj) is Tensor and obj.device.type == "cpu"


def _overlaps(t: Tensor) -> bool:
    """True if entries share memory, as the windows of a text do. Written out, such a tensor would
    be many times as large.
    """
    return t.untyped_storage().nbytes() < t.nbytes


def _stored(t: Tensor) -> Tensor:
    """The part of a tensor to store: itself, or its whole storage if entries share memory."""
    if not _overlaps(t):
        return t
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())


def _bytes_of(t: Tensor) -> Any:
    return as_bytes(t).numpy()


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    if not raw.flags.writeable:
        raw = raw.copy()
    whole = aligned(torch.from_numpy(np.asarray(raw)))
    return whole.view(getattr(torch, dtype)).view(shape)


def dumps(value: Any) -> bytes:
    """Pickle by value, with tensors as bytes."""
    out = io.BytesIO()
    _Pickler(out).dump(value)
    return out.getvalue()


def loads(raw: bytes) -> Any:
    """The object given to dumps()."""
    return pickle.loads(raw)


def load(path: str) -> Any:
    """The object that a Board posted under this path. Large tensors are mapped, not read."""
    with open(path, "rb") as f:
        return _Unpickler(f, Path(path).parent).load()


class Board:
    """A folder in shared memory where one process posts objects that others load().

    Its owner holds a lock on it, which the system releases however the owner ends. The next board
    removes folders without a lock. A process number would not do: in another container that shares
    the memory it means another process, or none.
    """

    def __init__(self) -> None:
        home = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
        root = Path(home or tempfile.gettempdir())
        _sweep(root)
        self.folder, self._lock = _held(root)
        self._posts = 0

    def post(self, value: Any) -> str:
        """Write an object; returns the path for load(). Raises OSError if the memory is full."""
        self._posts += 1
        name, out = f"post{self._posts}", io.BytesIO()
        _Pickler(out, self.folder, name).dump(value)
        (self.folder / name).write_bytes(out.getvalue())
        return str(self.folder / name)

    def remove(self, path: str) -> None:
        """Delete a posted object. Processes that have already loaded it keep their copy."""
        for file in [Path(path), *self.folder.glob(f"{Path(path).name}.*")]:
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete everything. It may be called twice."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _held(root: Path) -> tuple[Path, int | None]:
    """A new folder and the descriptor of its lock; None on systems without such locks."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
        if sys.platform == "win32":
            return folder, None
        try:
            opened = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        _locked(opened, wait=True)  # another process may have removed it
        if folder.exists():
            return folder, opened
        os.close(opened)


def _locked(folder: int, wait: bool) -> bool:
    """Lock an open folder. False if it is locked already, or the file system has no locks."""
    import fcntl

    try:
        fcntl.flock(folder, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(root: Path) -> None:
    """Remove this user's boards that no process holds."""
    if sys.platform == "win32":
        return
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(opened).st_uid == os.getuid() and _locked(opened, wait=False):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(opened)
