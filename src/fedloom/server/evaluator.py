"""What is measured of a run between two rounds: scores, clients, sub-models, and measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.base import Remote, one_thread
from ..engines.batch_statistics import evaluate_normed, keeps_no_statistics
from ..engines.decision import Gathered, Threshold
from ..engines.evaluation import Score, add, evaluate_range, score_of
from ..errors import ConfigError
from ..federation.federation import Federation
from ..plan import Plan
from .callbacks import Measuring
from .client_evaluation import ClientTests, PerClient
from .evaluation import Curve, Evaluation, held_out
from .row import own_columns, put
from .submodel_evaluation import Sizes

if TYPE_CHECKING:
    from .rounds import Run

Row = dict[str, Any]


class Evaluator:
    """Evaluates the current model of a run. settings: when and how; curve: of the headline metric
    before round 1; measures: of the user. sizes: of sub-models, None without; at_nodes: what nodes
    measured last.
    """

    def __init__(
        self,
        plan: Plan,
        fed: Federation,
        net: Net,
        settings: Evaluation,
        curve: Curve,
        measures: Sequence[Measuring] = (),
        threshold: Threshold | None = None,
    ) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self.settings, self.curve, self.measures = settings, curve, measures
        scheme = plan.rule
        self.sizes = None if scheme is None else Sizes(scheme, plan, fed, net, settings)
        self.at_nodes: dict[int, Score] = {}
        self._clients = ClientTests(plan, fed, net, settings)
        self._held_out = held_out(fed.data)
        self.threshold = threshold or Threshold()
        self._decided: Rec | None = None  # the server state for which the threshold was chosen
        if self.threshold.chosen:
            self._check_choice()
        self._tested: tuple[Rec, Score] | None = None  # the server state that was tested last

    def _check_choice(self) -> None:
        """Raise ConfigError where a threshold cannot be chosen."""
        rule = f"evaluate.threshold = {self.threshold.rule}"
        if self._held_out is None:
            raise ConfigError(
                f"{rule} is chosen on the validation split, and there is none; give "
                "evaluate.validation = 0.1, or a number such as evaluate.threshold = 0.5"
            )
        if self.sizes is not None or keeps_no_statistics(self.net.module):
            what = "sub-models" if self.sizes is not None else "batch norm without statistics"
            raise ConfigError(f"{rule} does not go with {what}; take a number")

    def _decide(self, run: Run) -> None:
        """Choose the threshold of the current model on the validation split."""
        if self._decided is run.state.srv or self._held_out is None:
            return
        seen = Gathered()
        with one_thread():
            self.net.load_buffers(run.state.buffers)
            on = (*self._held_out, 0, seen)
            evaluate_range(self.plan, self.fed, self.net, run.model(), *on)
        self.threshold.choose(*seen.all())
        self._decided = run.state.srv

    def scores(self, run: Run) -> dict[str, Score]:
        """The current model on the test set and on the validation split."""
        data = self.fed.data
        out = {} if self._held_out is None else {"validation": self.score(run, *self._held_out)}
        if isinstance(run.engine, Remote):
            self.at_nodes = run.engine.measured(run.model(), run.state.buffers, run.state.round)
            if self.at_nodes:
                return {"test": add([*self.at_nodes.values()]), **out}
        return out if data.test_inputs is None else {"test": self.tested(run), **out}

    def tested(self, run: Run) -> Score:
        """The current model on the common test set, measured once after each round."""
        if self._tested is None or self._tested[0] is not run.state.srv:
            data = self.fed.data
            assert data.test_inputs is not None and data.test_targets is not None
            found = self.score(run, data.test_inputs, data.test_targets, own=True)
            self._tested = run.state.srv, found
        return self._tested[1]

    def score(self, run: Run, inputs: Tensor, targets: Tensor, own: bool = False) -> Score:
        """The current model on data; own: on the common test set."""
        x, on = run.model(), (inputs, targets)
        if self.threshold.chosen:  # which the processes of an engine do not hear of
            self._decide(run)
            with one_thread():
                self.net.load_buffers(run.state.buffers)
                return score_of(self.plan, self.fed, self.net, x, [on])
        if not keeps_no_statistics(self.net.module):
            return add(run.engine.scores(x, run.state.buffers, *on))
        with one_thread():
            self.net.load_buffers(run.state.buffers)
            by = (self.settings.statistics, own)
            return evaluate_normed(self.plan, self.fed, self.net, x, on, *by)

    def size_scores(self, run: Run, whole: Score | None = None) -> dict[float, Score]:
        """The current sub-models on the test set, by capacity; nothing without sub-models. whole:
        of the whole model, if it is known.
        """
        if self.sizes is None:
            return {}
        return self.sizes.scores(run.engine, run.model(), run.state.buffers, run.state.round, whole)

    def client_values(self, run: Run, score: Score, last: bool = False) -> PerClient:
        """Every metric per client, with the model that it would use itself. score: of the common
        model on the test set; last: at the end of the run, see Evaluation.finetune.
        """
        told = lambda: (run.model(), run.broadcast(), run.state.buffers)
        found = run.memory, run.group, told, run.state.round, self.at_nodes
        return self._clients.values(score, *found, last)

    def own_model(self, run: Run, i: int) -> tuple[Vec, Vec]:
        """The model (d,) that client i would use itself now, after fine-tuning if there is any, and
        its buffers. Raises ConfigError for one with untrained layers of its own.
        """
        row = run.memory.get([i]).get(i)
        if row is None and self.plan.private is not None:
            raise ConfigError(
                f"client {self.fed.data.called(i)} has taken part in no round yet, so nobody has "
                "trained its private layers"
            )
        told = run.model(), run.broadcast(), run.state.buffers
        return self._clients.model(i, row, told, run.state.round, self.settings.finetune > 0)

    def columns(self, run: Run, last: bool) -> Row:
        """The columns of an evaluation, if one is due, and of the measures that are. last: no round
        follows.
        """
        row: Row = {}
        scores = self.scores(run) if last or self.settings.due(run.state.round) else {}
        if self.sizes and (self.settings.sizes_due(run.state.round) or last):
            row |= self.sizes.columns(self.size_scores(run, scores.get("test")))
        tests = self.fed.data.test_clients is not None or self.at_nodes
        if "test" in scores and tests and self.settings.clients and self.sizes is None:
            found = self.client_values(run, scores["test"])
            better, names = self.curve.higher_is_better, self.fed.data.client_names
            row |= found.columns(self.fed.metrics, better, names)
        if self.threshold.chosen:
            row["threshold"] = self.threshold.value
        row |= own_columns(self._measured(run, last), run.log.history[-1], "measures")
        for part, score in scores.items():
            put(row, part, score, self.fed.metrics)
        return row

    def _measured(self, run: Run, last: bool) -> Row:
        found: Row = {}
        for measure in self.measures:
            if run.state.round % measure.every == 0 or last:
                found |= own_columns(measure(run), found, "measures")
        return found
