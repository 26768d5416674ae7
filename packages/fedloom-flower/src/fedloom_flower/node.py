"""A client's half of a round: a message in, a message out, its client state in a folder of its own.

The same message gives the same answer, for all that is random comes from seed, client and round,
but with local.dp. So a message may be sent again at any time.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

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
from fedloom.engines.stages import Packing
from fedloom.engines.summation import finite
from fedloom.errors import ClientError, CompositionError, ConfigError, FedloomError, WireError
from fedloom.evaluation.reliability import LEAST
from fedloom.federation.federation import Federation
from fedloom.plan import Plan
from fedloom.stage import Download
from fedloom.submodels.base import View

from .downlink import LostError, received
from .masked_answers import Expected, MaskedAnswers
from .masked_sums import Identity
from .message import ASK, Ask, Refusal, Update, check_addressee, disclosed, opened, sealed
from .node_records import MeasuredModels, NodeAccount
from .node_states import NodeStates
from .scores import measured
from .shapes import embedded, question_of, read, refuse, trace_of

_log = logging.getLogger(__name__)
Parts = dict[str, bytes]


class Node:
    """One client. run: the run whose messages it answers, and no others; rehearsal: see
    FederationEngine; identity: its key and the others' for masked sums; rounds: how many it takes
    part in, None: as many as it is asked for; cohorts, agreed: see MaskedAnswers; least: see
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
        cohorts: Expected | None = None,
        agreed: str = "",
        least: int = LEAST,
    ) -> None:
        refuse(plan)
        dp, rule = fed.local.dp, plan.aggregation
        seeded = {
            "local.dp": dp is not None and not dp.unkeyed,
            rule.name: rule.private and rule.at_clients and not rule.unkeyed,
        }
        for name in (name for name, found in seeded.items() if found and not rehearsal):
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
        if isinstance(rule, DiscreteGaussian):
            self._accounts.append(NodeAccount(folder, rule, 1.0, 1))
        trace = trace_of(plan, net)
        trace = trace._replace(msg=trace.msg._replace(x=net.init()))  # what never travels
        self._like, self._question = trace.msg, question_of(plan, trace)[0]
        self._up, self._masks = trace.up, self._masking(identity, cohorts, agreed)
        self._version: Rec = None  # what is here of the round that the server counts on
        self._lost = False
        self._waiting: tuple[bytes, Rec] = b"", None  # of which question; the client state then
        self._said = b"", b""  # the last message's hash, and its answer
        self._newest = self.states.attempt()  # the largest number of a message that is answered
        self._again = False  # whether a message is answered that has made its state already
        self._measurements, self._least = MeasuredModels(folder), least
        self._client = Client(plan, fed, net, Packing)
        self._codes_down = self._client.link.link.codes_down

    def _masking(
        self, identity: Identity | None, cohorts: Expected | None, agreed: str
    ) -> MaskedAnswers | None:
        """Its part in masked sums, if the run makes them. Raises ConfigError."""
        rule = self.plan.aggregation
        if not (isinstance(rule, IntegerRing) and rule.masked):
            return None
        if identity is None:
            raise ConfigError(
                "aggregation.secure = true: a node needs its key and those of all clients; give "
                "identity=, see docs/deployment/from-simulation.md"
            )
        return MaskedAnswers(rule, self.i, identity, self.states.folder, cohorts, agreed)

    def answer(self, raw: bytes) -> bytes:
        """A message of the server -> the answer: an update, or a refusal that says why. The last
        message may come again, because its answer was late or lost: then, and for an older one, no
        state is touched.
        """
        if self._said[0] == (told := hashlib.sha256(raw).digest()):
            return self._said[1]
        who: dict[str, Any] = {"run": self.run, "what": "round", "round": -1, "client": self.i}
        try:
            ask, parts = opened(ASK, raw)
            who |= {"what": ask.what, "round": ask.round}
            check_addressee(ask, self.run, self.i)
            self._again = 0 < ask.attempt == self._newest  # this process began after its answer
            if 0 < ask.attempt < self._newest or (self._again and self._accounts):
                raise WireError(
                    f"this node has answered message {self._newest}, and {ask.attempt} came late "
                    "or again; its server sends a newer one"
                )
            self._check_round(ask)
            does = {
                "probe": self._probed,
                "question": self._asked,
                "round": self._trained,
                "evaluate": self._measured,
            }
            if self._masks is not None:
                does |= {"keys": self._masks.keys, "unmask": self._masks.unmask}
            if ask.what not in does:
                raise WireError(f"this node has joined, and is asked to {ask.what}")
            self._said = b"", b""  # from here on the client state may change
            with one_thread(self.fed.local.precision):
                self._said = told, does[ask.what](ask, parts)
            self._newest = max(self._newest, ask.attempt)
            return self._said[1]
        except (FedloomError, OSError) as error:
            _log.warning("client %d refuses: %s", self.i, one_line(str(error)))
            why, lost = disclosed(error, self.states.folder.parent), isinstance(error, LostError)
            return sealed(Refusal(**who, lost=lost, why=why), {})

    def _check_round(self, ask: Ask) -> None:
        """Raise WireError for a round beyond the run's. A model is measured after the last, too."""
        if self._rounds is None:
            return
        if ask.round > self._rounds - (ask.what != "evaluate"):
            raise WireError(
                f"round {ask.round + 1} is beyond the {self._rounds} rounds of this node's own "
                "run.toml; for a longer run its site writes rounds there"
            )

    def _probed(self, ask: Ask, parts: Parts) -> bytes:
        sent = self._model(parts, "the first message")
        up, cost = probe_of(self._client, sent.msg.x, sent.buffers, self.i)
        about = {"gradients": cost.gradients, "values": cost.values}
        return self._sealed(ask, pack(up), **about)

    def _measured(self, ask: Ask, parts: Parts) -> bytes:
        """The scores of the model that this client would use: with what it keeps for itself."""
        told = hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest()
        sent, newest = self._model(parts, "the model to be measured"), self.states.newest()
        self._measurements.note(ask.run, ask.round, told)
        share = self._client.download(self._client.views.whole, sent.msg, sent.buffers)
        if newest is not None:
            share = self._client.received(share, newest.state)
        return sealed(measured(self.plan, self.fed, self.net, share, ask, self._least), {})

    def _model(self, parts: Parts, what: str) -> Rec:
        like = rec(msg=rec(x=self._like.x), buffers=self.net.init_buffers())
        return tree(aligned, read(parts, like, what))

    def _asked(self, ask: Ask, parts: Parts) -> bytes:
        """The answer before the local steps; what it changes of the client state waits for them."""
        share = self._share(ask, parts, self._question)
        memory = self._before(ask, share)
        answer, work = self._changed_by(ask, share, memory)
        if not finite(answer):
            raise ClientError("what it was asked for is not finite")
        return self._sealed(ask, pack(answer), **work._asdict())

    def _changed_by(self, ask: Ask, share: Download, memory: Rec) -> tuple[Rec, Work]:
        """What the client answers to the method's question, and what that cost."""
        about = _question_of(ask, share.msg)
        with self._client.explained(self.i, ask.round):
            share = self._client.receive(share, memory)
            answer, kept, work = answer_of(self._client, share, memory, self.i, ask.round)
        self._waiting = about, memory if kept is None else kept
        return answer, work

    def _trained(self, ask: Ask, parts: Parts) -> bytes:
        """The answer with an update; the new client state is on the disk before it leaves."""
        keys = b"" if self._masks is None else self._masks.begun(ask, parts)
        share = self._share(ask, parts, self._like)
        memory = self._before(ask, share)
        if self.plan.algorithm.asks:
            told = share.msg._asdict()
            question = rec(**{k: told[k] for k in self._question._fields})
            if self._waiting[0] != _question_of(ask, question):  # it did not come to this process
                self._changed_by(ask, share._replace(msg=question), memory)
            memory = self._waiting[1]
        for account in self._accounts:
            account.pay()
        with self._client.explained(self.i, ask.round):
            done = self._client.client_half(share, memory, self.i, ask.round)
        if done.why:
            raise ClientError(done.why)
        packet: Parts = done.up
        seen = {name: getattr(share.msg, name) for name in self._codes_down}
        if not self._again:
            version = rec(state=done.memory, seen=rec(**seen))
            self.states.put(ask.round, version, ask.attempt)
        if (buffers := share.travelling(done.buffers)).numel():
            packet["buffers"] = as_bytes(buffers).numpy().tobytes()
        counted = ("loss", "gradients", "passes", "values", "value_passes", "squares")
        about = {name: getattr(done, name) for name in counted}
        if self._masks is not None:
            packet, about["loss"] = self._masks.masked(ask, keys, packet, self._up, share), None
        return self._sealed(ask, packet, lost=self._lost, **about)

    def _share(self, ask: Ask, parts: Parts, like: Rec) -> Download:
        """What the client receives. Raises WireError."""
        self._version = self.states.at(ask.taken, ask.kept, tidy=not self._again)
        seen = None if self._version is None else self._version.seen
        coded = received(self._codes_down, self.net, parts, seen)
        view = self._view(parts.pop("view", b""), ask.round)
        share = self._client.download(view, view.take(like), self.net.init_buffers())
        whole, wire = share.msg._asdict(), share.wire
        dense = rec(**{k: v for k, v in whole.items() if k not in coded._fields})
        both = rec(msg=wire.take(dense), buffers=share.travelling(share.buffers))
        sent = tree(aligned, read(parts, both, "the broadcast"))
        told = sent.msg._asdict() | wire.take(coded)._asdict()
        msg = wire.put(rec(**{name: told[name] for name in like._fields}), share.msg)
        return share._replace(msg=msg, buffers=share.arrived(sent.buffers, share.buffers))

    def _before(self, ask: Ask, share: Download) -> Rec:
        """The client state at the beginning of the round."""
        version = self._version
        self._lost = version is None and ask.taken >= 0
        if version is not None:
            return version.state
        with self._client.explained(self.i, ask.round):
            return self._client.first_memory(embedded(share.msg.x, share.view), self.i, share.view)

    def _sealed(self, ask: Ask, packet: Parts, **about: Any) -> bytes:
        """An update. about: what its header says beside who and when."""
        told = {"lost": False, "loss": 0.0, "squares": None, "passes": 0, "value_passes": 0} | about
        return sealed(
            Update(run=self.run, what=ask.what, round=ask.round, client=self.i, **told), packet
        )

    def _view(self, raw: bytes, round: int) -> View:
        """The part of the model that this client holds, from what the server told. Raises
        WireError.
        """
        try:
            told = load(raw) if raw else {}
            return self._client.views.again(rec(**told), self.fed.capacity(self.i), round)
        except (SafetensorError, AttributeError, IndexError, ValueError, RuntimeError) as error:
            raise WireError(f"the part of the model cannot be made again: {error}") from None


def _question_of(ask: Ask, msg: Rec) -> bytes:
    """A digest of what a client is asked before a round. The round alone does not say it: a server
    that goes on from a checkpoint may do it again with another model.
    """
    found = hashlib.sha256(f"{ask.round} {ask.taken}".encode())
    for raw in pack(msg).values():
        found.update(raw)
    return found.digest()
