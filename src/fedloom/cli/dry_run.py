"""An estimate of a run's cost in about ten seconds: its operations by arithmetic, and their time by
as much of a round as fits.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedloom.compression import downlink
from fedloom.config import Config
from fedloom.core.vector import rec, tree
from fedloom.core.wire import nbytes
from fedloom.engines import Serial, Vectorised, Workers, bfloat16_gain
from fedloom.engines.base import processors
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.client_round import ClientCost
from fedloom.engines.evaluation_batches import examples_of
from fedloom.engines.extra_exchanges import ask_cohort
from fedloom.engines.one_step import (
    Operations,
    StepCost,
    as_it_was,
    first_task,
    not_replayed,
    step_costs,
    try_step,
)
from fedloom.engines.scores import evaluate_range
from fedloom.engines.stages import sums_suffice
from fedloom.engines.summation import root
from fedloom.experiment.experiment import Experiment
from fedloom.federation.clock import Asynchronous
from fedloom.federation.federation import Federation
from fedloom.report import human_bytes, human_seconds
from fedloom.report.tables import human_size
from fedloom.server.exchanges import together
from fedloom.server.rounds import Run
from fedloom.server.state import Ledger
from fedloom.storage.records import sparsify

from .printing import table

Row = tuple[str, str, str]
Cohorts = Sequence[Sequence[int]]
_SHORT = 3e10  # operations that take a second or two of a usual processor: they are measured
_SECONDS = 2.0  # that other measurements may take
_FEW = 2  # examples of a step that is counted
_COUNTED_ROUNDS = 10_000  # cohorts drawn to count client rounds; beyond that their mean


@dataclass(frozen=True)
class Cost:
    """Costs of one run, in bytes and seconds. client_rounds: every client of every round, counted;
    down, up: what it receives and sends then, on average; before: the exchange before round 1;
    operations: of all gradients and evaluations, as torch counts them; evaluated: examples of all
    evaluations; by: what the seconds are by; checkpoint: without client states, of which a client
    that has taken part has memory_row, and all of them memory_all; workers: processes beside the
    run's own; sizes: by capacity, of sub-models; not_replayed: why steps of many clients are
    computed anew every time, "" if they are not; more: further lines of the table.
    """

    cohort: str
    client_rounds: int
    down: int
    up: int
    before: int
    seconds_training: float
    seconds_evaluation: float
    operations: float
    evaluated: int
    by: str
    checkpoint: int
    memory_row: int
    memory_all: int
    resident: int
    parameters: int
    workers: int
    sizes: dict[float, StepCost]
    not_replayed: str
    more: tuple[Row, ...]

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.seconds_training + self.seconds_evaluation


def estimate(config: Config, seeds: int) -> str:
    """Time, bytes and memory of a run, or of so many seeds, as a table for the terminal."""
    experiment = config.experiment()
    cost = measure(experiment)
    rows = table([*_circumstances(experiment, cost.workers), *_rows(experiment, cost)])
    text = f"estimate of one run ({cost.parameters:,} parameters)\n{rows}"
    if seeds > 1:
        text += f"\n  {seeds} seeds run one after another: {seeds} times the time, disk and traffic"
    return text


def _circumstances(experiment: Experiment, workers: int) -> Iterator[Row]:
    if (choice := experiment.choice) is not None:
        on_cpu = choice.setting == "auto" and experiment.net().device.type == "cpu"
        auto = "; a long run tries processes with the same bits" * on_cpu
        yield "engine", str(experiment.used_engine), choice.why + auto
    if workers:
        note = f"not started here: the times are one process's, shared among {workers}"
        yield "engine", f"{workers} processes", note
    if (load := os.getloadavg()[0]) > processors() + 1:
        remark = f"{load:.0f} programs share {processors()} processors: alone it takes less time"
        yield "busy", "yes", remark


def _rows(experiment: Experiment, cost: Cost) -> Iterator[Row]:
    training, evaluation = map(human_seconds, (cost.seconds_training, cost.seconds_evaluation))
    keep, states = experiment.checkpoint.keep, human_bytes(cost.memory_all)
    disk = keep * cost.checkpoint + cost.memory_all + 4 * cost.parameters
    traffic = cost.before + cost.client_rounds * (cost.down + cost.up)
    parts = f"{training} of training, {evaluation} of evaluation ({cost.evaluated:,} examples)"
    saved = f"{keep} checkpoints of {human_bytes(cost.checkpoint)}"
    sent = f"{human_bytes(cost.down)} down and {human_bytes(cost.up)} up"
    counted = "of gradients and evaluations, as torch counts"
    yield "cohort", cost.cohort, "in every round"
    yield "time", f"about {human_seconds(cost.seconds)}", f"{parts}; {cost.by}"
    yield "operations", f"about {cost.operations:.2g}", counted
    yield "memory", f"about {human_bytes(cost.resident)}", "with every client's state in memory"
    yield "disk", f"about {human_bytes(disk)}", f"{saved}, client states {states} if all take part"
    yield "traffic", human_bytes(traffic), f"{sent}, {cost.client_rounds} times"
    yield from cost.more
    if cost.not_replayed:
        yield "steps", "as they are", f"not recorded and replayed: {cost.not_replayed}"
    for capacity, step in cost.sizes.items():
        part = f"{human_bytes(step.peak)} at its peak, {human_bytes(step.held)} of them the model's"
        note = f"{part} part; keeps {human_bytes(step.kept)} between rounds"
        yield f"size {human_size(capacity)}", f"{human_seconds(step.seconds)} a step", note


def measure(experiment: Experiment) -> Cost:
    """What a run costs; nothing is written, and the run does not change."""
    run = experiment.build()
    workers, fed, words = _without_processes(run), run.fed, run.cohorts.words
    rounds = min(experiment.rounds, _COUNTED_ROUNDS)
    cohorts = [run.cohorts.of(t) for t in range(rounds)]
    scale, clock = experiment.rounds / rounds, experiment.clock
    if isinstance(clock, Asynchronous):  # then a round is a server step
        words = f"{clock.buffer} client updates"
        scale *= rounds * clock.buffer / (sum(map(len, cohorts)) or 1)
    work = _count_work(run, cohorts, scale)
    every = experiment.evaluate.every
    evaluations = math.ceil(experiment.rounds / every) if every else 1
    training, evaluation, by = _timed(run, work, max(1, min(workers, processors())))
    steps, sizes = work.steps, Counter(map(fed.capacity, range(fed.population)))
    seconds = training / (work.training or 1) * (fed.local.batch or 1)  # of the largest step
    seconds *= max(step.operations for step in steps.values())
    affordable = seconds * 8 * len(steps) < _SECONDS
    measured = step_costs(run.plan, fed, run.net) if fed.capacities and affordable else {}
    kept = {c: measured[c].kept if c in measured else one.memory for c, one in steps.items()}
    memory = sum(n * kept[c] for c, n in sizes.items())
    message, stages = run.broadcast(), run.state.stages
    coded = downlink.sizes(run.plan.link.codes_down, message, stages.down, run.net.layout)
    down = sum(n * sum((steps[c].cost.bytes_down | coded).values()) for c, n in sizes.items())
    up = sum(n * sum(steps[c].cost.bytes_up.values()) for c, n in sizes.items())
    probed = run.cohorts.present(0, run.cohorts.waits(0.0)) or run.cohorts.example
    saved = rec(srv=run.state.srv, link=stages.link, down=stages.down)
    return Cost(
        cohort=words,
        client_rounds=round(sum(map(len, cohorts)) * scale),
        down=round(down / fed.population),
        up=round(up / fed.population),
        before=len(probed) * max(step.probe for step in steps.values()),
        seconds_training=training,
        seconds_evaluation=evaluations * evaluation,
        operations=work.training + evaluations * work.evaluation,
        evaluated=evaluations * work.evaluated,
        by=by,
        checkpoint=sum(nbytes(saved).values()) + run.state.buffers.nbytes,
        memory_row=round(memory / fed.population),
        memory_all=memory,
        resident=_resident(experiment, run, memory, workers),
        parameters=run.net.layout.d,
        workers=workers,
        sizes=measured,
        not_replayed=_not_replayed(run) if affordable else "",
        more=tuple(_more(experiment, run, cohorts, scale, affordable)),
    )


# ------------------------------------------------------------------------------- what it computes
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


def _operations(fed: Federation, steps: Mapping[float, Step], clients: Mapping[int, int]) -> float:
    """The operations of so many rounds of each client."""
    by_client = ((steps[fed.capacity(i)], i, n) for i, n in clients.items())
    return sum(n * (step.operations * sum(fed.sizes(i)) + step.asking) for step, i, n in by_client)


def _count_work(run: Run, cohorts: Cohorts, scale: float) -> Work:
    """The work of a run, by a step of a client of each size. scale: all rounds over the counted."""
    fed, net = run.fed, run.net
    first: dict[float, int] = {}
    for i in range(fed.population):
        first.setdefault(fed.capacity(i), i)
    steps = {capacity: _first_step(run, i) for capacity, i in first.items()}
    srv = run.step.first(net.init(), steps[max(steps)].up)
    start = net.init(), srv, net.init_buffers(), run.cohorts
    run.state = run.step.initial_state(*start, run.evaluator.curve, Ledger())
    rounds = Counter(i for cohort in cohorts for i in cohort)
    local = sum(n * fed.steps(i) for i, n in rounds.items())
    each, tests = _evaluation(run)
    training = _operations(fed, steps, rounds)
    return Work(steps, training * scale, local * scale, each * tests, tests)


def _first_step(run: Run, i: int) -> Step:
    """Client i's first step on two examples. The net stays as it was."""
    plan, net = run.plan, run.net
    few = min(_FEW, run.fed.local.batch or _FEW)
    fed = replace(run.fed, local=replace(run.fed.local, epochs=None, steps=1, batch=few))
    engine, probe, up = Serial(), 0, None
    asking, stepping = Operations(), Operations()
    with as_it_was(net):
        engine.open(plan, fed, net)
        if plan.algorithm.probes:
            task = TrainTask(rec(x=net.init()), net.init_buffers(), {}, [i], -1)
            out = engine.map(Request.PROBE, task)
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
    return Step(stepping.count / sum(fed.sizes(i)), asking.count, cost, memory, probe, up)


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


# -------------------------------------------------------------------------------- how long it takes
def _timed(run: Run, work: Work, processes: int) -> tuple[float, float, str]:
    """-> seconds of all training and of one evaluation on this machine, by the whole first cohort,
    by some of its clients, or by a step of one; in words by what. Evaluation by itself, or as fast
    as training. processes: those that share the work.
    """
    cohort = run.cohorts.example
    some = cohort[: max(2, getattr(run.engine, "chunk", 1))]

    def short(clients: Sequence[int]) -> bool:
        return _operations(run.fed, work.steps, dict.fromkeys(clients, 1)) < _SHORT

    sample = next(filter(short, (cohort, some)), None)
    if sample is None:
        second, by = _by_a_step(run, work, cohort[0])
        return work.training * second / processes, work.evaluation * second / processes, by
    run.engine.open(run.plan, run.fed, run.net)
    try:
        _train(run, sample)  # the first time has costs that no later time has
        seconds = _train(run, sample)
        steps = sum(run.fed.steps(i) for i in sample)
        training = seconds / steps * work.steps_of_all / processes
        if work.evaluation > _SHORT:
            evaluation = training * work.evaluation / (work.training or 1)
        else:
            began = time.perf_counter()
            run.scores()
            evaluation = (time.perf_counter() - began) / processes
    finally:
        run.engine.close()
    return training, evaluation, f"by {len(sample)} of {len(cohort)} clients of round 1"


def _by_a_step(run: Run, work: Work, i: int) -> tuple[float, str]:
    """-> seconds for an operation, by a step on as many examples as take a second; in words."""
    step = work.steps[run.fed.capacity(i)]
    most = max(1, int(_SHORT / step.operations))
    local = replace(run.fed.local, batch=min(most, run.fed.local.batch or most))
    fed, times = replace(run.fed, local=local), []
    for _ in range(2):
        began = time.perf_counter()
        try_step(run.plan, fed, run.net, Serial(), [i])
        times.append(time.perf_counter() - began)
    rows = fed.sizes(i)[0]
    return min(times) / (rows * step.operations + step.asking), f"by a step on {rows} examples"


def _without_processes(run: Run) -> int:
    """Replace an engine of processes by one of this process -> how many it would start."""
    engine = run.engine
    if not isinstance(engine, Workers):
        return 0
    engine.settle(run.plan, run.fed, run.net)
    run.engine = engine.in_process()
    return engine.workers


def _train(run: Run, sample: list[int]) -> float:
    started = time.perf_counter()
    task = TrainTask(run.message().msg, run.state.buffers, {}, sample, 0)
    task, _ = ask_cohort(run.engine.map, run.plan, run.fed.seed, task)
    run.engine.map(Request.TRAIN, task)
    return time.perf_counter() - started


# ------------------------------------------------------------------------------- what else is told
def _not_replayed(run: Run) -> str:
    """Why the steps of many clients at once are computed anew every time, or ""."""
    engine = getattr(run.engine, "inner", run.engine)  # of auto, and of ranks
    if not isinstance(engine, Vectorised):
        return ""
    return not_replayed(run.plan, run.fed, run.net, run.cohorts.example[:2], type(engine))


def _more(
    experiment: Experiment, run: Run, cohorts: Cohorts, scale: float, affordable: bool
) -> Iterator[Row]:
    """What the server holds, what privacy costs, and what bfloat16 would save."""
    plan, rounds = run.plan, run.allowed(experiment.rounds)
    if not sums_suffice(plan, run.fed):
        vectors = (1 + len(plan.averaged)) * run.net.init().nbytes + run.state.buffers.nbytes
        why = "of a round's updates, which the aggregation needs one by one"
        held = f"about {human_bytes(run.cohorts.largest * vectors)}"
        yield "server", held, why + "; each of several ranks has all"
    spent = plan.aggregation.summary(run.state.aggregation, rounds)
    if "epsilon" in spent and rounds:
        epsilon = spent.get("epsilon_tight", spent["epsilon"])
        yield "privacy", f"epsilon {epsilon:.3g}", f"delta {spent['delta']:g}, in {rounds} rounds"
    if run.accounts is not None and run.fed.local.dp is not None:
        yield _examples(run, cohorts, scale)
    gain = bfloat16_gain(plan, run.fed, run.net) if affordable else None
    if gain is not None:
        yield "bf16", f"{gain:.2f} of a step", "with local.precision = bf16, by one step"


def _examples(run: Run, cohorts: Cohorts, scale: float) -> Row:
    """What local.dp costs the client whose examples are told most of, as its budget allows."""
    accounts, dp = run.accounts, run.fed.local.dp
    assert accounts is not None and dp is not None
    counts = Counter(i for cohort in cohorts for i in cohort)
    planned = {i: math.ceil(n * scale) for i, n in counts.items()}
    rounds = {i: min(n, accounts.allowed(i)) for i, n in planned.items()}
    epsilon, client = accounts.worst(rounds)
    stopped = sum(rounds[i] < planned[i] for i in planned)
    why = f"delta {dp.delta:g}: client {client}, {rounds.get(client, 0)} rounds"
    why += f"; {stopped} clients are stopped by the budget" if stopped else ""
    return "examples", f"epsilon {epsilon:.3g}", why


def _resident(experiment: Experiment, run: Run, memory: int, workers: int) -> int:
    """Peak memory of this process, of the workers, and of the client states to come."""
    unit = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    child = max(0, resident - run.fed.data.inputs.nbytes)
    if experiment.resident_bytes is not None:
        memory = min(memory, experiment.resident_bytes)
    return resident + workers * child + memory
