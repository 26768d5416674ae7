"""Private layers around a client's round: put into what it receives, taken out of what it sends."""

from __future__ import annotations

from ..algorithm import Job
from ..core.net import Net
from ..core.vector import Rec, Vec
from ..submodels.base import View
from ..submodels.private import Private
from .client_results import Done, Share


class PrivateLayers:
    """The private layers of a run; without a scheme it is false, and everything stays as it is.

    travels: the view of what is sent, None: of all that is held. buffer_bytes: bytes of the
    module's buffers that travel. alternates: see Private.
    """

    def __init__(self, scheme: Private | None, net: Net) -> None:
        self._scheme, self._net = scheme, net
        self._kept = None if scheme is None else scheme.kept(net)
        self.alternates = scheme is not None and scheme.alternates
        self.travels: View | None = None if self._kept is None else self._kept.shared
        buffers = net.init_buffers()
        own = 0 if self._kept is None else len(self._kept.buffers)
        self.buffer_bytes = (len(buffers) - own) * buffers.element_size()

    def __bool__(self) -> bool:
        return self._kept is not None

    def first(self, x: Vec) -> dict[str, Rec]:
        """The part of a client's first state, by its name."""
        if self._kept is None:
            return {}
        return {"own": self._kept.state(x, self._net.init_buffers())}

    def begun(self, share: Share, memory: Rec) -> Share:
        """What a client begins with: message and buffers with its own layers in them."""
        if self._kept is None:
            return share
        msg = share.msg._replace(x=self._kept.filled(share.msg.x, memory.own))
        buffers = self._kept.filled_buffers(share.buffers, memory.own)
        return share._replace(msg=msg, buffers=buffers)

    def ended(self, done: Done, share: Share) -> Done:
        """A result with a client's own layers, where its steps ended, in its state, and with the
        module's buffers after them; of those that are sent, private ones are the server's.
        """
        kept, buffers = self._kept, share.net.buffers()
        if kept is None:
            return done._replace(buffers=buffers)
        index = kept.buffers.to(buffers.device)
        sent = buffers.index_copy(0, index, share.buffers.index_select(0, index))
        memory = done.memory._replace(own=kept.state(done.x, buffers))
        return done._replace(buffers=sent, memory=memory)

    def turn(self, d: Vec, job: Job) -> Vec:
        """A direction (d,) of a scheme whose private layers move in turn with the others."""
        if self._kept is None or self._scheme is None:
            return d
        return self._scheme.moved(d, self._kept.mine, job)
