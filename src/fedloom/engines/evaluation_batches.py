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
from .evaluation import evaluate_range, evaluation_batch

ALL = slice(None)


def examples_of(
    data: FederatedData, validation: bool = False, rows: slice = ALL
) -> tuple[Tensor, Tensor] | None:
    """Inputs and targets of these rows of the test set, or of the validation split; None without
    one.
    """
    if validation:
        if data.validation is None or not len(data.validation):
            return None
        index = data.validation[rows].to(data.inputs.device)
        return data.inputs[index], data.targets[index]
    if data.test_inputs is None or data.test_targets is None:
        return None
    return data.test_inputs[rows], data.test_targets[rows]


def batches_of(data: FederatedData, validation: bool = False) -> list[range]:
    """The rows of each batch in an evaluation of the test set, or of the validation split."""
    rows = data.validation if validation else data.test_targets
    targets = data.targets if validation else data.test_targets
    if rows is None or targets is None:
        return []
    size = evaluation_batch(targets)
    return [range(a, min(a + size, len(rows))) for a in range(0, len(rows), size)]


def evaluation_task(x: Vec, buffers: Vec, data: FederatedData, what: Request) -> TrainTask:
    """The task of evaluating a model on all batches of the test set or the validation split."""
    batches = range(len(batches_of(data, what is Request.VALIDATION)))
    return TrainTask(rec(x=x), buffers, {}, [*batches], -1)


def batch_scores(
    plan: Plan, fed: Federation, net: Net, what: Request, task: TrainTask
) -> RangeResult:
    """The scores of a model on neighbouring batches: see evaluation_task()."""
    if not task.cohort:
        return RangeResult([], {}, [])
    validation, first, last = what is Request.VALIDATION, task.cohort[0], task.cohort[-1]
    batches = batches_of(fed.data, validation)
    on = examples_of(fed.data, validation, slice(batches[first].start, batches[last].stop))
    assert on is not None
    with one_thread():
        net.load_buffers(task.buffers)
        return RangeResult([], {}, [], evaluate_range(plan, fed, net, task.msg.x, *on, first))
