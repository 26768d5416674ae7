"""What is measured of a run between two rounds: scores, clients, sub-models, and measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.base import Remote, one_thread
from ..engines.client_results import Request
from ..engines.evaluation_batches import examples_of
from ..engines.scores import Score, add, score_of
from ..errors import CompositionError, ConfigError
from ..evaluation.clients import ClientTests, PerClient
from ..evaluation.scorer import Current, Scorer, keeps_no_statistics
from ..evaluation.settings import Curve, Evaluation
from ..evaluation.sizes import Sizes
from ..evaluation.threshold import Threshold, likely, second
from ..federation.federation import Federation
from ..plan import Plan
from .row import Measuring, own_columns

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
        scheme = plan.submodel
        self._scorer = Scorer(plan, fed, net, settings.statistics)
        self.sizes = None if scheme is None else Sizes(scheme, fed, net, settings, self._scorer)
        self.at_nodes: dict[int, Score] = {}
        self._clients = ClientTests(plan, fed, net, settings, self._scorer)
        self.threshold = threshold or Threshold()
        self._decided: Rec | None = None  # the server state for which the threshold was chosen
        if self.threshold.adaptive:
            self._check_choice()
        if fed.data.unseen is not None and plan.private is not None:
            raise CompositionError(
                f"{plan.private.name} and evaluate.unseen: a client that never trains has no "
                "private layers of its own; leave one out"
            )
        self._tested: tuple[Rec, Score] | None = None  # the server state that was tested last

    def _check_choice(self) -> None:
        """Raise ConfigError where a threshold cannot be chosen."""
        setting = f"evaluate.threshold = {self.threshold.rule}"
        if examples_of(self.fed.data, Request.VALIDATION) is None:
            raise ConfigError(
                f"{setting} is chosen on the validation split, and there is none; give "
                "evaluate.validation = 0.1, or a number such as evaluate.threshold = 0.5"
            )
        if self.sizes is not None or keeps_no_statistics(self.net.module):
            obstacle = "sub-models" if self.sizes is not None else "batch norm without statistics"
            raise ConfigError(f"{setting} does not go with {obstacle}; take a number")

    def _choose_threshold(self, run: Run) -> None:
        """Choose the threshold of the current model on the validation split."""
        examples = examples_of(self.fed.data, Request.VALIDATION)
        if self._decided is run.state.srv or examples is None:
            return
        fed = replace(self.fed, metrics={"likely": likely, "second": second})
        with one_thread():
            self.net.load_buffers(run.state.buffers)
            score = score_of(self.plan, fed, self.net, run.model(), [examples])
        self.threshold.choose(score.each["likely"], score.each["second"])
        self._decided = run.state.srv

    def scores(self, run: Run) -> dict[str, Score]:
        """The current model on the test set and on the validation split."""
        data, out = self.fed.data, dict[str, Score]()
        if examples_of(data, Request.VALIDATION) is not None:
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

    def _score(self, run: Run, request: Request) -> Score:
        """The current model on the common test set, or on the validation split."""
        x, buffers = run.model(), run.state.buffers
        if not self.threshold.adaptive:
            return self._scorer.of(x, buffers, request, run.engine)
        self._choose_threshold(run)  # the processes of an engine do not hear of it
        return self._scorer.of(x, buffers, request)

    def current(self, run: Run, message: bool = False) -> Current:
        """The current model; with the next message, if it is asked for."""
        msg = run.broadcast() if message else None
        return Current(run.model(), run.state.buffers, run.state.round, msg)

    def size_scores(self, run: Run, whole: Score | None = None) -> dict[float, Score]:
        """The current sub-models by capacity, {} without. whole: of the whole model, if known."""
        return {} if self.sizes is None else self.sizes.scores(run.engine, self.current(run), whole)

    def client_values(self, run: Run, score: Score, last: bool = False) -> PerClient:
        """Every metric per client, with the model that it would use itself. score: of the common
        model on the test set; last: at the end of the run, see Evaluation.finetune.
        """
        current = lambda: self.current(run, message=True)
        return self._clients.values(score, run.memory, run.group, current, self.at_nodes, last)

    def unseen(self, run: Run, client: int | None = None) -> Score:
        """The current model on the rows of the clients that never train, or of one of them."""
        apart = self.fed.data.unseen
        assert apart is not None
        rows = slice(None) if client is None else apart.clients.of(client)
        examples = apart.inputs[rows], apart.targets[rows]
        return self._scorer.of(run.model(), run.state.buffers, examples)

    def own_model(self, run: Run, i: int) -> tuple[Vec, Vec]:
        """The model (d,) that client i would use itself now, after fine-tuning if there is any, and
        its buffers. Raises ConfigError for one with untrained layers of its own.
        """
        row = run.memory.get([i]).get(i)
        if row is None and self.plan.private is not None:
            raise ConfigError(
                f"client {self.fed.data.client_name(i)} has taken part in no round yet, so nobody "
                "has trained its private layers"
            )
        now = self.current(run, message=True)
        return self._clients.model(i, row, now, self.settings.finetune > 0)

    def columns(self, run: Run, last: bool) -> Row:
        """The columns of evaluation and measures that are due. last: no round follows."""
        row: Row = {}
        metrics, round = self.fed.metrics, run.state.round
        scores = self.scores(run) if last or self.settings.due(round) else {}
        if self.sizes and (self.settings.sizes_due(round) or last):
            row |= self.sizes.columns(self.size_scores(run, scores.get("test")))
        tests = self.fed.data.test_clients is not None or self.at_nodes
        if "test" in scores and tests and self.settings.clients and self.sizes is None:
            values, names = self.client_values(run, scores["test"]), self.fed.data.client_names
            row |= values.columns(metrics, self.curve.higher_is_better, names)
        if scores and self.fed.data.unseen is not None:
            scores = scores | {"unseen": self.unseen(run)}
        if self.threshold.adaptive:
            row["threshold"] = self.threshold.value
        measured: Row = {}
        for measure in self.measures:
            if round % measure.every == 0 or last:
                measured |= own_columns(measure(run), measured, "measures")
        row |= own_columns(measured, run.log.history[-1], "measures")
        for part, score in scores.items():
            row |= {f"{part}_{k}": score.mean(k, metrics) for k in ("loss", *score.values)}
        return row
