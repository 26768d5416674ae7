"""Codecs: one field of a client update, a vector p (d,), as bytes. Read this file to write one.

Every encoded message begins with the same twelve bytes, little-endian: codec u8, value type u8,
index coding u8, flags u8 (0), d u32, k u32 (number of values). The codec's own parameters, the
block of indices and the fields of the message follow; each is padded to a byte.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.hyper import Part
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import DataError, NotFiniteError, WireError

_HEADER = struct.Struct("<BBBBII")
HEADER_BYTES = _HEADER.size
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_CHUNK = 1 << 18  # symbols that are packed together: a multiple of 8

Kind = torch.dtype | int | None  # how the values of a field travel, see Codec.wire
Bytes = npt.NDArray[np.uint8]


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

    def __init__(self, raw: bytes, codec: Codec, layout: Layout) -> None:
        self._name = type(codec).__name__
        if not isinstance(raw, (bytes, bytearray)):
            raise WireError(f"a {self._name} message must be bytes, got {type(raw).__name__}")
        self._raw, self._position = memoryview(raw), HEADER_BYTES
        if len(raw) < HEADER_BYTES:
            raise WireError(
                f"a {self._name} message has {len(raw)} bytes; its header alone has {HEADER_BYTES}"
            )
        code, kind, coding, flags, d, k = _HEADER.unpack_from(raw)
        if code != codec.code:
            raise WireError(f"a message has codec {code}; {self._name} reads {codec.code}")
        if kind >= len(_DTYPES):
            names = ", ".join(f"{n} ({str(t)[6:]})" for n, t in enumerate(_DTYPES))
            raise WireError(f"a {self._name} message has value type {kind}; known: {names}")
        if flags:
            raise WireError(f"a {self._name} message has flags {flags}; this version knows none")
        if d != layout.d:
            raise WireError(f"a {self._name} message is for {d} coordinates, not for {layout.d}")
        self.header = Header(code, _DTYPES[kind], coding, d, k)
        options = codec.parameters()
        if (received := bytes(self.block(len(options)))) != options:
            raise WireError(
                f"a {self._name} message has the options {received.hex()}; those of this run, "
                f"{codec!r}, are {options.hex()}"
            )

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._raw) - self._position

    def block(self, nbytes: int) -> Bytes:
        """The next bytes, not copied."""
        if (lacks := max(nbytes - self.left, -nbytes)) > 0:
            raise WireError(
                f"a {self._name} message ends {lacks} bytes too early: "
                "it was cut or its header is wrong"
            )
        self._position += nbytes
        return np.frombuffer(self._raw[self._position - nbytes : self._position], np.uint8)

    def field(self, n: int, kind: torch.dtype | int) -> Tensor:
        """The next n values, as a new tensor (n,)."""
        block = self.block(_nbytes(n, kind))
        if isinstance(kind, int):
            return torch.from_numpy(_unsqueezed(block, kind, n))
        return torch.frombuffer(bytearray(block), dtype=kind) if n else torch.empty(0, dtype=kind)


def checked(p: Vec, layout: Layout, on_device: bool = False) -> Vec:
    """p (d,) on the host; on_device: where it is. Raises DataError for another length, a type that
    messages do not have, and values that are not finite.
    """
    if p.shape != (layout.d,):
        raise DataError(f"a codec got a vector of shape {list(p.shape)} for {layout.d} coordinates")
    if layout.d >= 1 << 32:
        raise DataError(f"a message holds fewer than 2^32 coordinates, got {layout.d}")
    if p.dtype not in _DTYPES:
        types = ", ".join(str(t)[6:] for t in _DTYPES)
        raise DataError(f"a codec got values of {p.dtype}; it sends {types}")
    p = (p.detach() if on_device else p.detach().cpu()).contiguous()
    if not finite(p):
        bad = int(len(p) - torch.isfinite(p).sum())
        raise NotFiniteError(
            f"its codec got {bad} of {len(p)} values that are not finite, which cannot be sent"
        )
    return p


def raw(values: Tensor) -> bytes:
    """The bytes of a tensor (n,) of any type, little-endian."""
    return values.cpu().contiguous().view(torch.uint8).numpy().tobytes() if len(values) else b""


def _nbytes(n: int, kind: torch.dtype | int) -> int:
    return -(-n * kind // 8) if isinstance(kind, int) else n * kind.itemsize


def _squeezed(symbols: Bytes, width: int) -> bytes:
    """Numbers of `width` bits or bools (n,), one after the other, most significant bit first."""
    if width == 1:
        return np.packbits(symbols).tobytes()
    per = 8 // width
    if per * width == 8:
        rows = np.pad(symbols, (0, -len(symbols) % per)).reshape(-1, per)
        out = np.zeros(len(rows), np.uint8)
        for j in range(per):
            out |= rows[:, j] << (8 - width * (j + 1))
        return out.tobytes()
    parts = (symbols[start : start + _CHUNK, None] for start in range(0, len(symbols), _CHUNK))
    return b"".join(np.packbits(np.unpackbits(s, axis=1)[:, 8 - width :]).tobytes() for s in parts)


def _unsqueezed(block: Bytes, width: int, n: int) -> npt.NDArray[np.uint8 | np.bool_]:
    """The n numbers of _squeezed(), bools of one bit."""
    if width == 1:
        return np.unpackbits(block, count=n).view(np.bool_)
    per = 8 // width
    if per * width == 8:
        rows = np.empty((len(block), per), np.uint8)
        for j in range(per):
            rows[:, j] = (block >> (8 - width * (j + 1))) & ((1 << width) - 1)
        return rows.reshape(-1)[:n]
    out = np.empty(n, np.uint8)
    for start in range(0, n, _CHUNK):
        count, first = min(_CHUNK, n - start), start * width // 8
        bits = np.unpackbits(block[first : first + _nbytes(count, width)], count=count * width)
        wide = np.packbits(bits.reshape(count, width), axis=1)[:, 0]
        out[start : start + count] = wide >> (8 - width)
    return out


def finite(v: Tensor) -> bool:
    """True if all values of a tensor are finite; no second tensor is made."""
    if not v.numel():
        return True
    ends = v.aminmax()  # NaN shows in both
    values = map(float, ends) if v.device.type == "cpu" else torch.stack([*ends]).tolist()
    return all(map(math.isfinite, values))


def _floating(kinds: Mapping[str, torch.dtype | int]) -> torch.dtype:
    """The value type in the header: that of the first field which has one."""
    types = (kind for kind in kinds.values() if not isinstance(kind, int))
    return next((kind for kind in types if kind in _DTYPES), torch.float32)


def expect(message: Rec, layout: Layout) -> None:
    """Raise WireError if a message is for a vector of another length."""
    if (d := int(message.size)) != layout.d:
        raise WireError(f"a message is for {d} coordinates, not for {layout.d}")


class Codec(Part, ABC):
    """Encodes one field as bytes, and decodes it.

    A message is a record of one-dimensional tensors, or of such records; `size` (1,) is the length
    d of the encoded vector. Codecs are frozen dataclasses of hyper-parameters and keep nothing
    else: what a client needs for its next message (PowerSGD's Q) is the `state`, a record.
    """

    # feedback: the name of its default error feedback
    # code: the codec's number in the header; 128 and above are free for your own codecs
    # wire: how the message's fields travel, in order: in a type; a whole number: in so many bits
    #   (uint8; bools of one bit); None: in the type of the vector that is sent
    # counted: the field whose length is k in the header
    # matrices: needs whole layers, not some of their coordinates
    # chooses: sends some coordinates, their values in the message's `value`; may begin a chain, and
    #   has a where() and a there() of its own
    # advice: what to change where error feedback would grow
    # on_device: encode() and decode() compute where the vector is, which may be a GPU; others are
    #   given vectors of the host by checked()
    feedback: ClassVar[str] = "residual"
    code: ClassVar[int]
    wire: ClassVar[Mapping[str, Kind]]
    counted: ClassVar[str] = "value"
    matrices: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    advice: ClassVar[str] = ""
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

    def parameters(self) -> bytes:
        """What sender and receiver must have alike, behind the header."""
        return b""

    def lengths(self, k: int, layout: Layout) -> Mapping[str, int]:
        """{field: its length} of a message of k values: by default each has d."""
        return dict.fromkeys(self.wire, layout.d)

    def pack(self, message: Rec) -> bytes:
        """The message as bytes."""
        coding, block = self.where(message)
        fields = [
            _squeezed(getattr(message, name).cpu().numpy(), kind)
            if isinstance(kind, int)
            else raw(getattr(message, name))
            for name, kind in self.wire.items()
        ]
        return b"".join((self._header(message, coding).bytes(), self.parameters(), block, *fields))

    def unpack(self, raw: bytes, layout: Layout) -> Rec:
        """Bytes -> the message. Raises WireError for bytes that are none for this layout, before
        memory is allocated.
        """
        reader, name = Reader(raw, self, layout), type(self).__name__
        _, dtype, coding, d, k = reader.header
        lengths, kinds = self.lengths(k, layout), self._kinds(dtype)
        if k != (need := lengths[self.counted]):
            raise WireError(f"a {name} message has {k} values for {d} coordinates; it needs {need}")
        if dtype != _floating(kinds):
            raise WireError(
                f"a {name} message has values of {str(dtype)[6:]}; it sends "
                f"{str(_floating(kinds))[6:]}"
            )
        rest = sum(_nbytes(lengths[field], kind) for field, kind in kinds.items())
        message = self.there(coding, reader.block(reader.left - rest), d, k)
        fields = {field: reader.field(lengths[field], kind) for field, kind in kinds.items()}
        return rec(**message._asdict(), **fields)

    def nbytes(self, message: Rec) -> int:
        """len(pack(message)), without packing."""
        kinds = self._kinds(self._header(message, 0).dtype)
        fields = sum(_nbytes(len(getattr(message, field)), kind) for field, kind in kinds.items())
        return HEADER_BYTES + len(self.parameters()) + self.where_nbytes(message) + fields

    def _header(self, message: Rec, coding: int) -> Header:
        kinds = {n: getattr(message, n).dtype if k is None else k for n, k in self.wire.items()}
        k = len(getattr(message, self.counted))
        return Header(self.code, _floating(kinds), coding, int(message.size), k)

    def _kinds(self, dtype: torch.dtype) -> dict[str, torch.dtype | int]:
        return {name: dtype if kind is None else kind for name, kind in self.wire.items()}

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        """What the receiver lacks of p (d,): p - decode(message). It may overwrite p and the
        message, which the caller no longer needs.
        """
        return torch.sub(p, self.decode(message, layout, p.dtype), out=p)

    def read(self, raw: bytes, layout: Layout, dtype: torch.dtype) -> Vec:
        """Untrusted bytes -> the decoded vector (d,) of this type, every value finite. Lengths are
        checked against the layout before memory is allocated. Raises WireError.
        """
        out = self.decode(self.unpack(raw, layout), layout, dtype)
        if not finite(out):
            raise WireError(
                f"a {type(self).__name__} message holds values that are not finite as "
                f"{str(dtype)[6:]}"
            )
        return out

    def where(self, message: Rec) -> tuple[int, bytes]:
        """Which coordinates are sent: an index coding, and its block; here all, without a block."""
        return 0, b""

    def where_nbytes(self, message: Rec) -> int:
        """The length of where()'s block."""
        return len(self.where(message)[1])

    def there(self, coding: int, block: Bytes, d: int, k: int) -> Rec:
        """The message of where() without its values. Raises WireError for a damaged block."""
        name = type(self).__name__
        if coding:
            raise WireError(f"a {name} message has index coding {coding}; it has no indices")
        if len(block):
            raise WireError(f"a {name} message has {len(block)} bytes too many")
        return rec(size=torch.tensor([d]))

    def most(self, d: int) -> int:
        """The largest number of values in a message about d coordinates."""
        return d

    @property
    def exact(self) -> bool:
        """Whether everything arrives as it was sent."""
        return self.omega(1) == 0

    def omega(self, d: int) -> float | None:
        """w in E||C(p) - p||^2 <= w ||p||^2 of an unbiased codec on d values; None: biased."""
        return None

    def unfit(self, d: int) -> str:
        """Why error feedback around this codec would grow without bound; "" if it does not.

        An unbiased codec is a contraction only if its variance factor is below 1.
        """
        omega = self.omega(d)
        if omega is None or omega < 1:
            return ""
        why = f"its variance factor is {omega:.3g}, and feedback needs one below 1"
        return f"{why}: {self.advice}" if self.advice else why


class Plain(Codec):
    """Send every value."""

    on_device = True
    wire: ClassVar[Mapping[str, Kind]] = {"value": None}

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        value: Vec = message.value
        return value.to(dtype or value.dtype)


class Dense(Plain):
    """Send the vector as it is, in its own type.

    >>> from fedloom.core.rng import generator
    >>> codec, layout = Dense(), Layout(("w",), ((3,),))
    >>> message, _ = codec.encode(torch.ones(3), codec.init(layout, 0), layout, generator(0, "a"))
    >>> codec.decode(codec.unpack(codec.pack(message), layout), layout), codec.nbytes(message)
    (tensor([1., 1., 1.]), 24)
    """

    code = 0
    feedback = "forget"

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout, on_device=True)
        return rec(size=torch.tensor([len(p)]), value=p), state

    def omega(self, d: int) -> float | None:
        return 0.0
