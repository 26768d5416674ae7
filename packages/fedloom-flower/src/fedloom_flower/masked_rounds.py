"""A round of masked updates, at the server: keys, the round itself, and what gives its sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from fedloom.aggregation.integer_ring import IntegerRing
from fedloom.core.vector import Rec, rec
from fedloom.core.wire import nbytes, unpack
from fedloom.engines.client_results import ClientCost, RangeResult, TrainTask, cost
from fedloom.engines.client_round import Client
from fedloom.engines.summation import push, spread
from fedloom.errors import NotFiniteError, WireError
from fedloom.stage import Download

from .masked_answers import digest_of, packet_of, summed_like
from .masked_sums import UnmaskingServer, new_session
from .message import Masks, MissingError, Update, What

Parts = dict[str, bytes]
Take = Callable[[int, bytes], None]  # a client, and what it sent
Answers = dict[int, "tuple[Update | Masks, Parts] | WireError"]


class RoundExchange(Protocol):
    """What the engine does for a masked round."""

    def ask_clients(
        self, task: TrainTask, what: What, packets: Mapping[int, Parts], enough: int | None
    ) -> Answers:
        """Send, and wait for so many answers, or for all -> what came of each client."""

    def refuse(self, round: int, i: int, error: WireError) -> None:
        """List a client whose update does not count."""


class MaskedRun(NamedTuple):
    """What the server knows of all rounds. like: the fields of an update in integers; itself:
    whether clients say themselves how much they count; name: of every message; agreement: a digest
    of what all agreed on, see MaskedAnswers.
    """

    client: Client
    aggregation: IntegerRing
    like: Rec
    itself: bool
    name: str
    exchange: RoundExchange
    agreement: str = ""


class MaskedRound:
    """One draw of a round. download: what all its clients are sent, as `packet`."""

    def __init__(self, run: MaskedRun, task: TrainTask, download: Download, packet: Parts) -> None:
        self._run, self._task, self._download, self._packet = run, task, download, packet
        cohort, t = task.cohort, task.round
        self._down, self._up = dict.fromkeys(cohort, 0), dict.fromkeys(cohort, 0)
        self._like = summed_like(run.like, download)
        thresholds = run.aggregation.needed(len(cohort))
        self._session, self._opening = new_session(run.name + run.agreement, t, cohort, thresholds)
        values = sum(nbytes(self._like).values()) // 8
        self._sum = UnmaskingServer(self._session, values, digest_of(download))

    def result(self) -> RangeResult:
        """The sum of its clients' leaves, at the place of the first of them; without any if they
        are too few, or their masks do not cancel.
        """
        cohort, part, updates = self._task.cohort, None, dict[int, Update]()
        present, _ = self._ask("keys", dict.fromkeys(cohort, self._opening), self._sum.take_keys)
        keys = {i: self._sum.keys_for(i) for i in present} if self._enough(present, present) else {}
        if keys:
            heads, _ = self._ask("round", keys, self._sum.take_masked)
            updates = {i: head for i, head in heads.items() if isinstance(head, Update)}
        if updates and self._enough(updates, present):
            try:
                self._unmask(list(updates))
                part = self._leaves(updates)
            except (WireError, NotFiniteError) as error:
                self._refuse(updates, f"the masked sum of its round cannot be read: {error}")
        out, first = RangeResult([], {}, []), min(updates, default=-1)
        for place, i in enumerate(cohort, self._task.first):
            out.stats.append(self._cost(i, i in keys, updates.get(i) if part is not None else None))
            push(out.nodes, 0, place, part if i == first else None)
        return out

    def _ask(
        self, what: What, blocks: Mapping[int, bytes], take: Take, enough: int | None = None
    ) -> tuple[dict[int, Update | Masks], list[int]]:
        """Tell clients, and have `take` read what they answer -> the headers of those whose answer
        could be read, and who has not answered yet. enough: as many answers are waited for.
        """
        heads, silent, t = dict[int, Update | Masks](), list[int](), self._task.round
        first = self._packet if what == "round" else {}
        packets = {i: first | {"masks": raw} for i, raw in blocks.items()}
        for i, answer in self._run.exchange.ask_clients(self._task, what, packets, enough).items():
            self._down[i] += len(blocks[i])
            try:
                if isinstance(answer, WireError):
                    raise answer
                head, parts = answer
                if set(parts) != {"masks"}:
                    raise WireError("an answer to a masked sum that has not its block")
                take(i, parts["masks"])
                if what == "keys":
                    self._up[i] += len(parts["masks"])
                heads[i] = head
            except WireError as error:
                if what != "unmask":  # whose update is in the sum by then
                    self._run.exchange.refuse(t, i, error)
                elif isinstance(error, MissingError):
                    silent.append(i)
        return heads, silent

    def _enough(self, clients: Mapping[int, object], owners: Mapping[int, object]) -> bool:
        """Whether they give a sum, and can take the masks of those who were there off it; if not,
        nobody's update counts.
        """
        try:
            self._session.check(clients, owners)
        except WireError as error:
            self._refuse(clients, str(error))
            return False
        return True

    def _refuse(self, clients: Mapping[int, object], why: str) -> None:
        for i in clients:
            self._run.exchange.refuse(self._task.round, i, WireError(why))

    def _unmask(self, left: list[int]) -> None:
        """Ask until enough shares are here. Raises WireError if they do not come."""
        flags = self._sum.received()
        for i in left:  # each sends its shares, of which the server takes those that come first
            self._up[i] += self._sum.shares_size(i)
        while (lacking := self._sum.lacking) > 0:
            before = len(left)
            _, left = self._ask(
                "unmask", dict.fromkeys(left, flags), self._sum.take_shares, lacking
            )
            if before - len(left) < lacking:  # in all its time
                raise WireError(f"it lacks the shares of {self._sum.lacking} clients")

    # -------------------------------------------------------------------------------------- the sum
    def _leaves(self, updates: Mapping[int, Update]) -> Rec:
        """The sum of their leaves. Raises NotFiniteError for integers that no such sum has, as
        where masks do not cancel.
        """
        download, run, leaves = self._download, self._run, self._run.client.leaves
        assert leaves is not None
        weights = [1.0 if run.itself else run.client.fed.weight(i) for i in updates]
        parts = [leaves.expected_leaf(weight, download.buffers) for weight in weights]
        up = unpack(packet_of(self._sum.sum(), self._like), self._like)
        if not run.itself:
            up = up._replace(weight=sum(leaf.weight for leaf in parts))
        travelling = up.buffers if "buffers" in up._fields else download.buffers[:0].long()
        rest = sum((leaf.buffers for leaf in parts), download.buffers.long() * 0)
        up = rec(**{name: v for name, v in up._asdict().items() if name != "buffers"})
        part = leaves.part(up, download.arrived(travelling, rest), len(updates))
        return spread(part, download.wire)

    def _cost(self, i: int, informed: bool, head: Update | None) -> ClientCost:
        """What a client was sent and sent. informed: it was sent the broadcast; head: its update
        counts.
        """
        down = (self._download.down if informed else {}) | {"masks": self._down[i]}
        if head is None:
            return ClientCost(i, False, 0.0, 0, 0, down, {})
        steps = len(self._run.client.steps.rates(i, self._task.round))
        return cost(i, steps, head, down, nbytes(self._like) | {"masks": self._up[i]})
