"""Client-level differential privacy: the clip, and the noise of the mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..federation import Federation
from ..networks import Array


def dp_clip(fed: Federation, clip: float) -> Iterator[Array]:
    """DP-FedAvg: McMahan et al., ICLR 2018 (arXiv 1710.06963), Algorithm 1, without its noise.

    FlatClip: a client's move times min(1, S / norm), the norm over all layers together; then the
    plain mean.
    """
    x = fed.start
    for cohort in fed.cohorts:
        moves = [fed.local(i, x) - x for i in cohort]
        short = [move * min(1.0, clip / np.linalg.norm(move)) for move in moves]
        x = x + np.mean(short, 0)
        yield x


def dp_noise(fed: Federation, clip: float, noise: float) -> Iterator[Array]:
    """The deviation of a round's noise: sigma = z S / m, for the mean of m clients (arXiv
    1710.06963, Algorithm 1: z S / (q W)). The model itself cannot be told, so what is yielded is
    that number; the suite compares it with the deviation of what an adapter's model moved by.
    """
    for cohort in fed.cohorts:
        yield np.array([noise * clip / len(cohort)])
