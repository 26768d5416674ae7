"""The settings that belong to no registry: the top keys, and the tables without a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt

from ..core.device import device_of
from ..engines import on_processes
from ..errors import ConfigError
from ..federation.local import Local
from ..server.evaluation import Evaluation
from .validation import STRICT, Origin, model_of


class Settings(BaseModel):
    """The keys outside all tables; types are checked here, ranges by the parts they are for."""

    model_config = STRICT
    name: str
    label: str
    rounds: PositiveInt
    seed: NonNegativeInt = 0
    cohort: int | float | list[list[int]] = 1.0
    sampling: Literal["fixed", "bernoulli"] = "fixed"
    weighting: Literal["examples", "uniform"] | list[float] = "examples"
    nonfinite: Literal["stop", "skip"] = "stop"
    engine: str = "serial"
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    channels_last: bool | None = None


class Checkpoint(BaseModel):
    """When the state is written, and how many checkpoints stay."""

    model_config = STRICT
    every_rounds: PositiveInt | None = None
    every_seconds: PositiveFloat | None = 60.0
    keep: PositiveInt = 2


class Memory(BaseModel):
    """Client memory: bytes that may stay resident; the rest lives on disk only."""

    model_config = STRICT
    resident_bytes: PositiveInt | None = None


# tables without a name
PLAIN: dict[str, Callable[[], type[BaseModel]]] = {
    "local": lambda: model_of(Local, frozenset({"schedule"})),
    "evaluate": lambda: model_of(Evaluation),
    "checkpoint": lambda: Checkpoint,
    "memory": lambda: Memory,
}


def engine_for(engine: str, device: str) -> str:
    """A recipe's engine on this device: processes cannot share a GPU, so that there the engines are
    measured.

    >>> engine_for("workers", "cpu")
    'workers'
    """
    elsewhere = on_processes(engine) and device_of(device).type != "cpu"
    return "auto" if elsewhere else engine


def check_device(device: str, origin: Origin) -> None:
    """Raise ConfigError for a device that there is not."""
    try:
        device_of(device)
    except ConfigError as error:
        raise ConfigError(f"{origin.of('device')}: {error}") from None
