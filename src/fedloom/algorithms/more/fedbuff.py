"""FedBuff: the server steps whenever a buffer of client updates is full."""

from __future__ import annotations

from ...algorithm import FedAvg, Trait


class FedBuff(FedAvg):
    """FedBuff (Nguyen et al., AISTATS 2022, Algorithm 1): FedAvg under an asynchronous clock.

    server: x        client: -        up: delta
    Paper symbols: eta_g -> server_lr, K -> clock.buffer, M_c -> clock.concurrency; an update that
    is tau server steps late counts 1 / sqrt(1 + tau), clock.staleness = 0.5.
    Differs from the paper: delta is weighted as the experiment says (the paper: uniformly).
    Reference: https://arxiv.org/abs/2106.06639
    """

    traits = frozenset({Trait.BUFFERED})
