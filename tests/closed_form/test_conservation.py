"""Feedback around every codec behind every view, through whole rounds: nothing that was computed is
lost, absent clients, changing masks and a resumed run included.
"""

from __future__ import annotations

import pytest
import torch

from fedloom import Checkpoint, Experiment, FedAvg, Local
from fedloom.compression.codecs import QSGD, Dense, PowerSGD, RandomDropping, TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.vector import rec, zeros
from fedloom.errors import CompositionError
from fedloom.storage.run_directory import RunDirectory
from fedloom.submodels import FIARSE, FedRolex, HeteroFL, greedy
from tiny import SIZES, small, trace

CODECS = {
    "dense": Dense(),
    "top": TopK(ratio=0.1),
    "top by layer": TopK(ratio=0.1, scope="layer"),
    "all": TopK(ratio=1.0),
    "dropping": RandomDropping(ratio=0.2),
    "8 bit": QSGD(),
    "4 bit": QSGD(levels=7, bucket=32),
    "rank 1": PowerSGD(rank=1),
}
VIEWS = {
    "whole": None,
    "fiarse": FIARSE(),
    "fiarse, by whom it moved": FIARSE(count="nonzero"),
    "greedy by layer": greedy(group="layer"),
    "heterofl": HeteroFL(),
    "fedrolex": FedRolex(),
}


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


def experiment(codec: str, view: str, rounds: int, feedback=Residual, **changes) -> Experiment:
    rule = VIEWS[view]
    parts = {"submodel": rule, "capacities": [0.3, 1.0, 0.6]} if rule else {}
    return small(
        Tally(),
        torch.float64,
        compress=FieldCodec(CODECS[codec], feedback()),
        local=Local(epochs=2, batch=4, lr=0.3),
        rounds=rounds,
        cohort=3,
        checkpoint=Checkpoint(every_rounds=1, every_seconds=None),
        **(parts | changes),
    )


MOVED = "fiarse, by whom it moved"
MEANT = [(c, v) for c in CODECS for v in ("whole", "fedrolex")]
MEANT += [("top", v) for v in ("fiarse", "greedy by layer", "heterofl")]
MEANT += [("8 bit", "fiarse"), ("dropping", "fiarse"), ("dense", MOVED)]


def books(loops):
    """After every round: the loop, the sum of all that was sent so far, what is kept and what was
    computed by each client.
    """
    loop = next(loops)
    x, sent = loop.state.srv.x, torch.zeros_like(loop.state.srv.x)
    for loop in loops:
        t, holders = loop.state.round - 1, torch.zeros_like(sent)
        for i in loop.cohorts.of(t):
            rule, where = loop.plan.submodel, None
            if rule is not None:
                where = rule.view(x, loop.net, loop.fed.capacity(i), t).held
            holders[slice(None) if where is None else where] += 1
        x, sent = loop.state.srv.x, sent + holders * loop.state.srv.sent
        rows = loop.memory.get(range(loop.fed.population)).values()
        e = torch.stack([row.link.delta.e for row in rows])
        yield loop, sent, e, torch.stack([row.alg.computed for row in rows])


@pytest.mark.parametrize(("codec", "view"), MEANT)
def test_what_was_sent_and_what_is_kept_is_what_was_computed(codec, view):
    for _, sent, e, computed in books(trace(experiment(codec, view, 8), 8)):
        torch.testing.assert_close(sent + e.sum(0), computed.sum(0), rtol=0, atol=1e-12)
    assert len(e) == len(SIZES)  # everybody took part, and everybody was away at times
    assert float(computed.abs().max()) > 0.1
    lossless = codec in ("dense", "all")
    assert bool(e.any()) is not lossless


@pytest.mark.parametrize(("codec", "view"), MEANT[::5])
def test_so_it_is_when_the_run_is_resumed(codec, view, tmp_path):
    experiment(codec, view, 3).run(tmp_path / "run")
    again = experiment(codec, view, 8)
    end = again.resume(tmp_path / "run")
    *_, (whole, _, e, computed) = books(trace(experiment(codec, view, 8), 8))
    assert torch.equal(end.state.x, whole.state.srv.x)
    loop = again.build()
    folder = RunDirectory(tmp_path / "run")
    folder.open()
    again._attach(loop, folder)
    loop.restore()
    rows = loop.memory.get(range(loop.fed.population)).values()
    assert torch.equal(loop.state.srv.sent, whole.state.srv.sent)
    assert torch.equal(torch.stack([row.link.delta.e for row in rows]), e)
    assert torch.equal(torch.stack([row.alg.computed for row in rows]), computed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "view", "engine"),
    [
        ("top", "fiarse", "vectorised:2"),
        ("rank 1", "fedrolex", "vectorised:2"),
        ("8 bit", "fiarse", "workers:2"),
    ],
)
def test_so_it_is_in_every_engine(codec, view, engine, engine_of):
    made = engine_of(engine) if engine.startswith("workers") else engine
    *_, (_, sent, e, computed) = books(trace(experiment(codec, view, 4, engine=made), 4))
    torch.testing.assert_close(sent + e.sum(0), computed.sum(0), rtol=0, atol=1e-12)


def test_what_a_client_does_not_hold_stays_in_its_residual():
    # FIARSE's mask moves: what was kept outside of it waits until the coordinate is held again
    loops = trace(experiment("top", "fiarse", 8), 8)
    loop = next(loops)
    x, before, waited = loop.state.srv.x, {}, False
    for loop in loops:
        now, t = kept(loop), loop.state.round - 1
        for i in set(before) - set(loop.cohorts.of(t)):
            assert torch.equal(now[i], before[i])
        for i in set(before) & set(loop.cohorts.of(t)):
            held = loop.plan.submodel.view(x, loop.net, loop.fed.capacity(i), t).held
            if held is not None:
                away = torch.ones(len(x), dtype=torch.bool).index_fill(0, held, False)
                assert torch.equal(now[i][away], before[i][away])
                waited |= bool(before[i][away].any())
        x, before = loop.state.srv.x, now
    assert waited


def kept(loop):
    """{client: its residual} of those who took part."""
    rows = loop.memory.get(range(loop.fed.population))
    return {i: row.link.delta.e for i, row in rows.items()}


@pytest.mark.parametrize(
    ("codec", "view", "feedback", "says"),
    [
        ("rank 1", "fiarse", Residual, "PowerSGD and FIARSE"),
        ("rank 1", "greedy by layer", Residual, "PowerSGD and Pruning-Greedy"),
        *(("top", view, EF21, "EF21 and ") for view in VIEWS if view not in ("whole", MOVED)),
        ("top", MOVED, Residual, "TopK and FIARSE: its count looks at which entries"),
    ],
)
def test_the_other_pairs_are_refused_before_anything_runs(codec, view, feedback, says):
    with pytest.raises(CompositionError, match=says):
        experiment(codec, view, 1, feedback).plan()
