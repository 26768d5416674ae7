"""Compressed broadcasts at both halves, see compression/downlink.py, whose bill this is: the
messages that the server keeps, and a node's reading of those that it missed.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedloom.compression.downlink import Codecs, add_messages
from fedloom.core.net import Net
from fedloom.core.vector import Rec, rec
from fedloom.errors import WireError

from .message import Parts

_MOST = 200  # messages of a field: each has a name in the header


class Downlink:
    """The last messages of each compressed field, which together are less than the field itself.
    They are in no checkpoint: after a restart clients get the whole field once.
    """

    def __init__(self, codecs: Codecs, net: Net) -> None:
        self._messages: dict[str, list[tuple[int, bytes]]] = {k: [] for k in codecs}
        self._whole = net.layout.d * net.dtype.itemsize
        self._lost: set[int] = set()  # clients who lost what they held

    def keep(self, packet: Mapping[str, bytes], round: int) -> None:
        """Keep the messages of a round, which may be said again."""
        for name, raw in packet.items():
            before = [m for m in self._messages[name] if m[0] < round]
            if before and before[-1][0] != round - 1:
                before = []
            messages = [*before, (round, raw)]
            while messages and sum(len(raw) for _, raw in messages) >= self._whole:
                messages.pop(0)
            self._messages[name] = messages

    def forget(self, i: int, lost: bool) -> None:
        """Hear whether a client has lost what it held."""
        (self._lost.add if lost else self._lost.discard)(i)

    def packet(self, packet: Parts, i: int, taken: int, round: int) -> Parts:
        """A broadcast for a client whose last update was taken in round `taken`, -1: it is new."""
        if taken < 0 or i in self._lost:
            return packet
        out = dict(packet)
        for name, messages in self._messages.items():
            missed = [raw for t, raw in messages if taken < t <= round]
            if len(missed) == round - taken and len(missed) <= _MOST:
                del out[f"msg.{name}"]
                out |= {f"down.{name}.{n}": raw for n, raw in enumerate(missed)}
        return out


class LostError(WireError):
    """A node has not what it held before, and so cannot read what was sent since."""


def read_compressed(codecs: Codecs, net: Net, parts: Parts, seen: Rec) -> Rec:
    """The compressed fields of a broadcast that came as messages, which are taken out of `parts`.
    seen: what the node held after its last update, None: nothing. Raises WireError.
    """
    fields = {}
    for name, codec in codecs.items():
        if f"msg.{name}" in parts:
            continue
        messages: list[bytes] = []
        while (raw := parts.pop(f"down.{name}.{len(messages)}", None)) is not None:
            messages.append(raw)
        if seen is None:
            raise LostError(f"what this client held of '{name}' is gone; send it whole")
        fields[name] = add_messages(codec, getattr(seen, name), messages, net.layout)
    return rec(**fields)
