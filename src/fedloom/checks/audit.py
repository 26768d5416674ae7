"""The serial engine with a scale beside it: every message is packed as it would really travel."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from ..core.net import Net
from ..core.vector import Rec
from ..core.wire import pack
from ..engines import Serial
from ..engines.client_results import RangeResult, Request, TrainTask
from ..engines.client_round import Client
from ..engines.stages import Coding
from ..engines.summation import root
from ..errors import AuthorError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import Download, Sizes
from .compare import unequal


class Audited(Serial):
    """up, down: {field: bytes} of all messages so far."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()

    def client(self, plan: Plan, fed: Federation, net: Net) -> Client:
        return _Weighing(plan, fed, net, self)

    def map(self, what: Request, task: TrainTask) -> RangeResult:
        before = self.down.copy()
        out = super().map(what, task)
        for _ in task.cohort if what is Request.PROBE else ():
            self.down.update(_sizes(task.msg))
            self.up.update(_sizes(root(out.nodes).up))
        if what in (Request.ASK, Request.LOSSES):
            self.down = before  # what the message says is counted once, with the second exchange
        return out


class _Coding(Coding):
    """Packs what clients send; what is read of it must be what they count with."""

    audit: Audited

    def coded(self, up: Rec, state: Rec, received: Download, *keys: int) -> tuple[Any, Sizes, Rec]:
        packet, after = self.link.send(up, state, received.wire, self.seed, *keys)
        read, sizes, memory = super().coded(up, state, received, *keys)
        field = unequal(self.link.receive(packet, received.wire.layout, up), read)
        if field := field or unequal(after, memory):
            raise AuthorError(
                f"what the server decodes from the bytes differs in '{field}' from what the client "
                "counts as sent: decode() must depend on the message and the layout alone"
            )
        self.audit.up.update({name: len(raw) for name, raw in packet.items()})
        if size := received.travelling(received.buffers).nbytes:
            self.audit.up["buffers"] += size
        return read, sizes, memory


class _Weighing(Client):
    """Packs what its clients are sent, too."""

    def __init__(self, plan: Plan, fed: Federation, net: Net, audit: Audited) -> None:
        super().__init__(plan, fed, net, functools.partial(_Coding, audit=audit))
        self.audit = audit

    def downloads(self, task: TrainTask) -> dict[float, Download]:
        downloads = super().downloads(task)
        for i in task.cohort:
            download = downloads[self.fed.capacity(i)]
            packed = pack(self.views.told(download.view))
            self.audit.down.update(_sizes(download.wire.take(download.msg)))
            self.audit.down.update({f"view.{name}": len(raw) for name, raw in packed.items()})
            if size := download.travelling(download.buffers).nbytes:
                self.audit.down["buffers"] += size
        return downloads

    def answer_bytes(self, answer: Rec) -> dict[str, int]:
        self.audit.up.update(_sizes(answer))
        return super().answer_bytes(answer)


def _sizes(record: Rec) -> dict[str, int]:
    return {name: len(raw) for name, raw in pack(record).items()}
