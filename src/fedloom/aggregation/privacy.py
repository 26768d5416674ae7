"""Client-level differential privacy: bounded updates, a fixed denominator, noise on the sum.
What rounds cost is for dp-accounting, which is loaded when it is asked.
"""

from __future__ import annotations

import functools
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.extras import install
from ..core.hyper import InnerShare, NonNegative, Positive, hyper
from ..core.rng import generator
from ..core.vector import Rec, Vec, rec, tree
from ..errors import ConfigError
from .base import Aggregated, Aggregation, Gives, NoiseFrom, Reads
from .norm_bound import BELOW, factor_to, length, scaled

_LOOSE = 100.0  # an epsilon that protects nobody: no more exact one is sought


class DifferentialPrivacy(Aggregation):
    """DP-FedAvg (McMahan, Ramage, Talwar & Zhang, ICLR 2018, Algorithm 1), for any method: all that
    a client adds to the sums, delta and the fields of unweighted(), is one vector that is shortened
    to `clip` after decoding; clients count equally; the sum gets normal noise of deviation noise *
    clip in every coordinate, and is divided by the expected number of clients q N. Every client
    takes part in a round with probability q by itself (sampling = poisson). Two federations of
    which one has a client more give runs that differ by at most (epsilon, delta).

    quantile: clip then follows this quantile of the updates\' lengths (Andrew et al., NeurIPS 2021,
    Algorithm 1); a round\'s noise is shared between the sum and the count of updates within clip.
    The noise of a simulation is made from the run\'s seed: whoever knows the seed can subtract it.
    Reference: https://arxiv.org/abs/1710.06963
    """

    reads = Reads.WHOLE_SUM
    gives = Gives.BOUNDED
    noise_from = NoiseFrom.SEED
    clip: Positive = hyper(1.0, "largest norm of an update, all its fields together")
    noise: Positive = hyper(1.0, "deviation of the noise over clip")
    delta: InnerShare = hyper(1e-5, "chance with which epsilon may not hold", "below 1 / N")
    max_epsilon: Positive | None = hyper(None, "the run ends before it would be more than this")
    quantile: float | None = hyper(
        None,
        "of the lengths that clip follows; none: clip stays",
        "0.5 in the paper",
        low=0,
        high=1,
    )
    clip_rate: NonNegative = hyper(0.2, "how fast clip follows the quantile", "0.2 in the paper")
    count_noise: Positive | None = hyper(
        None, "deviation of the noise of the count", "none: a 20th of the expected clients"
    )

    def init(self, x: Vec, expected: float, share: float) -> Rec:
        numbers = {"expected": expected, "share": share}
        if self.quantile is not None:
            numbers["clip"] = self.clip
        return rec(**{k: torch.tensor(v, dtype=torch.float64) for k, v in numbers.items()})

    def tell(self, msg: Rec, state: Rec) -> Rec:
        return msg if self.quantile is None else rec(**msg._asdict(), clip=state.clip)

    def leaf(self, part: Rec, msg: Rec, seed: int, round: int, client: int) -> Rec:
        bound = self.clip if self.quantile is None else float(msg.clip)
        size = length(part, numbers=True)
        part = scaled(part, factor_to(bound * BELOW, size), numbers=True)
        part = part._replace(mass=1.0, weight=1.0, delta=part.delta.clone())
        if self.quantile is None:
            return part
        return rec(**part._asdict(), within=0.5 if size <= bound else -0.5)

    def nobody(self, delta: Vec, averaged: Rec) -> Rec:
        empty = rec(
            n=0.0, mass=0.0, weight=0.0, delta=delta, unweighted=averaged, buffers=delta[:0]
        )
        return empty if self.quantile is None else rec(**empty._asdict(), within=0.0)

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        expected = float(state.expected)
        bound = self.clip if self.quantile is None else float(state.clip)
        normal = self.normals(seed, round)
        deviation = self._sum_noise(expected) * bound

        def hidden(v: Any) -> Any:
            like = v if isinstance(v, Tensor) else torch.zeros((), dtype=torch.float64)
            noise = normal(like.shape, like.dtype)
            mean = (v + deviation * noise.to(like.device)) / expected
            return mean if isinstance(v, Tensor) else float(mean)

        up = rec(delta=hidden(total.delta), **tree(hidden, total.unweighted)._asdict())
        if self.quantile is not None:
            noise = normal(torch.Size(), torch.float64)
            count = total.within + self._count_noise(expected) * float(noise)
            within = count / expected + 0.5
            new = state.clip * math.exp(-self.clip_rate * (within - self.quantile))
            state = state._replace(clip=new)
        return Aggregated(up, total.buffers, state)

    def normals(self, seed: int, round: int) -> Callable[[torch.Size, torch.dtype], Tensor]:
        """What draws a round's noise: shape, type -> normal numbers."""
        source = generator(seed, "noise", round)
        return lambda shape, dtype: torch.randn(shape, generator=source, dtype=dtype)

    def answered(self, total: Rec, state: Rec) -> float:
        return float(state.expected)

    # --------------------------------------------------------------------------------- the accounts
    def _count_noise(self, expected: float) -> float:
        return expected / 20 if self.count_noise is None else self.count_noise

    def _sum_noise(self, expected: float) -> float:
        """The part of `noise` that is the sum\'s: Andrew et al., Theorem 1."""
        if self.quantile is None:
            return self.noise
        count = 2 * self._count_noise(expected)
        if count <= self.noise:
            raise ConfigError(
                f"aggregation.count_noise = {count / 2:g} is too little beside aggregation.noise "
                f"= {self.noise:g}: it must be above {self.noise / 2:g}; give more of it, or a "
                "larger cohort"
            )
        deviation: float = (self.noise**-2 - count**-2) ** -0.5
        return deviation

    def allowed(self, state: Rec, rounds: int) -> int:
        """How many of so many rounds the budget allows. Raises ConfigError if it allows none, and
        if the accounts cannot be made.
        """
        self._sum_noise(float(state.expected))
        share = float(state.share)
        return rounds_allowed(self.max_epsilon, self.noise, share, self.delta, rounds)

    def report(self, state: Rec, round: int) -> Mapping[str, Any]:
        spent = epsilon(self.noise, float(state.share), self.delta, round + 1)
        clip = {} if self.quantile is None else {"clip": float(state.clip)}
        return {"epsilon": spent, **clip}

    def summary(self, state: Rec, rounds: int) -> Mapping[str, Any]:
        rate = float(state.share)
        return {
            "epsilon": epsilon(self.noise, rate, self.delta, rounds),
            "epsilon_tight": tight_epsilon(self.noise, rate, self.delta, rounds),
            "delta": self.delta,
        }


# ------------------------------------------------------------------------------------- the accounts
@contextmanager
def _library() -> Iterator[Any]:
    """dp_accounting, silent about the orders that it leaves out, and without the handler that its
    logging adds for all others.
    """
    handlers = list(logging.root.handlers)
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise ConfigError(
            "the accounts of privacy (aggregation = dp, discrete_gaussian, local.dp) need "
            f"dp-accounting; install it with: {install('privacy')}"
        ) from None
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield dp_accounting
    finally:
        log.setLevel(level)
        logging.root.handlers[:] = handlers


def _round(library: Any, noise: float, rate: float) -> Any:
    """One round, or one step: normal noise on a sum over those that are drawn with probability
    `rate`, clients or examples.
    """
    return library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))


@functools.cache
def _step(noise: float, rate: float) -> tuple[Any, Any]:
    """The orders of Renyi differential privacy, and what one round costs in each."""
    with _library() as library:
        accountant = library.rdp.RdpAccountant()
        accountant.compose(_round(library, noise, rate))
        return accountant.orders, accountant.rdp


def epsilon(noise: float, rate: float, delta: float, rounds: int) -> float:
    """Epsilon of so many rounds by Renyi differential privacy; costs add up in every order."""
    orders, costs = _step(noise, rate)
    with _library() as library:
        of = library.rdp.rdp_privacy_accountant.compute_epsilon
        return float(of(orders, rounds * costs, delta)[0])


@functools.cache
def tight_epsilon(noise: float, rate: float, delta: float, rounds: int) -> float:
    """The same by privacy loss distributions: less, in seconds. An epsilon above 100, which
    protects nobody, stays as it is.
    """
    loose = epsilon(noise, rate, delta, rounds)
    if loose > _LOOSE:
        return loose
    with _library() as library:
        accountant = library.pld.PLDAccountant()
        accountant.compose(_round(library, noise, rate), rounds)
        return float(accountant.get_epsilon(delta))


def rounds_allowed(
    limit: float | None, noise: float, rate: float, delta: float, rounds: int
) -> int:
    """How many of so many rounds a budget allows, None for no budget. Raises ConfigError if it
    allows none, and if the accounts cannot be made.
    """
    one = epsilon(noise, rate, delta, 1)
    if limit is None:
        return rounds
    allowed = rounds_within(limit, noise, rate, delta, rounds)
    if not allowed:
        raise ConfigError(
            f"aggregation.max_epsilon = {limit:g} is less than the {one:.3g} of one round; take "
            "more aggregation.noise, or a smaller cohort"
        )
    return allowed


def rounds_within(limit: float, noise: float, rate: float, delta: float, rounds: int) -> int:
    """How many of so many rounds cost at most this epsilon."""
    if epsilon(noise, rate, delta, rounds) <= limit:
        return rounds
    return bisect_right(range(1, rounds), limit, key=lambda n: epsilon(noise, rate, delta, n))
