"""Example-level differential privacy: the settings of DP-SGD at a client, its batches and its
noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation.privacy import epsilon, rounds_within
from ..core.hyper import InnerShare, Part, Positive, hyper
from ..core.rng import generator

Normals = Callable[[torch.Size, torch.dtype], Tensor]


class ExamplePrivacy(Part):
    """DP-SGD (Abadi et al., CCS 2016, Algorithm 1) in the local steps of every client, for methods
    that ask for one gradient a step. Every example is in a batch with probability q = batch / n_i
    by itself; its gradient is shortened to `clip`; the sum gets normal noise of deviation noise *
    clip in every coordinate, and is divided by the expected batch size. Two clients of which one
    has an example more give updates that differ by at most (epsilon, delta), in all their rounds.

    n_i, the numbers of steps and rounds, and who takes part are not hidden. The noise of a
    simulation is made from the run's seed: whoever knows the seed can subtract it.
    Reference: https://arxiv.org/abs/1607.00133
    """

    title: ClassVar[str] = "local.dp"
    unkeyed: ClassVar[bool] = False  # nobody can make the draws again
    noise: Positive = hyper(1.0, "deviation of the noise over clip", "sigma")
    clip: Positive = hyper(1.0, "largest norm of the gradient of an example", "C")
    delta: InnerShare = hyper(
        1e-5,
        "chance with which epsilon may not hold; below 1 / n_i",
    )
    max_epsilon: Positive | None = hyper(
        None, "the budget: a client takes part in no round after which its epsilon would be more"
    )

    # ------------------------------------------------------------------------------------ the draws
    def batches(self, examples: Tensor, rate: float, steps: int, *keys: int) -> list[Tensor]:
        """The Poisson batches of a client's round, of its examples (n,): some may be empty.
        rate: q; keys: seed, round, client.
        """
        uniform = self.uniforms(*keys)
        return [examples[uniform(len(examples)) < rate] for _ in range(steps)]

    def uniforms(self, seed: int, round: int, client: int) -> Callable[[int], Tensor]:
        """What draws a client's batches in a round: n -> numbers in [0, 1), float64."""
        source = generator(seed, "example batches", round, client)
        return lambda n: torch.rand(n, generator=source, dtype=torch.float64)

    def normals(self, seed: int, round: int, client: int) -> Normals:
        """What draws normal numbers for a client in a round: shape, type -> numbers."""
        source = generator(seed, "example noise", round, client)
        return lambda shape, dtype: torch.randn(shape, generator=source, dtype=dtype)

    def noises(self, expected: int, *keys: int) -> Normals:
        """What draws the noise of the mean gradients of a client's round. expected: the size of its
        batches; keys: seed, round, client.
        """
        normal, deviation = self.normals(*keys), self.noise * self.clip / expected
        return lambda shape, dtype: deviation * normal(shape, dtype)

    # --------------------------------------------------------------------------------- the accounts
    def epsilon(self, rate: float, steps: int) -> float:
        """What so many steps cost, with batches of a share q of the examples. Raises ConfigError
        without dp-accounting.
        """
        return epsilon(self.noise, rate, self.delta, steps) if steps else 0.0

    def rounds_within(self, rate: float, steps: int, most: int) -> int:
        """How many of so many rounds of these steps the budget allows, which may be none."""
        if self.max_epsilon is None:
            return most
        if self.epsilon(rate, steps) > self.max_epsilon:
            return 0
        allowed = rounds_within(self.max_epsilon, self.noise, rate, self.delta, steps * most)
        return allowed // steps


def one_gradient(name: str, why: str) -> str:
    """The sentence about a part that looks at the data beside its one gradient in a step."""
    return (
        f"local.dp and {name}: {why}, and the accounts are of one gradient a step; take a method "
        "such as fedavg, fedprox or scaffold, or leave out local.dp"
    )
