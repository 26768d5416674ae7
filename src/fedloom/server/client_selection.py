"""Who takes part in a round: drawn, or chosen by a rule that may ask candidates first; and who of
those that were asked answers in time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Oracle
from ..core.interrupts import undisturbed
from ..core.net import Net
from ..core.ranks import Group
from ..core.rng import generator
from ..core.vector import Rec, Vec, rec, tree, zeros
from ..engines.base import one_thread
from ..engines.client_results import ClientCost, Request, TrainTask
from ..engines.client_round import Client
from ..engines.summation import numbers
from ..errors import ConfigError
from ..federation.choice import ClientChoice, Known, checked
from ..federation.federation import Federation
from ..federation.sampling import ClientSampler
from ..plan import Plan
from ..stage import Download
from ..trace import traced
from ..wrappers.base import method_in
from .state import AsyncState, State

if TYPE_CHECKING:
    from .rounds import Run


class Durations:
    """What a client is sent, and when it will have answered: its steps, its passes over all data,
    and both messages. Where the size of an update depends on its values, as behind an entropy code,
    the time is that of an update of normal random numbers.
    """

    def __init__(self, plan: Plan, fed: Federation, net: Net) -> None:
        self._plan, self._fed, self._net = plan, fed, net
        self._sizes: dict[float, tuple[dict[str, int], int]] = {}

    def down(self, msg: Rec, client: int) -> dict[str, int]:
        """{field: bytes} of the broadcast that a client is sent, uncompressed."""
        return self._of(msg, client)[0]

    def seconds(self, msg: Rec, client: int, down: Mapping[str, int]) -> float:
        """Simulated seconds until a client has answered. down: what it is really sent."""
        fed, up = self._fed, self._of(msg, client)[1]
        batch = fed.local.batch or int(fed.data.sizes[client])
        work = fed.steps(client) + self._passes * -(-int(fed.data.sizes[client]) // batch)
        return fed.duration(client, work, sum(down.values()), up)

    @functools.cached_property
    def _client(self) -> Client:
        return Client(self._plan, self._fed, self._net)

    @functools.cached_property
    def _passes(self) -> int:
        """How often the method asks for the gradient or loss over all data in a round."""
        calls = 0

        def count(value: Any) -> Any:
            nonlocal calls
            calls += 1
            return value

        full = Oracle(lambda x: count(zeros(x)), lambda x: count(x.sum()))
        method = method_in(self._plan.algorithm)
        try:
            traced(method, self._net.layout.d, full)
        except Exception as error:  # an author's code may raise anything on zeros
            raise ConfigError(
                f"{method.method} fails on vectors of zeros ({error}), from which the time of a "
                "client's round is read; run it without a clock and over_selection"
            ) from error
        return calls

    def _of(self, msg: Rec, client: int) -> tuple[dict[str, int], int]:
        """The bytes that a client is sent and sends: the same for all of one capacity."""
        capacity = self._fed.capacity(client)
        if capacity not in self._sizes:
            with one_thread():
                task = TrainTask(msg, self._net.init_buffers(), {}, [client], 0)
                download = self._client.downloads(task)[capacity]
                self._sizes[capacity] = download.down, self._up(download, msg.x)
        return self._sizes[capacity]

    def _up(self, download: Download, x: Vec) -> int:
        trace, client = self._plan.trace, self._client
        update = rec(delta=x, weight=1.0) if trace is None else trace.up
        draw = generator(self._fed.seed, "typical")

        def typical(v: Any) -> Any:
            vector = isinstance(v, Tensor) and v.ndim
            return torch.randn(v.shape, generator=draw).to(x) if vector else v

        up = download.wire.take(numbers(tree(typical, update)))
        buffers = download.travelling(download.buffers)
        if client.leaves is not None:  # of integers of 8 bytes
            up, buffers = (
                tree(lambda v: v.long() if isinstance(v, Tensor) else v, up),
                buffers.long(),
            )
        state = client.link.client_init(x, download)
        _, sent, _ = client.link.coded(up, state, download, 0, 0)
        return sum(sent.values()) + buffers.nbytes


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
