"""The batches of an evaluation, which an engine shares out as it does clients."""

from __future__ import annotations

from torch import Tensor

from ..core.net import Net
from ..core.vector import Vec, rec
from ..data import FederatedData
from ..federation.federation import Federation
from ..plan import Plan
from .base import one_thread
from .client_results import RangeResult, Request, TrainTask
from .scores import evaluate_range, evaluation_batch

Examples = tuple[Tensor, Tensor]


def examples_of(
    data: FederatedData, request: Request, rows: slice = slice(None)
) -> Examples | None:
    """These inputs and targets of the test set or the validation split; None without one."""
    if request is Request.VALIDATION:
        if data.validation is None or not len(data.validation):
            return None
        index = data.validation[rows].to(data.inputs.device)
        return data.inputs[index], data.targets[index]
    if data.test_inputs is None or data.test_targets is None:
        return None
    return data.test_inputs[rows], data.test_targets[rows]


def evaluation_task(x: Vec, buffers: Vec, data: FederatedData, request: Request) -> TrainTask:
    """The task of evaluating a model on all batches of the test set or the validation split."""
    size, count = _sizes(data, request)
    return TrainTask(rec(x=x), buffers, {}, [*range(-(-count // size))], -1)


def _sizes(data: FederatedData, request: Request) -> tuple[int, int]:
    """How many examples a batch of an evaluation has, and how many there are."""
    rows, targets = data.test_targets, data.test_targets
    if request is Request.VALIDATION:
        rows, targets = data.validation, data.targets
    return (1, 0) if rows is None or targets is None else (evaluation_batch(targets), len(rows))


def batch_scores(
    plan: Plan, fed: Federation, net: Net, request: Request, task: TrainTask
) -> RangeResult:
    """The scores of a model on neighbouring batches: see evaluation_task()."""
    if not task.cohort:
        return RangeResult([], {}, [])
    (size, _), first, end = _sizes(fed.data, request), task.cohort[0], task.cohort[-1] + 1
    examples = examples_of(fed.data, request, slice(first * size, end * size))
    assert examples is not None
    with one_thread():
        net.load_buffers(task.buffers)
        return RangeResult([], {}, [], evaluate_range(plan, fed, net, task.msg.x, *examples, first))
