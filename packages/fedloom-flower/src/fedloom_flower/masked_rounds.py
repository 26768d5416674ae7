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


class Post(Protocol):
    """What the engine does for a masked round."""

    def told(
        self, asked: TrainTask, what: What, packets: Mapping[int, Parts], wanted: int | None
    ) -> Answers:
        """Send, and wait for so many answers, or for all -> what came of each client."""

    def refuse(self, round: int, i: int, error: WireError) -> None:
        """List a client whose update does not count."""


class Receiving(NamedTuple):
    """What the server knows of all rounds. like: the fields of an update in integers; itself:
    whether clients say themselves how much they count; run: of every message; agreed: a digest of
    what all agreed on, see MaskedAnswers.
    """

    client: Client
    rule: IntegerRing
    like: Rec
    itself: bool
    run: str
    post: Post
    agreed: str = ""


class MaskedRound:
    """One draw of a round. share: what all its clients are sent, as `packet`."""

    def __init__(self, given: Receiving, asked: TrainTask, share: Download, packet: Parts) -> None:
        self._given, self._asked, self._share, self._packet = given, asked, share, packet
        cohort, t = asked.cohort, asked.round
        self._down, self._up = dict.fromkeys(cohort, 0), dict.fromkeys(cohort, 0)
        self._like = summed_like(given.like, share)
        needed = given.rule.needed(len(cohort))
        self._session, self._begin = new_session(given.run + given.agreed, t, cohort, needed)
        values = sum(nbytes(self._like).values()) // 8
        self._sum = UnmaskingServer(self._session, values, digest_of(share))

    def result(self) -> RangeResult:
        """The sum of its clients' leaves, at the place of the first of them; without any if they
        are too few, or their masks do not cancel.
        """
        cohort, part, came = self._asked.cohort, None, dict[int, Update]()
        there, _ = self._heard("keys", dict.fromkeys(cohort, self._begin), self._sum.take_keys)
        keys = {i: self._sum.told(i) for i in there} if self._enough(there, there) else {}
        if keys:
            found, _ = self._heard("round", keys, self._sum.take_masked)
            came = {i: head for i, head in found.items() if isinstance(head, Update)}
        if came and self._enough(came, there):
            try:
                self._unmask(list(came))
                part = self._leaves(came)
            except (WireError, NotFiniteError) as error:
                self._refuse(came, f"the masked sum of its round cannot be read: {error}")
        out, first = RangeResult([], {}, []), min(came, default=-1)
        for place, i in enumerate(cohort, self._asked.first):
            out.stats.append(self._cost(i, i in keys, came.get(i) if part is not None else None))
            push(out.nodes, 0, place, part if i == first else None)
        return out

    def _heard(
        self, what: What, told: Mapping[int, bytes], take: Take, wanted: int | None = None
    ) -> tuple[dict[int, Update | Masks], list[int]]:
        """Tell clients, and have `take` read what they answer -> the headers of those whose answer
        could be read, and who has not answered yet. wanted: as many answers are enough.
        """
        found, silent, t = dict[int, Update | Masks](), list[int](), self._asked.round
        first = self._packet if what == "round" else {}
        packets = {i: first | {"masks": raw} for i, raw in told.items()}
        for i, answer in self._given.post.told(self._asked, what, packets, wanted).items():
            self._down[i] += len(told[i])
            try:
                if isinstance(answer, WireError):
                    raise answer
                head, parts = answer
                if set(parts) != {"masks"}:
                    raise WireError("an answer to a masked sum that has not its block")
                take(i, parts["masks"])
                if what == "keys":
                    self._up[i] += len(parts["masks"])
                found[i] = head
            except WireError as error:
                if what != "unmask":  # whose update is in the sum by then
                    self._given.post.refuse(t, i, error)
                elif isinstance(error, MissingError):
                    silent.append(i)
        return found, silent

    def _enough(self, some: Mapping[int, object], there: Mapping[int, object]) -> bool:
        """Whether they give a sum, and can take the masks of those who were there off it; if not,
        nobody's update counts.
        """
        try:
            self._session.check(some, there)
        except WireError as error:
            self._refuse(some, str(error))
            return False
        return True

    def _refuse(self, some: Mapping[int, object], why: str) -> None:
        for i in some:
            self._given.post.refuse(self._asked.round, i, WireError(why))

    def _unmask(self, left: list[int]) -> None:
        """Ask until enough shares are here. Raises WireError if they do not come."""
        told = self._sum.came()
        for i in left:  # each sends its shares, of which the server takes those that come first
            self._up[i] += self._sum.shares_size(i)
        while (wanted := self._sum.lacking) > 0:
            before = len(left)
            _, left = self._heard(
                "unmask", dict.fromkeys(left, told), self._sum.take_shares, wanted
            )
            if before - len(left) < wanted:  # in all its time
                raise WireError(f"it lacks the shares of {self._sum.lacking} clients")

    # -------------------------------------------------------------------------------------- the sum
    def _leaves(self, came: Mapping[int, Update]) -> Rec:
        """The sum of their leaves. Raises NotFiniteError for integers that no such sum has, as
        where masks do not cancel.
        """
        share, given, leaves = self._share, self._given, self._given.client.leaves
        assert leaves is not None
        weights = [1.0 if given.itself else given.client.fed.weight(i) for i in came]
        known = [leaves.known(weight, share.buffers) for weight in weights]
        up = unpack(packet_of(self._sum.sum(), self._like), self._like)
        if not given.itself:
            up = up._replace(weight=sum(leaf.weight for leaf in known))
        travelling = up.buffers if "buffers" in up._fields else share.buffers[:0].long()
        rest = sum((leaf.buffers for leaf in known), share.buffers.long() * 0)
        up = rec(**{name: v for name, v in up._asdict().items() if name != "buffers"})
        part = leaves.part(up, share.arrived(travelling, rest), len(came))
        return spread(part, share.wire)

    def _cost(self, i: int, there: bool, head: Update | None) -> ClientCost:
        """What a client was sent and sent. there: it was sent the broadcast; head: its update
        counts.
        """
        down = (self._share.down if there else {}) | {"masks": self._down[i]}
        if head is None:
            return ClientCost(i, False, 0.0, 0, 0, down, {})
        steps = len(self._given.client.steps.rates(i, self._asked.round))
        return cost(i, steps, head, down, nbytes(self._like) | {"masks": self._up[i]})
