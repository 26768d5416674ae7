"""PowerSGD: every weight matrix as the product of two thin ones."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.rng import generator
from ...core.vector import Rec, Vec, rec
from ...errors import DataError
from .base import Codec, checked, expect

_RANK = struct.Struct("<H")


def _normals(n: int, draw: torch.Generator) -> Tensor:
    """n normal numbers (n,), float32: drawn as doubles, they are the same on every processor."""
    return torch.randn(n, generator=draw, dtype=torch.float64).float()


class PowerSGD(Codec):
    """Send a layer's matrix M (n, m) = (outputs, the rest) as P (n, r) and Q (m, r), M ~ P Q^T.

    One step of the power method from the Q that the client had before: P = orthonormal columns of
    M Q, Q = M^T P. A matrix whose factors would not be smaller, r (n + m) >= n m, and every vector
    travels dense. Exact for matrices of rank r or less; for others use error feedback.
    state: Q (sum of m r), the last ones; at first N(0, 1) from (seed, layer name). A client whose
    sub-model has other shapes than before starts again, from `draw`.
    On the wire: header, rank u16, then layer by layer P and Q, or the dense values.
    Differs from the paper: every client factorises its own matrix, so that one exchange is enough;
    where a column of Q becomes zero, the old one is kept, so that the layer can come back.
    Source: Vogels, Karimireddy & Jaggi, NeurIPS 2019, Algorithm 1.

    >>> codec, layout = PowerSGD(rank=1), Layout(("w", "b"), ((4, 5), (4,)))
    >>> p = torch.cat([torch.outer(torch.arange(4.0), torch.ones(5)).view(-1), torch.ones(4)])
    >>> message, _ = codec.encode(p, codec.init(layout, 0), layout, generator(0, "codec"))
    >>> bool(torch.allclose(codec.decode(message, layout), p)), codec.nbytes(message)
    (True, 66)
    """

    code = 4
    wire = {"value": None}
    matrices = True
    rank: int = hyper(
        2, "rank of the factors of a matrix", "Vogels et al.: 1, 2, 4", low=1, high=65535
    )

    def shapes(self, layout: Layout) -> list[tuple[int, int] | None]:
        """(n, m) of every layer that is factorised, None for one that travels dense."""
        out: list[tuple[int, int] | None] = []
        for shape in layout.shapes:
            n, m = (shape[0], math.prod(shape[1:])) if len(shape) >= 2 else (0, 0)
            out.append((n, m) if self.rank * (n + m) < n * m else None)
        return out

    def _lengths(self, layout: Layout) -> list[int]:
        """Values that every layer sends."""
        pairs = zip(self.shapes(layout), layout.sizes, strict=True)
        return [self.rank * (nm[0] + nm[1]) if nm else size for nm, size in pairs]

    def _starts(self, layout: Layout) -> Iterator[tuple[str, int]]:
        """(layer, m) of the factorised ones."""
        for name, nm in zip(layout.names, self.shapes(layout), strict=True):
            if nm:
                yield name, nm[1]

    def init(self, layout: Layout, seed: int) -> Rec:
        first = [
            _normals(m * self.rank, generator(seed, "powersgd", name))
            for name, m in self._starts(layout)
        ]
        return rec(Q=torch.cat([torch.empty(0), *first]))

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout)
        sizes = [m * self.rank for _, m in self._starts(layout)]
        if len(state.Q) != sum(sizes):
            state = rec(Q=_normals(sum(sizes), draw))
        old, factors, starts = iter(torch.split(state.Q.cpu(), sizes)), [p[:0]], [p[:0]]
        for part, nm in zip(torch.split(p, layout.sizes), self.shapes(layout), strict=True):
            if nm is None:
                factors.append(part)
                continue
            left, right, start = self._factors(part.view(nm), next(old).view(nm[1], -1))
            factors += [left.reshape(-1), right.reshape(-1)]
            starts.append(start.reshape(-1))
        value = torch.cat(factors)
        if not bool(torch.isfinite(value).all()):
            raise DataError(
                f"PowerSGD's products overflow {str(p.dtype)[6:]}: the largest value is "
                f"{float(p.abs().max()):.3g}; lower local.lr or set local.clip"
            )
        return rec(size=torch.tensor([len(p)]), value=value), rec(Q=torch.cat(starts))

    def _factors(self, matrix: Tensor, old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> P (n, r), Q (m, r) in the matrix's type, and the Q to start from next time."""
        work = matrix.to(torch.promote_types(matrix.dtype, torch.float32))  # halves have no QR
        old = old.to(work.dtype)
        product = work @ old
        left, upper = torch.linalg.qr(product)
        left = torch.where(upper.diagonal() == 0, 0.0, left)  # QR gives arbitrary columns for zeros
        right = work.T @ left
        start = torch.where((right == 0).all(0), old, right)
        dtype = matrix.dtype
        return left.to(dtype), right.to(dtype), start.to(dtype)

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        lengths, value = self._lengths(layout), message.value
        out = torch.empty(layout.d, dtype=dtype or value.dtype)
        parts, targets = torch.split(value, lengths), torch.split(out, layout.sizes)
        pieces = zip(parts, self.shapes(layout), targets, strict=True)
        for part, nm, target in pieces:
            if nm is None:
                target.copy_(part)
                continue
            work = part.to(torch.promote_types(part.dtype, torch.float32))
            left, right = torch.split(work.view(-1, self.rank), list(nm))
            if target.dtype == work.dtype:
                torch.mm(left, right.T, out=target.view(nm))
            else:
                target.copy_((left @ right.T).view(-1))
        return out

    def parameters(self) -> bytes:
        return _RANK.pack(self.rank)

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"value": sum(self._lengths(layout))}
