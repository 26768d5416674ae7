"""What is billed is the length of what travels, to the byte: every codec on every kind of part."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.algorithms import Scaffold
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import FieldCodec, Link, Whole
from fedloom.core import wire
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import rec
from fedloom.submodels import FIARSE, FedRolex, HeteroFL, behind_mask, greedy
from support.codec_cases import EVERY, TYPES, normal
from tiny import small, trace

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
    view = Whole(layout)
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


VIEWS = {
    "whole": None,
    "fiarse": FIARSE(),
    "greedy by layer": greedy(group="layer"),
    "heterofl": HeteroFL(),
    "fedrolex": FedRolex(),
}
RUNS = [(c, "whole") for c in CODECS] + [("top", v) for v in VIEWS if v != "whole"]
RUNS += [("rank 1", "heterofl"), ("8 bit", "fiarse")]


@pytest.mark.parametrize(("codec", "view"), RUNS)
def test_the_ledger_is_the_sum_of_all_messages(codec, view, monkeypatch):
    coder, rule, sent = EVERY[codec], VIEWS[view], []
    nbytes = type(coder).nbytes

    def counted(self, message):
        size = nbytes(self, message)
        assert size == len(self.pack(message))
        sent.append(size)
        return size

    monkeypatch.setattr(type(coder), "nbytes", counted)
    parts = {"submodel": rule, "capacities": [0.3, 1.0, 0.6]} if rule else {}
    *_, loop = trace(small(Scaffold(), compress=FieldCodec(coder), cohort=4, **parts), 3)
    up, answers = loop.state.ledger.up, 3 * 4
    assert up["delta"] + up["dc"] == sum(sent) and len(sent) == 2 * answers
    assert up["weight"] == 8 * answers and set(up) == {"delta", "dc", "weight"}
    assert loop.state.ledger.bytes_up == sum(row["bytes_up"] for row in loop.log.history)


@pytest.mark.parametrize("view", [v for v in VIEWS if v != "whole"])
def test_what_goes_down_is_the_part_and_what_the_client_cannot_know(view):
    rule, down = VIEWS[view], Counter()
    loops = trace(small(Scaffold(), submodel=rule, capacities=[0.3, 1.0, 0.6], cohort=4), 3)
    x = next(loops).state.srv.x
    for loop in loops:
        t, d = loop.state.round - 1, loop.net.layout.d
        for i in loop.cohorts.of(t):
            part = rule.view(x, loop.net, loop.fed.capacity(i), t)
            m = d if part.held is None else len(part.held)
            down.update({"x": 4 * m, "c": 4 * m})
            if isinstance(rule, FIARSE) and m < d:  # who is held, and the thresholds
                told = rule.told(part)
                sizes = {name: len(raw) for name, raw in wire.pack(told).items()}
                down.update({f"view.{name}": size for name, size in sizes.items()})
                # the kind of coding and a count, then at most a bit for each that competes
                competing = d - int((~part.fit.competes).sum())  # all others are held
                assert sizes["mask"] <= 5 + math.ceil(competing / 8)
                assert sizes["tau"] == 4 * len(part.fit.groups)
                back = rule.again(told, loop.net, loop.fed.capacity(i), t)
                assert torch.equal(back.held, part.held)
        x = loop.state.srv.x
    assert loop.state.ledger.down == dict(down)
