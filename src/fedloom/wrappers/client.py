"""Wrappers that change a client's step.

The parts of a local step run in this order, and build() puts them so:
    gradient -> SAM -> prox and the method's corrections -> joint clip -> weight decay
    -> local optimiser -> move
That is torch.optim.SGD(momentum, weight_decay) after clip_grad_norm_; the method's corrections are
clipped too, but for lambda x of a pull under local.clip_pull = false. A recursion over gradients is
clipped and decayed one gradient at a time instead (ClipGrad).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..algorithm import Algorithm, Grad, Job, Oracle, Trait
from ..core.hyper import NonNegative, Positive, Share, hyper
from ..core.vector import Num, Rec, Vec, clip, rec, unit, zeros
from ..errors import CompositionError
from .base import Wrapper
from .optimisers import Optimiser

_ANY = Job(weight=1.0, steps=1.0, lr=1.0, lr_sum=1.0, round=0.0, step=0.0, last=-1.0)


class Prox(Wrapper):
    """Pull every local step towards the received model: gradient of mu/2 ||x - msg.x||^2."""

    mu: NonNegative = hyper(
        0.001,
        "strength of the pull towards the received model",
        "FedACG: 0.001 of {0.001, 0.01, 0.1}; Li et al.: {0.001, 0.01, 0.1, 1}",
    )

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        def pulled(y: Vec) -> Vec:
            g: Vec = grad(y) + self.mu * (y - msg.x)
            return g

        return self.inner.direction(x, loc, msg, mem, Oracle.instead(pulled, grad), job)

    def pull_strength(self, job: Job) -> Num:
        return self.mu if self.inner.plain else None  # else the direction has another share of it


class Sam(Wrapper):
    """Sharpness-aware minimisation (Foret et al., ICLR 2021): where the method asks for a gradient
    at y it gets the gradient at y + rho g / ||g||, with g the gradient at y.

    Both use the same batch; the norm is that of all coordinates together. It is outermost, so that
    clipping, weight decay and proximal terms do not enter the perturbation, as in FL-Simulator.
    mix: share of the perturbed gradient, the rest is g (FedSpeed).
    """

    rho: NonNegative = hyper(
        0.1, "radius of the perturbation", "FedSMOO: 0.01 for FedSAM, MoFedSAM; its code: 0.1"
    )
    mix: Share = hyper(
        1.0, "share of the perturbed gradient", "FedSpeed's alpha; 1 in FL-Simulator"
    )

    traits = frozenset({Trait.PERTURBS})

    def _sharp(self, grad: Grad) -> Grad:
        def sharp(y: Vec) -> Vec:
            g = grad(y)
            perturbed = grad(y + self.rho * unit(g))
            if self.mix == 1.0:
                return perturbed
            mixed: Vec = (1 - self.mix) * g + self.mix * perturbed
            return mixed

        return Oracle.instead(sharp, grad) if self.rho and self.mix else grad

    def _sharpened(self, job: Job) -> Job:
        return job if job.full is None else job._replace(full=self._sharp(job.full))

    def probe(self, x: Vec, grad: Grad) -> Rec:
        return self.inner.probe(x, self._sharp(grad))

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        return self.inner.start(msg, mem, self._sharpened(job))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return self.inner.direction(x, loc, msg, mem, self._sharp(grad), self._sharpened(job))

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return self.inner.finish(x, loc, msg, mem, self._sharpened(job))

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return self.inner.ask(msg, mem, self._sharpened(job))


class Clip(Wrapper):
    """Limit the norm of the whole direction, everything of the method included.

    clip_pull False: but for lambda x of a pull lambda (x - msg.x), which is added afterwards, as
    weight decay is. Raises CompositionError for a method that has no pull.
    """

    norm: Positive = hyper(10.0, "largest norm", "10 in FedACG's and FedSMOO's code")
    clip_pull: bool = hyper(True, "clip all of a pull, too", "True: the papers; False: their code")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip_pull and self.inner.pull_strength(_ANY) is None:
            raise CompositionError(
                f"local.clip_pull = false and {self.method}: its direction has no pull towards the "
                "received model that could stay outside of the clip; drop local.clip_pull, or take "
                "feddyn, fedprox, fedsmoo or fedspeed"
            )

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        d, loc = self.inner.direction(x, loc, msg, mem, grad, job)
        if self.clip_pull:
            return clip(d, self.norm), loc
        outside = self.inner.pull_strength(job) * (x if job.kept is None else job.kept(x))
        return clip(d - outside, self.norm) + outside, loc

    def along(self, d: Vec, y: Rec, job: Job) -> tuple[Vec, Rec]:
        return clip(d, self.norm), y


class WeightDecay(Wrapper):
    """Add wd * x to the direction, after clipping and before the local optimiser."""

    wd: NonNegative = hyper(meaning="weight decay", source="0.001 in FedACG and FedSMOO")

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        d, loc = self.inner.direction(x, loc, msg, mem, grad, job)
        return self._decayed(d, x, job), loc

    def along(self, d: Vec, y: Rec, job: Job) -> tuple[Vec, Rec]:
        return self._decayed(d, y.x, job), y

    def _decayed(self, d: Vec, x: Vec, job: Job) -> Vec:
        return d.add(x if job.kept is None else job.kept(x), alpha=self.wd)


class ClipGrad(Wrapper):
    """Limit the norm of every gradient (None: do not), then add wd * y at its own point."""

    norm: Positive | None = hyper(None, "largest norm", "10 in FedACG's and FedSMOO's code")
    wd: NonNegative = hyper(0.0, "weight decay", "0.001 in FedACG and FedSMOO")

    def _clipped(self, grad: Grad, kept: Any = None) -> Grad:
        def clipped(y: Vec) -> Vec:
            g = grad(y)
            point = y if kept is None else kept(y)
            return (g if self.norm is None else clip(g, self.norm)) + self.wd * point

        return Oracle.instead(clipped, grad)

    def probe(self, x: Vec, grad: Grad) -> Rec:
        return self.inner.probe(x, self._clipped(grad))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return self.inner.direction(x, loc, msg, mem, self._clipped(grad, job.kept), job)


class LocalOpt(Wrapper):
    """Run the local directions, clipped and decayed, through an optimiser that starts again in
    every round; around a method with Trait.KEEPS_OPTIMISER a client goes on with the state that it
    had, which is `opt` in its client state.

    A method that divides by the learning rates gets the sum of the weights of its gradients in the
    move instead of the sum of the rates: the move of as many directions of 1 (FedNova's ||a_i||_1).
    """

    opt: Optimiser = dataclasses.field()

    @property
    def _keeps(self) -> bool:
        return Trait.KEEPS_OPTIMISER in self.traits

    def client_init(self, x: Vec) -> Rec:
        mem = self.inner.client_init(x)
        return rec(**mem._asdict(), opt=self.opt.init(x)) if self._keeps else mem

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        x, loc = self.inner.start(msg, mem, job)
        loc = rec(inner=loc, opt=mem.opt if self._keeps else self.opt.init(x))
        if Trait.DIVIDES_BY_RATES not in self.traits:
            return x, loc
        one = x.new_ones(1)
        return x, rec(**loc._asdict(), one=self.opt.init(one), weights=zeros(one))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        d, inner = self.inner.direction(x, loc.inner, msg, mem, grad, job)
        d, opt = self.opt.move(d, loc.opt)
        if Trait.DIVIDES_BY_RATES not in self.traits:
            return d, rec(inner=inner, opt=opt)
        weight, one = self.opt.move(torch.ones_like(loc.weights), loc.one)
        weights = loc.weights + job.lr * weight
        return d, rec(inner=inner, opt=opt, one=one, weights=weights)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        job = job._replace(lr_sum=loc.weights[0]) if Trait.DIVIDES_BY_RATES in self.traits else job
        up, new = self.inner.finish(x, loc.inner, msg, mem, job)
        return up, rec(**(new._asdict() | {"opt": loc.opt})) if self._keeps else new

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        answer, new = self.inner.ask(msg, mem, job)
        changed_state = self._keeps and new is not mem
        return answer, rec(**(new._asdict() | {"opt": mem.opt})) if changed_state else new

    def begin(self, y: Rec) -> Rec:
        return rec(**y._asdict(), opt=self.opt.init(y.x))

    def along(self, d: Vec, y: Rec, job: Job) -> tuple[Vec, Rec]:
        d, opt = self.opt.move(d, y.opt)
        return d, y._replace(opt=opt)


class PerStep(Wrapper):
    """Send the mean move per local step: CFedAvg with unequal K_i (Algorithm 1, line 11)."""

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        up, mem = self.inner.finish(x, loc, msg, mem, job)
        return up._replace(delta=up.delta / job.steps), mem


def build(
    method: Algorithm,
    clip: float | None = None,
    weight_decay: float = 0.0,
    opt: Optimiser | None = None,
    decoupled: bool = False,
    sam: float | None = None,
    clip_pull: bool = True,
) -> Algorithm:
    """Put the local parts around a method in the documented order.

    decoupled: weight decay outside of the optimiser, as in AdamW. sam: rho of Sam. clip_pull: see
    Clip. Raises CompositionError for parts that do not go with the method.
    """
    recursive = Trait.RECURSIVE in method.traits
    if recursive and clip_pull:
        if clip is not None or weight_decay:
            method = ClipGrad(inner=method, norm=clip, wd=weight_decay)
    elif clip is not None:
        method = Clip(inner=method, norm=clip, clip_pull=clip_pull)
    if weight_decay and not decoupled and not recursive:
        method = WeightDecay(inner=method, wd=weight_decay)
    if opt:
        method = LocalOpt(inner=method, opt=opt)
    if weight_decay and decoupled and not recursive:
        method = WeightDecay(inner=method, wd=weight_decay)
    return Sam(inner=method, rho=sam, mix=1.0) if sam is not None else method
