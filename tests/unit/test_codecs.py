"""Every codec: the format, sizes to the byte, exact round trips, and hostile bytes."""

import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.compression.codecs import (
    BF16,
    CODECS,
    FP16,
    MAKERS,
    QSGD,
    Chain,
    Dense,
    FedPAQ,
    Int8,
    Natural,
    PowerSGD,
    RandomDropping,
    Sign,
    TopK,
    index_coding,
    make_codec,
    named_codec,
)
from fedloom.compression.codecs.base import Header
from fedloom.compression.codecs.index_coding import Coding
from fedloom.core.layout import Layout
from fedloom.core.vector import leaves, rec
from fedloom.errors import CompositionError, ConfigError, DataError, WireError
from support.codec_cases import (
    EVERY,
    HALVES,
    LAYOUT,
    NOISY,
    TYPES,
    D,
    attempt,
    bits,
    draws,
    encode,
    flat,
    normal,
    same,
    vectors,
)
from support.refusals import refused

NOT_FINITE = [math.nan, math.inf, -math.inf]
each_codec = pytest.mark.parametrize("name", EVERY)

# -------------------------------------------------------------------------------------- the format
FORMAT = {  # name: (number in the header, default error feedback, options by default)
    "dense": (0, "forget", "Dense()"),
    "topk": (1, "residual", "TopK(ratio=0.01, scope='global')"),
    "dropping": (2, "residual", "RandomDropping(ratio=0.1, scaled=False)"),
    "qsgd": (3, "residual", "QSGD(levels=127, bucket=512, scope='global', shrink=False)"),
    "powersgd": (4, "residual", "PowerSGD(rank=2)"),
    "threshold": (5, "residual", "Threshold(tau=0.01)"),
    "sign": (8, "residual", "Sign(scope='global')"),
    "natural": (9, "residual", "Natural()"),
    "fp16": (10, "residual", "FP16()"),
    "bf16": (11, "residual", "BF16()"),
    "fedpaq": (12, "forget", "FedPAQ(levels=7, bucket=512, scope='layer', shrink=False)"),
    "int8": (13, "residual", "Int8(bucket=512)"),
    "chain": (14, "residual", repr(make_codec("topk:0.01|int8"))),
}


@pytest.mark.parametrize("name", FORMAT)
def test_numbers_and_defaults_are_those_of_the_format(name):
    codec = MAKERS[name]()
    assert (codec.code, codec.feedback, repr(codec)) == FORMAT[name]
    assert codec.matrices == (name == "powersgd")
    assert codec.chooses == (name in ("topk", "threshold", "dropping"))
    assert {*FORMAT} == {*MAKERS}


def test_every_kind_of_codec_has_a_number_and_what_is_written_with_a_bar_is_a_chain():
    kinds = {type(make()) for make in CODECS.values()} | {type(c) for c in EVERY.values()}
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert named_codec("int8") == ("int8", {})
    assert named_codec("topk:0.1|int8") == ("chain", {"of": "topk:0.1|int8"})


@each_codec
def test_a_message_is_decoded_to_the_type_that_is_asked_for(name):
    codec = EVERY[name]
    message = encode(codec, normal(dtype=torch.float32))
    sent = codec.decode(message, LAYOUT)
    assert sent.dtype == HALVES.get(name, torch.float32)
    wide = codec.decode(message, LAYOUT, torch.float64)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide, sent.double(), rtol=1e-5, atol=1e-6)


def plan(codec, p):
    return index_coding.plan(encode(codec, p).index.numpy(), D).nbytes


def test_sizes_are_those_of_the_format():
    p, head, signs = normal(dtype=torch.float32), 12, math.ceil(D / 8)
    sizes = {
        Dense(): 4 * D,
        TopK(ratio=1.0): 4 * D,
        Sign(): 4 + signs,
        Sign(scope="layer"): 4 * len(LAYOUT.sizes) + signs,
        Natural(): D + signs,
        FP16(): 2 * D,
        BF16(): 2 * D,
        Int8(bucket=64): 4 + 4 * math.ceil(D / 64) + D,
        FedPAQ(levels=7, bucket=64): 6
        + 4 * sum(math.ceil(n / 64) for n in LAYOUT.sizes)
        + math.ceil(D / 2),
    }
    for levels, width in ((1, 2), (3, 3), (4, 4), (7, 4), (15, 5), (63, 7), (127, 8)):
        norms = 4 * math.ceil(D / 100)
        sizes[QSGD(levels=levels, bucket=100)] = 6 + norms + math.ceil(D * width / 8)
    for rank in (1, 3):  # conv is 8 x 18
        sizes[PowerSGD(rank=rank)] = 2 + 4 * (rank * (20 + 15 + 8 + 18) + 20 + 1)
    top, k = TopK(ratio=0.1), round(0.1 * D)
    sizes[top] = 4 * k + plan(top, p)
    sizes[make_codec("topk:0.1|sign")] = 6 + plan(top, p) + head + 4 + math.ceil(k / 8)
    for codec, body in sizes.items():
        assert codec.nbytes(encode(codec, p)) == head + body, codec
    assert 0 < plan(top, p) <= signs
    kept = int((torch.rand(D, generator=draws()) < 0.3).sum())
    message = rec(size=torch.tensor([D]), seed=torch.tensor([1]), value=p[:kept])
    assert RandomDropping(ratio=0.3).nbytes(message) == head + 8 + 4 * kept


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@each_codec
def test_bytes_are_counted_and_give_the_same_message(name, dtype):
    codec = EVERY[name]
    for layout in (LAYOUT, flat(1), flat(7), flat(513), flat(0)):
        for kind, p in vectors(layout.d, dtype).items() if layout.d else [("no", torch.zeros(0))]:
            before = bits(p)
            message = encode(codec, p, layout)
            packed = codec.pack(message)
            assert codec.nbytes(message) == len(packed), (kind, layout.d)
            again = codec.unpack(packed, layout)
            assert same(again, message) and all(v.ndim == 1 for v in leaves(message))
            here, there = (codec.decode(m, layout, p.dtype) for m in (message, again))
            assert here.shape == p.shape and here.dtype == p.dtype and bits(here) == bits(there)
            assert here.isfinite().all() and bits(p) == before
            assert kind != "zero" or not here.any()


@each_codec
def test_the_same_draw_gives_the_same_message(name):
    codec, p = EVERY[name], normal()
    assert same(encode(codec, p, place=1), encode(codec, p, place=1))
    stages = {n: getattr(codec, n, None) for n in ("first", "then", "inner")}.values()
    inner = [getattr(s, n, None) for s in stages for n in ("first", "then", "inner")]
    noisy = any(isinstance(stage, NOISY) for stage in (codec, *stages, *inner))
    assert same(encode(codec, p, place=1), encode(codec, p, place=2)) is not noisy


# ----------------------------------------------------------------------------------------- refused
@pytest.mark.parametrize("bad", NOT_FINITE)
@each_codec
def test_what_is_not_finite_is_not_sent(name, bad):
    p = normal()
    p[D - 3] = bad
    refused(lambda: encode(EVERY[name], p), f"1 of {D} values", kind=DataError)


@each_codec
def test_another_length_or_type_is_refused(name):
    for p, says in (
        (normal(D - 1), "coordinates"),
        (normal().view(1, -1), "coordinates"),
        (torch.ones(D, dtype=torch.int64), "int64; it sends float64, float32, float16, bfloat16"),
    ):
        refused(lambda p=p: encode(EVERY[name], p), says, kind=DataError)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TopK(ratio=0.0), "ratio must be"),
        (lambda: RandomDropping(ratio=-0.1), "ratio must be"),
        (lambda: QSGD(levels=0), "levels must be"),
        (lambda: QSGD(levels=128), "levels must be"),
        (lambda: QSGD(bucket=-1), "bucket must be"),
        (lambda: PowerSGD(rank=0), "rank must be"),
        (lambda: Int8(bucket=2**32), "bucket"),  # the header has four bytes
        (lambda: make_codec(""), "unknown codec ''"),
        (lambda: make_codec("topk|"), "unknown codec ''"),
        (lambda: make_codec("topk:2"), "codec 'topk:2': ratio must be in (0, 1], got 2"),
        (lambda: make_codec("topk:2|int8"), "codec 'topk:2': ratio must be in (0, 1], got 2"),
        (lambda: make_codec("topk:0.1|int8:bucket=1.5"), "codec 'int8:bucket=1.5': bucket must be"),
        (lambda: make_codec("topk:0.1,block"), "codec 'topk:0.1,block': scope must be one of"),
        (lambda: make_codec("topk:ration=0.1"), "did you mean 'ratio'"),
        (lambda: make_codec("topk:0.1,ratio=0.1"), "given twice"),
        (lambda: make_codec("int8:bucket=1.5"), "whole number"),
        (lambda: make_codec("natural:3"), "natural"),
    ],
)
def test_values_and_texts_that_make_no_codec_are_refused(make, says):
    assert Int8(bucket=2**32 - 1).bucket == 2**32 - 1
    refused(make, says, kind=ConfigError)
    for text, why in (("qsgd|topk", "QSGD and TopK"), ("topk|dense", "changes nothing")):
        refused(lambda text=text: make_codec(text), why, kind=CompositionError)


# ----------------------------------------------------------------------------------- hostile bytes
@each_codec
def test_a_header_of_something_else_is_refused_for_that(name):
    codec = EVERY[name]
    raw = codec.pack(encode(codec, normal(dtype=torch.float32)))
    wrong = {0: (44, "has codec 44; ... reads"), 1: (4, "value type 4; known: 0 (float64), 1")}
    wrong |= {3: (1, "flags 1"), 4: (raw[4] ^ 1, f"coordinates, not for {D}")}
    if not codec.chooses and not isinstance(codec, Chain):
        (k,) = struct.unpack_from("<B", raw, 8)
        wrong |= {2: (1, "index coding 1; it has no"), 8: (k ^ 1, "values for ... it needs")}
    for at, (value, says) in wrong.items():
        worse = bytearray(raw)
        worse[at] = value
        refused(lambda worse=worse: codec.unpack(bytes(worse), LAYOUT), says, kind=WireError)
    short = lambda: codec.unpack(raw[:11], LAYOUT)
    refused(short, "has 11 bytes; its header alone has 12", kind=WireError)


@each_codec
def test_cut_and_lengthened_messages_are_refused(name):
    codec = EVERY[name]
    raw = codec.pack(encode(codec, normal(dtype=torch.float32)))
    cut = [raw[:n] for n in [*range(40), *range(40, len(raw), 7), len(raw) - 1]]
    for wrong in (*cut, raw + b"\0"):
        with pytest.raises(WireError):
            attempt(codec, wrong)
    message, other = codec.unpack(raw, LAYOUT), flat(D - 1)
    refused(lambda: codec.unpack(raw, other), "coordinates", kind=WireError)
    refused(lambda: codec.decode(message, other), "coordinates", kind=WireError)
    if name == "dense":
        early, late = raw[:-3], raw + b".."
        refused(lambda: codec.unpack(early, LAYOUT), "a Dense message ends 3 bytes too early")
        refused(lambda: codec.unpack(late, LAYOUT), "a Dense message has 2 bytes too many")


@each_codec
def test_gigantic_claims_cost_no_memory(name):
    codec = EVERY[name]
    tracemalloc.start()
    for d in (D, 2**32 - 1):
        for k in (0, 1, 1000, 2**31, 2**32 - 1):
            for coding in (*Coding, 9):
                raw = struct.pack("<BBBBII", codec.code, 1, coding, 0, d, k) + bytes(range(200))
                with pytest.raises(WireError):
                    attempt(codec, raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


F32 = torch.float32
MESSAGES = {name: codec.pack(encode(codec, normal(dtype=F32))) for name, codec in EVERY.items()}


def unread(codec, raw, layout=LAYOUT, dtype=F32):
    with pytest.raises(WireError) as caught:
        codec.read(raw, layout, dtype)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 250
    return said


# ------------------------------------------------------------------------------------ one message
@each_codec
def test_an_honest_message_is_read_as_it_is_decoded(name):
    codec = EVERY[name]
    for dtype in (F32, torch.float64):
        raw = codec.pack(encode(codec, normal(dtype=dtype)))
        here = codec.decode(codec.unpack(raw, LAYOUT), LAYOUT, dtype)
        assert bits(codec.read(raw, LAYOUT, dtype)) == bits(here)
        assert bits(codec.read(bytearray(raw), LAYOUT, dtype)) == bits(here)


@pytest.mark.parametrize("bad", NOT_FINITE)
@each_codec
def test_numbers_that_are_not_finite_are_refused(name, bad):
    codec = EVERY[name]
    message = encode(codec, normal(dtype=F32))
    for value in leaves(message):
        if not value.is_floating_point() or not len(value):
            continue
        for place in (0, len(value) - 1):
            kept = value[place].clone()
            value[place] = bad
            unread(codec, codec.pack(message))
            value[place] = kept


def test_what_overflows_in_the_models_type_is_refused_and_the_largest_float_is_not():
    codec = Int8(bucket=100)
    large = codec.pack(encode(codec, torch.full((D,), 1e30)))
    assert "not finite as float16" in unread(codec, large, dtype=torch.float16)
    largest = torch.finfo(F32).max
    p = torch.tensor([largest, -largest, 0.0])
    out = Int8().read(Int8().pack(encode(Int8(), p, flat(3))), flat(3), F32)
    assert torch.allclose(out, p, rtol=1e-5, atol=0)


@each_codec
def test_what_is_no_bytes_is_refused(name):
    for raw in (None, 7, "text", [1, 2], {"a": b""}, torch.zeros(3)):
        assert "must be bytes, got" in unread(EVERY[name], raw)


def test_what_the_runs_codec_would_not_send_is_refused():
    """Other options, and more or fewer values than a seed keeps."""
    pack = lambda codec: codec.pack(encode(codec, normal(dtype=F32)))
    chain, other = make_codec("topk:0.1|sign"), make_codec("topk:0.1|int8")
    said = unread(chain, bytes([chain.code]) + pack(other)[1:])
    assert "has the options 010d; those of this run" in said
    said = unread(make_codec("qsgd:7,64"), pack(make_codec("qsgd:15,64")))
    assert "those of this run, QSGD(levels=7" in said
    codec = RandomDropping(ratio=0.3)
    message = encode(codec, normal(dtype=F32))
    for value in (message.value[1:], torch.cat([message.value, message.value[:1]])):
        assert "its seed keeps" in unread(codec, codec.pack(message._replace(value=value)))


KINDS = st.sampled_from(["set", "bit", "cut", "add", "number", "value", "swap"])
CHANGE = st.tuples(KINDS, st.integers(0, 2**16), st.integers(0, 2**32 - 1))
changes = st.lists(CHANGE, min_size=1, max_size=4)
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
    unread(*lie, layout)
    assert peak(lambda: unread(*lie, layout)) < MODEL + SPARE
