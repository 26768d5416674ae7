"""Objects for other processes of this machine: large tensors through shared memory, the rest
pickled by value, lambdas and classes of the user's own script too.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from ..core.interrupts import block_hangups
from ..core.own_parts import modules
from ..core.vector import aligned, as_bytes

_LARGE = 1 << 16  # bytes; below, a place in a file costs more than a copy
_ALIGNED = 64  # bytes, as torch's own memory is


class Parcel(NamedTuple):
    """A pickled object. places: first byte and length in the file of each large tensor."""

    body: bytes
    file: str
    places: list[tuple[int, int]]


def _apart(large: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    """What moves large buffers to this list. A method of the pickler would refer back to it, so
    that all it has pickled stayed in memory until Python looks for such cycles.
    """

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _LARGE:
            large.append(raw)
        return raw.nbytes < _LARGE

    return stays


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles plain CPU tensors as bytes, large ones into a list, if they are to lie apart."""

    def __init__(self, out: io.BytesIO, large: list[memoryview] | None = None) -> None:
        self._large = [] if large is None else large
        apart = None if large is None else _apart(large)
        super().__init__(out, protocol=5, buffer_callback=apart)
        for module in modules():  # of files that no other process can import
            cloudpickle.register_pickle_by_value(module)
        self.numbers: dict[int, int] = {}  # of a tensor, by its id: where in the list it comes

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.device.type != "cpu" or obj.requires_grad:
            return super().reducer_override(obj)
        self.numbers[id(obj)], whole, place = len(self._large), obj, None
        # entries may share memory, as the windows of a text do: written out they would be many
        # times as large
        if obj.untyped_storage().nbytes() < obj.nbytes:
            place = tuple(obj.shape), obj.stride(), obj.storage_offset()
            whole = torch.empty(0, dtype=obj.dtype).set_(obj.untyped_storage())
        name = str(obj.dtype).removeprefix("torch.")
        return _tensor, (as_bytes(whole).numpy(), name, tuple(whole.shape), place)


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...], place: Any = None) -> Tensor:
    raw = raw if raw.flags.writeable else raw.copy()
    whole = aligned(torch.from_numpy(np.asarray(raw))).view(getattr(torch, dtype)).view(shape)
    return whole if place is None else whole.as_strided(*place)


def _written(value: Any, folder: Path, file: str) -> tuple[Parcel, _Pickler]:
    """Pickle by value, with large tensors in a file. Raises OSError if the memory is full."""
    out, large, places = io.BytesIO(), list[memoryview](), []
    pickler = _Pickler(out, large)
    pickler.dump(value)
    if large:
        with open(folder / file, "wb") as f:
            for raw in large:
                f.seek(-(-f.tell() // _ALIGNED) * _ALIGNED)
                places.append((f.tell(), raw.nbytes))
                f.write(raw)
    return Parcel(out.getvalue(), file, places), pickler


def packed(value: Any, folder: Path, file: str) -> Parcel:
    """Pickle by value, large tensors in a file; all of it as bytes if the memory is full."""
    try:
        return _written(value, folder, file)[0]
    except OSError:
        (folder / file).unlink(missing_ok=True)
        _Pickler(out := io.BytesIO()).dump(value)
        return Parcel(out.getvalue(), file, [])


def _mapped(file: Path) -> Any:
    """The bytes of a file, mapped; who writes to them by mistake changes a copy."""
    return np.memmap(file, np.uint8, mode="c")


def unpacked(parcel: Parcel, folder: Path) -> Any:
    """The object of a Parcel. Large tensors are mapped, not read."""
    body, file, places = parcel
    raw = _mapped(folder / file) if places else np.empty(0)
    return pickle.loads(body, buffers=[raw[a : a + count] for a, count in places])


def load(path: str) -> Any:
    """The object that a Board posted under this path. Large tensors are mapped, not read."""
    return unpacked(pickle.loads(Path(path).read_bytes()), Path(path).parent)


class Board:
    """A folder in shared memory where one process posts objects that others load(). If its owner is
    killed, loky's resource tracker removes it.
    """

    def __init__(self) -> None:
        from loky.backend import resource_tracker

        home = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
        # not "fedloom.board-": a version before this one removes such folders without a lock
        self.folder, self._count = Path(tempfile.mkdtemp(prefix="fedloom.posts-", dir=home)), 0
        self._tracker: Any = resource_tracker
        with block_hangups():
            self._tracker.register(str(self.folder), "folder")

    def post(self, value: Any, once: Iterable[Tensor] = ()) -> str:
        """Write an object -> its path for load(). Raises OSError if the memory is full.

        once: tensors of the object that nobody changes. They lie in shared memory afterwards, here
        as in other processes, and not in this process's memory as well.
        """
        path = self.folder / self.new_name("post")
        parcel, pickler = _written(value, self.folder, f"{path.name}.large")
        for t in once:
            n = pickler.numbers.get(id(t), len(parcel.places))
            if t.is_contiguous() and t.nbytes >= _LARGE and n < len(parcel.places):
                first, count = parcel.places[n]
                raw = _mapped(self.folder / parcel.file)[first : first + count]
                mapped = _tensor(raw, str(t.dtype).removeprefix("torch."), tuple(t.shape))
                t.set_(mapped.untyped_storage(), mapped.storage_offset(), t.shape, t.stride())
        path.write_bytes(pickle.dumps(parcel))
        return str(path)

    def remove(self, path: str) -> None:
        """Delete a posted object. Processes that have already loaded it keep their copy."""
        for file in (path, f"{path}.large"):
            Path(file).unlink(missing_ok=True)

    def new_name(self, word: str) -> str:
        """A name for files of this board."""
        self._count += 1
        return f"{word}{self._count}"

    def pack(self, value: Any) -> Parcel:
        """An object for one task."""
        return packed(value, self.folder, self.new_name("sent"))

    def delete(self, parcels: Iterable[Parcel]) -> None:
        """Delete the files of these, where they are there."""
        for parcel in parcels:
            (self.folder / parcel.file).unlink(missing_ok=True)

    def take(self, parcel: Parcel) -> Any:
        """The object that a worker packed, in memory of this process; its file is deleted."""
        buffers: list[memoryview] = []
        if parcel.places:
            with open(self.folder / parcel.file, "rb") as f:
                for first, count in parcel.places:
                    f.seek(first)
                    buffers.append(memoryview(torch.empty(count, dtype=torch.uint8).numpy().data))
                    f.readinto(buffers[-1])
        self.delete([parcel])
        return pickle.loads(parcel.body, buffers=buffers)

    def close(self) -> None:
        """Delete everything. It may be called twice."""
        if self._tracker is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._tracker.unregister(str(self.folder), "folder")
            self._tracker = None
