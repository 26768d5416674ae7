"""Records and the vector functions of the papers."""

from __future__ import annotations

import math
import pickle

import cloudpickle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedloom.core.vector import aligned, clip, fields, is_rec, leaves, rec, tree, unit, zeros

names = st.text("abc", min_size=1, max_size=2)
records = st.recursive(
    st.floats(allow_nan=False),
    lambda inner: st.dictionaries(names, inner, max_size=3).map(lambda d: rec(**d)),
    max_leaves=12,
)


@given(records)
def test_a_record_is_a_pytree(record):
    assert tree(lambda v: v, record) == record
    doubled = tree(lambda a, b: a + b, record, record)
    assert list(leaves(doubled)) == [2 * v for v in leaves(record)]
    assert list(fields(record).values()) == list(leaves(record))
    assert torch.utils._pytree.tree_flatten(record)[0] == list(leaves(record))


@given(records)
def test_a_record_survives_pickling(record):
    for module in (pickle, cloudpickle):
        again = pickle.loads(module.dumps(record))
        assert again == record and type(again) is type(record)


def test_a_record_cannot_be_changed_only_replaced():
    one = rec(x=1, c=2)
    with pytest.raises(AttributeError):
        one.x = 3
    assert one._replace(c=5) == rec(x=1, c=5) and one.c == 2
    assert is_rec(one) and not is_rec((1, 2)) and not is_rec([one])


def test_paths_are_dotted():
    assert list(fields(rec(x=1, own=rec(m=rec(a=2, b=3)), e=rec()))) == ["x", "own.m.a", "own.m.b"]


def test_records_of_another_shape_are_refused():
    with pytest.raises(ValueError):
        tree(lambda a, b: a + b, rec(x=1, y=2), rec(x=1))


def test_unit_has_length_one_and_leaves_zero_at_zero():
    v = torch.tensor([3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(unit(v), v / (5 + 1e-7), rtol=0, atol=1e-15)
    assert torch.equal(unit(zeros(v)), zeros(v))


@pytest.mark.parametrize("norm", [0.1, 1.0, 4.9, 5.0, 100.0])
def test_clip_is_torchs_on_one_vector(norm):
    v = torch.tensor([3.0, -4.0], dtype=torch.float64)
    p = nn.Parameter(torch.zeros_like(v))
    p.grad = v.clone()
    nn.utils.clip_grad_norm_([p], norm)
    assert torch.equal(clip(v, norm), p.grad)
    assert torch.equal(v, torch.tensor([3.0, -4.0], dtype=torch.float64))


def test_clip_leaves_zero_at_zero_and_short_vectors_as_they_are():
    v = torch.tensor([0.3, 0.4])
    assert torch.equal(clip(v, 1.0), v) and torch.equal(clip(zeros(v), 1.0), zeros(v))
    assert math.isclose(float(clip(10 * v, 1.0).norm()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize("first", [0, 1, 3, 16])
def test_aligned_begins_where_torchs_own_memory_does(first):
    t = torch.arange(100.0)[first:]
    assert torch.equal(aligned(t), t) and aligned(t).data_ptr() % 64 == 0
    assert (aligned(t) is t) == (t.data_ptr() % 64 == 0)
