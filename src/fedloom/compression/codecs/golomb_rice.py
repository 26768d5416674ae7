"""Golomb-Rice codes of whole numbers, most significant bit first.

The code of n with parameter r: n >> r ones, a zero (its stop), then the r low bits of n. A block
is the codes one after the other, padded to a byte with zeros.
Source: Rice and Plaunt, IEEE Transactions on Communications 1971; Golomb 1966.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import WireError

Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]
Bytes = npt.NDArray[np.uint8]

LARGEST = 31  # parameter
_WINDOW = 1 << 13  # bytes of a block that are looked at together
_CHUNK = 1 << 16  # numbers that are written together
_DOUBLINGS = 4  # the walk over a window takes 2^4 codes a step


def length(numbers: Numbers) -> tuple[int, int]:
    """-> r of the least total length, the smaller one at a tie, and that length in bits.

    The length is convex in r (one more r halves the unary parts, and halves of smaller numbers are
    smaller), so the first r that the next one does not improve on is the best.

    >>> length(np.array([1, 3]))
    (1, 5)
    """
    k, best = len(numbers), len(numbers) + _sum(numbers, 0)
    for r in range(LARGEST):
        bits = k * (r + 2) + _sum(numbers, r + 1)
        if bits >= best:
            return r, best
        best = bits
    return LARGEST, best


def _sum(numbers: Numbers, r: int) -> int:
    """The sum of all numbers >> r, without a second copy of them."""
    parts = (numbers[a : a + _CHUNK] for a in range(0, len(numbers), _CHUNK))
    return sum(int((part >> r).sum()) for part in parts)


def write(numbers: Numbers, r: int) -> bytes:
    """The block of numbers (k,), k > 0.

    >>> write(np.array([1, 3]), 1).hex()
    '68'
    """
    out, rest = [], np.empty(0, np.uint8)
    for a in range(0, len(numbers), _CHUNK):
        bits = _bits(numbers[a : a + _CHUNK], r, rest)
        whole = len(bits) - len(bits) % 8
        out.append(np.packbits(bits[:whole]).tobytes())
        rest = bits[whole:]
    return b"".join([*out, np.packbits(rest).tobytes()])


def _bits(numbers: Numbers, r: int, before: Bytes) -> Bytes:
    """The codes of numbers after the bits `before`, one bit per byte."""
    ends = np.cumsum((numbers >> r) + 1 + r)
    ends += len(before)
    stop = ends - (1 + r)
    bits = np.ones(int(ends[-1]), np.uint8)
    bits[: len(before)] = before
    bits[stop] = 0
    for n in range(r):
        bits[stop + 1 + n] = (numbers >> (r - 1 - n)) & 1
    return bits


def read(block: Bytes, r: int, k: int, most: int) -> Numbers:
    """The k numbers of a block, all below `most`.

    Raises WireError for anything that write() cannot have written. Allocates the numbers, and a few
    megabytes for a window of the block.

    >>> read(np.frombuffer(bytes.fromhex("68"), np.uint8), 1, 2, 10).tolist()
    [1, 3]
    """
    if k * (1 + r) > 8 * len(block):
        raise WireError(
            f"a message's index block has {len(block)} bytes; {k} codes of {1 + r} bits or more do "
            "not fit"
        )
    out = np.empty(k, np.int64)
    found, at, window = 0, 0, _WINDOW  # at: the bit at which the next code begins
    while found < k:
        first = at // 8
        bits = np.unpackbits(block[first : first + window])
        start = at - 8 * first
        if window > _WINDOW:  # one long code, and no tables for the zeros behind it
            bits = bits[: start + int(bits[start:].argmin()) + 1 + r]
        part, end = _codes(bits, start, r, k - found)
        if not len(part):
            if first + window >= len(block):
                raise WireError(f"a message's index block ends after {found} of {k} codes")
            window *= 2  # one code is longer than all of it
            continue
        if int(part.max()) >= most:
            raise WireError(
                f"a message's index block has the gap {int(part.max()) + 1}, beyond {most}"
            )
        out[found : found + len(part)] = part
        found, at, window = found + len(part), 8 * first + end, _WINDOW
    used = -(-at // 8)
    if used != len(block):
        raise WireError(
            f"a message's index block has {len(block)} bytes of codes; {k} codes take {used}"
        )
    if at % 8 and int(block[-1]) & (0xFF >> at % 8):
        raise WireError("a message's index block has ones behind its last code; it is damaged")
    return out


def _codes(bits: Bytes, start: int, r: int, most: int) -> tuple[Numbers, int]:
    """The complete codes from bit `start` on, at most `most` -> their numbers, and the bit after
    them.

    bits (n,): one per byte.
    """
    zero = np.equal(bits, 0).view(np.uint8)
    ends = max(0, len(bits) - r)  # a stop beyond has its low bits in the next window
    stops = np.flatnonzero(zero[start:ends].view(np.bool_)) + start
    if not len(stops):
        return np.empty(0, np.int64), start
    stop = stops[_walk(_following(zero, stops, r), most)]
    numbers = stop.copy()
    numbers[0] -= start
    numbers[1:] -= stop[:-1] + (1 + r)
    for n in range(0, r, 8):  # low bits, a byte at a time: one look-up for all eight
        width = min(8, r - n)
        numbers = (numbers << width) | _sliding(bits, n, width).take(stop)
    return numbers, int(stop[-1]) + 1 + r


def _following(zero: Bytes, stops: Places, r: int) -> Places:
    """If bit stops[i] is the stop of a code, which of the zeros stops the next one (m + 1,); m if
    it is none of them, and of m itself.

    It is the first zero behind the r low bits: zero i + 1, less those that are among them.
    """
    m = len(stops)
    among = np.zeros(max(0, len(zero) - r), np.uint8)
    for n in range(1, r + 1):
        among += zero[n : n + len(among)]
    out = np.arange(1, m + 2)
    out[:m] += among.take(stops)
    return np.minimum(out, m, out=out)


def _walk(following: Places, most: int) -> Places:
    """0, following[0], following[following[0]], ..., at most `most` of them and all below the last.

    Only every 16th is looked up in a loop; those between are found for all at once.
    """
    m, leaps = len(following) - 1, [following]
    for _ in range(_DOUBLINGS):
        leaps.append(leaps[-1].take(leaps[-1]))
    far, step = leaps.pop().data, 1 << _DOUBLINGS  # a buffer is looked up faster than an array
    marks: list[int] = []
    at = 0
    while at < m and len(marks) * step < most:
        marks.append(at)
        at = far[at]
    path = np.array(marks, np.intp)
    for leap in reversed(leaps):
        path = np.stack([path, leap.take(path)], axis=1).reshape(-1)
    return path[: min(most, int(np.searchsorted(path, m)))]


def _sliding(bits: Bytes, skip: int, width: int) -> Bytes:
    """The number that the `width` <= 8 bits form which are `skip` behind every bit, uint8; there
    are more bits than skip + width.
    """
    n = len(bits) - skip - width
    out = np.zeros(n, np.uint8)
    for j in range(1 + skip, 1 + skip + width):
        out += out  # twice as fast as a shift
        out += bits[j : j + n]
    return out
