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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from ..core.own_parts import modules
from ..core.vector import aligned, as_bytes

# not "fedloom-": versions before this one remove what begins so and has a number that they do not
# know, though its owner may live in another container
_PREFIX = "fedloom.board-"

_LARGE = 1 << 16  # bytes; below, a file of its own costs more than a copy


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles plain CPU tensors as bytes; large ones as a file's name if there is a folder.
    files: the files.
    """

    def __init__(self, out: io.BytesIO, folder: Path | None = None, stem: str = "") -> None:
        super().__init__(out, protocol=5)
        for module in modules():  # of files that no other process can import
            cloudpickle.register_pickle_by_value(module)
        self._folder, self._stem = folder, stem
        self.files: list[Path] = []
        self._names: dict[
            int, tuple[Tensor, str]
        ] = {}  # keeps the tensors alive, so that ids stay theirs

    def persistent_id(self, obj: Any) -> Any:
        if self._folder is None or not _is_plain(obj) or obj.nbytes < _LARGE:
            return None
        if id(obj) not in self._names:
            name = f"{self._stem}.{len(self.files)}"
            self.files.append(self._folder / name)
            as_bytes(_stored(obj)).numpy().tofile(self.files[-1])
            self._names[id(obj)] = (obj, name)
        place = (tuple(obj.shape), obj.stride(), obj.storage_offset()) if _overlaps(obj) else None
        shape = tuple(_stored(obj).shape)
        return self._names[id(obj)][1], str(obj.dtype).removeprefix("torch."), shape, place

    def move(self, t: Tensor) -> None:
        """Let a tensor lie in the file to which it was written, if it was."""
        entry = self._names.get(id(t))
        if entry is not None and self._folder is not None and t.is_contiguous():
            name = str(t.dtype).removeprefix("torch.")
            mapped = _tensor(_mapped(self._folder / entry[1]), name, tuple(t.shape))
            t.set_(mapped.untyped_storage(), mapped.storage_offset(), mapped.shape, mapped.stride())

    def reducer_override(self, obj: Any) -> Any:
        if _is_plain(obj) and not obj.requires_grad:
            name = str(obj.dtype).removeprefix("torch.")
            return _tensor, (as_bytes(obj).numpy(), name, tuple(obj.shape))
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """mapped: the tensors that were in files, by name. copy: read them, and map none."""

    def __init__(self, file: Any, folder: Path, copy: bool = False) -> None:
        super().__init__(file)
        self._folder, self._copy = folder, copy
        self.mapped: dict[str, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        name, dtype, shape, place = pid
        if name not in self.mapped:
            whole = _tensor(_mapped(self._folder / name), dtype, shape)
            whole = whole.clone() if self._copy else whole
            self.mapped[name] = whole if place is None else whole.as_strided(*place)
        return self.mapped[name]


def _mapped(path: Path) -> Any:
    """The bytes of a file, mapped. They are copied when they are written: a process that writes by
    mistake changes its own page only.
    """
    return np.memmap(path, np.uint8, mode="c")


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


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    if not raw.flags.writeable:
        raw = raw.copy()
    whole = aligned(torch.from_numpy(np.asarray(raw)))
    return whole.view(getattr(torch, dtype)).view(shape)


class Parcel(NamedTuple):
    """A pickled object, and the files with its large tensors that were written for it."""

    raw: bytes
    files: list[Path]


def packed(value: Any, folder: Path, stem: str) -> Parcel:
    """Pickle by value, with large tensors in files `stem`.0, .1, ... of a board's folder; with all
    of it as bytes if the memory is full.
    """
    for place in (folder, None):
        out = io.BytesIO()
        pickler = _Pickler(out, place, stem)
        try:
            pickler.dump(value)
            return Parcel(out.getvalue(), pickler.files)
        except OSError:
            delete(pickler.files)
            if place is None:
                raise
    raise AssertionError


def unpacked(raw: bytes, folder: Path) -> Any:
    """The object of a Parcel. Large tensors are mapped, not read."""
    return _Unpickler(io.BytesIO(raw), folder).load()


def delete(files: Iterable[Path]) -> None:
    """Delete those of these files that are there."""
    for file in files:
        file.unlink(missing_ok=True)


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
        self.folder, self._lock = _locked_folder(root)
        self._count = 0
        self._files: dict[str, list[Path]] = {}  # of posts

    def post(self, value: Any, name: str = "", once: Iterable[Tensor] = ()) -> str:
        """Write an object, and then the file of this name; returns its path for load(). Raises
        OSError if the memory is full.

        once: tensors of the object that nobody changes. They lie in shared memory afterwards, here
        as in other processes, and not in this process's memory as well.
        """
        path, out = self.folder / (name or self.stem("post")), io.BytesIO()
        pickler = _Pickler(out, self.folder, path.name)
        pickler.dump(value)
        for t in once:
            pickler.move(t)
        part = path.with_suffix(".part")
        part.write_bytes(out.getvalue())
        part.rename(path)
        self._files[str(path)] = [path, *pickler.files]
        return str(path)

    def remove(self, path: str) -> None:
        """Delete a posted object. Processes that have already loaded it keep their copy."""
        delete(self._files.pop(path, []))

    def stem(self, word: str) -> str:
        """A new name for files of this board."""
        self._count += 1
        return f"{word}{self._count}"

    def pack(self, value: Any) -> Parcel:
        """An object for one task."""
        return packed(value, self.folder, self.stem("sent"))

    def take(self, raw: bytes) -> Any:
        """The object that a worker packed; its files are deleted."""
        reader = _Unpickler(io.BytesIO(raw), self.folder, copy=True)
        value = reader.load()
        delete(self.folder / name for name in reader.mapped)
        return value

    def close(self) -> None:
        """Delete everything. It may be called twice."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked_folder(root: Path) -> tuple[Path, int | None]:
    """A new folder and the descriptor of its lock; None on systems without such locks."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
        if sys.platform == "win32":
            return folder, None
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        _locked(lock, wait=True)  # another process may have removed it
        if folder.exists():
            return folder, lock
        os.close(lock)


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
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(lock).st_uid == os.getuid() and _locked(lock, wait=False):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
