"""Client-level differential privacy of a masked sum: each client adds a part of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.hyper import InnerShare, Positive, hyper
from ..core.rng import generator
from ..core.vector import Rec, rec, tree
from ..errors import ConfigError
from .base import Gives, NoiseFrom
from .integer_ring import ROOM, IntegerRing
from .norm_bound import BELOW, factor_to, length, scaled
from .privacy import epsilon, rounds_allowed

Words = Callable[[int], NDArray[np.uint64]]  # so many numbers of 64 random bits
_LEAST = 8.0  # deviation of a client's noise, in units of the ring
_WITHIN = 16.0  # deviations that noise never leaves, but with a probability of 2 e^-128 a value


class DiscreteGaussian(IntegerRing):
    """The distributed discrete Gaussian mechanism (Kairouz, Liu & Steinke, ICML 2021, Algorithms 1
    and 2): all that a client adds to a masked sum is one vector that is shortened to `clip`; it
    becomes whole multiples of 2^-bits, and each gets noise of a discrete normal distribution. So
    the server sees no sum without noise. Clients count equally.

    The noise of `honest` clients has the deviation noise * clip; a sum has as many clients, beside
    those that may be colluding, or there is none. If more come, there is more noise than is
    accounted for. What a round tells of any one client costs as much as normal noise of this
    deviation, as `dp` counts it, without a gain from sampling: members of a sum know each other.
    The paper's correction (tau) is below e^-600 for the noise that is allowed here.

    Where the paper differs: values are rounded towards 0 here, and at random there, so that
    rounding makes no vector longer than clip; the rotation that spreads a vector evenly is left
    out, since the ring has 64 bits, and so is the wrap modulo a small number.
    The noise of a simulation is made from the run's seed: whoever knows the seed can subtract it.
    Reference: https://arxiv.org/abs/2102.06387
    """

    gives = Gives.BOUNDED
    noise_from = NoiseFrom.SEED
    secure: bool = hyper(True, "clients mask what they send; nothing else is allowed here")
    clip: Positive = hyper(1.0, "largest norm of an update, all its fields together")
    noise: Positive = hyper(1.0, "deviation of the noise over clip")
    honest: int = hyper(
        2, "clients whose noise alone hides each of them", "as many as surely answer", low=1
    )
    delta: InnerShare = hyper(1e-5, "chance with which epsilon may not hold", "below 1 / N")
    max_epsilon: Positive | None = hyper(None, "the run ends before it would be more than this")

    @property
    def deviation(self) -> float:
        """Of one client's noise, in units of 2^-bits."""
        return self.noise * self.clip * 2.0**self.bits / math.sqrt(self.honest)

    def fewest(self, clients: int, updates: int) -> int:
        """So many that beside colluding ones `honest` are among them."""
        return max(super().fewest(clients, updates), self.honest + self.colluders(clients))

    def check(self, count: int) -> None:
        if not self.secure:
            raise ConfigError(
                "aggregation.secure = false: the server would see each update with a part of the "
                "noise alone; leave it out, or take aggregation = dp, whose noise is the server's"
            )
        super().check(count)
        if (fewest := self.fewest(count, count)) > count:
            raise ConfigError(
                f"aggregation.honest = {self.honest} beside {self.colluders(count)} that may be "
                f"colluding needs {fewest} clients in a round, got {count}; take less of it, or a "
                "larger cohort"
            )
        most = ROOM / 2.0**self.bits
        if self.deviation < _LEAST or self.clip * (1 + _WITHIN * self.noise) > most:
            raise ConfigError(
                f"aggregation.bits = {self.bits}: a client's noise has a deviation of "
                f"{self.deviation:.3g} units of 2^-bits, and {_LEAST:g} is the least; clip with "
                f"{_WITHIN:g} deviations of the noise is "
                f"{self.clip * (1 + _WITHIN * self.noise):.3g}, and {most:.3g} is the most; take "
                "other aggregation.bits, clip or noise"
            )

    def leaf(self, part: Rec, msg: Rec, seed: int, round: int, client: int) -> Rec:
        part = scaled(part, factor_to(self.clip * BELOW, length(part, numbers=True)), numbers=True)
        words, unit = self.words(seed, round, client), 2.0**self.bits

        def hidden(v: Any) -> Any:
            whole = (torch.as_tensor(v, dtype=torch.float64) * unit).trunc().long()
            noise = discrete_gaussian(whole.numel(), self.deviation, words)
            whole = whole + torch.from_numpy(noise).reshape(whole.shape).to(whole.device)
            return whole if isinstance(v, Tensor) else int(whole)

        values = rec(delta=hidden(part.delta), unweighted=tree(hidden, part.unweighted))
        whole = part._replace(**values._asdict(), buffers=part.buffers.long())
        return whole._replace(mass=int(unit), weight=int(unit))

    def words(self, seed: int, round: int, client: int) -> Words:
        """What draws the random bits of a client's noise."""
        source = generator(seed, "client noise", round, client)

        def draw(count: int) -> NDArray[np.uint64]:
            return torch.randint(-(2**63), 2**63 - 1, (count,), generator=source).numpy().view("u8")

        return draw

    # --------------------------------------------------------------------------------- the accounts
    def allowed(self, state: Rec, rounds: int) -> int:
        return rounds_allowed(self.max_epsilon, self.noise, 1.0, self.delta, rounds)

    def report(self, state: Rec, round: int) -> Mapping[str, Any]:
        return {"epsilon": epsilon(self.noise, 1.0, self.delta, round + 1)}

    def summary(self, state: Rec, rounds: int) -> Mapping[str, Any]:
        return {"epsilon": epsilon(self.noise, 1.0, self.delta, rounds), "delta": self.delta}


def discrete_gaussian(count: int, sigma: float, words: Words) -> NDArray[np.int64]:
    """Integers (count,), each k with a probability proportional to exp(-k^2 / (2 sigma^2)), but for
    the rounding of probabilities to doubles (Canonne, Kairouz & Steinke, NeurIPS 2020, Algorithm
    3): of the discrete Laplace distribution, and accepted so often that the normal one is left.
    """
    scale = 2 ** max(round(math.log2(sigma)), 0)
    out, end = np.empty(count, dtype=np.int64), 0
    while end < count:
        y = _discrete_laplace(min(2 * (count - end) + 16, 1 << 16), scale, words)
        chances = np.exp(-((np.abs(y) - sigma**2 / scale) ** 2) / (2 * sigma**2))
        y = y[_happens(chances, words)][: count - end]
        out[end : end + len(y)], end = y, end + len(y)
    return out


def _discrete_laplace(tries: int, scale: int, words: Words) -> NDArray[np.int64]:
    """Some integers, each k with a probability proportional to exp(-|k| / scale) (Algorithm 2).
    scale: a power of 2.
    """
    raw = words(tries)
    size = (raw & np.uint64(scale - 1)).astype(np.int64)
    accepted = _happens(np.exp(-size / scale), words)
    size, minus = size[accepted], raw[accepted] >> np.uint64(63) == 1
    left = np.arange(len(size))
    while len(left := left[_happens(np.full(len(left), math.exp(-1)), words)]):
        size[left] += scale
    numbers: NDArray[np.int64] = np.where(minus, -size, size)[~(minus & (size == 0))]
    return numbers


def _happens(chances: NDArray[np.float64], words: Words) -> NDArray[np.bool_]:
    """Whether what has these probabilities happens."""
    most = 2.0**64 - 2.0**11  # the largest double below 2^64
    return words(len(chances)) < np.minimum(chances * 2.0**64, most).astype(np.uint64)
