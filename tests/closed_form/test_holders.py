"""Where clients hold different coordinates of a separable function, each coordinate goes the way of
a federation of its holders; and what a mask has dropped rests.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Local, LocalSGD
from fedloom.algorithms.registry import make_algorithm
from fedloom.core.net import Variables
from fedloom.core.vector import leaves, rec
from fedloom.data import from_clients
from fedloom.objectives import Function
from fedloom.submodels import FIARSE, HeteroFL, SubModel, behind_mask, whole
from tiny import A, B, models, near, quadratics, small, trace

CLIENTS = [0.5, 0.5, 1.0, 1.0]  # the first two hold only the first coordinate
HELD = np.array([[1, 0], [1, 0], [1, 1], [1, 1]])
WEIGHTS = (4.0, 2.0, 0.5, 1.0)  # the two that hold all weigh less than one mean client
FIVE = Local(steps=5, lr=0.1, batch=1)


class First(SubModel):
    """The first coordinates."""

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
    """The two clients that hold everything."""
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
    """FedAvg with momentum at the server."""

    def server_init(self, x, up):
        return rec(x=x, m=torch.zeros_like(x))

    def server_step(self, srv, up, rnd):
        m = 0.9 * srv.m + up.delta
        return rec(x=srv.x + m, m=m)


class Unused(Heavy):
    """The same with a field that nothing reads."""

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
