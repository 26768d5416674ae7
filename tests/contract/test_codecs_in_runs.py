"""Every codec in whole runs: the same bits in every engine and after a stop."""

from __future__ import annotations

import functools

import pytest
import torch

from fedloom import Checkpoint, FedAvg
from fedloom.compression.codecs import MAKERS, make_codec
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import Via
from fedloom.core.vector import leaves
from tiny import same, small, timeless, trace

CODECS = {name: make() for name, make in MAKERS.items()} | {
    "strom": make_codec("strom:0.05"),
    "threshold": make_codec("threshold:0.02"),
    "scaled dropping": make_codec("dropping:0.5,true"),
    "dropping, natural": make_codec("dropping:0.5|natural"),
    "layers": make_codec("topk:0.1,layer|sign"),
}


def via(name):
    codec = CODECS[name]
    return Via(codec, Forget() if codec.unfit(102) else Residual())


def run(name, engine, dtype=torch.float32, **changes):
    return small(FedAvg(), dtype, compress=via(name), engine=engine, **changes)


@functools.cache
def end(name, engine, dtype=torch.float32):
    loop = list(trace(run(name, engine, dtype), 4))[-1]
    return loop.srv, loop.memory.get(range(7)), timeless(loop.history), loop.ledger.up


@pytest.mark.parametrize("name", CODECS)
def test_workers_have_the_bits_of_serial(name, engine_of):
    one, two = end(name, "serial"), end(name, engine_of("workers:2"))
    assert same(one[0], two[0]) and one[2:] == two[2:] and one[1].keys() == two[1].keys()
    assert all(same(one[1][i], two[1][i]) for i in one[1])


@pytest.mark.parametrize("name", CODECS)
def test_vectorised_agrees_with_serial(name):
    one, two = end(name, "vectorised:3", torch.float64), end(name, "serial", torch.float64)
    for a, b in zip(leaves(one[0]), leaves(two[0]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert one[3] == two[3]


@pytest.mark.parametrize("name", CODECS)
def test_a_resumed_run_goes_on_with_its_residuals(name, tmp_path):
    saving = Checkpoint(every_rounds=2, every_seconds=None)
    whole = run(name, "serial", rounds=4, checkpoint=saving).run()
    run(name, "serial", rounds=2, checkpoint=saving).run(tmp_path / "run")
    again = run(name, "serial", rounds=4, checkpoint=saving).resume(tmp_path / "run")
    assert same(again.state, whole.state) and timeless(again.history) == timeless(whole.history)
