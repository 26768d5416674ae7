"""What is billed is the length of what travels; error feedback loses nothing, alone and through
whole runs; and the way down, on which the server keeps what clients have not seen.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import Checkpoint, FedAvg, Local
from fedloom.algorithm import MEAN
from fedloom.algorithms import Scaffold
from fedloom.algorithms.registry import make_algorithm
from fedloom.compression.codecs import Dense, TopK, make_codec
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import rec, zeros
from fedloom.server.rounds import Run
from fedloom.submodels import FIARSE, FedRolex, HeteroFL, behind_mask, greedy, whole
from six_values import rounds
from support.codec_cases import EVERY, LAYOUT, TYPES, D, normal
from tiny import SIZES, near, quadratics, small, trace

FITS = {name: codec for name, codec in EVERY.items() if not codec.unfit(D)}
LOSSLESS = ("dense", "top of all")


@pytest.mark.parametrize("name", FITS)
def test_feedback_loses_nothing_and_its_residuals_stay_bounded(name):
    """A constant answer: what is missing never exceeds a multiple of it, and its mean arrives."""
    g = normal().pow(3)
    sent, e = rounds(FITS[name], Residual(), [g] * 60, LAYOUT)
    assert float(e.norm(dim=1).max()) < 60 * float(g.norm()) / 2
    near(sent.mean(0), g - e[-1] / 60)
    assert bool(e.any()) is (name not in LOSSLESS)


# ------------------------------------------------------------------------------------- whole runs
class Tally(FedAvg):
    """FedAvg that keeps books.

    server: x, sent (mean of the last answers as they were read, over who holds a coordinate)
    memory: computed (sum of the client's answers as it made them)        up: delta
    """

    def server_init(self, x, up):
        return rec(x=x, sent=zeros(x))

    def broadcast(self, srv):
        return rec(x=srv.x)

    def client_init(self, x):
        return rec(computed=zeros(x))

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, weight=job.weight), rec(computed=mem.computed + delta)

    def unweighted(self, up, job):
        return rec(sent=up.delta)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, sent=up.sent)


VIEWS = {
    "whole": None,
    "fiarse": FIARSE(),
    "fiarse, by whom it moved": FIARSE(count="nonzero"),
    "greedy by layer": greedy(group="layer"),
    "heterofl": HeteroFL(),
    "fedrolex": FedRolex(),
}
CODECS = ("dense", "top", "top by layer", "top of all", "dropping", "8 bit", "4 bit", "rank 1")
MEANT = [(c, v) for c in CODECS for v in ("whole", "fedrolex")]
MEANT += [("top", v) for v in ("fiarse", "greedy by layer", "heterofl")]
MEANT += [("8 bit", "fiarse"), ("dropping", "fiarse"), ("dense", "fiarse, by whom it moved")]


@pytest.mark.parametrize(("codec", "view"), MEANT)
def test_what_was_sent_and_what_is_kept_is_what_was_computed(codec, view):
    """Behind every view, with changing masks and through absences."""
    rule = VIEWS[view]
    parts = {"submodel": rule, "capacities": [0.3, 1.0, 0.6]} if rule else {}
    parts |= {"compress": FieldCodec(EVERY[codec], Residual()), "cohort": 3}
    loops = trace(small(Tally(), torch.float64, local=Local(lr=0.3, batch=4), **parts), 8)
    x, sent = next(loops).state.srv
    for loop in loops:
        holders = torch.zeros_like(sent)
        for i in loop.cohorts.of(loop.state.round - 1):
            held = None
            if rule is not None:
                held = rule.view(x, loop.net, loop.fed.capacity(i), loop.state.round - 1).held
            holders[slice(None) if held is None else held] += 1
        x, sent = loop.state.srv.x, sent + holders * loop.state.srv.sent
        rows = loop.memory.get(range(loop.fed.population)).values()
        kept = torch.stack([row.link.delta.e for row in rows])
        computed = sum(row.alg.computed for row in rows)
        near(sent + kept.sum(0), computed)
    assert len(rows) == len(SIZES)  # everybody took part, and everybody was away at times
    assert float(computed.abs().max()) > 0.1
    assert bool(kept.any()) is (codec not in LOSSLESS)


# every way in which a field that is coded is added up
METHODS = ["fedavg", "scaffold", "fednova", "feddc", "fedsmoo", "fafed", "mimelite", "scaffnew"]


@pytest.mark.parametrize("name", METHODS)
def test_every_coded_field_of_a_method_conserves(name, tmp_path, monkeypatch):
    """Of every client, in four rounds of 4 of 7, stopped after the second."""
    sums, loops, algorithm = defaultdict(float), [], make_algorithm(name)
    deliver, until = Link.deliver, Run.until

    def delivered(link, up, state, view, seed, *place):
        before = {field: getattr(up, field).clone() for field in link.up}
        got = deliver(link, up, state, view, seed, *place)
        for field, value in before.items():
            sums[place[-1], field] += value - getattr(got[0], field)
        return got

    def ran(run, t):
        loops.append(run)
        return until(run, t)

    monkeypatch.setattr(Link, "deliver", delivered)
    monkeypatch.setattr(Run, "until", ran)
    parts = {"compress": "topk:0.1", "checkpoint": Checkpoint(every_rounds=1, every_seconds=None)}
    make = lambda rounds: small(algorithm, torch.float64, rounds=rounds, **parts)
    make(2).run(tmp_path / "run")
    make(4).resume(tmp_path / "run")
    assert {field for _, field in sums} == set(algorithm.compressible_up)
    memory = loops[-1].memory.get(range(7))
    for (client, field), missing in sums.items():
        near(getattr(memory[client].link, field).e, missing)
    assert any(bool(missing.any()) for missing in sums.values()), "something was held back"
    assert len({client for client, _ in sums}) > 4, "not the same clients every round"


# ------------------------------------------------------------------------------------------- EF21
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
        near(loop.state.srv.x, x)
        sent = sum((w[i] * (m.alg.c - m.link.dc.e) for i, m in held.items()), torch.zeros_like(x))
        near(loop.state.srv.c, sent / sum(w))
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
    link = Link(dict.fromkeys(("delta", "m"), FieldCodec(Dense(), EF21())))
    plain, both = (
        [*trace(quadratics(Also(), (1, 2, 3, 4), cohort=[[0, 2, 3]], compress=own), 1)][-1]
        for own in (Link(), link)
    )
    near(both.state.srv.x, (1 + 3 + 4) / 10 * plain.state.srv.x, 1e-14)
    near(both.state.srv.m, 3 / 4 * plain.state.srv.m, 1e-14)


# ------------------------------------------------------------------------------------ the way down
def test_who_was_away_gets_what_it_missed_or_the_whole_whichever_is_smaller():
    cohorts = [[0, 1, 2], [0, 1], [0], [0, 1, 2, 3], [2], [3]]
    loops = trace(small(FedAvg(), cohort=cohorts, compress=Link(down=make_codec("topk:0.1"))), 6)
    sizes, last, bills, before = [], {}, [], 0
    for t, loop in enumerate(loops):
        whole, billed = 4 * loop.net.layout.d, loop.state.ledger.down.get("x", 0)
        if t:
            bill = [min(sum(sizes[last.get(i, -9) + 1 :]), whole) for i in cohorts[t - 1]]
            bill = [n if i in last else whole for n, i in zip(bill, cohorts[t - 1], strict=True)]
            assert billed - before == sum(bill)
            bills.append(bill)
            last |= dict.fromkeys(cohorts[t - 1], t - 1)
        if t < 6:
            sizes.append(next_size(loop))
        before = billed
    assert sizes[1] < 0.3 * whole and whole in bills[3] and bills[3][0] == sizes[3]
    assert sizes[3] < bills[3][1] < whole, "it missed some, and they are less than the whole"


def next_size(loop):
    """Bytes of the message that comes next: coding it once more changes nothing."""
    own, codec = loop.state.stages.down.x, loop.plan.link.codes_down["x"]
    x = loop.plan.algorithm.broadcast(loop.state.srv).x
    draw = generator(loop.fed.seed, "downlink", loop.state.round, "x")
    message, _ = codec.encode(x - own.seen, own.code, loop.net.layout, draw)
    return len(codec.pack(message))


# ---------------------------------------------------------------------------------------- the bill
BILLED = ("dense", "top", "top by layer", "top of all", "dropping", "8 bit", "3 bit", "rank 1")
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
    codec=st.sampled_from([*BILLED, "rank 3"]),
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
