"""The server's step of a round, checked before it replaces the server state."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..aggregation.rows import add_leaves, forged
from ..algorithm import Round
from ..compression import downlink
from ..core.net import Net
from ..core.vector import Rec, Vec, fields, rec, tree
from ..engines.base import Engine, Remote, TooFewError
from ..engines.client_results import ClientCost, RangeResult
from ..engines.guard import at_server
from ..engines.stages import stages_of
from ..engines.summation import finite, rate, root, unmoved_where_unheld
from ..errors import ClientError
from ..evaluation.settings import Curve
from ..evaluation.sizes import holding
from ..federation.federation import Federation
from ..federation.sampling import ClientSampler
from ..plan import Plan
from ..stage import At, overriding
from .client_selection import Broadcast
from .exchanges import Training
from .state import Ledger, State

_log = logging.getLogger(__name__)


class Step:
    """The server's step. It changes nothing by itself."""

    def __init__(self, plan: Plan, fed: Federation, net: Net) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self.aggregation = plan.aggregation
        stages = stages_of(plan, fed, net)
        self._link, self._announcing = stages[-1].link, overriding(stages, "announce")
        self._keeping = overriding(stages, "server_init")
        self._last = overriding(stages[::-1], "root")

    def initial_state(
        self, x: Vec, srv: Rec, buffers: Vec, cohorts: ClientSampler, curve: Curve, ledger: Ledger
    ) -> State:
        """The state before round 1. ledger: what the exchange before it cost."""
        down = rec()
        if codecs := self._link.codes_down:
            msg = at_server(self.plan.algorithm, self.fed.seed, "broadcast", 0, srv)
            down = downlink.first_state(codecs, msg, self.net.layout, self.fed.seed)
        states = {s.name: s.server_init(x) for s in self._keeping}
        stages = rec(**{"link": states["link"], "down": down} | states)
        pool = self.aggregation.init(self.net.init(), cohorts.expected, cohorts.share)
        return State(0, srv, stages, pool, buffers, ledger, curve)

    def first(self, x: Vec, up: Rec) -> Rec:
        """The method's record before round 1. up: what clients sent before it, or None."""
        return self._call("server_init", 0, x, up)

    def broadcast(self, state: State) -> Rec:
        """The next broadcast, before stages and link."""
        return self._call("broadcast", state.round, state.srv)

    def model(self, state: State) -> Vec:
        """The current model (d,), which is evaluated and exported."""
        x: Vec = self._call("model", state.round, state.srv)
        return x

    def _call(self, name: str, round: int, *arguments: Any) -> Any:
        """Call a server-side method of the algorithm, and name the round in its errors."""
        return at_server(self.plan.algorithm, self.fed.seed, name, round, *arguments)

    def message(self, now: State, engine: Engine) -> Broadcast:
        """The next broadcast as its clients read it."""
        msg, round = self.broadcast(now), now.round
        seed, states, remote = self.fed.seed, now.stages, isinstance(engine, Remote)
        for stage in self._announcing:
            stage_state = getattr(states, stage.name, rec())
            msg, stage_state = stage.announce(msg, stage_state, At(seed, round, -1))
            states = states._replace(**{stage.name: stage_state}) if stage.name else states
        place = self.net.layout, seed, round
        msg, down, packet = downlink.announce(
            self._link.codes_down, msg, states.down, *place, packed=remote
        )
        if isinstance(engine, Remote):
            engine.announced(packet, round)
        msg = self.aggregation.tell(msg, now.aggregation)
        return Broadcast(msg, now.buffers, states._replace(down=down))

    def checked(self, engine: Engine, training: Training, now: State) -> tuple[RangeResult, State]:
        """Train -> the results that count, and the server's new state, of the same round. Raises
        TooFewError for fewer updates than the aggregation needs.

        Finite updates may have a sum that is not finite, and a finite mean a square that is none:
        with nonfinite = "stop" a state with such a value raises ClientError, with "skip" no update
        counts in the round.
        """
        results = training.run(engine)
        self._check_enough(results, training.contacted, now.round)
        new = self.next_state(now, results, training.answers.mean)
        where = self._spoilt(new.server, now.server)
        if where is None:
            return results, new
        message = f"round {now.round + 1}: the server's '{where}' is not finite after server_step()"
        if self.plan.nonfinite == "stop":
            raise ClientError(
                f"{self.plan.algorithm.method}: {message}, though each client update is; lower "
                "local.lr, set local.clip, look at the method's server, or leave such rounds out "
                'with nonfinite="skip"'
            )
        _log.warning("%s: no update counts in this round, the model stays as it was", message)
        return _uncounted(results), now

    def _check_enough(self, results: RangeResult, contacted: int, round: int) -> None:
        """Raise TooFewError for fewer updates than the aggregation needs: none of them counts."""
        count = sum(s.answered for s in results.stats)
        if count >= (fewest := self.aggregation.fewest(contacted, count)):
            return
        name = self.aggregation.name
        message = f"round {round + 1}: {count} updates came, and {name} needs {fewest}"
        _log.warning("%s: the model stays as it was", message)
        lost = _uncounted(results).stats
        raise TooFewError(message, lost, {}, again=False, fewest=fewest)

    def reported(self, srv: Rec, t: int) -> dict[str, float]:
        """The columns that the method itself reports after t rounds."""
        return self._call("report", t, srv) if self.plan.algorithm.reports else {}

    def probed(self, results: RangeResult) -> Rec:
        """The mean of what clients sent before round 1. Raises ClientError if it is not finite."""
        total = root(results.nodes)
        up = tree(lambda v: v / total.n, total.up)
        if not finite(up):
            raise ClientError(
                f"{self.plan.algorithm.method}: what clients sent before round 1 is finite, and "
                "its sum is not; is the model's loss of a usual size on their data?"
            )
        return up

    def next_state(self, now: State, results: RangeResult, mean: Rec) -> State:
        """The server after a round; unchanged if no update arrived."""
        total, aggregation, t = root(results.nodes), self.aggregation, now.round
        if total is None:
            total = self._nobody(now)
        if total is None:
            return now
        last = self._last_rate(t, [] if aggregation.private else results.stats)
        readable = self._read(total, now.aggregation, t)
        up, buffers, own_state = aggregation.root(readable, now.aggregation, self.fed.seed, t)
        weight_share, update_rate = total.mass / self.fed.all_weights, total.n / self.fed.population
        states = now.stages
        for stage in self._last:
            old = getattr(states, stage.name, rec())
            up, new = stage.root(up, old, weight_share, update_rate)
            states = states._replace(**{stage.name: new}) if stage.name else states
        total = total._replace(n=aggregation.answered(total, now.aggregation))
        part = rate(total, self.fed.population, self._holding)
        up = self._with_answers(up, mean, t) if mean else up
        rnd = Round(t, part, last, relative_weight(total, self.fed))
        srv = unmoved_where_unheld(self._call("server_step", t, now.srv, up, rnd), now.srv, total)
        return now._replace(srv=srv, stages=states, buffers=buffers, aggregation=own_state)

    def _read(self, total: Rec, state: Rec, t: int) -> Rec:
        """What the aggregation reads of the sum: behind an attack that forges, of its rows."""
        attack, aggregation = self.fed.attack, self.aggregation
        if attack is None or not attack.omniscient or "rows" not in total._fields:
            return total
        rows = forged(total, attack.forged, self.fed.hostile)
        return add_leaves(aggregation, rows, aggregation.tell(rec(), state), self.fed.seed, t)

    def _last_rate(self, t: int, stats: Sequence[ClientCost]) -> float:
        """The local rate of a round's last step, by the longest rounds and the shortest pass."""
        longest = max((s.steps for s in stats), default=1)
        pace = min((self.fed.pace(s.client) for s in stats if s.steps == longest), default=0)
        return self.fed.local.rate(t, max(longest - 1, 0), pace)

    def _nobody(self, now: State) -> Rec:
        """The sum of no updates, if the aggregation steps then too."""
        trace = self.plan.trace
        if trace is None:
            return None

        def empty(v: Any) -> Any:
            return v.to(now.srv.x) if isinstance(v, Tensor) and v.ndim else float(v)

        return self.aggregation.nobody(empty(trace.up.delta), tree(empty, trace.averaged))

    def _with_answers(self, up: Rec, mean: Rec, t: int) -> Rec:
        """What server_step() gets, with the means of the answers to ask()."""
        if both := set(up._fields) & set(mean._fields):
            raise ClientError(
                f"{self.plan.algorithm.method}: the server, round {t + 1}: ask() and unweighted() "
                f"both give '{min(both)}', and server_step() gets the fields of both: give one of "
                "them another name"
            )
        return rec(**up._asdict(), **mean._asdict())

    @functools.cached_property
    def _holding(self) -> Vec | None:
        averaged = self.plan.averaged  # else not needed
        return holding(self.plan.submodel, self.fed, self.net) if averaged else None

    def _spoilt(self, new: Rec, now: Rec) -> str | None:
        """The first field that is not finite now and was finite before, or is new."""
        if finite(new):
            return None
        before = fields(now)
        for path, v in fields(new).items():
            if not finite(v) and (path not in before or finite(before[path])):
                return path.removeprefix("srv.").removeprefix("stages.")
        return None


def relative_weight(total: Rec, fed: Federation) -> float | Tensor:
    """The mean relative weight of a round's client updates; with sub-models (d,), of those that
    hold a coordinate, 1 where nobody does. 1.0 exactly if all clients weigh the same.
    """
    if "relative" not in total._fields:
        return fed.relative(float(total.mass) / float(total.n)) if fed.unequal else 1.0
    mean: Tensor = torch.where(total.holders > 0, total.relative / total.holders, 1.0)
    return mean


def _uncounted(results: RangeResult) -> RangeResult:
    """The costs of a round in which no update counts: client states stay as they were."""
    return RangeResult([], {}, [s._replace(answered=False) for s in results.stats])
