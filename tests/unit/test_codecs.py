"""Every codec: the format, sizes to the byte, exact round trips, and bytes that are no message."""

from __future__ import annotations

import math
import struct
import tracemalloc

import numpy as np
import pytest
import torch

from fedloom.compression.codecs import (
    CODECS,
    MAKERS,
    QSGD,
    Chain,
    Codec,
    Dense,
    FedPAQ,
    Int8,
    PowerSGD,
    RandomDropping,
    Sign,
    TopK,
    named_codec,
)
from fedloom.compression.codecs.index_coding import Coding
from fedloom.core.vector import rec
from fedloom.errors import AuthorError, ConfigError, DataError, WireError
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
    through,
    vectors,
)

# ------------------------------------------------------------------------------------- the format
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


def test_what_is_written_with_a_bar_is_a_chain():
    assert named_codec("int8") == ("int8", {})
    assert named_codec("topk:0.1|int8") == ("chain", {"of": "topk:0.1|int8"})


def test_one_level_is_enough():
    assert FedPAQ(levels=1).levels == QSGD(levels=1).levels == 1


def test_the_header_of_int8_has_four_bytes_for_a_bucket():
    assert Int8(bucket=2**32 - 1).bucket == 2**32 - 1
    with pytest.raises(ConfigError, match="bucket"):
        Int8(bucket=2**32)


@pytest.mark.parametrize("name", EVERY)
def test_a_message_is_decoded_to_the_type_that_is_asked_for(name):
    codec = EVERY[name]
    message = encode(codec, normal(dtype=torch.float32))
    sent = codec.decode(message, LAYOUT)
    assert sent.dtype == HALVES.get(name, torch.float32)
    wide = codec.decode(message, LAYOUT, torch.float64)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide, sent.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_a_header_of_something_else_is_refused_for_that(name):
    codec = EVERY[name]
    raw = codec.pack(encode(codec, normal(dtype=torch.float32)))
    wrong = {0: (44, "has codec 44; .* reads"), 1: (4, "value type 4; known: 0 .float64., 1")}
    wrong |= {3: (1, "flags 1"), 4: (raw[4] ^ 1, f"coordinates, not for {D}")}
    if not codec.chooses and not isinstance(codec, Chain):
        (k,) = struct.unpack_from("<B", raw, 8)
        wrong |= {2: (1, "index coding 1; it has no"), 8: (k ^ 1, "values for .* it needs")}
    for at, (value, said) in wrong.items():
        worse = bytearray(raw)
        worse[at] = value
        with pytest.raises(WireError, match=said):
            codec.unpack(bytes(worse), LAYOUT)
    with pytest.raises(WireError, match=r"has 11 bytes; its header alone has 12"):
        codec.unpack(raw[:11], LAYOUT)


def test_a_codec_of_ones_own_needs_these_methods():
    assert Codec.__abstractmethods__ == {"encode", "decode"}
    for ask in (lambda: Sign().where(rec()), lambda: Sign().there(0, np.zeros(0), 1, 1)):
        with pytest.raises(AuthorError, match="Sign chooses coordinates, and needs a"):
            ask()


def test_a_message_that_ends_early_says_by_how_much():
    raw = Dense().pack(encode(Dense(), normal()))
    with pytest.raises(WireError, match="a Dense message ends 3 bytes too early"):
        Dense().unpack(raw[:-3], LAYOUT)
    with pytest.raises(WireError, match="a Dense message has 2 bytes too many"):
        Dense().unpack(raw + b"..", LAYOUT)


# ------------------------------------------------------------------------------------ round trips
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_bytes_are_counted_and_give_the_same_message(name, dtype):
    codec = EVERY[name]
    for layout in (LAYOUT, flat(1), flat(7), flat(513), flat(0)):
        for kind, p in vectors(layout.d, dtype).items() if layout.d else [("no", torch.zeros(0))]:
            before = bits(p)
            message = encode(codec, p, layout)
            packed = codec.pack(message)
            assert codec.nbytes(message) == len(packed), (kind, layout.d)
            again = codec.unpack(packed, layout)
            assert same(again, message)
            assert all(v.ndim == 1 for v in message)
            here, there = (codec.decode(m, layout, p.dtype) for m in (message, again))
            assert here.shape == p.shape and here.dtype == p.dtype and bits(here) == bits(there)
            assert here.isfinite().all() and bits(p) == before


@pytest.mark.parametrize("name", EVERY)
def test_the_same_draw_gives_the_same_message(name):
    codec, p = EVERY[name], normal()
    assert same(encode(codec, p, place=1), encode(codec, p, place=1))
    stages = {n: getattr(codec, n, None) for n in ("first", "then", "inner")}.values()
    inner = [getattr(s, n, None) for s in stages for n in ("first", "then", "inner")]
    noisy = any(isinstance(stage, NOISY) for stage in (codec, *stages, *inner))
    assert same(encode(codec, p, place=1), encode(codec, p, place=2)) is not noisy


@pytest.mark.parametrize("name", EVERY)
def test_nothing_stays_nothing(name):
    assert not through(EVERY[name], torch.zeros(D)).any()


def test_sizes_are_those_of_the_format():
    p, head = normal(dtype=torch.float32), 12
    assert Dense().nbytes(encode(Dense(), p)) == head + 4 * D
    k = round(0.1 * D)
    bitmap = math.ceil(D / 8)
    found = TopK(ratio=0.1).nbytes(encode(TopK(ratio=0.1), p))
    assert head + 4 * k < found <= head + 4 * k + bitmap
    assert TopK(ratio=1.0).nbytes(encode(TopK(ratio=1.0), p)) == head + 4 * D
    kept = int((torch.rand(D, generator=draws()) < 0.3).sum())
    message = rec(size=torch.tensor([D]), seed=torch.tensor([1]), value=p[:kept])
    assert RandomDropping(ratio=0.3).nbytes(message) == head + 8 + 4 * kept
    for levels, width in ((1, 2), (3, 3), (4, 4), (7, 4), (15, 5), (63, 7), (127, 8)):
        codec = QSGD(levels=levels, bucket=100)
        size = head + 6 + 4 * math.ceil(D / 100) + math.ceil(D * width / 8)
        assert codec.nbytes(encode(codec, p)) == size
    for rank in (1, 3):  # conv is 8 x 18
        codec = PowerSGD(rank=rank)
        size = head + 2 + 4 * (rank * (20 + 15 + 8 + 18) + 20 + 1)
        assert codec.nbytes(encode(codec, p)) == size


# ---------------------------------------------------------------------------------------- refused
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", EVERY)
def test_what_is_not_finite_is_not_sent(name, bad):
    p = normal()
    p[D - 3] = bad
    with pytest.raises(DataError, match=f"1 of {D} values"):
        encode(EVERY[name], p)


@pytest.mark.parametrize("name", EVERY)
def test_another_length_or_type_is_refused(name):
    with pytest.raises(DataError, match="coordinates"):
        encode(EVERY[name], normal(D - 1))
    with pytest.raises(DataError, match="coordinates"):
        encode(EVERY[name], normal().view(1, -1))
    with pytest.raises(DataError, match="int64; it sends float64, float32, float16, bfloat16"):
        encode(EVERY[name], torch.ones(D, dtype=torch.int64))


def test_hyper_parameters_have_ranges():
    wrong = [
        lambda: TopK(ratio=0.0),
        lambda: RandomDropping(ratio=-0.1),
        lambda: QSGD(levels=0),
        lambda: QSGD(levels=128),
        lambda: QSGD(bucket=-1),
        lambda: PowerSGD(rank=0),
    ]
    for make in wrong:
        with pytest.raises(ConfigError):
            make()
    kinds = {type(make()) for make in CODECS.values()} | {type(c) for c in EVERY.values()}
    assert len({kind.code for kind in kinds}) == len(kinds)


# ---------------------------------------------------------------------------------- hostile bytes
@pytest.mark.parametrize("name", EVERY)
def test_cut_and_lengthened_messages_are_refused(name):
    codec = EVERY[name]
    raw = codec.pack(encode(codec, normal(dtype=torch.float32)))
    for n in [*range(40), *range(40, len(raw), 7), len(raw) - 1]:
        with pytest.raises(WireError):
            attempt(codec, raw[:n])
    with pytest.raises(WireError):
        attempt(codec, raw + b"\0")
    with pytest.raises(WireError, match="coordinates"):
        codec.unpack(raw, flat(D - 1))
    message = codec.unpack(raw, LAYOUT)
    with pytest.raises(WireError, match="coordinates"):
        codec.decode(message, flat(D - 1))


@pytest.mark.parametrize("name", EVERY)
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
