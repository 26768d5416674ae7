"""The papers' recurrences in numpy, on the four quadratics of tiny.py: each is a generator of the
server's model before every round.

Cohorts come in turn, client i takes SIZES[i] steps and weighs as much, rates fall with rounds and
steps; float64.
"""

from __future__ import annotations

import numpy as np

from fedloom import Local
from fedloom.federation.schedules import Exponential
from tiny import A, B

LR, N, ROUNDS = 0.1, 4, 12
SIZES = (2, 5, 3, 4)
ALIKE = (1, 1, 1, 1)
P = np.array(SIZES)[:, None] / sum(SIZES)
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3], [0, 2]]
SCHEDULE = Exponential(decay=0.9, step_decay=0.95)
LOCAL = Local(epochs=1, batch=1, lr=LR, schedule=SCHEDULE)
CLIP, DECAY = 1.5, 0.01
ADAMW = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1}
cohort = lambda t: COHORTS[t % len(COHORTS)]
gradient = lambda i, y: A[i] * (y - B[i])
loss = lambda i, y: (A[i] / 2 * (y - B[i]) ** 2).sum()
rates = lambda i, t: [LR * SCHEDULE(t, k) for k in range(SIZES[i])]
times = lambda server_lr: lambda t, d: server_lr * d


def along(v):
    """v / ||v||, as the SAM family's code has it."""
    return v / (np.sqrt((v * v).sum()) + 1e-7)


def sharp(i, y, rho, mix=1.0):
    """(1 - mix) g(y) + mix g(y + rho g(y) / ||g(y)||)."""
    g = gradient(i, y)
    return (1 - mix) * g + mix * gradient(i, y + rho * along(g))


def sgd(i, t, start, grad):
    """K_i plain steps from start -> the move."""
    y = start.copy()
    for rate in rates(i, t):
        y = y - rate * grad(i, y)
    return y - start


def of_all(rows):
    """sum_i p_i row_i over all clients, p_i the share of the examples."""
    return (P * rows).sum(0)


def weighted(members, rows, weights=SIZES):
    w = np.array([weights[i] for i in members], float)[:, None]
    return (w * np.stack(rows)).sum(0) / w.sum()


# ------------------------------------------------------------------- the server's use of mean moves
def plain(move, rho=0.0):
    """x <- x + move(t, mean delta), from plain local steps, or SAM's."""
    x = np.zeros(2)
    for t in range(ROUNDS):
        yield x
        deltas = [sgd(i, t, x, lambda i, y: sharp(i, y, rho)) for i in cohort(t)]
        x = x + move(t, weighted(cohort(t), deltas))


def adaptive(second, v0=1e-4, server_lr=0.1, beta1=0.9, tau=0.01):
    """Reddi et al., Algorithm 2: lines 10 to 14."""
    m, v = np.zeros(2), np.full(2, v0)

    def move(t, d):
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * d
        v = second(v, d * d)
        return server_lr * m / (np.sqrt(v) + tau)

    return move


adam = lambda v, square: 0.99 * v + 0.01 * square
yogi = lambda v, square: v - 0.01 * square * np.sign(v - square)
top = lambda p: np.where(np.arange(2) == np.argmax(np.abs(p)), p, 0.0)


def amsgrad(option, eps, start=0.0, corrected=False, server_lr=0.1, beta1=0.9, beta2=0.99):
    """Wang, Lin & Chen, Algorithm 1; option 1 takes the floor into the maximum."""
    m, v, top = np.zeros(2), np.zeros(2), np.full(2, start)

    def move(t, d):
        nonlocal m, v, top
        m, v = beta1 * m + (1 - beta1) * d, beta2 * v + (1 - beta2) * d * d
        top = np.maximum(top, np.maximum(v, eps) if option == 1 else v)
        by_m, by_v = (1 - beta1 ** (t + 1), 1 - beta2 ** (t + 1)) if corrected else (1, 1)
        return server_lr * m / by_m / (np.sqrt(top / by_v) + (eps if option == 2 else 0.0))

    return move


def nesterov(beta, lr):
    m = np.zeros(2)

    def move(t, d):
        nonlocal m
        m = beta * m + d
        return lr * (d + beta * m)

    return move


def heavy_ball(beta, pull=0.0, ahead=False):
    """FedACG's Table 4: momentum at the server, with or without pull and look-ahead."""
    x, m = np.zeros(2), np.zeros(2)
    for t in range(ROUNDS):
        yield x
        start = x + beta * m if ahead else x
        step = lambda i, y, start=start: gradient(i, y) + pull * (y - start)
        m = beta * m + weighted(cohort(t), [sgd(i, t, start, step) for i in cohort(t)])
        x = x + m


def fedexp(eps):
    """FedExP, Algorithm 1, the squares weighted as the moves are: its authors' code."""
    x = np.zeros(2)
    for t in range(ROUNDS):
        yield x
        moves = [sgd(i, t, x, gradient) for i in cohort(t)]
        mean = weighted(cohort(t), moves)
        square = weighted(cohort(t), [np.array([(m * m).sum()]) for m in moves])[0]
        x = x + max(1.0, square / (2 * ((mean * mean).sum() + eps))) * mean


def qfedavg(q, lip=None):
    x = np.zeros(2)
    for t in range(ROUNDS):
        yield x
        steps, hs = [], []
        for i in cohort(t):
            lipschitz = 1 / rates(i, t)[-1] if lip is None else lip
            d, f = lipschitz * sgd(i, t, x, gradient), loss(i, x) + 1e-10
            steps.append(f**q * d)
            hs.append(q * f ** (q - 1) * (d * d).sum() + lipschitz * f**q)
        x = x + np.sum(steps, axis=0) / np.sum(hs)


def afl(rate):
    x, log = np.zeros(2), np.zeros(N)
    for t in range(ROUNDS):
        yield x
        moves = np.stack([sgd(i, t, x, gradient) for i in cohort(t)])
        w = np.array([SIZES[i] * np.exp(log[i]) for i in cohort(t)])[:, None]
        for i in cohort(t):
            log[i] += rate * loss(i, x)
        x = x + (w * moves).sum(0) / w.sum()


# ---------------------------------------------------------------------- corrections at the clients
def fedcm(alpha, rho=0.0, server_lr=1.0):
    x, D = np.zeros(2), np.zeros(2)
    for t in range(ROUNDS):
        yield x
        step = lambda i, y, D=D: alpha * sharp(i, y, rho) + (1 - alpha) * D
        moves = [sgd(i, t, x, step) for i in cohort(t)]
        each = [-m / sum(rates(i, t)) for i, m in zip(cohort(t), moves, strict=True)]
        D = weighted(cohort(t), each)
        x = x + server_lr * weighted(cohort(t), moves)


def feddyn(alpha, rho=0.0, mix=1.0, lam=0.0, scaled=False, weights=SIZES):
    """FedDyn with a SAM gradient: FedSpeed. g_i are the paper's duals of the gradient, of which our
    files keep sums of moves instead. lam: from a point that is ahead by so much of the last move.
    scaled: as Acar et al. run clients of unequal sizes, alpha_i = alpha / weight_i, and a plain
    mean of -g_i / alpha_i.
    """
    x, g, m = np.zeros(2), np.zeros((N, 2)), np.zeros(2)
    alphas = alpha * (np.mean(SIZES) / np.array(SIZES) if scaled else np.ones(N))
    for t in range(ROUNDS):
        yield x
        start, moves = x + lam * m, []
        for i in cohort(t):
            step = lambda i, y, x=start, g=g: sharp(i, y, rho, mix) - g[i] + alphas[i] * (y - x)
            moves.append(sgd(i, t, start, step))
        for i, move in zip(cohort(t), moves, strict=True):
            g[i] = g[i] - alphas[i] * move
        h = -g / alphas[:, None]
        m = lam * m + weighted(cohort(t), moves, weights) + (h.mean(0) if scaled else of_all(h))
        x = x + m


def feddc(alpha, eta0=None, scaled=False, weights=SIZES):
    """scaled: as its authors run it, alpha_i, g / weight_i at the client, weight_i dg_i sent."""
    x, g, h, g_i = np.zeros(2), np.zeros(2), np.zeros((N, 2)), np.zeros((N, 2))
    size = np.array(SIZES) / np.mean(SIZES) if scaled else np.ones(N)
    for t in range(ROUNDS):
        yield x
        moves, change = [], np.zeros(2)
        for i in cohort(t):
            drift, c = h[i].copy(), g / size[i] - g_i[i]
            step = lambda i, y, x=x, drift=drift, c=c: (
                gradient(i, y) + alpha / size[i] * (y - (x - drift)) + c
            )
            move = sgd(i, t, x, step)
            scale = sum(rates(i, t)) if eta0 is None else SIZES[i] * eta0
            new = g_i[i] - g / size[i] - move / scale
            change, g_i[i] = change + P[i] * (new - g_i[i]), new
            h[i] = h[i] + move
            moves.append(move)
        x = x + weighted(cohort(t), moves, weights) + (h.mean(0) if scaled else of_all(h))
        g = g + change
        np.testing.assert_allclose(g, of_all(g_i), rtol=0, atol=1e-12)


def scaffold(rho=0.0, server_lr=1.0, move=None, option=2):
    """On SAM's gradients: line 10 has g~ - c_i + c. Option I: c_i is g~ at the received model."""
    x, c, c_i = np.zeros(2), np.zeros(2), np.zeros((N, 2))
    for t in range(ROUNDS):
        yield x
        moves, new = [], c_i.copy()
        for i in cohort(t):
            shift = c - c_i[i]
            moves.append(sgd(i, t, x, lambda i, y, shift=shift: sharp(i, y, rho) + shift))
            new[i] = c_i[i] - c - moves[-1] / sum(rates(i, t))
            if option == 1:
                new[i] = sharp(i, x, rho)
        step = (move or times(server_lr))(t, weighted(cohort(t), moves))
        x, c, c_i = x + step, c + of_all(new - c_i), new


def fedsmoo(rho, beta, dynamic=True, correction=True):
    """Algorithm 1: lines 9 to 13 at clients, 16, 17 at the server; ablations leave duals out."""
    x, s, h, mu = np.zeros(2), np.zeros(2), np.zeros((N, 2)), np.zeros((N, 2))
    for t in range(ROUNDS):
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


def mime(beta, lite=False):
    """Mime, Algorithm 1; FedLin is beta = 0, as each client's batches are all alike."""
    x, m = np.zeros(2), np.zeros(2)
    for t in range(ROUNDS):
        yield x
        full = [gradient(i, x) for i in cohort(t)]
        c = weighted(cohort(t), full)
        fix = {i: 0.0 if lite else c - g for i, g in zip(cohort(t), full, strict=True)}
        step = lambda i, y, m=m, fix=fix: (1 - beta) * (gradient(i, y) + fix[i]) + beta * m
        x = x + weighted(cohort(t), [sgd(i, t, x, step) for i in cohort(t)])
        m = (1 - beta) * c + beta * m


def scaffnew():
    x, h = np.zeros(2), np.zeros((N, 2))
    before = {}
    for t in range(ROUNDS):
        yield x
        for i in cohort(t):
            if i in before and before[i][0] == t - 1:
                h[i] = h[i] + (x - before[i][1]) / before[i][2]
        moves = [sgd(i, t, x, lambda i, y, h=h: gradient(i, y) - h[i]) for i in cohort(t)]
        before |= {i: (t, x + m, sum(rates(i, t))) for i, m in zip(cohort(t), moves, strict=True)}
        x = x + weighted(cohort(t), moves)


def pulled(alphas, rho=0.0, dual=True, smoo=False, plain=False):
    """local.clip_pull = false, as FL-Simulator and Acar have it: what a method adds of x itself
    stays outside of the clip, y <- y - lr [clip(g + alpha_i (h_i - x)) + (decay + alpha_i) y].
    smoo: with FedSMOO's perturbation. plain: h is a plain mean, as with sizes in alpha.
    """
    short = lambda v: v * min(1.0, CLIP / (np.sqrt((v * v).sum()) + 1e-6))
    x, h, s, mu = np.zeros(2), np.zeros((N, 2)), np.zeros(2), np.zeros((N, 2))
    for t in range(ROUNDS):
        yield x
        moves, duals = [], []
        for i in cohort(t):
            y = x.copy()
            for rate in rates(i, t):
                e = rho * along(gradient(i, y) - (mu[i] + s if smoo else 0.0))
                mu[i] = mu[i] + smoo * (e - s)
                pull = alphas[i] * (h[i] - x)
                y = y - rate * (short(gradient(i, y + e) + pull) + (DECAY + alphas[i]) * y)
            moves.append(y - x)
            duals.append(mu[i] - e)
        for i, move in zip(cohort(t), moves, strict=True):
            h[i] = h[i] + dual * move
        x = x + weighted(cohort(t), moves) + (h.mean(0) if plain else of_all(h))
        s = smoo * rho * along(weighted(cohort(t), duals))


# ------------------------------------------------------------------- steps of unequal number, time
def fednova(server_lr=1.0, momentum=0.0, weights=SIZES):
    """x + tau sum p_i delta_i / tau_i, tau_i how much client i's gradients weigh in its move, each
    in its own step's and every later step's momentum; tau = sum p_i tau_i over who took part.
    """
    x = np.zeros(2)
    for t in range(ROUNDS):
        yield x
        taus, rows = [], []
        for i in cohort(t):
            y, m, tau = x.copy(), np.zeros(2), 0.0
            for k, rate in enumerate(rates(i, t)):
                m = momentum * m + gradient(i, y)
                y = y - rate * m
                tau += rate * sum(momentum**j for j in range(k + 1))
            taus.append([tau])
            rows.append((y - x) / tau)
        x = x + server_lr * weighted(cohort(t), taus, weights) * weighted(cohort(t), rows, weights)


def cfedavg(compress, per_step=False, server_lr=1.0, feedback=True):
    """CFedAvg, Algorithm 1, lines 1 to 18, of clients that count alike and may be absent."""
    x, e = np.zeros(2), np.zeros((N, 2))
    for t in range(ROUNDS):
        yield x
        sent = []
        for i in cohort(t):
            move = sgd(i, t, x, gradient)  # lines 6 to 8
            p = move / (SIZES[i] if per_step else 1) + e[i]  # lines 10 to 12
            sent.append(compress(p))  # line 13
            e[i] = feedback * (p - sent[-1])  # line 14
        x = x + server_lr * np.mean(sent, 0)  # lines 16, 17


def downlink(corrected):
    """Clients start from what they hold, the server keeps the rest. corrected: SCAFFOLD."""
    x, c, c_i = np.zeros(2), np.zeros(2), np.zeros((N, 2))
    seen, c_seen = np.zeros(2), np.zeros(2)
    for t in range(ROUNDS):
        yield x
        seen, c_seen = seen + top(x - seen), c_seen + top(c - c_seen)
        moves, new = [], c_i.copy()
        for i in cohort(t):
            shift = corrected * (c_seen - c_i[i])
            moves.append(sgd(i, t, seen, lambda i, y, shift=shift: gradient(i, y) + shift))
            new[i] = c_i[i] - c_seen - moves[-1] / sum(rates(i, t))
        x, c, c_i = x + weighted(cohort(t), moves), c + of_all(new - c_i), new


# ------------------------------------------------------------------- estimators and second moments
def stem(alpha, c=None, rho=0.0):
    """d = g + (1 - a)(d - g at the last point); every client's last move is the server's."""
    x0, gradient = np.zeros(2), lambda i, y: sharp(i, y, rho)
    x, d = x0, weighted(range(N), [gradient(i, x0) for i in range(N)])
    prev, last, before = [x0] * N, [-1] * N, None
    for t in range(ROUNDS):
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


def fafed(
    alpha=0.9,
    beta=0.9,
    rho=0.01,
    c=None,
    ext=1.0,
    precondition_first_step=False,
    a_lag=False,
    matrix="coordinate",
    weights=SIZES,
):
    """Algorithm 2. Between exchanges A is the received one (14), then the new one (10-12)."""
    squares = lambda g: g * g if matrix == "coordinate" else np.array([g @ g])
    inverse = lambda v: 1 / (np.sqrt(v) + rho)
    x = np.zeros(2)
    g = [gradient(i, x) for i in range(N)]
    m, v = weighted(range(N), g, weights), weighted(range(N), [*map(squares, g)], weights)  # line 2
    before, last, before_rate = {}, {}, LR * SCHEDULE(0, 0)
    for t in range(ROUNDS):
        yield x
        start = x
        if t == 0:
            start = x - before_rate * m * (inverse(v) if precondition_first_step else 1)  # line 3
        points, ms, vs = [], [], []
        for i in cohort(t):
            y, own, square, rate_before = start, m, v, before_rate
            # section 1.7: who did not take part in the last round compares with what it was sent
            old = before[i] if last.get(i) == t - 1 else x
            for rate in rates(i, t):
                a = alpha if c is None else min(c * rate_before**2, 1.0)
                own = gradient(i, y) + (1 - a) * (own - ext * gradient(i, old))  # line 7
                new = squares(gradient(i, y))
                # line 8; AdaGrad-Norm: b_t^2 = b_(t-1)^2 + ||g_t||^2
                square = square + new if matrix == "norm" else beta * square + (1 - beta) * new
                old, rate_before = y, rate
                y = y - rate * own * inverse(v)  # lines 14, 15; the last one is not used
            before[i], last[i] = old, t
            points.append(old)
            ms.append(own)
            vs.append(square)
        lagged = inverse(v)
        m, v = weighted(cohort(t), ms, weights), weighted(cohort(t), vs, weights)  # lines 10, 11
        before_rate = LR * SCHEDULE(t, max(SIZES[i] for i in cohort(t)) - 1)
        # line 12; the authors' code takes the last step at the clients, before A is made anew
        step = before_rate * m * (lagged if a_lag else inverse(v))
        x = weighted(cohort(t), points, weights) - step


def naive_adaptive(beta, eps=0.0):
    x, v = np.zeros(2), np.zeros((N, 2))
    for t in range(ROUNDS):
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


def diloco(keeps, server_lr=0.7, beta=0.6):
    """DiLoCo, Algorithm 1: AdamW, of which each worker keeps the state or begins anew."""
    x, workers, move = np.zeros(2), [AdamW() for _ in A], nesterov(beta, server_lr)
    for t in range(ROUNDS):
        yield x
        if not keeps:
            workers = [AdamW() for _ in A]
        x = x + move(t, weighted(cohort(t), [workers[i].train(i, x) - x for i in cohort(t)]))


class AdamW:
    """Three steps a round; the decay is decoupled."""

    def __init__(self):
        self.m, self.v, self.t = np.zeros(2), np.zeros(2), 0

    def train(self, i, y):
        lr, beta1, beta2, decay = ADAMW.values()
        for _ in range(3):
            g = gradient(i, y)
            self.t += 1
            self.m = beta1 * self.m + (1 - beta1) * g
            self.v = beta2 * self.v + (1 - beta2) * g * g
            m, v = self.m / (1 - beta1**self.t), self.v / (1 - beta2**self.t)
            y = y - lr * (m / (np.sqrt(v) + 1e-8) + decay * y)
        return y
