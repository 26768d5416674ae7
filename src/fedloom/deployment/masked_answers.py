"""A node's part in masked sums, and how an update becomes the values of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..aggregation.integer_ring import IntegerRing
from ..core.vector import Rec, fields, rec
from ..core.wire import pack
from ..errors import CheckpointError, WireError
from ..stage import Download
from ..storage.atomic import write_atomic
from .masked_sums import Identity, MaskingClient, Words, session_of
from .message import Ask, Masks, sealed

Parts = dict[str, bytes]


class MaskedAnswers:
    """What a node does for masked sums, of which it has one at a time. Its secrets are in memory
    alone: a node that begins anew has no part in the sum of then.

    A round is unmasked once: its update would be the same again, and two sums of which one has a
    client more tell that client's update. The folder has a file that says which round that was.
    With noise of clients a round is masked once: another draw's noise would cost as much again.
    """

    def __init__(self, rule: IntegerRing, client: int, own: Identity, folder: Path) -> None:
        self._rule, self._i, self._own = rule, client, own
        self._file = folder / "unmasked.json"
        self._sum: tuple[int, MaskingClient] | None = None

    def keys(self, ask: Ask, parts: Parts) -> bytes:
        """The answer before the round. Raises WireError, ConfigError."""
        if ask.round <= (done := self._unmasked(ask.run)):
            raise WireError(
                f"this node has taken part in the sum of round {done + 1} of this run: another sum "
                f"of round {ask.round + 1} could tell single updates. For a run that begins anew "
                f"its site deletes '{self._file.name}' in '{self._file.parent.name}'"
            )
        session = session_of(ask.run, ask.round, _block(parts), self._rule.needed)
        self._rule.check(len(session.members))
        if self._i not in session.members or not set(session.members) <= self._own.clients.keys():
            raise WireError("the masked sum is said to be of clients that clients.toml has not")
        self._sum = ask.round, MaskingClient(session, self._i, self._own)
        return _sealed(ask, self._sum[1].keys())

    def begun(self, ask: Ask, parts: Parts) -> bytes:
        """Take the others' keys out of a round's message. Raises WireError."""
        self._of(ask.round)
        return _block(parts)

    def masked(self, ask: Ask, keys: bytes, packet: Parts, like: Rec, share: Download) -> Parts:
        """An update as it would travel, masked. like: its fields (d,). Raises WireError and
        OSError.
        """
        values = words_of(packet, summed_like(like, share))
        out = self._of(ask.round).masked(keys, values, digest_of(share))
        if self._rule.private:
            self._done(ask)
        return {"masks": out}

    def unmask(self, ask: Ask, parts: Parts) -> bytes:
        """The answer behind the round. Raises WireError, OSError."""
        shares = self._of(ask.round).unmask(_block(parts))
        self._done(ask)
        return _sealed(ask, shares)

    def _done(self, ask: Ask) -> None:
        write_atomic(self._file, json.dumps({"run": ask.run, "round": ask.round}))

    def _of(self, round: int) -> MaskingClient:
        if self._sum is None or self._sum[0] != round:
            raise WireError("this node has no keys for the masked sum: it began after they went")
        return self._sum[1]

    def _unmasked(self, run: str) -> int:
        """The last round of this run that it has unmasked, -1 if none."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return int(found["round"]) if found["run"] == run else -1
        except FileNotFoundError:
            return -1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"'{self._file}', which says which round this node has unmasked, cannot be read "
                f"({type(error).__name__}); begin another run, or delete it for a run that begins"
            ) from None


def _block(parts: Parts) -> bytes:
    return parts.pop("masks", b"")


def _sealed(ask: Ask, raw: bytes) -> bytes:
    head = Masks(run=ask.run, what=ask.what, round=ask.round, client=ask.client)
    return sealed(head, {"masks": raw})


def summed_like(up: Rec, share: Download) -> Rec:
    """The fields of a sum, in integers. up: of an update (d,)."""
    found, buffers = share.wire.take(share.view.take(up)), share.travelling(share.buffers)
    return rec(**found._asdict(), buffers=buffers.long()) if buffers.numel() else found


def words_of(packet: Mapping[str, bytes], like: Rec) -> Words:
    """An update as it would travel -> its integers modulo 2^64, field by field in their order."""
    out = []
    for name, v in fields(like).items():
        kind = "<i8" if isinstance(v, Tensor) else "<f8"
        out.append(np.frombuffer(packet[name], dtype=kind).astype("<i8"))
    return np.concatenate(out).view("<u8")


def packet_of(words: Words, like: Rec) -> dict[str, bytes]:
    """The same backwards, of a sum."""
    out, at, signed = dict[str, bytes](), 0, words.view("<i8")
    for name, v in fields(like).items():
        size = v.numel() if isinstance(v, Tensor) else 1
        part, at = signed[at : at + size], at + size
        out[name] = part.astype("<i8" if isinstance(v, Tensor) else "<f8").tobytes()
    return out


def digest_of(share: Download) -> bytes:
    """A digest of what a client was sent, on which the masks hang."""
    sent: Any = rec(msg=share.wire.take(share.msg), buffers=share.travelling(share.buffers))
    found = hashlib.sha256()
    for name, raw in sorted(pack(sent).items()):
        found.update(f"{name} {len(raw)} ".encode() + raw)
    return found.digest()
