"""Adaptive optimisers for the server, as the federated papers write them: no bias correction, and
the second moment is that of the mean move itself.
"""

from __future__ import annotations

from typing import Literal

import torch

from ..core.hyper import Decay, NonNegative, Positive, hyper
from ..core.vector import Rec, Vec, rec, zeros
from ..errors import ConfigError
from .optimisers import Optimiser


class ServerAdagrad(Optimiser):
    """AdaGrad at the server (Reddi et al., ICLR 2021, Algorithm 2): v = v + d^2, move by
    lr m / (sqrt(v) + tau).

    v0: second moment before round 1; None is tau^2, the smallest that the paper allows.
    """

    lr: Positive = hyper(0.03, "server learning rate", "FAFED, section 6: 10^{-1.5, -2, -2.5}")
    beta1: Decay = hyper(0.0, "decay of the first moment", "0 in Reddi et al.")
    tau: Positive = hyper(
        0.001, "added to the root of the second moment", "FedACG: 0.001; FAFED, section 6: 0.01"
    )
    v0: NonNegative | None = hyper(
        None, "second moment before round 1", "None: tau^2 (Reddi et al.); 0: FedSMOO's code"
    )

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x), v=zeros(x) + (self.tau**2 if self.v0 is None else self.v0))

    def second(self, v: Vec, square: Vec) -> Vec:
        """The second moment (d,) after a move with this square (d,)."""
        return v + square

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.second(state.v, d * d)
        return self.lr * m / (v.sqrt() + self.tau), rec(m=m, v=v)


class ServerAdam(ServerAdagrad):
    """Adam at the server (Reddi et al., ICLR 2021, Algorithm 2): v = beta2 v + (1 - beta2) d^2."""

    lr: Positive = hyper(
        0.01, "server learning rate", "FedACG: 0.01; FedSMOO: 0.1; FAFED: 10^{-1.5, -2, -2.5}"
    )
    beta1: Decay = hyper(0.9, "decay of the first moment", "0.9; FAFED: {0.1, 0.9}")
    beta2: Decay = hyper(0.99, "decay of the second moment", "0.99; FAFED: {0.1, 0.9}")

    def second(self, v: Vec, square: Vec) -> Vec:
        return self.beta2 * v + (1 - self.beta2) * square


class ServerYogi(ServerAdam):
    """Yogi at the server (Reddi et al., ICLR 2021, Algorithm 2): v moves by (1 - beta2) d^2 towards
    d^2, however far that is.
    """

    def second(self, v: Vec, square: Vec) -> Vec:
        return v - (1 - self.beta2) * square * (v - square).sign()


class ServerAMSGrad(Optimiser):
    """AMSGrad at the server (Wang, Lin & Chen, ICML 2022, Algorithm 1): the largest second moment
    so far divides.

    option 1, max stabilisation: vhat = max(vhat, v, eps), move by lr m / sqrt(vhat). option 2:
    vhat = max(vhat, v), move by lr m / (sqrt(vhat) + eps). The authors' code is option 2 with
    eps 0, start 0.001 and corrected. Raises ConfigError if nothing keeps vhat above 0.
    """

    lr: Positive = hyper(0.03, "server learning rate", "FAFED, section 6: 10^{-1.5, -2, -2.5}")
    beta1: Decay = hyper(0.9, "decay of the first moment", "0.9; FAFED: {0.1, 0.9}")
    beta2: Decay = hyper(0.99, "decay of the second moment", "0.99; FAFED: {0.1, 0.9}")
    eps: NonNegative = hyper(
        0.001, "floor of the second moment", "0.001; the authors' code: 0 and start = 0.001"
    )
    option: Literal[1, 2] = hyper(
        1, "where eps enters", "1 = eps inside the maximum, 2 = eps added"
    )
    start: NonNegative = hyper(
        0.0, "running maximum before round 1", "vhat before round 1; 0.001 in the authors' code"
    )
    corrected: bool = hyper(
        False,
        "correct the moments for their start at zero",
        "bias correction: not in the paper, in the code",
    )

    def __post_init__(self) -> None:
        if not self.eps and not self.start:
            raise ConfigError(
                f"{type(self).__name__}: eps = {self.eps:g} and start = {self.start:g}, so that "
                "coordinates that never move give 0 / 0; give one of them above 0"
            )

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x), v=zeros(x), vhat=zeros(x) + self.start, t=x.new_zeros(()))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        t = state.t + 1
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        vhat = torch.maximum(state.vhat, v)
        if self.option == 1:
            vhat = vhat.clamp_min(self.eps)
        top, bottom = m, vhat
        if self.corrected:
            top, bottom = m / (1 - self.beta1**t), vhat / (1 - self.beta2**t)
        root = bottom.sqrt() + (self.eps if self.option == 2 else 0.0)
        return self.lr * top / root, rec(m=m, v=v, vhat=vhat, t=t)
