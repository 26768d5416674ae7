"""The loops that people write by hand, which fedloom's rounds are measured against: FedAvg with
shuffled batches, weights by number of examples, and one mean; and how calls are timed.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloom.data import FederatedData
from fedloom.federation.local import Local

K = TypeVar("K")


def seconds(calls: Mapping[K, Callable[[], object]], repeats: int) -> dict[K, list[float]]:
    """Seconds of every call, one of each after the other, so that a busy minute of the machine
    meets all of them; the first turn is left out.
    """
    times: dict[K, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: found[1:] for name, found in times.items()}


class Loop(Protocol):
    """A hand-written loop."""

    def round(self, cohort: list[int]) -> None:
        """One round of FedAvg."""


class Plain:
    """Anybody's first loop: autograd, a step per parameter, two threads."""

    threads, foreach, format = 2, False, torch.contiguous_format

    def __init__(self, module: nn.Module, data: FederatedData, local: Local) -> None:
        self.module = copy.deepcopy(module)
        if data.inputs.ndim == 4:
            self.module = self.module.to(memory_format=self.format)
        self.inputs, self.targets, self.local = data.inputs, data.targets, local
        self.params = list(self.module.parameters())
        self.start = [p.detach().clone() for p in self.params]
        self.loss = nn.CrossEntropyLoss()
        self.own = [data.clients.of(i) for i in range(data.clients.count)]

    def round(self, cohort: list[int]) -> None:
        """One round of FedAvg: a pass (or several), or `steps` batches, over shuffled data."""
        torch.set_num_threads(self.threads)
        totals, weights = self.part(cohort)
        with torch.no_grad():
            for start, total in zip(self.start, totals, strict=True):
                start.copy_(total / weights)

    def part(self, cohort: list[int]) -> tuple[list[Tensor], float]:
        """The sums of these clients' weighted models, and of their weights."""
        totals, weights = [torch.zeros_like(p) for p in self.start], 0.0
        self.module.train()
        for i in cohort:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.start)
            for index in self.batches(i):
                self.step(index)
            weights += (weight := float(len(self.own[i])))
            with torch.no_grad():
                torch._foreach_add_(totals, self.params, alpha=weight)
        return totals, weights

    def batches(self, i: int) -> list[Tensor]:
        """A client's batches of a round."""
        own, size, steps = self.own[i], self.local.batch or len(self.own[i]), self.local.steps
        out: list[Tensor] = []
        while len(out) < (steps or 1):
            passes = 1 if steps else int(self.local.epochs or 1)
            for _ in range(passes):
                out += own[torch.randperm(len(own))].split(size)
        return out[: steps or len(out)]

    def step(self, index: Tensor) -> None:
        """One step on these examples."""
        inputs = self.inputs[index]
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.format)
        loss = self.loss(self.module(inputs), self.targets[index])
        grads = torch.autograd.grad(loss, self.params)
        with torch.no_grad():
            if self.foreach:
                torch._foreach_add_(self.params, grads, alpha=-self.local.lr)
            else:
                for p, g in zip(self.params, grads, strict=True):
                    p.add_(g, alpha=-self.local.lr)


class Engineer(Plain):
    """What a good engineer makes of it: channels-last images, updates of all parameters at once."""

    foreach, format = True, torch.channels_last


class GradientsOnly(Engineer):
    """No loop: the gradients of a round alone, always of the same examples, which lie ready. What
    FedAvg computes cannot take less with this torch on this processor.
    """

    def part(self, cohort: list[int]) -> tuple[list[Tensor], float]:
        """As many gradients as these clients compute."""
        self.module.train()
        ready: dict[int, tuple[Tensor, Tensor]] = {}
        for i in cohort:
            for index in self.batches(i):
                if len(index) not in ready:
                    inputs = self.inputs[index]
                    if inputs.ndim == 4:
                        inputs = inputs.contiguous(memory_format=self.format)
                    ready[len(index)] = inputs, self.targets[index]
                inputs, targets = ready[len(index)]
                torch.autograd.grad(self.loss(self.module(inputs), targets), self.params)
        return self.start, 1.0


def _serve(pipe: Any, kind: type[Engineer], *parts: Any) -> None:
    torch.set_num_threads(1)
    loop = kind(*parts)
    with contextlib.suppress(EOFError):  # who asks has ended
        while True:
            loop.start, cohort = pipe.recv()
            pipe.send(loop.part(cohort))


class TwoProcesses(Engineer):
    """The engineer's loop in two processes of one thread, each with half of the cohort."""

    kind: type[Engineer] = Engineer

    def __init__(self, module: nn.Module, data: FederatedData, local: Local) -> None:
        super().__init__(module, data, local)
        data.inputs.share_memory_()
        data.targets.share_memory_()
        make = multiprocessing.get_context("spawn")
        self.pipes = []
        for _ in range(2):
            ours, theirs = make.Pipe()
            parts = (theirs, self.kind, module, data, local)
            make.Process(target=_serve, args=parts, daemon=True).start()
            self.pipes.append(ours)

    def part(self, cohort: list[int]) -> tuple[list[Tensor], float]:
        """Both halves, added up."""
        for k, pipe in enumerate(self.pipes):
            pipe.send((self.start, cohort[k::2]))
        (totals, weights), (more, others) = (pipe.recv() for pipe in self.pipes)
        torch._foreach_add_(totals, more)
        return totals, weights + others


class Floor(TwoProcesses):
    """Nothing but the gradients, in two processes; and the exchange of two models."""

    kind = GradientsOnly


class Vmapped:
    """The whole cohort as one computation, for clients of equal size: forty lines of torch.func."""

    def __init__(self, module: nn.Module, data: FederatedData, local: Local) -> None:
        self.module, self.data, self.local = copy.deepcopy(module), data, local
        self.start = {k: v.detach().clone() for k, v in self.module.named_parameters()}
        self.own = torch.stack([data.clients.of(i) for i in range(data.clients.count)])
        loss = nn.CrossEntropyLoss()

        def value(params: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            found: Tensor = loss(functional_call(self.module, params, (inputs,)), targets)
            return found

        self.grads = vmap(grad(value))

    def round(self, cohort: list[int]) -> None:
        """One round of FedAvg."""
        torch.set_num_threads(2)
        own = self.own[cohort]
        order = torch.rand(own.shape).argsort(1)
        own = own.gather(1, order)
        params = {k: v.expand(len(cohort), *v.shape) for k, v in self.start.items()}
        for index in own.split(self.local.batch or own.shape[1], 1)[: self.local.steps]:
            grads = self.grads(params, self.data.inputs[index], self.data.targets[index])
            params = {k: torch.sub(v, grads[k], alpha=self.local.lr) for k, v in params.items()}
        self.start = {k: v.mean(0) for k, v in params.items()}
