"""What rounds of noise and sampling cost in privacy: dp-accounting, loaded when it is asked."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..core.extras import install
from ..errors import ConfigError

_LOOSE = 100.0  # an epsilon that protects nobody: no more exact one is sought


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
    low, high = 0, rounds  # of `low` rounds it is known that they fit
    if epsilon(noise, rate, delta, rounds) <= limit:
        return rounds
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon(noise, rate, delta, middle) <= limit:
            low = middle
        else:
            high = middle
    return low
