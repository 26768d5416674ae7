"""Methods against their recurrences (recurrences.py), on heterogeneous quadratics with partial
cohorts, unequal numbers of steps and weights, and rates that fall.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import recurrences as paper
from recurrences import ADAMW, ALIKE, CLIP, COHORTS, DECAY, LOCAL, SIZES

import fedloom.algorithms as ours
from fedloom import FedAvg, Local, LocalSGD
from fedloom.compression.codecs import Sign, Threshold, TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.errors import CompositionError, ConfigError
from fedloom.wrappers import (
    Average,
    Lookahead,
    Momentum,
    Nesterov,
    Prox,
    Sam,
    ServerAdam,
    ServerOpt,
)
from tiny import bits, near, quadratics, trace

KNOBS = {"server_lr": 0.1, "tau": 0.01}
served = lambda opt, inner: ServerOpt(inner=inner, opt=opt)


EQUAL = {"weighting": "uniform"}
WITH_MOMENTUM = {"local": dataclasses.replace(LOCAL, momentum=0.7)}
WITH_ADAMW = {"local": Local(steps=3, batch=1, optimiser="adamw", **ADAMW)}
HALF = TopK(ratio=0.5)
DOWN = {"compress": Link(down=HALF)}
coded = lambda codec, *feedback: EQUAL | {"compress": FieldCodec(codec, *feedback)}
signs = lambda p: np.abs(p).mean() * np.where(p < 0, -1.0, 1.0)
above = lambda p: np.where(np.abs(p) > 0.1, p, 0.0)


def as_fafed(**options):
    return ours.FAFED(**options), lambda: paper.fafed(**options)


def as_plain(algorithm, move):
    """A method whose server makes this move of the mean of plain local steps."""
    return algorithm, lambda: paper.plain(move())


def as_smoo(**options):
    return ours.FedSMOO(rho=0.3, beta=2.0, **options), lambda: paper.fedsmoo(0.3, 2.0, **options)


def as_cfedavg(compress, codec, *feedback, per_step=False):
    method, settings = ours.CFedAvg(per_step=per_step), coded(codec, *feedback)
    return method, lambda: paper.cfedavg(compress, per_step, feedback=bool(feedback)), settings


SIZED_DYN, SIZED_DC = (kind(alpha=0.5, size_scaled=True) for kind in (ours.FedDyn, ours.FedDC))
OPTION_I = ours.Scaffold(option=1)
MEAN = served(Average(lr=0.7), LocalSGD())
CASES = {
    "fedavg": as_plain(FedAvg(server_lr=0.9), lambda: paper.times(0.9)),
    "fedavg, the rate of an optimiser": as_plain(MEAN, lambda: paper.times(0.7)),
    "fedavg, the way down coded": (FedAvg(), lambda: paper.downlink(False), DOWN),
    "fedsam": (ours.fedsam(rho=0.3, server_lr=0.8), lambda: paper.plain(paper.times(0.8), 0.3)),
    "fedcm": (ours.FedCM(alpha=0.3, server_lr=0.9), lambda: paper.fedcm(0.3, 0.0, 0.9)),
    "mofedsam": (ours.mofedsam(alpha=0.4, rho=0.2), lambda: paper.fedcm(0.4, 0.2)),
    "fedgamma": (ours.fedgamma(rho=0.3, server_lr=0.9), lambda: paper.scaffold(0.3, 0.9)),
    "fedspeed": (ours.fedspeed(alpha=0.5, rho=0.2), lambda: paper.feddyn(0.5, 0.2)),
    "fedspeed, mixed": (
        ours.fedspeed(alpha=0.5, rho=0.2, mix=0.3),
        lambda: paper.feddyn(0.5, 0.2, 0.3),
    ),
    "feddyn": (ours.FedDyn(alpha=0.5), lambda: paper.feddyn(0.5)),
    "feddyn, ahead": (
        Lookahead(inner=ours.FedDyn(alpha=0.5), lam=0.6),
        lambda: paper.feddyn(0.5, lam=0.6),
    ),
    "feddyn, by size": (SIZED_DYN, lambda: paper.feddyn(0.5, scaled=True)),
    "feddyn, by size, alike": (
        SIZED_DYN,
        lambda: paper.feddyn(0.5, scaled=True, weights=ALIKE),
        EQUAL,
    ),
    "feddc": (ours.FedDC(alpha=0.2), lambda: paper.feddc(0.2)),
    "feddc, the code's rate": (ours.FedDC(alpha=0.2, eta0=0.1), lambda: paper.feddc(0.2, 0.1)),
    "feddc, by size": (SIZED_DC, lambda: paper.feddc(0.5, scaled=True)),
    "feddc, by size, alike": (
        SIZED_DC,
        lambda: paper.feddc(0.5, scaled=True, weights=ALIKE),
        EQUAL,
    ),
    "stem": (ours.STEM(alpha=0.2), lambda: paper.stem(0.2)),
    "stem, SAM": (Sam(inner=ours.STEM(alpha=0.2), rho=0.3), lambda: paper.stem(0.2, None, 0.3)),
    "stem, alpha of the rate": (ours.STEM(c=30.0), lambda: paper.stem(None, 30.0)),
    "fafed": as_fafed(),
    "fafed, of equal weights": (ours.FAFED(), lambda: paper.fafed(weights=ALIKE), EQUAL),
    "fafed, heavy memory": as_fafed(alpha=0.1),
    "fafed, light memory": as_fafed(alpha=0.9, beta=0.1, rho=0.1),
    "fafed, Theorem 2's alpha": as_fafed(c=40.0),
    "fafed, the authors' factor": as_fafed(ext=0.95, alpha=0.1),
    "fafed, first step as the others": as_fafed(precondition_first_step=True),
    "fafed, the authors' order": as_fafed(a_lag=True),
    "fafed, a global rate": as_fafed(matrix="global", beta=0.5),
    "fafed, AdaGrad-Norm": as_fafed(matrix="norm", rho=0.1),
    "fednova": (ours.FedNova(server_lr=0.9), lambda: paper.fednova(0.9)),
    "fednova, momentum": (ours.FedNova(), lambda: paper.fednova(momentum=0.7), WITH_MOMENTUM),
    "fednova, momentum, alike": (
        ours.FedNova(),
        lambda: paper.fednova(momentum=0.7, weights=ALIKE),
        WITH_MOMENTUM | EQUAL,
    ),
    "cfedavg, a move by its steps": (
        ours.CFedAvg(server_lr=0.9, per_step=True),
        lambda: paper.cfedavg(lambda p: p, True, 0.9),
        EQUAL,
    ),
    "cfedavg, top-k": as_cfedavg(paper.top, HALF, Residual()),
    "cfedavg, top-k of a move by its steps, forgotten": as_cfedavg(paper.top, HALF, per_step=True),
    "cfedavg, signs of a move by its steps": as_cfedavg(signs, Sign(), Residual(), per_step=True),
    "cfedavg, signs, forgotten": as_cfedavg(signs, Sign()),
    "cfedavg, threshold": as_cfedavg(above, Threshold(tau=0.1), Residual()),
    "scaffold": (ours.Scaffold(server_lr=0.9), lambda: paper.scaffold(server_lr=0.9)),
    "scaffold, option I": (OPTION_I, lambda: paper.scaffold(option=1)),
    "scaffold, option I, SAM": (
        Sam(inner=OPTION_I, rho=0.3),
        lambda: paper.scaffold(0.3, option=1),
    ),
    "scaffold, the way down coded": (ours.Scaffold(), lambda: paper.downlink(True), DOWN),
    "scaffold, its move through Adam": (
        served(ServerAdam(lr=0.1, tau=0.01), ours.Scaffold()),
        lambda: paper.scaffold(move=paper.adaptive(paper.adam)),
    ),
    "fedsmoo": as_smoo(),
    "fedsmoo, no duals": as_smoo(dynamic=False),
    "fedsmoo, no correction": as_smoo(correction=False),
    "fedsmoo, neither": as_smoo(dynamic=False, correction=False),
    "naive_adaptive": (ours.NaiveAdaptive(beta=0.7), lambda: paper.naive_adaptive(0.7)),
    "naive_adaptive, eps": (
        ours.NaiveAdaptive(beta=0.7, eps=0.1),
        lambda: paper.naive_adaptive(0.7, 0.1),
    ),
    "fedadam": as_plain(ours.fedadam(**KNOBS), lambda: paper.adaptive(paper.adam)),
    "fedadam, v0": as_plain(ours.fedadam(**KNOBS, v0=0.0), lambda: paper.adaptive(paper.adam, 0)),
    "fedyogi": as_plain(ours.fedyogi(**KNOBS), lambda: paper.adaptive(paper.yogi)),
    "fedadagrad": as_plain(ours.fedadagrad(**KNOBS), lambda: paper.adaptive(np.add, beta1=0.0)),
    "fedams": as_plain(ours.fedams(server_lr=0.1, eps=0.1), lambda: paper.amsgrad(1, 0.1)),
    "fedams, option 2": as_plain(
        ours.fedams(server_lr=0.1, eps=0.1, option=2), lambda: paper.amsgrad(2, 0.1)
    ),
    "fedams, the code": as_plain(
        ours.fedams(server_lr=0.1, option=2, eps=0.0, start=1e-3, corrected=True),
        lambda: paper.amsgrad(2, 0.0, 1e-3, True),
    ),
    "fedacg, Table 4: the pull alone": (ours.fedprox(mu=0.2), lambda: paper.heavy_ball(0.0, 0.2)),
    "fedacg, Table 4: momentum alone": (ours.fedavgm(beta=0.6), lambda: paper.heavy_ball(0.6)),
    "fedacg, Table 4: momentum and pull": (
        served(Momentum(beta=0.6), Prox(inner=LocalSGD(), mu=0.2)),
        lambda: paper.heavy_ball(0.6, 0.2),
    ),
    "fedacg, Table 4: acceleration alone": (
        Lookahead(inner=LocalSGD(), lam=0.6),
        lambda: paper.heavy_ball(0.6, 0.0, True),
    ),
    "fedacg": (ours.FedACG(lam=0.6, beta=0.2), lambda: paper.heavy_ball(0.6, 0.2, True)),
    "fedexp": (ours.FedExP(eps=0.01), lambda: paper.fedexp(0.01)),
    "mime": (ours.Mime(beta=0.6), lambda: paper.mime(0.6)),
    "mimelite": (ours.MimeLite(beta=0.6), lambda: paper.mime(0.6, lite=True)),
    "fedlin": (ours.FedLin(), lambda: paper.mime(0.0)),
    "scaffnew": (ours.Scaffnew(), paper.scaffnew),
    "qfedavg": (ours.QFedAvg(q=0.5), lambda: paper.qfedavg(0.5)),
    "qfedavg, L": (ours.QFedAvg(q=2.0, lipschitz=5.0), lambda: paper.qfedavg(2.0, 5.0)),
    "afl": (ours.AFL(rate=0.05), lambda: paper.afl(0.05)),
    "diloco": as_plain(ours.diloco(server_lr=0.5, beta=0.6), lambda: paper.nesterov(0.6, 0.5)),
    "diloco, each worker's AdamW goes on": (
        ours.diloco(server_lr=0.7, beta=0.6),
        lambda: paper.diloco(keeps=True),
        WITH_ADAMW,
    ),
    "diloco, with an AdamW that begins anew": (
        served(Nesterov(lr=0.7, beta=0.6), FedAvg()),
        lambda: paper.diloco(keeps=False),
        WITH_ADAMW,
    ),
}


def follows(algorithm, reference, settings):
    experiment = quadratics(algorithm, SIZES, **({"cohort": COHORTS, "local": LOCAL} | settings))
    for loop, x in zip(trace(experiment, 11), reference(), strict=True):
        near(loop.state.srv.x, x)
    assert np.abs(x).max() > 0.05
    return loop


@pytest.mark.parametrize("name", CASES)
def test_a_method_follows_its_recurrence(name):
    algorithm, reference, *settings = CASES[name]
    follows(algorithm, reference, dict(*settings))


def test_fedexp_reports_the_rate_of_its_server():
    rows = follows(*CASES["fedexp"], {}).log.history
    assert all(row["server_lr"] >= 1 for row in rows) and rows[0]["server_lr"] > 1


# -------------------------------------------------------------------- the pull outside of the clip
CLIPPED = dataclasses.replace(LOCAL, clip=CLIP, weight_decay=DECAY, clip_pull=False)
PULL = np.full(4, 0.3)
PULLED = {
    "feddyn": (ours.FedDyn(alpha=0.3), lambda: paper.pulled(PULL)),
    "feddyn, by size": (
        ours.FedDyn(alpha=0.3, size_scaled=True),
        lambda: paper.pulled(0.3 * np.mean(SIZES) / np.array(SIZES), plain=True),
    ),
    "fedspeed": (ours.fedspeed(alpha=0.3, rho=0.2), lambda: paper.pulled(PULL, 0.2)),
    "fedprox": (ours.fedprox(mu=0.3), lambda: paper.pulled(PULL, dual=False)),
    "fedsmoo": (ours.FedSMOO(rho=0.2, beta=1 / 0.3), lambda: paper.pulled(PULL, 0.2, smoo=True)),
}


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
@pytest.mark.parametrize("name", PULLED)
def test_the_pull_is_outside_of_the_clip_as_in_the_authors_code(name, engine):
    follows(*PULLED[name], {"local": CLIPPED, "engine": engine})
    if engine == "serial":
        with pytest.raises(AssertionError):
            follows(*PULLED[name], {"local": dataclasses.replace(CLIPPED, clip_pull=True)})


NO_PULL = (FedAvg(), ours.Scaffold(), ours.FedSMOO(dynamic=False), Prox(inner=ours.FedCM(), mu=0.1))


@pytest.mark.parametrize("method", NO_PULL)
def test_a_method_without_a_pull_is_named(method):
    with pytest.raises(CompositionError, match=f"{method.method}.*no pull"):
        quadratics(method, local=CLIPPED).build()
    with pytest.raises(ConfigError, match=r"local\.clip_pull = False goes with local\.clip"):
        Local(clip_pull=False)


# --------------------------------------------------------------------------- second trajectories
@pytest.mark.parametrize("around", [{"momentum": 0.6}, {"optimiser": "adamw"}, {}])
def test_a_second_trajectory_moves_as_the_first(around):
    """Without a pull, of one client that begins at 0: the same bits."""
    local = Local(steps=4, batch=1, lr=0.1, clip=1.5, weight_decay=0.1, **around)
    *_, loop = trace(quadratics(ours.Ditto(lam=0.0), cohort=[[2]], local=local), 1)
    assert bits(loop.memory.get([2])[2].alg.v) == bits(loop.state.srv.x)
    assert float(loop.state.srv.x.abs().max()) > 0.05


def test_dittos_personal_models_follow_their_recurrence():
    lam, lr, clip, decay, beta = 0.7, 0.1, 1.5, 0.1, 0.6
    local = Local(steps=4, batch=1, lr=lr, clip=clip, weight_decay=decay, momentum=beta)
    x, v = np.zeros(2), [None] * 4

    def run(i, y, pull):
        """Four steps from y, with torch's order: clip, decay, momentum."""
        m = np.zeros(2)
        for _ in range(4):
            d = paper.gradient(i, y) + lam * (y - x) * pull
            d = d * min(1.0, clip / (np.sqrt((d * d).sum()) + 1e-6)) + decay * y
            m = beta * m + d
            y = y - lr * m
        return y

    for t, loop in enumerate(
        trace(quadratics(ours.Ditto(lam=lam), cohort=COHORTS, local=local), 8)
    ):
        near(loop.state.srv.x, x)
        for i, row in loop.memory.get(range(4)).items():
            near(row.alg.v, v[i])
        for i in paper.cohort(t):
            v[i] = run(i, x if v[i] is None else v[i], 1.0)
        x = x + np.mean([run(i, x, 0.0) - x for i in paper.cohort(t)], axis=0)
