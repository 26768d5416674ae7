"""The score of a model: by the engine where it can share the batches out, else in this process."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.base import Engine, one_thread
from ..engines.batch_statistics import evaluate_by_batches, evaluate_settled, keeps_no_statistics
from ..engines.client_results import Request
from ..engines.evaluation import Score, add, score_of
from ..engines.evaluation_batches import evaluation_task, examples_of
from ..engines.metrics import is_whole
from ..federation.federation import Federation
from ..plan import Plan


class Current(NamedTuple):
    """A run's model after so many rounds: x (d,), and the module's buffers. msg: the next message,
    for clients that have models of their own.
    """

    x: Vec
    buffers: Vec
    round: int
    msg: Rec = None


class Scorer:
    """Scores models. statistics: of batch norm that keeps none, see Evaluation.statistics."""

    def __init__(self, plan: Plan, fed: Federation, net: Net, statistics: str) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self._statistics = statistics
        self._normed = keeps_no_statistics(net.module)
        # what a metric of a whole set gathers cannot be merged
        self._shared = not (self._normed or any(map(is_whole, fed.metrics.values())))

    def of_set(
        self, engine: Engine, what: Request, x: Vec, buffers: Vec, net: Net | None = None
    ) -> Score:
        """The score on the common test set or the validation split, which exists. net: what x is
        of; the run's by default.
        """
        if self._shared and net is None:
            task = evaluation_task(x, buffers, self.fed.data, what)
            return add([*engine.map(what, task).scores])
        examples = examples_of(self.fed.data, what is Request.VALIDATION)
        assert examples is not None
        return self.of(examples, x, buffers, net, common=what is Request.TEST)

    def of(
        self,
        examples: tuple[Tensor, Tensor],
        x: Vec,
        buffers: Vec,
        net: Net | None = None,
        common: bool = False,
    ) -> Score:
        """The score on inputs and targets, in this process; common: they are the common test
        set.
        """
        net, parts = net or self.net, (self.plan, self.fed)
        with one_thread():
            if net.buffer_layout.d == len(buffers):
                net.load_buffers(buffers)
            if not self._normed:
                return score_of(*parts, net, x, [examples])
            if self._statistics == "static":
                return evaluate_settled(*parts, net, x, *examples)
            return evaluate_by_batches(*parts, net, x, *examples, common)
