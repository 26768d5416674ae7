"""Language modelling with the state of a recurrent network carried along the text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec, rec
from ..errors import CompositionError
from .base import Batch, CrossEntropy, Needs


class LanguageModel(CrossEntropy):
    """Cross-entropy of the next word, from the recurrent state after the words before the batch.

    The batches of a client are the next windows of several streams of its text (local.order =
    "text"). All gradients of a step begin from the same state; it moves on by the network at the
    point where the step began, with the step's dropout. It is carried over the rounds, and is zero
    at the beginning of each pass over the text, and when a client comes back that missed a round.

    client: h, c (layers, B, H), at (batches of the pass that are done), batches (in a pass)
    Source: Wu et al., FAFED, AAAI 2023, does not say; this is what the authors' code does, which
    has no absent clients.
    The model must have zeros(B), the state (h, c) before a text, and on (tokens, state) return
    (outputs, state), as fedloom.models.RecurrentNet does. Evaluation begins every window of the
    test text from zeros, and so do batches of another size, such as a larger first batch. The
    gradient over all data (SCAFFOLD's option I) begins its windows from the state with which the
    client's round began.
    """

    needs = Needs.TEXT_ORDER

    def check(self, net: Net, inputs: Any) -> None:
        """Raise CompositionError if the model carries no state, or gives one row per text."""
        owner = f"{self.name} and {type(net.module).__name__}"
        if not callable(getattr(type(net.module), "zeros", None)):
            raise CompositionError(
                f"{owner}: the model carries no state from batch to batch; take model = "
                "lstm_language_model, or objective = cross_entropy"
            )
        with torch.no_grad():
            outputs = net(net.init(), inputs)
        if outputs.ndim != 3:
            raise CompositionError(
                f"{owner}: the model gives {list(outputs.shape)}; a language model gives (batch, "
                "length, vocabulary)"
            )

    def init(self, info: Rec) -> Rec:
        h, c = info.net.module.zeros(info.examples)
        return rec(h=h, c=c, at=h.new_zeros(()), batches=h.new_full((), info.batches))

    def begin(self, mem: Rec, info: Rec) -> Rec:
        follows = info.last == info.round - 1 and info.first > 0
        h, c = (v if follows else torch.zeros_like(v) for v in (mem.h, mem.c))
        return mem._replace(h=h, c=c, at=torch.full_like(mem.at, info.first))

    def _run(self, net: Net, x: Vec, tokens: Tensor, mem: Rec) -> Any:
        """-> outputs, the state behind them."""
        fits = len(tokens) == mem.h.shape[1]
        zeros: Any = net.module.zeros
        state = (mem.h, mem.c) if fits else zeros(len(tokens))
        return net(x, (tokens, state))

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        return self.mean_score(self._run(net, x, batch[0], mem)[0], batch)

    def carry(self, net: Net, x: Vec, batch: Batch, mem: Rec) -> Rec:
        with torch.no_grad():
            h, c = self._run(net, x, batch[0], mem)[1]
        step = mem.at + 1
        end = step >= mem.batches
        h, c, step = (torch.where(end, torch.zeros_like(v), v) for v in (h, c, step))
        return mem._replace(h=h, c=c, at=step)
