"""The contract of a rule of views."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.net import Net
from ..core.rng import generator
from ..core.vector import Vec, rec
from ..engines.author_rules import check_record
from ..errors import AuthorError
from ..federation.local import Local
from ..submodels import SubModel, View
from .compare import Notes, twice, unequal
from .engine_agreement import Contract
from .outcome import Check
from .tiny_federation import CAPACITIES, network_for

_TRIED = (0.9, 0.5, 0.25, 0.05)


class ViewContract(Contract):
    kind = SubModel
    part: SubModel

    def checks(self, engines: Sequence[str]) -> list[Check]:
        return [
            Check("held coordinates", self.indices, required=True),
            Check("smaller network", self.network),
            Check("capacity 1 is everything", self.everything),
            Check("made again from what is told", self.again),
            Check("fixed", self.fixed),
            Check("gradient and coverage", self.answers),
            *self.common(engines),
        ]

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        # with momentum, which some rules treat in a way of their own
        local = Local(epochs=2, batch=4, lr=0.05, momentum=0.5)
        return {"submodel": part, "capacities": CAPACITIES, "local": local}

    @functools.cached_property
    def net(self) -> Net:
        """The user's model, or a small one that the rule can cut, made from one seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = self.setup.model or network_for(self.part)
            return Net(model if isinstance(model, nn.Module) else model())

    def view(self, capacity: float, round: int = 0, learnt: bool = False) -> View:
        """A view, as an engine asks for it. learnt: of a model that is not the first one."""
        x = self.net.init()
        if learnt:
            x = x + torch.randn(len(x), generator=generator(0, "checks", "view"))
        return self.part.view(x, self.net, capacity, round)

    # ------------------------------------------------------------------------------------- checks
    def indices(self) -> None:
        """Held indices are int64, in rising order, each once, and coordinates of the model."""
        for capacity in _TRIED:
            view = self.view(capacity)
            if not isinstance(view, View):
                raise AuthorError(
                    f"view() must return a View, got {type(view).__name__}; behind_mask(held, "
                    "net.layout) makes one of held indices"
                )
            if view.held is not None:
                _indices(view.held, self.net.layout.d, capacity)
            m = self.net.layout.d if view.held is None else len(view.held)
            if view.d != self.net.layout.d or view.layout.d != m:
                raise AuthorError(
                    f"at capacity {capacity} the view says d = {view.d} and has a layout of "
                    f"{view.layout.d} coordinates; the model has {self.net.layout.d} and the "
                    f"client holds {m}: behind_mask(held, net.layout) makes both right"
                )

    def network(self) -> str | None:
        """A smaller net has just the held coordinates."""
        views = [self.view(c) for c in _TRIED]
        for capacity, view in zip(_TRIED, views, strict=True):
            if view.net is None or view.held is None:
                continue
            if view.net.layout != view.layout or view.net.layout.d != len(view.held):
                raise AuthorError(
                    f"at capacity {capacity} the smaller net has {view.net.layout.d} parameters "
                    f"and the client holds {len(view.held)}: they must be the same coordinates, in "
                    "the order of net.layout"
                )
        cuts = [v.net is not None for v in views if v.held is not None]
        if any(cuts) != self.part.cuts or (cuts and any(cuts) != all(cuts)):
            raise AuthorError(
                f"cuts = {self.part.cuts}, but {sum(cuts)} of {len(cuts)} views have a net of "
                "their own: codecs that work layer by layer rely on the declaration"
            )
        return None if any(cuts) else "its clients train behind a mask"

    def everything(self) -> None:
        """At capacity 1 the base algorithm must not change."""
        view = self.view(1.0)
        if view.held is not None or view.net is not None or view.fit is not None:
            raise AuthorError(
                "at capacity 1 the view must be whole(net.layout), without held, net and fit: so "
                "the algorithm is what it is without sub-models, bit for bit"
            )

    def again(self) -> None:
        for capacity in _TRIED:
            view = self.view(capacity, 3, learnt=True)
            message = self.part.told(view)
            check_record("told", "what a client is told", message)
            try:
                back = self.part.again(message, self.net, capacity, 3)
            except Exception as error:  # whatever a user's rule raises is reported
                raise AuthorError(
                    f"again() fails: {error}. The client has no x of the server's (view() gets "
                    "None): what it needs to make its view must be in told(), which is billed"
                ) from error
            if part := _differ(view, back):
                raise AuthorError(
                    f"at capacity {capacity} the client makes another view than the server: "
                    f"{part} differs. again(told(view)) must be the view, and may use nothing but "
                    "what is told, the capacity and the round"
                )

    def fixed(self) -> str | None:
        """What is declared fixed is: an engine keeps the view."""
        if not self.part.fixed:
            return "it declares that its views change"
        for capacity in _TRIED:
            first = self.view(capacity)
            if part := _differ(first, self.view(capacity, 4, learnt=True)):
                raise AuthorError(
                    f"fixed = True, but {part} differs in another round or for another x: engines "
                    "make such a view once and keep it, so the rule would never see either"
                )
        return None

    def answers(self) -> None:
        """grad() and covered() give one value per held coordinate."""
        for capacity in _TRIED:
            view = self.view(capacity)
            x: Vec = view.take(self.net.init())
            values = {"covered()": self.part.covered(x)}
            if view.fit is not None:
                values["grad()"] = self.part.grad(torch.ones_like, x, view.fit)
            for name, v in values.items():
                if not isinstance(v, Tensor) or v.shape != x.shape or v.dtype != x.dtype:
                    kind = f"{v.dtype} {list(v.shape)}" if isinstance(v, Tensor) else str(type(v))
                    raise AuthorError(
                        f"{name} gives {kind}; it must give one {str(x.dtype)[6:]} per held "
                        f"coordinate, {list(x.shape)}"
                    )
            if bool(((values["covered()"] < 0) | (values["covered()"] > 1)).any()):
                raise AuthorError(
                    "covered() must be 1 where an answer counts and 0 elsewhere: the server "
                    "divides by its sum over the clients"
                )

    def call(self, notes: Notes) -> None:
        part, net = self.part, self.net
        for capacity in _TRIED:
            view = twice(notes, part.view, (net.init(), net, capacity, 2))
            message = twice(notes, part.told, (view,))
            twice(notes, part.again, (message, net, capacity, 2))


def _indices(held: Any, d: int, capacity: float) -> None:
    """Raise AuthorError unless held (m,) may index x (d,)."""
    head = f"at capacity {capacity} held"
    if not isinstance(held, Tensor) or held.dtype != torch.int64 or held.ndim != 1:
        kind = f"{held.dtype} {list(held.shape)}" if isinstance(held, Tensor) else str(type(held))
        raise AuthorError(f"{head} is {kind}; it must be a tensor (m,) of int64, or None for all")
    if not len(held):
        raise AuthorError(f"{head} is empty: a client must hold something, at least one coordinate")
    if int(held.min()) < 0 or int(held.max()) >= d:
        raise AuthorError(
            f"{head} has indices from {int(held.min())} to {int(held.max())}; the model has "
            f"coordinates 0 to {d - 1}"
        )
    step = held.diff()
    if bool((step <= 0).any()):
        k = int((step <= 0).nonzero()[0])
        fault = "twice" if int(step[k]) == 0 else f"before {int(held[k + 1])}"
        raise AuthorError(
            f"{head} has {int(held[k])} {fault}: indices must rise and each come once, or a "
            "coordinate is added twice into the mean; take held.unique()"
        )


def _differ(a: View, b: View) -> str:
    """The part in which two views differ; "" if in none."""
    if part := unequal(_comparable(a), _comparable(b)):
        return part
    return "net" if (a.net is None) != (b.net is None) or a.layout != b.layout else ""


def _comparable(view: View) -> Any:
    return rec(held=view.held, fit=view.fit, d=view.d)
