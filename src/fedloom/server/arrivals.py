"""The clients of a server step under an asynchronous clock. When a client arrives depends on its
device and not on what it learns: it trains when its update is due, from the model it was sent.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..compression import downlink
from ..core.arithmetic import average
from ..core.ranks import Group
from ..core.vector import Rec, rec
from ..engines.client_results import TrainTask
from ..federation.availability import Availability
from ..federation.choice import ClientChoice
from ..federation.clock import Asynchronous, Clock
from ..federation.federation import Federation
from ..federation.sampling import ClientSampler
from .client_selection import Broadcast, Chooser, Durations, Participants, unanswered
from .state import AsyncState, InFlight, State

if TYPE_CHECKING:
    from .rounds import Run


def chooser(
    clock: Clock | None,
    selector: ClientChoice | None,
    group: Group,
    cohorts: ClientSampler,
    fed: Federation,
    durations: Durations,
) -> Chooser | Arrivals:
    """What says who takes part."""
    if isinstance(clock, Asynchronous):
        return Arrivals(clock, cohorts, fed, durations)
    return Chooser(selector, group, cohorts, fed, durations)


class Arrivals:
    """Sends the newest model to as many clients as may be under way, and says which updates a
    server step is made of.

    Clients that arrive at the same time do so in the order of their numbers, before the model is
    sent to others. A client takes part at most once in a step.
    """

    def __init__(
        self, clock: Asynchronous, cohorts: ClientSampler, fed: Federation, durations: Durations
    ) -> None:
        self.clock, self.cohorts, self.fed, self.durations = clock, cohorts, fed, durations
        self.most = clock.concurrency or cohorts.cohort_size(cohorts.active)

    def of(self, broadcast: Broadcast, state: State, run: Run, attempt: int = 0) -> Participants:
        """The next server step. Raises ConfigError if nobody is available any more."""
        round, before = state.round, state.under_way or AsyncState(0.0, {}, {})
        step = _Step(self, broadcast, state, run, before)
        step.fill()
        models = {**before.models, round: (broadcast.msg, broadcast.buffers)}
        parts = [
            TrainTask(
                *models[t],
                {},
                sorted(i for i, w in step.buffer.items() if w.round == t),
                t,
                scale=scale,
            )
            for t in sorted({w.round for w in step.buffer.values()})
            for scale in [self.clock.weight(round - t)]
        ]
        late = [round - w.round for w in step.buffer.values()]
        columns: dict[str, Any] = {}
        if late:
            columns |= {"staleness_mean": average(late), "staleness_max": max(late)}
        if self.cohorts.availability is not None:
            columns["dropped"] = len(step.lost)
        absent = [unanswered(i, w.down) for i, w in sorted(step.lost.items())]
        rounds = {w.round for w in step.in_flight.values()}
        return Participants(
            parts,
            [],
            absent,
            columns,
            seconds=step.now - before.now,
            sent={i: w.down for i, w in {**step.buffer, **step.lost}.items()},
            under_way=AsyncState(step.now, step.in_flight, {t: models[t] for t in sorted(rounds)}),
        )


class _Step:
    """One server step on its way. buffer: the updates in the buffer; lost: who dropped out."""

    def __init__(
        self, parts: Arrivals, broadcast: Broadcast, state: State, run: Run, before: AsyncState
    ) -> None:
        self._parts, self._broadcast, self._run, self._round = parts, broadcast, run, state.round
        self._trained = state.trained
        self.now, self.in_flight = before.now, dict(before.in_flight)
        self.buffer: dict[int, InFlight] = {}
        self.lost: dict[int, InFlight] = {}
        self._queue = [(way.arrives, i) for i, way in self.in_flight.items()]
        heapq.heapify(self._queue)
        self._order: tuple[float, list[int]] | None = None

    def fill(self) -> None:
        """Let time pass until the buffer is full, or nobody can come any more."""
        size = self._parts.clock.buffer
        while len(self.buffer) < size:
            self._send()
            if not self._queue and (self.buffer or self.lost or not self._wait()):
                return
            self._arrive(size)

    def _wait(self) -> bool:
        """Wait until somebody is available; False if only a later server step can bring that."""
        later = self._parts.cohorts.waits(self.now)
        if later > self.now:
            self.now = later
            self._send()
        return bool(self._queue)

    def _arrive(self, size: int) -> None:
        """All that arrive next at the same time, as far as the buffer takes them."""
        self.now = max(self.now, self._queue[0][0])
        while self._queue and self._queue[0][0] <= self.now and len(self.buffer) < size:
            _, i = heapq.heappop(self._queue)
            way = self.in_flight.pop(i)
            (self.buffer if way.answers else self.lost)[i] = way

    def _send(self) -> None:
        """Send the newest model to clients that are free."""
        free = self._parts.most - len(self.in_flight)
        busy = self.in_flight.keys() | self.buffer.keys() | self.lost.keys()
        for i in itertools.islice((i for i in self._ask_order() if i not in busy), max(free, 0)):
            down = self._down(i)
            arrives = self.now + self._parts.durations.seconds(self._broadcast.msg, i, down)
            self.in_flight[i] = InFlight(self._round, arrives, not self._dropped[i], down)
            heapq.heappush(self._queue, (arrives, i))

    def _ask_order(self) -> list[int]:
        """The available clients in the order in which they are asked."""
        cohorts = self._parts.cohorts
        seconds = self.now if cohorts.trace is not None else 0.0
        if self._order is None or self._order[0] != seconds:
            present = cohorts.present(self._round, self.now)
            if self._run.accounts is not None:
                present = self._run.accounts.left(present, self._trained)
            self._order = seconds, list(cohorts.order(present, self._round))
        return self._order[1]

    def _down(self, client: int) -> dict[str, int]:
        """{field: bytes} that a client is really sent."""
        down = self._parts.durations.down(self._broadcast.msg, client)
        at_down = self._broadcast.stages.down
        if not at_down:
            return down
        missed = downlink.away(self._run.memory.last([client]), self._round)[client]
        return downlink.bill(at_down, down, missed)

    @functools.cached_property
    def _dropped(self) -> Sequence[bool]:
        fed, availability = self._parts.fed, self._parts.cohorts.availability
        availability = Availability() if availability is None else availability
        return availability.dropped(fed.population, fed.seed, self._round)


def versions(under_way: AsyncState) -> Rec:
    """The models of those under way, for a checkpoint."""
    return rec(
        **{f"t{t}": rec(msg=msg, buffers=buffers) for t, (msg, buffers) in under_way.models.items()}
    )


def as_json(under_way: AsyncState) -> dict[str, Any]:
    """The rest of what a checkpoint holds."""
    return {"now": under_way.now, "ways": {str(i): [*w] for i, w in under_way.in_flight.items()}}


def restored(record: Rec, rest: dict[str, Any]) -> AsyncState:
    """What versions() and as_json() wrote."""
    in_flight = {int(i): InFlight(*w) for i, w in rest["ways"].items()}
    models = {int(k[1:]): (model.msg, model.buffers) for k, model in record._asdict().items()}
    return AsyncState(float(rest["now"]), in_flight, models)
