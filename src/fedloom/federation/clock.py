"""When the server makes its step: after a round of a cohort, or whenever a buffer is full."""

from __future__ import annotations

from ..algorithm import ACCUMULATED, CHANGE, Algorithm, Trait
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


def untimely(
    exponent: float, algorithm: Algorithm, private: str, ef21: bool, forgets: bool
) -> str | None:
    """Why a method has no meaning under an asynchronous clock with this exponent of the staleness;
    None if it has. private: the name of a private aggregation; ef21: of the moves; forgets: see
    Churn.forget.
    """
    what, why = algorithm.method, ""
    if algorithm.asks:
        why = "a cohort answers before it trains, and under this clock there is none"
    elif Trait.ONE_BROADCAST in algorithm.traits:
        why = "its server takes every update to be made from its newest broadcast"
    elif exponent and algorithm.sent.get("delta") in (ACCUMULATED, CHANGE):
        why = (
            "clients add their whole move to their own state, and the server less of an older one: "
            "the two would drift apart; take clock.staleness = 0"
        )
    elif private:
        what, why = private, "a client's share of the steps is not the one that is accounted for"
    elif exponent and ef21:
        what, why = (
            "EF21",
            (
                "the server keeps the mean of what all clients remember, and would add less of an "
                "older change; use Residual, or take clock.staleness = 0"
            ),
        )
    elif forgets:
        what = "churn that forgets"
        why = "a client may leave while it is under way; take churn.forget = false"
    return f"an asynchronous clock and {what}: {why}" if why else None
