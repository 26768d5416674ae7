"""Sub-models in a run: each coordinate goes the way of a federation of its holders, what a mask has
dropped rests, and what the log says of sizes is counted by hand.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from cases import CASES
from fedloom import Experiment, FedAvg, Local, LocalSGD
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks import tiny_federation
from fedloom.core.net import Variables
from fedloom.core.vector import leaves, rec
from fedloom.data import from_clients
from fedloom.engines.client_results import Request, TrainTask
from fedloom.evaluation.scorer import samples
from fedloom.evaluation.settings import Evaluation
from fedloom.evaluation.sizes import part_of
from fedloom.models import with_statistics
from fedloom.objectives import Function
from fedloom.submodels import FIARSE, SUBMODELS, HeteroFL, SubModel, behind_mask, whole
from tiny import A, B, models, near, opened, quadratics, small, trace

CLIENTS = [0.5, 0.5, 1.0, 1.0]  # the first two hold only the first coordinate
HELD = np.array([[1, 0], [1, 0], [1, 1], [1, 1]])
WEIGHTS = (4.0, 2.0, 0.5, 1.0)  # the two that hold all weigh less than one mean client
FIVE = Local(steps=5, lr=0.1, batch=1)


class First(SubModel):
    fixed = True

    def view(self, x, net, capacity, rnd):
        if capacity == 1:
            return whole(net.layout)
        return behind_mask(torch.arange(int(capacity * net.layout.d)), net.layout)


class Changing(First):
    """The same for a rule that does not promise it: anybody may hold anything one day."""

    fixed = False


def run(method, copies=(1, 1, 1, 1), rule=None, **changes):
    name, options = METHODS.get(method, (method, {}))
    parts = {"submodel": rule or First(), "capacities": CLIENTS} | changes
    return quadratics(make_algorithm(name, **options), copies, **parts)


def alone(method, copies=(1, 1), **changes):
    name, options = METHODS.get(method, (method, {}))
    pairs = [
        (np.tile(A[i], (n, 1)), np.tile(B[i], (n, 1))) for i, n in zip((2, 3), copies, strict=True)
    ]
    data = from_clients(pairs, dtype=torch.float64)
    return quadratics(make_algorithm(name, **options), data=data, **changes)


METHODS = {
    "fedavg": ("fedavg", {}),
    "scaffold": ("scaffold", {}),
    "scaffold, option I": ("scaffold", {"option": 1}),
    "feddyn": ("feddyn", {"alpha": 0.5}),
    "feddc": ("feddc", {"alpha": 0.1}),
}
# a tenth more than the slowest case needs to stay within 1e-9
ROUNDS = {"scaffold": 130, "scaffold, option I": 140, "feddyn": 330, "feddc": 200}


@pytest.mark.parametrize("method", METHODS)
def test_a_coordinate_goes_the_way_of_its_holders(method):
    mixed, two = models(run(method, local=FIVE), 12), models(alone(method, local=FIVE), 12)
    near(mixed[:, 1], two[:, 1])
    assert np.abs(two[-1, 1]) > 0.1


def test_fednova_counts_the_steps_of_those_who_hold_a_coordinate():
    parts = {"local": Local(epochs=2, lr=0.1, batch=1), "weighting": "uniform"}
    mixed = models(run("fednova", (5, 5, 1, 2), **parts), 6)
    near(mixed[:, 1], models(alone("fednova", (1, 2), **parts), 6)[:, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        (First(), {"cohort": 2, "weighting": "uniform"}),
        (Changing(), {"cohort": 2, "weighting": "uniform"}),
        (First(), {"cohort": 3, "weighting": WEIGHTS}),
    ],
)
@pytest.mark.parametrize("method", ROUNDS)
def test_partial_cohorts_reach_the_minimiser_of_each_coordinates_holders(method, rule, parts):
    end = models(run(method, rule=rule, **parts), ROUNDS[method])[-1]
    w = HELD * np.array(WEIGHTS if parts["weighting"] == WEIGHTS else (1, 1, 1, 1))[:, None]
    near(end, (w * A * B).sum(0) / (w * A).sum(0), 1e-8)


@pytest.mark.parametrize(
    ("rule", "weighting"), [(FIARSE(), "uniform"), (First(), "uniform"), (First(), WEIGHTS)]
)
@pytest.mark.parametrize(
    ("method", "field", "own"), [("scaffold", "c", "c"), ("feddyn", "h", "h"), ("feddc", "g", "g")]
)
def test_what_the_server_adds_up_is_the_weighted_mean_over_the_holders(
    method, field, own, rule, weighting
):
    w = np.array(WEIGHTS if weighting == WEIGHTS else (1, 1, 1, 1))[:, None]
    # over its holders, where they are the same in all rounds; else over all
    count = (w * HELD).sum(0) if rule.fixed else w.sum()
    for loop in trace(run(method, cohort=2, rule=rule, weighting=weighting), 9):
        rows = loop.memory.get(range(4))
        total = sum((w[i] * getattr(row.alg, own).numpy() for i, row in rows.items()), np.zeros(2))
        near(getattr(loop.state.srv, field), total / count)
    assert len(rows) == 4


def test_a_mean_over_a_coordinates_holders_has_their_weights():
    # MimeLite's momentum of the second coordinate is the two holders' weighted gradient, at x = 0
    local = Local(steps=1, lr=0.1, batch=1)
    *_, loop = trace(run("mimelite", local=local, weighting=WEIGHTS), 1)
    w = HELD * np.array(WEIGHTS)[:, None]
    share = 1 - make_algorithm("mimelite").beta
    near(loop.state.srv.m, share * (w * A * -B).sum(0) / w.sum(0))


@pytest.mark.parametrize("method", ["fedavgm", "fedacg", "fedadam", "feddyn", "feddc", "fednova"])
def test_a_coordinate_nobody_held_stays_as_it_was(method):
    # whatever the server remembers of it: as in a federation in which nobody answers
    before, rested = None, 0
    for loop in trace(run(method, cohort=1), 30):
        if before is not None and loop.cohorts.of(loop.state.round - 1)[0] < 2:
            for v, old in zip(leaves(loop.state.srv), before, strict=True):
                assert v.shape != (2,) or torch.equal(v[1], old[1])
            rested += 1
        before = list(leaves(loop.state.srv))
    assert 5 < rested < 25


# ---------------------------------------------------------- what is held, and nobody's move counts
class Heavy(LocalSGD):
    def server_init(self, x, up):
        return rec(x=x, m=torch.zeros_like(x))

    def server_step(self, srv, up, rnd):
        m = 0.9 * srv.m + up.delta
        return rec(x=srv.x + m, m=m)


class Unused(Heavy):
    def unweighted(self, up, job):
        return rec(nothing=up.delta)


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("scheme", [FIARSE(count="nonzero"), HeteroFL(owners=True)])
def test_a_field_that_nothing_reads_changes_no_model(scheme, engine):
    """Also where coordinates are held and nobody's move counts."""
    settings = {"submodel": scheme, "capacities": (0.5, 1.0), "cohort": 2, "engine": engine}
    runs = (small(method(), torch.float64, **settings) for method in (Heavy, Unused))
    one, other = (models(run, 6) for run in runs)
    assert np.array_equal(one, other)


class Silent(First):
    """Short moves do not count."""

    def covered(self, delta):
        return (delta.abs() > 0.45).to(delta.dtype)


def test_what_is_held_goes_on_where_nobodys_move_counts():
    """Its move is 0, and the momentum of the server moves it."""
    local = Local(steps=1, lr=0.1, batch=1)
    x = models(quadratics(Heavy(), local=local, submodel=Silent(), capacities=[1.0] * 4), 12)
    y, m = np.zeros(2), np.zeros(2)
    for t in range(12):
        moves = -0.1 * A * (y - B)
        counted = np.abs(moves) > 0.45
        m = 0.9 * m + np.where(counted.any(0), (moves * counted).sum(0) / counted.sum(0).clip(1), 0)
        y = y + m
        near(x[t + 1], y)


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_weight_decay_leaves_what_fiarse_has_dropped(engine):
    # without a gradient only the decay moves: x shrinks until it is below tau, and stays there
    start = np.array([1.0, -2.0, 1.05, 0.4, 3.0, -1.1, 0.2, 1.5, 0.9, 0.1])
    tau, lr, wd = 1.05, 0.1, 0.6  # the fifth largest of ten
    parts = {
        "model": Variables(torch.tensor(start)),
        "objective": Function(f=lambda x, a, b: 0 * x.sum() * b.sum()),
        "local": Local(steps=6, lr=lr, batch=1, weight_decay=wd),
        "capacities": [0.5] * 4,
    }
    end = models(run("fedavg", rule=FIARSE(), engine=engine, **parts), 1)[-1]
    want = start.copy()
    for _ in range(6):
        want -= lr * wd * np.where(np.abs(want) >= tau, want, 0)
    stopped = np.abs(want) > np.abs(start) * 0.94**6 + 1e-9
    assert 0 < stopped[np.abs(start) >= tau].sum() < 5
    near(end, want)


# -------------------------------------------------------------------------------- sizes in the log
@pytest.mark.parametrize("case", [*SUBMODELS, "fiarse, shards", "heterofl, budget"])
def test_the_sizes_are_in_the_log_and_a_smaller_client_costs_less(case):
    given = CASES[case].make(rounds=2)
    row = tiny_federation.run(given).history[-1]
    for kind in ("test_accuracy", "local_accuracy", "explored", "trained", "replaced"):
        for size in ("0.25", "0.5", "1"):
            assert 0 <= row[f"{kind}@{size}"] <= 1
    sizes = [row[f"test_accuracy@{size}"] for size in ("0.25", "0.5", "1")]
    assert row["test_accuracy@mean"] == pytest.approx(sum(sizes) / 3)
    with opened(given) as loop:
        task = TrainTask(loop.message()[0], loop.state.buffers, {}, [0, 1, 2], 0)
        stats = loop.engine.map(Request.TRAIN, task).stats
    up = [sum(s.bytes_up.values()) for s in stats]  # capacities 1, 1/2, 1/4
    down = [sum(s.bytes_down.values()) for s in stats]
    assert up[0] > up[1] >= up[2] and down[0] > down[1] >= down[2]  # a small net has few widths


def test_the_columns_are_the_means_over_sizes_and_over_the_clients_of_a_size():
    trial = tiny_federation.experiment(submodel=FIARSE(), capacities=[1.0, 0.5, 0.25], rounds=2)
    result = trial.run()
    loop, row = trial.loop, result.history[-1]
    data, x = loop.fed.data, loop.state.srv.x
    values, own = {}, {}
    for capacity in (1.0, 0.5, 0.25):
        view = FIARSE().view(x, loop.net, capacity, 2)
        module = loop.net.export(view.seen(view.take(x)))
        right = (module(data.test_inputs).argmax(1) == data.test_targets).double()
        values[capacity] = float(right.mean())
        per_class = torch.stack([right[data.test_targets == c].mean() for c in range(3)])
        shares = data.label_counts().double()
        own[capacity] = (shares * per_class.nan_to_num()).sum(1) / shares.sum(1)
        assert row[f"test_accuracy@{capacity:g}"] == pytest.approx(values[capacity])
        mine = [float(own[capacity][i]) for i in range(6) if loop.fed.capacity(i) == capacity]
        assert row[f"local_accuracy@{capacity:g}"] == pytest.approx(sum(mine) / 2)
    assert row["test_accuracy@mean"] == pytest.approx(sum(values.values()) / 3)
    every = [float(own[loop.fed.capacity(i)][i]) for i in range(6)]
    assert row["local_accuracy@mean"] == pytest.approx(sum(every) / 6)


class Window(SubModel):
    """Holds 4 of 10 coordinates, one further in round 1, two more in round 2, and so on."""

    def view(self, x, net, capacity, round):
        t = round
        held = (torch.arange(4) + t * (t + 1) // 2) % 10
        return behind_mask(held.sort().values, net.layout)


def test_exploration_and_difference_are_counted_by_hand():
    data = from_clients([(np.zeros((1, 1)), np.zeros((1, 10))) for _ in range(4)])
    trial = Experiment(
        algorithm=FedAvg(),
        model=Variables(torch.ones(10)),
        data=data,
        rounds=4,
        cohort=[[1], [0], [1], [1]],
        objective=Function(f=lambda x, inputs, targets: (x * targets.mean(0)).sum()),
        submodel=Window(),
        capacities=[0.4, 0.5],  # two sizes; clients 0 and 2 have the first
        device="cpu",
    )
    rows = trial.run().history
    # windows 0-3, 1-4, 3-6, 6-9, 0-3; client 0 trained in the second round only, on 1-4
    assert [r["explored@0.4"] for r in rows] == [0.5, 0.7, 1.0, 1.0]
    assert [r["trained@0.4"] for r in rows] == [0.0, 0.4, 0.4, 0.4]
    assert [r["trained@0.5"] for r in rows] == [0.4, 0.4, 0.7, 1.0]
    assert [r["replaced@0.4"] for r in rows] == [0.25, 0.5, 0.75, 1.0]
    assert [r["untrained"] for r in rows] == pytest.approx([0.5, 0.3, 0.0, 0.0])
    rows = dataclasses.replace(trial, evaluate=Evaluation(explored=False)).run().history
    assert not any("explored@" in name for row in rows for name in row)


# ---------------------------------------------------------------------------- statistics of batches
def net() -> nn.Module:
    torch.manual_seed(4)
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Linear(3, 6), norm, nn.ReLU(), nn.Linear(6, 3)).double()


def built(rule, statistics: str):
    """Three clients with test sets of 5, 4 and 2, and batches of three."""
    draw = np.random.default_rng(1)
    sample = lambda n, at: (draw.normal(size=(n, 3)) + at, draw.integers(3, size=n))
    data = from_clients(
        [sample(n, at) for n, at in ((7, 0), (6, 3), (8, -3))],
        client_tests=[sample(n, at) for n, at in ((5, 0), (4, 3), (2, -3))],
        dtype=torch.float64,
    )
    loop = Experiment(
        algorithm=FedAvg(),
        model=net(),
        data=data,
        rounds=1,
        local=Local(steps=2, batch=3, lr=0.1),
        submodel=rule,
        capacities=[0.25, 1.0] if rule else None,
        evaluate=Evaluation(statistics=statistics),
        device="cpu",
    ).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    loop.until(1)
    return loop


def sub_model(loop, rule, capacity: float) -> nn.Module:
    return part_of(rule, loop.net, loop.state.srv.x, capacity, 1)[1].requires_grad_(False)


def assert_alike(loop):
    """The whole model has the scores of a client of capacity 1."""
    of_all, of_whole = loop.scores()["test"].each, loop.size_scores()[1.0].each
    assert of_all.keys() == of_whole.keys()
    assert all(torch.equal(of_all[name], of_whole[name]) for name in of_all)


@pytest.mark.parametrize("rule", [HeteroFL(scaler=False), FIARSE()], ids=repr)
def test_static_statistics_are_of_all_training_samples_and_of_the_size(rule):
    loop = built(rule, "static")
    data = loop.fed.data
    for capacity in (0.25, 1.0):
        module = with_statistics(sub_model(loop, rule, capacity), samples(loop.fed))
        right = (module(data.test_inputs).argmax(1) == data.test_targets).double()
        score = loop.size_scores()[capacity]
        assert torch.equal(next(iter(score.each.values())), right)
    assert_alike(loop)


@pytest.mark.parametrize("rule", [HeteroFL(scaler=False), FIARSE()], ids=repr)
def test_by_batches_are_those_of_one_client_as_large_as_in_training(rule):
    loop = built(rule, "batch")
    data = loop.fed.data
    for capacity in (0.25, 1.0):
        module = sub_model(loop, rule, capacity)
        want = torch.zeros(11, dtype=torch.float64)
        loss = 0.0
        for own in map(data.test_clients.of, range(3)):
            cuts = [3, 2] if len(own) == 5 else [len(own)]  # of 4, the last one joins the others
            for index in torch.split(own, cuts):
                out = module(data.test_inputs[index])
                want[index] = (out.argmax(1) == data.test_targets[index]).double()
                targets = data.test_targets[index]
                loss += float(nn.functional.cross_entropy(out, targets, reduction="sum"))
        score = loop.size_scores()[capacity]
        assert torch.equal(next(iter(score.each.values())), want)
        assert score.loss == pytest.approx(loss, rel=1e-12)
    assert_alike(loop)


@pytest.mark.parametrize("statistics", ["static", "batch"])
def test_a_run_without_sub_models_is_evaluated_alike(statistics):
    loop = built(None, statistics)
    got = loop.scores()["test"]
    with_sizes = built(FIARSE(), statistics)
    with_sizes.state = with_sizes.state._replace(srv=loop.state.srv, buffers=loop.state.buffers)
    want = with_sizes.scores()["test"]
    assert got.loss == want.loss and got.examples == want.examples
    other = built(None, "batch" if statistics == "static" else "static")
    assert other.scores()["test"].loss != got.loss
