"""Error feedback: what it must conserve. The specification's vectors: tests/golden."""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg
from fedloom.algorithm import MEAN
from fedloom.algorithms import Scaffold
from fedloom.compression.codecs import (
    BF16,
    FP16,
    QSGD,
    Dense,
    Int8,
    Natural,
    PowerSGD,
    RandomDropping,
    Sign,
    Threshold,
    TopK,
    make_codec,
)
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link, Whole
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import rec
from six_values import G, link_of, near, rounds
from tiny import quadratics, trace

LAYOUT = Layout(("w", "b", "conv"), ((12, 9), (12,), (6, 2, 3, 3)))
LOSSY = {
    "dense": Dense(),
    "top": TopK(ratio=0.1),
    "top by layer": TopK(ratio=0.1, scope="layer"),
    "all": TopK(ratio=1.0),
    "dropping": RandomDropping(ratio=0.2),
    "8 bit": QSGD(),
    "4 bit": QSGD(levels=7, bucket=64),
    "rank 1": PowerSGD(rank=1),
    "rank 2": PowerSGD(rank=2),
    "threshold": Threshold(tau=2.0),
    "sign": Sign(),
    "sign by layer": Sign(scope="layer"),
    "shrunk": QSGD(levels=2, bucket=64, shrink=True),
    "natural": Natural(),
    "half": FP16(),
    "bfloat": BF16(),
    "int8": Int8(),
    "top, int8": make_codec("topk:0.1|int8"),
    "top, signs": make_codec("topk:0.1|sign"),
    "top, levels": make_codec("topk:0.1|qsgd:4,0,shrink=true"),
    "dropping, bfloat": make_codec("dropping:0.2|bf16"),
}


# ------------------------------------------------------------------------------------ conservation
def _answer(t, i):
    draw = generator(9, "test", t, i)
    return torch.randn(LAYOUT.d, generator=draw, dtype=torch.float64).pow(3)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSY)
def test_feedback_loses_nothing(name):
    """sum of what was sent + residual = sum of what was computed, through absences."""
    link, zero = link_of(LOSSY[name], Residual()), torch.zeros(LAYOUT.d, dtype=torch.float64)
    clients = range(5)
    memory = {i: link.init(zero, LAYOUT, 0) for i in clients}
    sent = dict.fromkeys(clients, zero)
    computed = dict.fromkeys(clients, zero)
    x, ideal = zero, zero  # the virtual iterate x + mean of all e moves by what was computed
    for t in range(20):
        present = torch.randperm(5, generator=generator(2, "cohort", t))[:3].tolist()
        for i in present:
            up = rec(delta=_answer(t, i), weight=1.0)
            read, _, memory[i] = link.deliver(up, memory[i], Whole(LAYOUT), 4, t, i)
            sent[i], computed[i] = sent[i] + read.delta, computed[i] + up.delta
            x, ideal = x + read.delta / 5, ideal + up.delta / 5
        e = sum(memory[i].delta.e for i in clients) / 5
        near(x + e, ideal, 1e-12)
    for i in clients:
        near(sent[i] + memory[i].delta.e, computed[i], 1e-12)
    lossless = name in ("dense", "all")
    assert all(bool(memory[i].delta.e.any()) is not lossless for i in clients)


@pytest.mark.parametrize("name", LOSSY)
def test_residuals_stay_bounded(name):
    """A constant answer: what is missing never exceeds a multiple of it, and its mean arrives."""
    g = _answer(0, 0)
    sent, e = rounds(LOSSY[name], Residual(), [g] * 60, LAYOUT)
    assert float(e.norm(dim=1).max()) < 60 * float(g.norm()) / 2
    torch.testing.assert_close(sent.mean(0), g - e[-1] / 60, rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------- EF21
def test_ef21_with_everything_sent_is_the_answer_itself():
    _, h = rounds(TopK(ratio=1.0), EF21())
    near(h, G)


def _descend(feedback, steps):
    """Gradient steps on f_i = sum_j a_ij / 2 (x_j - b_ij)^2 of three clients, top 20 % up."""
    a, b = torch.rand(2, 3, 10, generator=generator(5, "test"), dtype=torch.float64).unbind()
    a = a + 0.5
    layout, x = Layout(("x",), ((10,),)), torch.zeros(10, dtype=torch.float64)
    link = link_of(TopK(ratio=0.2), feedback)
    memory, server = [link.init(x, layout, 0) for _ in range(3)], link.server_init(x)
    for t in range(steps):
        total = torch.zeros_like(x)
        for i in range(3):
            up = rec(delta=-0.1 * a[i] * (x - 5 * b[i]), weight=1.0)
            read, _, memory[i] = link.deliver(up, memory[i], Whole(layout), 0, t, i)
            total += read.delta / 3
        up, server = link.arrive(rec(delta=total), server, 1.0, 1.0)
        x = x + up.delta
    return float((x - (a * 5 * b).sum(0) / a.sum(0)).abs().max())


@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_ef21_in_a_run_with_absent_clients(weighting, ratio):
    # the model moves by sum w_i h_i / sum w_i over all N, h_i what client i's messages add up to;
    # c counts every change once, with the same weights: of the c_i, less what was not sent of them
    sizes = (2, 5, 3, 4)
    w = sizes if weighting == "examples" else (1, 1, 1, 1)
    experiment = quadratics(
        Scaffold(),
        sizes,
        cohort=[[0, 1, 3], [2], [1, 2], [0, 3]],
        weighting=weighting,
        compress=FieldCodec(TopK(ratio=ratio), EF21()),
    )
    x, left = torch.zeros(2, dtype=torch.float64), 0.0
    for loop in trace(experiment, 9):
        held = loop.memory.get(range(4))
        x = x + sum(w[i] * m.link.delta.e for i, m in held.items()) / sum(w)
        torch.testing.assert_close(loop.state.srv.x, x, rtol=0, atol=1e-12)
        sent = sum((w[i] * (m.alg.c - m.link.dc.e) for i, m in held.items()), torch.zeros_like(x))
        torch.testing.assert_close(loop.state.srv.c, sent / sum(w), rtol=0, atol=1e-12)
        left = max([left, *(float(m.link.dc.e.abs().max()) for m in held.values())])
    assert (left > 0.01) == (ratio < 1)


class Also(FedAvg):
    """An algorithm whose clients send their move twice: for a weighted mean, and a plain one."""

    compressible_up = dict.fromkeys(("delta", "m"), MEAN)

    def server_init(self, x, up):
        return rec(x=x, m=x)

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, m=x - msg.x, weight=job.weight), mem

    def unweighted(self, up, job):
        return rec(m=up.m)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, m=srv.m + up.m)


def test_one_round_of_ef21_counts_the_weights_of_those_who_are_away():
    copies, link = (1, 2, 3, 4), Link(dict.fromkeys(("delta", "m"), FieldCodec(Dense(), EF21())))
    plain, both = (
        list(trace(quadratics(Also(), copies, cohort=[[0, 2, 3]], compress=own), 1))[-1]
        for own in (Link(), link)
    )
    torch.testing.assert_close(
        both.state.srv.x, (1 + 3 + 4) / 10 * plain.state.srv.x, rtol=0, atol=1e-14
    )
    torch.testing.assert_close(both.state.srv.m, 3 / 4 * plain.state.srv.m, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_ef21_reaches_the_minimiser_and_forgetting_does_not():
    assert _descend(EF21(), 250) < 1e-6
    assert _descend(Forget(), 250) > 1e-2
    assert _descend(Residual(), 250) < 0.5
