"""Methods whose server treats the mean move as a gradient: momentum, adaptive, DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..federation import Federation
from ..networks import Array


def _moved(fed: Federation, cohort: Sequence[int], x: Array) -> Array:
    """Delta, the mean move of the round's clients."""
    return fed.mean(cohort, [fed.local(i, x) for i in cohort]) - x


def _kept(fed: Federation, buffers: str, new: Array, mean: Array) -> Array:
    """The new model; its buffers are the clients' mean, or what the server made of them."""
    return np.where(fed.trained, new, mean) if buffers == "mean" else new


def fedavgm(
    fed: Federation, beta: float, damped: bool = False, buffers: str = "mean"
) -> Iterator[Array]:
    """FedAvgM: Hsu, Qi & Brown 2019 (arXiv 1909.06335), section 4.3: v <- beta v + Delta, w <- w -
    v, where their Delta is minus the mean move. damped: Delta counts 1 - beta.
    """
    x, m = fed.start, np.zeros_like(fed.start)
    for cohort in fed.cohorts:
        delta = _moved(fed, cohort, x)
        m = beta * m + (1 - beta if damped else 1) * delta
        x = _kept(fed, buffers, x + m, x + delta)
        yield x


def fedopt(
    fed: Federation,
    second: str,
    server_lr: float,
    beta1: float,
    beta2: float,
    tau: float,
    v0: str = "tau^2",
    correction: str = "none",
    buffers: str = "mean",
) -> Iterator[Array]:
    """FedAdam, FedYogi, FedAdagrad: Reddi et al., ICLR 2021 (arXiv 2003.00295), Algorithm 2.

    v_(-1) >= tau^2 (here tau^2), m_(-1) = 0, and no correction of the bias. correction "adam":
    that of Kingma & Ba (arXiv 1412.6980), Algorithm 1; "adam, second form": the one at the end of
    their section 2, where tau is not divided. Round t is their step t = 1, 2, ...
    """
    x, m = fed.start, np.zeros_like(fed.start)
    v = np.full_like(x, tau**2 if v0 == "tau^2" else 0.0)
    for t, cohort in enumerate(fed.cohorts, 1):
        delta = _moved(fed, cohort, x)
        m = beta1 * m + (1 - beta1) * delta
        if second == "adam":
            v = beta2 * v + (1 - beta2) * delta**2
        elif second == "yogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = v + delta**2
        first, root = 1 - beta1**t, np.sqrt(1 - beta2**t)
        if correction == "adam":
            step = m / first / (np.sqrt(v) / root + tau)
        elif correction == "adam, second form":
            step = m * root / first / (np.sqrt(v) + tau)
        else:
            step = m / (np.sqrt(v) + tau)
        x = _kept(fed, buffers, x + server_lr * step, x + delta)
        yield x


def fedacg(fed: Federation, lam: float, beta: float) -> Iterator[Array]:
    """FedACG: Kim, Kim & Han, CVPR 2024, Algorithm 1.

    Clients start at theta + lambda m and have beta / 2 ||. - (theta + lambda m)||^2 in their loss;
    then m <- lambda m + Delta and theta <- theta + m.
    """
    x, m = fed.start, np.zeros_like(fed.start)
    for cohort in fed.cohorts:
        ahead = x + lam * m
        pulled = lambda y, g, ahead=ahead: g + beta * (y - ahead)
        delta = fed.mean(cohort, [fed.local(i, ahead, pulled) for i in cohort]) - ahead
        m = lam * m + delta
        x = x + m
        yield x


def diloco(
    fed: Federation, server_lr: float, beta: float, decay: float, anew: bool = False
) -> Iterator[Array]:
    """DiLoCo: Douillard et al. 2023 (arXiv 2311.08105), Algorithm 1: AdamW inside (lines 4 to 8),
    Nesterov's momentum outside (lines 12 and 14), as torch.optim.SGD(nesterov=True) has it.

    AdamW (Loshchilov & Hutter, arXiv 1711.05101, Algorithm 2) has 0.9, 0.999 and 1e-8, and every
    client keeps its moments; anew: they begin at 0 in every round.
    """
    x, m = fed.start, np.zeros_like(fed.start)
    moments: dict[int, tuple[Array, Array, int]] = {}
    for cohort in fed.cohorts:
        reached = []
        for i in cohort:
            y, (u, v, t) = x, moments.get(i, (0 * x, 0 * x, 0))
            for _ in range(fed.steps(i)):
                g, t = fed.grad(i, y), t + 1
                u, v = 0.9 * u + 0.1 * g, 0.999 * v + 0.001 * g * g
                scaled = u / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                y = y - fed.lr * (scaled + decay * y)
            reached.append(y)
            if not anew:
                moments[i] = u, v, t
        delta = fed.mean(cohort, reached) - x
        m = beta * m + delta
        x = x + server_lr * (delta + beta * m)
        yield x
