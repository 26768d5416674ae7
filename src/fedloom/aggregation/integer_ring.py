"""Sums in a ring of integers, exact in any order, as secure aggregation makes them."""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from annotated_types import Gt, Le
from torch import Tensor

from ..core.hyper import hyper
from ..core.vector import Rec, Vec, leaves, rec, tree
from ..errors import ConfigError, NotFiniteError
from .base import Aggregated, Aggregation, Gives, Reads, means, weighted

COMPLETE = 50  # up to so many clients every two are neighbours
SECURITY, CORRECTNESS = 40, 20  # failures have probabilities of at most 2^-40 and 2^-20
_CLIENTS = 20  # bits of room for the sum: a million clients
ROOM = 2.0 ** (63 - _CLIENTS)  # of one client's value
FEWEST = 3  # clients of a masked sum


class Needed(NamedTuple):
    """What a masked sum of n clients needs. clients: the fewest of a sum; degree: neighbours of a
    client, n - 1 if all others are; shares: of a client's secret, out of degree + 1, that give it.
    """

    clients: int
    degree: int
    shares: int


class IntegerRing(Aggregation):
    """The weighted mean, of which clients send weighted values as whole multiples of 2^-bits modulo
    2^64, as secure aggregation needs them (Bonawitz et al., CCS 2017): such sums are exact in any
    order, and masks that cancel can be added to them.

    secure: clients do that in a deployment, so that the server learns a round's sum, and nothing of
    one of them: see masked_sums.py of fedloom-flower. Fewer than the threshold have no sum. A
    simulation has the same numbers, and no masks.

    Rounding moves a weighted value by at most 2^-(bits + 1), and so the mean of C updates by at
    most C 2^-(bits + 1) over the sum of their weights. A value takes 8 bytes. Weighted values must
    be below 2^(43 - bits); a client with a larger one is treated as one that is not finite.
    Reference: https://eprint.iacr.org/2017/281
    """

    reads = Reads.RING
    gives = Gives.MEAN
    bits: int = hyper(24, "binary places", "with 24 weighted values up to 524288", low=0, high=40)
    secure: bool = hyper(False, "clients mask what they send: the server learns nothing but sums")
    threshold: Annotated[float, Gt(0.5), Le(1)] = hyper(
        0.6,
        "share of a round's clients that a masked sum needs",
        "above 1/2, so that no server has both secrets of a client",
    )
    colluding: float = hyper(
        0.05,
        "share of a round's clients that may work with the server",
        "above 50 clients each has masks with so many others that these tell nothing",
        low=0,
        high=0.5,
    )

    @property
    def masked(self) -> bool:
        return self.secure

    def colluders(self, count: int) -> int:
        """How many of so many clients may work with the server."""
        return math.floor(self.colluding * count + 1e-9)

    def fewest(self, clients: int, updates: int) -> int:
        """How many of so many clients a masked sum needs."""
        if not self.secure:
            return 0
        return max(math.ceil(self.threshold * clients - 1e-9), clients // 2 + 1)  # 0.56 * 25 is 14

    def needed(self, count: int) -> Needed:
        """What a masked sum of so many clients needs."""
        return needed(count, self.fewest(count, count), self.colluders(count))

    def check(self, count: int) -> None:
        if self.secure and count < FEWEST:
            raise ConfigError(
                f"aggregation.secure = true needs {FEWEST} or more clients in a round, got "
                f"{count}: a sum of fewer tells too much of each; take a larger cohort"
            )
        if self.secure:
            self._check_colluding(count)

    def _check_colluding(self, count: int) -> None:
        """Raise ConfigError if a server that lies about who vanished gets both secrets of a client,
        where all are neighbours: one from some of the honest clients, one from the others.
        """
        of, colluders = self.needed(count), self.colluders(count)
        bound = (count + colluders) // 2
        if of.degree == count - 1 and of.shares <= bound:
            raise ConfigError(
                f"aggregation.threshold = {self.threshold:g} of {count} clients is {of.shares}, "
                f"and a server with {colluders} colluding ones among them reads updates unless it "
                f"is more than {bound}; take {(bound + 1) / count:.2g} or more, or less of "
                "aggregation.colluding"
            )

    def init(self, x: Vec, expected: float, share: float) -> Rec:
        return rec(like=x.new_zeros(1))

    def leaf(self, part: Rec, msg: Rec, seed: int, round: int, client: int) -> Rec:
        part = weighted(part)
        whole = tree(self._whole, part._replace(n=0.0))
        return whole._replace(n=part.n)

    def _whole(self, v: Any) -> Any:
        """A value in units of 2^-bits: int64, or a Python integer."""
        most, largest = ROOM / 2.0**self.bits, _largest(v)
        if not largest < most:
            raise NotFiniteError(
                f"its update times its weight has {largest:.3g}, and aggregation.bits = "
                f"{self.bits} leaves room up to {most:g}"
            )
        unit = 2.0**self.bits
        return (v.double() * unit).round().long() if isinstance(v, Tensor) else round(v * unit)

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        unit, like = 2.0**self.bits, state.like

        def read(v: Any) -> Any:
            return v.double() / unit if isinstance(v, Tensor) else v / unit

        def back(v: Any) -> Any:
            return v.to(like) if isinstance(v, Tensor) else v

        up, buffers = means(tree(read, total._replace(n=total.n * unit)))
        return Aggregated(tree(back, up), back(buffers), state)

    def arrived(self, part: Rec, count: int = 1) -> Rec:
        part = tree(lambda v: v if isinstance(v, Tensor) else int(v), part)
        if max(map(_largest, leaves(part))) > count * ROOM:
            raise NotFiniteError("its integers are too large to be added up")
        return part._replace(n=float(count))


def mask_bytes(count: int, degree: int) -> tuple[int, int]:
    """The bytes (down, up) of keys and shares for each client of a masked sum of so many, each with
    so many neighbours, beside its values, if none vanishes: see masked_sums.py of fedloom-flower.

    >>> mask_bytes(10, 9)
    (1565, 1121)
    """
    keys, shares = 32 + 49, 2 * 32 + 16
    return 16 + 10 * count + degree * (keys + shares), keys + degree * shares + 32 * (degree + 1)


def _largest(v: Any) -> float:
    """The largest absolute value of a vector, or of a number."""
    if isinstance(v, Tensor):
        return float(v.double().abs().max()) if v.numel() else 0.0
    return abs(float(v))


# --------------------------------------------------------------------------------------- neighbours
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
