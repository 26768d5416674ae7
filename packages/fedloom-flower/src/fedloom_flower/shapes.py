"""What the two halves of a round know of a message before it comes: fields, types and lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.aggregation import Reads
from fedloom.algorithm import Job, Oracle
from fedloom.core.net import Net
from fedloom.core.rng import Draws
from fedloom.core.vector import Rec, Vec, fields, rec, tree, zeros
from fedloom.core.wire import unpack
from fedloom.engines.summation import finite, numbers
from fedloom.errors import CompositionError, WireError
from fedloom.federation.federation import Federation
from fedloom.plan import Plan
from fedloom.submodels.base import View
from fedloom.trace import Trace


def trace_of(plan: Plan, net: Net) -> Trace:
    """One client's round on zeros, in the model's type. Raises CompositionError."""
    trace = plan.trace
    if trace is None:
        raise CompositionError(
            f"{plan.algorithm.method} cannot be deployed: it fails on vectors of zeros, from which "
            "the fields of its messages are read"
        )
    zeros_trace = Trace(*(tree(lambda v: _cast(v, net.dtype), part) for part in trace))
    aggregation = plan.aggregation
    state = aggregation.init(net.init(), 1.0, 1.0)  # clients are told no more than its shape
    up = numbers(zeros_trace.up)
    if aggregation.reads is Reads.RING:  # leaves travel, see engines/stages.py
        up = rec(delta=up.delta, weight=up.weight, **numbers(zeros_trace.averaged)._asdict())
        up = tree(lambda v: v.long() if isinstance(v, Tensor) else v, up)
    return zeros_trace._replace(msg=aggregation.tell(zeros_trace.msg, state), up=up)


def probe_of(plan: Plan, net: Net) -> Rec:
    """What a client sends before round 1, on zeros."""
    return plan.algorithm.probe(
        torch.zeros(net.layout.d, dtype=net.dtype), Oracle(zeros, torch.sum)
    )


def question_of(plan: Plan, trace: Trace) -> tuple[Rec, Rec]:
    """The broadcast before the means of the answers to ask() join it, and an answer, on zeros."""
    if not plan.algorithm.asks:
        return trace.msg, rec()
    full, draws = Oracle(zeros, torch.sum), Draws(0, trace.msg.x)
    layers = lambda *patterns: zeros(trace.msg.x)
    job = Job(1.0, 1.0, 0.1, 0.1, 0.0, 0.0, -1.0, full=full, draws=draws, layers=layers)
    answer = numbers(plan.algorithm.ask(trace.msg, trace.mem, job)[0])
    before = {k: v for k, v in trace.msg._asdict().items() if k not in answer._fields}
    return rec(**before), answer


def refuse(plan: Plan) -> None:
    """Raise CompositionError for what cannot be deployed yet, or would not equal the simulation."""
    alg, private, aggregation, submodel = (
        plan.algorithm,
        plan.private,
        plan.aggregation,
        plan.submodel,
    )
    if private is not None and aggregation.private:
        raise CompositionError(
            f"{private.name} and {aggregation.name} cannot be deployed together: the "
            "noise also moves private layers at the server, which a node does not receive"
        )
    trace = plan.trace
    if submodel is None or submodel.fixed or trace is None:
        return
    memory = alg.client_init(torch.ones_like(trace.msg.x))
    if any(isinstance(v, Tensor) and bool(v.any()) for v in fields(memory).values()):
        raise CompositionError(
            f"{alg.method} and {submodel.name} cannot be deployed together: a client state "
            "begins at the whole model, and a node only has the part that it holds this round"
        )


def refuse_at_server(plan: Plan, fed: Federation, at_nodes: bool, rehearsal: bool) -> None:
    """The same of a server. at_nodes: they measure the model; rehearsal: nothing is released."""
    aggregation, submodel = plan.aggregation, plan.submodel
    if aggregation.private and not (
        rehearsal or aggregation.unkeyed or aggregation.reads is Reads.RING
    ):
        raise CompositionError(
            f"{aggregation.name}: who knows the seed could make the noise again; deploy "
            "the run with `fedloom deploy`, which takes the system's noise"
        )
    if fed.hostile:
        raise CompositionError("an attack is of a simulation: leave out the table 'attack'")
    if plan.personalises and fed.data.test_clients is not None:
        raise CompositionError(
            f"{plan.algorithm.method}: the clients' own models cannot be tested at the server, "
            "which does not have them: give data without test sets of the clients"
        )
    if at_nodes and submodel is not None:
        raise CompositionError(
            f"evaluate = nodes measures the whole model, and with {submodel.name} every "
            "size is measured; take evaluate = server or nobody"
        )


def read(parts: dict[str, bytes], like: Rec, what: str) -> Rec:
    """A dense record that came by wire. Raises WireError unless it is as `like`, and finite."""
    try:
        record = unpack(parts, like)
    except WireError as error:
        raise WireError(f"{what}: {error}") from None
    if not finite(record):
        raise WireError(f"{what} holds values that are not finite")
    return record


def embedded(x: Vec, view: View) -> Vec:
    """The held part of the model (m,) at its places of the whole one (d,), with zeros elsewhere."""
    whole: Vec = view.put(rec(x=x), rec(x=x.new_zeros(view.d))).x
    return whole


def _cast(v: Any, dtype: torch.dtype) -> Any:
    return v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
