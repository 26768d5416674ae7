"""The contract of an objective."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..dropout import seeded
from ..net import Net
from ..objectives import Objective
from ..vector import Rec, is_rec, rec
from ..views import Ordered, Width
from .outcome import BrokenError, Check
from .records import unlike
from .runs import TOLERANCE, Runs, held_by_parts
from .setting import Trial, experiment, federation, network_for
from .state import KEPT, kept, look
from .watch import ARGUMENTS, FIELDS, REPEAT, Notes, twice

__all__ = ["objective_checks"]

_BATCH = 4
_SEED = 5  # of the dropout masks


def objective_checks(part: Objective, engines: Sequence[str]) -> list[Check]:
    """Every check of an objective, in order."""
    own = _Checks(part)
    return [
        Check("shape of the loss", own.shape, needed=True),
        Check("mean() is the mean of loss()", own.mean),
        Check("each example alone", own.alone),
        Check("gradient", own.gradient),
        Check(FIELDS, own.fields),
        Check(ARGUMENTS, functools.partial(own.noted, ARGUMENTS)),
        Check(REPEAT, functools.partial(own.noted, REPEAT)),
        Check("runs", own.runs.starts, needed=True),
        Check(KEPT, own.nothing_kept),
        *own.runs.checks(engines),
        Check("clients with a part of the model", own.parts),
    ]


class _Checks:
    def __init__(self, part: Objective) -> None:
        self.part, self.runs = part, Runs(part, self._make)
        self.before = look(part)

    def _make(self, part: Objective, dtype: torch.dtype, **changes: Any) -> Trial:
        return experiment(dtype, loss=part, data=federation(dtype, self.labels), **changes)

    # ------------------------------------------------------------------------ on one small batch
    @functools.cached_property
    def net(self) -> Net:
        """The model, in float64."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return Net(network_for(self.part), torch.float64)

    @functools.cached_property
    def x(self) -> Tensor:
        """A local model, a little away from the received one."""
        return self.net.init() + 0.01

    def batch(self, labels: bool, size: int = _BATCH) -> tuple[Tensor, Tensor]:
        """Examples of one client."""
        data = federation(torch.float64, labels)
        index = data.clients.of(3)[:size]
        return data.inputs[index], data.targets[index]

    def memory(self, labels: bool) -> Rec:
        """A client's memory at its first participation."""
        counts = self.x.new_tensor([7.0, 5.0, 4.0] if labels else [])
        return self.part.init(rec(counts=counts, d=len(self.x)))

    @functools.cached_property
    def labels(self) -> bool:
        """Whether it is a loss of labels, or of numbers: what it can be computed on."""
        try:
            self.loss(True)
        except Exception:  # an author's code may raise anything on labels if it wants numbers
            try:
                self.loss(False)
            except Exception:  # it takes neither
                return True  # the check of its shape says what is wrong
            return False
        return True

    def loss(self, labels: bool, size: int = _BATCH, x: Tensor | None = None) -> Any:
        """loss() as an engine calls it."""
        return self._masked(
            lambda: self.part.loss(
                self.net,
                self.x if x is None else x,
                self.batch(labels, size),
                self.net.init(),
                self.memory(labels),
            )
        )

    def _masked(self, call: Callable[[], Any]) -> Any:
        self.net.train()
        with seeded(_SEED):
            return call()

    # ------------------------------------------------------------------------------------- checks
    def shape(self) -> None:
        """One value per example, or one number."""
        self._scalar(self.loss(self.labels), "loss()", self.part.whole, _BATCH)
        with torch.no_grad():
            batch = self.batch(self.labels)
            value = self.part.score(self.net(self.x, batch[0]), batch)
        self._scalar(value, "score()", None, _BATCH)

    def _scalar(self, value: Any, name: str, whole: bool | None, size: int) -> None:
        if not isinstance(value, Tensor):
            raise BrokenError(
                f"{name} must return a tensor, got {type(value).__name__}: it is differentiated, "
                "so it must be made of what net(x, inputs) gives"
            )
        shape = list(value.shape)
        if not value.is_floating_point():
            raise BrokenError(f"{name} gives {str(value.dtype)[6:]}; it must give floating values")
        if shape not in ([], [size]):
            raise BrokenError(
                f"{name} has the shape {shape} for a batch of {size}: it must give one value per "
                f"example, [{size}], or one number for the batch, []; average over all axes but "
                "the first, value.flatten(1).mean(1)"
            )
        if whole and shape:
            raise BrokenError(
                f"the class declares whole = True, one number for a batch, but {name} gives one "
                "value per example: take the declaration out, or average"
            )

    def mean(self) -> None:
        """The fused mean is the mean."""
        labels = self.labels
        want = self.loss(labels).mean()
        got = self._masked(
            lambda: self.part.mean(
                self.net, self.x, self.batch(labels), self.net.init(), self.memory(labels)
            )
        )
        if found := unlike(got, want, TOLERANCE):
            raise BrokenError(
                f"mean() is not the mean of loss(): {found}. A subclass of CrossEntropy inherits a "
                "fused mean() that knows nothing of your loss(); write `mean = Objective.mean` "
                "into the class"
            )

    def alone(self) -> str | None:
        """An example's loss does not depend on the others, so that a batch may be padded."""
        value = self.loss(self.labels)
        if self.part.whole or not value.ndim:
            return "its loss is one number for the batch, which is never padded"
        self.net.train(False)
        with torch.no_grad():
            ref, memory = self.net.init(), self.memory(self.labels)
            full = self.part.loss(self.net, self.x, self.batch(self.labels), ref, memory)
            head = self.part.loss(self.net, self.x, self.batch(self.labels, 2), ref, memory)
        if found := unlike(head, full[:2], TOLERANCE):
            raise BrokenError(
                f"the loss of an example depends on the other examples of its batch: {found}. The "
                "vectorised engine fills short batches up, so that such a loss would be another "
                "one there: declare whole = True and return one number for the batch"
            )
        return None

    def gradient(self) -> None:
        """The loss can be differentiated with respect to x."""
        x = self.x.clone().requires_grad_()
        value = self.loss(self.labels, x=x).mean()
        if not value.requires_grad:
            raise BrokenError(
                "the loss does not depend on x: run the model with the x that is given, "
                "net(x, inputs), and outside of torch.no_grad(), .detach() and .item()"
            )
        (g,) = torch.autograd.grad(value, x)
        if not bool(torch.isfinite(g).all()):
            raise BrokenError("the gradient of the loss is not finite: a norm or a root of 0?")

    def fields(self) -> None:
        """Memory keeps its fields, and `carries` says whether there is something to carry."""
        part, ref = self.part, self.net.init()
        begin = self.memory(self.labels)
        carried = self._masked(lambda: part.carry(self.net, self.x, self.batch(self.labels), begin))
        overridden = type(part).carry is not Objective.carry
        if overridden != part.carries:
            raise BrokenError(
                "carries and carry() do not go together: carry() is called after every step only "
                "if the class declares carries = True"
            )
        for name, mem in (("carry()", carried), ("finish()", part.finish(self.x, ref, begin))):
            if not is_rec(mem) or mem._fields != begin._fields:
                have = ", ".join(mem._fields) if is_rec(mem) else type(mem).__name__
                raise BrokenError(
                    f"{name} returns a memory with {have or 'no field'}, but init() began with "
                    f"{', '.join(begin._fields) or 'no field'}: return the same fields"
                )

    @functools.cached_property
    def notes(self) -> Notes:
        """Every method called twice."""
        notes, part, batch = Notes(), self.part, self.batch(self.labels)
        net, x, ref, mem = self.net, self.x, self.net.init(), self.memory(self.labels)
        with torch.no_grad():
            z = net(x, batch[0])
        calls = (
            (part.loss, (net, x, batch, ref, mem)),
            (part.mean, (net, x, batch, ref, mem)),
            (part.carry, (net, x, batch, mem)),
            (part.score, (z, batch)),
            (part.finish, (x, ref, mem)),
        )
        for method, arguments in calls:

            def masked(*given: Any, method: Callable[..., Any] = method) -> Any:
                return self._masked(lambda: method(*given))

            twice(notes, functools.wraps(method)(masked), arguments, arguments)
        return notes

    def noted(self, name: str) -> None:
        """What the two calls showed."""
        if name in self.notes.wrong:
            raise BrokenError(self.notes.wrong[name])

    def nothing_kept(self) -> None:
        """The part and its file are what they were before the runs."""
        self.runs.starts()
        if found := kept(self.before, look(self.part)):
            raise BrokenError(found)

    def parts(self) -> None:
        """Clients that train a smaller network."""
        why = "take lengths from x and from the network's outputs, not from the whole model"
        held_by_parts(
            Ordered() if self.part.drawn else Width(),
            functools.partial(self._make, self.part),
            why,
        )
