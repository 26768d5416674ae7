"""Sums of masked integers: who adds them up learns the sum of a round's clients, and nothing else.

The protocol of Bonawitz et al. (CCS 2017, https://eprint.iacr.org/2017/281, Figure 4), with the
neighbours of Bell et al. (CCS 2020, https://eprint.iacr.org/2020/704, Algorithm 2), in three
exchanges. Its keys for the shares are agreed on with the nodes' own keys, which all sites have in
their clients.toml, so that keys and shares travel together:

    keys     every member sends a fresh mask key S and, for each neighbour v, a share of its
             secret s and one of a random seed b, which v alone can read
    round    v gets those of its neighbours who are there; it sends
             y = values + PRG(b) + sum of PRG(s, S_u) over its neighbours u > v
                                 - sum of PRG(s, S_u) over its neighbours u < v
    unmask   v is told whose y came, and sends, of each neighbour and itself, its share of b if that
             one's came, and else its share of s; `needed.shares` shares give the secret

All is modulo 2^64. Up to 50 members every other one is a neighbour; of more, each has
`needed.degree` on a ring in an order that all find from the session's name (integer_ring.py).
A client gives one of the two shares of a member, and once; so many are needed that
no server, whatever it tells to whom, can have both secrets of one of them. A client answers only
if each member of the sum has so many neighbours in it, for then their graph is in one piece. Masks
hang on the broadcast and on who is there, too: clients who were told different ones have masks that
do not cancel (Pasquini et al., CCS 2022).

Curves, HKDF, ChaCha20 and Poly1305 are those of the library cryptography, Shamir's shares those of
pycryptodome, in two blocks of 16 bytes. Nobody has audited this protocol's code. A node's key signs
for Flower and agrees on keys here; that both at once are sound for ECDSA and such an encryption is
shown by Degabriele et al. (CT-RSA 2012).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from fedloom.aggregation.integer_ring import Needed, neighbourhoods
from fedloom.errors import WireError
from fedloom.storage import world

Words = NDArray[np.uint64]
CURVE = ec.SECP384R1()  # of the keys that `fedloom deploy new` makes
_KEY = 32  # bytes of a mask key, of a secret and of a share of one
_BLOCK = 16  # of them that Shamir's scheme shares at once
_TAG = 16
_NONCE = 16  # bytes that tell a session from all others
_CHUNK = 1 << 16  # values of a mask that are made at once
_SEALED = 2 * _KEY + _TAG  # two shares for one member


class Session(NamedTuple):
    """One masked sum, as all who take part in it know it. name: no other one has it; members:
    rising, who may take part; needed: of so many, see integer_ring.py.
    """

    name: bytes
    members: tuple[int, ...]
    needed: Needed

    @property
    def context(self) -> bytes:
        """A digest of all this, on which every key hangs."""
        numbers = struct.pack(f"<{len(self.members) + 3}Q", *self.needed, *self.members)
        return hashlib.sha256(b"fedloom masked sum 2" + numbers + self.name).digest()

    @property
    def hoods(self) -> Mapping[int, tuple[int, ...]]:
        """Each member's neighbours and itself, rising: who has shares of its secrets."""
        return neighbourhoods(self.context, self.members, self.needed.degree)

    def others(self, i: int) -> list[int]:
        """A member's neighbours."""
        return [j for j in self.hoods[i] if j != i]

    def members_of(self, flags: bytes) -> list[int]:
        """The members that a byte for each of them says. Raises WireError."""
        if len(flags) != len(self.members) or set(flags) - {0, 1}:
            raise WireError("who takes part in the masked sum is not said by a byte for each")
        members = [i for i, flag in zip(self.members, flags, strict=True) if flag]
        self.check(members, members)
        return members

    def check(self, clients: Collection[int], owners: Collection[int]) -> None:
        """Raise WireError if these clients are too few for a sum, or if they have too few
        shares of a secret of one of `owners`.
        """
        if len(clients) < self.needed.clients:
            raise WireError(
                f"{len(clients)} clients are there, and a masked sum needs {self.needed.clients}"
            )
        present, hoods = {*clients}, self.hoods
        for i in owners:
            if (left := len(present.intersection(hoods[i]))) < self.needed.shares:
                raise WireError(
                    f"{left} of client {i} and its neighbours are there, and a masked sum needs "
                    f"{self.needed.shares}"
                )

    def flags(self, clients: Collection[int]) -> bytes:
        """A byte for each member: 1 if it is there."""
        return bytes(i in clients for i in self.members)


def new_session(
    run: str, round: int, members: Sequence[int], needed: Needed
) -> tuple[Session, bytes]:
    """A session that no other one equals, and what its members must be told of it."""
    nonce = world.urandom(_NONCE)
    opening = nonce + struct.pack(f"<{len(members)}Q", *members)
    return Session(_name(run, round, nonce), tuple(members), needed), opening


def session_of(run: str, round: int, opening: bytes, needed: Callable[[int], Needed]) -> Session:
    """The session at a member. needed: what so many members need. Raises WireError."""
    count, rest = divmod(len(opening) - _NONCE, 8)
    members = struct.unpack_from(f"<{count}Q", opening, _NONCE) if count > 0 and not rest else ()
    if not members or list(members) != sorted(set(members)):
        raise WireError("who may take part in the masked sum is not said in rising numbers")
    return Session(_name(run, round, opening[:_NONCE]), members, needed(len(members)))


def _name(run: str, round: int, nonce: bytes) -> bytes:
    return nonce + struct.pack("<q", round) + run.encode()


class Identity(NamedTuple):
    """A node's private key, and the public keys of all clients, on CURVE."""

    key: ec.EllipticCurvePrivateKey
    clients: Mapping[int, ec.EllipticCurvePublicKey]

    @classmethod
    def rehearsed(cls, count: int) -> list[Identity]:
        """New ones for so many clients in one process."""
        keys = [ec.generate_private_key(CURVE) for _ in range(count)]
        clients = {i: key.public_key() for i, key in enumerate(keys)}
        return [cls(key, clients) for key in keys]


class _Public(NamedTuple):
    """What a member sends in the clear: its mask key, and its key for this round's shares."""

    mask: bytes
    share: bytes


class Secrets(NamedTuple):
    """What a member draws for one masked sum. mask: of its mask key (32 bytes); seed: of the mask
    that it has alone (32 bytes); share: the key with which it seals its shares.
    """

    mask: bytes
    seed: bytes
    share: ec.EllipticCurvePrivateKey

    @classmethod
    def generate(cls) -> Secrets:
        """New ones, of the operating system's generator."""
        return cls(world.urandom(_KEY), world.urandom(_KEY), ec.generate_private_key(CURVE))


class MaskingClient:
    """One member's part in one masked sum. Each method is called once, in this order; a call out of
    order is a WireError. secrets: None: new ones, which nobody else may have.
    """

    def __init__(
        self, session: Session, client: int, identity: Identity, secrets: Secrets | None = None
    ) -> None:
        self._session, self._i, self._identity, self._next = session, client, identity, "keys"
        self._secrets: Secrets | None = secrets or Secrets.generate()
        self._shares: dict[int, bytes] = {}  # of both secrets of each member, for this one
        self._present: set[int] = set()

    def keys(self) -> bytes:
        """-> its public keys, and two sealed shares for each neighbour, in their order."""
        self._step("keys", "round")
        assert self._secrets is not None
        hood, shares = self._session.hoods[self._i], self._session.needed.shares
        mask, seed, share = self._secrets
        both = (_split(part, shares, len(hood)) for part in (mask, seed))
        public = _Public(_public(mask), _point(share.public_key()))
        out = [*public]
        for i, first, second in zip(hood, *both, strict=True):
            if i == self._i:
                self._shares[i] = first + second
                continue
            peer = self._identity.clients[i]
            secret = share.exchange(ec.ECDH(), peer) + self._identity.key.exchange(ec.ECDH(), peer)
            cipher = _cipher(self._session, secret, self._i, i, public)
            out.append(cipher.encrypt(bytes(12), first + second, None))
        return b"".join(out)

    def masked(self, keys: bytes, values: Words, model: bytes) -> bytes:
        """The values (n,), masked. keys: see UnmaskingServer.keys_for; model: a digest of what was
        broadcast. Raises WireError.
        """
        self._step("round", "unmask")
        assert self._secrets is not None
        (mask, seed, _), self._secrets = self._secrets, None
        publics = self._open_keys(keys)
        flags = keys[: len(self._session.members)]
        total = np.array(values, dtype="<u8")
        _add_mask(total, seed, 1)
        for i, public in publics.items():
            key = _pair(self._session, mask, public.mask, flags, model)
            _add_mask(total, key, 1 if self._i < i else -1)
        return total.tobytes()

    def unmask(self, flags: bytes) -> bytes:
        """Of itself and of each neighbour that is there its share: of the seed of one whose masked
        values came, else of the secret. flags: a byte for each member: whether they came. Raises
        WireError.
        """
        self._step("unmask", "")
        members = {*self._session.members_of(flags)}
        if self._i not in members or not members <= self._present:
            raise WireError("the masked sum is said to be of other clients than those of its round")
        self._session.check(members, self._present)
        shares, self._shares = sorted(self._shares.items()), {}
        return b"".join(both[_KEY:] if i in members else both[:_KEY] for i, both in shares)

    def _open_keys(self, keys: bytes) -> dict[int, _Public]:
        """The public keys of the neighbours who are there; keeps who is there, and their shares."""
        count, publics = len(self._session.members), dict[int, _Public]()
        self._present = present = {*self._session.members_of(keys[:count])}
        near = [i for i in self._session.others(self._i) if i in present]
        size, start = _public_size() + _SEALED, count
        if self._i not in present or len(keys) != count + len(near) * size:
            raise WireError("the keys of a masked sum do not fit to those who take part in it")
        for i in near:
            entry, start = keys[start : start + size], start + size
            publics[i] = public = _read_public(entry)
            try:
                theirs = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public.share)
                # of a key that its owner deletes, and of both nodes' keys, which say who it is
                pair = theirs, self._identity.clients[i]
                secret = b"".join(self._identity.key.exchange(ec.ECDH(), key) for key in pair)
                cipher = _cipher(self._session, secret, i, self._i, public)
                self._shares[i] = cipher.decrypt(bytes(12), entry[-_SEALED:], None)
            except (ValueError, InvalidTag):
                raise WireError(f"the keys that are said to be client {i}'s are not") from None
        return publics

    def _step(self, step: str, following: str) -> None:
        if self._next != step:
            raise WireError(
                f"this client's part in the masked sum has no '{step}' now: each comes once"
            )
        self._next = following


class UnmaskingServer:
    """The server's part in one masked sum of n values. What take_ methods raise is a WireError, and
    the client's message does not count then.
    """

    def __init__(self, session: Session, n: int, model: bytes) -> None:
        self._session, self._n, self._model = session, n, model
        self._keys: dict[int, bytes] = {}
        self._masked: dict[int, Words] = {}
        self._shares: dict[int, bytes] = {}

    @property
    def lacking(self) -> int:
        """How many more answers with shares it needs at least."""
        senders, hoods = {*self._shares}, self._session.hoods
        near = (len(senders.intersection(hoods[i])) for i in self._keys)
        clients, _, shares = self._session.needed
        return max(clients - len(senders), shares - min(near, default=shares))

    def shares_size(self, client: int) -> int:
        """The bytes of a client's shares."""
        return _KEY * len(self._near(client))

    def _near(self, client: int) -> list[int]:
        return [i for i in self._session.hoods[client] if i in self._keys]

    def take_keys(self, client: int, raw: bytes) -> None:
        """What MaskingClient.keys() gave."""
        others = len(self._session.others(client))
        if len(raw) != _public_size() + others * _SEALED:
            raise WireError(f"its keys have {len(raw)} bytes, not those for {others} other clients")
        self._keys[client] = raw

    def keys_for(self, client: int) -> bytes:
        """What a client learns with the broadcast: who is there, and of each neighbour its public
        keys and its two shares for this client.
        """
        out, public = [self._session.flags(self._keys)], _public_size()
        for i in self._near(client):
            if i != client:
                raw = self._keys[i]
                start = public + self._session.others(i).index(client) * _SEALED
                out += [raw[:public], raw[start : start + _SEALED]]
        return b"".join(out)

    def take_masked(self, client: int, raw: bytes) -> None:
        """What MaskingClient.masked() gave."""
        if len(raw) != 8 * self._n:
            raise WireError(f"its masked values have {len(raw)} bytes, not {8 * self._n}")
        self._masked[client] = np.frombuffer(raw, dtype="<u8")

    def received(self) -> bytes:
        """Whose masked values came, a byte for each member."""
        return self._session.flags(self._masked)

    def take_shares(self, client: int, raw: bytes) -> None:
        """What MaskingClient.unmask() gave."""
        if len(raw) != (size := self.shares_size(client)):
            raise WireError(f"its shares have {len(raw)} bytes, not {size}")
        self._shares[client] = raw

    def sum(self) -> Words:
        """The sum (n,) of the values of those whose masked ones came. Raises WireError for shares
        that give no member's secret.
        """
        assert self.lacking <= 0
        total: Words = np.zeros(self._n, dtype="<u8")
        for values in self._masked.values():
            total += values
        flags = self._session.flags(self._keys)
        for i in sorted(self._keys):
            secret = self._secret(i)
            if i in self._masked:
                _add_mask(total, secret, -1)
                continue
            if _public(secret) != self._keys[i][:_KEY]:
                raise WireError(f"the shares that were sent do not give client {i}'s mask key")
            for j in self._masked.keys() & self._session.hoods[i]:
                mask = _read_public(self._keys[j]).mask
                key = _pair(self._session, secret, mask, flags, self._model)
                _add_mask(total, key, -1 if j < i else 1)
        return total

    def _secret(self, i: int) -> bytes:
        """A member's seed or secret, of the shares that came first."""
        hood, shares = self._session.hoods[i], dict[int, bytes]()
        for j in [j for j in self._shares if j in hood][: self._session.needed.shares]:
            start = self._near(j).index(i) * _KEY
            shares[hood.index(j) + 1] = self._shares[j][start : start + _KEY]
        return _combine(shares)


# ----------------------------------------------------------------------------------- the libraries
def _split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret of 32 bytes, of which `threshold` give it."""
    halves = (secret[:_BLOCK], secret[_BLOCK:])
    first, second = (Shamir.split(threshold, count, half, False) for half in halves)
    return [bytes(a) + bytes(b) for (_, a), (_, b) in zip(first, second, strict=True)]


def _combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares by their numbers, which begin at 1."""
    halves = (slice(None, _BLOCK), slice(_BLOCK, None))
    parts = ([(i, raw[half]) for i, raw in shares.items()] for half in halves)
    return b"".join(bytes(Shamir.combine(part, False)) for part in parts)


def _derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=_KEY, salt=salt, info=info).derive(secret)


def _cipher(
    session: Session, secret: bytes, sender: int, to: int, public: _Public
) -> ChaCha20Poly1305:
    """What seals one message, from one member to another: its key hangs on the sender's fresh one,
    so that no other message has it.
    """
    info = b"shares" + struct.pack("<2Q", sender, to) + public.mask + public.share
    return ChaCha20Poly1305(_derived(secret, session.context, info))


def _pair(session: Session, secret: bytes, other: bytes, flags: bytes, model: bytes) -> bytes:
    """The key of the mask that two members have in common. Raises WireError."""
    try:
        key = X25519PrivateKey.from_private_bytes(secret)
        agreed_secret = key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise WireError("a mask key is no point of its curve that has a secret") from None
    return _derived(agreed_secret, session.context, b"mask" + flags + model)


def _add_mask(total: Words, key: bytes, sign: int) -> None:
    """Add a key's pseudo-random values to a vector, or take them off it, in place."""
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    zeros, mask = bytes(8 * min(_CHUNK, len(total))), np.empty(_CHUNK, dtype="<u8")
    for start in range(0, len(total), _CHUNK):
        part = total[start : start + _CHUNK]
        stream.update_into(zeros[: part.nbytes], mask.data.cast("B"))
        (np.add if sign > 0 else np.subtract)(part, mask[: len(part)], out=part)


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _public_size() -> int:
    return _KEY + 1 + CURVE.key_size // 8


def _read_public(raw: bytes) -> _Public:
    return _Public(raw[:_KEY], raw[_KEY : _public_size()])
