"""Some clients as one computation, with a leading axis of clients: the vectorised engine's work."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from ..algorithm import Job
from ..core.arithmetic import average, total
from ..core.dropout import seeded
from ..core.rng import key, substream
from ..core.vector import Rec, Vec, rec, tree
from .author_checks import counters
from .client_round import Client, Done, Share
from .gradient import check_point
from .heartbeat import beat
from .prefetch import Ahead, Rows, rows_of
from .summation import uniform_of


class NeedsFullError(Exception):
    """The algorithm asked for the gradient over all data, which is only prepared if it does."""


class Trained:
    """What some clients have after training: records with a leading axis of clients."""

    def __init__(self, work: Together, up: Rec, uniform: Rec, own: Rec, obj: Rec, losses: Any):
        self.up, self.uniform = up, uniform
        self._work, self._own, self._obj = work, own, obj
        means = None if losses is None else losses.tolist()
        self.losses = [
            0.0 if means is None else average(means[r][:n]) for r, n in enumerate(work.steps)
        ]

    def memory(self, r: int) -> Rec:
        """A client's memory, in memory of its own: a view would keep the whole chunk alive."""
        work = self._work
        old, view = work.old[work.group[r]], work.view
        if not self._own and not self._obj:
            return old
        take = lambda v: v[r].clone() if isinstance(v, Tensor) else v
        own, objective = tree(take, self._own), tree(take, self._obj)
        return old._replace(
            alg=view.put(own, old.alg),
            obj=view.put(objective, old.obj) if view.net is not None else objective,
        )

    def done(self, r: int) -> Done:
        """One client's part, as training it alone gives it."""
        work = self._work
        n, rates = work.steps[r], work.rates[r]
        up = tree(lambda v: v[r].clone() if isinstance(v, Tensor) else v, self.up)
        i = work.group[r]
        fixed = (work.fed.weight(i), float(n), rates[-1], total(rates), float(work.round))
        end = (float(n - 1), float(work.old[i].last), None, work.fed.relative_size(i))
        job = Job(*fixed, *end)
        up = up._replace(weight=float(up.weight))
        empty = work.msg.x[:0]
        calls, passes = self.gradients(r)
        return Done(up, self.memory(r), job, self.losses[r], calls, empty, passes)

    def gradients(self, r: int) -> tuple[int, int]:
        """A client's gradients in all, and those of passes over all its data: of what was computed
        for everybody, its own steps and its own batches.
        """
        work, sums = self._work, [0, 0]
        for (step, batch), calls in work.calls.items():
            if step < work.steps[r] and batch < work.batches(r):
                sums[batch >= 0] += calls
        return sum(sums), sums[1]


class Together:
    """One round of some clients at once. Names in capitals are numbers: C clients, K steps, B
    examples.
    """

    def __init__(
        self,
        client: Client,
        share: Share,
        memories: dict[int, Rec],
        group: list[int],
        round: int,
        whole: bool,
        ahead: Ahead | None = None,
    ) -> None:
        msg, self.ahead = share.msg, ahead
        self.plan, self.fed, self.net, self.view = client.plan, client.fed, share.net, share.view
        self.guard, self.kept = client.guard, client.kept(share.view)
        self.ref, self.msg = self.view.seen(msg.x), msg
        self.old, self.group, self.round = memories, group, round
        self.calls: Counter[tuple[int, int]] = Counter()  # gradients by place, see _gradient
        self.whole = whole
        dtype, device = msg.x.dtype, msg.x.device
        sizes = [self.fed.sizes(i) for i in group]
        self.steps = [len(s) for s in sizes]
        self.sizes = sizes[0]
        self.rates = [self.plan.rates(self.fed.local, round, n) for n in self.steps]
        K = max(self.steps)
        self._sizes = sizes
        live = torch.arange(K) < torch.tensor(self.steps)[:, None]  # (C, K)
        self.live = live.to(device)
        orders = [self.fed.order(i, round) for i in group]
        index, weight = _tables(orders, sizes)
        self.index, self.weight = index.to(device), weight.to(device, dtype)  # (C, K, B)
        self._next = self._fetched(0)
        seeds = [key(self.fed.seed, "step", round, i) for i in group]
        steps = [[substream(s, k) for k in range(K)] for s in seeds]
        self.seeds = torch.tensor(steps, device=device)
        rates = [r + r[-1:] * (K - len(r)) for r in self.rates]
        self.lr = torch.tensor(rates, dtype=dtype, device=device)
        numbers = [
            (
                *(self.fed.weight(i), float(n), 0.0, total(r), float(round), 0.0),
                *(memories[i].last, self.fed.relative_size(i)),
            )
            for i, n, r in zip(group, self.steps, self.rates, strict=True)
        ]
        self.numbers = torch.tensor(numbers, dtype=dtype, device=device)  # (C, 8), as in Job
        view = self.view
        self.own = _stack([view.take(memories[i].alg) for i in group], msg.x)
        begun = [
            client.begun(view, memories[i], i, round, seed)
            for i, seed in zip(group, seeds, strict=True)
        ]
        self.obj = _stack(begun, msg.x)
        self.all: Any = None
        self.at_msg = False  # all begin at the server's point: one matrix for all in the first step

    def run(self) -> Trained:
        """Train. The data of all steps of a client are never in memory at once."""
        self.net.train()
        try:
            return self._run()
        except NeedsFullError:
            if self.whole:
                raise
            self.calls.clear()
            self.all = self._everything()
            self._next = self._fetched(0)
            return self._run()

    def batches(self, r: int) -> int:
        """How many batches a pass over all of a client's data has."""
        count = len(self.fed.data.clients.of(self.group[r]))
        return -(-count // (self.fed.local.batch or count))

    def _everything(self) -> Rec:
        """All data of every client, in chunks of its batch size, padded."""
        size = max(self.index.shape[2], 1)
        batch, clients = self.fed.local.batch, self.fed.data.clients
        own = [clients.of(i) for i in self.group]
        sizes = [tuple(len(c) for c in torch.split(o, batch or len(o))) for o in own]
        M = max(map(len, sizes))
        index, weight = _tables(own, sizes, size)
        real = torch.tensor([[float(m < len(s)) for m in range(M)] for s in sizes])
        seeds = [key(self.fed.seed, "full", self.round, i) for i in self.group]
        there = self.msg.x.device
        return rec(
            index=index.to(there),
            weight=(weight * real[:, :, None]).to(there, self.msg.x.dtype),
            seed=torch.tensor([[substream(s, m) for m in range(M)] for s in seeds], device=there),
        )

    def _run(self) -> Trained:
        obj = self.obj
        full = self._full_data()
        before = counters(self.msg, self.own)
        x, loc = vmap(self._start)(self.numbers, self.lr[:, 0], self.own, obj, full)
        losses = []
        for k in range(self.index.shape[1]):
            size, rows = self._size(k), self._next
            self._next = self._fetched(k + 1)
            data = self._data(rows(), (len(self.group), size), self._draws(k, size))
            arguments = (
                x,
                loc,
                self.own,
                obj,
                data,
                self.weight[:, k, :size],
                self.seeds[:, k],
                self.lr[:, k],
                self.live[:, k],
                self.numbers,
                full,
            )
            shared = k == 0 and self.at_msg
            dims = (None if shared else 0, *[0] * (len(arguments) - 1))
            step = vmap(lambda *a, k=k: self._step(k, *a), in_dims=dims)
            x, loc, obj, loss = step(self.msg.x if shared else x, *arguments[1:])
            losses.append(loss)
        last = self.lr[:, -1]
        up, uniform, own = vmap(self._finish)(x, loc, self.own, self.numbers, last, obj, full)
        self.guard.unchanged(before, self.msg, self.own)
        finish, view = self.plan.objective.finish, self.view
        obj = vmap(lambda x, obj: finish(view.seen(x), self.ref, obj))(x, obj) if obj else obj
        table = torch.stack(losses, 1) if losses[0] is not None else None
        return Trained(self, up, uniform, own, obj, table)

    # ------------------------------------------------------------------------------ under vmap
    def _gradient(
        self,
        data: Any,
        weight: Tensor,
        seed: Tensor,
        obj: Rec,
        found: list[Any],
        place: tuple[int, int],
    ) -> Any:
        """x (d,) -> gradient (d,) of one client's minibatch; the first call's loss goes to
        found. place: the step (-1: outside of the steps), and the batch in a pass over all data
        (-1: the step's own).
        """
        objective = self.plan.objective

        def mean(x: Vec) -> Tensor:
            with seeded(seed):
                loss = objective.loss(self.net, self.view.seen(x), data, self.ref, obj)
            objective.checked(loss, data)
            if loss.ndim == 0:
                return loss
            value: Tensor = (weight * loss).sum() / weight.sum()
            return value

        def plain(x: Vec) -> Vec:
            beat()
            check_point(x, self.view)
            self.calls[place] += 1
            g, value = grad_and_value(mean)(x)
            if not found:
                found.append(value)
            return g  # type: ignore[no-any-return]  # torch.func has no types

        rule, fit = self.plan.rule, self.view.fit
        if rule is None or fit is None:
            return plain
        return lambda x: rule.grad(plain, x, fit)

    def _job(
        self, numbers: Tensor, lr: Tensor, k: int, obj: Rec, full: Any, place: int = -1
    ) -> Job:
        n = numbers.unbind()
        step = (n[1] - 1).clamp_max(k)
        whole = lambda x: self._full(x, full, obj, place)
        return Job(n[0], n[1], lr, n[3], n[4], step, n[6], whole, n[7], self.kept)

    def _start(self, numbers: Tensor, lr: Tensor, own: Rec, obj: Rec, full: Any) -> Any:
        job = self._job(numbers, lr, 0, obj, full)
        x, loc = self.guard.start(self.msg, own, job)
        self.at_msg = x is self.msg.x
        return x if self.at_msg else x.clone(), tree(lambda v: _tensor(v, x), loc)

    def _step(
        self,
        k: int,
        x: Vec,
        loc: Rec,
        own: Rec,
        obj: Rec,
        data: Any,
        weight: Tensor,
        seed: Tensor,
        lr: Tensor,
        live: Tensor,
        numbers: Tensor,
        full: Any,
    ) -> Any:
        found: list[Any] = []
        gradient = self._gradient(data, weight, seed, obj, found, (k, -1))
        job = self._job(numbers, lr, k, obj, full, k)
        d, new = self.guard.direction(x, loc, self.msg, own, gradient, job)
        if self.view.fit is not None and self.plan.rule is not None:
            d = self.plan.rule.move(d, x, self.view.fit)
        with seeded(seed):
            carried = self.plan.objective.carry(self.net, self.view.seen(x), data, obj)
        there = torch.addcmul(x, d, lr, value=-1)  # x - lr d, in one pass over the memory
        moved = (there, tree(lambda v: _tensor(v, x), new), carried)
        loss = found[0] if found else None
        if k < min(self.steps):
            return *moved, loss
        keep = lambda a, b: torch.where(live, a, b)
        x, loc, obj = (tree(keep, a, b) for a, b in zip(moved, (x, loc, obj), strict=True))
        return x, loc, obj, loss

    def _finish(
        self, x: Vec, loc: Rec, own: Rec, numbers: Tensor, lr: Tensor, obj: Rec, full: Any
    ) -> Any:
        job = self._job(numbers, lr, self.index.shape[1], obj, full)
        up, own = self.guard.finish(x, loc, self.msg, own, job)
        uniform = uniform_of(self.plan.algorithm, up, job)
        return tuple(tree(lambda v: _tensor(v, x), record) for record in (up, uniform, own))

    def _full(self, x: Vec, full: Any, obj: Rec, step: int) -> Vec:
        """Gradient of a client's mean loss over all its data."""
        if self.all is None:
            raise NeedsFullError
        total = torch.zeros_like(x)
        for m in range(full.seed.shape[0]):
            size = full.weight[m].sum()
            data = tuple(v[m] for v in (full.inputs, full.targets))
            # a padding chunk has weight 0 throughout: count it as one example, times 0
            weight = torch.where(size > 0, full.weight[m], torch.ones_like(full.weight[m]))
            found: list[Any] = []
            g = self._gradient(data, weight, full.seed[m], obj, found, (step, m))(x)
            total = total + size * g
        mean: Vec = total / full.weight.sum()
        return mean

    def _full_data(self) -> Any:
        if self.all is None:
            return rec()
        index = self.all.index
        inputs, targets = self._data(self._rows(index), index.shape)
        return rec(inputs=inputs, targets=targets, weight=self.all.weight, seed=self.all.seed)

    def _size(self, k: int) -> int:
        """B of a step. A batch-level loss is never padded: there all clients' k-th batches are of
        one size.
        """
        return self.sizes[k] if self.whole else self.index.shape[2]

    def _fetched(self, k: int) -> Rows:
        """The stored samples of all clients' k-th batches, where possible fetched by the time that
        they are asked for.
        """
        if k == self.index.shape[1]:
            return tuple
        index = self.index[:, k, : self._size(k)]
        if self.ahead is None:
            return lambda: self._rows(index)
        return self.ahead.rows(*self._sources(index))

    def _sources(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        data = self.fed.data
        return (data.inputs, data.targets), index.reshape(-1)

    def _rows(self, index: Tensor) -> tuple[Tensor, ...]:
        """Stored inputs and targets by index (C, ...), in a row."""
        return rows_of(*self._sources(index))

    def _data(
        self, rows: tuple[Tensor, ...], axes: tuple[int, ...], draws: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Stored samples in a row -> inputs and targets with these leading axes; draws (C, B, ..)
        augment the inputs.
        """
        inputs = self.fed.data.ready(rows[0], None if draws is None else draws.flatten(0, 1))
        targets = rows[1]
        return inputs.view(*axes, *inputs.shape[1:]), targets.view(*axes, *targets.shape[1:])

    def _draws(self, k: int, size: int) -> Tensor | None:
        """What augments all clients' k-th batches, (C, B, ...): of padding it matters to nobody."""
        rows: list[Tensor] = []
        for r, i in enumerate(self.group):
            if self.fed.data.transform is None:
                return None
            own = self._sizes[r]
            count = own[min(k, len(own) - 1)]  # a list that is short is filled with its last batch
            draws = self.fed.draws(i, self.round, k, count)
            if draws is None:
                return None
            rows.append(draws[torch.arange(size).clamp_max(count - 1)])
        return torch.stack(rows)


def _tables(
    orders: Sequence[Tensor], sizes: Sequence[tuple[int, ...]], width: int = 0
) -> tuple[Tensor, Tensor]:
    """Indices per client, in batches of these sizes -> indices and weights (C, K, B).

    A short batch is filled with its last index, a short list of batches with its last batch; what
    fills a batch has weight 0.
    """
    K, B = max(map(len, sizes)), max(width, max(map(max, sizes)))
    if len(set(sizes)) == 1:
        slots, weight = _slots(sizes[0], K, B)
        index = torch.stack(list(orders))[:, slots]
        return index, weight.expand(len(orders), K, B)
    both = [_slots(s, K, B) for s in sizes]
    index = torch.stack([o.take(slots) for o, (slots, _) in zip(orders, both, strict=True)])
    return index, torch.stack([weight for _, weight in both])


@functools.lru_cache(maxsize=4096)
def _slots(sizes: tuple[int, ...], K: int, B: int) -> tuple[Tensor, Tensor]:
    """Where in a client's order the entries of its table (K, B) come from, and their weights."""
    firsts = torch.tensor([0, *itertools.accumulate(sizes)])[:-1]
    counts = torch.tensor(sizes)
    fill = torch.arange(K).clamp_max(len(sizes) - 1)
    row = torch.arange(B)
    slots = firsts[fill, None] + torch.minimum(row, counts[fill, None] - 1)
    return slots, (row < counts[fill, None]).double()


def _stack(records: list[Rec], like: Vec) -> Rec:
    """Records of tensors or numbers -> one record of tensors (C, ...)."""
    return tree(lambda *vs: torch.stack([_tensor(v, like) for v in vs]), *records)


def _tensor(value: Any, like: Vec) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)
