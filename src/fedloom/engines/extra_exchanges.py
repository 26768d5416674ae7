"""What clients are asked outside of their local steps: once before round 1, and before a round.

They are asked one after another, in every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..core.rng import ASK, seed_all
from ..core.vector import Rec, Vec, rec, tree
from ..core.wire import nbytes
from ..errors import ClientError
from ..federation.federation import Federation
from ..stage import Download
from .client_results import ClientCost, RangeResult, Request, TrainTask, Work, cost
from .client_round import Client
from .guard import counters, probed
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
        up = probed(plan.algorithm, x, alone.gradient(now, batch, (OUTSIDE, OWN_BATCH), []))
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
        part = weighed(client, answer, share, i) if answered else None
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
    answer, new = guard.ask(msg, now.own, now.job)
    guard.unchanged(before, msg, now.own)
    kept = None if new is now.own else memory._replace(alg=view.put(new, memory.alg))
    return numbers(answer), kept, alone.work(0, 0.0)


def weighed(client: Client, answer: Rec, share: Download, i: int) -> Rec:
    """The leaf of an answer: see summation.py."""
    weight, held = client.fed.weight(i), share.view.held
    parted = client.views.scheme is not None
    counted: Any = torch.full_like(share.msg.x, weight) if parted else weight
    up = tree(lambda v: weight * v, answer)
    part = rec(n=1.0, mass=weight, weight=counted, up=up)
    return part if held is None else spread(part, share.view)


class Answers(NamedTuple):
    """What a cohort answered: the means, what each client's answer cost, changed client states."""

    mean: Rec
    stats: list[ClientCost]
    memories: dict[int, Rec]


NO_ANSWERS = Answers(rec(), [], {})


def answered(
    run: Callable[[Request, TrainTask], RangeResult], algorithm: Algorithm, asked: TrainTask
) -> tuple[TrainTask, Answers]:
    """The exchange before the local steps, for methods with ask(): -> the task of training, with
    the answers' means in the message, and the answers. run: see Engine.map. Raises ClientError.
    """
    if not algorithm.asks:
        return asked, NO_ANSWERS
    answers = answers_of(run(Request.ASK, asked), algorithm.method, asked.round)
    msg = rec(**asked.msg._asdict(), **answers.mean._asdict())
    return asked._replace(msg=msg, memories=asked.memories | answers.memories), answers


def answers_of(results: RangeResult, method: str, round: int) -> Answers:
    """The means of a whole cohort's answers. Raises ClientError if there are none, or they are not
    finite.
    """
    total = root(results.nodes)
    if total is None:
        raise ClientError(
            f"{method}: round {round + 1}: no client's answer to ask() is finite; lower local.lr, "
            "or set local.clip"
        )

    def mean(v: Any) -> Any:
        weight = total.weight
        if isinstance(v, Tensor) and isinstance(weight, Tensor) and v.shape == weight.shape:
            return torch.where(weight > 0, v / weight, 0.0)  # 0 where no client holds it
        return v / total.mass

    found = tree(mean, total.up)
    if not finite(found):
        raise ClientError(
            f"{method}: round {round + 1}: the mean of what ask() gave is not finite, though each "
            "answer is; lower local.lr, or set local.clip"
        )
    return Answers(found, results.stats, results.memories)
