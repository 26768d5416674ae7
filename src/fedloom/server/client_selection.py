"""Who takes part in a round: drawn, or chosen by a rule that may ask candidates first; and who of
those that were asked answers in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.interrupts import undisturbed
from ..core.ranks import Group
from ..core.vector import Rec, Vec
from ..engines.client_results import ClientCost, Request, TrainTask
from ..federation.choice import ClientChoice, Known, checked
from ..federation.federation import Federation
from ..federation.sampling import ClientSampler
from .durations import Durations
from .state import AsyncState, State

if TYPE_CHECKING:
    from .rounds import Run


class Broadcast(NamedTuple):
    """What a round's clients are sent; and the stages' states at the server then."""

    msg: Rec
    buffers: Vec
    stages: Rec


class Participants(NamedTuple):
    """The clients of a server step, and what asking others cost.

    absent: clients that were sent the model and give no update. sent: {client: {field: bytes}}, if
    it was not in this round. seconds: the step's simulated time, if the costs do not tell; waited:
    before it began. columns: of the row; names_clients: whether it names the clients, as where more
    than a draw decides who takes part. under_way: see AsyncState.
    """

    parts: list[TrainTask]
    candidates: list[ClientCost]
    absent: list[ClientCost]
    columns: dict[str, Any]
    names_clients: bool = True
    waited: float = 0.0
    seconds: float | None = None
    sent: Mapping[int, dict[str, int]] = {}
    under_way: AsyncState | None = None


class Chooser:
    """Says who takes part; without a rule, those that `cohorts` draws."""

    def __init__(
        self,
        selector: ClientChoice | None,
        group: Group,
        cohorts: ClientSampler,
        fed: Federation,
        durations: Durations,
    ) -> None:
        self.selector, self._cohorts, self._fed, self._group = selector, cohorts, fed, group
        self._durations = durations

    def of(self, broadcast: Broadcast, state: State, run: Run, attempt: int = 0) -> Participants:
        """Who takes part in the next round. attempt: see ClientSampler.of(). Raises ConfigError for
        a choice that the rule may not make.
        """
        round, before = state.round, state.ledger.simulated
        now = self._cohorts.waits(before)
        cohort, costs = self._select(broadcast, run, round, now, attempt)
        if run.accounts is not None:  # nobody takes the place of who has no budget left
            cohort = run.accounts.left(cohort, state.trained)
        part = TrainTask(broadcast.msg, broadcast.buffers, {}, cohort, round)
        availability = self._cohorts.availability
        if availability is None:
            return Participants([part], costs, [], {}, self.selector is not None or attempt > 0)
        dropped = availability.dropped(self._fed.population, self._fed.seed, round)
        stay = [i for i in cohort if not dropped[i]]
        count = len(self._cohorts.present(round, now))
        late = self._late(broadcast.msg, stay, self._cohorts.cohort_size(count))
        columns = {"dropped": len(cohort) - len(stay), "late": len(late)}
        missing = [i for i in cohort if dropped[i] or i in late]
        absent = [unanswered(i, self._durations.down(broadcast.msg, i)) for i in missing]
        part = part._replace(cohort=[i for i in stay if i not in late])
        return Participants([part], costs, absent, columns, waited=now - before)

    def _late(self, msg: Rec, cohort: list[int], enough: int) -> set[int]:
        """Those that have not answered when as many as are wanted have."""
        if len(cohort) <= enough:
            return set()
        durations = self._durations
        seconds = {i: durations.seconds(msg, i, durations.down(msg, i)) for i in cohort}
        return set(sorted(cohort, key=lambda i: (seconds[i], i))[enough:])

    def _select(
        self, broadcast: Broadcast, run: Run, round: int, now: float, attempt: int
    ) -> tuple[list[int], list[ClientCost]]:
        """Who is asked, and what asking the candidates cost."""
        selector = self.selector
        if selector is None:
            return self._cohorts.of(round, now, attempt), []
        present, sizes = self._cohorts.present(round, now), self._fed.data.sizes.tolist()
        size, seed = min(self._cohorts.largest, len(present)), self._fed.seed
        facts = Known(round, size, present, sizes, tuple(run.log.history[:round]), seed, attempt)
        if not present:
            return [], []
        # a rank's own clock is in its rows: the first one decides
        numbers = self._group.first(lambda: selector.candidates(facts))
        candidates, stats = checked(selector, "candidates", numbers, facts), []
        if candidates:
            with undisturbed():
                states = run.memory.get(candidates)
            task = TrainTask(broadcast.msg, broadcast.buffers, states, candidates, round)
            stats = run.engine.map(Request.LOSSES, task).stats
        losses = {s.client: s.loss for s in stats if s.loss is not None}
        cohort = self._group.first(lambda: selector.cohort(facts, losses))
        return checked(selector, "cohort", cohort, facts), stats


def unanswered(client: int, down: dict[str, int]) -> ClientCost:
    """The cost of a client that was sent the model and gives no update."""
    return ClientCost(client, False, 0.0, 0, 0, down, {})
