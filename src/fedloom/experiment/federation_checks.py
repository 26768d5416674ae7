"""Of the federation before a run: the clock, clients that come, go or do not answer, and what
they can hold.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ..core.net import Net
from ..data import FederatedData
from ..engines.base import Engine, Remote
from ..errors import CompositionError, ConfigError
from ..federation.capacities import Capacities, assign_capacities, levels_of
from ..federation.choice import ClientChoice
from ..federation.clock import Asynchronous, Clock
from ..federation.devices import DEVICES, Devices
from ..federation.sampling import ClientSampler
from ..submodels.base import SubModel, check_capacity

_log = logging.getLogger(__name__)


def devices_for(clock: Clock | None, devices: Devices | None) -> Devices | None:
    """The given device profile; the usual one where an asynchronous clock needs one."""
    if devices is not None or not isinstance(clock, Asynchronous):
        return devices
    usual: Devices = DEVICES.make("lognormal")
    return usual


def check_clock(
    clock: Clock | None,
    cohorts: ClientSampler,
    choose: ClientChoice | None,
    devices: Devices | None,
) -> None:
    """Raise ConfigError for a clock or an availability that the rest does not suit."""
    if choose is not None:
        cohorts.check_countable("choose")
    setting = cohorts.availability
    factor = "" if setting is None or setting.over_selection == 1 else f"{setting.over_selection:g}"
    if factor and choose is not None:
        raise ConfigError(
            f"choose and availability.over_selection = {factor} both say who is asked; keep one of "
            "them"
        )
    by_seconds = cohorts.trace is not None and cohorts.trace.unit == "seconds"
    timed = "an availability.trace in seconds" if by_seconds else ""
    timed = f"availability.over_selection = {factor}" if factor else timed
    if timed and devices is None:
        raise ConfigError(
            f"{timed} needs to know how fast the clients are; give devices, such as "
            "devices=lognormal"
        )
    if isinstance(clock, Asynchronous):
        _check_asynchronous(clock, cohorts, choose, factor)


def _check_asynchronous(
    clock: Asynchronous, cohorts: ClientSampler, choose: ClientChoice | None, factor: str
) -> None:
    cohorts.check_countable("clock = asynchronous")
    if choose is not None or factor:
        setting = f"availability.over_selection = {factor}" if factor else "choose"
        raise ConfigError(
            f"{setting} is about the cohort of a round, and clock = asynchronous has none; leave "
            "it out"
        )
    for name in ("buffer", "concurrency"):
        if (getattr(clock, name) or 0) > cohorts.active:
            raise ConfigError(
                f"clock.{name} must be at most the {cohorts.active} clients there are, got "
                f"{getattr(clock, name)}"
            )


def largest(clock: Clock | None, cohorts: ClientSampler) -> int:
    """The most clients of a server step."""
    return clock.buffer if isinstance(clock, Asynchronous) else cohorts.largest


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
    """One capacity per client; none without a scheme. Raises CompositionError."""
    if submodel is None or capacities is None:
        return ()
    for level in levels_for(capacities, submodel):
        _try_capacity(submodel, level, net)
    _check_rows(submodel, net, data)
    return assign_capacities(capacities, data.population, seed)


def _try_capacity(submodel: SubModel, level: float, net: Net) -> None:
    """Make one view, so that a model that cannot be sliced is refused before the run. The scheme's
    remarks become warnings.
    """
    check_capacity(submodel, level)
    if net.buffer_layout.d and level < 1:
        raise CompositionError(
            f"{submodel.name} and {type(net.module).__name__}: nets of several sizes cannot share "
            f"the running statistics '{net.buffer_layout.names[0]}'; use GroupNorm, or "
            "batch norm with track_running_stats=False"
        )
    view = submodel.view(net.init(), net, level, 0)
    for remark in submodel.remarks(view, net, level):
        _log.warning("%s", remark)


def _check_rows(submodel: SubModel, net: Net, data: FederatedData) -> None:
    """Raise CompositionError for a scheme that needs to know which clients have a class, if the
    labels are no classes or the model has no row for each.
    """
    rows = submodel.rows(net)
    if rows is None:
        return
    outputs = int(rows.max()) + 1
    if data.classes is None or outputs < data.classes:
        labels = "no labels" if data.classes is None else f"labels up to {data.classes - 1}"
        raise CompositionError(
            f"{submodel.name} averages a class's row of the classifier over the clients that have "
            f"the class, but '{data.name}' has {labels} and {type(net.module).__name__} {outputs} "
            "outputs; take submodel.owners = false, or a model with an output for every class"
        )
