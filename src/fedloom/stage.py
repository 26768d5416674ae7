"""The interface of stages: parts of a round that change what a client receives, sends and keeps.

    server                    client                                       server
    broadcast -> announce* -> | receive*^ -> steps with along* -> send* | -> read*^ -> sums ->
    root*^; address() says what of it travels

* = called in order, *^ = in reverse. Between the bars it is bytes in a deployment. The order is the
plan's: an attack, the user's own stages, private layers, the link.
"""

from __future__ import annotations

import fnmatch
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from .algorithm import Job
from .core.hyper import Part
from .core.net import Net
from .core.vector import Rec, Vec, rec
from .errors import AuthorError
from .submodels.base import Masked, View

# fields of the client's state and of the server's that are no stage's of a user
TAKEN = frozenset(
    {"alg", "obj", "last", "link", "own", "passes", "srv", "down", "gathered", "sizes", "told"}
)
Sizes = dict[str, int]  # {field: bytes}
Squares = tuple[float, float] | None


class At(NamedTuple):
    """Where in a run something happens: what a stage may draw its randomness from. client: -1 is
    the server. scale: of the moves, as the server takes older ones under an asynchronous clock.
    """

    seed: int
    round: int
    client: int
    scale: float = 1.0


class Download(NamedTuple):
    """The download: what all clients of one capacity receive in a round.

    view: what they hold, m of d coordinates. net: the module of their steps. msg: the broadcast,
    vectors (m,). down: {field: bytes}. wire: the view of what travels, both ways. buffers: of the
    module, at the server (b,). shared_buffers: which of them travel, int64; None: all. masked: what
    a sub-model scheme does in their steps; None: nothing.
    """

    view: View
    net: Net
    msg: Rec
    down: Sizes
    wire: View
    buffers: Vec
    shared_buffers: Tensor | None = None
    masked: Masked | None = None

    def layers(self, *patterns: str) -> Vec:
        """(m,): 1 in the layers whose names fit a pattern such as "head.*", 0 elsewhere. Raises
        AuthorError where the whole model has none of them.
        """
        layout = self.view.layout
        if self.view.held is None and not any(fnmatch.filter(layout.names, p) for p in patterns):
            raise AuthorError(
                f"no layer fits {' or '.join(map(repr, patterns)) or 'no name'}; the model has "
                f"{', '.join(layout.names)}"
            )
        return layout.where(*patterns).to(self.msg.x)

    def travelling(self, buffers: Vec) -> Vec:
        """Those of the buffers (b,) that travel."""
        index = self.shared_buffers
        return buffers if index is None else buffers.index_select(0, index.to(buffers.device))

    def arrived(self, buffers: Vec, like: Vec) -> Vec:
        """The buffers (b,) that arrived as travelling(); like: has the others."""
        index = self.shared_buffers
        return buffers if index is None else like.index_copy(0, index.to(like.device), buffers)


class LocalResult(NamedTuple):
    """The result of local training. up: the client update. memory: the client's state (d,).
    buffers: the module's after training (b,), of those that do not travel the server's.
    gradients, passes, values, value_passes: see ClientCost. x (m,): where the steps ended, until
    the next client's steps overwrite it.

    Once it is sent: up is what the server reads, or {field: bytes} where these travel; sizes:
    {field: bytes}; squares: see ClientCost; memory holds if the server takes the update. why: why
    nothing can be sent, or "".
    """

    up: Any
    memory: Rec
    job: Job
    loss: float | None
    gradients: int
    buffers: Vec
    x: Vec
    passes: int = 0
    values: int = 0
    value_passes: int = 0
    sizes: Sizes = {}
    squares: Squares = None
    why: str = ""


class Stage(Part):
    """A part of a round that changes what is sent. Subclasses become frozen dataclasses whose
    fields are the parameters. All methods are pure, and one that is not overridden is not called.

    name: of the stage's field in the client state and in the server's; "": it remembers nothing,
    and `own` and `state` are empty. Fields of messages and of updates stay the same, and their
    lengths follow from address() alone.
    """

    name: ClassVar[str] = ""

    def announce(self, msg: Rec, state: Rec, at: At) -> tuple[Rec, Rec]:
        """A round's broadcast, vectors (d,) -> as all its clients receive it, and the stage's new
        server state, which holds if the round ends.
        """
        return msg, state

    def address(self, received: Download) -> Download:
        """What of a message travels: received.wire, received.shared_buffers. Server and client ask
        it alike. What does not travel is the model before round 1 when a client receives it.
        """
        return received

    def client_init(self, x: Vec, received: Download) -> Rec:
        """-> the stage's client state before the client's first round. x: the model (d,)."""
        return rec()

    def receive(self, received: Download, own: Rec) -> Download:
        """What the client's steps see: received.msg and received.buffers."""
        return received

    def along(self, d: Vec, x: Vec, job: Job) -> Vec:
        """-> the direction (m,) in which x (m,) really moves in a step. It may run for many clients
        at once: no branch on values.
        """
        return d

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        """-> the result as the client sends it, done.up and done.buffers, and the stage's new
        client state, which holds if the server takes the update. Vectors of up are (m,).
        """
        return done, own

    def read(self, up: Rec, received: Download, at: At) -> Rec:
        """-> the update as the server counts it, vectors as long as they travelled."""
        return up

    def server_init(self, x: Vec) -> Rec:
        """-> the stage's server state before round 1. x: the model (d,)."""
        return rec()

    def root(self, up: Rec, state: Rec, weight_share: float, rate: float) -> tuple[Rec, Rec]:
        """The means of a round, vectors (d,) -> those that server_step receives, and the stage's
        new server state. up: delta, weighted, and the fields of unweighted(). weight_share: the
        part of all clients' weights that sent an update; rate: client updates / N.
        """
        return up, state


def overriding(stages: tuple[Stage, ...], hook: str) -> tuple[Stage, ...]:
    """The stages that override a method, in order."""
    return tuple(s for s in stages if getattr(type(s), hook) is not getattr(Stage, hook))
