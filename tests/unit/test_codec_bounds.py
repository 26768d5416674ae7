"""What codecs promise in numbers: Definition 1, no bias, bytes near the entropy, no memory."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

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
    natural,
)
from fedloom.compression.codecs import index_coding as indices
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.errors import CompositionError, ConfigError, DataError

HEAD = 12
LAYOUT = Layout(("w", "b", "v"), ((10, 12), (10,), (70,)))
D = LAYOUT.d


def normal(d, *place, dtype=torch.float64):
    draw = generator(7, "test", *place)
    return torch.randn(d, generator=draw, dtype=torch.float64).to(dtype)


def flat(d):
    return Layout(("x",), ((d,),))


def encode(codec, p, layout=LAYOUT, place=0):
    return codec.encode(p, codec.init(layout, 0), layout, generator(3, "codec", place))[0]


def through(codec, p, layout=LAYOUT, place=0):
    return codec.decode(encode(codec, p, layout, place), layout, p.dtype)


def kinds():
    one = torch.zeros(D, dtype=torch.float64)
    one[17] = -4.0
    return {
        "normal": normal(D),
        "heavy": normal(D).pow(5),
        "one": one,
        "constant": torch.full((D,), 0.3, dtype=torch.float64),
        "zero": torch.zeros(D, dtype=torch.float64),
        "tiny": 1e-30 * normal(D),
    }


# ------------------------------------------------------------------------------------- Definition 1
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
    "three largest in levels": (
        make_codec("topk:0.05|qsgd:4,0"),
        1 - (1 - 10 / (4 * 16)) * 10 / D,
    ),
    "three largest, shrunk": (
        make_codec("topk:0.05|qsgd:4,0,shrink=true"),
        1 - 10 / D / (1 + 10 / 16),
    ),
    "signs of the largest": (make_codec("topk:0.05|sign"), 1 - 1 / D),
}


DRAW_NOTHING = {"dense", "top", "top by layer", "all above a threshold", "sign"}
DRAW_NOTHING |= {"signs of the largest"}


@pytest.mark.parametrize("name", STATED)
def test_definition_one_holds_with_the_stated_gamma(name):
    codec, stated = STATED[name]
    assert codec.delta(D) == pytest.approx(stated, rel=1e-12)
    for kind, p in kinds().items():
        draws = 2 if name in DRAW_NOTHING else 100
        errors = [float((through(codec, p, place=n) - p).square().sum()) for n in range(draws)]
        error, spread = np.mean(errors), np.std(errors) / draws**0.5
        assert draws > 2 or spread == 0, kind
        bound = stated * float(p.square().sum()) * (1 + 1e-12)
        assert error <= bound + 4 * spread + 1e-60, kind
    p = normal(D)
    assert stated == 0 or float((through(codec, p) - p).norm()) > 0


def test_some_codecs_have_no_bound():
    for codec in (Threshold(), PowerSGD(), FedPAQ(levels=1), FP16(), BF16()):
        assert codec.delta(1000) is None
    # a scaled choice, then a biased codec: their errors are not orthogonal
    for text in ("dropping:0.8,true|sign", "dropping:0.8,true|qsgd:4,0,shrink=true"):
        assert make_codec(text).delta(D) is None
    p = torch.full((D,), 0.01)  # of a small p nothing is sent
    assert not through(Threshold(tau=0.5), p).any()


def test_equalities_of_the_specification():
    p = normal(D)
    square, first = float(p.square().sum()), float(p.abs().sum())
    error = float((through(Sign(), p) - p).square().sum())
    assert error == pytest.approx(square - first**2 / D)
    kept = through(TopK(ratio=0.1), p)
    error = float((through(make_codec("topk:0.1|sign"), p) - p).square().sum())
    assert error == pytest.approx(square - float(kept.abs().sum()) ** 2 / round(0.1 * D))
    bits = through(Threshold(tau=0.5), p)
    assert torch.equal(bits, torch.where(p.abs() > 0.5, p, 0.0))
    layers = through(Sign(scope="layer"), p).split(LAYOUT.sizes)
    for found, part in zip(layers, p.split(LAYOUT.sizes), strict=True):
        torch.testing.assert_close(found, part.abs().mean() * part.sign(), rtol=0, atol=1e-15)


# ------------------------------------------------------------------------------------- unbiasedness
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
    found = through(codec, p.repeat(n), flat(d * n)).double().view(n, d)
    sigma = found.std(0) / n**0.5
    assert bool(((found.mean(0) - p).abs() <= 4 * sigma + 1e-6 * p.abs().max()).all())
    omega, square = codec.omega(d), float(p.double().square().sum())
    assert omega is not None and 0 < float((found - p).square().sum(1).mean()) <= omega * square


def test_natural_compression_rounds_to_neighbouring_powers_of_two():
    p = torch.cat(
        [normal(4000), 1e-12 * normal(4000), torch.tensor([1.0, -2.0, 0.5, 0.0]).double()]
    )
    found = through(Natural(), p, flat(len(p)))
    low = 2.0 ** p.abs().log2().floor()
    up = found.abs() == 2 * low
    assert bool((up | (found.abs() == low))[:-1].all()) and torch.equal(found[-4:], p[-4:])
    assert torch.equal(found.sign(), p.sign())
    for bad in (2.1e38, 1e300):
        with pytest.raises(DataError, match="2\\^127"):
            encode(Natural(), torch.tensor([bad], dtype=torch.float64), flat(1))
    edge = torch.tensor([2.0**127, -(2.0**-126), 2.0**-127], dtype=torch.float64)
    assert through(Natural(), edge, flat(3)).tolist() == [2.0**127, -(2.0**-126), 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_natural_compression_rounds_up_by_the_share_of_the_noise_below_the_mantissa(dtype):
    class Noise:
        def __init__(self, bits):
            self.bits = bits

        def integers(self, n, kind):
            return torch.from_numpy(np.full(n, self.bits, kind))

    least = torch.finfo(dtype).eps  # the last bit of a mantissa of 1
    p = torch.tensor([1.0, 1 + least, -2 + least, 2.0, 0.0], dtype=dtype)
    assert (natural._exponents(p, Noise(0)) - 127).tolist() == [0, 0, 0, 1, 129]
    bits = 52 if dtype == torch.float64 else 23
    some = 1 if dtype == torch.float16 else 0  # its mantissa ends thirteen bits before float32's
    assert (natural._exponents(p, Noise(-1)) - 127).tolist() == [0, 1, 1, 1, 129]
    below = Noise((1 << bits) - (1 << 13 * some) - 1)  # one too few for the last bit
    assert (natural._exponents(p, below) - 127).tolist() == [0, 0, 1, 1, 129]


def test_int8_has_127_steps_of_each_buckets_largest():
    p = torch.tensor([127.0, -127.0, 0.0, 1.0, 254.0, -2.0, 0.0, 0.0, 0.0])
    message = encode(Int8(bucket=4), p, flat(9))
    assert message.scale.tolist() == [1.0, 2.0, 0.0]
    assert message.symbol.tolist() == [127, -127, 0, 1, 127, -1, 0, 0, 0]
    with pytest.raises(DataError, match="float32"):
        encode(Int8(), torch.tensor([1e300], dtype=torch.float64), flat(1))


def test_halves_are_rounded_to_the_nearest_even_and_clamped():
    p = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, -7e4, 1e-9])
    assert through(FP16(), p, flat(4)).tolist() == [1.0, 1 + 2**-9, -65504.0, 0.0]
    p = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, torch.finfo(torch.float32).max])
    assert through(BF16(), p, flat(3)).tolist() == [1.0, 1 + 2**-6, torch.finfo(torch.bfloat16).max]


@pytest.mark.parametrize(("codec", "digits", "least"), [(FP16(), 11, -24), (BF16(), 8, -133)])
def test_float64_is_rounded_once_to_the_nearest(codec, digits, least):
    """Against exact fractions. Among the values: near half-way ones, which the nearest float32
    moves onto the half-way point, and values below the least normal one.
    """
    draw = np.random.default_rng(5)
    step = 2.0 ** (1 - digits)
    half = (1 + step * (draw.integers(0, 2 ** (digits - 1), 3000) + 0.5)) * 2.0 ** draw.integers(
        -9, 9, 3000
    )
    small = 2.0**least * draw.uniform(0, 9, 2000)
    near = half * (1 + draw.choice([-1, 0, 1], 3000) * 2.0 ** -draw.integers(26, 52, 3000))
    values = np.concatenate([near, small, draw.normal(size=3000), [0.0, 2.0**least / 2]])
    values *= draw.choice([-1, 1], len(values))
    found = through(codec, torch.tensor(values), flat(len(values))).tolist()
    for value, got in zip(values.tolist(), found, strict=True):
        exact = Fraction(abs(value))
        exponent = max(math.frexp(value)[1] - digits, least) if value else 0
        unit = Fraction(2) ** exponent
        assert abs(got) == round(exact / unit) * unit  # round() takes halves to the even one
        assert math.copysign(1, got) == math.copysign(1, value)


# -------------------------------------------------------------------------------------------- bytes
def test_sizes_are_those_of_the_format():
    p = normal(D, dtype=torch.float32)
    signs = math.ceil(D / 8)
    for codec, body in {
        Sign(): 4 + signs,
        Sign(scope="layer"): 3 * 4 + signs,
        Natural(): D + signs,
        FP16(): 2 * D,
        BF16(): 2 * D,
        Int8(bucket=64): 4 + 4 * math.ceil(D / 64) + D,
        FedPAQ(levels=7, bucket=64): 6 + 4 * (2 + 1 + 2) + D // 2,
    }.items():
        assert codec.nbytes(encode(codec, p)) == HEAD + body, codec
    plan = lambda codec: indices.plan(encode(codec, p).index.numpy(), D).nbytes
    top, inner = TopK(ratio=0.1), HEAD + 4 + math.ceil(20 / 8)
    chain = make_codec("topk:0.1|sign")
    assert chain.nbytes(encode(chain, p)) == HEAD + 6 + plan(top) + inner


@pytest.mark.parametrize("ratio", [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.38, 0.45, 0.5])
def test_places_cost_five_percent_more_than_their_entropy_at_most(ratio):
    d = 582_026
    k = round(ratio * d)
    index = torch.randperm(d, generator=generator(0, "test"))[:k].sort().values.numpy()
    bound = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
    assert indices.plan(index, d).nbytes <= 1.05 * bound / math.log(2) / 8


# ------------------------------------------------------------------------------------------- chains
def test_a_chain_codes_the_values_that_were_chosen():
    p = normal(D, dtype=torch.float32)
    found, top = through(make_codec("topk:0.1|fp16"), p), through(TopK(ratio=0.1), p)
    assert torch.equal(found, top.half().float())
    layered = through(make_codec("topk:0.1,layer|bf16"), p)
    assert torch.equal(layered, through(TopK(ratio=0.1, scope="layer"), p).bfloat16().float())
    twice = through(make_codec("topk:0.5|topk:0.2"), p)
    assert torch.equal(twice, through(TopK(ratio=0.1), p))


REFUSED = {
    "qsgd|topk": (CompositionError, "QSGD and TopK"),
    "topk|dense": (CompositionError, "changes nothing"),
    "": (ConfigError, "unknown codec ''"),
    "topk|": (ConfigError, "unknown codec ''"),
    "topk:2": (ConfigError, r"^codec 'topk:2': ratio must be in \(0, 1\], got 2"),
    "topk:2|int8": (ConfigError, r"^codec 'topk:2': ratio must be in \(0, 1\], got 2"),
    "topk:0.1|int8:bucket=1.5": (ConfigError, "^codec 'int8:bucket=1.5': bucket must be"),
    "topk:0.1,block": (ConfigError, "^codec 'topk:0.1,block': scope must be one of"),
    "topk:ration=0.1": (ConfigError, "did you mean 'ratio'"),
    "topk:0.1,ratio=0.1": (ConfigError, "given twice"),
    "int8:bucket=1.5": (ConfigError, "whole number"),
    "natural:3": (ConfigError, "natural"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_chains_without_meaning_are_refused(text):
    kind, said = REFUSED[text]
    with pytest.raises(kind, match=said):
        make_codec(text)
