"""The core of the vectorised engine: one computation with a leading axis of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, vmap

from ..algorithm import Job, Oracle
from ..core.arithmetic import average, total
from ..core.dropout import seeded
from ..core.grad_and_value import grad_and_value
from ..core.rng import FINISH, Draws, key, substreams
from ..core.vector import Rec, Vec, rec, tree, zeros
from .author_checks import counters
from .client_round import Client, Done, Share
from .gradient import blame, check_point
from .heartbeat import beat
from .padded_batches import Batches
from .prefetch import Prefetcher
from .summation import uniform_of
from .threads import Threads

# the fields of a job that each client has; the others belong to a step, or are functions
_NUMBERS = ("weight", "steps", "lr_sum", "round", "last", "size", "relative_weight")


class NeedsFullError(Exception):
    """The algorithm asked for the gradient over all data, which is prepared only on demand."""


class _Clients(NamedTuple):
    """Values that stay the same in a round; outside of vmap with an axis of clients."""

    own: Rec
    numbers: Tensor  # see _NUMBERS
    full: Any
    layers: Rec  # private ones
    draws: Tensor  # seeds, see Draws


class _Now(NamedTuple):
    """Values at the beginning of a step; outside of vmap with an axis of clients. live: whether a
    client still has a step to do.
    """

    loc: Rec
    obj: Rec
    data: Any
    weight: Tensor
    seed: Tensor
    lr: Tensor
    live: Tensor


class Trained:
    """The results of several clients after training: records with a leading axis of clients."""

    def __init__(
        self,
        work: VmapRound,
        x: Tensor,
        up: Rec,
        uniform: Rec,
        own: Rec,
        obj: Rec,
        losses: dict[int, Tensor],
    ):
        self.up, self.uniform, self._x = up, uniform, x
        self._work, self._own, self._obj = work, own, obj
        means = torch.stack([*losses.values()], 1).tolist() if losses else [[]] * len(work.steps)
        own_steps = (
            [v for k, v in zip(losses, row, strict=True) if k < n]
            for n, row in zip(work.steps, means, strict=True)
        )
        self.losses = [average(row) if row else None for row in own_steps]

    def memory(self, r: int) -> Rec:
        """A copy of one client's state: a view would keep the whole chunk alive."""
        work = self._work
        old, view = work.old[work.group[r]], work.view
        if not self._own and not self._obj and not work.private:
            return old
        take = lambda v: v[r].clone() if isinstance(v, Tensor) else v
        own, objective = tree(take, self._own), tree(take, self._obj)
        kept = work.private.kept_of(old, self._x[r]) if work.private else old
        return kept._replace(
            alg=view.put(own, old.alg),
            obj=view.put(objective, old.obj) if view.net is not None else objective,
        )

    def done(self, r: int) -> Done:
        """One client's result, as training it alone gives it."""
        work = self._work
        up = tree(lambda v: v[r].clone() if isinstance(v, Tensor) else v, self.up)
        job = work.job(r)
        up = up._replace(weight=float(up.weight))
        empty = work.msg.x[:0]
        calls, *costs = self.costs(r)
        return Done(up, self.memory(r), job, self.losses[r], calls, empty, *costs)

    def costs(self, r: int) -> tuple[int, int, int, int]:
        """A client's gradients, those in full passes, and the same of losses; without padding."""
        return *self._counted(self._work.calls, r), *self._counted(self._work.values, r)

    def _counted(self, counter: Counter[tuple[int, int]], r: int) -> tuple[int, int]:
        work, sums = self._work, [0, 0]
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
        msg = share.msg
        self.plan, self.fed, self.net, self.view = client.plan, client.fed, share.net, share.view
        self.guard, self.kept = client.guard, client.kept(share.view)
        self.private = client.private
        self.around = client.around(share.view)
        self.ref, self.msg = self.view.seen(msg.x), msg
        self.old, self.group, self.round = memories, group, round
        # gradients and losses by place, see _gradient
        self.calls: Counter[tuple[int, int]] = Counter()
        self.values: Counter[tuple[int, int]] = Counter()
        self.whole, self.threads = whole, threads or Threads(1)
        dtype, device = msg.x.dtype, msg.x.device
        self.batches = Batches(self.fed, group, round, msg.x, whole, ahead)
        self.steps, K = self.batches.steps, max(self.batches.steps)
        works = [(n, self.fed.pace(i)) for i, n in zip(group, self.steps, strict=True)]
        rates = {w: self.plan.rates(self.fed.local, round, *w) for w in set(works)}
        sums = {w: total(r) for w, r in rates.items()}
        self.rates = [rates[w] for w in works]
        seeds = [key(self.fed.seed, "step", round, i) for i in group]
        drawn = torch.tensor([key(self.fed.seed, "author", round, i) for i in group])
        both = torch.cat([substreams(seeds, K), drawn[:, None]], 1).to(device)  # in one transfer
        self.seeds, self.draws = both[:, :K], both[:, K]
        wide = {w: r + r[-1:] * (K - len(r)) for w, r in rates.items()}
        self.lr = torch.tensor([wide[w] for w in works], dtype=dtype, device=device)
        self.table = [  # of every client, see _NUMBERS
            (
                self.fed.weight(i),
                float(w[0]),
                sums[w],
                float(round),
                float(memories[i].last),
                self.fed.relative_size(i),
                self.fed.relative_weight(i),
            )
            for i, w in zip(group, works, strict=True)
        ]
        self.numbers = torch.tensor(self.table, dtype=dtype, device=device)  # (C, 7)
        view = self.view
        self.own = _stack([view.take(memories[i].alg) for i in group], msg.x)
        begun = [
            client.begun(view, memories[i], i, round, seed)
            for i, seed in zip(group, seeds, strict=True)
        ]
        self.obj = _stack(begun, msg.x)
        mine = [memories[i].own if self.private else rec() for i in group]
        self.layers = _stack(mine, msg.x)
        self.all: Any = None
        self.at_msg = False  # all begin at the server's point: one matrix for all in the first step

    def job(self, r: int) -> Job:
        """What a client's finish() is told, as training it alone would tell it."""
        numbers: dict[str, Any] = dict(zip(_NUMBERS, self.table[r], strict=True))
        return Job(**numbers, lr=self.rates[r][-1], step=float(self.steps[r] - 1))

    def run(self) -> Trained:
        """Train the clients. The data of all steps are never in memory together."""
        self.net.train()
        try:
            return self._run()
        except NeedsFullError:
            if self.whole:
                raise
            self.calls.clear()
            self.values.clear()
            self.all = self.batches.everything()
            return self._run()

    def _run(self) -> Trained:
        obj, full = self.obj, self.all or rec()
        who = _Clients(self.own, self.numbers, full, self.layers, self.draws)
        before = counters(self.msg, self.own)
        x, loc = vmap(self._start)(who, obj, self.lr[:, 0])
        losses: dict[int, Tensor] = {}  # of the steps that computed one
        for k, (data, weight) in enumerate(self.batches):
            now = _Now(
                loc=loc,
                obj=obj,
                data=data,
                weight=weight,
                seed=self.seeds[:, k],
                lr=self.lr[:, k],
                live=self.batches.live[:, k],
            )
            shared = k == 0 and self.at_msg
            # flat: vmap takes as long to look through records as through their fields again
            each = (*who, *now)
            dims = (None if shared else 0, *[0] * len(each))
            step = vmap(lambda x, *each, k=k: self._step(k, x, each), in_dims=dims)
            masked, rows = k >= min(self.steps), self.all.weight.shape if self.all else ()
            shape = (shared, masked, *data[0].shape), x.shape, rows
            given = (self.msg.x if shared else x, *each)
            x, loc, obj, loss = self.threads.step(shape, step, given, self._forgets())
            if self.calls[k, -1]:
                losses[k] = loss
        up, uniform, own = vmap(self._finish)(x, loc, who, obj, self.lr[:, -1])
        self.guard.unchanged(before, self.msg, self.own)
        finish, view = self.plan.objective.finish, self.view
        if obj:
            ended = lambda x, obj, who: finish(view.seen(x), self._ref(who), obj)
            obj = vmap(ended)(x, obj, who)
        return Trained(self, x, up, uniform, own, obj, losses)

    def _forgets(self) -> Callable[[], None]:
        """A function that forgets the gradients and losses counted from now on."""
        before = self.calls.copy(), self.values.copy()

        def forget() -> None:
            self.calls, self.values = before

        return forget

    # ------------------------------------------------------------------------------ under vmap
    def _msg(self, who: _Clients) -> Rec:
        """The message, with a client's private layers."""
        if not self.private:
            return self.msg
        return self.msg._replace(x=self.private.filled(self.msg.x, who.layers))

    def _ref(self, who: _Clients) -> Vec:
        """The received model as the net of the loss sees it."""
        return self._msg(who).x if self.private else self.ref

    def _gradient(
        self,
        who: _Clients,
        data: Any,
        weight: Tensor,
        seed: Tensor,
        obj: Rec,
        found: list[Any],
        place: tuple[int, int],
    ) -> Oracle:
        """x (d,) -> gradient (d,) of one client's minibatch; the loss of the first call is stored
        in found. place: the step (-1: outside of the steps), and the batch in a pass over all data
        (-1: the step's own).
        """
        objective = self.plan.objective

        def mean(x: Vec) -> Tensor:
            with seeded(seed):
                seen, ref = self.view.seen(x), self._ref(who)
                try:
                    loss = objective.loss(self.net, seen, data, ref, obj)
                except Exception as error:
                    blame(objective, error)
                    raise
            objective.checked(loss, data)
            if loss.ndim == 0:
                return loss
            value: Tensor = (weight * loss).sum() / weight.sum()
            return value

        def plain(x: Vec) -> Vec:
            beat()
            check_point(x, self.view)
            self.calls[place] += 1
            g, value = grad_and_value(mean, x)
            if not found:
                found.append(value)
            return g

        def loss(x: Vec) -> Tensor:
            beat()
            check_point(x, self.view)
            self.values[place] += 1
            with torch.no_grad():
                return mean(x if self.kept is None else self.kept(x))

        rule, fit = self.plan.rule, self.view.fit
        if rule is None or fit is None:
            return Oracle(plain, loss)
        return Oracle(lambda x: rule.grad(plain, x, fit), loss)

    def _job(self, who: _Clients, obj: Rec, lr: Tensor, k: int, place: int = -1) -> Job:
        numbers = dict(zip(_NUMBERS, who.numbers.unbind(), strict=True))
        step = (numbers["steps"] - 1).clamp_max(k)
        full = Oracle(
            lambda x: self._full(lambda g: g(x), zeros(x), who, obj, place),
            lambda x: self._full(lambda g: g.loss(x), x.new_zeros(()), who, obj, place),
        )
        job = Job(**numbers, lr=lr, step=step, full=full, kept=self.kept, around=self.around)
        return job._replace(draws=Draws(who.draws, self.msg.x))

    def _start(self, who: _Clients, obj: Rec, lr: Tensor) -> Any:
        job = self._job(who, obj, lr, 0)
        x, loc = self.guard.start(self._msg(who), who.own, job)
        self.at_msg = x is self.msg.x
        return x if self.at_msg else x.clone(), tree(lambda v: _tensor(v, x), loc)

    def _step(self, k: int, x: Vec, each: tuple[Any, ...]) -> Any:
        who, now = _Clients(*each[: len(_Clients._fields)]), _Now(*each[len(_Clients._fields) :])
        found: list[Any] = []
        gradient = self._gradient(who, now.data, now.weight, now.seed, now.obj, found, (k, -1))
        job = self._job(who, now.obj, now.lr, k, k)
        job.draws.step(k)
        d, new = self.guard.direction(x, now.loc, self._msg(who), who.own, gradient, job)
        if self.view.fit is not None and self.plan.rule is not None:
            d = self.plan.rule.move(d, x, self.view.fit)
        d = self.private.turn(d, job)
        with seeded(now.seed):
            seen = self.view.seen(x)
            carried = self.plan.objective.carry(self.net, seen, now.data, now.obj)
        there = torch.addcmul(x, d, now.lr, value=-1)  # x - lr d, in one pass over the memory
        moved = (there, tree(lambda v: _tensor(v, x), new), carried)
        loss = found[0] if found else x.new_zeros(())  # vmap gives back tensors only
        if k < min(self.steps):
            return *moved, loss
        keep = lambda a, b: torch.where(now.live, a, b)
        before = (x, now.loc, now.obj)
        x, loc, obj = (tree(keep, a, b) for a, b in zip(moved, before, strict=True))
        return x, loc, obj, loss

    def _finish(self, x: Vec, loc: Rec, who: _Clients, obj: Rec, lr: Tensor) -> Any:
        job = self._job(who, obj, lr, len(self.batches))
        job.draws.at(FINISH)
        up, own = self.guard.finish(x, loc, self._msg(who), who.own, job)
        uniform = uniform_of(self.plan.algorithm, up, job)
        return tuple(tree(lambda v: _tensor(v, x), record) for record in (up, uniform, own))

    def _full(
        self, ask: Callable[[Oracle], Tensor], total: Tensor, who: _Clients, obj: Rec, step: int
    ) -> Tensor:
        """What is asked of every batch, averaged over all data of a client; total: zeros."""
        if self.all is None:
            raise NeedsFullError
        full = who.full
        for m in range(full.seed.shape[0]):
            size = full.weight[m].sum()
            data = tuple(v[m] for v in (full.inputs, full.targets))
            # a padding chunk has weight 0 throughout: count it as one example, times 0
            weight = torch.where(size > 0, full.weight[m], torch.ones_like(full.weight[m]))
            found: list[Any] = []
            oracle = self._gradient(who, data, weight, full.seed[m], obj, found, (step, m))
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
