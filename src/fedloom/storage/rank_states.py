"""Client states of a run whose clients are shared out over ranks: each is at the rank where its
client trained last.

A state moves only if its client changes rank. Every rank writes segments of its own into the run's
folder, which all of them see; rank 0 writes one index of all of them, so that any number of ranks
can go on.
"""

from __future__ import annotations

import pickle
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, from_numpy

from ..core.ranks import Group
from ..core.vector import Rec, as_bytes
from ..errors import ConfigError
from . import world
from .atomic import write_atomic
from .client_state import ClientMemory, Index
from .records import freeze, thaw

Cut = Callable[[list[int]], list[tuple[int, int]]]


class RankStates:
    """The client states at this rank. All ranks call each method together, with equal arguments but
    for put(). cut: a cohort -> the range (first, end) of it that each rank trains.
    """

    def __init__(
        self, states: ClientMemory, group: Group, cut: Cut, device: torch.device | str = "cpu"
    ) -> None:
        self.states, self.bytes_sent = states, 0  # bytes that left this rank
        self._group, self._cut, self._device = group, cut, device
        self._home: dict[int, int] = {}  # client -> rank
        self._last: dict[int, int] = {}  # as in ClientMemory, of all clients
        self._index: dict[str, Any] = {"segments": []}  # of the last save()

    def get(self, clients: Iterable[int]) -> dict[int, Rec]:
        """The rows of those that this rank trains; they are here from now on. Raises
        CheckpointError at every rank if one cannot be read.
        """
        cohort, rank = list(clients), self._group.rank
        todo = {i: r for r, (a, b) in enumerate(self._cut(cohort)) for i in cohort[a:b]}
        moves = [(i, self._home[i], r) for i, r in todo.items() if self._home.get(i, r) != r]
        leaving: list[list[int]] = [[] for _ in range(self._group.size)]
        for i, source, to in moves:
            if source == rank:
                leaving[to].append(i)
        staying = [i for i, r in todo.items() if r == rank == self._home.get(i)]

        def read() -> tuple[dict[int, Rec], list[Tensor]]:
            return self.states.get(staying), [_pack(self.states.get(some)) for some in leaving]

        result, error = self._group.attempt(read)
        self._group.gather(None, error)
        assert result is not None
        rows, packed = result
        if moves:
            self.bytes_sent += sum(map(len, packed))
            received: dict[int, Rec] = {}
            for raw in self._group.exchange(packed):
                received |= _unpack(raw, self._device)
            _, error = self._group.attempt(lambda: self.states.put(received))
            self._group.gather(None, error)
            self.states.drop(i for i, source, _ in moves if source == rank)
            self._home |= {i: to for i, _, to in moves}
            rows |= received
        return rows

    def put(self, rows: dict[int, Rec]) -> None:
        """Store new versions of rows of clients that were trained here. Raises CheckpointError at
        every rank if one cannot be written.
        """
        _, error = self._group.attempt(lambda: self.states.put(rows))
        news = self._group.gather({i: int(row.last) for i, row in rows.items()}, error)
        for rank, last in enumerate(news):
            self._last |= last
            self._home |= dict.fromkeys(last, rank)

    def drop(self, clients: Iterable[int]) -> None:
        for i in clients:
            self.states.drop([i])
            self._last.pop(i, None)
            self._home.pop(i, None)

    def last(self, clients: Iterable[int]) -> dict[int, int | None]:
        return {i: self._last.get(i) for i in clients}

    def save(self) -> dict[str, Any]:
        """Write what changed at every rank -> one index of all of them. Raises OSError at every
        rank if one cannot write.
        """
        index, error = self._group.attempt(self.states.save)
        self._index = _merge([ix for ix in self._group.gather(index, error) if ix is not None])
        return self._index

    def restore(self, index: dict[str, Any]) -> None:
        """Return to the states at a save(), of any number of ranks. Raises CheckpointError at every
        rank if a file is damaged.
        """
        size, rank = self._group.size, self._group.rank
        home = {int(i): n % size for n, i in enumerate(index["clients"])}
        _, error = self._group.attempt(lambda: self.states.restore(_part_of(index, home, rank)))
        last = self.states.last(i for i, r in home.items() if r == rank) if error is None else {}
        self._home, self._last = home, {}
        for rounds in self._group.gather(last, error):
            self._last |= {i: t for i, t in rounds.items() if t is not None}

    def discard(self, indexes: Iterable[dict[str, Any]]) -> None:
        """Delete the files that none of these indexes names, and that hold no current row. One rank
        is enough for that.
        """
        self.states.discard([*indexes, self._index])


def check_shared(folder: Path, group: Group) -> None:
    """Raise ConfigError unless all ranks see one folder here: each writes client states into it."""
    mark, token = folder / ".ranks", group.first(secrets.token_hex)
    group.first(lambda: write_atomic(mark, token))
    texts = group.gather(mark.read_text() if mark.is_file() else "")
    group.first(lambda: world.unlink(mark))
    if other := [r for r, text in enumerate(texts) if text != token]:
        raise ConfigError(
            f"'{folder}' at rank {other[0]} ({group.hosts[other[0]]}) is not the folder of rank 0: "
            "client states are written by the rank that has them; give --out in a folder that all "
            "machines share"
        )


def _pack(rows: dict[int, Rec]) -> Tensor:
    """Rows as bytes, (n,) uint8; none of no rows."""
    if not rows:
        return torch.empty(0, dtype=torch.uint8)
    frozen = {i: freeze(row) for i, row in rows.items()}
    plain = {
        i: (shape, {k: (t.dtype, t.shape, as_bytes(t).numpy()) for k, t in tensors.items()})
        for i, (shape, tensors) in frozen.items()
    }
    return torch.frombuffer(bytearray(pickle.dumps(plain, protocol=5)), dtype=torch.uint8)


def _unpack(raw: Tensor, device: torch.device | str) -> dict[int, Rec]:
    """The rows that _pack() got."""
    if not len(raw):
        return {}
    plain = pickle.loads(as_bytes(raw).numpy().data)
    return {
        i: thaw(shape, {k: from_numpy(v).view(d).view(s) for k, (d, s, v) in part.items()}, device)
        for i, (shape, part) in plain.items()
    }


def _part_of(index: dict[str, Any], home: dict[int, int], rank: int) -> dict[str, Any]:
    """The part of an index that is about the clients at one rank."""
    whole = Index.of(index)
    clients = {i: place for i, place in whole.clients.items() if home[i] == rank}
    every, here = (Counter(name for name, _ in c.values()) for c in (whole.clients, clients))
    # of a segment's rows, so that one with mostly old rows is known by all who share it
    segments = {
        name: (here[name] * rows // every[name], digest)
        for name, (rows, digest) in whole.segments.items()
        if name in here
    }
    return Index(whole.next, segments, clients).as_json()


def _merge(indexes: list[dict[str, Any]]) -> dict[str, Any]:
    """The index of all ranks' rows; no client has a row at two of them."""
    segments: dict[str, tuple[int, str]] = {}
    clients: dict[int, tuple[str, int]] = {}
    for index in map(Index.of, indexes):
        for name, (rows, digest) in index.segments.items():  # ranks that went on share an older one
            segments[name] = segments.get(name, (0, ""))[0] + rows, digest
        clients |= index.clients
    return Index(max(index["next"] for index in indexes), segments, clients).as_json()
