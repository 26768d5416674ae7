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
from fedloom.aggregation.mask_graph import Needed
from fedloom.errors import WireError
from fedloom_flower import masked_sums
from fedloom_flower.masked_sums import (
    Identity,
    MaskingClient,
    Secrets,
    Session,
    UnmaskingServer,
)

CURVE = ec.SECP256R1()  # P-384 takes ten times as long
MEMBERS = (0, 2, 3, 5, 8)
MODEL = b"m" * 32
KEYS = {i: ec.derive_private_key(1000 + i, CURVE) for i in MEMBERS}
PUBLIC = {i: key.public_key() for i, key in KEYS.items()}
SESSION = Session(b"run 1, round 7, draw 0", MEMBERS, Needed(3, 4, 3))


@pytest.fixture(autouse=True)
def _curve(monkeypatch):
    monkeypatch.setattr(masked_sums, "CURVE", CURVE)


def client(i, session=SESSION, secrets=None):
    return MaskingClient(session, i, Identity(KEYS[i], PUBLIC), secrets)


def values(i, n=7):
    drawn = np.random.default_rng(i).integers(-(2**43), 2**43, n)
    drawn[0] = (-(2**43), 2**43)[i % 2]
    return drawn.astype(np.int64).view(np.uint64)


def server(n=7, session=SESSION):
    return UnmaskingServer(session, n, MODEL)


def begun(clients, there, session=SESSION):
    """A server that has the keys of those who are there."""
    found = server(session=session)
    for i in there:
        found.take_keys(i, clients[i].keys())
    return found


def summed(there, came, stayed, session=SESSION):
    """The sum, if those are there at the three steps."""
    clients = {i: client(i, session) for i in session.members}
    found = begun(clients, there, session)
    for i in came:
        found.take_masked(i, clients[i].masked(found.keys_for(i), values(i), MODEL))
    for i in stayed:
        found.take_shares(i, clients[i].unmask(found.received()))
    return found.sum() if found.lacking <= 0 else None


def subsets(of):
    return [s for k in range(len(of) + 1) for s in itertools.combinations(of, k)]


@pytest.mark.parametrize("step", range(3))
def test_the_sum_is_that_of_those_who_came_whoever_vanishes_at_a_step(step):
    """Every subset of at most two of five, at each step."""
    for left in (s for s in subsets(MEMBERS) if len(s) <= 2):
        rest = [i for i in MEMBERS if i not in left]
        there, came, stayed = ([MEMBERS] * step + [rest] * 3)[:3]
        exact = sum(values(i) for i in came)
        assert (summed(there, came, stayed) == exact).all()


def test_clients_may_vanish_at_every_step_of_one_sum():
    assert (summed((0, 2, 3, 5), (0, 2, 5), (0, 2, 5)) == values(0) + values(2) + values(5)).all()
    assert (summed(MEMBERS, (0, 3, 5, 8), (0, 5, 8)) == sum(map(values, (0, 3, 5, 8)))).all()


def few(n, needed):
    """A session of n members, with keys that nobody else has."""
    for i in range(n):
        if i not in KEYS:
            KEYS[i] = ec.derive_private_key(1000 + i, CURVE)
            PUBLIC[i] = KEYS[i].public_key()
    return Session(b"few", tuple(range(n)), needed)


def gives(session, some, of):
    """Whether so many of each neighbourhood are there, counted in another way."""
    ring = sorted(
        session.members,
        key=lambda i: hashlib.sha256(
            b"ring" + session.context + i.to_bytes(8, "little")
        ).hexdigest(),
    )
    n, reach, counts = len(ring), session.needed.degree // 2, []
    for at, i in enumerate(ring):
        if i in of:
            counts.append(
                sum(
                    j in some and min((at - b) % n, (b - at) % n) <= reach
                    for b, j in enumerate(ring)
                )
            )
    return len(some) >= session.needed.clients and min(counts) >= session.needed.shares


@pytest.mark.parametrize(
    ("n", "degree", "shares"),
    [(6, 2, 2), *(pytest.param(*few, marks=pytest.mark.slow) for few in ((7, 4, 3), (8, 4, 4)))],
)
def test_neighbours_give_the_sum_whoever_vanishes_at_a_step(n, degree, shares):
    """Every subset of at most three, at each step: the sum, or nothing where shares are missing."""
    session, seen = few(n, Needed(n - 3, degree, shares)), set()
    everybody = session.members
    for left in (s for s in subsets(everybody) if len(s) <= 3):
        rest = [i for i in everybody if i not in left]
        for step in range(3):
            there, came, stayed = ([everybody] * step + [rest] * 3)[:3]
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


def test_a_client_answers_only_for_a_sum_whose_graph_is_in_one_piece():
    """A server that says of a client's neighbours that they vanished would have it alone."""
    session = few(9, Needed(5, 4, 4))
    clients = {i: client(i, session) for i in session.members}
    found = begun(clients, session.members, session)
    for i in session.members:
        found.take_masked(i, clients[i].masked(found.keys_for(i), values(i), MODEL))
    came = {*session.members} - {*session.others(0)}
    with pytest.raises(WireError, match="1 of client 0 and its neighbours are there"):
        clients[0].unmask(session.flags(came))


def test_below_the_threshold_nothing_is_learnt():
    for there in (s for s in subsets(MEMBERS) if len(s) < 3):
        clients = {i: client(i) for i in MEMBERS}
        found = begun(clients, there)
        for i in there:
            with pytest.raises(WireError, match=f"{len(there)} clients are there"):
                clients[i].masked(found.keys_for(i), values(i), MODEL)
    clients = {i: client(i) for i in MEMBERS}
    found = begun(clients, MEMBERS)
    for i in MEMBERS[:2]:
        found.take_masked(i, clients[i].masked(found.keys_for(i), values(i), MODEL))
    for i in MEMBERS[:2]:
        with pytest.raises(WireError, match="2 clients are there"):
            clients[i].unmask(found.received())
    assert summed(MEMBERS, MEMBERS, MEMBERS[:2]) is None


def test_no_client_gives_both_secrets_of_another_one():
    """It answers once, and more than half of all must answer alike."""
    clients = {i: client(i) for i in MEMBERS}
    found = begun(clients, MEMBERS)
    for i in MEMBERS:
        found.take_masked(i, clients[i].masked(found.keys_for(i), values(i), MODEL))
    seeds = clients[0].unmask(bytes([1, 1, 1, 1, 0]))
    for flags in (bytes([1, 1, 1, 0, 1]), found.received()):
        with pytest.raises(WireError, match="each comes once"):
            clients[0].unmask(flags)
    secrets = clients[2].unmask(bytes([1, 1, 1, 0, 1]))
    assert len(seeds) == len(secrets) == 32 * 5
    with pytest.raises(WireError, match="each comes once"):
        clients[3].masked(found.keys_for(3), values(3), MODEL)
    with pytest.raises(WireError, match="of other clients"):
        clients[5].unmask(bytes([1, 1, 1, 0, 1]))  # that it sent nothing itself
    with pytest.raises(WireError, match="a byte for each"):
        clients[8].unmask(bytes([1, 1, 1, 1, 2]))


def test_what_a_client_sends_looks_random_and_differs_with_every_draw():
    clients = [{i: client(i) for i in MEMBERS} for _ in range(2)]
    sent = []
    for some in clients:
        found, same = begun(some, MEMBERS), np.zeros(4096, np.uint64)
        sent += [np.frombuffer(some[2].masked(found.keys_for(2), same, MODEL), np.uint64)]
    bits = np.unpackbits(np.concatenate(sent).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.005 and not (sent[0] == sent[1]).any()


def lies(change):
    """Client 0 and what it is told, of which `change` makes something else."""
    clients = {i: client(i) for i in MEMBERS}
    found = begun(clients, MEMBERS)
    told = bytearray(found.keys_for(0))
    change(told)
    return clients[0], bytes(told)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.__setitem__(5, told[5] ^ 1),  # another mask key
        lambda told: told.__setitem__(5 + 40, told[5 + 40] ^ 1),  # another key for shares
        lambda told: told.__setitem__(-1, told[-1] ^ 1),  # other shares
        lambda told: told.__setitem__(slice(5, 150), told[150:295]),  # client 3's as client 2's
        lambda told: told.extend(b"x"),
        lambda told: told.__setitem__(0, 0),
    ],
)
def test_keys_that_a_server_has_changed_are_refused(change):
    one, told = lies(change)
    with pytest.raises(WireError, match=r"are not|do not fit"):
        one.masked(told, values(0), MODEL)


def test_keys_of_another_sum_are_refused():
    other = SESSION._replace(name=b"run 1, round 7, draw 1")
    clients = {i: client(i) for i in MEMBERS}
    found = begun(clients | {3: client(3, other)}, MEMBERS)
    with pytest.raises(WireError, match="client 3's are not"):
        clients[0].masked(found.keys_for(0), values(0), MODEL)


@pytest.mark.parametrize("what", ["model", "clients"])
def test_masks_do_not_cancel_for_clients_who_were_told_otherwise(what):
    clients = {i: client(i) for i in MEMBERS}
    found = begun(clients, MEMBERS)
    fewer = server()
    fewer._keys = {i: raw for i, raw in found._keys.items() if i != 8}
    for i in MEMBERS[:4]:
        other = i == 3
        told = (fewer if other and what == "clients" else found).keys_for(i)
        model = b"x" * 32 if other and what == "model" else MODEL
        found.take_masked(i, clients[i].masked(told, values(i), model))
    for i in (0, 2, 5):
        found.take_shares(i, clients[i].unmask(found.received()))
    assert not (found.sum() == sum(map(values, MEMBERS[:4]))).any()


def test_wrong_shares_and_lengths_are_refused():
    clients = {i: client(i) for i in MEMBERS}
    found = begun(clients, MEMBERS)
    for take, raw in ((found.take_keys, b"x"), (found.take_masked, b"x"), (found.take_shares, b"")):
        with pytest.raises(WireError, match="bytes, not"):
            take(0, raw)
    for i in MEMBERS[:4]:
        found.take_masked(i, clients[i].masked(found.keys_for(i), values(i), MODEL))
    for i in MEMBERS[:3]:
        found.take_shares(i, b"\1" * 160 if i == 2 else clients[i].unmask(found.received()))
    with pytest.raises(WireError, match="do not give client 8's mask key"):
        found.sum()


# ----------------------------------------------------------------------------------- test vectors
VECTORS = Path(__file__).parent / "masked_sums.json"


def transcript(monkeypatch):
    """All messages of a sum of three of four clients, from secrets that are no secrets."""
    given = {i: bytes([i + 1]) * 32 for i in MEMBERS[:4]}
    stream = iter(range(1, 1000))
    monkeypatch.setattr(SecretSharing, "rng", lambda n: bytes([next(stream) % 256]) * n)
    session = SESSION._replace(members=MEMBERS[:4], needed=Needed(3, 3, 3))
    found = UnmaskingServer(session, 3, MODEL)
    secret = lambda i: Secrets(
        given[i], given[i][::-1][:31] + b"s", ec.derive_private_key(i + 7, CURVE)
    )
    clients = {i: client(i, session, secret(i)) for i in session.members}
    out = {"keys": {}, "told": {}, "masked": {}, "shares": {}}
    for i, one in clients.items():
        out["keys"][i] = one.keys()
        found.take_keys(i, out["keys"][i])
    for i in (0, 2, 5):
        out["told"][i] = found.keys_for(i)
        out["masked"][i] = clients[i].masked(found.keys_for(i), values(i, 3), MODEL)
        found.take_masked(i, out["masked"][i])
    for i in (0, 2, 5):
        out["shares"][i] = clients[i].unmask(found.received())
        found.take_shares(i, out["shares"][i])
    out["sum"] = {"0": found.sum().tobytes()}
    return {step: {str(i): raw.hex() for i, raw in of.items()} for step, of in out.items()}


def test_messages_are_those_of_the_committed_vectors(monkeypatch):
    """Another implementation, or a later one, must make these bytes."""
    assert transcript(monkeypatch) == json.loads(VECTORS.read_text())


def test_the_masks_of_the_vectors_by_another_library():
    """The same masked values with X25519, HKDF and ChaCha20 of pycryptodome."""
    told = json.loads(VECTORS.read_text())
    session = SESSION._replace(members=MEMBERS[:4], needed=Needed(3, 3, 3))
    words = lambda key: np.frombuffer(
        ChaCha20.new(key=key, nonce=bytes(8)).encrypt(bytes(24)), "<u8"
    )
    mine = DH.import_x25519_private_key(b"\3" * 32)
    total = values(2, 3) + words((b"\3" * 31) + b"s")
    for i in (0, 3, 5):
        other = DH.import_x25519_public_key(bytes.fromhex(told["keys"][str(i)])[:32])
        info = b"mask" + bytes([1, 1, 1, 1]) + MODEL
        kdf = lambda raw, info=info: HKDF(raw, 32, session.context, SHA256, context=info)
        key = DH.key_agreement(static_priv=mine, static_pub=other, kdf=kdf)
        total = total + words(key) if i > 2 else total - words(key)
    assert total.tobytes().hex() == told["masked"]["2"]
    assert told["sum"]["0"] == (values(0, 3) + values(2, 3) + values(5, 3)).tobytes().hex()


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(masked_sums, "CURVE", CURVE)
        VECTORS.write_text(json.dumps(transcript(patched), indent=1) + "\n")
