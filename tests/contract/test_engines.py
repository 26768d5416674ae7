"""Every registered algorithm on every engine: the same bits."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from naive import Naive
from torch import nn

from cases import METHODS, method
from fedloom import Checkpoint, FedAvg, Local
from fedloom.algorithm import Trait
from fedloom.algorithms import Ditto, FedNova, Scaffold
from fedloom.checks.tiny_federation import experiment
from fedloom.core.vector import leaves, rec
from fedloom.data.client_test_sets import proportional
from fedloom.engines import Vectorised
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.evaluation import add, evaluate_range, score_of
from fedloom.engines.evaluation_batches import evaluation_task
from fedloom.engines.summation import push, root
from fedloom.federation.devices import Levels
from fedloom.federation.schedules import Exponential
from fedloom.measures import Plane
from fedloom.submodels import FIARSE, HeteroFL
from fedloom.wrappers import Prox
from tiny import agree, agree_within, clusters, mlp, outcome, same, small, timeless, trace

DTYPES = [torch.float32, torch.float64]
EVERY_ROUND = Checkpoint(every_rounds=1, every_seconds=None)
SLOW = pytest.mark.slow  # thousands of runs: make test keeps one of each kind
LOCAL = Local(
    epochs=1.5,
    batch=4,
    lr=0.1,
    clip=1.0,
    weight_decay=0.01,
    schedule=Exponential(decay=0.9, step_decay=0.97),
)


def ends(case, dtype, engine, local=LOCAL, **changes):
    """Everything that a run has learnt, and its history."""
    changes = {"local": local, "engine": engine, **changes}
    return outcome(small(method(case), dtype, **changes), 4)


@functools.cache
def serially(case, dtype):
    from fedloom.engines import Serial

    return ends(case, dtype, Serial())


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


def test_the_weights_of_local_momentum_are_known_in_every_engine(engine_of):
    local = Local(epochs=1.5, batch=4, lr=0.1, momentum=0.8, schedule=LOCAL.schedule)
    runs = [
        [
            loop.state.srv.x
            for loop in trace(small(FedNova(), torch.float64, local=local, engine=e), 3)
        ]
        for e in ("serial", "vectorised:3", engine_of("workers:2"))
    ]
    for a, b, c in zip(*runs, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12)
        assert torch.equal(a, c)
    assert not torch.equal(runs[0][0], runs[0][-1])


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=SLOW)])
@pytest.mark.parametrize("workers", [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize("case", METHODS)
def test_workers_have_the_bits_of_serial(case, workers, dtype, engine_of):
    agree(ends(case, dtype, engine_of(f"workers:{workers}")), serially(case, dtype))


@pytest.mark.quick
@pytest.mark.parametrize("chunk", [pytest.param(1, marks=SLOW), 3, pytest.param(32, marks=SLOW)])
@pytest.mark.parametrize("case", METHODS)
def test_vectorised_agrees_with_serial_in_float64(case, chunk):
    # FAFED divides by sqrt(v) + 0.01: what rounding leaves grows a hundredfold
    found = ends(case, torch.float64, f"vectorised:{chunk}")
    agree_within(found, serially(case, torch.float64), 1e-10 if case == "fafed" else 1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("case", METHODS)
def test_in_float32_vectorised_stays_within_the_documented_bound(case):
    one, other = ends(case, torch.float32, "vectorised:3"), serially(case, torch.float32)
    bound = 1e-3 if case == "fafed" else 1e-5
    torch.testing.assert_close(one[0].x, other[0].x, rtol=0, atol=bound)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", ["fedavg", "scaffold", "fafed", "fedsmoo"])
def test_workers_in_chunks_have_the_bits_of_vectorised(case, workers, engine_of):
    both = ends(case, torch.float32, engine_of(f"workers:{workers}+vectorised:2"))
    agree(both, ends(case, torch.float32, "vectorised:2"))


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=SLOW)])
@pytest.mark.parametrize("case", METHODS)
def test_serial_has_the_bits_of_a_naive_loop(case, dtype):
    agree(ends(case, dtype, Naive()), serially(case, dtype))


@pytest.mark.parametrize("case", ["scaffold", "fedsmoo", "feddc", "fedcm", "mimelite", "fafed"])
def test_a_list_of_weights_is_the_same_in_every_engine(case, engine_of):
    own = functools.partial(
        ends, case, torch.float64, weighting=(0.2, 3.0, 1.0, 0.5, 2.0, 7.0, 1.0)
    )
    alone = own(engine="serial")
    assert not torch.equal(alone[0].x, serially(case, torch.float64)[0].x)
    agree(own(engine=Naive()), alone)
    agree(own(engine=engine_of("workers:2")), alone)
    for a, b in zip(leaves(own(engine="vectorised:3")[0]), leaves(alone[0]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.quick
@pytest.mark.parametrize("case", METHODS)
def test_float32_and_float64_are_the_same_method(case):
    # FAFED divides by sqrt(v) + 0.01: at the others' rate rounding grows with every round
    slower = functools.partial(ends, engine="serial", local=dataclasses.replace(LOCAL, lr=0.01))
    run = slower if case == "fafed" else serially
    one, other = (run(case, dtype)[0] for dtype in DTYPES)
    torch.testing.assert_close(one.x.double(), other.x, rtol=0, atol=2e-4)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", METHODS)
def test_what_is_learnt_is_finite_of_one_length_or_a_number_and_of_one_type(case, dtype):
    srv, memory, _, _ = serially(case, dtype)
    d = len(srv.x)
    for v in leaves(srv, *(row.alg for row in memory.values())):
        assert v.shape in ((d,), ()) and v.dtype == dtype and bool(torch.isfinite(v).all())


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


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_no_bit(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again = ends("scaffold", torch.float32, "serial")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    agree(again, serially("scaffold", torch.float32))


@pytest.mark.parametrize("case", ["fedavg", "scaffold, option I", "fafed"])
def test_batches_fetched_ahead_change_no_bit(case, monkeypatch):
    from fedloom.engines import Vectorised, vectorised

    runs = []
    for processors in (1, 2):
        monkeypatch.setattr(vectorised, "processors", lambda n=processors: n)
        runs.append(ends(case, torch.float32, Vectorised(3)))
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


@pytest.mark.parametrize("parts", [{}, {"submodel": HeteroFL(), "capacities": [0.5, 1.0]}])
@pytest.mark.parametrize("name", ["serial", "vectorised:2", "workers:2"])
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


class Noisy(FedAvg):
    """Draws from torch's generator wherever no gradient seeds it, which a method should not."""

    def server_init(self, x, up):
        return rec(x=x + 0.1 * torch.randn_like(x))

    def broadcast(self, srv):
        return rec(x=srv.x + 0.1 * torch.randn_like(srv.x))

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta + 0.1 * torch.randn_like(srv.x))

    def model(self, srv):
        return srv.x + 0.1 * torch.randn_like(srv.x)

    def probe(self, x, grad):
        return rec(g=torch.randn_like(x))

    def client_init(self, x):
        return rec(n=torch.randn_like(x))

    def start(self, msg, mem, job):
        return msg.x + 0.1 * (torch.randn_like(msg.x) + mem.n), rec()


def test_draws_from_torchs_generator_are_the_runs_own(engine_of, tmp_path):
    """The same bits whatever the process drew before, in workers, and after a stop."""
    make = lambda **given: small(Noisy(), checkpoint=EVERY_ROUND, **given)
    whole = make().run()
    torch.manual_seed(99)
    for given in ({}, {"engine": engine_of("workers:2")}):
        again = make(**given).run()
        assert same(again.state, whole.state) and timeless(again.history) == timeless(whole.history)
    make(rounds=2).run(tmp_path / "run")
    torch.manual_seed(98)
    assert same(make().resume(tmp_path / "run").state, whole.state)
    assert not torch.equal(whole.state.x, small(Noisy(), seed=12).run().state.x)


class Drawing(nn.Module):
    """Blurs its inputs whenever it is called, as a randomised network does."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, inputs):
        return self.inside(inputs + 0.5 * torch.randn_like(inputs))


class Mean:
    """A metric of the whole set."""

    higher_is_better = True

    def reset(self):
        self.seen = []

    def update(self, preds, target):
        self.seen.append(preds[:, 0])

    def compute(self):
        return torch.cat(self.seen).mean()


def drawing(**changes):
    """1,200 test samples are three batches of an evaluation, and each client has some of them."""
    made, many = clusters(sizes=[4, 8, 12]), lambda v: torch.cat([v] * 30)
    targets = many(made.test_targets)
    data = dataclasses.replace(
        made,
        test_inputs=many(made.test_inputs),
        test_targets=targets,
        test_clients=proportional(made.targets, made.clients, targets, 0),
    )
    algorithm = changes.pop("algorithm", FedAvg())
    return small(algorithm, **({"model": Drawing(mlp()), "data": data, "cohort": 2} | changes))


NORMED = nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9, track_running_stats=False), nn.Tanh())
DRAWING = {
    "plain": {},
    "statistics": {"model": Drawing(nn.Sequential(NORMED, nn.Linear(9, 3)))},
    "personal": {"algorithm": Ditto()},
    "of the whole set": {"metrics": {"mean": Mean()}},
    "sub-models": {"submodel": FIARSE(), "capacities": [0.5, 1.0]},
    "measured": {"measures": Plane(every=1, examples=60, points=2), "cohort": 3},
}


@pytest.mark.parametrize("kind", DRAWING)
def test_what_a_model_draws_when_it_is_evaluated_is_the_runs_own(kind, engine_of, tmp_path):
    """The same bits whatever the process drew before, in workers, and after a stop."""
    make = lambda **given: drawing(checkpoint=EVERY_ROUND, **(DRAWING[kind] | given))
    torch.manual_seed(98)
    whole, after = make().run(), torch.rand(2)
    for given in ({}, {"engine": engine_of("workers:2")}, {"engine": engine_of("workers:3")}):
        torch.manual_seed(99)
        assert timeless(make(**given).run().history) == timeless(whole.history)
    make(rounds=2).run(tmp_path / "run")
    assert timeless(make().resume(tmp_path / "run").history) == timeless(whole.history)
    assert timeless(make(seed=12).run().history) != timeless(whole.history)
    torch.manual_seed(98)
    assert torch.equal(torch.rand(2), after)


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


@pytest.mark.quick
@pytest.mark.parametrize("case", METHODS)
def test_the_loss_falls(case):
    local = Local(epochs=2, batch=4, lr=0.1)
    loop = [*trace(small(method(case), local=local, cohort=1.0), 12)][-1]
    losses = [row["test_loss"] for row in loop.log.history]
    assert losses[-1] < 0.7 * losses[0]
