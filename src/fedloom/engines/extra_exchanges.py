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
from .guard import called, counters
from .local_steps import OUTSIDE, OWN_BATCH, Inputs, Step
from .summation import finite, numbers, push, root, spread


def probe_range(client: Client, asked: TrainTask) -> RangeResult:
    """Ask clients once before round 1. The nodes are sums of what they send, times their relative
    weights.
    """
    out = RangeResult([], {}, [])
    for place, i in enumerate(asked.cohort, asked.first):
        up, cost = probe_of(client, asked.msg.x, asked.buffers, i)
        out.stats.append(cost)
        push(out.nodes, 0, place, weighed_probe(client.fed, up, i))
    return out


def probe_of(client: Client, x: Vec, buffers: Vec, i: int) -> tuple[Rec, ClientCost]:
    """What a client sends before round 1, and its cost. Raises ClientError."""
    plan, fed, net = client.plan, client.fed, client.net
    with client.explained(i, -1):
        net.load_buffers(buffers)
        net.train()
        share, memory = (
            client.share(client.views.whole, rec(x=x), buffers),
            client.first_memory(x, i),
        )
        alone = client.alone(share, memory, i, 0, "probe")
        seed_all(alone.seed, x)
        batch = Step(fed.batch(fed.probe_batch(i)), alone.seed, 0.0, 0)
        now = Inputs(memory.alg, memory.obj, share.msg, None, None)
        up = called(
            "probe", plan.algorithm.probe, x, alone.gradient(now, batch, (OUTSIDE, OWN_BATCH), [])
        )
        if not finite(up):
            raise ClientError(
                f"{plan.algorithm.method}: client {i}: what it sent before round 1 is "
                "not finite; is the model's loss finite on its data?"
            )
    return up, cost(i, 0, alone.work(0, 0.0), nbytes(rec(x=x)), nbytes(up))


def weighed_probe(fed: Federation, up: Rec, i: int) -> Rec:
    """The leaf of what a client sends before round 1: n is its relative weight."""
    weight = fed.relative_weight(i)
    return rec(n=weight, up=tree(lambda v: weight * v, up))


def ask_range(client: Client, asked: TrainTask, losses: bool = False) -> RangeResult:
    """Ask a range of the cohort before its local steps: see Algorithm.ask. The nodes are sums of
    what the clients answer, times their weights. losses: ask for their losses over all data
    instead, which go into ClientCost.loss; there are no nodes. Raises ClientError.
    """
    msg, _, memories, cohort, round, first, _ = asked
    out, shares = RangeResult([], {}, []), client.shares(asked)
    for place, i in enumerate(cohort, first):
        share = shares[client.fed.capacity(i)]
        with client.explained(i, round):
            memory = memories.get(i) or client.first_memory(msg.x, i, share.view)
            share = client.receive(share, memory)
            if losses:
                out.stats.append(_loss(client, share, memory, i, round))
                continue
            answer, kept, work = answer_of(client, share, memory, i, round)
        if kept is not None:
            out.memories[i] = kept
        answered = finite(answer)
        if not answered and client.plan.nonfinite == "stop":
            raise ClientError(
                f"{client.plan.algorithm.method}: client {i}, round {round + 1}: what ask() gives "
                "is not finite; is the model's loss finite on its data?"
            )
        took = cost(i, 0, work, share.down, client.answer_bytes(answer))
        out.stats.append(took._replace(answered=answered))
        part = weighed(client, answer, share, round, i) if answered else None
        push(out.nodes, 0, place, part)
    client.forget_first()
    return out


def _loss(client: Client, share: Download, memory: Rec, i: int, round: int) -> ClientCost:
    """A client's loss over all its data at the received model, and what it cost."""
    alone = client.alone(share, memory, i, round, "ask")
    full = alone.inputs().job.full
    share.net.train()
    value = float(full.loss(share.msg.x))
    return cost(i, 0, alone.work(0, value), share.down, client.answer_bytes(rec(loss=value)))


def answer_of(
    client: Client, share: Download, memory: Rec, i: int, round: int
) -> tuple[Rec, Rec, Work]:
    """What a client answers; its new state, None if that stays the same; what was computed."""
    guard, view, msg = client.steps.guard, share.view, share.msg
    alone = client.alone(share, memory, i, round, "ask")
    now = alone.inputs()
    now.job.draws.at(ASK)
    share.net.train()
    before = counters(msg, now.own)
    answer, new = guard.call("ask", msg, now.own, now.job)
    guard.unchanged(before, msg, now.own)
    if (attack := client.fed.attack) is not None and i in client.fed.hostile:
        answer = attack.sent(answer, client.fed.seed, round, i)
    kept = None if new is now.own else memory._replace(alg=view.put(new, memory.alg))
    return numbers(answer), kept, alone.work(0, 0.0)


def weighed(client: Client, answer: Rec, share: Download, round: int, i: int) -> Rec:
    """The sum of one answer: for each of its fields a leaf of the aggregation, numbers apart."""
    weight, x = client.fed.weight(i), share.msg.x
    rule = client.plan.aggregation.of_answers
    part = rec(n=1.0, mass=weight, weight=weight, unweighted=rec(), buffers=x.new_zeros(0))

    def leaf(v: Tensor) -> Rec:
        one = rec(**part._asdict(), delta=v)
        if client.views.scheme is not None and v.shape == x.shape:
            # a mean of those who hold a coordinate
            one = spread(one._replace(weight=torch.full_like(x, weight)), share.view)
        return rule.leaf(one, share.msg, client.fed.seed, round, i)

    given, number = answer._asdict(), functools.partial(torch.tensor, dtype=torch.float64)
    vectors = {k: leaf(v) for k, v in given.items() if isinstance(v, Tensor)}
    numbers = {k: leaf(number([v])) for k, v in given.items() if k not in vectors}
    return rec(n=1.0, vectors=rec(**vectors), numbers=rec(**numbers))


class Answers(NamedTuple):
    """What a cohort answered: the means, what each client's answer cost, changed client states."""

    mean: Rec
    stats: list[ClientCost]
    memories: dict[int, Rec]


NO_ANSWERS = Answers(rec(), [], {})


def answered(
    run: Callable[[Request, TrainTask], RangeResult], plan: Plan, seed: int, asked: TrainTask
) -> tuple[TrainTask, Answers]:
    """The exchange before the local steps, for methods with ask(): -> the task of training, with
    the answers' means in the message, and the answers. run: see Engine.map; seed: the run's.
    Raises ClientError.
    """
    if not plan.algorithm.asks:
        return asked, NO_ANSWERS
    answers = answers_of(run(Request.ASK, asked), plan, seed, asked.round)
    msg = rec(**asked.msg._asdict(), **answers.mean._asdict())
    return asked._replace(msg=msg, memories=asked.memories | answers.memories), answers


def answers_of(results: RangeResult, plan: Plan, seed: int, round: int) -> Answers:
    """What the aggregation makes of a whole cohort's answers. Raises ClientError if there are none,
    or what it makes is not finite.
    """
    total, method, rule = root(results.nodes), plan.algorithm.method, plan.aggregation.of_answers
    if total is None:
        raise ClientError(
            f"{method}: round {round + 1}: no client's answer to ask() is finite; lower local.lr, "
            "or set local.clip"
        )

    def mean(field: Rec) -> Tensor:
        found: Tensor = rule.root(field, rec(), seed, round).up.delta
        return found

    vectors = {k: mean(field) for k, field in total.vectors._asdict().items()}
    numbers = {k: float(mean(field)) for k, field in total.numbers._asdict().items()}
    found = rec(**vectors, **numbers)
    if not finite(found):
        raise ClientError(
            f"{method}: round {round + 1}: the mean of what ask() gave is not finite, though each "
            "answer is; lower local.lr, or set local.clip"
        )
    return Answers(found, results.stats, results.memories)
