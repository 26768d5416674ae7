"""With whom a client of a masked sum has masks and shares: all others, or k neighbours."""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

COMPLETE = 50  # up to so many clients every two are neighbours
SECURITY, CORRECTNESS = 40, 20  # failures have probabilities of at most 2^-40 and 2^-20


class Needed(NamedTuple):
    """What a masked sum of n clients needs. clients: the fewest of a sum; degree: neighbours of a
    client, n - 1 if all others are; shares: of a client's secret, out of degree + 1, that give it.
    """

    clients: int
    degree: int
    shares: int


@functools.cache
def needed(n: int, clients: int, colluding: int) -> Needed:
    """The same for n clients, of which n - `clients` may vanish, and `colluding` may work with the
    server. Above 50 clients the fewest neighbours with which it holds that

    - the neighbours' graph without those is in one piece, and no client has so many colluding
      neighbours that a server that lies about who vanished gets both of its secrets, but with a
      probability of 2^-40;
    - each client has enough neighbours left, but with one of 2^-20.

    Source: Bell et al. (CCS 2020, section 3, https://eprint.iacr.org/2020/704); the bounds are
    those of its authors' library (google-parfait/federated-compute, graph_parameter_finder.cc).
    """
    if n > COMPLETE:
        for degree in range(2, n - 1, 2):
            if shares := _shares(n, clients, colluding, degree):
                return Needed(clients, degree, shares)
    return Needed(clients, n - 1, clients)


def _shares(n: int, clients: int, colluding: int, degree: int, own: int = 1) -> int:
    """The shares that give a secret, 0 if so many neighbours are too few. own: how many shares a
    client keeps of its own secrets.

    k / 2 clients in a row must be gone at two places of the ring for it to be in two pieces. A
    server with c of a client's k + own shares of both secrets learns both from
    (k + own + c) / 2 clients' answers.
    """
    vanished = n - clients + colluding
    if degree <= vanished:
        pairs = math.log(n * (n - degree - 1) / 2)
        if pairs + _falling(vanished, degree) - _falling(n, degree) > -(SECURITY + 1) * math.log(2):
            return 0
    most, tail = min(colluding, degree), 0.0
    while most and (tail := tail + _chance(n - 1, colluding, degree, most)) * n <= 2.0 ** -(
        SECURITY + 1
    ):
        most -= 1
    shares = (degree + own + max(most, 1)) // 2 + 1
    few = 0.0
    for left in range(shares - 1, -1, -1):  # the largest first
        few += _chance(n - 1, clients - 1, degree, left)
        if few * n > 2.0**-CORRECTNESS:
            return 0
    return shares


def _chance(of: int, marked: int, draws: int, hits: int) -> float:
    """The hypergeometric probability of so many marked ones among those that are drawn."""
    rest = of - marked
    if not max(0, draws - rest) <= hits <= min(marked, draws):
        return 0.0
    return math.exp(_comb(marked, hits) + _comb(rest, draws - hits) - _comb(of, draws))


def _comb(n: int, k: int) -> float:
    return _falling(n, k) - math.lgamma(k + 1)


def _falling(n: int, k: int) -> float:
    """The logarithm of n (n - 1) ... (n - k + 1)."""
    return math.lgamma(n + 1) - math.lgamma(n - k + 1)


@functools.lru_cache(maxsize=4)
def neighbourhoods(name: bytes, members: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Each member's neighbours and itself, rising: the Harary graph over a ring whose order is that
    of the members' hashes with the name, so that everybody finds the same.

    >>> neighbourhoods(b"", (1, 2, 3, 4), 3)[2]
    (1, 2, 3, 4)
    """
    rank = lambda i: hashlib.sha256(b"ring" + name + struct.pack("<Q", i)).digest()
    ring, reach = sorted(members, key=rank), (degree + 1) // 2
    steps = range(-reach, reach + 1)
    return {
        i: tuple(sorted({ring[(position + step) % len(ring)] for step in steps}))
        for position, i in enumerate(ring)
    }
