"""An experiment's clock, and clients that come, go or do not answer: what goes with what."""

from __future__ import annotations

from ..engines.base import Engine, Remote
from ..errors import CompositionError, ConfigError
from ..federation.choice import ClientChoice
from ..federation.clock import Asynchronous, Clock
from ..federation.devices import DEVICES, Devices
from ..federation.sampling import Cohorts


def devices_for(clock: Clock | None, devices: Devices | None) -> Devices | None:
    """The given device profile; the usual one where an asynchronous clock needs one."""
    if devices is not None or not isinstance(clock, Asynchronous):
        return devices
    usual: Devices = DEVICES.make("lognormal")
    return usual


def check_clock(
    clock: Clock | None, cohorts: Cohorts, choose: ClientChoice | None, devices: Devices | None
) -> None:
    """Raise ConfigError for a clock or an availability that the rest does not suit."""
    if choose is not None:
        cohorts.check_countable("choose")
    given = cohorts.availability
    more = "" if given is None or given.over_selection == 1 else f"{given.over_selection:g}"
    if more and choose is not None:
        raise ConfigError(
            f"choose and availability.over_selection = {more} both say who is asked; keep one of "
            "them"
        )
    by_seconds = cohorts.trace is not None and cohorts.trace.unit == "seconds"
    timed = "an availability.trace in seconds" if by_seconds else ""
    timed = f"availability.over_selection = {more}" if more else timed
    if timed and devices is None:
        raise ConfigError(
            f"{timed} needs to know how fast the clients are; give devices, such as "
            "devices=lognormal"
        )
    if isinstance(clock, Asynchronous):
        _check_asynchronous(clock, cohorts, choose, more)


def _check_asynchronous(
    clock: Asynchronous, cohorts: Cohorts, choose: ClientChoice | None, more: str
) -> None:
    cohorts.check_countable("clock = asynchronous")
    if choose is not None or more:
        what = f"availability.over_selection = {more}" if more else "choose"
        raise ConfigError(
            f"{what} is about the cohort of a round, and clock = asynchronous has none; leave it "
            "out"
        )
    for name in ("buffer", "concurrency"):
        if (getattr(clock, name) or 0) > cohorts.there:
            raise ConfigError(
                f"clock.{name} must be at most the {cohorts.there} clients there are, got "
                f"{getattr(clock, name)}"
            )


def largest(clock: Clock | None, cohorts: Cohorts) -> int:
    """The most clients of a server step."""
    return clock.buffer if isinstance(clock, Asynchronous) else cohorts.largest


def check_simulated(clock: Clock | None, cohorts: Cohorts, engine: Engine) -> None:
    """Raise CompositionError for a clock of a simulation in a real federation."""
    if isinstance(engine, Remote) and (
        isinstance(clock, Asynchronous) or cohorts.availability is not None
    ):
        what = "clock = asynchronous" if isinstance(clock, Asynchronous) else "availability"
        raise CompositionError(
            f"{what} is of a simulation: in a real federation clients come and go by themselves; "
            "leave it out"
        )
