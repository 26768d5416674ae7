"""What a run computes and sends, by arithmetic from a single step of a client of each size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedloom.core.vector import rec, tree
from fedloom.core.wire import nbytes
from fedloom.engines import Serial
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.client_round import ClientCost
from fedloom.engines.evaluation_batches import examples_of
from fedloom.engines.extra_exchanges import ask_cohort
from fedloom.engines.one_step import Operations, as_it_was, first_task
from fedloom.engines.scores import evaluate_range
from fedloom.engines.summation import root
from fedloom.federation.federation import Federation
from fedloom.server.billing import together
from fedloom.server.rounds import Run
from fedloom.server.state import Ledger
from fedloom.storage.records import sparsify

_FEW = 2  # examples of a step that is counted


class Step(NamedTuple):
    """A client's first step. operations: for each example, two for a multiplication and an
    addition; asking: of its answer before the steps of a round, which few methods have; cost: what
    it sent; memory: bytes of its state; probe: bytes of its exchange before round 1; up: its
    answer then.
    """

    operations: float
    asking: float
    cost: ClientCost
    memory: int
    probe: int
    up: Any


@dataclass(frozen=True)
class Work:
    """A run's work. steps: of a client of each capacity; training, evaluation: operations of all
    rounds and of one evaluation; steps_of_all: local steps of all rounds; evaluated: examples of
    one evaluation.
    """

    steps: dict[float, Step]
    training: float
    steps_of_all: float
    evaluation: float
    evaluated: int

    def of(self, fed: Federation, clients: Sequence[int]) -> float:
        """The operations of a round of these clients."""
        return sum(_operations(fed, self.steps[fed.capacity(i)], i) for i in clients)


def examples(fed: Federation, i: int) -> int:
    """How many examples client i computes gradients of in a round."""
    return sum(fed.sizes(i))


def count_work(run: Run, cohorts: Sequence[Sequence[int]], scale: float) -> Work:
    """The work of a run, and the run stands before round 1. cohorts: those that are counted;
    scale: all rounds over these.
    """
    fed, net = run.fed, run.net
    first: dict[float, int] = {}
    for i in range(fed.population):
        first.setdefault(fed.capacity(i), i)
    steps = {capacity: _step(run, i) for capacity, i in first.items()}
    srv = run.step.first(net.init(), steps[max(steps)].up)
    start = net.init(), srv, net.init_buffers(), run.cohorts
    run.state = run.step.initial_state(*start, run.evaluator.curve, Ledger())
    rounds_by_client = Counter(i for cohort in cohorts for i in cohort)
    local = sum(n * fed.steps(i) for i, n in rounds_by_client.items())
    work = sum(n * _operations(fed, steps[fed.capacity(i)], i) for i, n in rounds_by_client.items())
    each, tests = _evaluation(run)
    return Work(steps, work * scale, local * scale, each * tests, tests)


def _operations(fed: Federation, step: Step, i: int) -> float:
    return step.operations * examples(fed, i) + step.asking


def _step(run: Run, i: int) -> Step:
    """Client i's first step on two examples. The net stays as it was."""
    plan, net, algorithm = run.plan, run.net, run.plan.algorithm
    few = min(_FEW, run.fed.local.batch or _FEW)
    fed = replace(run.fed, local=replace(run.fed.local, epochs=None, steps=1, batch=few))
    engine, probe, up = Serial(), 0, None
    asking, stepping = Operations(), Operations()
    with as_it_was(net):
        engine.open(plan, fed, net)
        if algorithm.probes:
            out = engine.map(
                Request.PROBE, TrainTask(rec(x=net.init()), net.init_buffers(), {}, [i], -1)
            )
            probe = sum(sum(s.bytes_down.values()) + sum(s.bytes_up.values()) for s in out.stats)
            total = root(out.nodes)
            up = tree(lambda v: v / total.n, total.up)
        task = first_task(plan, fed, net, [i], up)
        with asking:
            task, answers = ask_cohort(engine.map, plan, fed.seed, task)
        with stepping:
            out = engine.map(Request.TRAIN, task)
    (cost,), _ = together([answers.stats, out.stats])
    state = out.memories.get(i)
    if state is not None and fed.parted:
        state = sparsify(state)
    memory = 0 if state is None else sum(nbytes(state).values())
    operations = stepping.count / examples(fed, i)
    return Step(operations, asking.count, cost, memory, probe, up)


def _evaluation(run: Run) -> tuple[float, int]:
    """Operations of an example of an evaluation, and how many examples it has."""
    data, sizes = run.fed.data, run.evaluator.sizes
    validation = examples_of(data, Request.VALIDATION)
    tests = 0 if data.test_inputs is None else len(data.test_inputs)
    inputs, targets = (data.test_inputs, data.test_targets) if tests else validation or (None, None)
    if inputs is None or targets is None:
        return 0.0, 0
    counter, fed = Operations(), replace(run.fed, metrics={})
    with as_it_was(run.net), counter:
        some = inputs[:_FEW], targets[:_FEW]
        evaluate_range(run.plan, fed, run.net, run.net.init(), *some)
    models = 1 if sizes is None else 1 + len({*run.fed.capacities})
    rows = models * tests + (0 if validation is None else len(validation[0]))
    return counter.count / len(some[0]), rows
