"""What codecs promise in numbers: Definition 1, no bias, rounding, choices, low rank."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.compression.codecs import (
    BF16,
    FP16,
    QSGD,
    Dense,
    FedPAQ,
    Int8,
    Natural,
    PowerSGD,
    RandomDropping,
    Sign,
    Threshold,
    TopK,
    make_codec,
    sparse,
)
from fedloom.compression.codecs.buckets import quantise
from fedloom.compression.codecs.sparse import largest
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.errors import DataError, WireError
from six_values import G
from support import codec_cases as cases
from support.codec_cases import TYPES, attempt, bits, draws, encode, flat, normal, through
from support.refusals import refused

LAYOUT = Layout(("w", "b", "v"), ((10, 12), (10,), (70,)))
D = LAYOUT.d


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


# ------------------------------------------------------------------------------------ Definition 1
# (codec, 1 / gamma on D values as the specification states it)
STATED = {
    "dense": (Dense(), 0.0),
    "top": (TopK(ratio=0.05), 1 - 10 / D),
    "top by layer": (TopK(ratio=0.05, scope="layer"), 1 - 0.1 / 3),
    "dropping": (RandomDropping(ratio=0.3), 0.7),
    "scaled dropping": (RandomDropping(ratio=0.8, scaled=True), 0.25),
    "sign": (Sign(), 1 - 1 / D),
    "levels": (QSGD(levels=15, bucket=0), D / (4 * 225)),
    "levels in buckets": (QSGD(levels=7, bucket=32), 32 / 196),
    "shrunk": (QSGD(levels=4, bucket=0, shrink=True), (D**0.5 / 4) / (1 + D**0.5 / 4)),
    "natural": (Natural(), 1 / 8),
    "int8": (Int8(bucket=50), 50 / (4 * 127**2)),
    "largest in levels": (make_codec("topk:0.05|qsgd:4,0"), 1 - (1 - 10 / (4 * 16)) * 10 / D),
    "largest, shrunk": (make_codec("topk:0.05|qsgd:4,0,shrink=true"), 1 - 10 / D / (1 + 5 / 8)),
    "signs of the largest": (make_codec("topk:0.05|sign"), 1 - 1 / D),
}
DRAW_NOTHING = {"dense", "top", "top by layer", "sign", "signs of the largest"}


@pytest.mark.parametrize("name", STATED)
def test_definition_one_holds_with_the_stated_gamma(name):
    codec, stated = STATED[name]
    kinds = cases.vectors(D) | {"very tiny": 1e-30 * normal(D), "heavier": normal(D).pow(5)}
    for kind, p in kinds.items():
        count = 2 if name in DRAW_NOTHING else 100
        errors = [float((through(codec, p, LAYOUT, n) - p).square().sum()) for n in range(count)]
        error, spread = np.mean(errors), np.std(errors) / count**0.5
        assert count > 2 or spread == 0, kind
        bound = stated * float(p.square().sum()) * (1 + 1e-12)
        assert error <= bound + 4 * spread + 1e-60, kind
    p = normal(D)
    assert stated == 0 or float((through(codec, p, LAYOUT) - p).norm()) > 0


def test_a_threshold_sends_nothing_of_a_small_vector():
    assert not through(Threshold(tau=0.5), torch.full((D,), 0.01), LAYOUT).any()


def test_equalities_of_the_specification():
    p, send = normal(D), lambda text: through(make_codec(text), normal(D), LAYOUT)
    square, first = float(p.square().sum()), float(p.abs().sum())
    error = lambda text: float((send(text) - p).square().sum())
    assert error("sign") == pytest.approx(square - first**2 / D)
    kept = float(send("topk:0.1").abs().sum())
    assert error("topk:0.1|sign") == pytest.approx(square - kept**2 / round(0.1 * D))
    assert torch.equal(send("threshold:0.5"), torch.where(p.abs() > 0.5, p, 0.0))
    layers = send("sign:scope=layer").split(LAYOUT.sizes)
    for sent, part in zip(layers, p.split(LAYOUT.sizes), strict=True):
        close(sent, part.abs().mean() * part.sign(), 1e-15)


@pytest.mark.parametrize(
    ("omega", "value"),
    [
        (QSGD(levels=127).omega(10**7), 512 / (4 * 127**2)),
        (QSGD(levels=7, bucket=64).omega(10**7), 64 / 196),
        (QSGD(levels=7, bucket=0).omega(26_620), math.sqrt(26_620) / 7),
        (QSGD(levels=7).omega(10), 10 / 196),
        (TopK().omega(10), None),
        (PowerSGD().omega(10), None),
    ],
)
def test_variance_factors_of_the_specification(omega, value):
    assert omega == (value if value is None else pytest.approx(value))


UNBIASED = {
    "levels": QSGD(levels=3, bucket=6),
    "one level": QSGD(levels=1, bucket=12),
    "natural": Natural(),
    "int8": Int8(bucket=6),
    "paq": FedPAQ(levels=3, bucket=6),
    "scaled dropping": RandomDropping(ratio=0.4, scaled=True),
    "both": make_codec("dropping:0.5,scaled=true|qsgd:7,6"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_within_four_sigma_over_ten_thousand_draws(name, dtype):
    codec, d, n = UNBIASED[name], 12, 10_000
    p = normal(d, dtype=dtype)
    sent = through(codec, p.repeat(n), flat(d * n)).double().view(n, d)
    sigma = sent.std(0) / n**0.5
    assert bool(((sent.mean(0) - p).abs() <= 4 * sigma + 1e-6 * p.abs().max()).all())
    omega, square = codec.omega(d), float(p.double().square().sum())
    errors = (sent - p).square().sum(1)
    most = omega * square + 4 * float(errors.std()) / n**0.5
    assert 0 < float(errors.mean()) <= most


# ---------------------------------------------------------------------------------------- rounding
def test_natural_compression_rounds_to_neighbouring_powers_of_two():
    p = torch.cat([normal(4000), 1e-12 * normal(4000), torch.tensor([1, -2, 0.5, 0]).double()])
    sent = through(Natural(), p, flat(len(p)))
    low = 2.0 ** p.abs().log2().floor()
    up = sent.abs() == 2 * low
    assert bool((up | (sent.abs() == low))[:-1].all()) and torch.equal(sent[-4:], p[-4:])
    assert torch.equal(sent.sign(), p.sign())
    edge = torch.tensor([2.0**127, -(2.0**-126), 2.0**-127], dtype=torch.float64)
    assert through(Natural(), edge, flat(3)).tolist() == [2.0**127, -(2.0**-126), 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_natural_compression_rounds_up_by_the_share_of_the_noise_below_the_mantissa(
    dtype, monkeypatch
):
    class Noise:
        def __init__(self, bits):
            self.bits = bits

        def integers(self, n, kind):
            return torch.from_numpy(np.full(n, self.bits, kind))

    least = torch.finfo(dtype).eps  # the last bit of a mantissa of 1
    p = torch.tensor([1.0, 1 + least, -2 + least, 2.0, 0.0], dtype=dtype)
    width = 52 if dtype == torch.float64 else 23
    some = 1 if dtype == torch.float16 else 0  # its mantissa ends thirteen bits before float32's
    below = (1 << width) - (1 << 13 * some) - 1  # one too few for the last bit
    for noise, exponents in ((0, [0, 0, 0]), (-1, [0, 1, 1]), (below, [0, 0, 1])):
        of = "fedloom.compression.codecs.low_precision.Noise"
        monkeypatch.setattr(of, lambda draw, noise=noise: Noise(noise))
        message, _ = Natural().encode(p, (), flat(5), None)
        assert (message.exponent.int() - 127).tolist() == [*exponents, 1, -127]


@pytest.mark.parametrize(
    ("codec", "p", "sent"),
    [
        (FP16(), [1 + 2**-11, 1 + 3 * 2**-11, -7e4, 1e-9], [1.0, 1 + 2**-9, -65504.0, 0.0]),
        (
            BF16(),
            [1 + 2**-8, 1 + 3 * 2**-8, torch.finfo(torch.float32).max],
            [1.0, 1 + 2**-6, torch.finfo(torch.bfloat16).max],
        ),
    ],
)
def test_halves_are_rounded_to_the_nearest_even_and_clamped(codec, p, sent):
    assert through(codec, torch.tensor(p), flat(len(p))).tolist() == sent


@pytest.mark.parametrize(("codec", "digits", "least"), [(FP16(), 11, -24), (BF16(), 8, -133)])
def test_float64_is_rounded_once_to_the_nearest(codec, digits, least):
    """Against exact fractions. Among the values: near half-way ones, which the nearest float32
    moves onto the half-way point, and values below the least normal one.
    """
    draw = np.random.default_rng(5)
    places = draw.integers(0, 2 ** (digits - 1), 3000) + 0.5
    half = (1 + 2.0 ** (1 - digits) * places) * 2.0 ** draw.integers(-9, 9, 3000)
    small = 2.0**least * draw.uniform(0, 9, 2000)
    near = half * (1 + draw.choice([-1, 0, 1], 3000) * 2.0 ** -draw.integers(26, 52, 3000))
    values = np.concatenate([near, small, draw.normal(size=3000), [0.0, 2.0**least / 2]])
    values *= draw.choice([-1, 1], len(values))
    sent = through(codec, torch.tensor(values), flat(len(values))).tolist()
    for value, rounded in zip(values.tolist(), sent, strict=True):
        exact = Fraction(abs(value))
        exponent = max(math.frexp(value)[1] - digits, least) if value else 0
        unit = Fraction(2) ** exponent
        assert abs(rounded) == round(exact / unit) * unit  # round() takes halves to the even one
        assert math.copysign(1, rounded) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("codec", "value", "says"),
    [
        (Natural(), 2.1e38, "2^127"),
        (Natural(), 1e300, "2^127"),
        (Int8(), 1e300, "float32"),
        (QSGD(), 1e300, "float32"),
        (PowerSGD(rank=1), 3e38, "products overflow float32 ... 3e+38; lower local.lr"),
    ],
)
def test_values_beyond_float32_are_refused(codec, value, says):
    dtype = torch.float32 if value == 3e38 else torch.float64
    p = torch.full((cases.D,), value, dtype=dtype)
    refused(lambda: encode(codec, p), says, kind=DataError)


# ----------------------------------------------------------------------------- levels and buckets
def test_int8_has_127_steps_of_each_buckets_largest():
    p = torch.tensor([127.0, -127.0, 0.0, 1.0, 254.0, -2.0, 0.0, 0.0, 0.0])
    message = encode(Int8(bucket=4), p, flat(9))
    assert message.scale.tolist() == [1.0, 2.0, 0.0]
    assert message.symbol.tolist() == [127, -127, 0, 1, 127, -1, 0, 0, 0]


def test_levels_of_the_specification():
    noise = [
        [0.1, 0.9, 0.5, 0.3, 0.7, 0.2],
        [0.6, 0.4, 0.8, 0.05, 0.55, 0.95],
        [0.25, 0.35, 0.65, 0.15, 0.85, 0.45],
    ]
    levels = [[2, -2, 1, 0, -1, 2], [-2, 1, 1, -1, 3, 1], [1, 1, -2, 3, 0, -1]]
    norms = [1.7557049866079437, 0.8336666000266534, 0.8306623862918076]
    for p, draw, expected, norm in zip(G, noise, levels, norms, strict=True):
        assert float(p.norm()) == pytest.approx(norm, rel=1e-15)
        symbol = quantise(p, p.norm()[None], torch.tensor(draw, dtype=torch.float64), 4)
        assert (symbol.int() - 4).tolist() == expected


def test_a_bucket_has_its_own_norm():
    p = torch.cat([torch.zeros(4), torch.tensor([3.0, 4.0, 0.0, 0.0]), torch.tensor([-2.0])])
    codec = QSGD(levels=5, bucket=4)
    message = encode(codec, p, flat(9))
    assert message.norm.tolist() == [0.0, 5.0, 2.0]
    assert message.symbol[:4].tolist() == [5] * 4  # the middle one stands for 0
    # 3, 4 and -2 are whole levels, so nothing is left to chance
    torch.testing.assert_close(codec.decode(message, flat(9)), p)


@pytest.mark.parametrize("bucket", [0, 300, 16, 7, 1])
def test_norms_are_rounded_up_whatever_the_lengths_of_buckets_and_chunks(monkeypatch, bucket):
    p, codec, layout = normal(1000), QSGD(bucket=bucket), flat(1000)
    exact = torch.stack([part.norm() for part in p.split(bucket or 1000)])
    message = encode(codec, p, layout)
    monkeypatch.setattr("fedloom.compression.codecs.buckets.CHUNK", 64)
    again = encode(codec, p, layout)
    for norm in (message.norm, again.norm):
        assert bool((norm.double() >= exact * (1 - 1e-15)).all())
        torch.testing.assert_close(norm.double(), exact, rtol=2e-7, atol=0)
    assert bits(again.symbol) == bits(message.symbol)
    piecewise = codec.decode(message, layout, torch.float64)
    monkeypatch.undo()
    whole = codec.decode(message, layout, torch.float64)
    assert bits(piecewise) == bits(whole)
    assert float((whole - p).abs().max()) <= float(exact.max()) / 127 * (1 + 1e-6)


def test_symbols_follow_the_norms_and_another_runs_levels_are_refused():
    codec, layout = QSGD(levels=2, bucket=4), flat(5)  # 3 bits a value, two norms
    raw = codec.pack(encode(codec, torch.tensor([1.0, 0.0, 0.0, 0.0, -3.0]), layout))
    assert raw[18:26] == struct.pack("<2f", 1, 3) and raw[26:].hex() == "8920"  # 4 2 2 2 0, one bit
    attempt(codec, raw, layout)
    other = lambda: attempt(QSGD(levels=3, bucket=4), raw, layout)
    refused(other, "has the options 020004000000; those of this run", kind=WireError)


# ----------------------------------------------------------------------------------------- choices
def sorted_choice(p, k):
    """The k largest magnitudes by a stable sort: of equal ones the lowest index."""
    return p.abs().sort(descending=True, stable=True).indices[:k].sort().values


@settings(max_examples=100)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_of_equal_magnitudes_the_lowest_index_is_kept(values, k):
    p = torch.tensor(values, dtype=torch.float32)
    k = min(k, len(p))
    assert torch.equal(largest(p, k), sorted_choice(p, k))


@pytest.mark.parametrize("k", [1, 40, 700, 6_000])
@pytest.mark.parametrize("p", [normal(20_000), normal(19_999), torch.ones(20_000)], ids=len)
def test_candidates_come_from_every_chunk(monkeypatch, p, k):
    monkeypatch.setattr(sparse, "_SMALL", 20_000)
    monkeypatch.setattr(sparse, "_CHUNK", 3_000)
    assert torch.equal(largest(p, k), sorted_choice(p, k))


@pytest.mark.parametrize("k", [1, 3_000, 139_999])
def test_long_vectors_are_chosen_from_as_short_ones_are(k):
    d = 140_000
    sampled = torch.arange(d) % 97 == 0
    for name, p in {
        "normal": normal(d, dtype=torch.float32),
        "half": normal(d, dtype=torch.float16),
        "bfloat": normal(d, dtype=torch.bfloat16),
        "coarse": (normal(d) * 2).round(),
        "equal": torch.ones(d),
        "zero": torch.zeros(d),
        "sampled ones are large": torch.where(sampled, 5.0, 1.0) + normal(d) / 9,
        "sampled ones are small": torch.where(sampled, 0.0, 1.0) + normal(d) / 9,
    }.items():
        assert torch.equal(largest(p, k), sorted_choice(p, k)), name


def test_every_layer_keeps_its_own_share():
    codec, layout = TopK(ratio=0.1, scope="layer"), cases.LAYOUT
    kept = [int((part != 0).sum()) for part in layout.pieces(through(codec, normal()))]
    assert kept == [max(1, round(0.1 * n)) for n in layout.sizes]
    assert codec.most(20) == 20, "layers of one value each keep it"
    assert TopK(ratio=0.1).most(20) == 2


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "codec", [Dense(), TopK(ratio=1.0), TopK(ratio=1.0, scope="layer"), RandomDropping(ratio=1.0)]
)
def test_ratio_one_is_no_compression_bit_for_bit(codec, dtype):
    p = normal(dtype=dtype)
    p[3] = -0.0
    raw = codec.pack(encode(codec, p))
    assert bits(codec.decode(codec.unpack(raw, cases.LAYOUT), cases.LAYOUT)) == bits(p)


def test_the_mask_of_dropping_is_redrawn_from_the_seed():
    for d, ratio, seed in ((16, 0.5, 77), (300_001, 0.25, 78)):
        u = torch.rand(d, generator=generator(seed, "dropping"), dtype=torch.float32)
        assert torch.equal(RandomDropping(ratio=ratio).mask(seed, d), u < ratio)
    # pinned: messages of one release must be readable by the next
    mask = RandomDropping(ratio=0.5).mask(77, 16)
    assert mask.nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 10, 12, 14, 15]


def test_a_chain_codes_the_values_that_were_chosen():
    send = lambda text: through(make_codec(text), normal(D, dtype=torch.float32), LAYOUT)
    assert torch.equal(send("topk:0.1|fp16"), send("topk:0.1").half().float())
    assert torch.equal(send("topk:0.1,layer|bf16"), send("topk:0.1,layer").bfloat16().float())
    assert torch.equal(send("topk:0.5|topk:0.2"), send("topk:0.1"))


# ------------------------------------------------------------------------------------ PowerSGD
def low_rank(rank):
    parts = []
    for shape, size in zip(cases.LAYOUT.shapes, cases.LAYOUT.sizes, strict=True):
        if len(shape) < 2:
            parts.append(normal(size))
            continue
        n, m = shape[0], size // shape[0]
        product = normal(n * rank, 1).view(n, rank) @ normal(m * rank, 2).view(rank, m)
        parts.append(product.view(-1))
    return torch.cat(parts)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_matrices_of_its_rank_are_exact(rank):
    p = low_rank(rank)
    close(through(PowerSGD(rank=rank), p), p)
    close(through(PowerSGD(rank=3), p), p)
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
    codec, p, layout = PowerSGD(rank=2), low_rank(2), cases.LAYOUT
    state = codec.init(layout, 0)
    for _ in range(2):
        message, state = codec.encode(torch.zeros_like(p), state, layout, draws())
        assert not codec.decode(message, layout).any()
        assert not message.value.any()  # not the columns that QR makes up
    for _ in range(2):
        message, state = codec.encode(p, state, layout, draws())
    close(codec.decode(message, layout), p)


def test_parts_of_other_shapes_start_anew_and_vectors_are_sent_as_they_are():
    codec, small = PowerSGD(rank=1), Layout(("w",), ((9, 8),))
    message, state = codec.encode(normal(72), codec.init(cases.LAYOUT, 0), small, draws())
    assert len(state.Q) == 8 and len(message.value) == 17
    layout, p = Layout(("a", "b"), ((5,), (3,))), normal(8, dtype=torch.float32)
    message = codec.unpack(codec.pack(encode(codec, p, layout)), layout)
    assert torch.equal(codec.decode(message, layout), p)
