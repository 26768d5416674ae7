"""What clients are asked outside of their local steps: once before round 1, and before a round.

They are asked one after another, in every engine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.rng import ASK, seed_all
from ..core.vector import Rec, Vec, rec, tree
from ..core.wire import nbytes
from ..errors import ClientError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import Download
from .client_results import ClientCost, RangeResult, Request, TrainTask, Work, cost
from .client_round import Client
from .guard import call_checked, counters
from .local_steps import OUTSIDE, OWN_BATCH, Inputs, Step
from .summation import finite, leaf, numbers, push, root, spread


def probe_range(client: Client, task: TrainTask) -> RangeResult:
    """Ask clients once before round 1 -> sums of what they send times their relative weights."""
    out = RangeResult([], {}, [])
    for place, i in enumerate(task.cohort, task.first):
        up, cost = probe_of(client, task.msg.x, task.buffers, i)
        out.stats.append(cost)
        push(out.nodes, 0, place, weighed_probe(client.fed, up, i))
    return out


def probe_of(client: Client, x: Vec, buffers: Vec, i: int) -> tuple[Rec, ClientCost]:
    """What a client sends before round 1, and its cost. Raises ClientError."""
    plan, fed, net = client.plan, client.fed, client.net
    with client.explained(i, -1):
        net.load_buffers(buffers)
        net.train()
        download = client.download(client.views.whole, rec(x=x), buffers)
        memory = client.first_memory(x, i)
        local = client.local_round(download, memory, i, 0, "probe")
        seed_all(local.seed, x)
        batch = Step(fed.batch(fed.probe_batch(i)), local.seed, 0.0, 0)
        inputs = Inputs(memory.alg, memory.obj, download.msg, None, None)
        grad = local.gradient(inputs, batch, (OUTSIDE, OWN_BATCH), [])
        up = call_checked("probe", plan.algorithm.probe, x, grad)
        if not finite(up):
            raise ClientError(
                f"{plan.algorithm.method}: client {i}: what it sent before round 1 is "
                "not finite; is the model's loss finite on its data?"
            )
    return up, cost(i, 0, local.work(0, 0.0), nbytes(rec(x=x)), nbytes(up))


def weighed_probe(fed: Federation, up: Rec, i: int) -> Rec:
    """The leaf of what a client sends before round 1: n is its relative weight."""
    weight = fed.relative_weight(i)
    return rec(n=weight, up=tree(lambda v: weight * v, up))


def ask_range(client: Client, task: TrainTask, losses: bool = False) -> RangeResult:
    """Ask a range of the cohort before its local steps: see Algorithm.ask. The nodes are sums of
    what the clients answer, times their weights. losses: ask for their losses over all data
    instead, which go into ClientCost.loss; there are no nodes. Raises ClientError.
    """
    msg, _, memories, cohort, round, first, _ = task
    out, downloads = RangeResult([], {}, []), client.downloads(task)
    for place, i in enumerate(cohort, first):
        download = downloads[client.fed.capacity(i)]
        with client.explained(i, round):
            memory = memories.get(i) or client.first_memory(msg.x, i, download.view)
            download = client.receive(download, memory)
            if losses:
                out.stats.append(_loss(client, download, memory, i, round))
                continue
            answer, new_memory, work = answer_of(client, download, memory, i, round)
        if new_memory is not None:
            out.memories[i] = new_memory
        valid = finite(answer)
        if not valid and client.plan.nonfinite == "stop":
            raise ClientError(
                f"{client.plan.algorithm.method}: client {i}, round {round + 1}: what ask() gives "
                "is not finite; is the model's loss finite on its data?"
            )
        ask_cost = cost(i, 0, work, download.down, client.answer_bytes(answer))
        out.stats.append(ask_cost._replace(answered=valid))
        part = weighed(client, answer, download, round, i) if valid else None
        push(out.nodes, 0, place, part)
    client.forget_first()
    return out


def _loss(client: Client, download: Download, memory: Rec, i: int, round: int) -> ClientCost:
    """A client's loss over all its data at the received model, and what it cost."""
    local = client.local_round(download, memory, i, round, "ask")
    full = local.inputs().job.full
    download.net.train()
    value = float(full.loss(download.msg.x))
    return cost(i, 0, local.work(0, value), download.down, client.answer_bytes(rec(loss=value)))


def answer_of(
    client: Client, download: Download, memory: Rec, i: int, round: int
) -> tuple[Rec, Rec, Work]:
    """What a client answers; its new state, None if that stays the same; what was computed."""
    guard, view, msg = client.steps.guard, download.view, download.msg
    local = client.local_round(download, memory, i, round, "ask")
    inputs = local.inputs()
    inputs.job.draws.at(ASK)
    download.net.train()
    before = counters(msg, inputs.mem)
    answer, new = guard.call("ask", msg, inputs.mem, inputs.job)
    guard.unchanged(before, msg, inputs.mem)
    if (attack := client.fed.attack) is not None and i in client.fed.hostile:
        answer = attack.sent(answer, client.fed.seed, round, i)
    new_memory = None if new is inputs.mem else memory._replace(alg=view.put(new, memory.alg))
    return numbers(answer), new_memory, local.work(0, 0.0)


def weighed(client: Client, answer: Rec, download: Download, round: int, i: int) -> Rec:
    """The sum of one answer: for each of its fields a leaf of the aggregation, numbers apart."""
    weight, x = client.fed.weight(i), download.msg.x
    aggregation = client.plan.aggregation.of_answers
    assert aggregation is not None  # else compose.py refuses methods that ask

    def part(v: Tensor) -> Rec:
        one = leaf(weight, v, rec(), x.new_zeros(0))
        if client.views.scheme is not None and v.shape == x.shape:
            # a mean of those who hold a coordinate
            one = spread(one._replace(weight=torch.full_like(x, weight)), download.view)
        return aggregation.leaf(one, download.msg, client.fed.seed, round, i)

    values, number = answer._asdict(), functools.partial(torch.tensor, dtype=torch.float64)
    vectors = {k: part(v) for k, v in values.items() if isinstance(v, Tensor)}
    numbers = {k: part(number([v])) for k, v in values.items() if k not in vectors}
    return rec(n=1.0, vectors=rec(**vectors), numbers=rec(**numbers))


class Answers(NamedTuple):
    """What a cohort answered: the means, what each client's answer cost, changed client states."""

    mean: Rec
    stats: list[ClientCost]
    memories: dict[int, Rec]


NO_ANSWERS = Answers(rec(), [], {})


def ask_cohort(
    run: Callable[[Request, TrainTask], RangeResult], plan: Plan, seed: int, task: TrainTask
) -> tuple[TrainTask, Answers]:
    """The exchange before the local steps, for methods with ask(): -> the task of training, with
    the answers' means in the message, and the answers. run: see Engine.map; seed: the run's.
    Raises ClientError.
    """
    if not plan.algorithm.asks:
        return task, NO_ANSWERS
    answers = answers_of(run(Request.ASK, task), plan, seed, task.round)
    msg = rec(**task.msg._asdict(), **answers.mean._asdict())
    return task._replace(msg=msg, memories=task.memories | answers.memories), answers


def answers_of(results: RangeResult, plan: Plan, seed: int, round: int) -> Answers:
    """What the aggregation makes of a cohort's answers. Raises ClientError without a finite one."""
    total, method = root(results.nodes), plan.algorithm.method
    aggregation = plan.aggregation.of_answers
    assert aggregation is not None
    if total is None:
        raise ClientError(
            f"{method}: round {round + 1}: no client's answer to ask() is finite; lower local.lr, "
            "or set local.clip"
        )

    def mean(field: Rec) -> Tensor:
        vector: Tensor = aggregation.root(field, rec(), seed, round).up.delta
        return vector

    vectors = {k: mean(field) for k, field in total.vectors._asdict().items()}
    numbers = {k: float(mean(field)) for k, field in total.numbers._asdict().items()}
    means = rec(**vectors, **numbers)
    if not finite(means):
        raise ClientError(
            f"{method}: round {round + 1}: the mean of what ask() gave is not finite, though each "
            "answer is; lower local.lr, or set local.clip"
        )
    return Answers(means, results.stats, results.memories)
