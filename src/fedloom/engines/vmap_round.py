"""The core of the vectorised engine: one computation with a leading axis of clients."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, vmap

from ..algorithm import Job, Oracle
from ..core.arithmetic import average
from ..core.dropout import seeded
from ..core.grad_and_value import grad_and_value
from ..core.rng import Draws, key, substreams
from ..core.vector import Rec, Vec, tree, zeros
from ..federation.private_examples import ExamplePrivacy
from ..stage import LocalResult, Share
from .author_checks import counters
from .author_rules import noted
from .client_round import Client
from .gradient import blamed, check_point
from .heartbeat import beat
from .padded_batches import Batches, Prefetcher
from .private_gradient import clipped_sum, example_loss, untold
from .stages import steps_before
from .summation import uniform_of
from .threads import Threads

# the fields of a job that each client has; the others belong to a step, or are functions
_NUMBERS = ("weight", "steps", "lr_sum", "round", "last", "size", "relative_weight", "client")


class NeedsFullError(Exception):
    """The algorithm asked for the gradient over all data, which is prepared only on demand."""


class _Client(NamedTuple):
    """What is asked of a client's steps with, outside of vmap with an axis of clients. msg: what it
    received, where stages change that; else empty. draws: a seed, see Draws. From `loc` on,
    of a step: live says whether the client still has it to do.
    """

    own: Rec
    numbers: Tensor  # see _NUMBERS
    full: Any
    msg: Rec
    draws: Tensor
    obj: Rec
    lr: Tensor
    loc: Rec = ()
    data: Any = ()
    weight: Any = ()
    seed: Any = ()
    live: Any = ()
    noise: Any = ()


class VmapResult(NamedTuple):
    """The results of several clients after training: records with a leading axis of clients."""

    work: VmapRound
    x: Tensor
    up: Rec
    uniform: Rec
    own: Rec
    obj: Rec
    losses: list[float | None]

    def memory(self, r: int) -> Rec:
        """A copy of one client's state: a view would keep the whole chunk alive."""
        work, copy = self.work, lambda v: v[r].clone()
        old = work.old[work.group[r]]
        if not self.own and not self.obj:
            return old
        own, obj = tree(copy, self.own), tree(copy, self.obj)
        return work.client.steps.remembered(work.share.view, old, own, obj)

    def done(self, r: int) -> LocalResult:
        """One client's result, as training it alone gives it."""
        work = self.work
        up = tree(lambda v: v[r].clone(), self.up)
        job = work.jobs[r].at(lr=work.rates[r][-1], step=float(work.steps[r] - 1))
        up = up._replace(weight=float(up.weight))
        empty = work.share.msg.x[:0]
        calls, passes, *values = self.costs(r)
        costs = (calls, empty, self.x[r], passes, *values)
        return LocalResult(up, self.memory(r), job, self.losses[r], *costs)

    def costs(self, r: int) -> tuple[int, int, int, int]:
        """A client's gradients, those in full passes, and the same of losses; without padding."""
        return *self._counted(self.work.calls, r), *self._counted(self.work.values, r)

    def _counted(self, counter: Counter[tuple[int, int]], r: int) -> tuple[int, int]:
        work, sums = self.work, [0, 0]
        for (step, batch), calls in counter.items():
            if step < work.steps[r] and (batch < 0 or batch < work.batches.of_pass(r)):
                sums[batch >= 0] += calls
        return sum(sums), sums[1]


class VmapRound:
    """One round of several clients at once: C clients, K steps, B examples."""

    def __init__(
        self,
        client: Client,
        share: Share,
        memories: dict[int, Rec],
        group: list[int],
        round: int,
        whole: bool,
        ahead: Prefetcher | None = None,
        threads: Threads | None = None,
    ) -> None:
        self.client, self.share = client, share
        self.plan, fed, msg, steps = client.plan, client.fed, share.msg, client.steps
        self.dp = fed.local.dp
        self.ref = share.view.seen(msg.x)
        self.old, self.group = memories, group
        # gradients and losses by place, see _gradient
        self.calls: Counter[tuple[int, int]] = Counter()
        self.values: Counter[tuple[int, int]] = Counter()
        self.whole, self.threads = whole, threads or Threads(1)
        like: dict[str, Any] = {"dtype": msg.x.dtype, "device": msg.x.device}
        done = [steps_before(memories[i]) for i in group]
        self.batches = Batches(fed, group, round, msg.x, whole, ahead, done)
        self.steps, K = self.batches.steps, max(self.batches.steps)
        self.rates = [steps.rates(i, round) for i in group]
        self.jobs = [
            steps.job(i, round, memories[i].last, share, rates)
            for i, rates in zip(group, self.rates, strict=True)
        ]
        numbers = [*map(operator.attrgetter(*_NUMBERS), self.jobs)]
        seeds = [key(fed.seed, "step", round, i) for i in group]
        drawn = torch.tensor([job.draws.seed for job in self.jobs])
        both = torch.cat([substreams(seeds, K), drawn[:, None]], 1)
        both = both.to(msg.x.device)  # in one transfer
        self.seeds = both[:, :K]
        self.lr = torch.tensor([r + r[-1:] * (K - len(r)) for r in self.rates], **like)
        begun = [
            steps.begun(share, memories[i], i, round, seed)
            for i, seed in zip(group, seeds, strict=True)
        ]
        own, obj = (_stack([*some], msg.x) for some in zip(*begun, strict=True))
        seen = [client.received(share, memories[i]).msg for i in group if client.receiving]
        own_msg = _stack(seen, msg.x) if seen else ()
        numbered = torch.tensor(numbers, **like)  # (C, 8)
        self.first = _Client(own, numbered, (), own_msg, both[:, K], obj, self.lr[:, 0])
        self.at_msg = False  # all begin at the server's point: one matrix for all in the first step

    def run(self) -> VmapResult:
        """Train the clients. The data of all steps are never in memory together."""
        self.share.net.train()
        try:
            return self._run()
        except NeedsFullError:
            if self.whole:
                raise
            self.calls.clear()
            self.values.clear()
            self.first = self.first._replace(full=self.batches.everything())
            return self._run()

    def _run(self) -> VmapResult:
        now, msg, guard = self.first, self.share.msg, self.client.steps.guard
        before = counters(msg, now.own)
        # flat: vmap takes as long to look through records as through their fields again
        x, loc = vmap(lambda *now: self._begin(_Client(*now)))(*now[:7])
        losses: dict[int, Tensor] = {}  # of the steps that computed one
        rows = now.full.weight.shape if now.full else ()
        for k, (data, weight) in enumerate(self.batches):
            now = now._replace(loc=loc, data=data, weight=weight, live=self.batches.live[:, k])
            noise = self.batches.noise(self.share.msg.x.shape)
            now = now._replace(seed=self.seeds[:, k], lr=self.lr[:, k], noise=noise)
            self._look(k, x, losses)
            shared = k == 0 and self.at_msg
            dims = (None if shared else 0, *[0] * len(now))
            step = vmap(lambda x, *now, k=k: self._step(k, x, _Client(*now)), in_dims=dims)
            masked = k >= min(self.steps)
            shape = (shared, masked, *data[0].shape), x.shape, rows
            given = (msg.x if shared else x, *now)
            x, loc, obj, loss = self.threads.step(shape, step, given, self._forgets())
            now = now._replace(obj=obj)
            if self.calls[k, -1] and self.dp is None:
                losses[k] = loss
        self._look(len(self.batches), x, losses)
        end = vmap(lambda x, loc, *now: self._end(x, _Client(*[*now, loc])))
        up, uniform, own, obj = end(x, loc, *now[:6], self.lr[:, -1])
        guard.unchanged(before, msg, now.own)
        return VmapResult(self, x, up, uniform, own, obj, self._means(losses))

    def _look(self, k: int, x: Tensor, losses: dict[int, Tensor]) -> None:
        """Let a replay look at its client. x (C, d); losses: {step: (C,)}."""
        look = self.client.look
        if look is not None and look.client in self.group:
            r = self.group.index(look.client)
            look(k, x[r], [loss[r] for loss in losses.values()])

    def _means(self, losses: dict[int, Tensor]) -> list[float | None]:
        """Each client's mean over its own steps; losses: {step: (C,)}."""
        table = torch.stack([*losses.values()], 1).tolist() if losses else [[]] * len(self.steps)
        own_steps = (
            [v for k, v in zip(losses, row, strict=True) if k < n]
            for n, row in zip(self.steps, table, strict=True)
        )
        return [average(row) if row else None for row in own_steps]

    def _forgets(self) -> Callable[[], None]:
        """A function that forgets the gradients and losses counted from now on."""
        before = self.calls.copy(), self.values.copy()

        def forget() -> None:
            self.calls, self.values = before

        return forget

    # ------------------------------------------------------------------------------ under vmap
    def _share(self, now: _Client) -> Share:
        """What a client received."""
        return self.share._replace(msg=now.msg) if self.client.receiving else self.share

    def _gradient(
        self,
        now: _Client,
        data: Any,
        weight: Tensor,
        seed: Tensor,
        found: list[Any],
        place: tuple[int, int],
    ) -> Oracle:
        """x (d,) -> gradient (d,) of one client's minibatch; the loss of the first call is stored
        in found. place: the step (-1: outside of the steps), and the batch in a pass over all data
        (-1: the step's own).
        """
        objective, view, masked = self.plan.objective, self.share.view, self.share.masked

        def mean(x: Vec) -> Tensor:
            with seeded(seed):
                ref = view.seen(now.msg.x) if self.client.receiving else self.ref
                given = (self.share.net, view.seen(x), data, ref, now.obj)
                loss: Tensor = noted(blamed(objective), objective.loss, *given)
            objective.checked(loss, data)
            if loss.ndim == 0:
                return loss
            value: Tensor = (weight * loss).sum() / weight.sum()
            return value

        def plain(x: Vec) -> Vec:
            beat()
            check_point(x, view)
            self.calls[place] += 1
            g, value = grad_and_value(mean, x)
            if not found:
                found.append(value)
            return g

        def loss(x: Vec) -> Tensor:
            beat()
            check_point(x, view)
            self.values[place] += 1
            with torch.no_grad():
                return mean(x if masked is None else masked.kept(x))

        return Oracle(plain if masked is None else lambda x: masked.grad(plain, x), loss)

    def _private(self, now: _Client, dp: ExamplePrivacy, k: int) -> Oracle:
        """x (m,) -> the private gradient (m,) of one client's minibatch, once in a step."""
        view, masked, asked = self.share.view, self.share.masked, list[bool]()
        ref = view.seen(now.msg.x) if self.client.receiving else self.ref
        loss = example_loss(self.plan, self.share, ref, now.obj, now.seed)
        clients = len(self.steps)

        def plain(x: Vec) -> Vec:
            beat()
            check_point(x, view)
            if asked:
                raise untold(self.plan, "a second gradient in a step")
            asked.append(True)
            self.calls[k, -1] += 1
            mean = clipped_sum(loss, x, now.data, now.weight, dp.clip, clients)
            return mean.add(now.noise)

        def untold_loss(x: Vec) -> NoReturn:
            raise untold(self.plan, "the loss of a batch")

        return Oracle(plain if masked is None else lambda x: masked.grad(plain, x), untold_loss)

    def _job(self, now: _Client, k: int, place: int = -1) -> Job:
        numbers: dict[str, Any] = dict(zip(_NUMBERS, now.numbers.unbind(), strict=True))
        step = (numbers["steps"] - 1).clamp_max(k)
        full = Oracle(
            lambda x: self._full(lambda g: g(x), zeros(x), now, place),
            lambda x: self._full(lambda g: g.loss(x), x.new_zeros(()), now, place),
        )
        draws = Draws(now.draws, self.share.msg.x)
        return self.jobs[0]._replace(**numbers, lr=now.lr, step=step, full=full, draws=draws)

    def _begin(self, now: _Client) -> Any:
        msg = self._share(now).msg
        x, loc = self.client.steps.guard.start(msg, now.own, self._job(now, 0))
        self.at_msg = x is self.share.msg.x
        return x if self.at_msg else x.clone(), tree(lambda v: _tensor(v, x), loc)

    def _step(self, k: int, x: Vec, now: _Client) -> Any:
        found: list[Any] = []
        if self.dp is None:
            gradient = self._gradient(now, now.data, now.weight, now.seed, found, (k, -1))
        else:
            gradient = self._private(now, self.dp, k)
        job, share = self._job(now, k, k), self._share(now)
        before = x, now.loc, now.obj
        d, loc, obj = self.client.steps.step(
            k, *before, share, now.own, job, gradient, now.data, now.seed
        )
        there = torch.addcmul(x, d, now.lr, value=-1)  # x - lr d, in one pass over the memory
        moved = there, tree(lambda v: _tensor(v, x), loc), obj
        loss = found[0] if found else x.new_zeros(())  # vmap gives back tensors only
        if k < min(self.steps):
            return *moved, loss
        keep = lambda a, b: torch.where(now.live, a, b)
        return *(tree(keep, a, b) for a, b in zip(moved, before, strict=True)), loss

    def _end(self, x: Vec, now: _Client) -> Any:
        job = self._job(now, len(self.batches))
        up, own, obj = self.client.steps.end(x, now.loc, now.obj, self._share(now), now.own, job)
        uniform = uniform_of(self.plan.algorithm, up, job)
        return tuple(tree(lambda v: _tensor(v, x), record) for record in (up, uniform, own, obj))

    def _full(
        self, ask: Callable[[Oracle], Tensor], total: Tensor, now: _Client, step: int
    ) -> Tensor:
        """What is asked of every batch, averaged over all data of a client; total: zeros."""
        if self.dp is not None:
            raise untold(self.plan, "job.full")
        if not (full := now.full):
            raise NeedsFullError
        for m in range(full.seed.shape[0]):
            size = full.weight[m].sum()
            data = tuple(v[m] for v in (full.inputs, full.targets))
            # a padding chunk has weight 0 throughout: count it as one example, times 0
            weight = torch.where(size > 0, full.weight[m], torch.ones_like(full.weight[m]))
            oracle = self._gradient(now, data, weight, full.seed[m], [], (step, m))
            total = total + size * ask(oracle)
        mean: Tensor = total / full.weight.sum()
        return mean


def _stack(records: list[Rec], like: Vec) -> Rec:
    """Records of tensors or numbers -> one record of tensors (C, ...)."""
    return tree(lambda *vs: torch.stack([_tensor(v, like) for v in vs]), *records)


def _tensor(value: Any, like: Vec) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)
