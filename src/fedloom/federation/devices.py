"""How fast clients are: the source of simulated time and time-outs.

Nothing waits: seconds are computed from steps and bytes, and real hardware changes no number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.hyper import NonNegative, Part, Positive, hyper
from ..core.registry import Registry
from ..core.rng import generator
from ..errors import ConfigError, SettingError


class Devices(Part):
    """The clients' speeds. up, down: bytes per second of every client's connection; None: sending
    takes no time.
    """

    up: Positive | None = hyper(None, source="bytes a second")
    down: Positive | None = hyper(None, source="bytes a second")

    def speeds(self, clients: int, seed: int) -> list[float]:
        """Local steps per second of every client."""
        raise NotImplementedError

    def travel(self, bytes_down: int, bytes_up: int) -> float:
        """Seconds that a client's two messages of a round take.

        >>> Levels(up=100.0).travel(5000, 200)
        2.0
        """
        ways = ((bytes_down, self.down), (bytes_up, self.up))
        return sum(count / rate for count, rate in ways if rate is not None)


class Levels(Devices):
    """Speeds in steps per second, assigned to the clients in turn, or one for every client.

    >>> Levels(steps_per_second=(1.0, 4.0)).speeds(5, seed=0)
    [1.0, 4.0, 1.0, 4.0, 1.0]
    """

    steps_per_second: Sequence[Positive] = hyper((1.0, 2.0, 4.0), source="an example")

    def __post_init__(self) -> None:
        if not self.steps_per_second:
            raise SettingError("steps_per_second", (), "a list of numbers above 0", owner="Levels")

    def speeds(self, clients: int, seed: int) -> list[float]:
        levels = self.steps_per_second
        return [float(levels[i % len(levels)]) for i in range(clients)]


class LogNormal(Devices):
    """Speeds median exp(sigma z) in steps per second, z normal, drawn once from the run's seed."""

    median: Positive = hyper(10.0, source="steps a second")
    sigma: NonNegative = hyper(0.5, source="0.5: the fastest sixth is 2.7 times the slowest's")

    def speeds(self, clients: int, seed: int) -> list[float]:
        z = torch.randn(clients, generator=generator(seed, "devices"), dtype=torch.float64)
        speeds = [float(v) for v in self.median * (self.sigma * z).exp()]
        if extreme := [v for v in speeds if not 1e-9 < v < 1e12]:
            raise ConfigError(
                f"LogNormal.median = {self.median:g} and sigma = {self.sigma:g} give a client "
                f"{extreme[0]:g} steps a second; with sigma = 0.5 the fastest sixth is 2.7 times "
                "as fast as the slowest"
            )
        return speeds


DEVICES: Registry[type[Devices]] = Registry(
    "device profile", {"levels": Levels, "lognormal": LogNormal}
)
