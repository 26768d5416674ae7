"""The local steps of many clients at once: one computation with a leading axis of clients, under
vmap or row by row. Clients with fewer steps are masked, short batches padded with weight 0.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, vmap

from ..algorithm import Job, Oracle
from ..core.dropout import seeded
from ..core.hyper import Part
from ..core.rng import Draws, key, substreams
from ..core.vector import Rec, Vec, leaves, rec, tree
from ..stage import Download
from .author_rules import with_note
from .by_row import ByRow
from .grad_and_value import grad_and_value
from .local_steps import OUTSIDE, OWN_BATCH, Inputs, LocalRound, LocalSteps, Place, Step
from .padded_batches import Batches
from .private_gradient import loss_label
from .recorded import Recorded, StepContext
from .stages import steps_before
from .summation import unweighted_of

# the fields of a job that each client has; the others belong to a step, or are functions
_NUMBERS = ("weight", "steps", "lr_sum", "round", "last", "size", "relative_weight", "client")


class Together(LocalRound):
    """A round of C clients, with B examples in each of K steps. received: what each of them
    received, where stages change that; whole: the loss is of a whole batch, which must not be
    padded; passes: the method asks for job.full; by_row: one client after another, without vmap.
    """

    def __init__(
        self,
        steps: LocalSteps,
        download: Download,
        memories: Sequence[Rec],
        clients: Sequence[int],
        round: int,
        received: Sequence[Rec] = (),
        whole: bool = False,
        passes: bool = False,
        recorded: Recorded | None = None,
        by_row: bool = False,
    ) -> None:
        super().__init__(steps, download, memories, clients, round)
        self._received, self._passes, self._recorded = received, passes, recorded or Recorded()
        self._by_row = by_row
        steps_done = [steps_before(memory) for memory in memories]
        self._batches = Batches(steps.fed, clients, round, download.msg.x, whole, steps_done)
        self._counts = [len(rates) for rates in self.rates]
        self._shortest, K, like = min(self._counts), max(self._counts), download.msg.x
        seeds = [key(steps.fed.seed, "step", round, i) for i in clients]
        draws = torch.tensor([job.draws.seed for job in self.jobs])
        both = torch.cat([substreams(seeds, K), draws[:, None]], 1).to(like.device)  # one transfer
        self._begin_seeds, self._seeds, self._draws = seeds, both[:, :K], both[:, K]
        rates = [r + r[-1:] * (K - len(r)) for r in self.rates]
        self._rates = torch.tensor(rates, dtype=like.dtype, device=like.device)  # (C, K)
        numbers = [*map(operator.attrgetter(*_NUMBERS), self.jobs)]
        self._job = torch.tensor(numbers, dtype=like.dtype, device=like.device)  # (C, 8)
        last = self._job[:, _NUMBERS.index("steps"), None] - 1
        self._numbers = torch.minimum(
            torch.arange(K, dtype=last.dtype, device=last.device), last
        ).long()  # (C, K)
        self._at_server = False  # all begin at the server's point: one matrix for all in step 0

    def inputs(self) -> Inputs:
        like, steps = self.download.msg.x, self.steps
        states = [
            steps.initial_states(self.download, memory, i, self.round, seed)
            for memory, i, seed in zip(self.memories, self.clients, self._begin_seeds, strict=True)
        ]
        mem, obj = (_stacked([*records], like) for records in zip(*states, strict=True))
        msg = _stacked(self._received, like) if self._received else ()
        everything = ()
        if self._passes:
            everything = rec(**self._batches.everything()._asdict(), obj=obj)
        return Inputs(mem, obj, msg, self._job, self._draws, everything)

    def batches(self) -> Iterator[Step]:
        for k, (data, weight) in enumerate(self._batches):
            yield Step(
                data,
                self._seeds[:, k],
                self._rates[:, k],
                self._numbers[:, k],
                weight,
                self._batches.live[:, k],
                self._batches.noise(self.download.msg.x.shape),
            )

    def begin(self, inputs: Inputs) -> tuple[Vec, Rec]:
        def start(inputs: Inputs, first: Step) -> tuple[Vec, Rec]:
            msg = self._message(inputs)
            job = self.job_at(inputs, first, OUTSIDE)
            x, loc = self.steps.guard.call("start", msg, inputs.mem, job)
            self._at_server = x is self.download.msg.x
            return x if self._at_server else x.clone(), tree(lambda v: _tensor(v, x), loc)

        x, loc = self._of_all(start)(inputs, self._place(0))
        return x, loc

    def advance(
        self, k: int, x: Vec, loc: Rec, inputs: Inputs, step: Step
    ) -> tuple[Vec, Rec, Rec, Tensor | None]:
        # for rows it gains nothing, and would be a step of another shape
        same_x = k == 0 and self._at_server and not self._by_row
        masked = k >= self._shortest

        def one(x: Vec, loc: Rec, inputs: Inputs, step: Step) -> tuple[Vec, Rec, Rec, Tensor]:
            inputs = inputs._replace(msg=self._message(inputs))
            d, after, obj, loss = self.step(k, x, loc, inputs, step)
            new_x = torch.addcmul(x, d, step.lr, value=-1)  # x - lr d, in one pass over the memory
            after = tree(lambda v: _tensor(v, x), after)
            if masked:
                keep = lambda a, b: torch.where(step.live, a, b)
                pairs = ((new_x, x), (after, loc), (obj, inputs.obj))
                new_x, after, obj = (tree(keep, *pair) for pair in pairs)
            return new_x, after, obj, x.new_zeros(()) if loss is None else loss

        do = self._of_all(one, (None if same_x else 0, 0, 0, 0))
        arguments = self.download.msg.x if same_x else x, loc, inputs, step
        chunks = inputs.everything.weight.shape if self._passes else ()
        shape = (same_x, masked, *step.data[0].shape), x.shape, chunks
        counts, place = (self.gradients, self.values), (self.round, k)
        x, loc, obj, loss = self._recorded.step(shape, do, arguments, self._context, counts, place)
        has_loss = self.gradients[k, OWN_BATCH] and self.fed.local.dp is None
        return x, loc, obj, loss if has_loss else None

    @functools.cached_property
    def _context(self) -> StepContext:
        """What the steps read beside their arguments."""
        download, view, plan = self.download, self.download.view, self.plan
        parts = plan.algorithm, plan.objective, download.masked and download.masked.rule
        others = [self._reference, view.held, *leaves(view.fit, download.msg)]
        others += _tensors_in(*filter(None, parts), *self.steps.turning)
        # the layout of a mask that depends on x is another one in every round
        kind = self.fed.capacity(self.clients[0]), view.layout if view.fit is None else ()
        return StepContext.of(others, download.net.model_state, kind)

    def end(self, x: Vec, loc: Rec, inputs: Inputs) -> tuple[Rec, Rec, Rec]:
        def finish(x: Vec, loc: Rec, inputs: Inputs, last: Step) -> Any:
            inputs = inputs._replace(msg=self._message(inputs))
            records = self.finish(x, loc, inputs, self.job_at(inputs, last, OUTSIDE))
            return tuple(tree(lambda v: _tensor(v, x), record) for record in records)

        up, mem, obj = self._of_all(finish)(x, loc, inputs, self._place(-1))
        return up, mem, obj

    def _of_all(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """A function of one client, of all of them."""
        if self._by_row:
            return ByRow(function, in_dims, (self.gradients, self.values))
        mapped: Callable[..., Any] = vmap(function, in_dims)
        return mapped

    def _place(self, k: int) -> Step:
        """The first step without a batch, or the last one."""
        return Step((), self._seeds[:, k], self._rates[:, k], self._numbers[:, k])

    # ------------------------------------------------------------------------------ of one client
    def _message(self, inputs: Inputs) -> Rec:
        return inputs.msg if self._received else self.download.msg

    def reference(self, inputs: Inputs) -> Vec:
        return self.download.view.seen(inputs.msg.x) if self._received else self._reference

    def job_at(self, inputs: Inputs, step: Step, k: int) -> Job:
        numbers: dict[str, Any] = dict(zip(_NUMBERS, inputs.job.unbind(), strict=True))
        at = {"lr": step.lr, "step": step.number.to(inputs.job.dtype)}
        draws = Draws(inputs.draws, self.download.msg.x)
        return self.jobs[0]._replace(**numbers, **at, draws=draws, full=self.full(inputs, k))

    def differentiate(
        self, x: Vec, step: Step, ref: Vec, obj: Rec, place: Place
    ) -> tuple[Vec, Tensor]:
        return grad_and_value(lambda y: self.value(y, step, ref, obj), x)

    def value(self, x: Vec, step: Step, ref: Vec, obj: Rec) -> Tensor:
        objective, download = self.plan.objective, self.download
        with seeded(step.seed):
            arguments = download.net, download.view.seen(x), step.data, ref, obj
            loss: Tensor = with_note(loss_label(objective), objective.loss, *arguments)
        objective.checked(loss, step.data)
        if loss.ndim == 0:
            return loss
        mean: Tensor = (step.weight * loss).sum() / step.weight.sum()
        return mean

    def _over_all(
        self, ask: Callable[[Oracle], Tensor], zero: Tensor, inputs: Inputs, k: int
    ) -> Tensor:
        everything, total = inputs.everything, zero
        inputs = inputs._replace(obj=everything.obj)  # of the beginning, as for one client alone
        for m in range(everything.seed.shape[0]):
            weight = everything.weight[m]
            size = weight.sum()
            data = everything.inputs[m], everything.targets[m]
            # a padding chunk has weight 0 throughout: count it as one example, times 0
            weight = torch.where(size > 0, weight, torch.ones_like(weight))
            batch = Step(data, everything.seed[m], (), (), weight)
            total = total + size * ask(self.gradient(inputs, batch, (k, m), []))
        mean: Tensor = total / everything.weight.sum()
        return mean

    # ------------------------------------------------------------------------------- its results
    def unweighted(self, up: Rec) -> Rec:
        """The fields of the clients' updates for plain means."""

        def one(up: Rec, inputs: Inputs, last: Step) -> Rec:
            fields = unweighted_of(self.plan.algorithm, up, self.job_at(inputs, last, OUTSIDE))
            return tree(lambda v: _tensor(v, up.delta), fields)

        inputs = Inputs((), (), (), self._job, self._draws)
        return self._of_all(one)(up, inputs, self._place(-1))

    def row(self, values: Any, r: int) -> Any:
        return tree(lambda v: v[r].clone(), values)


def _tensors_in(*parts: Part) -> Iterator[Tensor]:
    """What parts hold in their fields."""
    for v in leaves(*(v for part in parts for v in vars(part).values())):
        if isinstance(v, Tensor):
            yield v
        elif isinstance(v, Part):
            yield from _tensors_in(v)


def _stacked(records: Sequence[Rec], like: Vec) -> Rec:
    """Records of tensors or numbers -> one record of tensors (C, ...)."""
    return tree(lambda *vs: torch.stack([_tensor(v, like) for v in vs]), *records)


def _tensor(value: Any, like: Vec) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)
