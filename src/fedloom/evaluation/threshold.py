"""The class that a binary outcome is taken for: the second one where its probability is above a
threshold, which is given or chosen on the validation split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ConfigError, DataError
from .metrics import chances

YOUDEN, SENSITIVITY = "youden", "sensitivity"


def parsed(setting: float | str) -> tuple[str, float]:
    """A rule -> its name, "" for a threshold, and its number. Raises ConfigError.

    >>> parsed(0.3), parsed("youden"), parsed("sensitivity 0.9")
    (('', 0.3), ('youden', 0.0), ('sensitivity', 0.9))
    """
    name, _, rest = str(setting).strip().partition(" ")
    if name == YOUDEN and not rest:
        return name, 0.0
    try:
        number = float(rest if name == SENSITIVITY else setting)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise ConfigError(
            f"evaluate.threshold must be a probability above 0 and below 1, {YOUDEN}, or "
            f"'{SENSITIVITY} 0.9', got {setting!r}"
        )
    return (name if name == SENSITIVITY else ""), number


class Threshold:
    """The threshold of a run. rule: see Evaluation.threshold; value: the present one; adaptive: it
    is chosen anew at each evaluation.
    """

    def __init__(self, setting: float | str = 0.5) -> None:
        self.name, self._share = parsed(setting)
        self.rule, self.adaptive = str(setting), bool(self.name)
        self.value = 0.5 if self.adaptive else self._share

    @property
    def usual(self) -> bool:
        """True for the likelier class, which needs no threshold."""
        return not self.adaptive and self.value == 0.5

    def choose(self, likely: Tensor, second: Tensor) -> None:
        """Take the threshold that the rule has for these examples: their probabilities of the
        second class (n,), and whether they are of it (n,). Raises DataError for one class.

        youden: the largest sensitivity + specificity - 1 (Youden, Cancer 3, 1950). sensitivity s:
        the highest threshold with a sensitivity of at least s. Candidates lie half-way between two
        neighbouring probabilities; of equally good ones the highest counts.
        """
        second, likely = second.bool(), likely.double()
        if bool(second.all()) or not bool(second.any()):
            raise DataError(
                f"evaluate.threshold = {self.rule}: the validation split has one class, so none "
                "can be chosen; take a larger evaluate.validation, or a number"
            )
        probs, position = torch.unique(likely, return_inverse=True)
        cuts = torch.cat([probs[:1] / 2, (probs[1:] + probs[:-1]) / 2])  # one below each of them
        above = [
            torch.bincount(position[which], minlength=len(probs)).flip(0).cumsum(0).flip(0)
            for which in (second, ~second)
        ]
        sensitivity, alarms = (count.double() / count[0] for count in above)
        good = sensitivity - alarms
        least = self._share if self.name == SENSITIVITY else float(good.max())
        rates = sensitivity if self.name == SENSITIVITY else good
        self.value = float(cuts[rates >= least - 1e-12].max())

    def places(self, likely: Tensor) -> Tensor:
        """Probabilities (B, 2) -> classes (B,)."""
        return (likely[:, 1] > self.value).long()


@dataclass(frozen=True)
class DecidedAccuracy:
    """The share of examples whose class by the threshold is the target's."""

    exported: ClassVar[str] = "accuracy"
    threshold: Threshold

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """Outputs (B, 2) or (B,), targets (B,) -> (B,)."""
        return (self.threshold.places(chances(outputs, targets)) == targets.reshape(-1)).float()


def likely(outputs: Any, targets: Tensor) -> Tensor:
    """Probabilities of the second class (B,)."""
    return chances(outputs, targets)[:, 1]


def second(outputs: Any, targets: Tensor) -> Tensor:
    """1 where an example is of the second class (B,)."""
    return (targets.reshape(-1) == 1).float()
