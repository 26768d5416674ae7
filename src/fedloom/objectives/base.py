"""The interface of objectives, and the plain ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.hyper import NonNegativeInt, Part, hyper
from ..core.net import Net
from ..core.own_parts import check_pair
from ..core.vector import Rec, Vec, rec
from ..errors import AuthorError, ConfigError, DataError

Batch = tuple[Any, ...]  # (inputs (B, ...), targets (B, ...))
FEW = 16  # classes: a row of float32 that fits into a vector of the processor
IGNORED = -100  # the target that F.cross_entropy gives the loss 0


def classes_last(outputs: Tensor, targets: Tensor) -> bool:
    """True if logits of sequences are (B, T, C), as of language models; False if they are (B, C,
    T), as for torch's cross-entropy. Raises DataError if C = T, which leaves it open.
    """
    if outputs.ndim < 3 or outputs.shape[:-1] != targets.shape:
        return False
    if outputs.shape[1] == outputs.shape[-1]:
        raise DataError(
            f"outputs of shape {list(outputs.shape)} for targets of shape {list(targets.shape)} "
            "may have their classes on the second or on the last axis; take sequences or pictures "
            "of another size, or a model with one output more"
        )
    return True


def label_counts(info: Rec, owner: str) -> Tensor:
    """The client's number of examples of each class (C,), of what Objective.init() receives. Raises
    DataError naming `owner` if the targets are no labels.
    """
    if info.counts.numel() == 0:
        raise DataError(
            f"{owner} needs integer class labels to count, but the targets have none; take another "
            "objective, or give labels"
        )
    counts: Tensor = info.counts
    return counts


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logits with their classes on axis 1: (B, C), (B, C, T) and (B, C, H, W) as they are, (B, T,
    C) turned.

    >>> import torch
    >>> by_class(torch.zeros(2, 5, 3), torch.zeros(2, 5)).shape
    torch.Size([2, 3, 5])
    """
    return outputs.movedim(-1, 1) if classes_last(outputs, targets) else outputs


def is_one(outputs: Tensor, targets: Tensor) -> bool:
    """True for one logit per label, of class 1 of two: (B, 1) and (B,)."""
    return outputs.ndim == 2 and outputs.shape[1] == 1 and targets.ndim == 1


class Needs(Enum):
    """What an objective needs from the rest of the method; the rules in compose.py read it."""

    EXITS = "a model of several exits, which it asks all"
    DRAWN_PARTS = "a sub-model scheme that draws a part of the client's part for every step"
    TEXT_ORDER = "batches that follow each other as a client's text does, see Local.order"
    SURVIVAL = "targets of two columns, time and event, and a model of one output"
    PIXELS = "a class for each pixel, and a model that gives outputs for each"


class Objective(Part):
    """The loss at a client, on one minibatch.

    net(x, inputs) gives the model's outputs; batch = (inputs (B, ...), targets (B, ...)); ref (d,)
    is the model as it was received; mem is the objective's part of the client state. Subclasses
    become frozen dataclasses.
    """

    # needs: what it needs from the rest of the method, beside what check() finds out
    needs: ClassVar[Needs | None] = None

    def __init_subclass__(cls) -> None:
        if {"loss", "score"} & {*vars(cls)} and "mean" not in vars(cls):
            cls.mean = Objective.mean  # type: ignore[method-assign]  # not an inherited fused one
        super().__init_subclass__()

    @property
    def name(self) -> str:
        """The name in reports and errors."""
        return type(self).__name__

    @property
    def carries(self) -> bool:
        """True if the objective overrides carry()."""
        return type(self).carry is not Objective.carry

    def init(self, info: Rec) -> Rec:
        """-> mem at the client's first participation. info: counts (C,) examples per class, d, net,
        examples (the size of a whole batch), batches (in a pass over its data).
        """
        return rec()

    def begin(self, mem: Rec, info: Rec) -> Rec:
        """-> mem, before each round. info, numbers: round, last (the round of the client's last
        participation, -1 if there is none), first (the place of the first batch in its pass).
        """
        return mem

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        """-> (B,), or a scalar for the loss of a whole batch, which is then never padded."""
        raise NotImplementedError

    def check(self, net: Net, inputs: Any) -> None:
        """Raise CompositionError if the model lacks what this loss needs. inputs: a small batch."""

    def mean(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        """The batch's mean loss, a scalar; override it if a fused function is faster.

        A subclass that overrides loss() or score(), and not mean(), gets this one, whatever it
        inherits.
        """
        loss = self.checked(self.loss(net, x, batch, ref, mem), batch)
        return loss if loss.ndim == 0 else loss.mean()

    def checked(self, loss: Any, batch: Batch, method: str = "loss") -> Tensor:
        """The result of loss(), which must be (B,) or a scalar. Raises AuthorError."""
        if not isinstance(loss, Tensor):
            raise AuthorError(
                f"{self.name}.{method}() gives a {type(loss).__name__}, not a tensor; make it of "
                "what net(x, inputs) gives"
            )
        count, shape = len(batch[1]), list(loss.shape)
        if shape not in ([], [count]):
            raise AuthorError(
                f"{self.name}.{method}() gives shape {shape} for a batch of {count}; return one "
                f"value per example, [{count}], as value.flatten(1).mean(1) does, or the batch's "
                "mean as a scalar"
            )
        return loss

    def score(self, outputs: Any, batch: Batch) -> Tensor:
        """The loss that evaluation reports: (B,), or the mean as a scalar. It has no terms that
        belong to training only.
        """
        raise NotImplementedError

    def carry(self, net: Net, x: Vec, batch: Batch, mem: Rec) -> Rec:
        """-> mem, after every step, at the point where the step began."""
        return mem

    def finish(self, x: Vec, ref: Vec, mem: Rec) -> Rec:
        """-> mem, after the round; x is the last local model."""
        return mem


def example_mean(each: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over an example's tokens or pixels (B, ...), or over those with mask (B, ...) true
    -> (B,).

    >>> import torch
    >>> example_mean(torch.tensor([[1.0, 9.0]]), torch.tensor([[True, False]]))
    tensor([1.])
    """
    if mask is None:
        return each if each.ndim == 1 else each.flatten(1).mean(1)
    count = mask.to(each.dtype)
    sums, counts = (v.reshape(len(v), -1).sum(1) for v in (each * count, count))
    return sums / counts.clamp_min(1)


def divergence(log_p: Tensor, log_q: Tensor, mask: Tensor | None = None) -> Tensor:
    """KL(p || q) of log-probabilities (B, C) or (B, C, T) over dimension 1 -> (B,); mask (B, T):
    of the tokens that count.

    >>> import torch
    >>> p = torch.tensor([[0.5, 0.5]]).log()
    >>> divergence(p, torch.tensor([[0.25, 0.75]]).log())
    tensor([0.1438])
    """
    return example_mean((log_p.exp() * (log_p - log_q)).sum(1), mask)


class CrossEntropy(Objective):
    """Softmax cross-entropy of class labels (B,) and logits (B, C). For sequences (B, T) it is the
    mean over an example's tokens, with logits (B, T, C) or (B, C, T); for a class of each pixel (B,
    H, W) the mean over an example's pixels, with logits (B, C, H, W). A model of one output (B, 1)
    gives the logit of class 1 of two: binary cross-entropy.

    ignore: a target that is not counted, such as padding, or 255 of pixels. The mean of an example
    is over its other targets, and is 0 without any: an example weighs as much as another one, and a
    client as its number of examples, however many of its pixels count. By default it is what the
    data call `target_padding` in `about`.
    """

    ignore: NonNegativeInt | None = hyper(
        default=None,
        meaning="target that is not counted",
        source="such as padding, or 255 of pixels",
    )

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        return self.score(net(x, batch[0]), batch)

    def mean(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        return self.mean_score(net(x, batch[0]), batch)

    def score(self, outputs: Any, batch: Batch) -> Tensor:
        targets = batch[1]
        each = _losses(outputs, targets, "none", self.ignore).reshape(targets.shape)
        return example_mean(each, self.token_mask(targets))

    def token_mask(self, targets: Tensor) -> Tensor | None:
        """Mask of the targets that count, of their shape; None: all of them."""
        return None if self.ignore is None else targets != self.ignore

    def mean_score(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean of score(), by a fused function if no token is left out."""
        if self.ignore is None:
            return _losses(outputs, batch[1], "mean")
        return self.score(outputs, batch).mean()


def one_tensor(outputs: Any) -> Tensor:
    """A model's outputs, which a plain loss takes as one tensor. Raises DataError."""
    if isinstance(outputs, Tensor):
        return outputs
    raise DataError(
        f"the model gives a {type(outputs).__name__} where the loss takes one tensor; let "
        "forward() return that tensor alone, in training as in evaluation, or give a loss of your "
        "own, objective=loss(outputs, targets)"
    )


def _losses(outputs: Any, targets: Tensor, reduction: str, ignore: int | None = None) -> Tensor:
    outputs = one_tensor(outputs)
    if is_one(outputs, targets):
        z = outputs.reshape(-1)
        return F.binary_cross_entropy_with_logits(z, targets.to(z), reduction=reduction)
    # a transposed view would copy a large vocabulary
    if outputs.ndim > 2 and classes_last(outputs, targets):
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    left_out = IGNORED if ignore is None else ignore  # it may be none of the classes
    few = outputs.ndim == 2 and outputs.shape[1] <= FEW and targets.shape == outputs.shape[:1]
    if few and reduction == "none" and targets.dtype == torch.int64:
        return _each_of_few(outputs, targets, left_out)
    return F.cross_entropy(outputs, targets, reduction=reduction, ignore_index=left_out)


def _each_of_few(outputs: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """F.cross_entropy of every example (B, C), (B,): torch's kernel takes up to three times as long
    for rows that are shorter than the processor's vectors.
    """
    mask = targets != ignored
    z = outputs - outputs.detach().amax(1, keepdim=True)
    true = z.gather(1, torch.where(mask, targets, 0)[:, None]).squeeze(1)
    return torch.where(mask, z.exp().sum(1).log() - true, 0.0)


class SquaredError(Objective):
    """Squared error, averaged over the outputs of an example."""

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        return self.score(net(x, batch[0]), batch)

    def score(self, outputs: Any, batch: Batch) -> Tensor:
        outputs, targets = one_tensor(outputs), batch[1]
        if outputs.shape != targets.shape:
            if outputs.numel() != targets.numel():
                what = "for a class of each pixel" if targets.ndim > 2 else "for classes"
                raise DataError(
                    f"the model's output has shape {list(outputs.shape)} and the targets have "
                    f"{list(targets.shape)}; a squared error needs equal ones; {what} give integers"
                )
            outputs = outputs.reshape(targets.shape)
        each: Tensor = (outputs - targets).square()
        return each if each.ndim == 1 else each.flatten(1).mean(1)


class UserLoss(Objective):
    """Any callable loss(outputs, targets). It returns (B,), (B, ...), which is averaged over the
    other axes, or the batch's mean as a scalar.
    """

    call: Callable[[Any, Any], Tensor] = dataclasses.field()

    def __post_init__(self) -> None:
        if isinstance(self.call, type):
            raise ConfigError(
                "objective must be an Objective or loss(outputs, targets), got the class "
                f"{self.call.__name__}; give an instance, {self.call.__name__}()"
            )
        check_pair(f"objective '{self.name}'", self.call)

    @property
    def name(self) -> str:
        return getattr(self.call, "__name__", type(self.call).__name__)

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        each = self.score(net(x, batch[0]), batch)
        several = isinstance(each, Tensor) and each.ndim > 1
        return each.flatten(1).mean(1) if several else each

    def score(self, outputs: Any, batch: Batch) -> Tensor:
        return self.call(outputs, batch[1])


@functools.cache
def user_loss(loss: Callable[[Any, Any], Tensor]) -> Callable[[], UserLoss]:
    """What makes the objective of a user's function: it has no options."""
    return lambda: UserLoss(call=loss)


class Function(Objective):
    """Any scalar f(x, *batch) of the vector itself, for problems without a network (see
    net.Variables).
    """

    f: Callable[..., Tensor] = dataclasses.field()

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        return self.f(x, *batch)

    def score(self, outputs: Any, batch: Batch) -> Tensor:
        return self.f(outputs[0], *batch)  # Variables gives x itself as every output
