"""Sums in a ring of integers, exact in any order, as secure aggregation makes them."""

from __future__ import annotations

import math
from typing import Annotated, Any

from annotated_types import Gt, Le
from torch import Tensor

from ..core.hyper import hyper
from ..core.vector import Rec, Vec, leaves, rec, tree
from ..errors import ConfigError, NotFiniteError
from .base import Aggregated, Aggregation, Gives, Reads, means, weighted
from .mask_graph import Needed, needed

_CLIENTS = 20  # bits of room for the sum: a million clients
ROOM = 2.0 ** (63 - _CLIENTS)  # of one client's value
FEWEST = 3  # clients of a masked sum


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
