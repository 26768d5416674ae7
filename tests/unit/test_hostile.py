"""Messages from somebody who means harm: refused in one line, or finite and of the right length."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.algorithms import Scaffold
from fedloom.compression.codecs import Dense, Int8, RandomDropping, TopK, make_codec
from fedloom.compression.codecs.base import Header
from fedloom.compression.codecs.index_coding import Coding
from fedloom.compression.link import FieldCodec, Link
from fedloom.core import wire
from fedloom.core.layout import Layout
from fedloom.core.vector import rec
from fedloom.errors import WireError
from support.codec_cases import EVERY, LAYOUT, D, bits, encode, flat, normal

F32 = torch.float32
MESSAGES = {name: codec.pack(encode(codec, normal(dtype=F32))) for name, codec in EVERY.items()}


def refused(codec, raw, layout=LAYOUT, dtype=F32):
    with pytest.raises(WireError) as caught:
        codec.read(raw, layout, dtype)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 250
    return said


# ------------------------------------------------------------------------------------ one message
@pytest.mark.parametrize("name", EVERY)
def test_an_honest_message_is_read_as_it_is_decoded(name):
    codec = EVERY[name]
    for dtype in (F32, torch.float64):
        raw = codec.pack(encode(codec, normal(dtype=dtype)))
        here = codec.decode(codec.unpack(raw, LAYOUT), LAYOUT, dtype)
        assert bits(codec.read(raw, LAYOUT, dtype)) == bits(here)
        assert bits(codec.read(bytearray(raw), LAYOUT, dtype)) == bits(here)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", EVERY)
def test_numbers_that_are_not_finite_are_refused(name, bad):
    codec = EVERY[name]
    message = encode(codec, normal(dtype=F32))
    for field, value in message._asdict().items():
        if not value.is_floating_point():
            continue
        for place in (0, len(value) - 1):
            worse = value.clone()
            worse[place] = bad
            refused(codec, codec.pack(message._replace(**{field: worse})))


def test_what_overflows_in_the_models_type_is_refused_and_the_largest_float_is_not():
    codec = Int8(bucket=100)
    large = codec.pack(encode(codec, torch.full((D,), 1e30)))
    assert "not finite as float16" in refused(codec, large, dtype=torch.float16)
    largest = torch.finfo(F32).max
    p = torch.tensor([largest, -largest, 0.0])
    out = Int8().read(Int8().pack(encode(Int8(), p, flat(3))), flat(3), F32)
    assert torch.allclose(out, p, rtol=1e-5, atol=0)


@pytest.mark.parametrize("raw", [None, 7, "text", [1, 2], {"a": b""}, torch.zeros(3)])
@pytest.mark.parametrize("name", EVERY)
def test_what_is_no_bytes_is_refused(name, raw):
    with pytest.raises(WireError, match="must be bytes, got"):
        EVERY[name].unpack(raw, LAYOUT)
    assert "must be bytes, got" in refused(EVERY[name], raw)


def test_what_the_runs_codec_would_not_send_is_refused():
    """Other options, and more or fewer values than a seed keeps."""
    pack = lambda codec: codec.pack(encode(codec, normal(dtype=F32)))
    chain, other = make_codec("topk:0.1|sign"), make_codec("topk:0.1|int8")
    said = refused(chain, bytes([chain.code]) + pack(other)[1:])
    assert "has the options 010d; those of this run" in said
    said = refused(make_codec("qsgd:7,64"), pack(make_codec("qsgd:15,64")))
    assert "those of this run, QSGD(levels=7" in said
    codec = RandomDropping(ratio=0.3)
    message = encode(codec, normal(dtype=F32))
    for value in (message.value[1:], torch.cat([message.value, message.value[:1]])):
        assert "its seed keeps" in refused(codec, codec.pack(message._replace(value=value)))


# ------------------------------------------------------------------------------------- the packet
LINK = Link({"delta": FieldCodec(TopK(ratio=0.1))}).settled(Scaffold())
UP = rec(delta=normal(D, 1, F32), dc=normal(D, 2, F32), weight=3.0)


class Whole:
    layout = LAYOUT


def packet():
    return LINK.send(UP, LINK.init(torch.zeros(D), LAYOUT, 0), Whole, 0, 7, 1)[0]


def number(value):
    return struct.pack("<d", value)


def values(*bad):
    return torch.tensor([*bad, *[0.0] * (D - len(bad))], dtype=F32).numpy().tobytes()


OTHER_PACKETS = {
    "no packet": None,
    "a list": [b"", b""],
    "no fields": {},
    "a field is missing": lambda p: {k: v for k, v in p.items() if k != "weight"},
    "a coded field is missing": lambda p: {k: v for k, v in p.items() if k != "delta"},
    "one too many": lambda p: p | {"more": b""},
    "a name that is no text": lambda p: p | {7: b"", None: b""},
}
OTHER_FIELDS = {
    "a text": ("dc", "0" * 4 * D),
    "NaN": ("dc", values(math.nan)),
    "infinity": ("dc", values(0.0, -math.inf)),
    "no bytes": ("delta", None),
    "a damaged message": ("delta", lambda raw: raw[:-1]),
    "another codec's": ("delta", Dense().pack(encode(Dense(), UP.delta))),
    "a number": ("weight", 3.0),
    "a longer number": ("weight", lambda raw: raw * 2),
    "a shorter number": ("weight", lambda raw: raw[:3]),
    "no weight": ("weight", number(0.0)),
    "minus no weight": ("weight", number(-0.0)),
    "a weight beyond counting": ("weight", number(2.0**32)),
    "a negative weight": ("weight", number(-3.0)),
    "an infinite weight": ("weight", number(math.inf)),
    "a weight that is none": ("weight", number(math.nan)),
}


@pytest.mark.parametrize("case", [*OTHER_PACKETS, *OTHER_FIELDS])
def test_packets_that_cannot_be_are_refused_in_one_line(case):
    good = packet()
    assert LINK.receive(good, LAYOUT, UP).weight == 3.0
    apply = lambda change, of: change(of) if callable(change) else change
    if case in OTHER_PACKETS:
        bad = apply(OTHER_PACKETS[case], good)
    else:
        field, change = OTHER_FIELDS[case]
        bad = good | {field: apply(change, good[field])}
    with pytest.raises(WireError) as caught:
        LINK.receive(bad, LAYOUT, UP)
    assert "\n" not in str(caught.value)


def test_a_client_weighs_no_more_than_it_announced():
    assert LINK.receive(packet(), LAYOUT, UP, heaviest=3.0).weight == 3.0
    with pytest.raises(WireError, match=r"'weight' must be at most 2\.5, .* got 3"):
        LINK.receive(packet(), LAYOUT, UP, heaviest=2.5)


def test_records_are_read_from_their_own_bytes_only():
    like = rec(own=rec(m=torch.zeros(3), flag=torch.zeros(2, dtype=torch.bool)), t=1.0)
    good = wire.pack(like)
    wrong = [
        None,
        {k: v for k, v in good.items() if k != "own.m"},
        good | {"more": b""},
        good | {"t": good["t"] + b"\0"},
        good | {"t": good["t"][:-1]},
        good | {"t": 1.0},
        good | {"own.flag": b"\0\2"},
    ]
    for bad in wrong:
        with pytest.raises(WireError):
            wire.unpack(bad, like)


# -------------------------------------------------------------------------------------- mutations
changes = st.lists(
    st.tuples(
        st.sampled_from(["set", "bit", "cut", "add", "number", "value", "swap"]),
        st.integers(0, 2**16),
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=4,
)
VALUES = [math.nan, math.inf, -math.inf, -0.0, 3e38, 1e-45]


def mutated(raw, changes):
    out = bytearray(raw)
    for what, at, value in changes:
        at = at % 40 if value % 2 else at % (len(out) + 1)  # half of them where the claims stand
        if what == "set" and at < len(out):
            out[at] = value % 256
        elif what == "bit" and at < len(out):
            out[at] ^= 1 << value % 8
        elif what == "cut":
            del out[at : at + value % 9 + 1]
        elif what == "add":
            out[at:at] = bytes(value % 40)
        elif what == "number":
            out[at : at + 4] = struct.pack("<I", value)
        elif what == "value":
            out[at : at + 4] = struct.pack("<f", VALUES[value % len(VALUES)])
        elif what == "swap":
            out[at : at + 4], out[:4] = out[:4], out[at : at + 4]
    return bytes(out)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(EVERY)), changes)
def test_mutated_messages_are_finite_vectors_or_refused(name, changes):
    codec, raw = EVERY[name], mutated(MESSAGES[name], changes)
    try:
        out = codec.read(raw, LAYOUT, F32)
    except WireError as error:
        assert "\n" not in str(error)
    else:
        assert out.shape == (D,) and out.dtype == F32 and bool(out.isfinite().all())


# ----------------------------------------------------------------------------------------- memory
LONG = 1 << 22  # coordinates: a model of 16 MiB
MODEL, SPARE = 4 * LONG, 6 << 20


def peak(act):
    """Bytes by which a process grows at most while it acts, whoever asks for them."""
    Path("/proc/self/clear_refs").write_text("5")
    status = lambda key: next(
        1024 * int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(key)
    )
    before = status("VmRSS")
    act()
    return status("VmHWM") - before


def liars():
    """Short messages that claim much, and long ones whose tables would be longer."""
    d, bitmap = LONG, LONG // 8
    head = lambda codec, coding, k: Header(codec.code, F32, int(coding), d, k).bytes()
    some = EVERY["threshold"]
    yield "all places, no values", some, head(some, Coding.IMPLIED, d)
    yield "gaps of one byte", some, head(some, Coding.VARINT, 1) + bytes(8 * bitmap) + bytes(4)
    ones = np.full(bitmap // 2, 255, np.uint8).tobytes()
    rest = bytes(bitmap // 2 - 1)
    yield "a long code", some, head(some, Coding.RICE, 1) + b"\0" + ones + rest + bytes(4)
    yield "a set too many", some, head(some, Coding.BITMAP, 1) + b"\xff" * bitmap + bytes(4)
    signs = EVERY["sign"]
    yield "signs", signs, head(signs, 0, 1) + bytes(4)
    chained = make_codec("topk:0.01|int8")
    own = struct.pack("<BBI", 1, 13, 0)
    yield "a chain of all", chained, head(chained, Coding.IMPLIED, d) + own + bytes(30)
    layers = EVERY["sign by layer"]
    yield "magnitudes", layers, head(layers, 0, 2**22) + bytes(2**24)
    rank = EVERY["rank 1"]
    yield "factors", rank, head(rank, 0, d) + struct.pack("<H", 1) + bytes(4 * d)


@pytest.mark.parametrize("case", [name for name, *_ in liars()])
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_no_claim_costs_more_than_the_model(case):
    (lie,) = [(codec, raw) for name, codec, raw in liars() if name == case]
    layout = Layout(("w", "b"), ((LONG // 8, 4), (LONG // 2,)))
    refused(*lie, layout)
    assert peak(lambda: refused(*lie, layout)) < MODEL + SPARE
