"""Golomb-Rice codes of whole numbers: n with parameter r is n >> r in unary and its r low bits.

A block has all unary parts (n >> r ones and a zero each), then all low bits, most significant bit
first, padded to a byte with zeros. It is as long as codes one after the other, and read at once.
Source: Rice and Plaunt, IEEE Transactions on Communications 1971; Golomb 1966.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import WireError

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LARGEST = 31  # parameter


def length(numbers: Numbers) -> tuple[int, int]:
    """-> r of the least total length, the smaller one at a tie, and that length in bits.

    The length is convex in r (one more r halves the unary parts, and halves of smaller numbers are
    smaller), so the first r that the next one does not improve on is the best.

    >>> length(np.array([1, 3]))
    (1, 5)
    """
    k, best = len(numbers), len(numbers) + int(numbers.sum())
    for r in range(LARGEST):
        bits = k * (r + 2) + int((numbers >> (r + 1)).sum())
        if bits >= best:
            return r, best
        best = bits
    return LARGEST, best


def write(numbers: Numbers, r: int) -> bytes:
    """The block of numbers (k,), k > 0.

    >>> write(np.array([1, 3]), 1).hex()
    '58'
    """
    stops = np.cumsum((numbers >> r) + 1) - 1
    unary = np.ones(int(stops[-1]) + 1, np.uint8)
    unary[stops] = 0
    low = np.empty((len(numbers), r), np.uint8)
    for n in range(r):
        low[:, n] = (numbers >> (r - 1 - n)) & 1
    return np.packbits(np.concatenate([unary, low.reshape(-1)])).tobytes()


def read(block: Bytes, r: int, k: int, most: int) -> Numbers:
    """The k numbers of a block, all below `most`. Raises WireError for bytes that are no block.

    >>> read(np.frombuffer(bytes.fromhex("58"), np.uint8), 1, 2, 10).tolist()
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
