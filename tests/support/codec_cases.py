"""Every codec, vectors to send, and how a test sends them."""

from __future__ import annotations

import torch

from fedloom.compression.codecs import (
    BF16,
    FP16,
    QSGD,
    Codec,
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
)
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import fields

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
NOISY = (QSGD, RandomDropping, Natural, Int8)
HALVES = dict.fromkeys(("bfloat", "dropping, bfloat"), torch.bfloat16) | {"half": torch.float16}
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def draws(*place):
    return generator(3, "test", *place)


def normal(d=D, seed=0, dtype=torch.float64):
    return torch.randn(d, generator=draws(seed), dtype=torch.float64).to(dtype)


def bits(v):
    return v.contiguous().view(torch.uint8).numpy().tobytes() if len(v) else b""


def same(a, b):
    one, other = fields(a), fields(b)
    return [*one] == [*other] and all(
        x.dtype == y.dtype and x.shape == y.shape and bits(x) == bits(y)
        for x, y in zip(one.values(), other.values(), strict=True)
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


def attempt(codec, raw, layout=LAYOUT):
    """Decode, or WireError."""
    out = codec.decode(codec.unpack(raw, layout), layout)
    assert out.shape == (layout.d,)
