"""local.clip_pull = false: what a method adds of x itself stays outside of the clip, as in the
authors' code. Recurrences in numpy from FL-Simulator's and Acar's steps, and the same methods as
subclasses that have no such part, with weight decay in its place.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithms import FedCM, FedDyn, FedSMOO, Scaffold, fedprox, fedspeed
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.schedules import Exponential
from fedloom.wrappers import Prox, Sam
from tiny import A, B, models, quadratics

LR, CLIP, WD, N, ROUNDS = 0.1, 1.5, 0.01, 4, 10
SIZES = np.array([2, 5, 3, 4])
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3], [0, 2]]
ALPHA, RHO = 0.3, 0.2


def short(v):
    return v * min(1.0, CLIP / (np.sqrt((v * v).sum()) + 1e-6))


def along(v):
    return v / (np.sqrt((v * v).sum()) + 1e-7)


def gradient(i, y, rho=0.0):
    g = A[i] * (y - B[i])
    return A[i] * (y + rho * along(g) - B[i]) if rho else g


def weighted(cohort, moves):
    w = SIZES[cohort][:, None]
    return (w * np.stack(moves)).sum(0) / w.sum()


def follow(strength=lambda i: ALPHA, rho=0.0, dual=True, smoo=False, plain=False):
    """y <- y - lr [clip(g + lambda (h_i - x)) + (wd + lambda) y], for every client of a round; with
    smoo the perturbation is FedSMOO's. plain: h is a plain mean, as with sizes in alpha.
    """
    p = np.ones(N) if plain else SIZES
    x, h, path = np.zeros(2), np.zeros((N, 2)), [np.zeros(2)]
    s, mu = np.zeros(2), np.zeros((N, 2))
    for t in range(ROUNDS):
        cohort, moves, corrected = COHORTS[t % len(COHORTS)], [], []
        for i in cohort:
            y, lam = x.copy(), strength(i)
            for k in range(SIZES[i]):
                if smoo:
                    e = rho * along(gradient(i, y) - mu[i] - s)
                    mu[i] = mu[i] + e - s
                    g = gradient(i, y + e)
                else:
                    g = gradient(i, y, rho)
                step = short(g + lam * (h[i] - x)) + (WD + lam) * y
                y = y - LR * 0.9**t * 0.95**k * step
            moves.append(y - x)
            corrected.append(mu[i] - e if smoo else mu[i])
        for i, move in zip(cohort, moves, strict=True):
            h[i] = h[i] + dual * move
        x = x + weighted(cohort, moves) + np.average(h, axis=0, weights=p)
        s = rho * along(weighted(cohort, corrected))
        path.append(x)
    return np.stack(path)


def run(algorithm, **changes):
    settings = {"clip": CLIP, "weight_decay": WD, "clip_pull": False} | changes
    engine = settings.pop("engine", "serial")
    schedule = Exponential(decay=0.9, step_decay=0.95)
    local = Local(epochs=1, batch=1, lr=LR, schedule=schedule, **settings)
    return models(
        quadratics(algorithm, tuple(SIZES), cohort=COHORTS, local=local, engine=engine), ROUNDS
    )


CASES = {
    "feddyn": (FedDyn(alpha=ALPHA), follow),
    "feddyn, Acar's sizes": (
        FedDyn(alpha=ALPHA, size_scaled=True),
        lambda: follow(lambda i: ALPHA * SIZES.mean() / SIZES[i], plain=True),
    ),
    "fedspeed": (fedspeed(alpha=ALPHA, rho=RHO), lambda: follow(rho=RHO)),
    "fedprox": (fedprox(mu=ALPHA), lambda: follow(dual=False)),
    "fedsmoo": (FedSMOO(rho=RHO, beta=1 / ALPHA), lambda: follow(rho=RHO, smoo=True)),
}


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
@pytest.mark.parametrize("name", CASES)
def test_the_pull_is_outside_of_the_clip_as_in_the_authors_code(name, engine):
    algorithm, reference = CASES[name]
    np.testing.assert_allclose(run(algorithm, engine=engine), reference(), rtol=0, atol=2e-15)
    if engine == "serial":  # else the clip would not have been there
        assert np.abs(run(algorithm, clip_pull=True) - reference()).max() > 0.05
        loose = run(algorithm, clip=1e6), run(algorithm, clip=1e6, clip_pull=True)
        np.testing.assert_allclose(*loose, rtol=0, atol=2e-15)


class ReleasedDyn(FedDyn):
    """FedDyn without +alpha x in its direction: weight decay has it."""

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + self.alpha * (mem.h - msg.x), loc


class ReleasedProx(FedAvg):
    """FedProx without +mu x in its direction."""

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - ALPHA * msg.x, loc


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FedDyn(alpha=ALPHA), ReleasedDyn(alpha=ALPHA)),
        (fedspeed(alpha=ALPHA, rho=RHO), Sam(inner=ReleasedDyn(alpha=ALPHA), rho=RHO)),
        (fedprox(mu=ALPHA), ReleasedProx()),
    ],
)
def test_it_is_weight_decay_around_the_rest(ours, theirs):
    other = run(theirs, clip_pull=True, weight_decay=WD + ALPHA)
    np.testing.assert_allclose(run(ours)[:4], other[:4], rtol=0, atol=3e-16)


@pytest.mark.parametrize(
    "method", [FedAvg(), Scaffold(), FedSMOO(dynamic=False), Prox(inner=FedCM(), mu=0.1)]
)
def test_a_method_without_such_a_part_is_named(method):
    with pytest.raises(CompositionError, match=f"{method.method}.*no pull"):
        run(method)


def test_it_says_nothing_without_a_clip():
    with pytest.raises(ConfigError, match=r"local\.clip_pull = False goes with local\.clip"):
        Local(clip_pull=False)
    assert Local(clip=1.0, clip_pull=False).around(Prox(inner=LocalSGD())).inner.method
