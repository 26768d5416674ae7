"""Codecs: one field of a client update, a vector p (d,), as bytes. Read this file to write one.

Every encoded message begins with the same twelve bytes, little-endian: codec u8, value type u8,
index coding u8, flags u8 (0), d u32, k u32 (number of values). The codec's own parameters, the
block of indices and the block of values follow; each is padded to a byte.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.hyper import Part
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
        """The header as it is sent, 12 bytes; a Reader reads them."""
        kind = _DTYPES.index(self.dtype)
        return _HEADER.pack(self.codec, kind, self.coding, 0, self.d, self.k)


class Reader:
    """Reads the bytes of a message. Nothing is copied or allocated before its length is known.

    layout: what the receiver expects; a message for another length is refused first. Raises
    WireError.
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

    def dense(self, dtype: torch.dtype | None = None, what: str = "") -> int:
        """d of a message that has all d values, of this type if one is given, and no indices. what:
        the values, for the error.
        """
        _, found, coding, d, k = self.header
        if coding:
            raise WireError(f"a {self._name} message has index coding {coding}; it has no indices")
        if k != d or dtype not in (None, found):
            got, need = (f" as {str(t)[6:]}" if dtype else "" for t in (found, dtype))
            raise WireError(
                f"a {self._name} message has {k} of {d} values{got}; it needs all{need}{what}"
            )
        return d

    def agree(self, form: struct.Struct, what: str, *own: float) -> None:
        """Read the codec's parameters. Raises WireError unless they are the run's own."""
        if (found := self.numbers(form)) != own:
            got, need = (" and ".join(map(str, numbers)) for numbers in (found, own))
            raise WireError(f"a {self._name} message has {what} {got}; this run has {need}")

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
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
        """All bytes that are not read yet."""
        return bytes(self._cut(self.left))

    def bits(self, n: int) -> Tensor:
        """The next n bits as bools (n,), least significant first; the rest of a byte is 0."""
        block = self.block(-(-n // 8))
        if n % 8 and block[-1] >> (n % 8):
            raise WireError(f"a {self._name} message has bits behind its last sign; it is damaged")
        return torch.from_numpy(np.unpackbits(block, count=n, bitorder="little").view(np.bool_))

    def end(self) -> None:
        """Raise WireError if bytes are left."""
        if self.left:
            raise WireError(f"a {self._name} message has {self.left} bytes too many")


def checked(p: Vec, layout: Layout, there: bool = False) -> Vec:
    """p (d,) on the host; there: where it is. Raises DataError for another length, a type that
    messages do not have, and values that are not finite.
    """
    if p.shape != (layout.d,):
        raise DataError(f"a codec got a vector of shape {list(p.shape)} for {layout.d} coordinates")
    if layout.d >= 1 << 32:
        raise DataError(f"a message holds fewer than 2^32 coordinates, got {layout.d}")
    if p.dtype not in _DTYPES:
        known = ", ".join(str(t)[6:] for t in _DTYPES)
        raise DataError(f"a codec got values of {p.dtype}; it sends {known}")
    p = (p.detach() if there else p.detach().cpu()).contiguous()
    if not finite(p):
        bad = int(len(p) - torch.isfinite(p).sum())
        raise NotFiniteError(
            f"its codec got {bad} of {len(p)} values that are not finite, which cannot be sent"
        )
    return p


def raw(values: Tensor) -> bytes:
    """The bytes of a tensor (n,) of any type, little-endian."""
    return values.cpu().contiguous().view(torch.uint8).numpy().tobytes() if len(values) else b""


def packed_bits(marks: Tensor) -> bytes:
    """Bools (n,) as bits, least significant first, as Reader.bits() reads them."""
    return np.packbits(marks.cpu().numpy(), bitorder="little").tobytes()


def finite(v: Tensor) -> bool:
    """True if all values of a tensor are finite; no second tensor is made."""
    if not v.numel():
        return True
    ends = v.aminmax()  # NaN shows in both
    values = map(float, ends) if v.device.type == "cpu" else torch.stack([*ends]).tolist()
    return all(map(math.isfinite, values))


def expect(message: Rec, layout: Layout) -> None:
    """Raise WireError if a message is for a vector of another length."""
    if (d := int(message.size)) != layout.d:
        raise WireError(f"a message is for {d} coordinates, not for {layout.d}")


class Codec(Part, ABC):
    """Encodes one field as bytes, and decodes it.

    A message is a record of one-dimensional tensors; `size` (1,) is the length d of the encoded
    vector. Codecs are frozen dataclasses of hyper-parameters and keep nothing else: what a client
    needs for its next message (PowerSGD's Q) is the `state`, a record.
    """

    # feedback: the name of its default error feedback
    # code: the codec's number in the header; 128 and above are free for your own codecs
    # matrices: needs whole layers, not some of their coordinates
    # chooses: sends some coordinates, their values in the message's `value`; may begin a chain, and
    #   has where() and there()
    # on_device: encode() and decode() compute where the vector is, which may be a GPU; others are
    #   given vectors of the host by checked()
    feedback: ClassVar[str] = "residual"
    code: ClassVar[int]
    matrices: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    on_device: ClassVar[bool] = False

    def init(self, layout: Layout, seed: int) -> Rec:
        """-> state, what a client keeps between two messages. layout: of its sub-model."""
        return rec()

    @abstractmethod
    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        """p (d,) -> message, state. draw: a new generator for this client, round and field.

        Raises DataError if p cannot be sent: wrong length, not finite.
        """

    @abstractmethod
    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        """Message -> the receiver's value of p, (d,). dtype None: as it was sent.

        The sender calls this too, for its error feedback. Raises WireError if the message is not
        for this layout.
        """

    @abstractmethod
    def pack(self, message: Rec) -> bytes:
        """The message as bytes."""

    @abstractmethod
    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        """Bytes -> the message. Raises WireError for bytes that are no message.

        With a layout, a message for another length is refused before memory is allocated.
        """

    @abstractmethod
    def nbytes(self, message: Rec) -> int:
        """len(pack(message)), without packing."""

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        """What the receiver lacks of p (d,): p - decode(message). It may overwrite p and the
        message, which the caller no longer needs.
        """
        return torch.sub(p, self.decode(message, layout, p.dtype), out=p)

    def read(self, raw: bytes, layout: Layout, dtype: torch.dtype) -> Vec:
        """Untrusted bytes -> the decoded vector (d,) of this type, every value finite.

        dtype: the type of the vector that was sent. Raises WireError for bytes that encode() and
        pack() cannot have made of such a vector. Lengths in a message are checked against the
        layout before memory is allocated. A run that packs its own messages calls unpack() and
        decode(), which check the form only.
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
        """True if encode() and pack() can have made these bytes, which unpack() read as this
        message, from a vector of this type.
        """
        return self.pack(message) == raw

    def where(self, message: Rec) -> tuple[int, bytes]:
        """The indices of the values of a codec that `chooses`: an index coding, and its block.

        Raises AuthorError unless overridden: only codecs that choose are asked.
        """
        raise AuthorError(f"{type(self).__name__} chooses coordinates, and needs a where()")

    def there(self, coding: int, block: npt.NDArray[np.uint8], d: int, k: int) -> Rec:
        """The message of where() without its values. Raises WireError for a damaged block,
        AuthorError unless overridden.
        """
        raise AuthorError(f"{type(self).__name__} chooses coordinates, and needs a there()")

    def most(self, d: int) -> int:
        """The largest number of values in a message about d coordinates."""
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
        """Why error feedback around this codec would grow without bound; "" if it does not.

        An unbiased codec is a contraction only if its variance factor is below 1.
        """
        omega = self.omega(d)
        if omega is None or omega < 1:
            return ""
        return f"its variance factor is {omega:.3g}, and feedback needs one below 1"


class Plain(Codec):
    """Send every value in one type, `kind`; None: in that of the vector."""

    on_device = True
    kind: ClassVar[torch.dtype | None] = None

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        value: Vec = message.value
        return value.to(dtype or value.dtype)

    def pack(self, message: Rec) -> bytes:
        d, value = int(message.size), message.value
        return Header(self.code, value.dtype, 0, d, d).bytes() + raw(value)

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        value = reader.values(d := reader.dense(self.kind))
        reader.end()
        return rec(size=torch.tensor([d]), value=value)

    def nbytes(self, message: Rec) -> int:
        return HEADER_BYTES + int(message.value.nbytes)


class Dense(Plain):
    """Send the vector as it is, in its own type.

    >>> from fedloom.core.rng import generator
    >>> codec, layout = Dense(), Layout(("w",), ((3,),))
    >>> message, _ = codec.encode(torch.ones(3), codec.init(layout, 0), layout, generator(0, "a"))
    >>> codec.decode(codec.unpack(codec.pack(message)), layout), codec.nbytes(message)
    (tensor([1., 1., 1.]), 24)
    """

    code = 0
    feedback = "forget"

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout, there=True)
        return rec(size=torch.tensor([len(p)]), value=p), state

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        return bool(message.value.dtype == dtype)  # the rest is the length

    def omega(self, d: int) -> float | None:
        return 0.0
