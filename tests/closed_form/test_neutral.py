"""Parts that change nothing: capacity 1, ratio 1, and both at once, are the base algorithm."""

from __future__ import annotations

import functools

import pytest
import torch

from fedloom import FedAvg
from fedloom.algorithm import Trait
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.compression.codecs import Dense, RandomDropping, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec
from fedloom.submodels import FIARSE, FedRolex, HeteroFL, greedy
from tiny import bits, small, trace

RULES = {"fiarse": FIARSE(), "greedy": greedy(), "heterofl": HeteroFL(), "fedrolex": FedRolex()}
LOSSLESS = {
    "dense": FieldCodec(Dense(), Residual()),
    "top": FieldCodec(TopK(ratio=1.0), Residual()),
    "top by layer": FieldCodec(TopK(ratio=1.0, scope="layer"), Forget()),
    "dropping": FieldCodec(RandomDropping(ratio=1.0), Residual()),
}
PARTIAL = [name for name in ALGORITHMS if Trait.WHOLE_MODEL not in make_algorithm(name).traits]


def ends(name, **parts):
    """What the server has learnt, and what every client remembers of the algorithm, as bits."""
    *_, loop = trace(small(make_algorithm(name), **parts), 3)
    rows = loop.memory.get(range(loop.fed.population))
    records = [loop.state.srv, *(rows[i].alg for i in sorted(rows))]
    return [bits(v + 0.0) for record in records for v in flat(record)]  # -0 and 0 are one number


base = functools.cache(ends)


def flat(record):
    return [v for v in record if isinstance(v, torch.Tensor)] + [
        v for part in record if isinstance(part, tuple) for v in flat(part)
    ]


@pytest.mark.parametrize(
    ("name", "rule"), [*((n, "fiarse") for n in PARTIAL), *(("scaffold", r) for r in RULES)]
)
def test_capacity_one_is_the_base_algorithm(name, rule):
    assert ends(name, submodel=RULES[rule], capacities=[1.0]) == base(name)


@pytest.mark.parametrize(
    ("name", "codec"), [*((n, "top") for n in ALGORITHMS), *(("scaffold", c) for c in LOSSLESS)]
)
def test_ratio_one_is_the_base_algorithm(name, codec):
    assert ends(name, compress=LOSSLESS[codec]) == base(name)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedacg", "feddyn", "mime"])
def test_both_at_once_are_the_base_algorithm_and_anything_less_is_another_run(name):
    whole = {"submodel": FIARSE(), "capacities": [1.0]}
    assert ends(name, compress=LOSSLESS["top"], **whole) == base(name)
    if name in PARTIAL:
        assert ends(name, submodel=FIARSE(), capacities=[0.9]) != base(name)
    assert ends(name, compress=FieldCodec(TopK(ratio=0.9), Residual())) != base(name)


def test_a_lossless_codec_changes_no_bit_of_a_run_on_parts():
    parts = {"submodel": FIARSE(), "capacities": [0.3, 1.0]}
    coded = ends("scaffold", compress=LOSSLESS["top"], **parts)
    assert coded == ends("scaffold", **parts)
    assert coded != ends("scaffold", compress=FieldCodec(TopK(ratio=0.9), Residual()), **parts)


@pytest.mark.parametrize("codec", LOSSLESS)
def test_ef21_with_ratio_one_is_fedavg_where_all_take_part(codec):
    # h_i + (delta - h_i) is delta but for rounding; absent clients would answer with their last one
    settings = {"cohort": 1.0, "weighting": "uniform"}
    via = FieldCodec(LOSSLESS[codec].codec, EF21())
    runs = [
        [*trace(small(FedAvg(), torch.float64, **settings, **parts), 5)][-1]
        for parts in ({}, {"compress": via})
    ]
    torch.testing.assert_close(runs[0].state.srv.x, runs[1].state.srv.x, rtol=0, atol=1e-13)
