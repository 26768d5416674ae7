"""QSGD: random rounding to a few levels of each bucket's norm."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..algorithm import hyper
from ..errors import ConfigError, DataError, WireError
from ..layout import Layout
from ..vector import Rec, Vec, rec
from .base import HEADER_BYTES, Codec, Header, Reader, checked, expect, raw

__all__ = ["QSGD"]

_PARAMETERS = struct.Struct("<HI")  # levels, bucket
_CHUNK = 1 << 18  # values that are worked on together: a few megabytes
_LARGEST = torch.finfo(torch.float32).max


class QSGD(Codec):
    """Send sign and level l_j of every |p_j| / ||p|| in steps of 1 / levels, rounded at random.

    l = floor(z) + [u < z - floor(z)] with z = levels |p_j| / ||p|| and u uniform, so that the
    receiver's ||p|| sign(p_j) l_j / levels is unbiased. The norm is that of each bucket of
    coordinates (0: of all), sent as float32 rounded up; only the bucket's share of a vector pays
    for its largest values. levels = 2^(w-1) - 1 uses w bits a value fully: 127 is 8 bit, 7 is 4.
    On the wire: header, levels u16, bucket u32, norms, symbols l + levels in w bits each, most
    significant first.
    Source: Alistarh et al., NeurIPS 2017; the bound is `omega`.

    >>> codec, layout = QSGD(levels=7, bucket=4), Layout(("w",), ((8,),))
    >>> message, _ = codec.encode(
    ...     torch.ones(8), codec.init(layout, 0), layout, torch.Generator().manual_seed(1)
    ... )
    >>> codec.nbytes(message) == 12 + 6 + 2 * 4 + 8 // 2
    True
    """

    code = 3
    levels: int = hyper(127, low=1, high=127, source="8 bit; FedPAQ, 4 bit: 7")
    bucket: int = hyper(512, low=0, high=2**32 - 1, source="Alistarh et al.: 512; 0 = whole vector")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "bucket"):
            if not isinstance(getattr(self, name), int):
                raise ConfigError(
                    f"QSGD.{name} must be a whole number, got {getattr(self, name)!r}"
                )

    @property
    def width(self) -> int:
        """Bits a value."""
        return (2 * self.levels).bit_length()

    def omega(self, d: int) -> float | None:
        """min(b / (4 s^2), sqrt(b) / s) with b the number of values that share a norm."""
        b = min(self.bucket or d, d)
        return min(b / (4 * self.levels**2), math.sqrt(b) / self.levels)

    def unfit(self, d: int) -> str:
        why = super().unfit(d)
        return f"{why}: use more levels or smaller buckets" if why else ""

    def _size(self, d: int) -> int:
        """Values that share a norm."""
        return max(1, min(self.bucket or d, d))

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout)
        size = self._size(len(p))
        norm = _norms(p, size)
        scale = torch.where(norm > 0, norm, 1.0)
        symbol = torch.empty(len(p), dtype=torch.uint8)
        noise = torch.empty(min(len(p), _CHUNK))
        for at, n, own in _pieces(len(p), size):
            u = noise[:n].uniform_(generator=draw)
            each = _spread(scale[own], size, n)
            symbol[at : at + n] = quantise(p[at : at + n], each, u, self.levels)
        return rec(size=torch.tensor([len(p)]), norm=norm, symbol=symbol), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        out = torch.empty(layout.d, dtype=dtype or torch.float32)
        size, work = self._size(layout.d), _work(out)
        for at, n, own in _pieces(layout.d, size):
            share = message.symbol[at : at + n].to(work).sub_(self.levels).div_(self.levels)
            out[at : at + n] = share.mul_(_spread(message.norm[own], size, n))
        return out

    def pack(self, message: Rec) -> bytes:
        d = int(message.size)
        header = Header(self.code, torch.float32, 0, d, d).bytes()
        own = _PARAMETERS.pack(self.levels, self.bucket)
        symbols = _squeeze(message.symbol.numpy(), self.width)
        return b"".join((header, own, raw(message.norm), symbols))

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        _, dtype, index, d, k = reader.header
        if k != d or index or dtype != torch.float32:
            raise WireError(f"a QSGD message has {k} of {d} values; it needs all, as float32 norms")
        if (own := reader.numbers(_PARAMETERS)) != (self.levels, self.bucket):
            raise WireError(
                f"a QSGD message has {own[0]} levels and buckets of {own[1]}; "
                f"this run has {self.levels} and {self.bucket}"
            )
        number = -(-d // self._size(d))
        nbytes = -(-d * self.width // 8)
        if reader.left != 4 * number + nbytes:
            raise WireError(
                f"a QSGD message has {reader.left} bytes of norms and symbols; "
                f"{d} coordinates take {4 * number + nbytes}"
            )
        norm = reader.values(number)
        if not ((norm >= 0) & (norm <= _LARGEST)).all():
            raise WireError("a QSGD message has a norm that is negative or not finite")
        symbol = _unsqueeze(reader.block(nbytes), self.width, d)
        if d and int(symbol.max()) > 2 * self.levels:
            raise WireError(
                f"a QSGD message has symbol {int(symbol.max())}; {self.levels} levels have "
                f"0 .. {2 * self.levels}"
            )
        return rec(size=torch.tensor([d]), norm=norm, symbol=torch.from_numpy(symbol))

    def nbytes(self, message: Rec) -> int:
        symbols = -(-int(message.size) * self.width // 8)
        return HEADER_BYTES + _PARAMETERS.size + int(message.norm.nbytes) + symbols


# ------------------------------------------------------------------------------------- arithmetic
def _work(p: Tensor) -> torch.dtype:
    """What is computed in: half types have too few digits for levels."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def quantise(p: Vec, norm: Tensor, u: Vec, levels: int) -> Tensor:
    """Signed levels plus `levels`, uint8 (n,). norm: one, or one per value, none of them 0; u in
    [0, 1).

    ceil(z - u) is floor(z) + [u < z - floor(z)] in one operation.
    """
    work = _work(p)
    p = p.to(work)
    # the quotient first: levels / norm overflows for the smallest norms; it may round above 1
    z = p.abs().div_(norm.to(work)).mul_(levels).sub_(u).ceil_().clamp_max_(levels)
    return z.copysign_(p).add_(levels).to(torch.uint8)


def _pieces(d: int, size: int) -> Iterator[tuple[int, int, slice]]:
    """Cut d values into (start, length, their buckets): some whole buckets, or part of one."""
    at = 0
    while at < d:
        room = _CHUNK // size * size if size <= _CHUNK else min(_CHUNK, size - at % size)
        n = min(room, d - at)
        yield at, n, slice(at // size, (at + n - 1) // size + 1)
        at += n


def _spread(norm: Tensor, size: int, n: int) -> Tensor:
    """One value per bucket -> one per coordinate (n,); a single one stays."""
    return norm if len(norm) == 1 else norm.repeat_interleave(size)[:n]


def _norms(p: Vec, size: int) -> Tensor:
    """The norm of every `size` values, float32 rounded up: a norm that is too small would push
    the largest value beyond the last level, and make it biased.
    """
    squares = torch.zeros(-(-len(p) // size), dtype=torch.float64)
    for at, n, own in _pieces(len(p), size):
        square = p[at : at + n].double().square()  # double() of doubles is p itself
        if own.stop - own.start == 1:
            squares[own] += square.sum()
        else:
            padded = torch.nn.functional.pad(square, (0, -n % size))
            squares[own] = padded.view(-1, size).sum(1)
    exact = squares.sqrt_()
    if len(exact) and exact.max() > _LARGEST:
        raise DataError(
            f"QSGD sends norms as float32, up to {_LARGEST:.3g}, got {float(exact.max()):.3g}"
        )
    norm = exact.float()
    above = torch.nextafter(norm, torch.tensor(math.inf))
    return torch.where(norm.double() < exact, above, norm).clamp_max(_LARGEST)


# ------------------------------------------------------------------------------------------- bits
def _squeeze(symbols: npt.NDArray[np.uint8], width: int) -> bytes:
    """Symbols of `width` bits, one behind the other."""
    if width == 8:
        return symbols.tobytes()
    parts = (symbols[at : at + _CHUNK, None] for at in range(0, len(symbols), _CHUNK))
    return b"".join(np.packbits(np.unpackbits(s, axis=1)[:, 8 - width :]).tobytes() for s in parts)


def _unsqueeze(block: npt.NDArray[np.uint8], width: int, d: int) -> npt.NDArray[np.uint8]:
    """The d symbols of _squeeze()."""
    if width == 8:
        return block.copy()
    out = np.empty(d, np.uint8)
    for at in range(0, d, _CHUNK):  # a multiple of 8 symbols is a whole number of bytes
        n, first = min(_CHUNK, d - at), at * width // 8
        bits = np.unpackbits(block[first : first - (-n * width // 8)])
        if bits[n * width :].any():
            raise WireError("a QSGD message has bits behind its last symbol; it is damaged")
        out[at : at + n] = np.packbits(bits[: n * width].reshape(n, width), axis=1)[:, 0] >> (
            8 - width
        )
    return out
