"""A client's half of a round: a message in, a message out, its client state in a folder of its own.
The same message gives the same answer, but with local.dp, so that it may be sent again.
"""

from __future__ import annotations

import hashlib
import logging
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from fedloom.aggregation import Reads
from fedloom.aggregation.discrete_gaussian import DiscreteGaussian
from fedloom.aggregation.integer_ring import IntegerRing
from fedloom.core.net import Net
from fedloom.core.parsing import one_line
from fedloom.core.vector import Rec, aligned, as_bytes, rec, tree
from fedloom.core.wire import pack
from fedloom.engines.base import keep_memory, one_thread
from fedloom.engines.client_results import Work
from fedloom.engines.client_round import Client
from fedloom.engines.extra_exchanges import answer_of, probe_of
from fedloom.engines.scores import Score, is_whole, score_of
from fedloom.engines.stages import Packing
from fedloom.engines.summation import finite
from fedloom.errors import ClientError, CompositionError, ConfigError, FedloomError, WireError
from fedloom.evaluation import reliability
from fedloom.evaluation.reliability import LEAST
from fedloom.federation.federation import Federation
from fedloom.plan import Plan
from fedloom.stage import At, Download
from fedloom.submodels.base import View

from .downlink import LostError, read_compressed
from .masked_rounds import ExpectedCohorts, MaskedAnswers
from .masked_sums import Identity
from .message import (
    ASK,
    Ask,
    Measured,
    Parts,
    Refusal,
    Update,
    check_addressee,
    decode,
    disclosed,
    encode,
)
from .node_files import NodeAccount, NodeStates, note_measured
from .shapes import embedded, question_of, read, refuse, trace_of

_log = logging.getLogger(__name__)
_NOTHING = Score(0, 0.0, {}, {}, {}, {})


class Node:
    """One client. run: the run whose messages it answers, and no others; rehearsal: see
    FederationEngine; identity: its key and the others' for masked sums; rounds: how many it takes
    part in, None: as many as it is asked for; cohorts, agreement: see MaskedAnswers; least: see
    reliability.disclosed. Raises CompositionError for a plan that cannot be deployed, ConfigError
    for masked sums without an identity.
    """

    def __init__(
        self,
        plan: Plan,
        fed: Federation,
        net: Net,
        client: int,
        folder: Path,
        run: str = "",
        rehearsal: bool = False,
        identity: Identity | None = None,
        rounds: int | None = None,
        cohorts: ExpectedCohorts | None = None,
        agreement: str = "",
        least: int = LEAST,
    ) -> None:
        refuse(plan)
        dp, aggregation = fed.local.dp, plan.aggregation
        seeded = {
            "local.dp": dp is not None and not dp.unkeyed,
            aggregation.name: aggregation.private
            and aggregation.reads is Reads.RING
            and not aggregation.unkeyed,
        }
        for name in (name for name, refused in seeded.items() if refused and not rehearsal):
            raise CompositionError(
                f"{name}: who knows the seed could make the draws of its noise again; deploy the "
                "run with `fedloom deploy`, which takes the system's"
            )
        keep_memory()
        self.plan, self.fed, self.net, self.i, self.run = plan, fed, net, client, run
        self.states = NodeStates(folder)
        self._rounds, self._accounts = rounds, list[NodeAccount]()
        if dp is not None:
            share, steps = fed.example_share(client), fed.steps(client)
            self._accounts.append(NodeAccount(folder, dp, share, steps))
        if isinstance(aggregation, DiscreteGaussian):
            self._accounts.append(NodeAccount(folder, aggregation, 1.0, 1))
        trace = trace_of(plan, net)
        trace = trace._replace(msg=trace.msg._replace(x=net.init()))  # what never travels
        self._like, self._question = trace.msg, question_of(plan, trace)[0]
        self._up, self._masks = trace.up, self._masking(identity, cohorts, agreement)
        self._version: Rec = None  # what is here of the round that the server counts on
        self._lost = False
        self._pending: tuple[bytes, Rec] = b"", None  # of which question; the client state then
        self._last_answer = b"", b""  # the last message's hash, and its answer
        self._newest = self.states.attempt()  # the largest number of a message that is answered
        self._repeated = False  # whether a message is answered that has made its state already
        self._least = least
        self._client = Client(plan, fed, net, Packing)
        self._codes_down = self._client.link.link.codes_down

    def _masking(
        self, identity: Identity | None, cohorts: ExpectedCohorts | None, agreement: str
    ) -> MaskedAnswers | None:
        """Its part in masked sums, if the run makes them. Raises ConfigError."""
        aggregation = self.plan.aggregation
        if not (isinstance(aggregation, IntegerRing) and aggregation.masked):
            return None
        if identity is None:
            raise ConfigError(
                "aggregation.secure = true: a node needs its key and those of all clients; give "
                "identity=, see docs/deployment/from-simulation.md"
            )
        return MaskedAnswers(aggregation, self.i, identity, self.states.folder, cohorts, agreement)

    def answer(self, raw: bytes) -> bytes:
        """A message of the server -> the answer: an update, or a refusal that says why. The last
        message may come again, because its answer was late or lost: then, and for an older one, no
        state is touched.
        """
        if self._last_answer[0] == (message_hash := hashlib.sha256(raw).digest()):
            return self._last_answer[1]
        header: dict[str, Any] = {"run": self.run, "what": "round", "round": -1, "client": self.i}
        try:
            ask, parts = decode(ASK, raw)
            header |= {"what": ask.what, "round": ask.round}
            check_addressee(ask, self.run, self.i)
            self._repeated = 0 < ask.attempt == self._newest  # this process began after its answer
            if 0 < ask.attempt < self._newest or (self._repeated and self._accounts):
                raise WireError(
                    f"this node has answered message {self._newest}, and {ask.attempt} came late "
                    "or again; its server sends a newer one"
                )
            self._check_round(ask)
            handlers = {
                "probe": self._answer_probe,
                "question": self._answer_question,
                "round": self._train,
                "evaluate": self._measure,
            }
            if self._masks is not None:
                handlers |= {"keys": self._masks.keys, "unmask": self._masks.unmask}
            if ask.what not in handlers:
                raise WireError(f"this node has joined, and is asked to {ask.what}")
            self._last_answer = b"", b""  # from here on the client state may change
            with one_thread(self.fed.local.precision):
                self._last_answer = message_hash, handlers[ask.what](ask, parts)
            self._newest = max(self._newest, ask.attempt)
            return self._last_answer[1]
        except (FedloomError, OSError) as error:
            _log.warning("client %d refuses: %s", self.i, one_line(str(error)))
            why, lost = disclosed(error, self.states.folder.parent), isinstance(error, LostError)
            return encode(Refusal(**header, lost=lost, why=why), {})

    def _check_round(self, ask: Ask) -> None:
        """Raise WireError for a round beyond the run's. A model is measured after the last, too."""
        if self._rounds is None:
            return
        if ask.round > self._rounds - (ask.what != "evaluate"):
            raise WireError(
                f"round {ask.round + 1} is beyond the {self._rounds} rounds of this node's own "
                "run.toml; for a longer run its site writes rounds there"
            )

    def _answer_probe(self, ask: Ask, parts: Parts) -> bytes:
        sent = self._model(parts, "the first message")
        up, cost = probe_of(self._client, sent.msg.x, sent.buffers, self.i)
        counts = {"gradients": cost.gradients, "values": cost.values}
        return self._encode_update(ask, pack(up), **counts)

    def _measure(self, ask: Ask, parts: Parts) -> bytes:
        """The scores of the model that this client would use: with what it keeps for itself."""
        model_hash = hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest()
        sent, newest = self._model(parts, "the model to be measured"), self.states.newest()
        note_measured(self.states.folder, ask.run, ask.round, model_hash)
        download = self._client.download(self._client.views.whole, sent.msg, sent.buffers)
        if newest is not None:
            download = self._client.received(download, newest.state)
        return encode(self._sums_of_tests(ask, download), {})

    def _sums_of_tests(self, ask: Ask, download: Download) -> Measured:
        """The sums of a model over this node's test examples. A metric of a whole set counts as one
        of all its examples, and as one of none where it is not defined.
        """
        data, metrics, score = self.fed.data, self.fed.metrics, _NOTHING
        if data.test_inputs is not None and data.test_targets is not None:
            self.net.load_buffers(download.buffers)
            tests = [(data.test_inputs, data.test_targets)]
            score = score_of(self.plan, self.fed, self.net, download.msg.x, tests)
        for name in (k for k, metric in metrics.items() if is_whole(metric) and score.examples):
            count = float(score.examples) if math.isfinite(score.values[name]) else 0.0
            score.values[name] = score.values[name] * count if count else 0.0
            score.weights[name] = count
        if not all(map(math.isfinite, (score.loss, *score.values.values()))):
            raise ClientError("what it measured on its test examples is not finite")
        bins = reliability.binned(score, metrics, data.test_targets)
        return Measured(
            **ask.about,
            examples=score.examples,
            loss=score.loss,
            values=score.values,
            weights=score.weights,
            bins=reliability.disclosed(bins, self._least),
        )

    def _model(self, parts: Parts, what: str) -> Rec:
        like = rec(msg=rec(x=self._like.x), buffers=self.net.init_buffers())
        return tree(aligned, read(parts, like, what))

    def _answer_question(self, ask: Ask, parts: Parts) -> bytes:
        """The answer before the local steps; what it changes of the client state waits for them."""
        download = self._read_download(ask, parts, self._question)
        memory = self._state_before(ask, download)
        answer, work = self._run_question(ask, download, memory)
        if not finite(answer):
            raise ClientError("what it was asked for is not finite")
        return self._encode_update(ask, pack(answer), **work._asdict())

    def _run_question(self, ask: Ask, download: Download, memory: Rec) -> tuple[Rec, Work]:
        """What the client answers to the method's question, and what that cost."""
        question = _digest(ask, download.msg)
        with self._client.explained(self.i, ask.round):
            download = self._client.receive(download, memory)
            answer, new_memory, work = answer_of(self._client, download, memory, self.i, ask.round)
        self._pending = question, memory if new_memory is None else new_memory
        return answer, work

    def _train(self, ask: Ask, parts: Parts) -> bytes:
        """The answer with an update; the new client state is on the disk before it leaves."""
        keys = b"" if self._masks is None else self._masks.take_keys(ask, parts)
        download = self._read_download(ask, parts, self._like)
        memory = self._state_before(ask, download)
        if self.plan.algorithm.asks:
            broadcast = download.msg._asdict()
            question = rec(**{k: broadcast[k] for k in self._question._fields})
            if self._pending[0] != _digest(ask, question):  # it did not come to this process
                self._run_question(ask, download._replace(msg=question), memory)
            memory = self._pending[1]
        for account in self._accounts:
            account.pay()
        with self._client.explained(self.i, ask.round):
            at = At(self._client.fed.seed, ask.round, self.i)
            outcome = self._client.client_half(download, memory, at)
        if outcome.why:
            raise ClientError(outcome.why)
        packet: Parts = outcome.up
        seen = {name: getattr(download.msg, name) for name in self._codes_down}
        if not self._repeated:
            version = rec(state=outcome.memory, seen=rec(**seen))
            self.states.put(ask.round, version, ask.attempt)
        if (buffers := download.travelling(outcome.buffers)).numel():
            packet["buffers"] = as_bytes(buffers).numpy().tobytes()
        names = ("loss", "gradients", "passes", "values", "value_passes", "squares")
        header = {name: getattr(outcome, name) for name in names}
        if self._masks is not None:
            packet, header["loss"] = self._masks.masked(ask, keys, packet, self._up, download), None
        return self._encode_update(ask, packet, lost=self._lost, **header)

    def _read_download(self, ask: Ask, parts: Parts, like: Rec) -> Download:
        """What the client receives. Raises WireError."""
        self._version = self.states.at(ask.taken, ask.kept, tidy=not self._repeated)
        seen = None if self._version is None else self._version.seen
        coded = read_compressed(self._codes_down, self.net, parts, seen)
        view = self._view(parts.pop("view", b""), ask.round)
        download = self._client.download(view, view.take(like), self.net.init_buffers())
        whole, wire = download.msg._asdict(), download.wire
        dense = rec(**{k: v for k, v in whole.items() if k not in coded._fields})
        both = rec(msg=wire.take(dense), buffers=download.travelling(download.buffers))
        sent = tree(aligned, read(parts, both, "the broadcast"))
        values = sent.msg._asdict() | wire.take(coded)._asdict()
        msg = wire.put(rec(**{name: values[name] for name in like._fields}), download.msg)
        return download._replace(msg=msg, buffers=download.arrived(sent.buffers, download.buffers))

    def _state_before(self, ask: Ask, sent: Download) -> Rec:
        """The client state at the beginning of the round."""
        version = self._version
        self._lost = version is None and ask.taken >= 0
        if version is not None:
            return version.state
        with self._client.explained(self.i, ask.round):
            return self._client.first_memory(embedded(sent.msg.x, sent.view), self.i, sent.view)

    def _encode_update(self, ask: Ask, packet: Parts, **costs: Any) -> bytes:
        """An update. costs: what its header says beside who and when."""
        head = {"lost": False, "loss": 0.0, "squares": None, "passes": 0, "value_passes": 0} | costs
        return encode(
            Update(run=self.run, what=ask.what, round=ask.round, client=self.i, **head), packet
        )

    def _view(self, raw: bytes, round: int) -> View:
        """The part of the model that this client holds, from what the server told. Raises
        WireError.
        """
        try:
            fields = load(raw) if raw else {}
            return self._client.views.again(rec(**fields), self.fed.capacity(self.i), round)
        except (SafetensorError, AttributeError, IndexError, ValueError, RuntimeError) as error:
            raise WireError(f"the part of the model cannot be made again: {error}") from None


def _digest(ask: Ask, msg: Rec) -> bytes:
    """A digest of what a client is asked before a round. The round alone does not say it: a server
    that goes on from a checkpoint may do it again with another model.
    """
    sha = hashlib.sha256(f"{ask.round} {ask.taken}".encode())
    for raw in pack(msg).values():
        sha.update(raw)
    return sha.digest()
