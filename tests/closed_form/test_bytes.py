"""What is billed is the length of what travels, to the byte: every codec on every kind of part."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.algorithms import Scaffold
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import rec
from fedloom.submodels import behind_mask, whole
from support.codec_cases import EVERY, TYPES, normal

CODECS = ("dense", "top", "top by layer", "top of all", "dropping", "8 bit", "3 bit", "rank 1")
KINDS = ("normal", "zeros", "equal", "one", "tiny", "large")


def vector(kind: str, d: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    kinds = {
        "normal": normal(d, seed),
        "zeros": torch.zeros(d, dtype=torch.float64),
        "equal": torch.full((d,), -0.5, dtype=torch.float64),
        "one": torch.zeros(d, dtype=torch.float64).index_fill_(0, torch.tensor([d - 1]), 3.0),
        "tiny": normal(d, seed) * 1e-7,
        "large": normal(d, seed) * 1e3,
    }
    return kinds[kind].to(dtype)


shapes = st.one_of(
    st.just((1,)),
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)
layouts = st.lists(shapes, min_size=1, max_size=4).map(
    lambda all: Layout(tuple(f"p{i}" for i in range(len(all))), tuple(all))
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    layout=layouts,
    codec=st.sampled_from([*CODECS, "rank 3"]),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    dtype=st.sampled_from(TYPES),
    share=st.sampled_from([None, 0.0, 0.3, 0.9]),
    fed_back=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_bill_is_the_length_of_the_message(layout, codec, kinds, dtype, share, fed_back, seed):
    """A layout of any shapes, d = 1 included; a part of it, if any, down to one coordinate."""
    coder = EVERY[codec]
    view = whole(layout)
    if share is not None and not coder.matrices:
        keep = torch.rand(layout.d, generator=generator(seed, "held")) < share
        keep[seed % layout.d] = True
        view = behind_mask(keep.nonzero()[:, 0], layout)
    feedback = Residual() if fed_back and not coder.unfit(view.layout.d) else Forget()
    link = Link(FieldCodec(coder, feedback)).settled(Scaffold())
    x, m = torch.zeros(layout.d, dtype=dtype), view.layout.d
    memory = link.init(x, view.layout, 0)
    for t, kind in enumerate(kinds):
        answer = rec(
            delta=vector(kind, m, seed, dtype), dc=vector("normal", m, t, dtype), weight=2.0
        )
        packet, _ = link.send(answer, memory, view, 5, t, 3)
        read, bill, memory = link.deliver(answer, memory, view, 5, t, 3)
        assert bill == {name: len(raw) for name, raw in packet.items()}
        assert set(bill) == {"delta", "dc", "weight"} and bill["weight"] == 8
        assert read.delta.shape == (m,) and read.delta.dtype == dtype
