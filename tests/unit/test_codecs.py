"""Every codec: the format, sizes to the byte, exact round trips, and bytes that are no message."""

import math
import struct
import tracemalloc

import pytest
import torch

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
from fedloom.compression.codecs.index_coding import Coding
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
    "chain": (
        14,
        "residual",
        "Chain(first=TopK(ratio=0.01, scope='global'), then=Int8(bucket=512))",
    ),
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


# ------------------------------------------------------------------------------------- round trips
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
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
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
