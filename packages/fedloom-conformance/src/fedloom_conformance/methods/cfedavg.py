"""CFedAvg: a compressed link whose error is sent later."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..federation import Federation
from ..networks import Array


def cfedavg(
    fed: Federation, kept: float, server_lr: float, per_step: bool = False
) -> Iterator[Array]:
    """CFedAvg: Yang et al. (arXiv 2106.07155), Algorithm 1 with Top-k of the whole model.

    Line 10: g_i = y - x; line 11, per_step: (y - x) / K_i. p = g_i + e_i, C(p) keeps the k = max(1,
    round(kept d)) largest entries as they are, e_i <- p - C(p), and x <- x + eta mean C(p). A
    client that is absent keeps its e_i.
    """
    x = fed.start
    size = max(1, round(kept * len(x)))
    errors = np.zeros((fed.number, len(x)))
    for cohort in fed.cohorts:
        sent = []
        for i in cohort:
            p = (fed.local(i, x) - x) / (fed.steps(i) if per_step else 1) + errors[i]
            coded = np.zeros_like(p)
            largest = np.argsort(-np.abs(p), kind="stable")[:size]
            coded[largest] = p[largest]
            errors[i] = p - coded
            sent.append(coded)
        x = x + server_lr * fed.mean(cohort, sent)
        yield x
