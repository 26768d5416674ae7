"""What engines owe beside runs that are the same in all of them (test_engines_agree.py)."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from naive import Naive

from fedloom import Checkpoint, FedAvg, Local
from fedloom.algorithm import Trait
from fedloom.algorithms import Scaffold
from fedloom.checks.tiny_federation import experiment
from fedloom.core.rng import key
from fedloom.core.vector import rec
from fedloom.engines.scores import add, evaluate_range, score_of
from fedloom.engines.shared_memory import Board, load
from fedloom.federation.devices import Levels
from fedloom.submodels import FIARSE, HeteroFL
from fedloom.wrappers import Prox
from support.federations import drawing
from support.own_methods import Draws, Looks, TorchDraws, Walks, Whole
from support.refusals import refused
from tiny import SIZES, A, B, near, quadratics, same, small, timeless, trace

EVERY_ROUND = Checkpoint(every_rounds=1, every_seconds=None)


@pytest.mark.parametrize("method", ["option I", "option I, SAM", "option I, FIARSE"])
def test_a_pass_over_all_data_is_counted_and_takes_its_time(method, engine_of):
    """Clients of 1, 3, 5 and 8 examples take 1, 1, 2 and 2 batches for one, at a step a second."""
    local = Local(steps=1, batch=4, lr=0.1, sam=0.1 if "SAM" in method else None)
    parts = {"submodel": FIARSE(), "capacities": [0.5]} if "FIARSE" in method else {}
    each = 2 if "SAM" in method else 1  # gradients for one that the method asks for
    devices = Levels(steps_per_second=(1.0,))
    for engine in ("serial", "vectorised:3", engine_of("workers:2"), Naive()):
        if parts and isinstance(engine, Naive):
            continue
        settings = parts | {"local": local, "devices": devices, "cohort": [[0, 1, 2, 3]]}
        run = small(Scaffold(option=1), torch.float64, engine=engine, **settings)
        rows = [*trace(run, 2)][-1].log.history
        assert [row["gradients"] for row in rows] == 2 * [each * (4 + 6)]
        assert [row["steps"] for row in rows] == [4, 4]
        assert [row["simulated_seconds"] for row in rows] == [1 + each * 2] * 2


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_run_leaves_torchs_own_generator_alone(engine):
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    [*trace(small(FedAvg(), engine=engine), 1)]
    assert torch.equal(torch.rand(4), want)


class Remembers(FedAvg):
    """Its clients remember what client_init() got."""

    def client_init(self, x):
        return rec(first=x)


class FromTheStart(Remembers):
    traits = frozenset({Trait.INITIAL_MODEL})


PARTS = {"submodel": HeteroFL(), "capacities": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("name", "parts"), [("serial", PARTS), ("vectorised:2", PARTS), ("workers:2", {})]
)
def test_client_state_begins_with_the_model_of_its_first_round_or_of_the_run(
    name, parts, engine_of, tmp_path
):
    """Also in a wrapper, of a client that comes later, and after a stop."""
    cohorts = {"cohort": [[0, 1], [1, 2], [3]], "checkpoint": EVERY_ROUND}
    for own, rounds in ((Remembers(), [0, 0, 1, 2]), (FromTheStart(), [0, 0, 0, 0])):
        given = cohorts | parts | {"algorithm": Prox(inner=own, mu=0.0)}
        make = lambda n, given=given, **more: experiment(**given, rounds=n, **more)
        sent = [loop.state.srv.x for loop in trace(make(3), 3)]
        engine = lambda: {"engine": engine_of(name) if "workers" in name else name}
        make(2, **engine()).run(tmp_path / own.method)
        again = make(3, **engine())
        again.resume(tmp_path / own.method)
        memory = again.loop.memory.get(range(4))
        close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-5)
        assert list(memory) == [0, 1, 2, 3]
        for i, t in enumerate(rounds):
            close(memory[i].alg.first, sent[t])


def test_every_batch_of_an_evaluation_draws_anew():
    loop = drawing().build()
    x, data = loop.net.init(), loop.fed.data
    one = data.test_inputs[:1].expand(1000, -1), data.test_targets[:1].expand(1000)
    model = loop.plan, loop.fed, loop.net, x
    scores = evaluate_range(*model, *one)
    assert scores[0].loss != scores[1].loss
    assert evaluate_range(*model, *(v[500:] for v in one), 1)[0].loss == scores[1].loss
    parts = zip(*(torch.split(v, 500) for v in one), strict=True)
    assert score_of(loop.plan, loop.fed, loop.net, x, parts).loss == add(scores).loss


@pytest.mark.parametrize("kind", [Walks, Looks])
def test_a_direction_without_a_gradient_runs_and_has_no_loss(kind):
    local = Local(steps=3, batch=4, lr=0.25)
    start, *_, loop = [(t.state.srv.x, t) for t in trace(small(kind(), local=local), 2)]
    torch.testing.assert_close(start[0] - loop[0], torch.full_like(start[0], 2 * 3 * 0.25))
    for row in loop[1].log.history:
        assert (row["train_loss"], row["gradients"], row["answered"]) == (None, 0, 4)


def test_the_gradient_of_all_data_is_no_loss_of_a_step():
    rows = small(Whole(), rounds=2).run().history
    assert [row["train_loss"] for row in rows] == [None] * 2 and rows[0]["gradients"] > 0


def test_draws_from_torchs_generator_are_the_runs_own(engine_of, tmp_path):
    """The same bits whatever the process drew before, in workers, and after a stop."""
    make = lambda **given: small(TorchDraws(), checkpoint=EVERY_ROUND, **given)
    whole = make().run()
    torch.manual_seed(99)
    again = make(engine=engine_of("workers:2")).run()
    assert same(again.state, whole.state) and timeless(again.history) == timeless(whole.history)
    make(rounds=2).run(tmp_path / "run")
    torch.manual_seed(98)
    assert same(make().resume(tmp_path / "run").state, whole.state)
    assert not torch.equal(whole.state.x, small(TorchDraws(), seed=12).run().state.x)


# ------------------------------------------------------------------ what an author keeps of a sum
class Keeps(FedAvg):
    """A client keeps the very vector that it sends; longer: or one of which it sends a part."""

    longer: bool = False

    def client_init(self, x):
        return rec(last=torch.zeros((1 + self.longer) * len(x), dtype=x.dtype))

    def finish(self, x, loc, msg, mem, job):
        kept = torch.cat([x - msg.x, x]) if self.longer else x - msg.x
        delta = kept[: len(x)]
        return rec(delta=delta, weight=job.weight, plain=delta), rec(last=kept)

    def unweighted(self, up, job):
        return rec(plain=up.plain)

    def server_init(self, x, up):
        return rec(x=x, plain=torch.zeros_like(x))

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, plain=up.plain)


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("algorithm", [Keeps(), Keeps(longer=True)])
def test_what_an_author_keeps_of_an_answer_is_neither_weighted_nor_summed(algorithm, engine):
    *_, loop = trace(quadratics(algorithm, (1, 2, 3, 4), engine=engine), 1)
    moves = B * (1 - (1 - 0.1 * A) ** 5)  # from 0: x_K = b (1 - (1 - lr a)^K)
    near(loop.state.srv.x, np.average(moves, axis=0, weights=(1, 2, 3, 4)))
    near(loop.state.srv.plain, moves.mean(0))
    for i, memory in loop.memory.get(range(4)).items():
        near(memory.alg.last[:2], moves[i])


# ---------------------------------------------------------------------------------- job.draw(n)
M64 = (1 << 64) - 1


def uniform(seed, place, call, n, digits):
    """The documented numbers in Python's integers: splitmix64 of a counter and a hashed seed."""

    def mixed(z):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = ((z ^ (z >> shift)) * factor) & M64
        return z ^ (z >> 31)

    start = ((seed + place * 0x1E3779B97F4A7C15) & (M64 >> 1)) + call
    return [(mixed((k + mixed(start)) & M64) >> (64 - digits)) / 2**digits for k in range(n)]


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53)])
def test_what_a_method_draws_follows_from_seed_round_client_step_and_call(dtype, digits):
    *_, loop = trace(small(Draws(), dtype, cohort=1.0, rounds=2), 2)
    drawn = {i: row.alg.u for i, row in loop.memory.get(range(7)).items()}
    for i, u in drawn.items():
        seed = key(11, "author", 1, i)
        steps = 2 * -(-SIZES[i] // 4)
        places = [(0, 1), (2 + steps, 1), (2 + steps, 2), (1, 1)]  # start, last step, finish
        for row, (place, call) in zip(u, places, strict=False):
            assert row.tolist() == uniform(seed, place, call, 3, digits)
    asked = torch.tensor([uniform(key(11, "author", 1, i), 2, 1, 3, digits) for i in drawn])
    weight = torch.tensor(SIZES, dtype=torch.float32)
    assert torch.allclose(drawn[0][4].float(), weight @ asked / weight.sum(), atol=1e-6)
    rows = torch.cat([u[:4] for u in drawn.values()])
    assert len(rows.unique(dim=0)) == len(rows) == 4 * 7


NO_DRAWS = {  # a method that draws where it cannot, or what there is not
    "unweighted": (
        lambda self, up, job: rec(u=job.draw(1)),
        "job.draw(n) has no numbers here: draw in start(), direction()",
    ),
    "start": (
        lambda self, msg, mem, job: (msg.x + job.draw(0.5).sum(), rec()),
        "job.draw(n): n is how many numbers, 0 or more, got 0.5",
    ),
}


@pytest.mark.parametrize("method", NO_DRAWS)
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_draw_that_cannot_be_is_said(method, engine):
    draws, words = NO_DRAWS[method]
    kind = type("Wrong", (FedAvg,), {method: draws})
    refused(lambda: small(kind(), engine=engine).run(), words)


# ------------------------------------------------------------------------------------------- data
def test_windows_that_share_a_text_are_posted_once_and_come_back_the_same():
    text = torch.arange(100_000, dtype=torch.int64).remainder(251).to(torch.uint8)
    windows = text.unfold(0, 80, 1)
    board = Board()
    try:
        path = board.post({"windows": windows, "again": windows[5:]})
        files = sum(f.stat().st_size for f in board.folder.iterdir())
        assert files < 3 * text.nbytes < windows.nbytes
        got = load(path)
        assert torch.equal(got["windows"], windows) and torch.equal(got["again"], windows[5:])
    finally:
        board.close()
