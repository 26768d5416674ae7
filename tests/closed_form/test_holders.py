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
from tiny import A, B, models, quadratics, small, trace

CLIENTS = [0.5, 0.5, 1.0, 1.0]  # the first two hold only the first coordinate
METHODS = {
    "fedavg": {},
    "scaffold": {},
    "scaffold, option I": {"option": 1},
    "feddyn": {"alpha": 0.5},
    "feddc": {"alpha": 0.1},
}
# a tenth more than the slowest case needs to stay within 1e-9
ROUNDS = {"scaffold": 130, "scaffold, option I": 140, "feddyn": 330, "feddc": 200}


class First(SubModel):
    """The first coordinates."""

    fixed = True

    def view(self, x, net, capacity, rnd):
        if capacity == 1:
            return whole(net.layout)
        return behind_mask(torch.arange(int(capacity * net.layout.d)), net.layout)


@pytest.mark.parametrize("method", METHODS)
def test_a_coordinate_goes_the_way_of_its_holders(method):
    name, options = method.partition(",")[0], METHODS[method]
    local = Local(steps=5, lr=0.1, batch=1)
    mixed = models(
        quadratics(
            make_algorithm(name, **options), local=local, submodel=First(), capacities=CLIENTS
        ),
        12,
    )
    alone = from_clients([(A[i][None], B[i][None]) for i in (2, 3)], dtype=torch.float64)
    two = models(quadratics(make_algorithm(name, **options), local=local, data=alone), 12)
    np.testing.assert_allclose(mixed[:, 1], two[:, 1], rtol=0, atol=1e-12)
    assert np.abs(two[-1, 1]) > 0.1  # it would be no test otherwise


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
        np.testing.assert_allclose(x[t + 1], y, rtol=0, atol=1e-12)


class Changing(First):
    """The same for a rule that does not promise it: anybody may hold anything one day."""

    fixed = False


@pytest.mark.slow
@pytest.mark.parametrize("rule", [First(), Changing()])
@pytest.mark.parametrize("method", ROUNDS)
def test_partial_cohorts_reach_the_minimiser_of_each_coordinates_holders(method, rule):
    name, options = method.partition(",")[0], METHODS[method]
    makes = {"cohort": 2, "submodel": rule, "capacities": CLIENTS, "weighting": "uniform"}
    run = quadratics(make_algorithm(name, **options), **makes)
    end = models(run, ROUNDS[method])[-1]
    both = (A * B).sum(0)[0] / A.sum(0)[0], (A[2:] * B[2:]).sum(0)[1] / A[2:].sum(0)[1]
    np.testing.assert_allclose(end, both, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "field", "own"), [("scaffold", "c", "c"), ("feddyn", "h", "h"), ("feddc", "g", "g")]
)
@pytest.mark.parametrize("rule", [FIARSE(), First()])
def test_what_the_server_adds_up_stays_the_mean_of_the_clients_own(method, field, own, rule):
    run = quadratics(
        make_algorithm(method), cohort=2, submodel=rule, capacities=CLIENTS, weighting="uniform"
    )
    for loop in trace(run, 9):
        there = loop.memory.get(range(4))
        each = [getattr(row.alg, own) for row in there.values()]
        total = torch.stack(each).sum(0) if each else torch.zeros(2, dtype=torch.float64)
        # over its holders, where they are the same in all rounds; else over all
        count = torch.tensor([4.0, 2.0 if rule.fixed else 4.0], dtype=torch.float64)
        torch.testing.assert_close(
            getattr(loop.state.srv, field), total / count, rtol=0, atol=1e-12
        )


WEIGHTS = (4.0, 2.0, 0.5, 1.0)  # the two that hold all weigh less than one mean client


@pytest.mark.slow
@pytest.mark.parametrize("method", ROUNDS)
def test_a_coordinate_has_the_weighted_minimiser_of_its_holders(method):
    name, options = method.partition(",")[0], METHODS[method]
    makes = {"cohort": 3, "submodel": First(), "capacities": CLIENTS, "weighting": WEIGHTS}
    end = models(quadratics(make_algorithm(name, **options), **makes), ROUNDS[method])[-1]
    w = np.array(WEIGHTS)[:, None] * [[1, 0], [1, 0], [1, 1], [1, 1]]
    np.testing.assert_allclose(end, (w * A * B).sum(0) / (w * A).sum(0), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("method", "field", "own"),
    [("scaffold", "c", "c"), ("feddyn", "h", "h"), ("feddc", "g", "g")],
)
def test_the_server_adds_up_the_weighted_mean_of_a_coordinates_holders(method, field, own):
    makes = {"submodel": First(), "capacities": CLIENTS, "weighting": WEIGHTS}
    of_all = torch.tensor([sum(WEIGHTS), sum(WEIGHTS[2:])], dtype=torch.float64)
    for loop in trace(quadratics(make_algorithm(method), cohort=2, **makes), 9):
        held = loop.memory.get(range(4))
        total = torch.zeros(2, dtype=torch.float64)
        for i, row in held.items():
            total = total + WEIGHTS[i] * getattr(row.alg, own)
        torch.testing.assert_close(
            getattr(loop.state.srv, field), total / of_all, rtol=0, atol=1e-12
        )
    assert len(held) == 4


def test_a_mean_over_a_coordinates_holders_has_their_weights():
    # MimeLite's momentum of the second coordinate is the two holders' weighted gradient
    makes = {"submodel": First(), "capacities": CLIENTS, "weighting": WEIGHTS}
    beta, local = 0.5, Local(steps=1, lr=0.1, batch=1)
    (*_, loop) = trace(quadratics(make_algorithm("mimelite", beta=beta), local=local, **makes), 1)
    w = np.array(WEIGHTS)[:, None] * [[1, 0], [1, 0], [1, 1], [1, 1]]
    g = (w * A * -B).sum(0) / w.sum(0)  # at x = 0
    np.testing.assert_allclose(loop.state.srv.m.numpy(), (1 - beta) * g, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_round_counts_the_holders_among_all_clients(seed):
    options = {"submodel": First(), "capacities": CLIENTS, "seed": seed}
    (*_, loop) = trace(quadratics(make_algorithm("scaffold"), cohort=2, **options), 1)
    each = [row.alg.c for row in loop.memory.get(range(4)).values()]
    own = torch.stack(each).sum(0) / torch.tensor([4.0, 2.0])
    torch.testing.assert_close(loop.state.srv.c, own, rtol=0, atol=1e-15)


def test_fednova_counts_the_steps_of_those_who_hold_a_coordinate():
    # with another client of more steps beside, a coordinate of its own goes as it does alone
    local = Local(epochs=2, lr=0.1, batch=1)
    makes = {"local": local, "weighting": "uniform"}
    mixed = models(
        quadratics(
            make_algorithm("fednova"),
            (5, 5, 1, 2),
            submodel=First(),
            capacities=CLIENTS,
            **makes,
        ),
        6,
    )
    pairs = [(np.tile(A[i], (n, 1)), np.tile(B[i], (n, 1))) for i, n in ((2, 1), (3, 2))]
    alone = from_clients(pairs, dtype=torch.float64)
    two = models(quadratics(make_algorithm("fednova"), data=alone, **makes), 6)
    np.testing.assert_allclose(mixed[:, 1], two[:, 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavgm", "fedacg", "fedadam", "feddyn", "feddc", "fednova"])
def test_a_coordinate_nobody_held_stays_as_it_was(method):
    # whatever the server remembers of it: as in a federation in which nobody answers
    run = quadratics(make_algorithm(method), cohort=1, submodel=First(), capacities=CLIENTS)
    before, rested = None, 0
    for loop in trace(run, 30):
        if before is not None and loop.cohorts.of(loop.state.round - 1)[0] < 2:
            for v, old in zip(leaves(loop.state.srv), before, strict=True):
                if isinstance(v, torch.Tensor) and v.shape == (2,):
                    assert torch.equal(v[1], old[1])
            rested += 1
        before = list(leaves(loop.state.srv))
    assert 5 < rested < 25


@pytest.mark.slow
def test_a_coordinate_that_few_hold_is_not_slower_with_scaffold():
    ends = [
        models(quadratics(make_algorithm("scaffold"), submodel=First(), capacities=c), 100)[-1]
        for c in (CLIENTS, [1.0] * 4)
    ]
    own = (A[2:] * B[2:]).sum(0) / A[2:].sum(0)
    np.testing.assert_allclose(ends[0][1], own[1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_weight_decay_leaves_what_fiarse_has_dropped(engine):
    # without a gradient only the decay moves: x shrinks until it is below tau, and stays there
    start = np.array([1.0, -2.0, 1.05, 0.4, 3.0, -1.1, 0.2, 1.5, 0.9, 0.1])
    tau, lr, wd = 1.05, 0.1, 0.6  # the fifth largest of ten
    nothing = Function(f=lambda x, a, b: 0 * x.sum() * b.sum())
    end = models(
        quadratics(
            make_algorithm("fedavg"),
            model=Variables(torch.tensor(start)),
            objective=nothing,
            local=Local(steps=6, lr=lr, batch=1, weight_decay=wd),
            submodel=FIARSE(),
            capacities=[0.5] * 4,
            engine=engine,
        ),
        1,
    )[-1]
    want = start.copy()
    for _ in range(6):
        want -= lr * wd * np.where(np.abs(want) >= tau, want, 0)
    stopped = np.abs(want) > np.abs(start) * 0.94**6 + 1e-9
    assert 0 < stopped[np.abs(start) >= tau].sum() < 5
    np.testing.assert_allclose(end, want, rtol=0, atol=1e-12)
