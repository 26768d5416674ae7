"""Chains: one codec for the values that another one chooses, and zstandard for any bytes."""

from __future__ import annotations

import importlib.util
import struct
from typing import Any

import torch

from ...core.extras import install
from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.rng import generator
from ...core.vector import Rec, Vec, rec
from ...errors import CompositionError, ConfigError, WireError
from .base import HEADER_BYTES, Codec, Dense, Header, Reader, expect

_STAGES = struct.Struct("<BB")  # codes of the two
_LENGTH = struct.Struct("<I")  # bytes of the index block
_PACKED = struct.Struct("<BI")  # code of the inner one, its bytes
_ROOM = 9  # no message has more bytes per coordinate, plus _MORE
_MORE = 4096
_WINDOW = 1024  # the smallest one of a frame


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
        super().__post_init__()
        one, two = (type(c).__name__ for c in (self.first, self.then))
        if not self.first.chooses:
            raise CompositionError(
                f"{one} and {two}: {one} chooses no coordinates whose values {two} could code; "
                "begin a chain with topk, threshold, proportion or dropping"
            )
        if self.then.matrices:
            raise CompositionError(f"{one} and {two}: the chosen values form no matrices")
        if isinstance(self.then, Dense):
            raise CompositionError(f"{one} and {two}: {two} changes nothing; leave it out")

    def init(self, layout: Layout, seed: int) -> Rec:
        kept = _values(self.first.most(layout.d))
        return rec(first=self.first.init(layout, seed), then=self.then.init(kept, seed))

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

    def pack(self, message: Rec) -> bytes:
        return self._head(message) + self.then.pack(rec(**_stage(message, "then_")))

    def _head(self, message: Rec) -> bytes:
        """All that stands before then's message."""
        d, k = int(message.size), int(message.then_size)
        coding, block = self.first.where(self._first(message, torch.empty(0)))
        head = Header(self.code, torch.float32, coding, d, k).bytes()
        stages = _STAGES.pack(self.first.code, self.then.code)
        return b"".join((head, stages, _LENGTH.pack(len(block)), block))

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        _, _, coding, d, k = reader.header
        reader.agree(_STAGES, "the codecs", self.first.code, self.then.code)
        block = reader.block(*reader.numbers(_LENGTH))
        values = self.then.unpack(reader.rest(), _values(k))  # first, because they may be missing
        found = self.first.there(coding, block, d, k)
        places = {f"first_{n}": v for n, v in found._asdict().items() if n != "size"}
        inner = {f"then_{n}": v for n, v in values._asdict().items()}
        return rec(size=torch.tensor([d]), **places, **inner)

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        head, two = self._head(message), rec(**_stage(message, "then_"))
        return raw.startswith(head) and self.then.canonical(two, raw[len(head) :], dtype)

    def nbytes(self, message: Rec) -> int:
        _, block = self.first.where(self._first(message, torch.empty(0)))
        inner = self.then.nbytes(rec(**_stage(message, "then_")))
        return HEADER_BYTES + _STAGES.size + _LENGTH.size + len(block) + inner

    def most(self, d: int) -> int:
        return self.then.most(self.first.most(d))

    def omega(self, d: int) -> float | None:
        one, two = self.first.omega(d), self.then.omega(self.first.most(d))
        return None if one is None or two is None else (1 + one) * (1 + two) - 1

    def delta(self, d: int) -> float | None:
        if self.omega(d) is not None:
            return super().delta(d)
        if self.first.omega(d):  # scaled values are not orthogonal to the dropped ones
            return None
        one, two = self.first.delta(d), self.then.delta(self.first.most(d))
        return None if one is None or two is None else 1 - (1 - one) * (1 - two)

    def unfit(self, d: int) -> str:
        return self.first.unfit(d) or self.then.unfit(self.first.most(d)) or super().unfit(d)


class Zstd(Codec):
    """Compress the bytes of any codec's message by zstandard, which is lossless.

    Useful if the bits of a message are not all random, such as few levels; those of top-k are close
    to their entropy already. Needs the zstandard package, of the extra zstd.
    state: inner's
    On the wire: header, code of inner u8, length of its message u32, a zstandard frame.
    Source: RFC 8878.
    """

    code = 15
    inner: Codec
    level: int = hyper(
        3, "effort of the byte compression", low=1, high=22, source="zstandard's default"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # lossless, so the error feedback is inner's
        object.__setattr__(self, "feedback", self.inner.feedback)
        if isinstance(self.inner, Zstd):
            raise CompositionError("Zstd and Zstd: nothing is left to compress; leave one out")
        if importlib.util.find_spec("zstandard") is None:
            raise ConfigError(
                "a chain that ends in zstd needs the package zstandard, which is not installed; "
                f"{install('zstd')}, or leave it out"
            )

    @property
    def matrices(self) -> bool:  # type: ignore[override]  # what inner needs, it needs
        """Whether inner needs whole layers."""
        return self.inner.matrices

    @property
    def on_device(self) -> bool:  # type: ignore[override]
        """Whether inner computes on the device of its vector."""
        return self.inner.on_device

    def init(self, layout: Layout, seed: int) -> Rec:
        return self.inner.init(layout, seed)

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        return self.inner.encode(p, state, layout, draw)

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        return self.inner.decode(message, layout, dtype)

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        return self.inner.missing(p, message, layout)

    def pack(self, message: Rec) -> bytes:
        import zstandard

        raw, d = self.inner.pack(message), int(message.size)
        frame: bytes = zstandard.ZstdCompressor(level=self.level).compress(raw)
        head = Header(self.code, torch.float32, 0, d, 0).bytes()
        return b"".join((head, _PACKED.pack(self.inner.code, len(raw)), frame))

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        return self.inner.unpack(self._whole(raw, layout), layout)

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        # another version of the library may write another frame of the same bytes
        return self.inner.canonical(message, self._whole(raw, None), dtype)

    def _whole(self, raw: bytes, layout: Layout | None) -> bytes:
        """The bytes of inner's message."""
        import zstandard

        reader = Reader(raw, self, layout)
        d = reader.header.d
        code, length = reader.numbers(_PACKED)
        if code != self.inner.code or reader.header[1:3] != (torch.float32, 0) or reader.header.k:
            raise WireError(f"a Zstd message holds codec {code}; this run has {self.inner.code}")
        if length > _ROOM * d + _MORE:
            raise WireError(f"a Zstd message claims {length} bytes for {d} coordinates")
        frame = reader.rest()
        try:
            said = zstandard.get_frame_parameters(frame)
            if said.content_size != length or said.window_size > max(_WINDOW, 2 * length):
                raise WireError(
                    f"a Zstd message claims {length} bytes, and its frame {said.content_size} in "
                    f"a window of {said.window_size}"
                )
            whole: bytes = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise WireError(f"a Zstd message cannot be read: {error}") from None
        return whole

    def nbytes(self, message: Rec) -> int:
        return len(self.pack(message))

    def most(self, d: int) -> int:
        return self.inner.most(d)

    def omega(self, d: int) -> float | None:
        return self.inner.omega(d)

    def delta(self, d: int) -> float | None:
        return self.inner.delta(d)

    def unfit(self, d: int) -> str:
        return self.inner.unfit(d)


def _values(k: int) -> Layout:
    """The layout of chosen values."""
    return Layout(("kept",), ((k,),))


def _stage(message: Rec, prefix: str) -> dict[str, Any]:
    """The fields of one of the two messages."""
    found = message._asdict().items()
    return {k.removeprefix(prefix): v for k, v in found if k.startswith(prefix)}
