"""Encoding of a set of coordinates: the cheapest of four codings, chosen for every message.

The set is a strictly increasing array j_1 < ... < j_k of numbers below d; its gaps are g_1 = j_1 +
1, g_l = j_l - j_(l-1) >= 1. Codings (`Coding`): nothing if k is 0 or d; one bit per
coordinate; g - 1 in bytes of seven bits (LEB128); g - 1 in Golomb-Rice codes, whose
parameter r is the block's first byte. Rice bits are stored most significant first, bitmap bits
least significant first; every block is padded to a byte with zeros.

A Golomb-Rice code of n is n >> r in unary and its r low bits. A block has all unary parts (n >> r
ones and a zero each), then all low bits: as long as codes one after the other, and read at once.
Source: Rice and Plaunt, IEEE Transactions on Communications 1971; Golomb 1966.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import WireError

Index = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LARGEST = 31  # parameter of Golomb-Rice codes
_VARINT = 5  # bytes of the longest gap that fits u32


class Coding(enum.IntEnum):
    """The codings by their number in a message. Of equally long ones the first is taken. 1 was four
    bytes per index, which is shorter than the others only with gaps of 2^28.
    """

    IMPLIED = 0
    BITMAP = 2
    VARINT = 3
    RICE = 4


class Plan(NamedTuple):
    """The choice for a set: the coding, Rice's r (else 0), the block's length in bytes."""

    coding: Coding
    r: int
    nbytes: int


def plan(index: Index, d: int) -> Plan:
    """Choose the shortest coding of a strictly increasing set below d, without writing it.

    >>> plan(np.array([3, 17, 18, 500, 999]), 1000)
    Plan(coding=<Coding.VARINT: 3>, r=0, nbytes=7)
    """
    k = len(index)
    if k in (0, d):
        return Plan(Coding.IMPLIED, 0, 0)
    less = _less(index)
    r, bits = rice_length(less)
    return min(
        Plan(Coding.BITMAP, 0, -(-d // 8)),
        Plan(Coding.VARINT, 0, _varint_bytes(less)),
        Plan(Coding.RICE, r, 1 + -(-bits // 8)),
        key=lambda p: (p.nbytes, p.coding),
    )


def write(index: Index, d: int, choice: Plan | None = None) -> bytes:
    """The block of bytes of a set, in the coding of plan() unless another one is given."""
    coding, r, _ = choice or plan(index, d)
    if coding == Coding.IMPLIED:
        return b""
    if coding == Coding.BITMAP:
        marks = np.zeros(d, np.uint8)
        marks[index] = 1
        return np.packbits(marks, bitorder="little").tobytes()
    if coding == Coding.VARINT:
        return _varints(_less(index))
    return bytes([r]) + rice_write(_less(index), r)


def bound(block: Bytes, d: int) -> None:
    """Raise WireError for a block longer than a bitmap: plan() would have chosen the bitmap."""
    _need(len(block) <= -(-d // 8), f"at most {-(-d // 8)} bytes", len(block))


def read(block: Bytes, coding: int, d: int, k: int) -> Index:
    """The set of k coordinates below d that a block describes.

    Raises WireError for anything that write() cannot have written: the wrong length, an index out
    of range or named twice. Never allocates more than a small multiple of the block's own length.
    """
    if k > d:
        raise WireError(f"a message names {k} of {d} coordinates; it can name at most all of them")
    if coding == Coding.IMPLIED:
        _need(len(block) == 0, "no bytes", f"{len(block)} bytes")
        _need(k in (0, d), f"indices for {k} of {d} coordinates", "none")
        return np.arange(k, dtype=np.int64)
    _need(k > 0, "indices", "none in a coding that has some")
    if coding == Coding.BITMAP:
        return _read_bitmap(block, d, k)
    if coding == Coding.VARINT:
        return _below(_read_varint(block, k), d)
    if coding == Coding.RICE:
        return _below(_read_rice(block, d, k), d)
    names = ", ".join(f"{c.value} ({c.name.lower()})" for c in Coding)
    raise WireError(f"a message has index coding {coding}; known: {names}")


# ------------------------------------------------------------------------------------------ checks
def _need(holds: Any, part: str, value: Any) -> None:
    if not holds:
        raise WireError(f"a message's index block should hold {part}, got {value}; it is damaged")


def _below(index: Index, d: int) -> Index:
    """The same index, which is increasing by the way it was made, if it is within d."""
    if len(index):
        _need(index[-1] < d, f"indices below {d}", int(index[-1]))
    return index


def _less(index: Index) -> Index:
    """Gaps less one."""
    less: Index = np.diff(index, prepend=-1) - 1
    return less


def _sum_up(less: Index) -> Index:
    """The set from its gaps less one, which the caller has bounded by 2^40; in their place."""
    less += 1
    np.cumsum(less, out=less)
    less -= 1
    return less


# ------------------------------------------------------------------ bitmap, variable lengths
def _read_bitmap(block: Bytes, d: int, k: int) -> Index:
    _need(len(block) == -(-d // 8), f"{-(-d // 8)} bytes of a bitmap", f"{len(block)} bytes")
    marks = np.unpackbits(block, bitorder="little")
    _need((count := np.count_nonzero(marks)) == k, f"{k} marks", count)
    index = np.flatnonzero(marks)
    return _below(index.astype(np.int64, copy=False), d)


def _varint_bytes(less: Index) -> int:
    """One byte each, and one more from 2^7, 2^14, ... on."""
    total, bound, longest = len(less), 1 << 7, int(less.max())
    while bound <= longest:
        total += int(np.count_nonzero(less >= bound))
        bound <<= 7
    return total


def _varints(less: Index) -> bytes:
    lengths = np.ones(len(less), np.int64)
    for n in range(1, _VARINT):
        lengths += less >= 1 << (7 * n)
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), np.uint8)
    for n in range(int(lengths.max())):
        mask = lengths > n
        more = (lengths[mask] > n + 1).astype(np.uint8) << 7
        out[starts[mask] + n] = ((less[mask] >> (7 * n)) & 0x7F).astype(np.uint8) | more
    return out.tobytes()


def _read_varint(block: Bytes, k: int) -> Index:
    last = np.flatnonzero(block < 0x80)
    _need(len(last) == k, f"{k} gaps", len(last))
    _need(last[-1] == len(block) - 1, "whole gaps", "a part of one at its end")
    starts = np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])
    lengths = last - starts + 1
    _need(lengths.max() <= _VARINT, f"gaps of at most {_VARINT} bytes", int(lengths.max()))
    _need(not ((block[last] == 0) & (lengths > 1)).any(), "gaps without padding", "padded ones")
    less = np.zeros(k, np.int64)
    for n in range(int(lengths.max())):
        mask = lengths > n
        less[mask] |= (block[starts[mask] + n].astype(np.int64) & 0x7F) << (7 * n)
    return _sum_up(less)


# ------------------------------------------------------------------------------------------- Rice
def _read_rice(block: Bytes, d: int, k: int) -> Index:
    _need(len(block) > 1, "a parameter and codes", f"{len(block)} bytes")
    # a longer block would lose to the bitmap, so none is ever written; this bounds the work
    _need(len(block) <= 1 + -(-d // 8), f"at most {1 + -(-d // 8)} bytes", len(block))
    r = int(block[0])
    _need(r <= _LARGEST, f"a parameter of at most {_LARGEST}", r)
    return _sum_up(rice_read(block[1:], r, k, d))


def rice_length(numbers: Index) -> tuple[int, int]:
    """-> r of the least total length, the smaller one at a tie, and that length in bits.

    The length is convex in r (one more r halves the unary parts, and halves of smaller numbers are
    smaller), so the first r that the next one does not improve on is the best.

    >>> rice_length(np.array([1, 3]))
    (1, 5)
    """
    k, best = len(numbers), len(numbers) + int(numbers.sum())
    for r in range(_LARGEST):
        bits = k * (r + 2) + int((numbers >> (r + 1)).sum())
        if bits >= best:
            return r, best
        best = bits
    return _LARGEST, best


def rice_write(numbers: Index, r: int) -> bytes:
    """The block of numbers (k,), k > 0.

    >>> rice_write(np.array([1, 3]), 1).hex()
    '58'
    """
    stops = np.cumsum((numbers >> r) + 1) - 1
    unary = np.ones(int(stops[-1]) + 1, np.uint8)
    unary[stops] = 0
    low = np.empty((len(numbers), r), np.uint8)
    for n in range(r):
        low[:, n] = (numbers >> (r - 1 - n)) & 1
    return np.packbits(np.concatenate([unary, low.reshape(-1)])).tobytes()


def rice_read(block: Bytes, r: int, k: int, most: int) -> Index:
    """The k numbers of a block, all below `most`. Raises WireError for bytes that are no block.

    >>> rice_read(np.frombuffer(bytes.fromhex("58"), np.uint8), 1, 2, 10).tolist()
    [1, 3]
    """
    if k * (1 + r) > 8 * len(block):
        raise WireError(
            f"a message's index block has {len(block)} bytes; {k} codes of {1 + r} bits or more do "
            "not fit"
        )
    bits = np.unpackbits(block)
    zero = bits[: len(bits) - k * r] == 0  # the stops, and less than a byte behind the low bits
    stops = np.flatnonzero(zero)[:k] if np.count_nonzero(zero) < k + 8 else np.empty(0, np.intp)
    end = int(stops[-1]) + 1 if len(stops) == k else len(bits) + 1
    if -(-(end + k * r) // 8) != len(block):
        raise WireError(
            f"a message's index block has {len(block)} bytes, and not {k} codes of parameter {r}"
        )
    numbers = np.diff(stops, prepend=-1) - 1
    low = bits[end : end + k * r].reshape(k, r)
    for n in range(r):
        numbers = (numbers << 1) | low[:, n]
    if (largest := int(numbers.max())) >= most:
        raise WireError(f"a message's index block has the gap {largest + 1}, beyond {most}")
    return numbers
