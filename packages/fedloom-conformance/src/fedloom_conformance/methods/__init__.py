"""Reference recurrences in plain numpy, each written from its paper, and their known readings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..networks import Array
from .averaging import fedavg, fednova, fedprox
from .cfedavg import cfedavg
from .duals import feddyn, fedsmoo, scaffold
from .fafed import fafed
from .fiarse import fiarse
from .privacy import dp_clip, dp_noise
from .robust import krum, median, trimmed_mean
from .servers import diloco, fedacg, fedavgm, fedopt


@dataclass(frozen=True)
class Method:
    """A recurrence: (federation, **settings) -> the server's vector after every round.

    readings: other ways to read the paper that its authors' code or a known library has: a name ->
    the arguments that make it.
    """

    recurrence: Callable[..., Iterator[Array]]
    readings: dict[str, dict[str, Any]] = field(default_factory=dict)


_ZERO = {"v begins at 0": {"v0": "0"}}
_CORRECTED = {
    "v begins at 0, Adam's correction of the bias": {"v0": "0", "correction": "adam"},
    "v begins at 0, Adam's correction in its second form": {
        "v0": "0",
        "correction": "adam, second form",
    },
}
_BUFFERS = {"statistics move as parameters do": {"buffers": "moved"}}

METHODS: dict[str, Method] = {
    "fedavg": Method(fedavg),
    "fedprox": Method(fedprox, {"mu without the half": {"half": False}}),
    "fednova": Method(fednova),
    "fedavgm": Method(fedavgm, {"Delta counts 1 - beta": {"damped": True}} | _BUFFERS),
    "fedadam": Method(partial(fedopt, second="adam"), _ZERO | _CORRECTED),
    "fedyogi": Method(partial(fedopt, second="yogi"), _ZERO),
    "fedadagrad": Method(partial(fedopt, second="adagrad"), _ZERO),
    "scaffold1": Method(partial(scaffold, option=1)),
    "scaffold2": Method(partial(scaffold, option=2)),
    "feddyn": Method(feddyn, {"alpha over n_i / mean n (its code)": {"scaled": True}}),
    "fedacg": Method(fedacg),
    "fedsmoo": Method(fedsmoo, {"v without the last s_i (its code)": {"last": False}}),
    "fafed": Method(
        fafed,
        {
            "line 3 with A_0": {"divided_first": True},
            "old A at the end of a round (its code)": {"old_matrix": True},
        },
    ),
    "diloco": Method(diloco, {"AdamW begins anew in every round": {"anew": True}}),
    "cfedavg": Method(cfedavg),
    "fiarse": Method(fiarse, {"no bias factor (its code)": {"biased": False}}),
    "dp_clip": Method(dp_clip),
    "dp_noise": Method(dp_noise),
    "median": Method(median),
    "trimmed_mean": Method(trimmed_mean),
    "krum": Method(krum),
}
