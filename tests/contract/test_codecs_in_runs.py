"""Every codec in whole runs: the same bits in every engine and after a stop."""

from __future__ import annotations

import functools

import pytest
import torch

from fedloom import Checkpoint, FedAvg
from fedloom.compression.codecs import MAKERS, make_codec
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import Via
from tiny import agree, agree_within, outcome, same, small, timeless

CODECS = {name: make() for name, make in MAKERS.items()} | {
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
    return outcome(run(name, engine, dtype), 4)


@pytest.mark.quick("topk", "qsgd", "powersgd", "chain", "scaled dropping", "layers")
@pytest.mark.parametrize("name", CODECS)
def test_workers_have_the_bits_of_serial(name, engine_of):
    agree(end(name, engine_of("workers:2")), end(name, "serial"))


@pytest.mark.quick("topk", "qsgd", "powersgd", "chain", "scaled dropping", "layers")
@pytest.mark.parametrize("name", CODECS)
def test_vectorised_agrees_with_serial(name):
    one, two = (end(name, engine, torch.float64) for engine in ("vectorised:3", "serial"))
    agree_within(one, two, 1e-12)


@pytest.mark.quick("topk", "qsgd", "powersgd", "chain", "scaled dropping", "layers")
@pytest.mark.parametrize("name", CODECS)
def test_a_resumed_run_goes_on_with_its_residuals(name, tmp_path):
    saving = Checkpoint(every_rounds=2, every_seconds=None)
    whole = run(name, "serial", rounds=4, checkpoint=saving).run()
    run(name, "serial", rounds=2, checkpoint=saving).run(tmp_path / "run")
    again = run(name, "serial", rounds=4, checkpoint=saving).resume(tmp_path / "run")
    assert same(again.state, whole.state) and timeless(again.history) == timeless(whole.history)
