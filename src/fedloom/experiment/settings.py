"""The keys of a configuration outside of all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch

from ..core.hyper import NonNegativeInt, Part, PositiveInt, hyper
from ..engines.base import Engine
from .arguments import metrics_of, type_of


class Settings(Part, frozen=False):
    """The keys of a configuration outside of all tables."""

    title: ClassVar[str] = ""

    name: str = hyper("", "of the run's folder")
    label: str = hyper("", "of curves and tables")
    rounds: PositiveInt = hyper(meaning="number of rounds in all; a finished run can be extended")
    seed: NonNegativeInt = hyper(0, "of all randomness of the run: same seed, same bits")
    cohort: int | float | Sequence[Sequence[int | str]] = hyper(
        1.0,
        "clients of a round: a share (0.05; 1.0: all), a number (5; 1: one client), or lists of "
        "clients by number or name, one per round, repeated",
    )
    sampling: Literal["fixed", "bernoulli", "poisson", "cycle"] = hyper(
        "fixed",
        "fixed: exactly as many; bernoulli: each with that probability, again if nobody comes; "
        "poisson: never again, for aggregation=dp; cycle: in turns, in random order",
    )
    weighting: Literal["examples", "uniform"] | Sequence[float] | Mapping[str | int, float] = hyper(
        "examples",
        "of client updates in the mean: by examples, uniform, a list with a weight for each "
        "client, or {client: weight}",
        example='"examples", "uniform" or a list or table with a weight for each client',
    )
    nonfinite: Literal["stop", "skip"] = hyper(
        "stop",
        "a client update that is not finite: stop ends the run, skip leaves it out, with a warning",
    )
    engine: str | Engine = hyper(
        "auto",
        "auto chooses; or serial, workers:N (processes), vectorised:N (clients at once), "
        "workers:2+vectorised:50; +onednn after serial or workers (products in oneDNN)",
        example="a name such as 'workers:2' (in Python also an Engine)",
    )
    device: str = hyper("auto", "auto takes a CUDA GPU if there is one; cpu, cuda, cuda:1, mps")
    model_seed: NonNegativeInt | None = hyper(
        None,
        "of torch's generator before the model is made, to begin with another system's weights; "
        "none: by seed",
    )
    dtype: torch.dtype | str | None = hyper(
        None, "of the model and the numbers sent", example="float32 or float64"
    )
    channels_last: bool | None = hyper(None, "memory format of images; none: if it is faster")
    metrics: str | Sequence[str] | None = hyper(
        None,
        "names, the first is the headline: accuracy, perplexity, concordance, brier, torchmetrics' "
        "(auc, f1, mae, ...), your own FILE.py:NAME; none: by the data",
        example="a list of names such as ['auc', 'f1']",
    )
    resident_bytes: PositiveInt | None = hyper(
        None,
        "most bytes of client state that stay in memory, the rest is on disk (runs with a folder); "
        "none: all of it",
    )

    def __post_init__(self) -> None:
        self._dtype = type_of(self.dtype)
        self._metrics = metrics_of(self.metrics, getattr(self, "submodel", None) is not None)
