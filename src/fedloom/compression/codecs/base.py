"""Codecs: how one field of an answer, a vector p (d,), is written. Read this file to write one.

Every message on the wire begins with the same twelve bytes, little-endian: codec u8, value type u8,
index coding u8, flags u8 (0), d u32, k u32 (number of values). Behind it stand the codec's own
parameters, the block of indices, the block of values; each is padded to a byte.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.hyper import check_ranges, frozen, hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import AuthorError, DataError, NotFiniteError, WireError

_HEADER = struct.Struct("<BBBBII")
HEADER_BYTES = _HEADER.size
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Header(NamedTuple):
    """The first twelve bytes of a message."""

    codec: int
    dtype: torch.dtype
    coding: int
    d: int
    k: int

    def bytes(self) -> bytes:
        """As it stands on the wire."""
        kind = _DTYPES.index(self.dtype)
        return _HEADER.pack(self.codec, kind, self.coding, 0, self.d, self.k)


class Reader:
    """Walks through the bytes of a message; nothing is copied or made before its length is known.

    layout: what the receiver expects; a message for another length is refused before anything
    else. Raises WireError.
    """

    def __init__(self, raw: bytes, codec: Codec, layout: Layout | None) -> None:
        self._name = type(codec).__name__
        if not isinstance(raw, (bytes, bytearray)):
            raise WireError(f"a {self._name} message must be bytes, got {type(raw).__name__}")
        self._raw, self._at = memoryview(raw), HEADER_BYTES
        if len(raw) < HEADER_BYTES:
            raise WireError(
                f"a {self._name} message has {len(raw)} bytes; its header alone has {HEADER_BYTES}"
            )
        code, kind, coding, flags, d, k = _HEADER.unpack_from(raw)
        if code != codec.code:
            raise WireError(f"a message has codec {code}; {self._name} reads {codec.code}")
        if kind >= len(_DTYPES):
            known = ", ".join(f"{n} ({str(t)[6:]})" for n, t in enumerate(_DTYPES))
            raise WireError(f"a {self._name} message has value type {kind}; known: {known}")
        if flags:
            raise WireError(f"a {self._name} message has flags {flags}; this version knows none")
        if layout is not None and d != layout.d:
            raise WireError(f"a {self._name} message is for {d} coordinates, not for {layout.d}")
        self.header = Header(code, _DTYPES[kind], coding, d, k)

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._raw) - self._at

    def _cut(self, nbytes: int) -> memoryview:
        if not 0 <= nbytes <= self.left:
            raise WireError(
                f"a {self._name} message ends {nbytes - self.left} bytes too early: "
                "it was cut or its header is wrong"
            )
        self._at += nbytes
        return self._raw[self._at - nbytes : self._at]

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        """The codec's own parameters."""
        return form.unpack(self._cut(form.size))

    def block(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """The next bytes, not copied."""
        return np.frombuffer(self._cut(nbytes), np.uint8)

    def values(self, n: int, dtype: torch.dtype | None = None) -> Tensor:
        """The next n values of a type (of the header's type), as a new tensor (n,)."""
        dtype = dtype or self.header.dtype
        part = self._cut(n * dtype.itemsize)
        return torch.frombuffer(bytearray(part), dtype=dtype) if n else torch.empty(0, dtype=dtype)

    def rest(self) -> bytes:
        """All bytes that were not read yet."""
        return bytes(self._cut(self.left))

    def bits(self, n: int) -> Tensor:
        """The next n bits as bools (n,), least significant first; the rest of a byte is 0."""
        block = self.block(-(-n // 8))
        if n % 8 and block[-1] >> (n % 8):
            raise WireError(f"a {self._name} message has bits behind its last sign; it is damaged")
        return torch.from_numpy(np.unpackbits(block, count=n, bitorder="little").view(np.bool_))

    def end(self) -> None:
        """Refuse what stands behind the message."""
        if self.left:
            raise WireError(f"a {self._name} message has {self.left} bytes too many")


def checked(p: Vec, layout: Layout) -> Vec:
    """p (d,) on the host, if it can be sent.

    Raises DataError for another length, a type that no message holds, and values that are not
    finite.
    """
    if p.shape != (layout.d,):
        raise DataError(f"a codec got a vector of shape {list(p.shape)} for {layout.d} coordinates")
    if layout.d >= 1 << 32:
        raise DataError(f"a message holds fewer than 2^32 coordinates, got {layout.d}")
    if p.dtype not in _DTYPES:
        known = ", ".join(str(t)[6:] for t in _DTYPES)
        raise DataError(f"a codec got values of {p.dtype}; it sends {known}")
    p = p.detach().cpu().contiguous()  # on the host before it is looked at: nobody waits twice
    if not finite(p):
        bad = int(len(p) - torch.isfinite(p).sum())
        raise NotFiniteError(
            f"its codec got {bad} of {len(p)} values that are not finite, which cannot be sent"
        )
    return p


def raw(values: Tensor) -> bytes:
    """The bytes of a tensor (n,) of any type, little-endian."""
    return values.contiguous().view(torch.uint8).numpy().tobytes() if len(values) else b""


def finite(v: Tensor) -> bool:
    """Whether all values of a tensor are finite; no second tensor is made."""
    return not v.numel() or all(map(math.isfinite, map(float, v.aminmax())))  # NaN shows in both


def expect(message: Rec, layout: Layout) -> None:
    """Raise WireError if a message is for a vector of another length."""
    if (d := int(message.size)) != layout.d:
        raise WireError(f"a message is for {d} coordinates, not for {layout.d}")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Codec(ABC):
    """What a field is written by, and how it is read again.

    A message is a record of one-dimensional tensors; `size` (1,) is the length of what it stands
    for. Codecs are frozen dataclasses of hyper-parameters and keep nothing else: what a client
    must remember for the next message (PowerSGD's Q) is the `state`, a record.
    """

    # feedback: what goes with it unless another one is asked for, by its name
    # code: the codec's number on the wire; 128 and above are free for codecs of your own
    # matrices: needs whole layers, not some of their coordinates
    # chooses: sends some coordinates, their values in the message's `value`; may begin a chain, and
    #   has where() and there()
    feedback: ClassVar[str] = "residual"
    code: ClassVar[int]
    matrices: ClassVar[bool] = False
    chooses: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        frozen(cls)

    def __post_init__(self) -> None:
        check_ranges(self)

    def init(self, layout: Layout, seed: int) -> Rec:
        """-> state, what a client keeps between its messages. layout: of its part."""
        return rec()

    @abstractmethod
    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        """p (d,) -> message, state. draw: fresh, for this client, round and field.

        Raises DataError if p cannot be sent: wrong length, not finite.
        """

    @abstractmethod
    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        """Message -> what the receiver has instead of p, (d,). dtype None: as it was sent.

        The sender calls this too: its feedback counts what was decoded. Raises WireError if the
        message is not for this layout.
        """

    @abstractmethod
    def pack(self, message: Rec) -> bytes:
        """The bytes that travel."""

    @abstractmethod
    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        """The message again. Raises WireError for any bytes that are not one.

        With a layout, a message for another length is refused before memory is spent on it.
        """

    @abstractmethod
    def nbytes(self, message: Rec) -> int:
        """len(pack(message)), without packing."""

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        """What the receiver will lack of p (d,): p - decode(message), perhaps in p's memory: the
        caller needs p no more, and the message neither.
        """
        return torch.sub(p, self.decode(message, layout, p.dtype), out=p)

    def read(self, raw: bytes, layout: Layout, dtype: torch.dtype) -> Vec:
        """Bytes from elsewhere -> what they stand for, (d,) of this type, every value finite.

        dtype: that of the vector that was to be sent. Raises WireError for all that encode() and
        pack() cannot have made of such a vector; nothing is allocated for what a message claims
        before the claim is held against the layout. A run that packs its own messages calls
        unpack() and decode(), which look at the form alone.
        """
        message = self.unpack(raw, layout)
        if not self.canonical(message, raw, dtype):
            raise WireError(
                f"a {type(self).__name__} message is not written as this run writes "
                f"{str(dtype)[6:]} values: another value type, or a coding that is not the shortest"
            )
        out = self.decode(message, layout, dtype)
        if not finite(out):
            raise WireError(
                f"a {type(self).__name__} message holds values that are not finite as "
                f"{str(dtype)[6:]}"
            )
        return out

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        """Whether encode() and pack() can have made these bytes, which unpack() read as this
        message, of a vector of this type.
        """
        return self.pack(message) == raw

    def where(self, message: Rec) -> tuple[int, bytes]:
        """The places of the values of a codec that `chooses`: an index coding, and its block.

        Raises AuthorError unless it is overridden: only codecs that choose are asked.
        """
        raise AuthorError(f"{type(self).__name__} chooses coordinates, and needs a where()")

    def there(self, coding: int, block: npt.NDArray[np.uint8], d: int, k: int) -> Rec:
        """The message of where() without its values. Raises WireError for a damaged block,
        AuthorError unless it is overridden.
        """
        raise AuthorError(f"{type(self).__name__} chooses coordinates, and needs a there()")

    def most(self, d: int) -> int:
        """The largest number of values that a message about d coordinates holds."""
        return d

    def omega(self, d: int) -> float | None:
        """w in E||C(p) - p||^2 <= w ||p||^2 of an unbiased codec on d values; None: biased."""
        return None

    def delta(self, d: int) -> float | None:
        """1 / gamma of CFedAvg's Definition 1, E||C(p) - p||^2 <= ||p||^2 / gamma, below 1; None:
        there is no such bound for every p.
        """
        omega = self.omega(d)
        return omega if omega is not None and omega < 1 else None

    def unfit(self, d: int) -> str:
        """Say why feedback around this codec would grow without bound; "" where it does not.

        An unbiased codec is a contraction only if its variance factor is below 1.
        """
        omega = self.omega(d)
        if omega is None or omega < 1:
            return ""
        return f"its variance factor is {omega:.3g}, and feedback needs one below 1"


class Dense(Codec):
    """Everything as it is, in its own type.

    >>> from fedloom.core.rng import generator
    >>> codec, layout = Dense(), Layout(("w",), ((3,),))
    >>> message, _ = codec.encode(torch.ones(3), codec.init(layout, 0), layout, generator(0, "a"))
    >>> codec.decode(codec.unpack(codec.pack(message)), layout), codec.nbytes(message)
    (tensor([1., 1., 1.]), 24)
    """

    code = 0
    feedback = "forget"

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout)
        return rec(size=torch.tensor([len(p)]), value=p), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        value: Vec = message.value
        return value.to(dtype or value.dtype)

    def pack(self, message: Rec) -> bytes:
        d, value = int(message.size), message.value
        return Header(self.code, value.dtype, 0, d, d).bytes() + raw(value)

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        header = reader.header
        if header.k != header.d or header.coding:
            raise WireError(f"a Dense message has {header.k} of {header.d} values; it needs all")
        value = reader.values(header.d)
        reader.end()
        return rec(size=torch.tensor([header.d]), value=value)

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        return bool(message.value.dtype == dtype)  # the rest is the length

    def nbytes(self, message: Rec) -> int:
        return HEADER_BYTES + int(message.value.nbytes)

    def omega(self, d: int) -> float | None:
        return 0.0
