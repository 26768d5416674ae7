"""Client states between rounds: made at the first participation, written as new versions, bounded
in memory.

A row is one client's state. On disk a row is never overwritten: flush() writes the rows that
changed into a new segment file, and a checkpoint's index says which segment holds which client. A
segment is deleted when no kept checkpoint names it. Rows that are left alone in old segments move
on into new ones, so that the current segments hold few rows that are not current.

The index holds a checksum of every segment, which a resume checks.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.parsing import parse_json
from ..core.vector import Rec, leaves
from ..errors import CheckpointError
from . import world
from .atomic import checksum, make_folder, remedy
from .records import densify, freeze, sparsify, thaw, write_tensors

_SEGMENT = re.compile(r"(r[0-9]{1,9}-)?[0-9]{8,20}\.safetensors")  # other files are not ours
SPARE = 1.25  # rows in the current segments for each current row; 1.4 writes a fifth less
AT_ONCE = 1 << 27  # bytes of changed rows that are written before more are gathered, with a bound


class ClientStates(Protocol):
    """Where client states are between rounds."""

    def get(self, clients: Iterable[int]) -> dict[int, Rec]:
        """{client: row} of those with a row. Raises CheckpointError if one cannot be read."""

    def put(self, rows: dict[int, Rec]) -> None:
        """Store new versions of these clients' rows. Raises CheckpointError."""

    def drop(self, clients: Iterable[int]) -> None:
        """Delete the states of these clients: their next participation is their first."""

    def last(self, clients: Iterable[int]) -> dict[int, int | None]:
        """{client: the round of its last participation}, None for a new client; no row is read."""

    def save(self) -> dict[str, Any]:
        """Write what changed -> what a checkpoint needs to find every row again, as JSON. Raises
        OSError; then nothing changed.
        """

    def restore(self, index: dict[str, Any]) -> None:
        """Return to the states at a save(). Raises CheckpointError for a damaged file."""

    def discard(self, indexes: Iterable[dict[str, Any]]) -> None:
        """Delete the files that none of these indexes names, and that hold no current row."""


class Index(NamedTuple):
    """What a checkpoint needs to find every row again. segments: {name: rows in it, checksum};
    clients: {client: its row's segment, the round of its last participation}.
    """

    next: int
    segments: dict[str, tuple[int, str]]
    clients: dict[int, tuple[str, int]]

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Index:
        """An index as JSON. Raises CheckpointError for a name that no segment has."""
        names = [name for name, _, _ in stored["segments"]]
        if wrong := [n for n in names if not (isinstance(n, str) and _SEGMENT.fullmatch(n))]:
            raise CheckpointError(
                f"memory.json names {ascii(wrong[0])[:80]}, and client states are in files such as "
                "00000012.safetensors"
            )
        segments = {name: (int(rows), digest) for name, rows, digest in stored["segments"]}
        rows = zip(stored["clients"], stored["segment_of"], stored["last"], strict=True)
        clients = {int(i): (names[n], int(last)) for i, n, last in rows}
        return cls(int(stored["next"]), segments, clients)

    def as_json(self) -> dict[str, Any]:
        names, clients = sorted(self.segments), sorted(self.clients)
        number = {name: n for n, name in enumerate(names)}
        return {
            "next": self.next,
            "segments": [[name, *self.segments[name]] for name in names],
            "clients": clients,
            "segment_of": [number[self.clients[i][0]] for i in clients],
            "last": [self.clients[i][1] for i in clients],
        }


class ClientMemory:
    """Client states by client. folder None: all in memory, nothing on disk.

    resident_bytes: how much may stay in memory; beyond that the least recently used rows are on
    disk only. None: no bound. prefix: of the names of segments, where several processes write into
    one folder: "r3-" of rank 3. parts: clients may hold a part of the model, and of a row only that
    is kept.

    >>> from fedloom.core.vector import rec
    >>> memory = ClientMemory()
    >>> memory.put({7: rec(c=torch.ones(2), last=4.0)})
    >>> memory.get([3, 7])[7].c, memory.last([3, 7])
    (tensor([1., 1.]), {3: None, 7: 4})
    """

    def __init__(
        self,
        folder: Path | None = None,
        resident_bytes: int | None = None,
        device: torch.device | str = "cpu",
        prefix: str = "",
        parts: bool = False,
    ) -> None:
        self._folder, self._bound, self._device = folder, resident_bytes, device
        self._prefix, self._parts = prefix, parts
        self._last: dict[int, int] = {}  # client -> round of its last participation
        self._rows: OrderedDict[int, Rec] = OrderedDict()  # in memory, least recently used first
        self._dirty: set[int] = set()
        self._where: dict[int, tuple[str, int]] = {}  # of the rows on disk, see Index
        self._segments: dict[str, tuple[int, str]] = {}
        self._referenced: set[str] = set()  # segments that a checkpoint may need
        self._number = 0
        self._bytes = self._unsaved = 0  # in memory; put since the last flush

    def __len__(self) -> int:
        return len(self._rows.keys() | self._where.keys())

    def get(self, clients: Iterable[int]) -> dict[int, Rec]:
        states: dict[int, Rec] = {}
        absent: dict[str, list[int]] = {}
        for i in (clients := list(clients)):
            if i in self._rows:
                self._rows.move_to_end(i)
                states[i] = self._rows[i]
            elif i in self._where:
                absent.setdefault(self._where[i][0], []).append(i)
        for name, rows in absent.items():
            for i, row in self._read(name, rows).items():
                self._keep(i, row)
                states[i] = row
        return {i: densify(states[i]) if self._parts else states[i] for i in clients if i in states}

    def put(self, rows: dict[int, Rec]) -> None:
        if self._parts:
            rows = {i: sparsify(row) for i, row in rows.items()}
        for i, row in rows.items():
            self._keep(i, row)
            self._dirty.add(i)
            self._last[i] = int(row.last)
        if self._bound is None or self._folder is None:
            return
        self._unsaved += sum(map(_size, rows.values()))
        if self._unsaved > AT_ONCE or any(i in self._dirty for i in self._oldest()):
            try:
                self.flush()
            except OSError as error:
                raise CheckpointError(
                    f"client memory cannot be written to '{self._folder}': "
                    f"{error.strerror or error}; {remedy(error)}, then resume the run"
                ) from error
        self._evict()

    def _evict(self) -> None:
        for i in self._oldest():
            self._bytes -= _size(self._rows.pop(i))

    def drop(self, clients: Iterable[int]) -> None:
        for i in clients:
            if (row := self._rows.pop(i, None)) is not None and self._bound is not None:
                self._bytes -= _size(row)
            self._dirty.discard(i)
            self._where.pop(i, None)
            self._last.pop(i, None)

    def last(self, clients: Iterable[int]) -> dict[int, int | None]:
        return {i: self._last.get(i) for i in clients}

    def _oldest(self) -> list[int]:
        """The least recently used rows, which must leave memory for the bound."""
        if self._bound is None:
            return []
        out, over = [], self._bytes - self._bound
        for i, row in self._rows.items():
            if over <= 0:
                break
            out.append(i)
            over -= _size(row)
        return out

    def _keep(self, i: int, row: Rec) -> None:
        if self._bound is not None:  # nobody else asks
            self._bytes += _size(row) - (_size(self._rows[i]) if i in self._rows else 0)
        self._rows[i] = row
        self._rows.move_to_end(i)

    # ------------------------------------------------------------------------------------ on disk
    def save(self) -> dict[str, Any]:
        self.flush()
        return self.index()

    def flush(self) -> None:
        """Write the changed rows as a new segment. Raises OSError; then nothing changed."""
        assert self._folder is not None
        self._gather_stragglers()
        if not self._dirty:
            return
        make_folder(self._folder)
        tensors: dict[str, Tensor] = {}
        shapes: dict[str, Any] = {}
        for i in sorted(self._dirty):
            shapes[str(i)], row = freeze(self._rows[i])
            tensors |= {f"{i}/{name}": t for name, t in row.items()}
        name = f"{self._prefix}{self._number:08d}.safetensors"
        write_tensors(self._folder / name, tensors, {"rows": json.dumps(shapes)})
        self._number += 1
        self._where |= {i: (name, self._last[i]) for i in self._dirty}
        self._segments[name] = len(self._dirty), checksum(self._folder / name)
        self._dirty.clear()
        self._unsaved = 0
        self._evict()  # of what was gathered
        for name in self._segments.keys() - self._referenced - self._current():
            world.unlink(self._folder / name)
            del self._segments[name]

    def _gather_stragglers(self) -> None:
        """Move the current rows of the emptiest segments into the next one, while the segments
        hold more than SPARE rows for each current one: it bounds disk use.
        """
        live: dict[str, list[int]] = {}
        for i, (name, _) in self._where.items():
            if i not in self._dirty:
                live.setdefault(name, []).append(i)
        spare = sum(self._segments[name][0] for name in live) + len(self._dirty)
        spare -= int(SPARE * len(self._where.keys() | self._dirty))
        for name in sorted(live, key=lambda n: len(live[n]) / self._segments[n][0]):
            if spare <= 0:
                return
            spare -= self._segments[name][0] - len(live[name])
            self.get(live[name])
            self._dirty.update(live[name])

    def _current(self) -> set[str]:
        """The segments that hold current rows."""
        return {name for name, _ in self._where.values()}

    def index(self) -> dict[str, Any]:
        """What a checkpoint needs to find every row again, as JSON."""
        segments = {name: self._segments[name] for name in self._current()}
        self._referenced.update(segments)
        return Index(self._number, segments, self._where).as_json()

    def restore(self, index: dict[str, Any]) -> None:
        self._number, self._segments, self._where = Index.of(index)
        self._rows.clear()
        self._dirty.clear()
        self._bytes = 0
        self._referenced = set(self._segments)
        self._last = {i: last for i, (_, last) in self._where.items()}
        self._check()

    def _check(self) -> None:
        """Raise CheckpointError for a segment that is missing or damaged."""
        for name, (_, digest) in self._segments.items():
            path = (self._folder or Path()) / name
            if self._folder is None or not path.exists():
                raise CheckpointError(f"client memory {name} is missing in {self._folder}")
            if path.is_symlink() or not path.is_file():
                raise CheckpointError(f"client memory {path} is a link, or no file")
            if checksum(path) != digest:
                raise CheckpointError(f"client memory {name} is not as it was written")

    def discard(self, indexes: Iterable[dict[str, Any]]) -> None:
        if self._folder is None or not self._folder.exists():
            return
        self._referenced = {name for index in indexes for name, _, _ in index["segments"]}
        used = self._referenced | self._current()
        for path in self._folder.iterdir():
            if _SEGMENT.fullmatch(path.name) and path.name not in used:
                world.unlink(path)
        self._segments = {k: n for k, n in self._segments.items() if k in used}

    def _read(self, name: str, clients: list[int]) -> dict[int, Rec]:
        """The rows of these clients in a segment, which is opened once."""
        assert self._folder is not None
        path, label, states = self._folder / name, "client memory", dict[int, Rec]()
        try:
            with safe_open(path, framework="pt") as f:  # memory-mapped: reads these rows only
                shapes = parse_json(f.metadata()["rows"])
                for i in clients:
                    label, shape = f"client {i}'s memory", shapes[str(i)]
                    tensors = {k: f.get_tensor(f"{i}/{k}") for k in _paths(shape)}
                    states[i] = thaw(shape, tensors, self._device)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{label} in {path} cannot be read: {error}") from error
        return states


def _paths(shape: Any) -> list[str]:
    if not isinstance(shape, dict):
        return []
    if "tensor" in shape:
        return [shape["tensor"]]
    return [name for value in shape["fields"].values() for name in _paths(value)]


def _size(row: Rec) -> int:
    return sum(v.nbytes if isinstance(v, Tensor) else 8 for v in leaves(row))
