"""Learning rate schedules: factors of (round, step). A user's own is any such function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from ..core.hyper import NonNegativeInt, Part, Positive, PositiveInt, Share, hyper
from ..core.registry import Registry


class Schedule(Part):
    """schedule(round, step) -> factor of the base rate. round and step count from 0; step within
    the round.
    """

    def __call__(self, round: int, step: int) -> float:
        raise NotImplementedError

    @property
    def by_epoch(self) -> bool:
        """True if the rate depends on the client's passes over its data: see of()."""
        return False

    def of(self, per_epoch: int) -> Callable[[int, int], float]:
        """The schedule of a client that passes over its data in so many steps."""
        return self


class Constant(Schedule):
    """Always 1."""

    def __call__(self, round: int, step: int) -> float:
        return 1.0


class Exponential(Schedule):
    """decay^round * step_decay^step; with step_decay "epoch" decay^(round + e) in pass e over the
    client's own data, from 0 in every round, as FedACG's code has it.

    >>> Exponential(decay=0.5)(2, 7), Exponential(decay=0.5, step_decay="epoch").of(5)(2, 7)
    (0.25, 0.125)
    """

    decay: Positive = hyper(0.998, source="FedACG, FedSMOO: {0.995, 0.998, 1}")
    step_decay: Positive | Literal["epoch"] = hyper(
        1.0,
        "of every local step; epoch: decay itself, of every pass over the client's data",
        "1: one rate per round; epoch: FedACG's code",
    )

    @property
    def by_epoch(self) -> bool:
        return self.step_decay == "epoch"

    def of(self, per_epoch: int) -> Callable[[int, int], float]:
        return (lambda t, k: float(self.decay ** (t + k // per_epoch))) if self.by_epoch else self

    def __call__(self, round: int, step: int) -> float:
        within = 1.0 if isinstance(self.step_decay, str) else self.step_decay**step
        return float(self.decay**round * within)


class WarmUp(Schedule):
    """Up to 1 in equal parts over `rounds` rounds: 1 / rounds in the first one; then 1 (Goyal et
    al., 2017, section 2.2).
    """

    rounds: PositiveInt = hyper(5)

    def __call__(self, round: int, step: int) -> float:
        return min((round + 1) / self.rounds, 1.0)


class Cosine(Schedule):
    """From 1 down to `floor` along half a cosine over `rounds` rounds, then `floor`. In a
    configuration `rounds` is the run's own unless it is given. The first `warmup` of these rise to
    1 instead, as WarmUp does (Loshchilov & Hutter, ICLR 2017, without restarts).
    """

    rounds: PositiveInt = hyper(100)
    floor: Share = hyper(0.0)
    warmup: NonNegativeInt = hyper(0)

    def __call__(self, round: int, step: int) -> float:
        if round < self.warmup:
            return (round + 1) / self.warmup
        progress = min((round - self.warmup) / max(self.rounds - self.warmup, 1), 1.0)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Milestones(Schedule):
    """factor^(number of milestones reached): a staircase by rounds.

    >>> Milestones(at=(10, 20), factor=0.1)(10, 0)
    0.1
    """

    at: tuple[int, ...] = hyper((50, 75))
    factor: Positive = hyper(0.1)

    def __call__(self, round: int, step: int) -> float:
        return float(self.factor ** sum(round >= r for r in self.at))


class InverseSqrt(Schedule):
    """1 / sqrt(1 + round / scale): CFedAvg's decaying rate 1 / (sqrt(round + a) K L), with scale a
    and local.lr = 1 / (sqrt(a) K L).
    """

    scale: Positive = hyper(1.0, source="CFedAvg's a > 0; its theorem asks for 64 and K m at least")

    def __call__(self, round: int, step: int) -> float:
        return 1.0 / math.sqrt(1.0 + round / self.scale)


class FAFEDTheory(Schedule):
    """FAFED's Theorem 2: rho h / (w_t + t)^(1/3) with h = N^(2/3) / L and w_t = max(3/2, 1728 q^3
    N^2 - t).

    It is the rate itself: use it with local.lr = 1, and FAFED(c=...) with `c`. t = round q + step +
    1.

    >>> schedule = FAFEDTheory(N=20, q=10, L=1.0, rho=0.01, b=50)
    >>> round(schedule(0, 0) * 12 * 10 / 0.01, 9)  # rho / (12 L q), for ages
    1.0
    """

    N: PositiveInt = hyper(20, source="number of clients")
    q: PositiveInt = hyper(10, source="local steps per round")
    L: Positive = hyper(1.0, source="smoothness of the loss")
    rho: Positive = hyper(0.01, source="FAFED, section 6")
    b: PositiveInt = hyper(50, source="batch size, in c only")

    def __call__(self, round: int, step: int) -> float:
        t = round * self.q + step + 1
        w = max(1.5, 1728.0 * self.q**3 * self.N**2 - t)
        return float(self.rho * self.N ** (2 / 3) / self.L / (w + t) ** (1 / 3))

    @property
    def c(self) -> float:
        """The factor of alpha_(t+1) = c eta_t^2 that goes with these rates."""
        h = self.N ** (2 / 3) / self.L
        first = 1 / (12 * self.L * self.q * h**3 * self.rho**2)
        return float(first + 60 * self.L**2 / (self.b * self.N * self.rho**2))


class STEMTheory(Schedule):
    """STEM's Theorem 3.1: kappa / (w_t + t)^(1/3) with kappa = (b N)^(2/3) / L and w_t = max(2,
    4096 (L q kappa)^3 - t, (c kappa / (16 L q))^3).

    It is the rate itself: use it with local.lr = 1, and STEM(c=...) with `c`. t = round q + step +
    1; the first batch is b q. The theorem's sigma^2, a factor of kappa^3, w_t and t, cancels. Its
    constants are those of our specification; the third term, which is missing there, keeps
    c eta_t^2 at most 1.

    >>> schedule = STEMTheory(N=20, q=10, L=1.0, b=50)
    >>> round(schedule(0, 0) * 16 * 10, 9)  # 1 / (16 L q), for ages
    1.0
    """

    N: PositiveInt = hyper(20, source="number of clients")
    q: PositiveInt = hyper(10, source="local steps per round")
    L: Positive = hyper(1.0, source="smoothness of the loss")
    b: PositiveInt = hyper(50, source="batch size")

    def __call__(self, round: int, step: int) -> float:
        t, kappa = round * self.q + step + 1, (self.b * self.N) ** (2 / 3) / self.L
        most = 16.0 * self.L * self.q  # eta <= 1 / most
        w = max(2.0, (most * kappa) ** 3 - t, (self.c * kappa / most) ** 3)
        return float(kappa / (w + t) ** (1 / 3))

    @property
    def c(self) -> float:
        """The factor of a_(t+1) = c eta_t^2 that goes with these rates."""
        examples = self.b * self.N
        return float(self.L**2 * (64 / examples + 1 / (24 * examples**2 * self.q)))


class CubeRoot(Schedule):
    """1 / (w + u)^(1/3); u counts the steps before, the rounds, or with unit "epoch" the passes of
    `epoch` steps (FAFED's text runs: its own with local.lr = 1 and w = 2, STEM's with 20 and unit
    "epoch"). FAFED's equation 11 has w = 1 and t = 1 in its first local step, where u is 0.
    """

    w: Positive = hyper(1.0, source="STEM in FAFED's text runs: 1; FAFED, equation 11: 2")
    unit: Literal["step", "round", "epoch"] = hyper(
        "step", source="step: the paper; epoch: its text runs"
    )
    q: PositiveInt = hyper(10, source="local steps per round, for units step and epoch")
    epoch: PositiveInt = hyper(100, source="local steps in a pass over the data, for unit epoch")

    def __call__(self, round: int, step: int) -> float:
        u = round
        if self.unit != "round":
            u = round * self.q + step
        if self.unit == "epoch":
            u //= self.epoch
        return float((self.w + u) ** (-1 / 3))


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule",
    {
        "constant": Constant,
        "exponential": Exponential,
        "cosine": Cosine,
        "warmup": WarmUp,
        "milestones": Milestones,
        "inverse_sqrt": InverseSqrt,
        "fafed_theory": FAFEDTheory,
        "stem_theory": STEMTheory,
        "cube_root": CubeRoot,
    },
)
