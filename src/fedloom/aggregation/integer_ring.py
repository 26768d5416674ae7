"""Sums in a ring of integers, exact in any order, as secure aggregation makes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.hyper import hyper
from ..core.vector import Rec, Vec, leaves, rec, tree
from ..errors import NotFiniteError
from .base import Aggregated, Aggregation, means, weighted

_CLIENTS = 20  # bits of room for the sum: a million clients


class IntegerRing(Aggregation):
    """The weighted mean, of which clients send weighted values as whole multiples of 2^-bits modulo
    2^64, as secure aggregation needs them (Bonawitz et al., CCS 2017): such sums are exact in any
    order, and masks that cancel can be added to them. The masks themselves are not simulated.

    Rounding moves a weighted value by at most 2^-(bits + 1), and so the mean of C updates by at
    most C 2^-(bits + 1) over the sum of their weights. A value takes 8 bytes. Weighted values must
    be below 2^(43 - bits); a client with a larger one is treated as one that is not finite.
    Reference: https://eprint.iacr.org/2017/281
    """

    exact = True
    parts = False
    codecs = False
    at_clients = True
    bits: int = hyper(24, "binary places", "with 24 weighted values up to 524288", low=0, high=40)

    def init(self, x: Vec, expected: float, share: float) -> Rec:
        return rec(like=x.new_zeros(1))

    def leaf(self, part: Rec, told: Rec, seed: int, round: int, client: int) -> Rec:
        part = weighted(part)
        whole = tree(self._whole, part._replace(n=0.0))
        return whole._replace(n=part.n)

    def _whole(self, v: Any) -> Any:
        """A value in units of 2^-bits: int64, or a Python integer."""
        most, largest = 2.0 ** (63 - _CLIENTS - self.bits), _largest(v)
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

    def arrived(self, part: Rec) -> Rec:
        part = tree(lambda v: v if isinstance(v, Tensor) else int(v), part)
        if max(map(_largest, leaves(part))) > 2.0 ** (63 - _CLIENTS):
            raise NotFiniteError("its integers are too large to be added up")
        return part._replace(n=1.0)


def _largest(v: Any) -> float:
    """The largest absolute value of a vector, or of a number."""
    if isinstance(v, Tensor):
        return float(v.double().abs().max()) if v.numel() else 0.0
    return abs(float(v))
