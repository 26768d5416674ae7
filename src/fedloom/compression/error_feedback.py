"""Error feedback: a client keeps what its codec did not send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.vector import Vec, zeros


@dataclass(frozen=True)
class Forget:
    """No error feedback; and the interface of it.

    For one field the client keeps e, the server h: both of the model's length, or empty.
    """

    # remembers: it has an e, and needs the decoded vector
    # leftover: its e is p minus the decoded vector, which a codec may know without decoding
    remembers: ClassVar[bool] = False
    leftover: ClassVar[bool] = False

    def init(self, x: Vec) -> tuple[Vec, Vec]:
        """-> a client's first e and the server's first h, for a model x (d,)."""
        return x.new_empty(0), x.new_empty(0)

    def aim(self, v: Vec, e: Vec) -> Vec:
        """-> p (m,), the vector to encode instead of the field v (m,)."""
        return v

    def keep(self, p: Vec, sent: Vec, e: Vec) -> Vec:
        """-> the new e (m,), perhaps in the memory of p, which the caller no longer needs. sent:
        what the server decodes; it is not changed.
        """
        return e

    def lost(self, v: Vec, e: Vec) -> Vec:
        """What the server still lacks of a field v (m,), from the new e; (0,) if it keeps none."""
        return e

    def arrive(self, mean: Vec, h: Vec, share: float) -> tuple[Vec, Vec]:
        """The mean of the decoded updates (d,) -> the algorithm's mean, and the new h.

        share: the part of all clients (or of all weights) that the mean is over.
        """
        return mean, h


@dataclass(frozen=True)
class Residual(Forget):
    """Classic error feedback: what was not sent is added to the client's next update.

    sum(sent) + e = sum(computed) at any time. A client that is absent keeps its e.
    Source: CFedAvg (Yang et al.), Algorithm 1; Stich et al., NeurIPS 2018.

    >>> v, e, sent = torch.tensor([3.0, 1.0]), torch.tensor([0.0, 0.5]), torch.tensor([3.0, 0.0])
    >>> p = Residual().aim(v, e)
    >>> Residual().keep(p, sent, e)
    tensor([0.0000, 1.5000])
    """

    remembers = True
    leftover = True

    def init(self, x: Vec) -> tuple[Vec, Vec]:
        return zeros(x), x.new_empty(0)

    def aim(self, v: Vec, e: Vec) -> Vec:
        return v + e

    def keep(self, p: Vec, sent: Vec, e: Vec) -> Vec:
        return torch.sub(p, sent, out=p)


@dataclass(frozen=True)
class EF21(Forget):
    """Send C(v - e) and add it to e. The round's mean is the mean of e over all N clients, absent
    ones included, which the server keeps as h.

    Source: Richtarik, Sokolov & Fatkhullin, NeurIPS 2021; all e and h begin at 0.
    """

    remembers = True

    def init(self, x: Vec) -> tuple[Vec, Vec]:
        return zeros(x), zeros(x)

    def aim(self, v: Vec, e: Vec) -> Vec:
        return v - e

    def keep(self, p: Vec, sent: Vec, e: Vec) -> Vec:
        return torch.add(e, sent, out=p)

    def lost(self, v: Vec, e: Vec) -> Vec:
        return v - e

    def arrive(self, mean: Vec, h: Vec, share: float) -> tuple[Vec, Vec]:
        h = h + share * mean
        return h, h


FEEDBACKS: dict[str, type[Forget]] = {"forget": Forget, "residual": Residual, "ef21": EF21}
