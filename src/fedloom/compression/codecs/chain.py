"""Chains: one codec for the values that another one chooses."""

from __future__ import annotations

import struct

import torch

from ...core.layout import Layout
from ...core.rng import generator
from ...core.vector import Rec, Vec, rec
from ...errors import CompositionError
from .base import HEADER_BYTES, Codec, Dense, Header, Reader, expect

_STAGES = struct.Struct("<BB")  # codes of the two
_LENGTH = struct.Struct("<I")  # bytes of the index block


class Chain(Codec):
    """`first` chooses coordinates, `then` codes their values: topk|int8, topk|sign, dropping|fp16.

    The k chosen values are encoded as a message of `then`. If first keeps p_j unscaled with
    Definition 1's 1 / gamma = a, and then has b, the chain has 1 - (1 - a)(1 - b). Its randomness
    is a stream of its own.
    state: those of both
    On the wire: header, the codes of both u8, length of the index block u32, indices, then's
    message.
    Source: Qsparse-local-SGD (Basu et al., NeurIPS 2019) is topk|qsgd or topk|sign.
    """

    code = 14
    first: Codec
    then: Codec

    def __post_init__(self) -> None:
        one, two = (type(c).__name__ for c in (self.first, self.then))
        if not self.first.chooses:
            raise CompositionError(
                f"{one} and {two}: {one} chooses no coordinates whose values {two} could code; "
                "begin a chain with topk, threshold or dropping"
            )
        if self.then.matrices:
            raise CompositionError(f"{one} and {two}: the chosen values form no matrices")
        if isinstance(self.then, Dense):
            raise CompositionError(f"{one} and {two}: {two} changes nothing; leave it out")

    def init(self, layout: Layout, seed: int) -> Rec:
        values = _values(self.first.most(layout.d))
        return rec(first=self.first.init(layout, seed), then=self.then.init(values, seed))

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        one, first = self.first.encode(p.detach().cpu(), state.first, layout, draw)
        noise = generator(draw.initial_seed(), "chain")
        two, then = self.then.encode(one.value, state.then, _values(len(one.value)), noise)
        places = one._replace(value=torch.empty(0))
        return rec(size=one.size, first=places, then=two), rec(first=first, then=then)

    def _chosen(self, message: Rec, dtype: torch.dtype | None) -> Rec:
        """first's message, with the values as the receiver reads them."""
        layout = _values(int(message.then.size))
        return message.first._replace(value=self.then.decode(message.then, layout, dtype))

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        return self.first.decode(self._chosen(message, dtype), layout, dtype)

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        return self.first.missing(p, self._chosen(message, p.dtype), layout)

    def parameters(self) -> bytes:
        return _STAGES.pack(self.first.code, self.then.code)

    def pack(self, message: Rec) -> bytes:
        coding, block = self.first.where(message.first)
        d, k = int(message.size), int(message.then.size)
        head = Header(self.code, torch.float32, coding, d, k).bytes() + self.parameters()
        return b"".join((head, _LENGTH.pack(len(block)), block, self.then.pack(message.then)))

    def unpack(self, raw: bytes, layout: Layout) -> Rec:
        reader = Reader(raw, self, layout)
        _, _, coding, d, k = reader.header
        (length,) = _LENGTH.unpack(bytes(reader.block(_LENGTH.size)))
        block = reader.block(length)
        # first the values, because they may be missing
        then = self.then.unpack(bytes(reader.block(reader.left)), _values(k))
        places = self.first.there(coding, block, d, k)
        first = rec(**places._asdict(), value=torch.empty(0))
        return rec(size=torch.tensor([d]), first=first, then=then)

    def nbytes(self, message: Rec) -> int:
        block, inner = self.first.where_nbytes(message.first), self.then.nbytes(message.then)
        return HEADER_BYTES + _STAGES.size + _LENGTH.size + block + inner

    @property
    def exact(self) -> bool:
        return self.first.exact and self.then.exact

    def most(self, d: int) -> int:
        return self.then.most(self.first.most(d))

    def omega(self, d: int) -> float | None:
        one, two = self.first.omega(d), self.then.omega(self.first.most(d))
        return None if one is None or two is None else (1 + one) * (1 + two) - 1

    def unfit(self, d: int) -> str:
        return self.first.unfit(d) or self.then.unfit(self.first.most(d)) or super().unfit(d)


def _values(k: int) -> Layout:
    """The layout of chosen values."""
    return Layout(("kept",), ((k,),))
