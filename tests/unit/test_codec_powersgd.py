"""PowerSGD: matrices of low rank, and what is remembered of them."""

from __future__ import annotations

import pytest
import torch

from fedloom.compression.codecs import PowerSGD
from fedloom.core.layout import Layout
from fedloom.errors import DataError
from support.codec_cases import LAYOUT, D, draws, encode, normal, through


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
