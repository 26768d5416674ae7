"""Methods against their recurrences, written here in numpy from the papers' formulas.

Heterogeneous quadratics, partial cohorts, K_i = SIZES, weights SIZES, rates that fall with rounds
and steps; float64.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithms import (
    AFL,
    IFCA,
    STEM,
    Ditto,
    FedACG,
    FedCM,
    FedDC,
    FedDyn,
    FedExP,
    FedLin,
    FedNova,
    FedSMOO,
    Mime,
    MimeLite,
    NaiveAdaptive,
    QFedAvg,
    Scaffnew,
    Scaffold,
    diloco,
    fedadagrad,
    fedadam,
    fedams,
    fedavgm,
    fedgamma,
    fedprox,
    fedsam,
    fedspeed,
    fedyogi,
    mofedsam,
)
from fedloom.federation.schedules import Exponential
from fedloom.wrappers import Average, Lookahead, Momentum, Prox, Sam, ServerAdam, ServerOpt
from tiny import A, B, bits, quadratics, trace

LR, N = 0.1, 4
SIZES = (2, 5, 3, 4)
P = np.array(SIZES)[:, None] / sum(SIZES)
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3], [0, 2]]
SCHEDULE = Exponential(decay=0.9, step_decay=0.95)


def gradient(i, y):
    return A[i] * (y - B[i])


def along(v):
    """v / ||v||, as the SAM family's code has it."""
    return v / (np.sqrt((v * v).sum()) + 1e-7)


def sharp(i, y, rho, mix=1.0):
    """(1 - mix) g(y) + mix g(y + rho g(y) / ||g(y)||)."""
    g = gradient(i, y)
    return (1 - mix) * g + mix * gradient(i, y + rho * along(g))


def rates(i, t):
    return [LR * SCHEDULE(t, k) for k in range(SIZES[i])]


def sgd(i, t, start, grad):
    """K_i plain steps from start -> the move."""
    y = start.copy()
    for rate in rates(i, t):
        y = y - rate * grad(i, y)
    return y - start


def of_all(rows):
    """sum_i p_i row_i over all clients, p_i the share of the examples."""
    return (P * rows).sum(0)


def weighted(cohort, rows):
    w = np.array([SIZES[i] for i in cohort], float)[:, None]
    return (w * np.stack(rows)).sum(0) / w.sum()


# each is a generator of the server's model after every round; cohort(t) is who takes part
def cohort(t):
    return COHORTS[t % len(COHORTS)]


def follow_plain(move, grad=gradient, rounds=12):
    """x <- x + move(t, mean delta), from plain local steps along grad."""
    x = np.zeros(2)
    for t in range(rounds):
        yield x
        x = x + move(t, weighted(cohort(t), [sgd(i, t, x, grad) for i in cohort(t)]))


def follow_sam(rho, server_lr=1.0):
    return follow_plain(lambda t, d: server_lr * d, lambda i, y: sharp(i, y, rho))


def follow_cm(alpha, rho=0.0, server_lr=1.0):
    x, D = np.zeros(2), np.zeros(2)
    for t in range(12):
        yield x
        step = lambda i, y, D=D: alpha * sharp(i, y, rho) + (1 - alpha) * D
        moves = [sgd(i, t, x, step) for i in cohort(t)]
        each = [-m / sum(rates(i, t)) for i, m in zip(cohort(t), moves, strict=True)]
        D = weighted(cohort(t), each)
        x = x + server_lr * weighted(cohort(t), moves)


def follow_dyn(alpha, rho, mix, lam=0.0):
    """FedDyn with a SAM gradient: FedSpeed, h_i the sum of the client's moves. lam: from a point
    that is ahead by so much of the last move, which the duals are of, too.
    """
    x, h, m = np.zeros(2), np.zeros((N, 2)), np.zeros(2)
    for t in range(12):
        yield x
        start, moves = x + lam * m, []
        for i in cohort(t):
            step = lambda i, y, x=start, h=h: sharp(i, y, rho, mix) + alpha * (h[i] + y - x)
            moves.append(sgd(i, t, start, step))
        for i, move in zip(cohort(t), moves, strict=True):
            h[i] = h[i] + move
        m = lam * m + weighted(cohort(t), moves) + of_all(h)
        x = x + m


def follow_dc(alpha, eta0=None):
    x, g, h, g_i = np.zeros(2), np.zeros(2), np.zeros((N, 2)), np.zeros((N, 2))
    for t in range(12):
        yield x
        moves, change = [], np.zeros(2)
        for i in cohort(t):
            drift, c = h[i].copy(), g - g_i[i]
            step = lambda i, y, x=x, drift=drift, c=c: (
                gradient(i, y) + alpha * (y - (x - drift)) + c
            )
            move = sgd(i, t, x, step)
            scale = sum(rates(i, t)) if eta0 is None else SIZES[i] * eta0
            new = g_i[i] - g - move / scale
            change, g_i[i] = change + P[i] * (new - g_i[i]), new
            h[i] = h[i] + move
            moves.append(move)
        x = x + weighted(cohort(t), moves) + of_all(h)
        g = g + change
        np.testing.assert_allclose(g, of_all(g_i), rtol=0, atol=1e-12)


def follow_gamma(rho, server_lr=1.0):
    """SCAFFOLD, option II, on SAM's gradients: line 10 has g~ - c_i + c."""
    x, c, c_i = np.zeros(2), np.zeros(2), np.zeros((N, 2))
    for t in range(12):
        yield x
        moves, new = [], c_i.copy()
        for i in cohort(t):
            shift = c - c_i[i]
            moves.append(sgd(i, t, x, lambda i, y, shift=shift: sharp(i, y, rho) + shift))
            new[i] = c_i[i] - c - moves[-1] / sum(rates(i, t))
        c, c_i = c + (P * (new - c_i)).sum(0), new
        x = x + server_lr * weighted(cohort(t), moves)


def follow_nova(server_lr):
    """x + tau sum p_i delta_i / tau_i, tau_i the sum of its rates, tau = sum p_i tau_i over
    those who took part.
    """
    x = np.zeros(2)
    for t in range(12):
        yield x
        taus = np.array([sum(rates(i, t)) for i in cohort(t)])
        rows = [sgd(i, t, x, gradient) / tau for i, tau in zip(cohort(t), taus, strict=True)]
        weights = np.array([SIZES[i] for i in cohort(t)], float)
        tau = (weights * taus).sum() / weights.sum()
        x = x + server_lr * tau * weighted(cohort(t), rows)


def follow_smoo(rho, beta, dynamic=True, correction=True):
    """FedSMOO, Algorithm 1: lines 9 to 13 at the clients, 16 and 17 at the server; its ablations
    leave the duals of the model out, or those of the perturbation.
    """
    x, s, h, mu = np.zeros(2), np.zeros(2), np.zeros((N, 2)), np.zeros((N, 2))
    for t in range(12):
        yield x
        moves, duals = [], []
        for i in cohort(t):
            y = x.copy()
            for rate in rates(i, t):
                e = rho * along(gradient(i, y) - correction * (mu[i] + s))
                mu[i] = mu[i] + e - s
                y = y - rate * (gradient(i, y + e) + dynamic * (h[i] + y - x) / beta)
            moves.append(y - x)
            duals.append(mu[i] - e)
            h[i] = h[i] + dynamic * moves[-1]
        x = x + weighted(cohort(t), moves) + of_all(h)
        s = correction * rho * along(weighted(cohort(t), duals))


def follow_stem(alpha, c=None, rho=0.0):
    """d = g + (1 - a)(d - g at the last point); every client's last move is the server's."""
    x0, gradient = np.zeros(2), lambda i, y: sharp(i, y, rho)
    x, d = x0, weighted(range(N), [gradient(i, x0) for i in range(N)])
    prev, last, before = [x0] * N, [-1] * N, None
    for t in range(12):
        yield x
        ends, ds = [], []
        for i in cohort(t):
            y, own, rate_before = x.copy(), d.copy(), before
            old = prev[i] if last[i] == t - 1 else x
            if t == 0:
                y, rate_before = x - rates(i, 0)[0] * d, rates(i, 0)[0]
            for rate in rates(i, t):
                a = alpha if c is None else min(c * rate_before**2, 1.0)
                own = gradient(i, y) + (1 - a) * (own - gradient(i, old))
                old, y, rate_before = y, y - rate * own, rate
            ends.append(old)
            ds.append(own)
            prev[i], last[i] = old, t
        end = LR * SCHEDULE(t, max(SIZES[i] for i in cohort(t)) - 1)
        d = weighted(cohort(t), ds)
        x, before = x + weighted(cohort(t), [e - x for e in ends]) - end * d, end


def follow_naive(beta, eps=0.0):
    x, v = np.zeros(2), np.zeros((N, 2))
    for t in range(12):
        yield x
        ends = []
        for i in cohort(t):
            y = x.copy()
            for rate in rates(i, t):
                g = gradient(i, y)
                v[i] = beta * v[i] + (1 - beta) * g * g
                y = y - rate * g / (np.sqrt(v[i]) + eps)
            ends.append(y)
        x = weighted(cohort(t), ends)


def adaptive(second, v0, server_lr=0.1, beta1=0.9, tau=0.01):
    """Reddi et al., Algorithm 2: lines 10 to 14."""
    m, v = np.zeros(2), np.full(2, v0)

    def move(t, d):
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * d
        v = second(v, d * d)
        return server_lr * m / (np.sqrt(v) + tau)

    return follow_plain(move)


def amsgrad(option, eps, start, corrected, server_lr=0.1, beta1=0.9, beta2=0.99):
    """Wang, Lin & Chen, Algorithm 1; option 1 takes the floor into the maximum."""
    m, v, top = np.zeros(2), np.zeros(2), np.full(2, start)

    def move(t, d):
        nonlocal m, v, top
        m, v = beta1 * m + (1 - beta1) * d, beta2 * v + (1 - beta2) * d * d
        top = np.maximum(top, np.maximum(v, eps) if option == 1 else v)
        mm, vv = (
            (m / (1 - beta1 ** (t + 1)), top / (1 - beta2 ** (t + 1))) if corrected else (m, top)
        )
        return server_lr * mm / (np.sqrt(vv) + (eps if option == 2 else 0.0))

    return follow_plain(move)


def heavy_ball(beta, pull=0.0, ahead=False):
    """FedACG's Table 4: momentum at the server, with or without pull and look-ahead."""
    x, m = np.zeros(2), np.zeros(2)
    for t in range(12):
        yield x
        start = x + beta * m if ahead else x
        step = lambda i, y, start=start: gradient(i, y) + pull * (y - start)
        m = beta * m + weighted(cohort(t), [sgd(i, t, start, step) for i in cohort(t)])
        x = x + m


def follow_exp(eps):
    """FedExP, Algorithm 1, the squares weighted as the moves are: its authors' code."""
    x = np.zeros(2)
    for t in range(12):
        yield x
        moves = [sgd(i, t, x, gradient) for i in cohort(t)]
        mean = weighted(cohort(t), moves)
        square = weighted(cohort(t), [np.array([(m * m).sum()]) for m in moves])[0]
        x = x + max(1.0, square / (2 * ((mean * mean).sum() + eps))) * mean


def follow_mime(beta, lite=False, corrected=True):
    """Mime, Algorithm 1; FedLin is beta = 0, as each client's batches are all alike."""
    x, m = np.zeros(2), np.zeros(2)
    for t in range(12):
        yield x
        full = [gradient(i, x) for i in cohort(t)]
        c = weighted(cohort(t), full)
        fix = {i: 0.0 if lite else c - g for i, g in zip(cohort(t), full, strict=True)}
        step = lambda i, y, m=m, fix=fix: (1 - beta) * (gradient(i, y) + fix[i]) + beta * m
        x = x + weighted(cohort(t), [sgd(i, t, x, step) for i in cohort(t)])
        m = (1 - beta) * c + beta * m


def follow_scaffnew():
    x, h = np.zeros(2), np.zeros((N, 2))
    before = {}
    for t in range(12):
        yield x
        for i in cohort(t):
            if i in before and before[i][0] == t - 1:
                h[i] = h[i] + (x - before[i][1]) / before[i][2]
        moves = [sgd(i, t, x, lambda i, y, h=h: gradient(i, y) - h[i]) for i in cohort(t)]
        before |= {i: (t, x + m, sum(rates(i, t))) for i, m in zip(cohort(t), moves, strict=True)}
        x = x + weighted(cohort(t), moves)


def loss(i, y):
    return (A[i] / 2 * (y - B[i]) ** 2).sum()


def follow_q(q, lip=None):
    x = np.zeros(2)
    for t in range(12):
        yield x
        steps, hs = [], []
        for i in cohort(t):
            lipschitz = 1 / rates(i, t)[-1] if lip is None else lip
            d, f = lipschitz * sgd(i, t, x, gradient), loss(i, x) + 1e-10
            steps.append(f**q * d)
            hs.append(q * f ** (q - 1) * (d * d).sum() + lipschitz * f**q)
        x = x + np.sum(steps, axis=0) / np.sum(hs)


def follow_afl(rate):
    x, log = np.zeros(2), np.zeros(N)
    for t in range(12):
        yield x
        moves = np.stack([sgd(i, t, x, gradient) for i in cohort(t)])
        w = np.array([SIZES[i] * np.exp(log[i]) for i in cohort(t)])[:, None]
        for i in cohort(t):
            log[i] += rate * loss(i, x)
        x = x + (w * moves).sum(0) / w.sum()


def nesterov(beta, lr):
    m = np.zeros(2)

    def move(t, d):
        nonlocal m
        m = beta * m + d
        return lr * (d + beta * m)

    return follow_plain(move)


YOGI = lambda v, q: v - 0.01 * q * np.sign(v - q)
ADAM = lambda v, q: 0.99 * v + 0.01 * q
KNOBS = {"server_lr": 0.1, "tau": 0.01}
# a plain momentum and an adaptive one, seen from the command line's side
BALL = ServerOpt(inner=Prox(inner=LocalSGD(), mu=0.2), opt=Momentum(beta=0.6))

CASES = {
    "fedsam": (fedsam(rho=0.3, server_lr=0.8), lambda: follow_sam(0.3, 0.8)),
    "fedcm": (FedCM(alpha=0.3, server_lr=0.9), lambda: follow_cm(0.3, 0.0, 0.9)),
    "mofedsam": (mofedsam(alpha=0.4, rho=0.2), lambda: follow_cm(0.4, 0.2)),
    "fedgamma": (fedgamma(rho=0.3, server_lr=0.9), lambda: follow_gamma(0.3, 0.9)),
    "fedspeed": (fedspeed(alpha=0.5, rho=0.2), lambda: follow_dyn(0.5, 0.2, 1.0)),
    "fedspeed, mixed": (fedspeed(alpha=0.5, rho=0.2, mix=0.3), lambda: follow_dyn(0.5, 0.2, 0.3)),
    "feddc": (FedDC(alpha=0.2), lambda: follow_dc(0.2)),
    "feddc, the code's rate": (FedDC(alpha=0.2, eta0=0.1), lambda: follow_dc(0.2, 0.1)),
    "stem": (STEM(alpha=0.2), lambda: follow_stem(0.2)),
    "stem, with SAM": (Sam(inner=STEM(alpha=0.2), rho=0.3), lambda: follow_stem(0.2, None, 0.3)),
    "stem, alpha of the rate": (STEM(c=30.0), lambda: follow_stem(None, 30.0)),
    "fednova": (FedNova(server_lr=0.9), lambda: follow_nova(0.9)),
    "feddyn": (FedDyn(alpha=0.5), lambda: follow_dyn(0.5, 0.0, 1.0)),
    "feddyn, ahead": (
        Lookahead(inner=FedDyn(alpha=0.5), lam=0.6),
        lambda: follow_dyn(0.5, 0.0, 1.0, 0.6),
    ),
    "scaffold": (Scaffold(server_lr=0.9), lambda: follow_gamma(0.0, 0.9)),
    "fedsmoo": (FedSMOO(rho=0.3, beta=2.0), lambda: follow_smoo(0.3, 2.0)),
    "fedsmoo, no duals": (
        FedSMOO(rho=0.3, beta=2.0, dynamic=False),
        lambda: follow_smoo(0.3, 2.0, dynamic=False),
    ),
    "fedsmoo, no correction": (
        FedSMOO(rho=0.3, beta=2.0, correction=False),
        lambda: follow_smoo(0.3, 2.0, correction=False),
    ),
    "fedsmoo, neither": (
        FedSMOO(rho=0.3, beta=2.0, dynamic=False, correction=False),
        lambda: follow_smoo(0.3, 2.0, dynamic=False, correction=False),
    ),
    "naive_adaptive": (NaiveAdaptive(beta=0.7), lambda: follow_naive(0.7)),
    "naive_adaptive, eps": (NaiveAdaptive(beta=0.7, eps=0.1), lambda: follow_naive(0.7, 0.1)),
    "fedadam": (fedadam(**KNOBS), lambda: adaptive(ADAM, 1e-4)),
    "fedadam, v0 = 0": (fedadam(**KNOBS, v0=0.0), lambda: adaptive(ADAM, 0.0)),
    "fedyogi": (fedyogi(**KNOBS), lambda: adaptive(YOGI, 1e-4)),
    "fedadagrad": (fedadagrad(**KNOBS), lambda: adaptive(np.add, 1e-4, beta1=0.0)),
    "fedams, option 1": (fedams(server_lr=0.1), lambda: amsgrad(1, 1e-3, 0.0, False)),
    "fedams, option 2": (fedams(server_lr=0.1, option=2), lambda: amsgrad(2, 1e-3, 0.0, False)),
    "fedams, the code": (
        fedams(server_lr=0.1, option=2, eps=0.0, start=1e-3, corrected=True),
        lambda: amsgrad(2, 0.0, 1e-3, True),
    ),
    "fedacg, Table 4: the pull alone": (fedprox(mu=0.2), lambda: heavy_ball(0.0, 0.2)),
    "fedacg, Table 4: momentum alone": (fedavgm(beta=0.6), lambda: heavy_ball(0.6)),
    "fedacg, Table 4: momentum and pull": (BALL, lambda: heavy_ball(0.6, 0.2)),
    "fedacg, Table 4: acceleration alone": (
        Lookahead(inner=LocalSGD(), lam=0.6),
        lambda: heavy_ball(0.6, 0.0, True),
    ),
    "fedacg, Table 4: all": (FedACG(lam=0.6, beta=0.2), lambda: heavy_ball(0.6, 0.2, True)),
    "fedexp": (FedExP(eps=0.01), lambda: follow_exp(0.01)),
    "mime": (Mime(beta=0.6), lambda: follow_mime(0.6)),
    "mimelite": (MimeLite(beta=0.6), lambda: follow_mime(0.6, lite=True)),
    "fedlin": (FedLin(), lambda: follow_mime(0.0)),
    "scaffnew": (Scaffnew(), follow_scaffnew),
    "qfedavg": (QFedAvg(q=0.5), lambda: follow_q(0.5)),
    "qfedavg, L": (QFedAvg(q=2.0, lipschitz=5.0), lambda: follow_q(2.0, 5.0)),
    "afl": (AFL(rate=0.05), lambda: follow_afl(0.05)),
    "diloco": (diloco(server_lr=0.5, beta=0.6), lambda: nesterov(0.6, 0.5)),
    "FedAvg with server_lr as an optimiser": (
        ServerOpt(inner=LocalSGD(), opt=Average(lr=0.7)),
        lambda: follow_plain(lambda t, d: 0.7 * d),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_follows_its_recurrence(name):
    algorithm, reference = CASES[name]
    local = Local(epochs=1, batch=1, lr=LR, schedule=SCHEDULE)
    experiment = quadratics(algorithm, SIZES, cohort=COHORTS, local=local)
    moved = 0.0
    for loop, x in zip(trace(experiment, 11), reference(), strict=True):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), x, rtol=0, atol=1e-12)
        moved = max(moved, float(np.abs(x).max()))
    assert moved > 0.1


def test_sam_at_the_clients_is_the_wrapper():
    # local.sam is the same expression, whatever else is around the method
    sizes, sam = (2, 1, 3, 2), Sam(inner=Scaffold(), rho=0.2)
    local = {"epochs": 1, "batch": 1, "lr": LR}
    one = quadratics(sam, sizes, local=Local(**local))
    two = quadratics(Scaffold(), sizes, local=Local(**local, sam=0.2))
    for a, b in zip(trace(one, 5), trace(two, 5), strict=True):
        assert (a.state.srv.x == b.state.srv.x).all()


def test_scaffolds_control_variates_are_of_the_perturbed_gradient_too():
    # option I: c_i is the gradient at the received model, perturbed as those of the steps are
    x, c, c_i, rho = np.zeros(2), np.zeros(2), np.zeros((N, 2)), 0.3
    algorithm = Sam(inner=Scaffold(option=1), rho=rho)
    local = Local(epochs=1, batch=1, lr=LR, schedule=SCHEDULE)
    for t, loop in enumerate(trace(quadratics(algorithm, SIZES, cohort=COHORTS, local=local), 8)):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), x, rtol=0, atol=1e-12)
        moves, new = [], c_i.copy()
        for i in cohort(t):
            shift, new[i] = c - c_i[i], sharp(i, x, rho)
            moves.append(sgd(i, t, x, lambda i, y, shift=shift: sharp(i, y, rho) + shift))
        x, c, c_i = x + weighted(cohort(t), moves), c + of_all(new - c_i), new


def test_a_server_optimiser_takes_the_methods_own_move():
    # around SCAFFOLD: the control variates stay as they are, the mean move goes through Adam
    x, c, c_i, m, v = np.zeros(2), np.zeros(2), np.zeros((N, 2)), np.zeros(2), np.full(2, 1e-4)
    algorithm = ServerOpt(inner=Scaffold(), opt=ServerAdam(lr=0.1, tau=0.01))
    local = Local(epochs=1, batch=1, lr=LR, schedule=SCHEDULE)
    for t, loop in enumerate(trace(quadratics(algorithm, SIZES, cohort=COHORTS, local=local), 10)):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), x, rtol=0, atol=1e-12)
        moves, new = [], c_i.copy()
        for i in cohort(t):
            shift = c - c_i[i]
            moves.append(sgd(i, t, x, lambda i, y, shift=shift: gradient(i, y) + shift))
            new[i] = c_i[i] - c - moves[-1] / sum(rates(i, t))
        d = weighted(cohort(t), moves)
        m, v = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d * d
        x, c, c_i = x + 0.1 * m / (np.sqrt(v) + 0.01), c + of_all(new - c_i), new


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), SIZES])
@pytest.mark.parametrize("algorithm", [FedDC(alpha=1.0), fedspeed(alpha=2.0, rho=0.0)])
def test_duals_reach_the_minimiser_of_the_weighted_mean(algorithm, sizes):
    w = np.array(sizes, float)[:, None]
    minimiser = (w * A * B).sum(0) / (w * A).sum(0)
    local = Local(epochs=1, batch=1, lr=0.2)
    plain = list(trace(quadratics(FedAvg(), sizes, cohort=3, local=local), 30))[
        -1
    ].state.srv.x.numpy()
    assert np.abs(plain - minimiser).max() > 0.02
    end = list(trace(quadratics(algorithm, sizes, cohort=3, local=local), 150))[
        -1
    ].state.srv.x.numpy()
    np.testing.assert_allclose(end, minimiser, rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", [FedLin(), Mime(beta=0.0), Scaffnew()])
def test_corrected_steps_of_unequal_number_reach_the_minimiser(algorithm):
    sizes, minimiser = (2, 1, 3, 2), (A * B).sum(0) / A.sum(0)
    if isinstance(algorithm, Scaffnew):
        sizes = (2, 2, 2, 2)  # as the paper has it: the h_i add up to 0
    local = Local(epochs=1, batch=1, lr=0.1)
    end = list(trace(quadratics(algorithm, sizes, weighting="uniform", local=local), 150))[-1]
    np.testing.assert_allclose(end.state.srv.x.numpy(), minimiser, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_afl_raises_the_weight_of_the_worst_client():
    def worst(algorithm):
        loop = list(trace(quadratics(algorithm, local=Local(steps=1, lr=0.1)), 200))[-1]
        return max(loss(i, loop.state.srv.x.numpy()) for i in range(N))

    assert worst(AFL(rate=0.02)) < 0.8 * worst(FedAvg())


@pytest.mark.slow
def test_ifca_ends_at_the_minimiser_of_each_cluster():
    experiment = quadratics(IFCA(spread=3.0), local=Local(steps=1, lr=0.4), seed=1)
    loop = list(trace(experiment, 150))[-1]
    number = [int(loop.memory.get([i])[i].alg.mine) for i in range(N)]
    mine = np.eye(2)[number]  # (clients, k)
    assert (mine.sum(0) > 0).all()
    for j, x in enumerate((loop.state.srv.x, loop.state.srv.x1)):
        own = mine[:, j] == 1
        minimiser = (A[own] * B[own]).sum(0) / A[own].sum(0)
        np.testing.assert_allclose(x.numpy(), minimiser, rtol=0, atol=1e-8)
    shares = [loop.log.history[-1][f"cluster{j}"] for j in (0, 1)]
    assert shares == [float(v) for v in mine.mean(0)]


def test_fedexp_reports_the_rate_of_its_server():
    rows = list(trace(quadratics(FedExP()), 3))[-1].log.history
    assert all(row["server_lr"] >= 1 for row in rows) and rows[0]["server_lr"] > 1


HARD = Local(steps=4, batch=1, lr=0.1, clip=1.5, weight_decay=0.1, momentum=0.6)


# --------------------------------------------------------------------------- second trajectories
@pytest.mark.parametrize("around", [{}, {"optimiser": "adamw"}])
def test_a_second_trajectory_moves_as_the_first(around):
    """Without a pull, of one client that begins at 0: the same bits."""
    local = Local(
        **({"steps": 4, "batch": 1, "lr": 0.1, "clip": 1.5, "weight_decay": 0.1} | around)
    )
    for settings in (local, HARD):
        run = quadratics(Ditto(lam=0.0), cohort=[[2]], local=settings)
        loop = [*trace(run, 1)][-1]
        assert bits(loop.memory.get([2])[2].alg.v) == bits(loop.state.srv.x)
        assert float(loop.state.srv.x.abs().max()) > 0.05


def test_dittos_personal_models_follow_their_recurrence():
    lam, lr, clip, decay, beta = 0.7, 0.1, 1.5, 0.1, 0.6
    x, v = np.zeros(2), [None] * 4
    cohorts = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3]]

    def run(i, y, pull):
        """Four steps from y, with torch's order: clip, decay, momentum."""
        m = np.zeros(2)
        for _ in range(4):
            d = A[i] * (y - B[i]) + lam * (y - x) * pull
            d = d * min(1.0, clip / (np.sqrt((d * d).sum()) + 1e-6)) + decay * y
            m = beta * m + d
            y = y - lr * m
        return y

    loops = trace(quadratics(Ditto(lam=lam), cohort=cohorts, local=HARD), 8)
    for t, loop in enumerate(loops):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), x, rtol=0, atol=1e-12)
        for i, row in loop.memory.get(range(4)).items():
            np.testing.assert_allclose(row.alg.v.numpy(), v[i], rtol=0, atol=1e-12)
        now = cohorts[t % 4]
        for i in now:
            v[i] = run(i, x if v[i] is None else v[i], 1.0)
        x = x + np.mean([run(i, x, 0.0) - x for i in now], axis=0)
