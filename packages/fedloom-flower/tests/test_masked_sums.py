"""Masked sums: the sum of those who stay, whoever vanishes; and nothing for a server that lies."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra secure is not installed")
from Crypto.Cipher import ChaCha20
from Crypto.Hash import SHA256
from Crypto.Protocol import DH, SecretSharing
from Crypto.Protocol.KDF import HKDF
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.aggregation import IntegerRing
from fedloom.aggregation.integer_ring import Needed
from fedloom.errors import WireError
from fedloom_flower import masked_sums
from fedloom_flower.masked_sums import Identity, MaskingClient, Secrets, Session, UnmaskingServer

CURVE = ec.SECP256R1()  # P-384 takes ten times as long
MEMBERS = (0, 2, 3, 5, 8)
MODEL = b"m" * 32
KEYS = {i: ec.derive_private_key(1000 + i, CURVE) for i in range(100)}
PUBLIC = {i: key.public_key() for i, key in KEYS.items()}
pytestmark = pytest.mark.usefixtures("quick")
SESSION = Session(b"run 1, round 7, draw 0", MEMBERS, Needed(3, 4, 3))
subsets = lambda of, most: [s for k in range(most + 1) for s in itertools.combinations(of, k)]
few = lambda n, needed: Session(b"few", tuple(range(n)), needed)


def values(i, n=7):
    drawn = np.random.default_rng(i).integers(-(2**43), 2**43, n)
    drawn[0] = (-(2**43), 2**43)[i % 2]
    return drawn.astype(np.int64).view(np.uint64)


def client(i, session=SESSION, secrets=None):
    return MaskingClient(session, i, Identity(KEYS[i], PUBLIC), secrets)


class Sum:
    """A sum's clients, and its server with the keys of those who are there."""

    def __init__(self, there=MEMBERS, session=SESSION, clients=None, n=7):
        self.clients = {i: client(i, session) for i in session.members} | (clients or {})
        self.keys = {i: self.clients[i].keys() for i in there}
        self.server = self.told(there, session, n)

    def told(self, there, session=SESSION, n=7):
        """A server that has the keys of these."""
        server = UnmaskingServer(session, n, MODEL)
        for i in there:
            server.take_keys(i, self.keys[i])
        return server

    def masked(self, i, own=None, told=None, model=MODEL):
        """What a client sends of its values."""
        told = self.server.keys_for(i) if told is None else told
        return self.clients[i].masked(told, values(i) if own is None else own, model)

    def came(self, members):
        for i in members:
            self.server.take_masked(i, self.masked(i))
        return self

    def unmasked(self, members):
        for i in members:
            self.server.take_shares(i, self.clients[i].unmask(self.server.received()))
        return self.server.sum() if self.server.lacking <= 0 else None


def summed(there, came, stayed, session=SESSION):
    """The sum, None if it lacks shares, if those are there at the three steps."""
    return Sum(there, session).came(came).unmasked(stayed)


def steps(step, everybody, left):
    """Who is there at each step if some vanish at one."""
    rest = [i for i in everybody if i not in left]
    return ([everybody] * step + [rest] * 3)[:3]


# ------------------------------ the sum
@pytest.mark.parametrize("step", range(3))
def test_the_sum_is_that_of_those_who_came_whoever_vanishes_at_a_step(step):
    """Every subset of at most two of five, at each step."""
    for left in subsets(MEMBERS, 2):
        there, came, stayed = steps(step, MEMBERS, left)
        assert (summed(there, came, stayed) == sum(map(values, came))).all()


def gives(session, some, of):
    """Whether so many of each neighbourhood are there, counted in another way."""
    place = lambda i: b"ring" + session.context + i.to_bytes(8, "little")
    ring = sorted(session.members, key=lambda i: hashlib.sha256(place(i)).hexdigest())
    n, reach = len(ring), session.needed.degree // 2
    near = lambda a, b: min((a - b) % n, (b - a) % n) <= reach
    counts = [
        sum(j in some and near(at, b) for b, j in enumerate(ring))
        for at, i in enumerate(ring)
        if i in of
    ]
    return len(some) >= session.needed.clients and min(counts) >= session.needed.shares


@pytest.mark.parametrize(
    ("n", "degree", "shares"),
    [(6, 2, 2), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((7, 4, 3), (8, 4, 4)))],
)
def test_neighbours_give_the_sum_whoever_vanishes_at_a_step(n, degree, shares):
    """Every subset of at most three, at each step: the sum, or nothing where shares are missing."""
    session, seen = few(n, Needed(n - 3, degree, shares)), set()
    for left, step in itertools.product(subsets(session.members, 3), range(3)):
        there, came, stayed = steps(step, session.members, left)
        whole = gives(session, there, there) and gives(session, came, there)
        if not whole:
            with pytest.raises(WireError, match="are there, and a masked sum needs"):
                summed(there, came, stayed, session)
        elif gives(session, stayed, there):
            assert (summed(there, came, stayed, session) == sum(map(values, came))).all()
        else:
            assert summed(there, came, stayed, session) is None
        seen.add((step, whole and gives(session, stayed, there)))
    assert len(seen) == 6  # both, at each step


@pytest.mark.parametrize("n", [60, pytest.param(100, marks=pytest.mark.slow)])
def test_a_sum_of_many_clients_of_whom_some_vanish_at_every_step(n):
    needed = IntegerRing(secure=True, threshold=0.9).needed(n)
    assert needed.degree < n // 2
    session, draw = few(n, needed), random.Random(n)
    there = sorted(draw.sample(range(n), n - n // 50))
    came = sorted(draw.sample(there, len(there) - n // 50))
    stayed = draw.sample(came, len(came) - n // 50)
    assert (summed(there, came, stayed, session) == sum(map(values, came))).all()


# ------------------------------ what nobody learns
def test_a_client_answers_only_for_a_sum_whose_graph_is_in_one_piece():
    """A server that says of a client's neighbours that they vanished would have it alone."""
    session = few(9, Needed(5, 4, 4))
    one = Sum(session.members, session).came(session.members)
    came = {*session.members} - {*session.others(0)}
    with pytest.raises(WireError, match="1 of client 0 and its neighbours are there"):
        one.clients[0].unmask(session.flags(came))


def test_below_the_threshold_nothing_is_learnt():
    for there in subsets(MEMBERS, 2):
        for i in there:
            with pytest.raises(WireError, match=f"{len(there)} clients are there"):
                Sum(there).masked(i)
    one = Sum().came(MEMBERS[:2])
    for i in MEMBERS[:2]:
        with pytest.raises(WireError, match="2 clients are there"):
            one.clients[i].unmask(one.server.received())
    assert summed(MEMBERS, MEMBERS, MEMBERS[:2]) is None


def test_no_client_gives_both_secrets_of_another_one():
    """It answers once, and more than half of all must answer alike."""
    one = Sum().came(MEMBERS)
    clients, without_5 = one.clients, bytes([1, 1, 1, 0, 1])
    seeds = clients[0].unmask(bytes([1, 1, 1, 1, 0]))
    for flags in (without_5, one.server.received()):
        with pytest.raises(WireError, match="each comes once"):
            clients[0].unmask(flags)
    assert len(seeds) == len(clients[2].unmask(without_5)) == 32 * 5
    with pytest.raises(WireError, match="each comes once"):
        one.masked(3)
    with pytest.raises(WireError, match="of other clients"):
        clients[5].unmask(without_5)  # that it sent nothing itself
    with pytest.raises(WireError, match="a byte for each"):
        clients[8].unmask(bytes([1, 1, 1, 1, 2]))


def test_what_a_client_sends_looks_random_and_differs_with_every_draw():
    nothing = np.zeros(4096, np.uint64)
    sent = [np.frombuffer(Sum().masked(2, nothing), np.uint64) for _ in range(2)]
    bits = np.unpackbits(np.concatenate(sent).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.005 and not (sent[0] == sent[1]).any()


# ------------------------------ a server that lies, and wrong bytes
FLIPPED = {"another mask key": 5, "another key for shares": 45, "other shares": -1, "flags": 0}


@pytest.mark.parametrize("what", [*FLIPPED, "client 3's as client 2's", "a byte more"])
def test_keys_that_a_server_has_changed_are_refused(what):
    one = Sum()
    told = bytearray(one.server.keys_for(0))
    if what in FLIPPED:
        told[FLIPPED[what]] ^= 1
    elif what == "a byte more":
        told.extend(b"x")
    else:
        told[5:150] = told[150:295]
    with pytest.raises(WireError, match=r"are not|do not fit"):
        one.masked(0, told=bytes(told))


def test_keys_of_another_sum_are_refused():
    other = SESSION._replace(name=b"run 1, round 7, draw 1")
    with pytest.raises(WireError, match="client 3's are not"):
        Sum(clients={3: client(3, other)}).masked(0)


@pytest.mark.parametrize("what", ["model", "clients"])
def test_masks_do_not_cancel_for_clients_who_were_told_otherwise(what):
    one = Sum()
    fewer = one.told(MEMBERS[:4]).keys_for(3)
    otherwise = {"told": fewer} if what == "clients" else {"model": b"x" * 32}
    for i in MEMBERS[:4]:
        one.server.take_masked(i, one.masked(i, **(otherwise if i == 3 else {})))
    assert not (one.unmasked((0, 2, 5)) == sum(map(values, MEMBERS[:4]))).any()


def test_wrong_shares_and_lengths_are_refused():
    one = Sum()
    for take, raw in (
        (one.server.take_keys, b"x"),
        (one.server.take_masked, b"x"),
        (one.server.take_shares, b""),
    ):
        with pytest.raises(WireError, match="bytes, not"):
            take(0, raw)
    one.came(MEMBERS[:4]).unmasked(MEMBERS[:2])
    one.server.take_shares(3, b"\1" * 160)
    with pytest.raises(WireError, match="do not give client 8's mask key"):
        one.server.sum()


# ------------------------------ test vectors
VECTORS = Path(__file__).parent / "masked_sums.json"
OF_FOUR = SESSION._replace(members=MEMBERS[:4], needed=Needed(3, 3, 3))


def transcript(monkeypatch):
    """All messages of a sum of three of four clients, from secrets that are no secrets."""
    stream = iter(range(1, 1000))
    monkeypatch.setattr(SecretSharing, "rng", lambda n: bytes([next(stream) % 256]) * n)
    given = {i: bytes([i + 1]) * 32 for i in OF_FOUR.members}
    key = lambda i: ec.derive_private_key(i + 7, CURVE)
    secret = lambda i: Secrets(given[i], given[i][::-1][:31] + b"s", key(i))
    clients = {i: client(i, OF_FOUR, secret(i)) for i in OF_FOUR.members}
    one = Sum((), OF_FOUR, clients, n=3)
    out = {"keys": {}, "told": {}, "masked": {}, "shares": {}}
    for i, member in clients.items():
        one.server.take_keys(i, out["keys"].setdefault(i, member.keys()))
    for i in (0, 2, 5):
        out["told"][i] = one.server.keys_for(i)
        out["masked"][i] = one.masked(i, values(i, 3))
        one.server.take_masked(i, out["masked"][i])
    for i in (0, 2, 5):
        out["shares"][i] = clients[i].unmask(one.server.received())
        one.server.take_shares(i, out["shares"][i])
    out["sum"] = {"0": one.server.sum().tobytes()}
    return {step: {str(i): raw.hex() for i, raw in of.items()} for step, of in out.items()}


def test_messages_are_those_of_the_committed_vectors(monkeypatch):
    """Another implementation, or a later one, must make these bytes."""
    assert transcript(monkeypatch) == json.loads(VECTORS.read_text())


def test_the_masks_of_the_vectors_by_another_library():
    """The same masked values with X25519, HKDF and ChaCha20 of pycryptodome."""
    told = json.loads(VECTORS.read_text())
    stream = lambda key: ChaCha20.new(key=key, nonce=bytes(8)).encrypt(bytes(24))
    words = lambda key: np.frombuffer(stream(key), "<u8")
    info = b"mask" + bytes([1, 1, 1, 1]) + MODEL
    kdf = lambda raw: HKDF(raw, 32, OF_FOUR.context, SHA256, context=info)
    mine = DH.import_x25519_private_key(b"\3" * 32)
    total = values(2, 3) + words((b"\3" * 31) + b"s")
    for i in (0, 3, 5):
        other = DH.import_x25519_public_key(bytes.fromhex(told["keys"][str(i)])[:32])
        key = DH.key_agreement(static_priv=mine, static_pub=other, kdf=kdf)
        total = total + words(key) if i > 2 else total - words(key)
    assert total.tobytes().hex() == told["masked"]["2"]
    assert told["sum"]["0"] == (values(0, 3) + values(2, 3) + values(5, 3)).tobytes().hex()


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(masked_sums, "CURVE", CURVE)
        VECTORS.write_text(json.dumps(transcript(patched), indent=1) + "\n")
