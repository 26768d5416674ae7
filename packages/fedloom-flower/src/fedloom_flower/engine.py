"""The server's half of a round, as an engine. Of an update it takes fields whose shapes it knows,
and the loss; weight, steps and rates are the configuration's, whatever a client says, but for the
weight of a method with Trait.WEIGHS_ITSELF.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fedloom.aggregation.integer_ring import IntegerRing
from fedloom.algorithm import ACCUMULATED, CHANGE, Trait
from fedloom.compression.link import LONGEST
from fedloom.core.net import Net
from fedloom.core.vector import Rec, Vec, rec, tree
from fedloom.core.wire import nbytes, pack
from fedloom.engines.base import TooFewError, keep_memory, one_thread
from fedloom.engines.client_results import ClientCost, RangeResult, Request, TrainTask, cost
from fedloom.engines.client_round import Client
from fedloom.engines.evaluation_batches import batch_scores
from fedloom.engines.extra_exchanges import weighed, weighed_probe
from fedloom.engines.scores import Score
from fedloom.engines.summation import finite, push
from fedloom.errors import ConfigError, FedloomError, WireError
from fedloom.federation.federation import Federation
from fedloom.plan import Plan
from fedloom.stage import At, Download
from fedloom.storage.manifest import round_folders

from .attendance import Attendance, SpareError
from .downlink import Downlink
from .masked_rounds import MaskedRound
from .message import (
    A,
    Ask,
    DeclinedError,
    Head,
    Measured,
    MissingError,
    Parts,
    Update,
    What,
    answer_to,
    encode,
)
from .message_exchange import Exchange, ask
from .shapes import probe_of, question_of, read, refuse, refuse_at_server, trace_of

_log = logging.getLogger(__name__)

_STARTS = 20  # bits of an attempt below the number of its start
_BARE = ("keys", "unmask")  # exchanges without a broadcast


class FederationEngine:
    """Sends a round's broadcast to its cohort and reads what comes back.

    exchange: see message_exchange.py. deadline: seconds that it may take. run: the name of the run,
    which every message bears. kept: how many rounds were done at the oldest checkpoint to which the
    server may return. updates: how many a round takes of a larger cohort, the first by
    number; None: all. min_updates, redraws: a round with fewer updates is done again with another
    draw of its clients, so often at most, and then changes nothing; of a private run no draw is
    repeated, for its accounts count each. max_failed_rounds: the last of so many such rounds in a
    row ends the run with a ClientError. tests: how many test examples each node has, on which they
    measure the model; none: the server does. rehearsal: noise may be a simulation's, for nothing is
    released. start: a number that is larger than at all starts of this run's server before, such as
    the seconds since 1970, so that nodes know messages that come late or twice; 0: whatever carries
    messages brings each once, and in order. agreement: a digest of what all agreed on, for masked
    sums. Updates that are late, missing or wrong are left out of the means and listed in `refused`.
    The client states are at the nodes; the server knows the round of each client's last update.
    """

    name = text = "federation"

    def __init__(
        self,
        exchange: Exchange,
        deadline: float = 60.0,
        run: str = "",
        kept: Callable[[], int] = lambda: 0,
        updates: int | None = None,
        min_updates: int = 1,
        max_failed_rounds: int | None = None,
        tests: Sequence[int] = (),
        rehearsal: bool = False,
        redraws: int = 0,
        start: int = 0,
        agreement: str = "",
    ) -> None:
        if not 0 <= start < 1 << 32:
            raise ConfigError(f"start must be from 0 to 2^32 - 1, such as seconds, got {start}")
        self._attempt = start << _STARTS
        self._exchange, self.deadline, self.run, self._oldest_round = exchange, deadline, run, kept
        self._updates, self._tests, self._rehearsal = updates, tests, rehearsal
        self.attendance = Attendance(min_updates, max_failed_rounds, redraws)
        self.refused = self.attendance.refused
        self.agreement = agreement
        self._subject: tuple[What, int] = ("round", -2)  # what the answers below are about
        self._answers: dict[int, bytes] = {}

    @property
    def private(self) -> bool:
        """Whether nobody may know who takes part."""
        return self.client.aggregation.unkeyed

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run. Raises CompositionError for a plan that cannot be deployed."""
        refuse(plan)
        refuse_at_server(plan, fed, bool(self._tests), self._rehearsal)
        self.client = Client(plan, fed, net)
        aggregation, link = self.client.aggregation, self.client.link.link
        if aggregation.private:
            self.attendance.redraws = 0
        keep_memory()
        self._plan, self._fed, self._net = plan, fed, net
        self._down = Downlink(link.codes_down, net)
        trace = trace_of(plan, net)
        self.like, self._answer = trace.up, question_of(plan, trace)[1]
        self.weighs_itself = Trait.WEIGHS_ITSELF in plan.algorithm.traits
        if self.weighs_itself:
            text = "%s: a client says itself how much its update counts; trust those who take part"
            _log.warning(text, plan.algorithm.method)
        server_state = {ACCUMULATED, CHANGE} & set(plan.algorithm.compressible_up.values())
        self._mirrors = link.mirrored or bool(server_state)

    def map(self, what: Request, task: TrainTask) -> RangeResult:
        """Ask clients for something, and add up what comes. Raises TooFewError if a round is to
        have another cohort, or no client answers before it; ConfigError if none does before round
        1, and for losses of candidates.
        """
        if what is Request.LOSSES:
            raise ConfigError(
                "the clients of a real federation cannot be asked for their losses before a round "
                "yet: choose them in another way"
            )
        if what is Request.TRAIN:
            return self._round(task)
        if what.evaluates:  # on data of the server
            return batch_scores(self._plan, self._fed, self._net, what, task)
        return self._probe(task) if what is Request.PROBE else self._ask(task)

    def _round(self, task: TrainTask) -> RangeResult:
        """The updates of a cohort. A client whose update was read once in a round is not asked
        again in it.
        """
        round, downloads = task.round, self._downloads(task)
        last, aggregation = _last(task), self.client.aggregation

        def take(i: int) -> tuple[Rec, ClientCost]:
            download = downloads[self._fed.capacity(i)]
            return self._take_update(i, download, round, last[i], task.scale)

        if isinstance(aggregation, IntegerRing) and aggregation.masked:
            out = self._masked_round(aggregation, task, downloads)
        else:
            out = self._collect("round", task, downloads, take)
        if self.attendance.counts(round):
            # with other answers, or other masks, it would be another update
            kept = not (aggregation.masked or self._plan.algorithm.asks)
            try:
                out = self.attendance.conclude(out, round, kept)
            except TooFewError as few:
                for lost in few.lost:  # whose answer could not be read is asked again
                    self._answers.pop(lost.client, None)
                raise
        # the rest of a client's state is at its node
        out.memories.update({s.client: rec(last=float(round)) for s in out.stats if s.answered})
        return out

    def _masked_round(
        self, aggregation: IntegerRing, task: TrainTask, downloads: dict[float, Download]
    ) -> RangeResult:
        """The exchanges where clients mask their updates. Of a round whose sum is known there is no
        other sum, which could tell single updates: then no update counts.
        """
        if not self.attendance.counts(task.round):
            costs = [ClientCost(i, False, 0.0, 0, 0, {}, {}) for i in task.cohort]
            return RangeResult([], {}, costs)
        self._subject = ("keys", -2)  # no answer of an earlier draw counts: its masks are others
        download = next(iter(downloads.values()))  # all hold the whole model
        return MaskedRound(self, aggregation, task, download).result()

    def _ask(self, task: TrainTask) -> RangeResult:
        """The answers of a cohort before its local steps."""
        round, downloads = task.round, self._downloads(task)

        def take(i: int) -> tuple[Rec, ClientCost]:
            head, packet = self.read_answer(i, Update)
            download = downloads[self._fed.capacity(i)]
            answer = read(packet, download.view.take(self._answer), "the answer")
            part = weighed(self.client, answer, download, round, i)
            _check_sum(part, len(task.cohort))
            return part, cost(i, 0, head, download.down, nbytes(answer))

        out = self._collect("question", task, downloads, take)
        self.attendance.note_answers(out, round)
        return out

    def _probe(self, task: TrainTask) -> RangeResult:
        """What clients send before round 1."""
        like, clients = probe_of(self._plan, self._net), task.cohort
        download = self.client.download(self.client.views.whole, task.msg, task.buffers)
        download = download._replace(down=nbytes(task.msg), wire=download.view, shared_buffers=None)

        def take(i: int) -> tuple[Rec, ClientCost]:
            head, packet = self.read_answer(i, Update)
            up = read(packet, like, "the answer before round 1")
            part = weighed_probe(self._fed, up, i)
            _check_sum(part, len(clients))
            return part, cost(i, 0, head, download.down, nbytes(up))

        downloads = dict.fromkeys(map(self._fed.capacity, clients), download)
        out = self._collect("probe", task, downloads, take)
        if not any(s.answered for s in out.stats):
            raise ConfigError("no client answered before round 1, so the method cannot begin")
        return out

    def announced(self, packet: Mapping[str, bytes], round: int) -> None:
        """Keep the compressed fields of a round's broadcast."""
        self._down.keep(packet, round)

    def measured(self, x: Vec, buffers: Vec, round: int) -> dict[int, Score]:
        """The scores of a model on the test examples that nodes have; see engines.base.Remote."""
        packet = pack(rec(msg=rec(x=x), buffers=buffers))
        clients = [i for i, count in enumerate(self._tests) if count]
        scores = dict[int, Score]()
        arguments = clients, packet, self.deadline
        answers = ask(self._exchange, self.run, "evaluate", *arguments, Measured, round)
        for i, answer in answers.items():
            try:
                if isinstance(answer, WireError):
                    raise answer
                scores[i] = read_score(answer[0], self._tests[i], self._fed.metrics)
            except WireError as error:
                _log.warning("round %d: client %d: not measured: %s", round, i, error)
        return scores

    def close(self) -> None:
        """The nodes go on waiting."""

    # ------------------------------------------------------------------------------------ messages
    def _downloads(self, task: TrainTask) -> dict[float, Download]:
        with one_thread(self._fed.local.precision):
            return self.client.downloads(task)

    def _collect(
        self,
        what: What,
        task: TrainTask,
        downloads: dict[float, Download],
        take: Callable[[int], tuple[Rec, ClientCost]],
    ) -> RangeResult:
        """Ask clients, and add up the parts that `take` makes of their answers."""
        packets = {c: self.packet(download) for c, download in downloads.items()}
        self.send(what, task, {i: packets[self._fed.capacity(i)] for i in task.cohort})
        out, count = RangeResult([], {}, []), 0
        for place, i in enumerate(task.cohort, task.first):
            part = None
            try:
                if what != "probe" and count == self._updates:
                    raise SpareError(f"{count} updates are enough")
                with one_thread(self._fed.local.precision):
                    part, bill = take(i)
                count += 1
            except WireError as error:
                self.attendance.refuse(task.round, i, error)
                bill = ClientCost(i, False, 0.0, 0, 0, downloads[self._fed.capacity(i)].down, {})
            out.stats.append(bill)
            push(out.nodes, 0, place, part)
        return out

    def packet(self, sent: Download) -> Parts:
        """A broadcast, and what a client needs to know its part of the model."""
        record = rec(msg=sent.wire.take(sent.msg), buffers=sent.travelling(sent.buffers))
        packet = pack(record)
        if view := self.client.views.told(sent.view)._asdict():
            packet["view"] = save({k: v.cpu().contiguous() for k, v in view.items()})
        return packet

    def send(
        self,
        what: What,
        task: TrainTask,
        packets: Mapping[int, Parts],
        target: int | None = None,
    ) -> None:
        """Exchange messages with those whose answer is not here. target: so many answers beside
        those that are here are enough; None: as many as the round takes.
        """
        if self._subject != (what, task.round):
            self._subject, self._answers = (what, task.round), {}
            self._attempt += self._attempt > 0
        kept, last, messages = self._oldest_round(), _last(task), dict[int, bytes]()
        about = {"run": self.run, "what": what, "round": task.round, "attempt": self._attempt}
        for i, packet in packets.items():
            if i in self._answers:
                continue
            head = Ask.model_validate(about | {"client": i, "taken": last[i], "kept": kept})
            bare = what in _BARE
            sent = packet if bare else self._down.packet(packet, i, last[i], task.round)
            messages[i] = encode(head, sent)
        if messages:
            if target is None:
                most = len(packets) if self._updates is None else self._updates
                target = most - (len(packets) - len(messages))
            enough = max(min(len(messages), target), 1)
            answers = self._exchange(messages, self.deadline, enough)
            self._answers |= {i: raw for i, raw in answers.items() if i in messages}

    def read_answer(self, i: int, kind: type[A]) -> tuple[A, Parts]:
        """A client's answer of a kind to what was sent last. Raises WireError if there is none."""
        what, round = self._subject
        question = Head(run=self.run, what=what, round=round, client=i)
        try:
            return answer_to(question, self._answers.get(i), kind)
        except MissingError:
            raise MissingError(f"no answer within {self.deadline:g} s") from None
        except DeclinedError as declined:
            if what not in _BARE:
                self._down.forget(i, declined.lost)
            raise

    def read_update(self, i: int) -> tuple[Update, Parts]:
        """A client's update in a round. Raises WireError if there is none, or if the client's state
        is lost and it cannot go on without.
        """
        head, packet = self.read_answer(i, Update)
        self._down.forget(i, False)  # it has read the broadcast
        if head.lost and self._mirrors:
            raise WireError(
                "its client state is lost, and the server's state holds its part: this client "
                "cannot go on in this run"
            )
        if head.lost:
            _log.warning(
                "round %d: client %d has lost its state and begins anew", head.round + 1, i
            )
        return head, packet

    def _take_update(
        self,
        i: int,
        download: Download,
        round: int,
        last: int,
        scale: float = 1.0,
    ) -> tuple[Rec, ClientCost]:
        """A client's part of the sums, and its cost. Raises WireError for what cannot be taken."""
        head, packet = self.read_update(i)
        buffer_bytes = packet.pop("buffers", b"")
        sent = {name: len(raw) for name, raw in packet.items()}
        leaves, buffers = self.client.leaves, download.buffers
        link, like = self.client.link.link, download.wire.take(download.view.take(self.like))
        own_weight = self.weighs_itself
        weight = LONGEST if own_weight else self._fed.weight(i)
        try:
            if leaves is not None:  # of integers
                leaf = leaves.expected_leaf(1.0 if own_weight else weight, buffers)
                weight, buffers = 2.0**63 if own_weight else leaf.weight, leaf.buffers
            travelling = rec(buffers=download.travelling(buffers))
            sent_buffers = read({"buffers": buffer_bytes}, travelling, "the answer").buffers
            client_buffers = download.arrived(sent_buffers, buffers)
            up = link.receive(packet, download.wire.layout, like, weight)
            if not own_weight:
                up = up._replace(weight=weight)  # a client does not say how much it counts
            rates = self.client.steps.rates(i, round)
            job = self.client.steps.job(i, round, last, download, rates)
            job = job.at(lr=rates[-1], step=len(rates) - 1.0)
            at = At(self._fed.seed, round, i, scale)
            part = self.client.server_half(up, client_buffers, job, download, at)
        except FedloomError as error:
            raise WireError(str(error)) from None
        if not finite(part):
            raise WireError("its update times its weight is not finite")
        _check_sum(part, self._fed.population)
        if sent_buffers.numel():
            sent["buffers"] = sent_buffers.nbytes
        return part, cost(i, len(rates), head, download.down, sent, head.squares)


def _check_sum(part: Rec, count: int) -> None:
    """Raise WireError for a part that alone could make a sum of so many parts, or of their squares,
    not finite: an adaptive server squares the mean.
    """
    if not finite(tree(lambda v: v * v * float(count), part)):
        raise WireError("its numbers are too large to be squared and added up")


def oldest_checkpoint(run: Path) -> int:
    """The rounds that were done at the oldest checkpoint in a run's folder, 0 if there is none."""
    return min((int(p.name) for p in round_folders(run / "checkpoints")), default=0)


def _last(task: TrainTask) -> dict[int, int]:
    """{client: the round of its last update that was taken}, -1 if there is none."""
    return {i: int(task.memories[i].last) if i in task.memories else -1 for i in task.cohort}


def read_score(head: Measured, examples: int, metrics: Mapping[str, Any]) -> Score:
    """A node's sums. examples: how many it has. Raises WireError for what these cannot be."""
    if head.examples != examples:
        raise WireError(f"it measured {head.examples} examples, and has {examples}")
    if head.values.keys() != metrics.keys() or head.weights.keys() != metrics.keys():
        raise WireError(f"it measured {', '.join(head.values)}, not {', '.join(metrics)}")
    if head.bins and not _possible(head.bins, examples):
        raise WireError("it measured a reliability curve that its examples cannot have")
    score = Score(head.examples, head.loss, head.values, head.weights, {}, {}, head.bins)
    try:
        for name in metrics:
            score.mean(name, metrics)
    except (ArithmeticError, ValueError) as error:
        raise WireError(f"it measured what no metric can be: {error}") from None
    return score


def _possible(bins: Sequence[Sequence[float]], examples: int) -> bool:
    """Whether so many examples can have these bins: rows, sums of probabilities, second class."""
    if len(bins) != 3 or sum(bins[0]) > examples:
        return False
    return all(max(p, second) <= rows for rows, p, second in zip(*bins, strict=True))
