"""What is measured of a run between two rounds: scores, clients, sub-models, and measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.base import Remote, one_thread
from ..engines.batch_statistics import keeps_no_statistics
from ..engines.client_results import Request
from ..engines.decision import Gathered, Threshold
from ..engines.evaluation import Score, add, evaluate_range
from ..engines.evaluation_batches import batches_of, examples_of
from ..errors import ConfigError
from ..federation.federation import Federation
from ..plan import Plan
from .callbacks import Measuring
from .client_evaluation import ClientTests, PerClient
from .evaluation import Curve, Evaluation
from .row import own_columns, put
from .scoring import Current, Scorer
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
        self._scorer = Scorer(plan, fed, net, settings.statistics)
        self.sizes = None if scheme is None else Sizes(scheme, fed, net, settings, self._scorer)
        self.at_nodes: dict[int, Score] = {}
        self._clients = ClientTests(plan, fed, net, settings, self._scorer)
        self.threshold = threshold or Threshold()
        self._decided: Rec | None = None  # the server state for which the threshold was chosen
        if self.threshold.chosen:
            self._check_choice()
        self._tested: tuple[Rec, Score] | None = None  # the server state that was tested last

    def _check_choice(self) -> None:
        """Raise ConfigError where a threshold cannot be chosen."""
        rule = f"evaluate.threshold = {self.threshold.rule}"
        if examples_of(self.fed.data, validation=True) is None:
            raise ConfigError(
                f"{rule} is chosen on the validation split, and there is none; give "
                "evaluate.validation = 0.1, or a number such as evaluate.threshold = 0.5"
            )
        if self.sizes is not None or keeps_no_statistics(self.net.module):
            what = "sub-models" if self.sizes is not None else "batch norm without statistics"
            raise ConfigError(f"{rule} does not go with {what}; take a number")

    def _choose_threshold(self, run: Run) -> None:
        """Choose the threshold of the current model on the validation split."""
        examples = examples_of(self.fed.data, validation=True)
        if self._decided is run.state.srv or examples is None:
            return
        seen = Gathered()
        with one_thread():
            self.net.load_buffers(run.state.buffers)
            evaluate_range(self.plan, self.fed, self.net, run.model(), *examples, whole=seen)
        self.threshold.choose(*seen.all())
        self._decided = run.state.srv

    def scores(self, run: Run) -> dict[str, Score]:
        """The current model on the test set and on the validation split."""
        data, out = self.fed.data, dict[str, Score]()
        if batches_of(data, validation=True):
            out["validation"] = self._score(run, Request.VALIDATION)
        if isinstance(run.engine, Remote):
            self.at_nodes = run.engine.measured(run.model(), run.state.buffers, run.state.round)
            if self.at_nodes:
                return {"test": add([*self.at_nodes.values()]), **out}
        return out if data.test_inputs is None else {"test": self.tested(run), **out}

    def tested(self, run: Run) -> Score:
        """The current model on the common test set, measured once after each round."""
        if self._tested is None or self._tested[0] is not run.state.srv:
            self._tested = run.state.srv, self._score(run, Request.TEST)
        return self._tested[1]

    def _score(self, run: Run, what: Request) -> Score:
        """The current model on the common test set, or on the validation split."""
        x, buffers = run.model(), run.state.buffers
        if not self.threshold.chosen:
            return self._scorer.of_set(run.engine, what, x, buffers)
        self._choose_threshold(run)  # the processes of an engine do not hear of it
        examples = examples_of(self.fed.data, what is Request.VALIDATION)
        assert examples is not None
        return self._scorer.of(examples, x, buffers)

    def _current(self, run: Run) -> Current:
        return Current(run.model(), run.state.buffers, run.state.round)

    def _with_message(self, run: Run) -> Current:
        """The same with the next message."""
        return self._current(run)._replace(msg=run.broadcast())

    def size_scores(self, run: Run, whole: Score | None = None) -> dict[float, Score]:
        """The current sub-models on the test set, by capacity; nothing without sub-models. whole:
        of the whole model, if it is known.
        """
        return (
            {} if self.sizes is None else self.sizes.scores(run.engine, self._current(run), whole)
        )

    def unseen(self, run: Run, outside: Sequence[int]) -> list[dict[str, Any]]:
        """See Sizes.unseen; nothing without sub-models."""
        if self.sizes is None:
            return []
        known = self.size_scores(run)
        return self.sizes.unseen(run.engine, self._current(run), outside, known)

    def client_values(self, run: Run, score: Score, last: bool = False) -> PerClient:
        """Every metric per client, with the model that it would use itself. score: of the common
        model on the test set; last: at the end of the run, see Evaluation.finetune.
        """
        current = lambda: self._with_message(run)
        return self._clients.values(score, run.memory, run.group, current, self.at_nodes, last)

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
        return self._clients.model(i, row, self._with_message(run), self.settings.finetune > 0)

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
