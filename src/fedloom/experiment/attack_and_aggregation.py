"""An aggregation and an attack, put together with the rest of an experiment."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..aggregation import AGGREGATIONS, Aggregation, Krum, Mean, TrimmedMean
from ..core.net import Net
from ..data import FederatedData
from ..errors import CompositionError, ConfigError
from ..federation.attacks import ATTACKS, Attack
from ..federation.sampling import Cohorts

_log = logging.getLogger(__name__)


def words_for(rule: Aggregation, attack: Attack | None) -> list[str]:
    """The names of an aggregation that is not the mean, and of an attack, for a run's label."""
    known = {make: name for registry in (AGGREGATIONS, ATTACKS) for name, make in registry.items()}
    parts = [part for part in (rule, attack) if part is not None and part != Mean()]
    return [known.get(type(part), type(part).__name__) for part in parts]


def flipped(data: FederatedData, attack: Attack | None, seed: int) -> FederatedData:
    """The data as hostile clients have changed their own."""
    return data if attack is None else attack.data(data, attack.hostile(data.population, seed))


def check_aggregation(
    rule: Aggregation, net: Net, cohorts: Cohorts, most: int, rounds: int
) -> None:
    """Raise CompositionError or ConfigError for an aggregation that the model or the cohort does
    not suit; say if it ends the run early. most: clients of a server step.
    """
    if net.buffer_layout.d and not rule.statistics:
        raise CompositionError(
            f"{rule.name} and {type(net.module).__name__}: the running statistics "
            f"'{net.buffer_layout.names[0]}' are no changes that could be shortened; use "
            "GroupNorm, or batch norm with track_running_stats=False"
        )
    listed = isinstance(cohorts.size, Sequence)
    drawn = most if cohorts.sampling == "fixed" else round(cohorts.expected)
    count = len(cohorts.example) if listed else drawn
    if isinstance(rule, Krum):
        rule.check(count)
    if isinstance(rule, TrimmedMean) and (said := rule.idle(count)):
        _log.warning(said)
    if rule.private and (cohorts.sampling != "poisson" or listed):
        got = "cohorts that are listed" if listed else cohorts.sampling
        raise ConfigError(
            "aggregation = dp needs sampling = poisson with a share or a number of clients, as its "
            f"account of privacy takes it, got {got}"
        )
    if rule.private and (cohorts.churn, cohorts.availability) != (None, None):
        what = "churn" if cohorts.availability is None else "availability"
        raise ConfigError(
            f"aggregation = dp and {what}: a client's share of the rounds is then not the one "
            f"that is accounted for; leave {what} out"
        )
    state = rule.init(net.init(), cohorts.expected, cohorts.share)
    if (least := rule.allowed(state, rounds)) < rounds:
        _log.warning(
            "rounds = %d: aggregation.max_epsilon ends the run after round %d", rounds, least
        )
