"""One client's round of a method on zeros: what it keeps, sends and averages, without any data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .algorithm import Algorithm, Job, Oracle
from .core.rng import Draws
from .core.vector import Rec, fields, rec, tree, zeros

_JOB = Job(weight=1.0, steps=1.0, lr=0.1, lr_sum=0.1, round=0.0, step=0.0, last=-1.0)


class Trace(NamedTuple):
    """The records of one client's round, traced on zeros without any data."""

    msg: Rec  # the broadcast
    mem: Rec  # the client state
    up: Rec  # the client update
    averaged: Rec  # what unweighted() makes of it: the server needs plain means of these


def traced(
    algorithm: Algorithm, d: int, full: Oracle | None = None, grad: Oracle | None = None
) -> Trace:
    """One client's round of a method on vectors (d,) of zeros. full, grad: what stands for the
    gradient over all data, and for that of a batch, instead of zeros.
    """
    x = torch.zeros(d)
    grad = Oracle(zeros, torch.sum) if grad is None else grad
    full = grad if full is None else full
    probe = algorithm.probe(x, grad) if algorithm.probes else None
    msg = algorithm.broadcast(algorithm.server_init(x, probe))
    mem = algorithm.client_init(msg.x)
    layers = lambda *patterns: zeros(x)
    job = _JOB._replace(full=full, draws=Draws(0, x), layers=layers)
    if algorithm.asks:
        answer, mem = algorithm.ask(msg, mem, job)
        msg = rec(**msg._asdict(), **answer._asdict())
    start, loc = algorithm.start(msg, mem, job)
    _, loc = algorithm.direction(start, loc, msg, mem, grad, job)
    up, mem = algorithm.finish(start, loc, msg, mem, job)
    averaged = algorithm.unweighted(up, job._replace(full=None, draws=None))
    return Trace(msg, mem, up, averaged)


def data_requests(algorithm: Algorithm, d: int) -> list[str]:
    """What a method asks of a client's data in a round of one step, beside the first gradient of
    the step.
    """
    requests: list[str] = []

    def note(request: str, value: Tensor) -> Tensor:
        requests.append(request)
        return value

    def oracle(gradient: str, loss: str) -> Oracle:
        return Oracle(lambda x: note(gradient, zeros(x)), lambda x: note(loss, x.sum()))

    traced(algorithm, d, oracle("job.full", "job.full.loss"), oracle("", "the loss of a batch"))
    if requests.count("") > 1:
        requests.append("a second gradient in a step")
    return [request for request in requests if request]


def plain_means(algorithm: Algorithm, up: Rec) -> tuple[str, ...]:
    """The fields of unweighted() that stay as they are when a client weighs twice as much. up: the
    fields of an update.
    """
    ones = tree(lambda v: torch.ones_like(v) if isinstance(v, Tensor) else 1.0, up)
    job = _JOB._replace(layers=lambda *patterns: zeros(up.delta))
    heavy = ones._replace(weight=2.0 * ones.weight)
    one = algorithm.unweighted(ones, job)
    two = algorithm.unweighted(heavy, job._replace(weight=2.0, relative_weight=2.0))

    def same(name: str) -> bool:
        pair = [fields(rec(value=getattr(r, name))).values() for r in (one, two)]
        return all(bool(torch.as_tensor(a == b).all()) for a, b in zip(*pair, strict=True))

    return tuple(name for name in one._fields if same(name))
