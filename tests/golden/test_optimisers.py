"""The specification's golden numbers of the algorithms that exist, typed from its sections 2 and 4.

None of them comes from this code. They are float64 sums of a few terms; two orders of adding them
may differ by some units in the last place, hence 1e-13 for the steps.
"""

from __future__ import annotations

import numpy as np
import pytest
from problems import Spy, problem_q, theorem_1

from fedloom import FedAvg, Local
from fedloom.algorithms import FAFED, Scaffold
from fedloom.wrappers import PerStep
from tiny import models, trace


def near(found, expected, atol=1e-13):
    expected = np.ravel(expected)
    found = np.ravel([float(v) for v in np.ravel(found)])
    assert found.shape == expected.shape or expected.shape == (1,)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=0, atol=atol)


# --------------------------------------------------------------------- section 4: problem Q, K = 2
def test_fedavg():
    spy = Spy(inner=FedAvg())
    near(
        models(problem_q(spy), 3)[1:],
        [0.5850000000000001, 0.31525000000000003, 0.13991250000000005],
    )
    local = [(1.19, -0.02), (0.85385, -0.22335), (0.63535, -0.35553)]
    near([end["x"] for end in spy.ends], local, 6e-6)  # the third pair has five digits
    near([end["x"] for end in spy.ends[:4]], local[:2])


def test_scaffold():
    loops = [
        (float(loop.state.srv.x), float(loop.state.srv.c), [float(m.alg.c) for m in held.values()])
        for loop in trace(problem_q(Scaffold()), 3)
        if len(held := loop.memory.get(range(2)))
    ]
    x, c, c_i = zip(*loops, strict=True)
    near(x, [0.5850000000000001, 0.28500000000000003, 0.09029500000000001])
    near(c, [2.0749999999999993, 1.4999999999999998, 0.9735249999999998])
    near(c_i, [(-0.9500000000000008, 5.1), (-1.4955, 4.4955), (-1.779025, 3.726075)])


def fafed_steps(**options):
    """FAFED's two rounds on Q -> the server's states, and the four steps, each of both clients."""
    spy = Spy(inner=FAFED(alpha=0.1, beta=0.9, rho=0.01, **options))
    servers = [loop.state.srv for loop in trace(problem_q(spy), 2)]
    # a round's steps come client by client: (client 1: t1, t2), (client 2: t1, t2), ...
    of = lambda t, i: spy.steps[4 * (t // 2) + 2 * i + t % 2]
    return servers, [[of(t, i) for i in (0, 1)] for t in range(4)]


def test_fafed_as_printed():
    (start, one, two), steps = fafed_steps()
    near([start.m, start.v], [2.5, 18.5])
    near(np.sqrt(float(start.v)) + 0.01, 4.311162633521313)
    near([s["x"] for s in steps[0]], 0.75)
    t1, t2, t3, t4 = steps
    near([s["g"] for s in t1], [(-1.25, -1), (5.25, 6)])  # g, and g- at the point before
    near([s["loc"].m for s in t1], (1.9, 2.1))
    near([s["loc"].v for s in t1], (16.806250000000002, 19.40625))
    near([s["x"] for s in t2], (0.7059283617549797, 0.7012892419397145))
    near([s["g"] for s in t2], [(-1.2940716382450201, -1.25), (5.103867725819144, 5.25)])
    near(one.m, 1.9048980437870617)
    near(one.v, 17.681829358378423)
    near(np.sqrt(float(one.v)) + 0.01, 4.214976736960434)
    near(one.x, 0.6584152417718354)
    # its own point before, not the mean: the averaged one would give another g- and another m
    near([s["g"][0] for s in t3], (-1.3415847582281646, 4.9752457253155065))
    near([s["g"][1] for s in t3], (-1.2940716382450201, 5.103867725819144))
    near([s["loc"].m for s in t3], (1.537487955600709, 2.096173011486633))
    near([s["loc"].v for s in t3], (16.09363138889159, 18.3889534252676))
    near([s["x"] for s in t4], (0.621938457876002, 0.6086836977491689))
    near(two.m, 1.7239947755617542)
    near(two.v, 16.776654304797468)
    near(np.sqrt(float(two.v)) + 0.01, 4.105931433117194)
    near(two.x, 0.5733231682811077)


def test_fafed_with_a_preconditioned_first_step():
    (_, one, two), steps = fafed_steps(precondition_first_step=True)
    near([s["x"] for s in steps[0]], 0.9420110023091839)
    near([s["x"] for s in steps[1]], (0.8934855538363562, 0.8799388135654761))
    near([one.x, two.x], (0.8337262017539336, 0.7341887263772036))


def test_fafed_in_the_authors_order():
    (_, one, two), steps = fafed_steps(a_lag=True)
    near([s["x"] for s in steps[1]], (0.7059283617549797, 0.7012892419397145))
    near([s["x"] for s in steps[3]], (0.6229228445982578, 0.6096202403748389))
    near([one.x, two.x], (0.659423550542384, 0.5753248922303955))


def test_fafed_with_one_matrix_for_everything_is_stem():
    # section 4's numbers of STEM: FAFED where sqrt(v) does not count beside rho, at rate 0.1 rho
    rho = 1e10
    algorithm = FAFED(alpha=0.1, beta=0.9, rho=rho, precondition_first_step=True)
    spy = Spy(inner=algorithm)
    experiment = problem_q(spy, local=Local(steps=2, lr=0.1 * rho, batch=1))
    servers = [loop.state.srv for loop in trace(experiment, 2)]
    xs = [s["x"] for s in spy.steps]
    near(xs[0], 0.75, 1e-9)
    near([xs[1], xs[3]], (0.56, 0.54), 1e-9)
    near([spy.steps[0]["loc"].m, spy.steps[2]["loc"].m], (1.9, 2.1), 1e-9)
    near([servers[1].m, servers[1].x], (1.59, 0.391), 1e-9)
    near([spy.steps[4]["loc"].m, spy.steps[6]["loc"].m], (1.118, 1.446), 1e-8)
    near([xs[5], xs[7]], (0.2792, 0.2464), 1e-9)
    near([servers[2].m, servers[2].x], (1.0092, 0.16188), 1e-8)


@pytest.mark.parametrize(("eta", "end"), [(1.0, 0.857525), (2.0, 0.71505)])
def test_cfedavg_with_unequal_steps(eta, end):
    spy = Spy(inner=PerStep(inner=FedAvg(server_lr=eta)))
    local = Local(epochs=1, lr=0.1, batch=1)
    experiment = problem_q(spy, copies=(2, 4), local=local, weighting="uniform")
    near(models(experiment, 1)[1], end)
    near([e["up"].delta for e in spy.ends], (0.095, -0.37995))


# ----------------------------------------------------------------- section 2: Theorem 1's functions
FIVE = FAFED(alpha=0.1, beta=0.5, rho=0.01)
PRINTED = [
    9.915970903903018,
    9.898608474472702,
    9.881246045042387,
    9.86388361561207,
    9.846521186181754,
]
PRECONDITIONED = [
    9.965275141139367,
    9.947912711709051,
    9.930550282278736,
    9.913187852848418,
    9.895825423418103,
]


@pytest.mark.parametrize(
    ("preconditioned", "first", "after"),
    [(False, 9.933333333333334, PRINTED), (True, 9.982637570569684, PRECONDITIONED)],
)
def test_fafed_walks_towards_the_minimiser(preconditioned, first, after):
    spy = Spy(inner=FAFED(alpha=0.1, beta=0.5, rho=0.01, precondition_first_step=preconditioned))
    near(models(theorem_1(spy), 5)[1:], after)
    near([s["x"] for s in spy.steps[:3]], first)
    for loop in trace(theorem_1(FIVE), 3):
        near([loop.state.srv.m, loop.state.srv.v], [2 / 3, 14.666666666666666])
        near(np.sqrt(float(loop.state.srv.v)) + 0.01, 3.839708431025352)


def test_fafed_after_a_hundred_steps():
    path = models(theorem_1(FIVE), 100).ravel()
    near(path[-1], 8.197090390301712, 1e-12)
    assert (np.diff(path) < 0).all()


@pytest.mark.slow
def test_fafed_after_a_thousand_steps():
    path = models(theorem_1(FIVE), 1000)
    near(path[500], 1.2521186181753612, 1e-10)
    near(path[1000], 0.006092717958449419, 1e-10)


def test_fafed_between_two_exchanges():
    spy = Spy(inner=FIVE)
    path = models(theorem_1(spy, q=3), 2)
    near(path[1:], (9.881246045042387, 9.829158756751438))
    one, two = (spy.steps[3 * i : 3 * i + 3] for i in (0, 1))
    near([one[0]["loc"].m, two[0]["loc"].m], (1.2000000000000002, 0.3999999999999999))
    near([one[0]["loc"].v, two[0]["loc"].v], (25.333333333333332, 9.333333333333332))
    near([one[1]["x"], two[1]["x"]], (9.902080960358765, 9.922915875675145))
    near([one[1]["loc"].m, two[1]["loc"].m], (1.6799999999999997, 0.16000000000000014))
    near([one[1]["loc"].v, two[1]["loc"].v], (30.666666666666664, 6.666666666666666))
    near([one[2]["x"], two[2]["x"]], (9.85832763819437, 9.918748892611868))
    four, five = (spy.steps[9 + n : 9 + 6 : 3] for n in (1, 2))
    near([s["x"] for s in four], (9.849993672067818, 9.870828587384198))
    near([s["x"] for s in five], (9.806240349903423, 9.866661604320921))
    # in closed form, s steps after an exchange: m_i = g + (1 - 0.9^s)(g_i - g), v_i alike with 0.5
    for steps, g in ((one, 6.0), (two, -2.0)):
        for s, step in enumerate(steps, 1):
            near(step["loc"].m, 2 / 3 + (1 - 0.9**s) * (g - 2 / 3))
            near(step["loc"].v, 44 / 3 + (1 - 0.5**s) * (g * g - 44 / 3))


FLOORS = [  # q, rate, rho, |x| where it stays
    (5, 0.1, 0.01, 0.5314),
    (10, 0.1, 0.01, 1.4775),
    (5, 0.1, 0.1, 0.4991),
    (10, 0.1, 0.1, 1.4156),
    (5, 0.1, 1.0, 0.1760),
    (10, 0.1, 1.0, 1.0595),
]


@pytest.mark.slow
@pytest.mark.parametrize(("q", "lr", "rho", "floor"), FLOORS)
def test_fafed_stops_at_a_floor_where_the_rate_is_constant(q, lr, rho, floor):
    algorithm = FAFED(alpha=0.1, beta=0.5, rho=rho)
    path = np.abs(models(theorem_1(algorithm, q, lr), 1600 // q).ravel())
    assert path[-1] == pytest.approx(floor, abs=6e-5)
    assert path[-2] == pytest.approx(floor, abs=6e-5)
