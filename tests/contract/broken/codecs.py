"""Codecs that break their contract, one fault each."""

from __future__ import annotations

import torch

from fedloom.compression.codecs import QSGD, Dense, RandomDropping, TopK
from fedloom.core.vector import rec
from fedloom.engines.author_rules import ARGUMENTS, KEPT, REPEAT
from fedloom.errors import WireError

from .common import HISTORY


class Miscounts(TopK):
    def nbytes(self, message):
        return super().nbytes(message) - 12


class SameCode(QSGD):
    code = 1


class NoSize(Dense):
    def encode(self, p, state, layout, draw):
        return rec(value=p.clone()), state


class NoState(Dense):
    def encode(self, p, state, layout, draw):
        return super().encode(p, state, layout, draw)[0]


class Rounds(Dense):
    def pack(self, message):
        return super().pack(message._replace(value=message.value.round()))


class Short(Dense):
    def decode(self, message, layout, dtype=None):
        return super().decode(message, layout, dtype)[:-1]


class OwnType(Dense):
    def decode(self, message, layout, dtype=None):
        return super().decode(message, layout, torch.float16)


class Careless(Dense):
    def unpack(self, raw, layout=None):
        try:
            return super().unpack(raw, layout)
        except WireError:
            return rec(size=torch.tensor([layout.d]), value=torch.zeros(layout.d))


class Crashes(Dense):
    def unpack(self, raw, layout=None):
        return super().unpack(raw[: 12 + 4 * raw[4]], None)


class ClaimsUnbiased(TopK):
    def omega(self, d):
        return 5.0

    def unfit(self, d):
        return ""


class ClaimsExact(RandomDropping):
    scaled: bool = True

    def omega(self, d):
        return 0.5


class Amplifies(RandomDropping):
    scaled: bool = True

    def omega(self, d):
        return None

    def unfit(self, d):
        return ""


class Scales(Dense):
    def encode(self, p, state, layout, draw):
        message, state = super().encode(p.mul_(1), state, layout, draw)
        p.mul_(2)
        return message, state


class OwnNoise(Dense):
    def encode(self, p, state, layout, draw):
        return super().encode(p * (1 + 0.01 * torch.rand(len(p)).to(p)), state, layout, draw)


class Remembers(Dense):
    def encode(self, p, state, layout, draw):
        HISTORY.append(len(p))
        return super().encode(p, state, layout, draw)


class Triples(Dense):
    def decode(self, message, layout, dtype=None):
        return 3 * super().decode(message, layout, dtype)


CODECS = (
    (Miscounts, "size is what is sent", r"nbytes\(\) says \d+, but pack\(\) makes \d+ bytes"),
    (SameCode, "code on the wire", "code 1 is that of the codec topk"),
    (NoSize, "messages", r"size must be \[168\]"),
    (NoState, "messages", "must give two values, the message and the state"),
    (Rounds, "a message is read again", "packed and unpacked, differs in 'value'"),
    (Short, "a message is read again", r"decode\(\) gives \[167\]; it must give \[168\]"),
    (OwnType, "a message is read again", "gives float16"),
    (Careless, "other bytes are refused", "is read as if it were whole"),
    (Crashes, "other bytes are refused", r"raises? WireError"),
    (ClaimsUnbiased, "error within the bound", "says that the codec is unbiased"),
    (ClaimsExact, "error within the bound", r"omega\(\) says 0.5, but the squared error"),
    (Amplifies, "error within the bound", "it must be a contraction"),
    (Scales, ARGUMENTS, r"encode\(\) changes p in place"),
    (OwnNoise, REPEAT, r"encode\(\), called twice"),
    (Remembers, KEPT, "outside of its records .the global HISTORY."),
    (Triples, "error within the bound", r"omega\(\) says 0, but the squared error is 4"),
)
