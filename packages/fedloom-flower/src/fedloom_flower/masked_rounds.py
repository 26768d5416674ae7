"""A round of masked updates at both halves: keys, the round itself, and what gives its sum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives import serialization
from torch import Tensor

from fedloom.aggregation.integer_ring import IntegerRing
from fedloom.core.vector import Rec, fields, rec
from fedloom.core.wire import nbytes, pack, unpack
from fedloom.engines.client_results import ClientCost, RangeResult, TrainTask, cost
from fedloom.engines.summation import push, spread
from fedloom.errors import ConfigError, NotFiniteError, WireError
from fedloom.federation.sampling import ClientSampler
from fedloom.stage import Download

from .folder import Folder
from .masked_sums import (
    CURVE,
    Identity,
    MaskingClient,
    Session,
    UnmaskingServer,
    Words,
    new_session,
    session_of,
)
from .message import Ask, Blocks, MissingError, Parts, Update, What, encode
from .node_files import RunRecord

if TYPE_CHECKING:
    from .engine import FederationEngine

Take = Callable[[int, bytes], None]  # a client, and what it sent


# ------------------------------------------------------------------------------------ at the server
class MaskedRound:
    """One draw of a round. download: what all its clients are sent."""

    def __init__(
        self,
        engine: FederationEngine,
        aggregation: IntegerRing,
        task: TrainTask,
        download: Download,
    ) -> None:
        self._engine, self._task, self._download = engine, task, download
        cohort, name = task.cohort, engine.run + engine.agreement
        self._down, self._up = dict.fromkeys(cohort, 0), dict.fromkeys(cohort, 0)
        self._like = summed_like(engine.like, download)
        thresholds = aggregation.needed(len(cohort))
        self._session, self._opening = new_session(name, task.round, cohort, thresholds)
        values = sum(nbytes(self._like).values()) // 8
        self._sum = UnmaskingServer(self._session, values, digest_of(download))

    def result(self) -> RangeResult:
        """The sum of its clients' leaves, at the place of the first of them; without any if they
        are too few, or their masks do not cancel.
        """
        cohort, part, updates = self._task.cohort, None, dict[int, Update]()
        present, _ = self._ask("keys", dict.fromkeys(cohort, self._opening), self._sum.take_keys)
        keys = {i: self._sum.keys_for(i) for i in present} if self._enough(present, present) else {}
        if keys:
            heads, _ = self._ask("round", keys, self._sum.take_masked)
            updates = {i: head for i, head in heads.items() if isinstance(head, Update)}
        if updates and self._enough(updates, present):
            try:
                self._unmask(list(updates))
                part = self._leaves(updates)
            except (WireError, NotFiniteError) as error:
                self._refuse(updates, f"the masked sum of its round cannot be read: {error}")
        out, first = RangeResult([], {}, []), min(updates, default=-1)
        for place, i in enumerate(cohort, self._task.first):
            out.stats.append(self._cost(i, i in keys, updates.get(i) if part is not None else None))
            push(out.nodes, 0, place, part if i == first else None)
        return out

    def _ask(
        self, what: What, blocks: Mapping[int, bytes], take: Take, enough: int | None = None
    ) -> tuple[dict[int, Update | Blocks], list[int]]:
        """Tell clients, and have `take` read what they answer -> the headers of those whose answer
        could be read, and who has not answered yet. enough: as many answers are waited for.
        """
        heads, silent, engine = dict[int, Update | Blocks](), list[int](), self._engine
        first = engine.packet(self._download) if what == "round" else {}
        packets = {i: first | {"masks": raw} for i, raw in blocks.items()}
        engine.send(what, self._task, packets, enough)
        for i, block in blocks.items():
            self._down[i] += len(block)
            try:
                head: Update | Blocks
                if what == "round":
                    head, parts = engine.read_update(i)
                else:
                    head, parts = engine.read_answer(i, Blocks)
                if set(parts) != {"masks"}:
                    raise WireError("an answer to a masked sum that has not its block")
                take(i, parts["masks"])
                if what == "keys":
                    self._up[i] += len(parts["masks"])
                heads[i] = head
            except WireError as error:
                if what != "unmask":  # whose update is in the sum by then
                    engine.attendance.refuse(self._task.round, i, error)
                elif isinstance(error, MissingError):
                    silent.append(i)
        return heads, silent

    def _enough(self, clients: Mapping[int, object], owners: Mapping[int, object]) -> bool:
        """Whether they give a sum, and can take the masks of those who were there off it; if not,
        nobody's update counts.
        """
        try:
            self._session.check(clients, owners)
        except WireError as error:
            self._refuse(clients, str(error))
            return False
        return True

    def _refuse(self, clients: Mapping[int, object], why: str) -> None:
        for i in clients:
            self._engine.attendance.refuse(self._task.round, i, WireError(why))

    def _unmask(self, left: list[int]) -> None:
        """Ask until enough shares are here. Raises WireError if they do not come."""
        flags = self._sum.received()
        for i in left:  # each sends its shares, of which the server takes those that come first
            self._up[i] += self._sum.shares_size(i)
        while (lacking := self._sum.lacking) > 0:
            before = len(left)
            _, left = self._ask(
                "unmask", dict.fromkeys(left, flags), self._sum.take_shares, lacking
            )
            if before - len(left) < lacking:  # in all its time
                raise WireError(f"it lacks the shares of {self._sum.lacking} clients")

    def _leaves(self, updates: Mapping[int, Update]) -> Rec:
        """The sum of their leaves. Raises NotFiniteError for integers that no such sum has, as
        where masks do not cancel.
        """
        download, client, itself = self._download, self._engine.client, self._engine.weighs_itself
        leaves = client.leaves
        assert leaves is not None
        weights = [1.0 if itself else client.fed.weight(i) for i in updates]
        parts = [leaves.expected_leaf(weight, download.buffers) for weight in weights]
        up = unpack(packet_of(self._sum.sum(), self._like), self._like)
        if not itself:
            up = up._replace(weight=sum(leaf.weight for leaf in parts))
        travelling = up.buffers if "buffers" in up._fields else download.buffers[:0].long()
        rest = sum((leaf.buffers for leaf in parts), download.buffers.long() * 0)
        up = rec(**{name: v for name, v in up._asdict().items() if name != "buffers"})
        part = leaves.part(up, download.arrived(travelling, rest), len(updates))
        return spread(part, download.wire)

    def _cost(self, i: int, informed: bool, head: Update | None) -> ClientCost:
        """What a client was sent and sent. informed: it was sent the broadcast; head: its update
        counts.
        """
        down = (self._download.down if informed else {}) | {"masks": self._down[i]}
        if head is None:
            return ClientCost(i, False, 0.0, 0, 0, down, {})
        steps = len(self._engine.client.steps.rates(i, self._task.round))
        return cost(i, steps, head, down, nbytes(self._like) | {"masks": self._up[i]})


# ------------------------------------------------------------------------------------ at a node
class ExpectedCohorts(NamedTuple):
    """The cohorts that a node's own settings have. removed: clients that its own clients.toml marks
    so.
    """

    cohorts: ClientSampler
    removed: Callable[[], Collection[int]] = frozenset

    def check(self, members: Sequence[int], round: int) -> None:
        """Raise WireError for a sum of fewer clients, or of others, than the settings have."""
        size, removed = self.cohorts.size, {*self.removed()}
        if isinstance(size, Sequence):
            expected = {*size[round % len(size)]} - removed
            if {*members} != expected:
                raise WireError(
                    f"the masked sum is said to be of the clients {[*members]}, and the list of "
                    f"round {round + 1} has {sorted(expected)}"
                )
            return
        count = min(self.cohorts.largest, self.cohorts.population - len(removed))
        if len(members) != count:
            raise WireError(
                f"the masked sum is said to be of {len(members)} clients, and a round has {count} "
                "by this node's own run.toml and clients.toml; a site that was taken out is marked "
                "removed = true there"
            )


class MaskedAnswers:
    """What a node does for masked sums, of which it has one at a time. Its secrets are in memory
    alone: a node that begins anew has no part in the sum of then.

    A round is unmasked once: its update would be the same again, and two sums of which one has a
    client more tell that client's update. So would two rounds that begin with one model: of such
    all are of the same clients. The folder has a file that says which rounds and models those were.
    With noise of clients a round is masked once: another draw's noise would cost as much again.

    cohorts: who may be in a sum, see ExpectedCohorts; agreement: a digest of what all agreed on. A
    member that was told of another agreement cannot open this one's shares.
    """

    def __init__(
        self,
        aggregation: IntegerRing,
        client: int,
        identity: Identity,
        folder: Path,
        cohorts: ExpectedCohorts | None = None,
        agreement: str = "",
    ) -> None:
        self._aggregation, self._i, self._identity = aggregation, client, identity
        self._file, self._cohorts, self._agreement = folder / "unmasked.json", cohorts, agreement
        self._sum: tuple[int, Session, MaskingClient] | None = None
        self._model = b""  # a digest of the broadcast of this sum

    def keys(self, ask: Ask, parts: Parts) -> bytes:
        """The answer before the round. Raises WireError, ConfigError."""
        if ask.round <= (last := self._read_unmasked(ask.run).round):
            raise WireError(
                f"this node has taken part in the sum of round {last + 1} of this run: another sum "
                f"of round {ask.round + 1} could tell single updates. For a run that begins anew "
                f"its site deletes '{self._file.name}' in '{self._file.parent.name}'"
            )
        run = ask.run + self._agreement
        session = session_of(run, ask.round, _block(parts), self._aggregation.needed)
        self._aggregation.check(len(session.members))
        if (
            self._i not in session.members
            or not set(session.members) <= self._identity.clients.keys()
        ):
            raise WireError("the masked sum is said to be of clients that clients.toml has not")
        if self._cohorts is not None:
            self._cohorts.check(session.members, ask.round)
        self._sum = ask.round, session, MaskingClient(session, self._i, self._identity)
        return encode(Blocks(**ask.about), {"masks": self._sum[2].keys()})

    def take_keys(self, ask: Ask, parts: Parts) -> bytes:
        """Take the others' keys out of a round's message. Raises WireError."""
        self._session_of(ask.round)
        return _block(parts)

    def masked(self, ask: Ask, keys: bytes, packet: Parts, like: Rec, download: Download) -> Parts:
        """An update as it would travel, masked. like: its fields (d,). Raises WireError and
        OSError.
        """
        values, self._model = words_of(packet, summed_like(like, download)), digest_of(download)
        masks = self._session_of(ask.round)[1].masked(keys, values, self._model)
        if self._aggregation.private:
            self._record(ask)
        return {"masks": masks}

    def unmask(self, ask: Ask, parts: Parts) -> bytes:
        """The answer behind the round. Raises WireError, OSError."""
        session, member = self._session_of(ask.round)
        flags = _block(parts)
        model = self._model.hex()
        clients = ",".join(map(str, session.members_of(flags)))
        if (previous := self._read_unmasked(ask.run).models.get(model, clients)) != clients:
            raise WireError(
                f"this node has given its shares of a sum from this very model, of the clients "
                f"{previous}: one of the clients {clients} could tell single updates"
            )
        shares = member.unmask(flags)
        self._record(ask, model, clients)
        return encode(Blocks(**ask.about), {"masks": shares})

    def _record(self, ask: Ask, model: str = "", clients: str = "") -> None:
        self._read_unmasked(ask.run).write(self._file, model, clients, ask.round)

    def _session_of(self, round: int) -> tuple[Session, MaskingClient]:
        if self._sum is None or self._sum[0] != round:
            raise WireError("this node has no keys for the masked sum: it began after they went")
        return self._sum[1:]

    def _read_unmasked(self, run: str) -> RunRecord:
        """What it gave its shares of in this run: {digest of a broadcast: clients of the sum}."""
        cure = "begin another run, or delete it for a run that begins"
        what = "the record of sums that this node has unmasked"
        return RunRecord.read(self._file, run, what, cure)


def _block(parts: Parts) -> bytes:
    return parts.pop("masks", b"")


def summed_like(up: Rec, sent: Download) -> Rec:
    """The fields of a sum, in integers. up: of an update (d,)."""
    record, buffers = sent.wire.take(sent.view.take(up)), sent.travelling(sent.buffers)
    return rec(**record._asdict(), buffers=buffers.long()) if buffers.numel() else record


def words_of(packet: Mapping[str, bytes], like: Rec) -> Words:
    """An update as it would travel -> its integers modulo 2^64, field by field in their order."""
    out = []
    for name, v in fields(like).items():
        kind = "<i8" if isinstance(v, Tensor) else "<f8"
        out.append(np.frombuffer(packet[name], dtype=kind).astype("<i8"))
    return np.concatenate(out).view("<u8")


def packet_of(words: Words, like: Rec) -> dict[str, bytes]:
    """The same backwards, of a sum."""
    out, start, signed = dict[str, bytes](), 0, words.view("<i8")
    for name, v in fields(like).items():
        size = v.numel() if isinstance(v, Tensor) else 1
        part, start = signed[start : start + size], start + size
        out[name] = part.astype("<i8" if isinstance(v, Tensor) else "<f8").tobytes()
    return out


def digest_of(sent: Download) -> bytes:
    """A digest of what a client was sent, on which the masks hang."""
    record: Any = rec(msg=sent.wire.take(sent.msg), buffers=sent.travelling(sent.buffers))
    sha = hashlib.sha256()
    for name, raw in sorted(pack(record).items()):
        sha.update(f"{name} {len(raw)} ".encode() + raw)
    return sha.digest()


def identity_of(fed: Folder, lines: Sequence[str]) -> Identity:
    """A node's key and those of all clients, for masked sums. lines: of clients.toml. Raises
    ConfigError.
    """
    try:
        raw = fed.secret("node").read_bytes()
        private: Any = serialization.load_ssh_private_key(raw, None)
        public: list[Any] = [serialization.load_ssh_public_key(line.encode()) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the keys for masked sums cannot be read: {error}") from None
    curve = CURVE.name
    if others := {key.curve.name for key in [private, *public]} - {curve}:
        raise ConfigError(
            f"aggregation.secure = true needs keys on {curve} at all nodes, as `fedloom deploy "
            f"new` makes them, and one is on {min(others)}"
        )
    return Identity(private, dict(enumerate(public)))
