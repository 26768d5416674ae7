"""The stages of a run, and what the parts of fedloom that are stages do in a client's round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..aggregation import Aggregation, Reads
from ..algorithm import Algorithm, Job
from ..compression.link import Link
from ..core.net import Net
from ..core.vector import Rec, Vec, rec
from ..federation.attacks import Attack
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import At, Download, LocalResult, Sizes, Stage
from ..submodels.private import PersonalLayers, Private
from .summation import finite, leaf, numbers, unweighted_of


def stages_of(
    plan: Plan, fed: Federation, net: Net, coding: Callable[..., Coding] | None = None
) -> tuple[*tuple[Stage, ...], Coding]:
    """All stages of a run in the order in which a client update passes them. coding: makes the
    last; None: one whose bytes are counted, and not made.
    """
    stages: list[Stage] = []
    if fed.local.passes is not None:
        stages.append(ContinuedPasses())
    if fed.attack is not None and fed.hostile:
        stages.append(Hostile(attack=fed.attack, clients=fed.hostile))
    stages += plan.stages
    private, link, aggregation = plan.private, plan.link, plan.aggregation
    if private is not None:
        kind = AlternatingLayers if private.alternates else PrivateLayers
        stages.append(kind(scheme=private, net=net))
    if aggregation.reads is Reads.RING and not fed.forges:
        stages.append(Leaves(aggregation=aggregation, algorithm=plan.algorithm))
    return *stages, (coding or Coding)(link=link, seed=fed.seed)


def sums_suffice(plan: Plan, fed: Federation) -> bool:
    """True if the server needs no more of a round's updates than the sum of their leaves; else
    nodes of the tree are rows, see aggregation/rows.py.
    """
    return plan.aggregation.reads is not Reads.ROWS and not fed.forges


class ContinuedPasses(Stage):
    """A client knows how many steps it has done, so that its pass over its data goes on."""

    name = "passes"

    def client_init(self, x: Vec, received: Download) -> Rec:
        return rec(done=0.0)

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        return done, rec(done=own.done + float(done.job.steps))


def steps_before(memory: Rec) -> int:
    """How many steps a client had done before its round; 0 where passes do not go on."""
    return int(memory.passes.done) if hasattr(memory, "passes") else 0


class Hostile(Stage):
    """Hostile clients send something else than they have trained, see federation/attacks.py."""

    attack: Attack
    clients: frozenset[int]

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        if at.client not in self.clients:
            return done, own
        return done._replace(up=self.attack.sent(done.up, *at[:3])), own


class Coding(Stage):
    """The link: codecs and error feedback at a client, the mean of EF21 at the server. Subclasses
    say what becomes of an update where it begins to travel.
    """

    name = "link"
    link: Link
    seed: int

    def client_init(self, x: Vec, received: Download) -> Rec:
        return self.link.init(x, received.wire.layout, self.seed)

    def coded(self, up: Rec, own: Rec, received: Download, *place: int) -> tuple[Any, Sizes, Rec]:
        """An update, vectors as long as they travel -> up and sizes of a LocalResult, without
        buffers; the new client state. place: round, client. Raises NotFiniteError.
        """
        return self.link.deliver(up, own, received.wire, self.seed, *place)

    def server_init(self, x: Vec) -> Rec:
        return self.link.server_init(x)

    def root(self, up: Rec, state: Rec, weight_share: float, rate: float) -> tuple[Rec, Rec]:
        return self.link.arrive(up, state, weight_share, rate)


class Packing(Coding):
    """The same where updates travel: their bytes."""

    def coded(self, up: Rec, own: Rec, received: Download, *place: int) -> tuple[Any, Sizes, Rec]:
        packet, own = self.link.send(up, own, received.wire, self.seed, *place)
        return packet, {}, own


class Leaves(Stage):
    """Clients make the leaves of the sums, as a secure sum needs them: they travel in place of
    delta, of the fields of unweighted(), of the weight and of the buffers.
    """

    aggregation: Aggregation
    algorithm: Algorithm

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        up, weight = numbers(done.up), float(done.up.weight)
        if not finite(up):  # the client says so
            return done, own
        means = numbers(unweighted_of(self.algorithm, up, done.job))
        delta = up.delta if at.scale == 1 else at.scale * up.delta
        part = leaf(weight, delta, means, done.buffers)
        part = self.aggregation.leaf(part, received.msg, *at[:3])
        up = rec(delta=part.delta, weight=part.weight, **part.unweighted._asdict())
        return done._replace(up=up, buffers=part.buffers), own

    def part(self, up: Rec, buffers: Vec, count: int = 1) -> Rec:
        """What travelled -> the leaf, or the sum of so many."""
        more = {k: v for k, v in up._asdict().items() if k not in ("delta", "weight")}
        return self.aggregation.arrived(leaf(up.weight, up.delta, rec(**more), buffers), count)

    def expected_leaf(self, weight: float, buffers: Vec) -> Rec:
        """What the server knows of the leaf of a client with this weight: `weight`, and `buffers`
        (b,) as if training had not changed them.
        """
        return self.aggregation.leaf(leaf(weight, buffers[:0], rec(), buffers), rec(), 0, 0, 0)


class PrivateLayers(Stage):
    """Layers that clients keep: put into what a client receives, taken out of what it sends."""

    name = "own"
    scheme: Private
    net: Net

    @functools.cached_property
    def personal(self) -> PersonalLayers:
        """Which coordinates and buffers a client keeps."""
        return self.scheme.split(self.net)

    def address(self, received: Download) -> Download:
        shared_buffers = self.personal.shared_buffers if len(self.personal.buffers) else None
        return received._replace(wire=self.personal.shared, shared_buffers=shared_buffers)

    def client_init(self, x: Vec, received: Download) -> Rec:
        return self.personal.state(x, self.net.init_buffers())

    def receive(self, received: Download, own: Rec) -> Download:
        personal = self.personal
        msg = received.msg._replace(x=personal.fill(received.msg.x, own))
        return received._replace(msg=msg, buffers=personal.fill_buffers(received.buffers, own))

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        index = self.personal.buffers.to(done.buffers.device)
        sent = done.buffers.index_copy(0, index, received.buffers.index_select(0, index))
        return done._replace(buffers=sent), self.personal.state(done.x, done.buffers)


class AlternatingLayers(PrivateLayers):
    """The same, where private layers and the others are trained in turn."""

    def along(self, d: Vec, x: Vec, job: Job) -> Vec:
        return self.scheme.moved(d, self.personal.mask, job)
