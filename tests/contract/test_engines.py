"""What engines owe beside runs that are the same in all of them (test_engines_agree.py)."""

from __future__ import annotations

import functools

import pytest
import torch
from naive import Naive

from cases import method
from fedloom import Checkpoint, FedAvg, Local, LocalSGD
from fedloom.algorithm import Trait
from fedloom.algorithms import Scaffold
from fedloom.checks.tiny_federation import experiment
from fedloom.core.vector import rec
from fedloom.engines import Vectorised, vectorised
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.evaluation_batches import evaluation_task
from fedloom.engines.scores import add, evaluate_range, score_of
from fedloom.engines.summation import push, root
from fedloom.errors import ClientError
from fedloom.federation.devices import Levels
from fedloom.submodels import FIARSE, HeteroFL
from fedloom.wrappers import Prox
from support.federations import drawing
from support.own_methods import Looks, TorchDraws, Walks, Whole
from tiny import agree, outcome, same, small, timeless, trace

EVERY_ROUND = Checkpoint(every_rounds=1, every_seconds=None)


@pytest.mark.parametrize("name", ["serial", "vectorised:2", "workers:2"])
def test_ranges_of_a_cohort_add_up_to_the_whole(name, engine_of):
    engine = Vectorised(2) if name == "vectorised:2" else engine_of(name)
    loop = next(trace(small(Scaffold(), engine=engine), 0))
    cohort = [0, 2, 3, 5, 6]
    engine.open(loop.plan, loop.fed, loop.net)
    asked = TrainTask(loop.message()[0], loop.state.buffers, {}, cohort, 0)
    whole = engine.map(Request.TRAIN, asked)
    stack = []
    for a, b in ((0, 2), (2, 5)):
        part = engine.map(Request.TRAIN, asked.range(a, b))
        for node in part.nodes:
            push(stack, *node)
    x = loop.state.srv.x
    task = evaluation_task(x, loop.state.buffers, loop.fed.data, Request.TEST)
    assert len(engine.map(Request.TEST, task).scores) == 1  # forty samples are one batch
    engine.close()
    assert same(root(stack), root(whole.nodes))


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


def test_the_number_of_threads_changes_no_bit():
    before, ends = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ends.append(outcome(small(Scaffold()), 4))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    agree(*ends)


@pytest.mark.parametrize("case", ["fedavg", "scaffold, option I", "fafed"])
def test_batches_fetched_ahead_change_no_bit(case, monkeypatch):
    runs = []
    for processors in (1, 2):
        monkeypatch.setattr(vectorised, "processors", lambda n=processors: n)
        runs.append(outcome(small(method(case), engine=Vectorised(3)), 4))
    agree(*runs)


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


class Listing(LocalSGD):
    """Holds tensors in a list, where no engine looks for them."""

    def start(self, msg, mem, job):
        return msg.x, rec(past=[])

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x), rec(past=[*loc.past, x])


def test_a_record_that_hides_tensors_in_a_list_is_refused():
    with pytest.raises(ClientError, match="a record holds a list"):
        [*trace(small(Listing()), 1)]
