"""When the server makes its step: after a round of a cohort, or whenever a buffer is full."""

from __future__ import annotations

from ..core.hyper import NonNegative, Part, PositiveInt, hyper
from ..core.registry import Registry


class Clock(Part):
    """Rounds: the server waits for the whole cohort, and all train from the same model."""


class Asynchronous(Clock):
    """Buffered asynchronous aggregation (FedBuff, Nguyen et al., AISTATS 2022, Algorithm 1): the
    server makes a step with every `buffer` client updates that arrive, and sends its newest model
    to another client as soon as one has answered. Time is that of the device profile.

    A move that was made from the model of tau server steps before is multiplied by
    (1 + tau)^-staleness. A client takes part in a server step at most once.
    Reference: https://arxiv.org/abs/2106.06639
    """

    buffer: PositiveInt = hyper(
        default=10, meaning="client updates of a server step", source="K; 10 is ours"
    )
    concurrency: PositiveInt | None = hyper(
        default=None,
        meaning="clients under way at a time; none: as many as cohort says",
        source="M_c",
    )
    staleness: NonNegative = hyper(
        default=0.5,
        meaning="exponent a of an update's weight (1 + tau)^-a; 0: all count alike",
        source="0.5: the paper",
    )

    def weight(self, tau: int) -> float:
        """The factor of a move that was made from the model of tau server steps before.

        >>> Asynchronous().weight(3), Asynchronous(staleness=0.0).weight(3)
        (0.5, 1.0)
        """
        return float((1 + tau) ** -self.staleness)


CLOCKS: Registry[type[Clock]] = Registry(
    "clock", {"synchronous": Clock, "asynchronous": Asynchronous}
)
