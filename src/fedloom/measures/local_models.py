"""The local models of a round: what the clients of the next cohort make of the server's model."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.client_results import TrainTask
from ..engines.client_round import Client
from ..engines.serial import Serial
from ..errors import CompositionError
from ..federation.federation import Federation
from ..plan import Plan
from ..server.client_selection import Participants
from ..server.exchanges import prepared
from ..server.rounds import Run
from ..server.server_step import Step
from ..stage import Download, LocalResult


@dataclass(frozen=True, eq=False)
class LocalModels:
    """The round after the last one, as it would be. before, after: the server's model (d,) at its
    beginning and at its end; models: {client: x (d,) after its last local step}; buffers: the same
    of batch norm's statistics; net: a copy of the run's.
    """

    before: Vec
    after: Vec
    models: dict[int, Vec]
    buffers: dict[int, Vec]
    net: Net


def local_models(run: Run) -> LocalModels:
    """Train the next cohort of a run, between two rounds, and keep every local model.

    It costs a round in one process and a model per client of the cohort. The run is not changed: a
    round is a function of its message and its client states. Raises CompositionError for a run with
    sub-models, whose local models have no coordinates in common.
    """
    if (scheme := run.plan.submodel) is not None:
        raise CompositionError(
            f"local models are compared as whole models, and with submodel "
            f"'{scheme.name}' clients hold parts; measure a run without submodel"
        )
    if run.group.size > 1:
        raise CompositionError(
            "measures of local models need the client states of a whole cohort in one process, and "
            f"this run has {run.group.size} ranks; measure it without torchrun"
        )
    cohort, message = run.cohorts.of(run.state.round), run.message()
    recorder = _Recorder(run.plan, run.fed, copy.deepcopy(run.net))
    engine = _Recording(recorder)
    engine.open(run.plan, run.fed, recorder.net)
    participants = Participants(
        [TrainTask(message.msg, message.buffers, {}, cohort, run.state.round)], [], [], {}
    )
    training = prepared(engine, run.plan, run.fed.seed, participants, run.memory.get)
    step, now = Step(run.plan, run.fed, recorder.net), run.state._replace(stages=message.stages)
    _, learnt = step.checked(engine, training, now)
    after = step.model(learnt._replace(round=learnt.round + 1))
    return LocalModels(run.model(), after, recorder.models, recorder.buffers, recorder.net)


class _Recording(Serial):
    """The reference engine with this client."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def client(self, plan: Plan, fed: Federation, net: Net) -> Client:
        return self.recorder


class _Recorder(Client):
    """A client that keeps where the local steps of each one ended."""

    def __init__(self, plan: Plan, fed: Federation, net: Net) -> None:
        super().__init__(plan, fed, net)
        self.models, self.buffers = dict[int, Vec](), dict[int, Vec]()

    def train(self, received: Download, memory: Rec, i: int, round: int) -> LocalResult:
        """As every client's, and keep the result."""
        result = super().train(received, memory, i, round)
        self.models[i], self.buffers[i] = result.x.clone(), received.net.buffers()
        return result
