"""Chains: one codec for the values that another one chooses."""

from __future__ import annotations

import struct
from typing import Any

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
        places = {f"first_{k}": v for k, v in one._asdict().items() if k not in ("size", "value")}
        values = {f"then_{k}": v for k, v in two._asdict().items()}
        return rec(size=one.size, **places, **values), rec(first=first, then=then)

    def _first(self, message: Rec, value: Vec) -> Rec:
        """first's message with these values."""
        return rec(size=message.size, **_stage(message, "first_"), value=value)

    def _with_values(self, message: Rec, dtype: torch.dtype | None) -> Rec:
        two = rec(**_stage(message, "then_"))
        return self._first(message, self.then.decode(two, _values(int(two.size)), dtype))

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        return self.first.decode(self._with_values(message, dtype), layout, dtype)

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        return self.first.missing(p, self._with_values(message, p.dtype), layout)

    def parameters(self) -> bytes:
        return _STAGES.pack(self.first.code, self.then.code)

    def pack(self, message: Rec) -> bytes:
        coding, block = self.where(message)
        d, k = int(message.size), int(message.then_size)
        head = Header(self.code, torch.float32, coding, d, k).bytes()
        inner = self.then.pack(rec(**_stage(message, "then_")))
        return b"".join((head, self.parameters(), _LENGTH.pack(len(block)), block, inner))

    def where(self, message: Rec) -> tuple[int, bytes]:
        return self.first.where(self._first(message, torch.empty(0)))

    def unpack(self, raw: bytes, layout: Layout) -> Rec:
        reader = Reader(raw, self, layout)
        _, _, coding, d, k = reader.header
        (length,) = _LENGTH.unpack(bytes(reader.block(_LENGTH.size)))
        block = reader.block(length)
        # first the values, because they may be missing
        values = self.then.unpack(bytes(reader.block(reader.left)), _values(k))
        message = self.first.there(coding, block, d, k)
        places = {f"first_{n}": v for n, v in message._asdict().items() if n != "size"}
        inner = {f"then_{n}": v for n, v in values._asdict().items()}
        return rec(size=torch.tensor([d]), **places, **inner)

    def nbytes(self, message: Rec) -> int:
        block = self.first.where_nbytes(self._first(message, torch.empty(0)))
        inner = self.then.nbytes(rec(**_stage(message, "then_")))
        return HEADER_BYTES + _STAGES.size + _LENGTH.size + block + inner

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


def _stage(message: Rec, prefix: str) -> dict[str, Any]:
    """The fields of one of the two messages."""
    fields = message._asdict().items()
    return {k.removeprefix(prefix): v for k, v in fields if k.startswith(prefix)}
