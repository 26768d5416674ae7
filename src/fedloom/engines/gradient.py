"""The gradient function that an algorithm calls, and the vectors that the engine reuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.dropout import seeded
from ..core.net import Net
from ..core.rng import key, seed_others, substream
from ..core.vector import Rec, Vec, leaves
from ..errors import AuthorError, FedloomError
from ..federation.federation import Federation
from ..objectives import Objective
from ..plan import Plan
from ..stage import Download
from ..submodels.base import View, behind_mask
from .heartbeat import beat

NOTHING: set[int] = set()


class Buffers:
    """Vectors that the engine may overwrite: no record of the author holds them any more.

    New memory for every vector of every step costs page faults, which matter from 30,000 parameters
    on.
    """

    def __init__(self) -> None:
        self._mine: list[Tensor] = []
        self._out: set[int] = set()

    def take(self, like: Vec) -> Vec:
        """A vector like this one, which the engine owns until release()."""
        for buffer in self._mine:
            if id(buffer) not in self._out and buffer.shape == like.shape:
                break
        else:
            buffer = torch.empty_like(like)
            self._mine.append(buffer)
        self._out.add(id(buffer))
        return buffer

    def settle(self, held: set[int]) -> None:
        """Everything outside these storages is free again."""
        if not held:
            self._out.clear()
        elif self._out:
            self._out = {id(b) for b in self._mine if id(b) in self._out and storage(b) in held}

    def next(self, x: Vec, held: set[int]) -> Vec:
        """A vector for the next x: x itself, if the engine owns it and no record holds it."""
        if any(x is b for b in self._mine) and (not held or storage(x) not in held):
            return x
        return self.take(x)

    def give_away(self, held: set[int]) -> None:
        """The engine no longer owns vectors in these storages; all others are free again."""
        self._mine = [b for b in self._mine if storage(b) not in held]
        self._out.clear()


def storage(v: Tensor) -> int:
    """Where a tensor's memory begins: equal for all views of the same memory."""
    return v.untyped_storage().data_ptr()


def storages(*records: Any) -> set[int]:
    """The storages of the tensors in these records."""
    found = set()
    for value in leaves(*records):
        if isinstance(value, Tensor):
            found.add(storage(value))
        elif value is not None and not isinstance(value, (int, float)):
            raise TypeError(
                f"a record holds a {type(value).__name__}; it may hold tensors, numbers and "
                "records: make nested ones with rec(...)"
            )
    return found


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
        self._places = [(own - at).int() for own, at in zip(parts, firsts, strict=False)]
        self._whole: Vec | None = None

    def embedded(self, x: Vec) -> Vec:
        """x (m,) as the net computes with it, (d,); the next call overwrites it."""
        if self._whole is None:
            self._whole = self._view.seen(x)
        else:
            self._whole.index_copy_(0, self.held, x)
        return self._whole

    def gather(self, layers: Sequence[Tensor | None], out: Vec) -> None:
        """Write the held ones of every layer's values, zeros for None, into out (m,)."""
        for v, own, place in zip(layers, self._places, torch.split(out, self._sizes), strict=True):
            if v is None:
                place.zero_()
            else:
                torch.index_select(v.reshape(-1), 0, own, out=place)


class Gradient:
    """The gradient function of one step: x (d,) -> gradient (d,) of the minibatch's mean loss. All
    calls of a step see the same randomness.
    """

    def __init__(self, plan: Plan, share: Download, buffers: Buffers) -> None:
        self.plan, self.net, self.view, self.buffers = plan, share.net, share.view, buffers
        self.masked, self.ref = share.masked, share.view.seen(share.msg.x)
        self.calls = self.values = 0  # gradients; losses without one
        self.losses: list[Tensor] = []
        self.batch: tuple[Any, ...] = ()
        self.memory: Rec = None
        self.seed, self.fresh = 0, True
        self._mask = None if self.view.held is None or self.view.net else Mask(self.view, share.net)

    def at(self, batch: tuple[Any, ...], memory: Rec, seed: int) -> None:
        """Begin the next step."""
        self.batch, self.memory, self.seed, self.fresh = batch, memory, seed, True

    def __call__(self, x: Vec) -> Vec:
        """The algorithm's gradient at x (m,). Raises AuthorError for another shape."""
        check_point(x, self.view)
        if self.masked is None:
            return self._of_part(x)
        return self.masked.grad(self._of_part, x)

    def loss(self, x: Vec) -> Tensor:
        """The minibatch's mean loss at x (m,), where the gradient is taken; 0-d, from no graph."""
        check_point(x, self.view)
        if self.masked is not None:
            x = self.masked.kept(x)
        beat()
        seed_torch(self.seed, x)
        with torch.no_grad(), seeded(self.seed):
            value = self._mean(self.net.live(self.view.seen(x)))
        check_scalar(self.plan.objective, value)
        self.values += 1
        return value.detach().clone()

    def _of_part(self, x: Vec) -> Vec:
        """The plain gradient of the held coordinates, in a vector of the engine's."""
        mask = self._mask
        parts, direct = self._pieces(x if mask is None else mask.embedded(x))
        g = self.buffers.take(x)
        if mask is not None:
            mask.gather(parts, g)
            return g if direct is None else g.add_(direct.index_select(0, mask.held))
        flat = [
            p.new_zeros(p.numel()) if part is None else part.reshape(-1)
            for part, p in zip(parts, self.net.params, strict=True)
        ]
        torch.cat(flat, out=g)
        return g if direct is None else g.add_(direct)

    def descend(self, x: Vec, lr: float) -> None:
        """Move x, a vector of the engine's, by -lr times the gradient there, in place.

        For directions that are the gradient itself. It works layer by layer, because a vector of
        the whole gradient would push the model out of the processor's cache.
        """
        parts, direct = self._pieces(x)
        for piece, part in zip(self.net.pieces, parts, strict=True):
            if part is not None:
                torch.sub(piece, part, alpha=lr, out=piece)
        if direct is not None:
            torch.sub(x, direct, alpha=lr, out=x)

    def _pieces(self, x: Vec) -> tuple[Sequence[Tensor | None], Tensor | None]:
        """The gradient layer by layer, and the gradient of x itself if the loss uses x directly."""
        beat()
        seed_torch(self.seed, x)
        # the two contexts cost more than the rest, so they are used only if needed
        if self.net.draws or not torch.is_grad_enabled():
            with torch.enable_grad(), seeded(self.seed):
                value, found = self._differentiated(x)
        else:
            value, found = self._differentiated(x)
        self.calls += 1
        if self.fresh:
            # a loss that is a view of x would move with it
            self.losses.append(value.detach().clone() if value._is_view() else value.detach())
            self.fresh = False
        return found[:-1], found[-1]

    def _differentiated(self, x: Vec) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The batch's mean loss, and its gradients."""
        handle = self.net.live(x)
        value = self._mean(handle)
        check_value(self.plan.objective, value)
        return value, torch.autograd.grad(value, [*self.net.params, handle], allow_unused=True)

    def _mean(self, handle: Tensor) -> Tensor:
        objective = self.plan.objective
        try:
            return objective.mean(self.net, handle, self.batch, self.ref, self.memory)
        except Exception as error:
            if not isinstance(error, FedloomError):
                error.add_note(blamed(objective))
            raise


class FullGradient:
    """x (m,) -> the gradient of a client's mean loss over all its data, in chunks of its batch size
    (Job.full); loss(x): that loss. calls, values: gradients and losses of chunks so far.
    """

    def __init__(
        self, plan: Plan, fed: Federation, share: Download, memory: Rec, *place: int
    ) -> None:
        self._plan, self._share = plan, share
        self._fed, self._memory, self._place = fed, memory, place  # round, client
        self.calls = self.values = 0

    def __call__(self, x: Vec) -> Vec:
        total = torch.zeros_like(x)
        for oracle, share in self._chunks():
            total.add_(oracle(x), alpha=share)
            oracle.buffers.settle(NOTHING)
        return total

    def loss(self, x: Vec) -> Tensor:
        """The client's mean loss over all its data at x (m,), 0-d."""
        total = x.new_zeros(())
        for oracle, share in self._chunks():
            total.add_(oracle.loss(x), alpha=share)
        return total

    def _chunks(self) -> Iterator[tuple[Gradient, float]]:
        """The gradient function of every chunk, and the chunk's share of the data."""
        fed = self._fed
        oracle = Gradient(self._plan, self._share, Buffers())
        seed = key(fed.seed, "full", *self._place)
        own = fed.data.clients.of(self._place[1]).to(fed.data.inputs.device)
        for k, index in enumerate(torch.split(own, fed.local.batch or len(own))):
            oracle.at(fed.batch(index), self._memory, substream(seed, k))
            yield oracle, len(index) / len(own)
        self.calls += oracle.calls
        self.values += oracle.values


def check_point(x: Any, view: View) -> None:
    """Raise AuthorError unless x is a vector (m,) of the view's length."""
    if not isinstance(x, Tensor) or x.shape != (view.layout.d,):
        got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise AuthorError(
            f"grad() is asked at {got}; it takes a point as long as x, [{view.layout.d}]"
        )


def check_value(objective: Objective, value: Any) -> None:
    """Raise AuthorError unless a batch's mean loss is a scalar that can be differentiated."""
    check_scalar(objective, value)
    if not value.requires_grad:
        raise AuthorError(
            f"{objective.name}'s loss does not depend on x: no trained parameter reaches it; is it "
            "detached, or computed under no_grad or with NumPy?"
        )


def blamed(objective: Objective) -> str:
    """Who is to blame for an exception of a loss: not the method."""
    return f"the model or its loss, {objective.name}"


def check_scalar(objective: Objective, value: Any) -> None:
    """Raise AuthorError unless a batch's mean loss is a scalar."""
    if not isinstance(value, Tensor) or value.ndim:
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise AuthorError(f"{objective.name}.mean() gives {got}; return a tensor without axes")


def seed_torch(seed: int, like: Tensor) -> None:
    """Seed the generators that layers such as F.dropout draw from."""
    torch.default_generator.manual_seed(seed)
    if like.is_cuda:
        torch.cuda.default_generators[like.get_device()].manual_seed(seed)
    elif like.is_mps:
        torch.mps.manual_seed(seed)


def seed_all(seed: int, like: Tensor) -> None:
    """Seed numpy's and Python's generators too."""
    seed_torch(seed, like)
    seed_others(seed)


@contextmanager
def own_draws(seed: int, like: Tensor) -> Iterator[None]:
    """Torch's generators begin at a seed inside, and are restored afterwards."""
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        seed_torch(seed, like)
        yield
