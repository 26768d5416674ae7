"""The local steps of one client, through the module's own parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Job, Oracle
from ..core.dropout import seeded
from ..core.net import Net
from ..core.rng import key, seed_all, seed_torch, substream
from ..core.vector import Rec, Vec
from ..errors import AuthorError
from ..objectives import Objective
from ..stage import Download
from ..submodels.base import View, behind_mask
from .author_rules import with_note
from .heartbeat import beat
from .local_steps import (
    OUTSIDE,
    OWN_BATCH,
    Inputs,
    LocalRound,
    LocalSteps,
    Place,
    Step,
)
from .private_gradient import loss_label
from .stages import steps_before


class Alone(LocalRound):
    """A round of one client. purpose: of its random numbers."""

    def __init__(
        self,
        steps: LocalSteps,
        download: Download,
        memory: Rec,
        i: int,
        round: int,
        purpose: str = "step",
    ) -> None:
        super().__init__(steps, download, [memory], [i], round)
        self.client = i
        self.net, self.seed = download.net, key(steps.fed.seed, purpose, round, i)
        view = download.view
        self._plain, self._loss_label = steps.plain(view), loss_label(steps.plan.objective)
        self._mask = None if view.held is None or view.net else Mask(view, download.net)

    def inputs(self) -> Inputs:
        seed_all(self.seed, self.net.params[0])  # the method's start() may draw
        place = self.client, self.round, self.seed
        mem, obj = self.steps.initial_states(self.download, self.memories[0], *place)
        msg, (job,) = self.download.msg, self.jobs
        inputs = Inputs(mem, obj, msg, job, job.draws.seed)
        return inputs._replace(job=job._replace(full=self.full(inputs, OUTSIDE)))

    def batches(self) -> Iterator[Step]:
        fed, i, rates, dp = self.fed, self.client, self.rates[0], self.fed.local.dp
        expected = fed.pass_of(i)[0]
        noises = None if dp is None else dp.noises(expected, fed.seed, self.round, i)
        for k, index in enumerate(fed.batches(i, self.round, steps_before(self.memories[0]))):
            batch = fed.batch(index, fed.draws(i, self.round, k, len(index)))
            step = Step(batch, substream(self.seed, k), rates[k], k)
            if noises is not None:
                x = self.download.msg.x
                weight = x.new_full((len(index),), 1 / expected)
                step = step._replace(weight=weight, noise=noises(x.shape, x.dtype).to(x.device))
            yield step

    def begin(self, inputs: Inputs) -> tuple[Vec, Rec]:
        x, loc = self.steps.guard.call("start", inputs.msg, inputs.mem, inputs.job)
        return (x.clone() if self._plain else x), loc

    def advance(
        self, k: int, x: Vec, loc: Rec, inputs: Inputs, step: Step
    ) -> tuple[Vec, Rec, Rec, Tensor | None]:
        if self._plain:
            return x, loc, inputs.obj, self._descend(x, inputs, step)
        d, loc, obj, loss = self.step(k, x, loc, inputs, step)
        return torch.sub(x, d.contiguous(), alpha=step.lr), loc, obj, loss

    def _descend(self, x: Vec, inputs: Inputs, step: Step) -> Tensor:
        """Move x, a vector of the engine's, by -lr times the gradient there, in place.

        For directions that are the gradient itself. It works layer by layer, because a vector of
        the whole gradient would push the model out of the processor's cache.
        """
        beat()
        self.gradients[step.number, OWN_BATCH] += 1
        loss, parts, direct = self._pieces(x, step, inputs.msg.x, inputs.obj)
        for piece, part in zip(self.net.pieces, parts, strict=True):
            if part is not None:
                torch.sub(piece, part, alpha=step.lr, out=piece)
        if direct is not None:
            torch.sub(x, direct, alpha=step.lr, out=x)
        return loss

    def end(self, x: Vec, loc: Rec, inputs: Inputs) -> tuple[Rec, Rec, Rec]:
        rates = self.rates[0]
        return self.finish(x, loc, inputs, inputs.job.at(lr=rates[-1], step=float(len(rates) - 1)))

    def job_at(self, inputs: Inputs, step: Step, k: int) -> Job:
        job: Job = inputs.job.at(lr=step.lr, step=float(k))
        return job

    # ------------------------------------------------------------------------------ its gradients
    def differentiate(
        self, x: Vec, step: Step, ref: Vec, obj: Rec, place: Place
    ) -> tuple[Vec, Tensor]:
        mask = self._mask
        loss, parts, direct = self._pieces(x if mask is None else mask.embedded(x), step, ref, obj)
        if mask is not None:
            g = mask.held_of(parts, x)
            return g if direct is None else g.add_(direct.index_select(0, mask.held)), loss
        flat = [
            p.new_zeros(p.numel()) if part is None else part.reshape(-1)
            for part, p in zip(parts, self.net.params, strict=True)
        ]
        g = torch.cat(flat)
        return g if direct is None else g.add_(direct), loss

    def _pieces(
        self, point: Vec, step: Step, ref: Vec, obj: Rec
    ) -> tuple[Tensor, Sequence[Tensor | None], Tensor | None]:
        """The loss of a batch at a point as the net computes with it, its gradient layer by layer,
        and the gradient of the point itself if the loss uses it directly.
        """
        seed_torch(step.seed, point)
        # the two contexts cost more than the rest, so they are used only if needed
        if self.net.draws or not torch.is_grad_enabled():
            with torch.enable_grad(), seeded(step.seed):
                return self._differentiated(point, step, ref, obj)
        return self._differentiated(point, step, ref, obj)

    def _differentiated(
        self, point: Vec, step: Step, ref: Vec, obj: Rec
    ) -> tuple[Tensor, Sequence[Tensor | None], Tensor | None]:
        handle = self.net.live(point)
        value = self._mean(handle, step, ref, obj)
        check_value(self.plan.objective, value)
        *parts, direct = torch.autograd.grad(value, [*self.net.params, handle], allow_unused=True)
        # a loss that is a view of the point would move with it
        return value.detach().clone() if value._is_view() else value.detach(), parts, direct

    def value(self, x: Vec, step: Step, ref: Vec, obj: Rec) -> Tensor:
        seed_torch(step.seed, x)
        with seeded(step.seed):
            value = self._mean(self.net.live(self.download.view.seen(x)), step, ref, obj)
        check_scalar(self.plan.objective, value)
        return value.detach().clone()

    def _mean(self, handle: Tensor, step: Step, ref: Vec, obj: Rec) -> Tensor:
        mean = self.plan.objective.mean
        loss: Tensor = with_note(self._loss_label, mean, self.net, handle, step.data, ref, obj)
        return loss

    def _over_all(
        self, ask: Callable[[Oracle], Tensor], zero: Tensor, inputs: Inputs, k: int
    ) -> Tensor:
        fed = self.fed
        rows = fed.data.clients.of(self.client).to(fed.data.inputs.device)
        seed = key(fed.seed, "full", self.round, self.client)
        for m, index in enumerate(torch.split(rows, fed.local.batch or len(rows))):
            batch = Step(fed.batch(index), substream(seed, m), 0.0, k)
            part = ask(self.gradient(inputs, batch, (OUTSIDE, m), []))
            zero.add_(part, alpha=len(index) / len(rows))
        return zero

    def row(self, values: Any, r: int) -> Any:
        return values


class Mask:
    """The coordinates held (m,) of a net that computes with zeros elsewhere, for all steps of a
    client: beside the weights' gradients no step makes a vector of the net's length.
    """

    def __init__(self, view: View, net: Net) -> None:
        assert view.held is not None
        self.held, self._view = view.held, view
        self._sizes = behind_mask(view.held, net.layout).layout.sizes
        firsts = itertools.accumulate(net.layout.sizes, initial=0)
        parts = torch.split(view.held, self._sizes)
        self._places = [(index - first).int() for index, first in zip(parts, firsts, strict=False)]
        self._whole: Vec | None = None

    def embedded(self, x: Vec) -> Vec:
        """x (m,) as the net computes with it, (d,); the next call overwrites it."""
        if self._whole is None:
            self._whole = self._view.seen(x)
        else:
            self._whole.index_copy_(0, self.held, x)
        return self._whole

    def held_of(self, layers: Sequence[Tensor | None], like: Vec) -> Vec:
        """The held ones (m,) of every layer's values, zeros for None."""
        out = torch.empty_like(like)
        for v, index, part in zip(layers, self._places, torch.split(out, self._sizes), strict=True):
            if v is None:
                part.zero_()
            else:
                torch.index_select(v.reshape(-1), 0, index, out=part)
        return out


def check_value(objective: Objective, value: Any) -> None:
    """Raise AuthorError unless a batch's mean loss is a scalar that can be differentiated."""
    check_scalar(objective, value)
    if not value.requires_grad:
        raise AuthorError(
            f"{objective.name}'s loss does not depend on x: no trained parameter reaches it; is it "
            "detached, or computed under no_grad or with NumPy?"
        )


def check_scalar(objective: Objective, value: Any) -> None:
    """Raise AuthorError unless a batch's mean loss is a scalar."""
    if not isinstance(value, Tensor) or value.ndim:
        actual = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise AuthorError(f"{objective.name}.mean() gives {actual}; return a tensor without axes")
