"""Evaluation schedule, and the moving average of a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core.hyper import Decay, NonNegativeInt, Part, ShareBelow1, hyper
from ..errors import ConfigError
from ..federation.capacities import share_of
from .stopping import EarlyStop
from .threshold import parsed


class Evaluation(Part):
    """When and how the server's model is evaluated.

    The moving average is a~_t = a a~_(t-1) + (1 - a) a_t per round with a = `ema`, debiased; rounds
    to a target are read from it. With sub-models, every capacity among the clients is evaluated
    too, and after the last round also `sizes`, such as capacities that no client has. A model whose
    batch norm keeps no running statistics is evaluated with "static" ones, gathered for each size
    over all training samples, or with those of the test "batch": as many examples as in training,
    of one client's test set.
    """

    title: ClassVar[str] = "evaluate"
    every: NonNegativeInt = hyper(
        1, "rounds between evaluations (the last round always has one); 0: only there"
    )
    ema: Decay = hyper(
        0.9,
        "factor of the moving average on which targets are looked for",
        source="FedACG, section 5.1",
    )
    target: float | None = hyper(None, "of the headline metric, in its unit: 0.8 is 80 %")
    validation: ShareBelow1 = hyper(
        0.0, "share of each client's training examples held out for choices"
    )
    unseen: float | Sequence[int | str] = hyper(
        0.0,
        "clients that never train and are only measured, on all their rows: names or numbers, or a "
        "share of all",
    )
    threshold: float | str = hyper(
        0.5,
        "of two classes: the probability above which the second one is predicted; or youden or "
        "'sensitivity 0.9', chosen on the validation split",
    )
    clients: bool = hyper(True, "after the last round, the metric of each client too")
    finetune: NonNegativeInt = hyper(
        0,
        "plain local steps that each client adds to the last model before its own tests; 0: none",
        source="FLamby: 100; Yu et al., 2020",
    )
    sizes: tuple[float | str, ...] = hyper(
        (),
        "of sub-models: more capacities to measure after the last round",
        source="19 sizes in FIARSE, Figure 4",
    )
    sizes_every: NonNegativeInt | None = hyper(
        None,
        "rounds between measuring every capacity; none: as every; 0: at the end",
        source="20 in FIARSE's code",
    )
    statistics: Literal["static", "batch"] = hyper(
        "static",
        "of batch norm that keeps none: static (over the training examples) or batch (of the test "
        "batch)",
        source="HeteroFL, section 3.2",
    )
    stop: EarlyStop | None = hyper(
        None,
        "ends the run when a metric gets no better: fedloom show evaluate.stop",
        example="EarlyStop(patience=20)",
    )
    explored: bool = hyper(True, "of sub-models: record in every round which coordinates are held")

    def __post_init__(self) -> None:
        parsed(self.threshold)
        if not isinstance(self.unseen, Sequence) and not 0 <= self.unseen < 1:
            raise ConfigError(
                f"evaluate.unseen as a share must be in [0, 1), got {self.unseen:g}; to name a "
                "client give a list"
            )
        object.__setattr__(self, "sizes", tuple(share_of(s, "evaluate.sizes") for s in self.sizes))

    def due(self, round: int) -> bool:
        """True if the schedule has an evaluation after this round (counted from 1)."""
        return self.every > 0 and round % self.every == 0

    def sizes_due(self, round: int) -> bool:
        """True if the sizes of sub-models are evaluated after this round (counted from 1)."""
        every = self.every if self.sizes_every is None else self.sizes_every
        return every > 0 and round % every == 0


def check_share(value: float, name: str) -> None:
    """Raise ConfigError for a target that no accuracy reaches, or every one does."""
    if not 0 <= value <= 1:
        hint = f"; give {value / 100:g} for {value:g} %" if 1 < value <= 100 else ""
        raise ConfigError(f"{name}: accuracy is a share between 0 and 1{hint}")


@dataclass
class Curve:
    """The moving average of the headline metric so far, in a form that a checkpoint can hold.

    >>> curve = Curve(ema=0.9)
    >>> curve.add(1, 0.5), curve.add(2, 0.7)
    (0.5, 0.6052631578947368)
    """

    ema: float
    higher_is_better: bool | None = True  # None: unknown, so nothing is better
    total: float = 0.0
    weight: float = 0.0
    at: int = 0

    def add(self, round: int, value: float) -> float:
        """One scheduled evaluation after a round (counted from 1) -> the moving average.

        With evaluations r rounds apart the factor is ema^r, so that the average forgets at the same
        pace. A value that is not finite, such as an AUC of one class, leaves the average as it is,
        which is then NaN for this round alone.
        """
        factor = self.ema ** (round - self.at)
        self.total, self.weight, self.at = factor * self.total, factor * self.weight, round
        if not math.isfinite(value):
            return math.nan
        self.total += (1 - factor) * value
        self.weight += 1 - factor
        return self.total / self.weight

    def better(self, a: float, b: float) -> bool:
        """True if a is better than b."""
        if self.higher_is_better is None:
            return False
        return a > b if self.higher_is_better else a < b
