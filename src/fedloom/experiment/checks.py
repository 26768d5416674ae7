"""Of a run before it begins: clock, clients and what they hold, aggregation, rates, evaluation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..aggregation import AGGREGATIONS, Aggregation, Gives, Mean, TrimmedMean
from ..core.net import Net
from ..data import FederatedData
from ..engines.base import Engine, Remote
from ..engines.vmap_refusals import refuse_examples
from ..errors import CompositionError, ConfigError
from ..evaluation.declared import higher_is_better
from ..evaluation.metrics import exported
from ..evaluation.settings import Evaluation, check_share
from ..federation.attacks import ATTACKS, Attack
from ..federation.capacities import Capacities, assign_capacities, levels_of
from ..federation.choice import ClientChoice
from ..federation.clock import Asynchronous, Clock
from ..federation.devices import Devices
from ..federation.federation import Federation
from ..federation.local import Local
from ..federation.sampling import ClientSampler
from ..plan import Plan
from ..submodels.base import SubModel, check_capacity
from .fit_checks import check_precision, check_singles

_log = logging.getLogger(__name__)


# ----------------------------------------------------------------------- the clock and the clients
def check_clock(
    clock: Clock | None,
    cohorts: ClientSampler,
    choose: ClientChoice | None,
    devices: Devices | None,
) -> None:
    """Raise ConfigError for a clock or an availability that the rest does not suit."""
    availability, asynchronous = cohorts.availability, isinstance(clock, Asynchronous)
    over_selection = ""
    if availability is not None and availability.over_selection != 1:
        over_selection = f"availability.over_selection = {availability.over_selection:g}"
    if choose is not None:
        cohorts.check_countable("choose")
    if over_selection and choose is not None:
        raise ConfigError(f"choose and {over_selection} both say who is asked; keep one of them")
    by_seconds = cohorts.trace is not None and cohorts.trace.unit == "seconds"
    timed = over_selection or ("an availability.trace in seconds" if by_seconds else "")
    if timed and devices is None:
        raise ConfigError(
            f"{timed} needs to know how fast the clients are; give devices, such as "
            "devices=lognormal"
        )
    if not asynchronous:
        return
    cohorts.check_countable("clock = asynchronous")
    if choose is not None or over_selection:
        raise ConfigError(
            f"{over_selection or 'choose'} is about the cohort of a round, and clock = "
            "asynchronous has none; leave it out"
        )
    for name in ("buffer", "concurrency"):
        if (value := getattr(clock, name) or 0) > cohorts.active:
            raise ConfigError(
                f"clock.{name} must be at most the {cohorts.active} clients there are, got {value}"
            )


def check_simulated(clock: Clock | None, cohorts: ClientSampler, engine: Engine) -> None:
    """Raise CompositionError for a clock of a simulation in a real federation."""
    if isinstance(engine, Remote) and (
        isinstance(clock, Asynchronous) or cohorts.availability is not None
    ):
        setting = "clock = asynchronous" if isinstance(clock, Asynchronous) else "availability"
        raise CompositionError(
            f"{setting} is of a simulation: in a real federation clients come and go by "
            "themselves; leave it out"
        )


def check_rounds(aggregation: Aggregation, cohorts: ClientSampler, rounds: int) -> None:
    """Say how many of the first rounds will have fewer updates than the aggregation needs. Who is
    drawn and who drops out is known before. Raises ConfigError if all have.
    """
    timed = cohorts.trace is not None and cohorts.trace.unit == "seconds"
    if timed or not rounds or not aggregation.fewest(1, 0):
        return
    rounds_checked = min(rounds, max(10, 1_000_000 // cohorts.population))
    counts = [_turnout(cohorts, t) for t in range(rounds_checked)]
    few = sum(updates < aggregation.fewest(clients, updates) for clients, updates in counts)
    if few == rounds_checked:
        raise ConfigError(
            f"none of the first {rounds_checked} rounds will have as many updates as "
            f"{aggregation.name} needs; take a larger cohort"
        )
    if few:
        _log.warning(
            "%d of the first %d rounds will have fewer updates than %s needs: these change "
            "nothing, and count; take a larger cohort",
            *(few, rounds_checked, aggregation.name),
        )


def _turnout(cohorts: ClientSampler, round: int) -> tuple[int, int]:
    """How many clients are asked in a round (from 0), and how many answer."""
    cohort, given = cohorts.of(round), cohorts.availability
    if given is None:
        return len(cohort), len(cohort)
    dropped = given.dropped(cohorts.population, cohorts.seed, round)
    stay = sum(not dropped[i] for i in cohort)
    return len(cohort), min(stay, cohorts.cohort_size(len(cohorts.present(round))))


def say_simulated(aggregation: Aggregation, engine: Any) -> None:
    """Say when a run begins that it does without the masks of a deployment."""
    if aggregation.masked and not isinstance(engine, Remote):
        _log.warning(
            "aggregation.secure = true: a simulation has no masks; its numbers and bytes are those "
            "of a deployment, where the server sees sums alone"
        )


# ------------------------------------------------------------------------- what clients can hold
def levels_for(capacities: Capacities | None, submodel: SubModel | None) -> tuple[float, ...]:
    """All capacities. Raises ConfigError for some without a sub-model, or the other way round."""
    if capacities is None or (not isinstance(capacities, Path) and not len(capacities)):
        if submodel is None:
            return ()
        raise ConfigError(
            f"submodel {submodel.name} needs capacities: levels such as ['1/4', 1], or one for "
            "every client"
        )
    if submodel is None:
        raise ConfigError("capacities are given without a submodel; give submodel= too")
    return tuple(sorted(set(levels_of(capacities))))


def checked_capacities(
    submodel: SubModel | None,
    capacities: Capacities | None,
    net: Net,
    data: FederatedData,
    seed: int,
) -> tuple[float, ...]:
    """One capacity per client; none without a scheme. Raises CompositionError for a model that the
    scheme cannot cut, or that has no row of the classifier for each class where it needs them.
    """
    if submodel is None or capacities is None:
        return ()
    for level in levels_for(capacities, submodel):
        check_capacity(submodel, level)
        if net.buffer_layout.d and level < 1:
            raise CompositionError(
                f"{submodel.name} and {type(net.module).__name__}: nets of several sizes cannot "
                f"share the running statistics '{net.buffer_layout.names[0]}'; use GroupNorm, or "
                "batch norm with track_running_stats=False"
            )
        view = submodel.view(net.init(), net, level, 0)
        for remark in submodel.remarks(view, net, level):
            _log.warning("%s", remark)
    rows = submodel.rows(net)
    if rows is not None and (data.classes is None or int(rows.max()) + 1 < data.classes):
        labels = "no labels" if data.classes is None else f"labels up to {data.classes - 1}"
        raise CompositionError(
            f"{submodel.name} averages a class's row of the classifier over the clients that have "
            f"the class, but '{data.name}' has {labels} and {type(net.module).__name__} "
            f"{int(rows.max()) + 1} outputs; take submodel.owners = false, or a model with an "
            "output for every class"
        )
    return assign_capacities(capacities, data.population, seed)


# ------------------------------------------------------------------------------------- the method
def check_parts(
    plan: Plan, fed: Federation, net: Net, cohorts: ClientSampler, most: int, rounds: int
) -> None:
    """Raise ConfigError or CompositionError for parts that do not suit model, device or cohorts;
    warn of what does not do what its paper says, or does nothing. most: clients of a server step.
    """
    check_precision(fed.local, net)
    refuse_examples(plan, fed, net)
    dp, largest = fed.local.dp, int(fed.data.sizes.max())
    if dp is not None and dp.delta * largest >= 1:
        _log.warning(
            "local.dp.delta = %g and a client of %d examples: a method that publishes one of them "
            "at random would be as private; take a delta well below %.2g",
            *(dp.delta, largest, 1 / largest),
        )
    check_singles(net, fed, plan.submodel, cohorts)
    _check_aggregation(plan.aggregation, net, cohorts, most, rounds)
    _ = fed.speeds  # refuses what no device has
    if plan.private is not None:
        plan.private.split(net)  # refuses a model of which all or nothing would be private
    _check_rate(fed.local, rounds, fed.population)
    for warning in plan.warnings():
        _log.warning(warning)


def _check_rate(local: Local, rounds: int, population: int) -> None:
    """Warn about a list of learning rates that is shorter than the run, and about rounds in which
    nothing is learnt, because the schedule has ended before the run. Raises ConfigError for a list
    that could mean the clients.
    """
    rates = local.lr if isinstance(local.lr, Sequence) else ()
    if len(rates) == population and 1 < population < rounds:
        raise ConfigError(
            f"local.lr has {population} learning rates for {rounds} rounds and {population} "
            f"clients: a list has one per round; give {rounds} rates, one more that repeats the "
            f"last one, {rates[-1]:g}, or each client's factor by local.lr_by_client"
        )
    if 0 < len(rates) < rounds:
        _log.warning(
            "local.lr has %d learning rates for %d rounds; the last one, %g, holds from then on",
            *(len(rates), rounds, rates[-1]),
        )
    if rounds and local.rate(rounds - 1, 0) == 0:
        _log.warning(
            "local.schedule is 0 from round %d of %d on, and clients learn nothing there; give a "
            "schedule that lasts as long as the run, or one with a floor",
            *(next(t for t in range(rounds) if local.rate(t, 0) == 0) + 1, rounds),
        )


def _check_aggregation(
    aggregation: Aggregation, net: Net, cohorts: ClientSampler, most: int, rounds: int
) -> None:
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


# --------------------------------------------------------------------------------- the evaluation
def check_evaluation(
    evaluation: Evaluation, parted: bool, headline: Any, data: FederatedData, engine: Any
) -> None:
    """Warn about settings that have no effect without sub-models (not `parted`) or a test set.
    Raises ConfigError for a target that an accuracy, if the headline metric is ours, cannot reach.
    """
    target, remote = evaluation.target, isinstance(engine, Remote)
    if exported(headline) == "accuracy" and target is not None:
        check_share(target, f"evaluate.target = {target:g}")
    if target is not None and data.test_inputs is None and not remote:
        _log.warning(
            "evaluate.target = %g has no effect: it is looked for on a test set, and '%s' has "
            "none; give test samples, or leave evaluate.target out",
            *(target, data.name),
        )
    if evaluation.finetune and (parted or remote):
        raise ConfigError(
            f"evaluate.finetune = {evaluation.finetune} is of simulated runs of whole models, "
            f"and this one has {'nodes' if remote else 'sub-models'}; drop it"
        )
    if evaluation.finetune and data.test_clients is None:
        _log.warning(
            "evaluate.finetune = %d has no effect: clients have no test rows of their own; "
            "give data.tests = matched",
            evaluation.finetune,
        )
    for key in () if parted else ("sizes", "sizes_every"):
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
