"""Codecs: sizes to the byte, exact round trips, what is kept, and bytes that are no message."""

from __future__ import annotations

import importlib.util
import math
import struct
import tracemalloc

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
    Codec,
    Dense,
    FedPAQ,
    Int8,
    Natural,
    PowerSGD,
    Proportion,
    RandomDropping,
    Sign,
    Strom,
    Threshold,
    TopK,
    make_codec,
    named_codec,
    topk,
)
from fedloom.compression.codecs import (
    golomb_rice as rice,
)
from fedloom.compression.codecs import (
    index_coding as indices,
)
from fedloom.compression.codecs.index_coding import Coding
from fedloom.compression.codecs.qsgd import quantise
from fedloom.compression.codecs.topk import largest
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import rec
from fedloom.errors import AuthorError, ConfigError, DataError, WireError

LAYOUT = Layout(("w", "b", "conv", "s"), ((20, 15), (20,), (8, 2, 3, 3), (1,)))
D = LAYOUT.d
EVERY = {
    "dense": Dense(),
    "top": TopK(ratio=0.1),
    "top by layer": TopK(ratio=0.1, scope="layer"),
    "top of all": TopK(ratio=1.0),
    "most": TopK(ratio=0.7),
    "dropping": RandomDropping(ratio=0.3),
    "scaled dropping": RandomDropping(ratio=0.3, scaled=True),
    "8 bit": QSGD(),
    "4 bit": QSGD(levels=7, bucket=64),
    "3 bit": QSGD(levels=3, bucket=10),
    "one norm": QSGD(levels=4, bucket=0),
    "rank 1": PowerSGD(rank=1),
    "rank 3": PowerSGD(rank=3),
    "threshold": Threshold(tau=0.5),
    "strom": Strom(tau=0.5),
    "proportion": Proportion(ratio=0.1, sample=0.1),
    "sign": Sign(),
    "sign by layer": Sign(scope="layer"),
    "shrunk": QSGD(levels=2, bucket=64, shrink=True),
    "paq": FedPAQ(levels=7, bucket=64),
    "natural": Natural(),
    "half": FP16(),
    "bfloat": BF16(),
    "int8": Int8(bucket=100),
    "int8, one step": Int8(bucket=0),
    "top, int8": make_codec("topk:0.1|int8"),
    "top, signs": make_codec("topk:0.1|sign"),
    "top, levels": make_codec("topk:0.1|qsgd:4,0,shrink=true"),
    "dropping, bfloat": make_codec("dropping:0.3|bf16"),
    "threshold, dropping, natural": make_codec("threshold:0.5|dropping:0.5|natural"),
}
if importlib.util.find_spec("zstandard"):
    EVERY |= {
        "zipped": make_codec("zstd"),
        "levels, zipped": make_codec("qsgd:3|zstd:5"),
        "top, int8, zipped": make_codec("topk:0.1|int8|zstd"),
    }
NOISY = (QSGD, RandomDropping, Natural, Int8, Proportion)
HALVES = dict.fromkeys(("bfloat", "dropping, bfloat"), torch.bfloat16) | {"half": torch.float16}
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def draws(*place):
    return generator(3, "test", *place)


def normal(d=D, seed=0, dtype=torch.float64):
    return torch.randn(d, generator=draws(seed), dtype=torch.float64).to(dtype)


def bits(v):
    return v.contiguous().view(torch.uint8).numpy().tobytes() if len(v) else b""


def same(a, b):
    return a._fields == b._fields and all(
        x.dtype == y.dtype and x.shape == y.shape and bits(x) == bits(y)
        for x, y in zip(a, b, strict=True)
    )


def vectors(d, dtype=torch.float64):
    one = torch.zeros(d, dtype=dtype)
    one[d // 2] = -3.0
    return {
        "normal": normal(d, dtype=dtype),
        "heavy": normal(d).pow(3).to(dtype),
        "one": one,
        "equal": torch.full((d,), -0.5, dtype=dtype),
        "zero": torch.zeros(d, dtype=dtype),
        "tiny": normal(d, dtype=dtype) * torch.finfo(dtype).smallest_normal,
    }


def encode(codec: Codec, p, layout=LAYOUT, place=0):
    return codec.encode(p, codec.init(layout, 1), layout, draws("codec", place))[0]


def through(codec: Codec, p, layout=LAYOUT, place=0):
    return codec.decode(encode(codec, p, layout, place), layout, p.dtype)


def flat(d):
    return Layout(("x",), ((d,),))


# ------------------------------------------------------------------------------------ the format
FORMAT = {  # name: (number in the header, default error feedback, options by default)
    "dense": (0, "forget", "Dense()"),
    "topk": (1, "residual", "TopK(ratio=0.01, scope='global')"),
    "dropping": (2, "residual", "RandomDropping(ratio=0.1, scaled=False)"),
    "qsgd": (3, "residual", "QSGD(levels=127, bucket=512, scope='global', shrink=False)"),
    "powersgd": (4, "residual", "PowerSGD(rank=2)"),
    "threshold": (5, "residual", "Threshold(tau=0.01)"),
    "strom": (6, "residual", "Strom(tau=0.01)"),
    "proportion": (7, "residual", "Proportion(ratio=0.01, sample=0.001)"),
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
    "qsparse": (
        14,
        "residual",
        "Chain(first=TopK(ratio=0.01, scope='global'), "
        "then=QSGD(levels=7, bucket=512, scope='global', shrink=True))",
    ),
    "zstd": (15, "forget", "Zstd(inner=Dense(), level=3)"),
}


@pytest.mark.parametrize("name", FORMAT)
def test_numbers_and_defaults_are_those_of_the_format(name):
    if name == "zstd":
        pytest.importorskip("zstandard")
    codec = MAKERS[name]() if name in MAKERS else make_codec(name)
    assert (codec.code, codec.feedback, repr(codec)) == FORMAT[name]
    assert codec.matrices == (name == "powersgd")
    assert codec.chooses == (name in ("topk", "threshold", "proportion", "dropping"))
    assert {*FORMAT} == {*MAKERS, "zstd"}


def test_what_is_written_with_a_bar_or_as_zstd_is_a_chain():
    assert named_codec("int8") == ("int8", {})
    for text in ("zstd", "zstd:5", "topk:0.1|int8"):
        assert named_codec(text) == ("chain", {"of": text})


def test_a_rice_parameter_has_at_most_31_bits():
    block = np.frombuffer(bytes([32]) + bytes(5), np.uint8)
    with pytest.raises(WireError, match="at most 31"):
        indices.read(block, Coding.RICE, 2**32 - 1, 1)


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


HEADS = {  # name: what is said of another value type, index coding, or number of values
    "dense": (None, "{k} of {d} values; it needs all", "{k} of {d} values; it needs all"),
    "dropping": (None, "coding 1 and 8 bytes", None),
    "sign": ("of float16; it has", "coding 1 and {k} mag", "{k} magnitudes; it takes 1"),
    "natural": ("as float32", "as float32", "{k} of {d} values; it needs all"),
    "half": ("values as float32; it needs all, as float16", "as float16", "{k} of {d} values"),
    "bfloat": ("values as float16; it needs all, as bfloat16", "as bfloat16", "{k} of {d} values"),
    "int8": ("as float32 steps", "as float32 steps", "{k} of {d} values"),
    "8 bit": ("as float32 norms", "as float32 norms", "{k} of {d} values"),
    "rank 1": (None, "index coding 1; it", "{k} values; rank 1 of this layout takes {n}"),
    "strom": ("value type float16; this run has 0.5 and float32", None, None),
    "top, int8": ("codecs 1 and 13; this run has 1 and 13", None, None),
    "zipped": ("this run has 0", "this run has 0", "this run has 0"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_header_of_something_else_is_refused_for_that(name):
    if name not in EVERY:
        pytest.skip("needs zstandard")
    codec = EVERY[name]
    raw = bytearray(codec.pack(encode(codec, normal(dtype=torch.float32))))
    (k,) = struct.unpack_from("<I", raw, 8)
    n, kind = k, 1 if raw[1] == 2 else 2
    wrong = ((1, "B", kind), (2, "B", 1), (8, "I", k + 1), (8, "I", k - 1 if k else 2))
    for (at, form, value), said in zip(wrong, (*HEADS[name], HEADS[name][2]), strict=True):
        worse = bytearray(raw)
        struct.pack_into(f"<{form}", worse, at, value)
        if said is not None:
            now = value if at == 8 else k
            with pytest.raises(WireError, match=said.format(k=now, d=D, n=n)):
                codec.unpack(bytes(worse), LAYOUT)
    for at, said in ((0, "has codec 44; .* reads"), (1, "value type 4; known: 0 .float64., 1")):
        worse = bytearray(raw)
        worse[at] = 4 + 40 * (at == 0)
        with pytest.raises(WireError, match=said):
            codec.unpack(bytes(worse), LAYOUT)
    with pytest.raises(WireError, match="flags 1"):
        codec.unpack(raw[:3] + b"\1" + raw[4:], LAYOUT)
    with pytest.raises(WireError, match=r"has 11 bytes; its header alone has 12"):
        codec.unpack(raw[:11], LAYOUT)


@pytest.mark.parametrize("number", [0, 2])
def test_one_magnitude_belongs_to_a_message_of_signs(number):
    message = encode(Sign(), normal())._replace(scale=torch.ones(number))
    with pytest.raises(WireError, match=f"{number} magnitudes; it takes 1"):
        Sign().decode(message, LAYOUT)


def test_a_codec_of_ones_own_needs_these_methods():
    assert Codec.__abstractmethods__ == {"encode", "decode", "pack", "unpack", "nbytes"}
    for ask in (lambda: Sign().where(rec()), lambda: Sign().there(0, np.zeros(0), 1, 1)):
        with pytest.raises(AuthorError, match="Sign chooses coordinates, and needs a"):
            ask()


def test_a_message_that_ends_early_says_by_how_much():
    raw = Dense().pack(encode(Dense(), normal()))
    with pytest.raises(WireError, match="a Dense message ends 3 bytes too early"):
        Dense().unpack(raw[:-3])
    with pytest.raises(WireError, match="a Dense message has 2 bytes too many"):
        Dense().unpack(raw + b"..")


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
            assert same(again, message) and same(codec.unpack(packed), message)
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


def test_top_one_percent_of_a_network_costs_what_golomb_and_rice_promise():
    d, k = 582_026, 5_820
    index = torch.randperm(d, generator=draws())[:k].sort().values.numpy()
    plan = indices.plan(index, d)
    assert plan.coding == Coding.RICE and plan.r == 6
    assert plan.nbytes == pytest.approx(5_899, rel=0.01)
    assert len(indices.write(index, d)) == plan.nbytes


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
        lambda: TopK(ratio=1.1),
        lambda: TopK(scope="block"),
        lambda: RandomDropping(ratio=-0.1),
        lambda: QSGD(levels=0),
        lambda: QSGD(levels=128),
        lambda: QSGD(bucket=-1),
        lambda: QSGD(levels=7.0),
        lambda: PowerSGD(rank=0),
        lambda: PowerSGD(rank=1.5),
    ]
    for make in wrong:
        with pytest.raises(ConfigError):
            make()
    kinds = {type(make()) for make in CODECS.values()} | {type(c) for c in EVERY.values()}
    assert len({kind.code for kind in kinds}) == len(kinds)


# ------------------------------------------------------------------------------------ hostile bytes
def attempt(codec, raw, layout=LAYOUT):
    """Decode, or WireError."""
    out = codec.decode(codec.unpack(raw, layout), layout)
    assert out.shape == (layout.d,)


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
    message = codec.unpack(raw)
    with pytest.raises(WireError, match="coordinates"):
        codec.decode(message, flat(D - 1))


@pytest.mark.parametrize("name", EVERY)
def test_damaged_messages_are_refused_or_are_vectors(name):
    codec = EVERY[name]
    raw = codec.pack(encode(codec, normal(dtype=torch.float32)))
    random = np.random.default_rng(5)
    refused = 0
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(random.integers(1, 4)):
            reach = 24 if random.random() < 0.5 else len(raw)
            damaged[random.integers(min(reach, len(raw)))] = random.integers(256)
        try:
            attempt(codec, bytes(damaged))
        except WireError:
            refused += 1
    assert refused > 50
    for n in (0, 5, 12, 30, 500):
        with pytest.raises(WireError):
            attempt(codec, random.bytes(n))


@pytest.mark.parametrize("name", EVERY)
def test_gigantic_claims_cost_no_memory(name):
    codec = EVERY[name]
    tracemalloc.start()
    for d in (D, 2**32 - 1):
        for k in (0, 1, 1000, 2**31, 2**32 - 1):
            for coding in (*Coding, 9):
                raw = struct.pack("<BBBBII", codec.code, 1, coding, 0, d, k) + bytes(range(200))
                for layout in (None, LAYOUT):
                    with pytest.raises(WireError):
                        attempt_unpacked(codec, raw, layout)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def attempt_unpacked(codec, raw, layout):
    message = codec.unpack(raw, layout)
    codec.decode(message, LAYOUT)


@pytest.mark.parametrize(
    ("coding", "block", "k"),
    [
        (Coding.RAW, struct.pack("<2I", 4, 4), 2),
        (Coding.RAW, struct.pack("<2I", 5, 4), 2),
        (Coding.RAW, struct.pack("<2I", 4, 10), 2),
        (Coding.RAW, struct.pack("<2I", 4, 2**32 - 1), 2),
        (Coding.BITMAP, bytes([0b11, 0b100]), 3),  # index 10
        (Coding.BITMAP, bytes([0b11, 0]), 1),
        (Coding.VARINT, bytes([3, 6]), 2),  # 3, 10
        (Coding.VARINT, bytes([0x83, 0x00, 1]), 2),  # a padded 3
        (Coding.VARINT, bytes([1, 0x81]), 2),
        (Coding.VARINT, bytes([0x81] * 6 + [1]), 1),
        (Coding.RICE, bytes([0, 0b11111111, 0b11000000]), 1),  # index 10
        (Coding.RICE, bytes([0, 0b10110001]), 2),  # ones behind the last code
        (Coding.RICE, bytes([0, 0b10110000, 0]), 2),  # a byte too many
        (Coding.RICE, bytes([0, 0b10111111]), 2),  # no end
        (Coding.RICE, bytes([40, 0b10111111]), 2),
        (Coding.RICE, bytes([9, 0b00000000, 0b11000000, 0b00110000]), 2),  # beyond the bitmap
        (Coding.IMPLIED, b"", 5),
        (Coding.IMPLIED, b"\0", 0),
        (Coding.VARINT, b"", 0),
        (Coding.RAW, b"", 11),
        (7, b"\0", 1),
    ],
)
def test_sets_that_cannot_be_are_refused(coding, block, k):
    with pytest.raises(WireError):
        indices.read(np.frombuffer(block, np.uint8), coding, 10, k)


# ----------------------------------------------------------------------------------- index codings
GOLDEN = [  # (d, set, coding, r, block)
    (6, [1, 5], Coding.VARINT, 0, "0103"),
    (6, [1, 5], Coding.BITMAP, 0, "22"),
    (6, [1, 5], Coding.RICE, 1, "0168"),
    (6, [1, 4], Coding.VARINT, 0, "0102"),
    (6, [1, 4], Coding.BITMAP, 0, "12"),
    (6, [1, 4], Coding.RICE, 0, "00b0"),
    (1000, [3, 17, 18, 500, 999], Coding.VARINT, 0, "030d00e103f203"),
    (1000, [3, 17, 18, 500, 999], Coding.RICE, 6, "06063407f43fd900"),
    (1000, [3, 17, 18, 500, 999], Coding.RICE, 7, "07030d00ec3dc8"),
    (1000, [3, 258], Coding.RAW, 0, "0300000002010000"),
]


@pytest.mark.parametrize(("d", "held", "coding", "r", "block"), GOLDEN)
def test_index_blocks_of_the_specification(d, held, coding, r, block):
    index = np.array(held, np.int64)
    written = indices.write(index, d, indices.Plan(coding, r, 0))
    assert written.hex() == block
    read = indices.read(np.frombuffer(written, np.uint8), coding, d, len(held))
    assert read.tolist() == held


def test_rice_takes_the_parameter_of_least_length():
    for held, d, r in (([1, 5], 6, 1), ([1, 4], 6, 0), ([3, 17, 18, 500, 999], 1000, 7)):
        assert rice.length(indices._less(np.array(held)))[0] == r, d


@st.composite
def sets(draw):
    d = draw(st.integers(1, 3000))
    share = draw(st.floats(0, 1))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    step = random.random(d) < share
    if draw(st.booleans()):  # clusters
        step &= np.sin(np.arange(d) / 20) > 0
    return d, np.flatnonzero(step)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sets())
def test_every_coding_gives_the_set_again_and_the_shortest_is_taken(case):
    d, index = case
    k = len(index)
    plan = indices.plan(index, d)
    written = indices.write(index, d)
    assert len(written) == plan.nbytes
    assert np.array_equal(indices.read(np.frombuffer(written, np.uint8), plan.coding, d, k), index)
    if k in (0, d):
        assert written == b""
        return
    less = np.diff(index, prepend=-1) - 1
    lengths = [int((less >> r).sum()) + k * (1 + r) for r in range(32)]
    best = min(range(32), key=lambda r: lengths[r])
    options = {
        Coding.RAW: 0,
        Coding.BITMAP: 0,
        Coding.VARINT: 0,
        Coding.RICE: best,
    }
    sizes = []
    for coding, r in options.items():
        block = indices.write(index, d, indices.Plan(coding, r, 0))
        sizes.append(len(block))
        if coding != Coding.RICE or len(block) <= 1 + -(-d // 8):
            again = indices.read(np.frombuffer(block, np.uint8), coding, d, k)
            assert np.array_equal(again, index)
    assert sizes[0] == 4 * k and sizes[1] == -(-d // 8) and sizes[3] == 1 + -(-lengths[best] // 8)
    assert plan.nbytes == min(sizes)


def test_long_rice_blocks_are_read_in_windows(monkeypatch):
    monkeypatch.setattr(rice, "_WINDOW", 8)
    random = np.random.default_rng(1)
    for share in (0.01, 0.1, 0.4):
        index = np.flatnonzero(random.random(20_000) < share)
        r, _ = rice.length(indices._less(index))
        block = indices.write(index, 20_000, indices.Plan(Coding.RICE, r, 0))
        again = indices.read(np.frombuffer(block, np.uint8), Coding.RICE, 20_000, len(index))
        assert np.array_equal(again, index)
    lonely = np.array([700, 19_999])  # codes of hundreds of bits
    block = indices.write(lonely, 20_000, indices.Plan(Coding.RICE, 4, 0))
    read = indices.read(np.frombuffer(block, np.uint8), Coding.RICE, 20_000, 2)
    assert read.tolist() == [700, 19_999]


def test_a_varint_has_a_byte_for_every_seven_bits():
    edges = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**32 - 2]
    for less in edges:
        size = max(1, -(-less.bit_length() // 7))
        index = np.array([less])
        assert indices._varint_bytes(index) == size
        block = indices.write(index, 2**32 - 1, indices.Plan(Coding.VARINT, 0, 0))
        assert len(block) == size
        read = indices.read(np.frombuffer(block, np.uint8), Coding.VARINT, 2**32 - 1, 1)
        assert read.tolist() == [less]
    assert indices._varint_bytes(np.array(edges)) == sum(
        max(1, -(-n.bit_length() // 7)) for n in edges
    )
    for block, said in (([0x81] * 5 + [1], "at most 5 bytes, got 6"), ([0x83, 0], "padding")):
        with pytest.raises(WireError, match=said):
            indices.read(np.array(block, np.uint8), Coding.VARINT, 2**32 - 1, 1)


# -------------------------------------------------------------------------------------------- top-k
def sorted_choice(p, k):
    """The k largest magnitudes by a stable sort: of equal ones the lowest index."""
    return p.abs().sort(descending=True, stable=True).indices[:k].sort().values


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_of_equal_magnitudes_the_lowest_index_is_kept(values, k):
    p = torch.tensor(values, dtype=torch.float32)
    k = min(k, len(p))
    assert torch.equal(largest(p, k), sorted_choice(p, k))


@pytest.mark.parametrize("k", [1, 40, 700])
def test_candidates_come_from_every_chunk(monkeypatch, k):
    monkeypatch.setattr(topk, "_SMALL", 20_000)
    monkeypatch.setattr(topk, "_CHUNK", 3_000)
    p = normal(20_000)
    found = topk._candidates(p, k)
    assert found is not None and k <= len(found) <= 10_000
    assert torch.equal(largest(p, k), sorted_choice(p, k))
    assert topk._candidates(p[:-1], k) is None and topk._candidates(p, 6_000) is None
    assert topk._candidates(torch.ones(20_000), k) is None  # the bound keeps them all


@pytest.mark.parametrize("k", [1, 3_000, 139_999])
def test_long_vectors_are_chosen_from_as_short_ones_are(k):
    d = 140_000
    cases = {
        "normal": normal(d, dtype=torch.float32),
        "coarse": (normal(d) * 2).round(),
        "equal": torch.ones(d),
        "zero": torch.zeros(d),
        "sampled ones are large": torch.where(torch.arange(d) % 97 == 0, 5.0, 1.0) + normal(d) / 9,
        "sampled ones are small": torch.where(torch.arange(d) % 97 == 0, 0.0, 1.0) + normal(d) / 9,
    }
    for name, p in cases.items():
        assert torch.equal(largest(p, k), sorted_choice(p, k)), name


def test_half_types_are_chosen_exactly():
    for dtype in (torch.float16, torch.bfloat16):
        p = normal(500, dtype=dtype)
        assert torch.equal(largest(p, 60), sorted_choice(p, 60))


@pytest.mark.parametrize("kind", vectors(1))
@pytest.mark.parametrize("ratio", [0.001, 0.05, 0.5, 0.9, 1.0])
def test_top_k_is_a_contraction(ratio, kind):
    p = vectors(D)[kind]
    k = max(1, round(ratio * D))
    error = (through(TopK(ratio=ratio), p) - p).square().sum()
    assert error <= (1 - k / D) * p.square().sum() * (1 + 1e-12)


def test_the_bound_of_top_k_is_met_by_equal_magnitudes():
    p, k = torch.ones(D).double(), round(0.05 * D)
    error = (through(TopK(ratio=0.05), p) - p).square().sum()
    assert float(error) == pytest.approx((1 - k / D) * D)


def test_every_layer_keeps_its_own_share():
    codec, p = TopK(ratio=0.1, scope="layer"), normal()
    kept = [int((part != 0).sum()) for part in LAYOUT.pieces(through(codec, p))]
    assert kept == [max(1, round(0.1 * n)) for n in LAYOUT.sizes]
    assert (
        codec.most(20) == 20 and TopK(ratio=0.1).most(20) == 2
    )  # layers of one value each keep it


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "codec", [Dense(), TopK(ratio=1.0), TopK(ratio=1.0, scope="layer"), RandomDropping(ratio=1.0)]
)
def test_ratio_one_is_no_compression_bit_for_bit(codec, dtype):
    p = normal(dtype=dtype)
    p[3] = -0.0
    raw = codec.pack(encode(codec, p))
    assert bits(codec.decode(codec.unpack(raw, LAYOUT), LAYOUT)) == bits(p)


# ----------------------------------------------------------------------------------------- dropping
def test_the_mask_is_redrawn_from_the_seed():
    codec = RandomDropping(ratio=0.5)
    u = torch.rand(16, generator=generator(77, "dropping"), dtype=torch.float32)
    assert torch.equal(codec.mask(77, 16), u < 0.5)
    # pinned: messages of one release must be readable by the next
    assert codec.mask(77, 16).nonzero()[:, 0].tolist() == MASK


def test_a_long_mask_is_that_of_its_numbers_drawn_in_one_go():
    d = 300_001
    u = torch.rand(d, generator=generator(78, "dropping"), dtype=torch.float32)
    assert torch.equal(RandomDropping(ratio=0.25).mask(78, d), u < 0.25)


MASK = [0, 1, 2, 3, 4, 5, 10, 12, 14, 15]


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_dropping_loses_one_minus_ratio_and_the_scaled_form_is_unbiased(ratio):
    d, n = 8, 10_000
    p, layout = normal(d).repeat(n), flat(d * n)  # coordinates are independent: n draws at once
    message = encode(RandomDropping(ratio=ratio), p, layout)
    plain = RandomDropping(ratio=ratio).decode(message, layout).view(n, d)
    scaled = through(RandomDropping(ratio=ratio, scaled=True), p, layout).view(n, d)
    p = p[:d]
    errors = (plain - p).square().sum(1)
    off = float(errors.mean() - (1 - ratio) * p.square().sum())
    assert abs(off) < 4 * float(errors.std()) / n**0.5
    kept = plain != 0
    assert torch.equal(plain, torch.where(kept, p, 0.0))
    assert torch.allclose(scaled, plain / ratio, rtol=1e-12)
    rates = kept.double().mean(0)
    assert bool(((rates - ratio).abs() < 4 * (ratio * (1 - ratio) / n) ** 0.5).all())
    assert RandomDropping(ratio=ratio, scaled=True).omega(d) == pytest.approx(1 / ratio - 1)


# --------------------------------------------------------------------------------------------- QSGD
def test_levels_of_the_specification():
    g = [
        [0.5, -1.2, 0.3, 0.05, -0.7, 0.9],
        [-0.4, 0.1, 0.35, -0.05, 0.6, 0.2],
        [0.25, 0.15, -0.55, 0.45, -0.1, -0.3],
    ]
    u = [
        [0.1, 0.9, 0.5, 0.3, 0.7, 0.2],
        [0.6, 0.4, 0.8, 0.05, 0.55, 0.95],
        [0.25, 0.35, 0.65, 0.15, 0.85, 0.45],
    ]
    levels = [[2, -2, 1, 0, -1, 2], [-2, 1, 1, -1, 3, 1], [1, 1, -2, 3, 0, -1]]
    norms = [1.7557049866079437, 0.8336666000266534, 0.8306623862918076]
    for p, noise, expected, norm in zip(g, u, levels, norms, strict=True):
        p = torch.tensor(p, dtype=torch.float64)
        assert float(p.norm()) == pytest.approx(norm, rel=1e-15)
        symbol = quantise(p, p.norm()[None], torch.tensor(noise, dtype=torch.float64), 4)
        assert (symbol.int() - 4).tolist() == expected


@pytest.mark.parametrize(
    "codec", [QSGD(levels=1, bucket=12), QSGD(levels=3, bucket=6), QSGD(bucket=12)]
)
def test_qsgd_is_unbiased_and_within_its_variance(codec):
    d, n = 12, 10_000
    p = normal(d).pow(3)
    found = through(codec, p.repeat(n), flat(d * n)).view(n, d)  # n times the same buckets
    step = torch.stack([part.norm() for part in p.split(codec.bucket)]) / codec.levels
    step = step.repeat_interleave(codec.bucket)[:d]
    chance = (p.abs() / step) % 1
    sigma = step * (chance * (1 - chance) / n).sqrt()  # of the mean
    assert bool(((found.mean(0) - p).abs() <= 4 * sigma + 1e-6 * p.norm()).all())
    omega = codec.omega(d)
    assert omega is not None
    errors = (found - p).square().sum(1)
    assert float(errors.mean()) <= omega * float(p.square().sum()) * 1.01
    assert float(errors.mean()) > 0


def test_variance_factors_of_the_specification():
    assert QSGD(levels=127).omega(10**7) == pytest.approx(512 / (4 * 127**2))
    assert QSGD(levels=7, bucket=64).omega(10**7) == pytest.approx(64 / 196)
    assert QSGD(levels=7, bucket=0).omega(26_620) == pytest.approx(math.sqrt(26_620) / 7)
    assert QSGD(levels=7).omega(10) == pytest.approx(10 / 196)
    assert TopK().omega(10) is None and PowerSGD().omega(10) is None


def test_a_bucket_has_its_own_norm():
    p = torch.cat([torch.zeros(4), torch.tensor([3.0, 4.0, 0.0, 0.0]), torch.tensor([-2.0])])
    codec = QSGD(levels=5, bucket=4)
    message = encode(codec, p, flat(9))
    assert message.norm.tolist() == [0.0, 5.0, 2.0]
    assert message.symbol[:4].tolist() == [5] * 4  # the middle one stands for 0
    # 3, 4 and -2 are whole levels, so nothing is left to chance
    torch.testing.assert_close(codec.decode(message, flat(9)), p)


def test_norms_are_rounded_up():
    p = normal(4096)
    norm = encode(QSGD(bucket=16), p, flat(4096)).norm
    exact = p.view(-1, 16).norm(dim=1)
    assert bool((norm.double() >= exact).all())
    torch.testing.assert_close(norm.double(), exact, rtol=2e-7, atol=0)


def test_buckets_longer_than_a_chunk_and_chunks_of_many_buckets(monkeypatch):
    p = normal(1000)
    for bucket in (0, 300, 7, 1):
        message = encode(QSGD(bucket=bucket), p, flat(1000))
        size = bucket or 1000
        exact = torch.stack([part.norm() for part in p.split(size)])
        torch.testing.assert_close(message.norm.double(), exact, rtol=2e-7, atol=0)
        whole = QSGD(bucket=bucket).decode(message, flat(1000), torch.float64)
        monkeypatch.setattr("fedloom.compression.codecs.buckets.CHUNK", 64)
        again = encode(QSGD(bucket=bucket), p, flat(1000))
        assert bits(again.symbol) == bits(message.symbol)
        torch.testing.assert_close(again.norm, message.norm, rtol=2e-7, atol=0)
        piecewise = QSGD(bucket=bucket).decode(message, flat(1000), torch.float64)
        assert bits(piecewise) == bits(whole)
        assert float((whole - p).abs().max()) <= float(exact.max()) / 127 * (1 + 1e-6)
        monkeypatch.undo()


def test_norms_and_symbols_that_cannot_be_are_refused():
    codec, layout = QSGD(levels=2, bucket=4), flat(5)  # 3 bits a value, two norms
    raw = codec.pack(encode(codec, torch.tensor([1.0, 0.0, 0.0, 0.0, -3.0]), layout))
    assert raw[18:26] == struct.pack("<2f", 1, 3) and raw[26:].hex() == "8920"  # 4 2 2 2 0, one bit
    attempt(codec, raw, layout)
    for norm in (-1.0, math.nan, math.inf):
        with pytest.raises(WireError, match="norm"):
            attempt(codec, raw[:18] + struct.pack("<2f", norm, 3) + raw[26:], layout)
    with pytest.raises(WireError, match="symbol 7"):
        attempt(codec, raw[:26] + bytes([0xE9, 0x20]), layout)
    with pytest.raises(WireError, match="behind its last"):
        attempt(codec, raw[:26] + bytes([0x89, 0x21]), layout)
    other = QSGD(levels=3, bucket=4)
    with pytest.raises(WireError, match="levels"):
        attempt(other, raw, layout)


def test_a_norm_beyond_float32_is_refused():
    with pytest.raises(DataError, match="float32"):
        encode(QSGD(), torch.full((10,), 1e300, dtype=torch.float64), flat(10))


# ----------------------------------------------------------------------------------------- PowerSGD
def low_rank(rank, scale=1.0):
    parts = []
    for shape, size in zip(LAYOUT.shapes, LAYOUT.sizes, strict=True):
        if len(shape) < 2:
            parts.append(normal(size))
            continue
        n, m = shape[0], size // shape[0]
        parts.append(
            (normal(n * rank, 1).view(n, rank) @ normal(m * rank, 2).view(rank, m)).view(-1)
        )
    return scale * torch.cat(parts)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_matrices_of_its_rank_are_exact(rank):
    p = low_rank(rank)
    torch.testing.assert_close(through(PowerSGD(rank=rank), p), p, rtol=0, atol=1e-12)
    torch.testing.assert_close(through(PowerSGD(rank=3), p), p, rtol=0, atol=1e-12)
    if rank > 1:
        assert not torch.allclose(through(PowerSGD(rank=rank - 1), p), p, rtol=0, atol=1e-3)


def test_a_repeated_matrix_gets_the_best_of_its_rank():
    codec, layout = PowerSGD(rank=2), Layout(("w", "b"), ((40, 30), (40,)))
    parts = [normal(80, 1).view(40, 2) @ normal(60, 2).view(2, 30), 0.3 * normal(1200, 3)]
    p = torch.cat([parts[0].view(-1) + parts[1], normal(40)])
    state, errors = codec.init(layout, 0), []
    for _ in range(12):
        message, state = codec.encode(p, state, layout, draws())
        errors.append(float((codec.decode(message, layout) - p).norm()))
    best = float(torch.linalg.svdvals(p[:1200].view(40, 30))[2:].norm())
    assert errors[0] > best * 1.01
    assert errors[-1] == pytest.approx(best, rel=1e-6)


def test_the_first_q_follows_from_seed_and_layer():
    codec, twin = PowerSGD(rank=1), Layout(("w", "u"), ((9, 8), (9, 8)))
    q, again, other = (codec.init(twin, seed).Q for seed in (1, 1, 2))
    assert torch.equal(q, again) and not torch.equal(q, other)
    assert not torch.equal(q[:8], q[8:])


def test_a_layer_comes_back_from_zero():
    codec, p = PowerSGD(rank=2), low_rank(2)
    state = codec.init(LAYOUT, 0)
    for _ in range(2):
        message, state = codec.encode(torch.zeros(D).double(), state, LAYOUT, draws())
        assert not codec.decode(message, LAYOUT).any()
        assert not message.value.any()  # not the columns that QR makes up
    for _ in range(2):
        message, state = codec.encode(p, state, LAYOUT, draws())
    torch.testing.assert_close(codec.decode(message, LAYOUT), p, rtol=0, atol=1e-12)


def test_a_part_of_other_shapes_starts_anew():
    codec, small = PowerSGD(rank=1), Layout(("w",), ((9, 8),))
    state = codec.init(LAYOUT, 0)
    message, state = codec.encode(normal(72), state, small, draws())
    assert len(state.Q) == 8 and len(message.value) == 17


def test_a_model_without_matrices_is_sent_as_it_is():
    layout, codec = Layout(("a", "b"), ((5,), (3,))), PowerSGD(rank=1)
    p = normal(8, dtype=torch.float32)
    message = codec.unpack(codec.pack(encode(codec, p, layout)), layout)
    assert torch.equal(codec.decode(message, layout), p)


def test_products_that_overflow_are_refused():
    said = r"products overflow float32: the largest value is 3e\+38; lower local.lr"
    with pytest.raises(DataError, match=said):
        encode(PowerSGD(rank=1), torch.full((D,), 3e38))
