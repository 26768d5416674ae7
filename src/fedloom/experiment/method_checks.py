"""Of the method before a run: do aggregation, schedules and evaluation suit model and cohorts?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..aggregation import AGGREGATIONS, Aggregation, Gives, Mean, TrimmedMean
from ..core.net import Net
from ..data import FederatedData
from ..engines.base import Remote
from ..engines.vmap_refusals import refuse_examples
from ..errors import CompositionError, ConfigError
from ..evaluation.declared import higher_is_better
from ..evaluation.metrics import exported
from ..evaluation.settings import Evaluation, check_share
from ..federation.attacks import ATTACKS, Attack
from ..federation.federation import Federation
from ..federation.local import Local
from ..federation.sampling import ClientSampler
from ..plan import Plan
from .model_checks import check_precision, check_singles

_log = logging.getLogger(__name__)


def check_parts(
    plan: Plan, fed: Federation, net: Net, cohorts: ClientSampler, most: int, rounds: int
) -> None:
    """Raise ConfigError or CompositionError for parts that do not suit model, device or cohorts.
    most: clients of a server step.
    """
    scheme, aggregation, private = plan.submodel, plan.aggregation, plan.private
    check_precision(fed.local, net)
    refuse_examples(plan, fed, net)
    warn_of_delta(fed)
    check_singles(net, fed, scheme, cohorts)
    check_aggregation(aggregation, net, cohorts, most, rounds)
    _ = fed.speeds  # refuses what no device has
    if private is not None:
        private.split(net)  # refuses a model of which all or nothing would be private


def say_simulated(aggregation: Aggregation, engine: Any) -> None:
    """Say when a run begins that it does without the masks of a deployment."""
    if aggregation.masked and not isinstance(engine, Remote):
        _log.warning(
            "aggregation.secure = true: a simulation has no masks; its numbers and bytes are those "
            "of a deployment, where the server sees sums alone"
        )


def warn_of(plan: Plan) -> None:
    """Say what does not do what its paper says, or does nothing."""
    for warning in plan.warnings():
        _log.warning(warning)


def warn_of_delta(fed: Federation) -> None:
    """Say that local.dp.delta is too large for the largest client."""
    dp, most = fed.local.dp, int(fed.data.sizes.max())
    if dp is not None and dp.delta * most >= 1:
        _log.warning(
            "local.dp.delta = %g and a client of %d examples: a method that publishes one of them "
            "at random would be as private; take a delta well below %.2g",
            *(dp.delta, most, 1 / most),
        )


def check_rate(local: Local, rounds: int, population: int) -> None:
    """Warn about a list of learning rates that is shorter than the run, and about rounds in which
    nothing is learnt, because the schedule has ended before the run. Raises ConfigError for a list
    that could mean the clients.
    """
    if isinstance(local.lr, Sequence) and len(local.lr) == population and 1 < population < rounds:
        raise ConfigError(
            f"local.lr has {population} learning rates for {rounds} rounds and {population} "
            f"clients: a list has one per round; give {rounds} rates, one more that repeats the "
            f"last one, {local.lr[-1]:g}, or each client's factor by local.lr_by_client"
        )
    if isinstance(local.lr, Sequence) and len(local.lr) < rounds:
        _log.warning(
            "local.lr has %d learning rates for %d rounds; the last one, %g, holds from then on",
            len(local.lr),
            rounds,
            local.lr[-1],
        )
    if rounds < 1 or local.rate(rounds - 1, 0) != 0:
        return
    first = next(t for t in range(rounds) if local.rate(t, 0) == 0)
    _log.warning(
        "local.schedule is 0 from round %d of %d on, and clients learn nothing there; give a "
        "schedule that lasts as long as the run, or one with a floor",
        first + 1,
        rounds,
    )


def check_aggregation(
    aggregation: Aggregation, net: Net, cohorts: ClientSampler, most: int, rounds: int
) -> None:
    """Raise CompositionError or ConfigError for an aggregation that the model or the cohort does
    not suit; say if it ends the run early. most: clients of a server step.
    """
    if net.buffer_layout.d and aggregation.gives is Gives.BOUNDED:
        raise CompositionError(
            f"{aggregation.name} and {type(net.module).__name__}: the running statistics "
            f"'{net.buffer_layout.names[0]}' are no changes that could be shortened; use "
            "GroupNorm, or batch norm with track_running_stats=False"
        )
    for where, count in _counts(cohorts, most):
        try:
            aggregation.check(count)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
        if isinstance(aggregation, TrimmedMean) and (remark := aggregation.idle(count)):
            _log.warning("%s%s", where, remark)
    state = aggregation.init(net.init(), cohorts.expected, cohorts.share)
    if (least := aggregation.allowed(state, rounds)) < rounds:
        _log.warning(
            "rounds = %d: aggregation.max_epsilon ends the run after round %d", rounds, least
        )


def _counts(cohorts: ClientSampler, most: int) -> list[tuple[str, int]]:
    """How many clients rounds have, each number once, and of lists the first with so many."""
    if not isinstance(cohorts.size, Sequence):
        return [("", most if cohorts.sampling == "fixed" else round(cohorts.expected))]
    first: dict[int, str] = {}
    for t, members in enumerate(cohorts.size):
        first.setdefault(len(members), f"cohort of round {t + 1}: ")
    return [(where, count) for count, where in first.items() if count]  # nobody: nothing happens


def words_for(aggregation: Aggregation, attack: Attack | None) -> list[str]:
    """The names of an aggregation that is not the mean, and of an attack, for a run's label."""
    names = {make: name for registry in (AGGREGATIONS, ATTACKS) for name, make in registry.items()}
    parts = [part for part in (aggregation, attack) if part is not None and part != Mean()]
    return [names.get(type(part), type(part).__name__) for part in parts]


def check_evaluation(
    evaluation: Evaluation, parted: bool, headline: Any, data: FederatedData, engine: Any
) -> None:
    """Warn about settings that have no effect without sub-models (not `parted`) or a test set.
    Raises ConfigError for a target that an accuracy, if the headline metric is ours, cannot reach.
    """
    target = evaluation.target
    if exported(headline) == "accuracy" and target is not None:
        check_share(target, f"evaluate.target = {target:g}")
    if target is not None and data.test_inputs is None and not isinstance(engine, Remote):
        _log.warning(
            "evaluate.target = %g has no effect: it is looked for on a test set, and '%s' has "
            "none; give test samples, or leave evaluate.target out",
            *(target, data.name),
        )
    if evaluation.finetune:
        if parted or isinstance(engine, Remote):
            where = "nodes" if isinstance(engine, Remote) else "sub-models"
            raise ConfigError(
                f"evaluate.finetune = {evaluation.finetune} is of simulated runs of whole models, "
                f"and this one has {where}; drop it"
            )
        if data.test_clients is None:
            _log.warning(
                "evaluate.finetune = %d has no effect: clients have no test rows of their own; "
                "give data.tests = matched",
                evaluation.finetune,
            )
    if parted:
        return
    for key in ("sizes", "sizes_every"):
        if getattr(evaluation, key) not in ((), None):
            _log.warning("evaluate.%s has no effect: without a sub-model all hold all of it", key)


def direction(target: float | None, name: str, metric: Any, declared: bool | None) -> bool | None:
    """Whether a larger headline metric is better: given, or known. Raises ConfigError if it is
    unknown, and a target needs it.
    """
    higher = higher_is_better(name, metric) if declared is None else declared
    if higher is not None:
        return higher
    text = (
        f"nothing says whether the metric '{name}' is better higher or lower; set "
        f"{name}.higher_is_better = True or False beside the function, or in Python give "
        "Experiment(higher_is_better=...)"
    )
    if target is not None:
        raise ConfigError(f"evaluate.target = {target:g}: {text}; or evaluate.target = none")
    _log.warning("%s: until then no value is the best", text)
    return None
