"""Every coordinate of x belongs to exactly one piece, and comes back where it was."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedloom.core.layout import Layout
from fedloom.errors import DataError

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)


def layout_of(some):
    return Layout(tuple(f"p{n}" for n in range(len(some))), tuple(some))


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_views_and_flatten_are_inverse(some):
    layout = layout_of(some)
    x = torch.arange(float(layout.d))
    views = layout.views(x)
    assert [tuple(v.shape) for v in views.values()] == list(some)
    assert torch.equal(layout.flatten(views), x)


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_every_coordinate_is_in_one_piece(some):
    layout = layout_of(some)
    seen = torch.zeros(layout.d)
    for piece in layout.pieces(seen):
        piece += 1  # the pieces share the vector's memory
    assert torch.equal(seen, torch.ones(layout.d))


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_where_marks_whole_pieces(some):
    layout = layout_of(some)
    for name in layout.names:
        marked = layout.views(layout.where(name))
        assert all(bool((v == (n == name)).all()) for n, v in marked.items())
    assert torch.equal(layout.where("*"), torch.ones(layout.d))
    assert torch.equal(layout.where("nothing"), torch.zeros(layout.d))


def test_the_order_is_the_modules():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    layout = Layout.of(net.named_parameters())
    assert layout.names == ("0.weight", "0.bias", "1.weight")
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    assert torch.equal(layout.flatten(dict(net.named_parameters())), flat)
    assert layout.where("*.bias").sum() == 3
    assert not layout.flatten(dict(net.named_parameters())).requires_grad


def test_missing_and_misshapen_pieces_are_named():
    layout = Layout(("w", "b"), ((2, 3), (2,)))
    with pytest.raises(DataError, match=r"lack 'b'.*\[2\]"):
        layout.flatten({"w": torch.zeros(2, 3)})
    with pytest.raises(DataError, match=r"'w' has shape \[3, 2\].*\[2, 3\]"):
        layout.flatten({"w": torch.zeros(3, 2), "b": torch.zeros(2)})
    with pytest.raises(RuntimeError):
        layout.views(torch.zeros(9))
