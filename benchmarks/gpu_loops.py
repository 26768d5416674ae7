"""The loops that people write by hand for a GPU: FedAvg of clients of equal size with their data on
the device. precision: full, tf32 or bf16, as of Local.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence

import torch
from rounds import Work
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloom.data import FederatedData


def new_stream() -> torch.cuda.Stream:
    """A stream on the current device."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's is not
    return stream


class Eager:
    """One client after another, a step at a time."""

    def __init__(self, of: Work, data: FederatedData, device: str, precision: str = "full") -> None:
        torch.manual_seed(0)
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = precision == "tf32"  # type: ignore[attr-defined]  # torch sets it late
        self.of, self.device, self.precision = of, torch.device(device), precision
        self.inputs, self.targets = data.inputs.to(device), data.targets.to(device)
        self.own = torch.stack([data.clients.of(i) for i in range(of.clients)]).to(device)
        self.module, self.loss = of.model().to(device), nn.CrossEntropyLoss()
        self.params = list(self.module.parameters())
        self.start = [p.detach().clone() for p in self.params]
        size = of.local.batch or of.each
        self.steps = of.local.steps or int(of.local.epochs or 1) * -(-of.each // size)

    def orders(self, cohort: Sequence[int]) -> Tensor:
        """The examples of every step, (steps, clients, batch)."""
        size, each = self.of.local.batch or self.of.each, self.of.each
        passes, count = -(-self.steps * size // each), len(cohort)
        orders = [torch.rand(count, each).argsort(1) for _ in range(passes)]
        places = torch.cat(orders, 1)[:, : self.steps * size].to(self.device)
        own = self.own[torch.tensor(cohort).to(self.device)].gather(1, places)
        return own.view(count, self.steps, size).transpose(0, 1)

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        mean: Tensor = self.loss(outputs.float(), targets)
        return mean

    def casting(self) -> contextlib.AbstractContextManager[object]:
        """What a forward pass is computed under."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def step(self, module: nn.Module, params: list[nn.Parameter], index: Tensor) -> None:
        """Move the parameters by a gradient step on these examples."""
        with self.casting():
            outputs = module(self.inputs[index])
        grads = torch.autograd.grad(self.value(outputs, self.targets[index]), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-self.of.local.lr)

    def train(self, cohort: Sequence[int]) -> list[Tensor]:
        """-> the sums of the clients' models."""
        orders, totals = self.orders(cohort), [torch.zeros_like(v) for v in self.start]
        for c in range(len(cohort)):
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.start)
            for k in range(self.steps):
                self.step(self.module, self.params, orders[k, c])
            with torch.no_grad():
                torch._foreach_add_(totals, self.params)
        return totals

    def round(self, cohort: Sequence[int]) -> None:
        """One round of FedAvg."""
        self.start = [v.detach() / len(cohort) for v in self.train(cohort)]


class Graphs(Eager):
    """A client's step as a CUDA graph, a model and a stream for each of the cohort."""

    def __init__(self, of: Work, data: FederatedData, device: str, precision: str = "full") -> None:
        super().__init__(of, data, device, precision)
        size, now = of.local.batch or of.each, torch.cuda.current_stream()
        self.lanes, self.graphs, self.models, self.indices = [], [], [], []
        for _ in range(of.cohort):
            module, side = copy.deepcopy(self.module), new_stream()
            params, index = list(module.parameters()), torch.zeros(size, device=device).long()
            side.wait_stream(now)
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.step(module, params, index)
            now.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):  # each with a workspace of its own
                self.step(module, params, index)
            self.lanes.append(side)
            self.graphs.append(graph)
            self.models.append(params)
            self.indices.append(index)

    def train(self, cohort: Sequence[int]) -> list[Tensor]:
        orders, totals = self.orders(cohort), [torch.zeros_like(v) for v in self.start]
        now = torch.cuda.current_stream()
        for lane, params in zip(self.lanes, self.models, strict=True):
            lane.wait_stream(now)
            with torch.cuda.stream(lane), torch.no_grad():
                torch._foreach_copy_(params, self.start)
        for k in range(self.steps):
            for c, lane in enumerate(self.lanes):
                with torch.cuda.stream(lane):
                    self.indices[c].copy_(orders[k, c])
                    self.graphs[c].replay()
        for lane, params in zip(self.lanes, self.models, strict=True):
            now.wait_stream(lane)
            with torch.no_grad():
                torch._foreach_add_(totals, params)
        return totals


class Vmapped(Eager):
    """The cohort as one computation, a step at a time."""

    def __init__(self, of: Work, data: FederatedData, device: str, precision: str = "full") -> None:
        super().__init__(of, data, device, precision)
        self.names = [name for name, _ in self.module.named_parameters()]
        self.grads = vmap(grad(self.of_one))
        self.many = [v.expand(of.cohort, *v.shape).clone() for v in self.start]
        size = of.local.batch or of.each
        self.index = torch.zeros(of.cohort, size, device=device).long()

    def of_one(self, params: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """A client's loss."""
        named = dict(zip(self.names, params, strict=True))
        with self.casting():
            outputs = functional_call(self.module, named, (inputs,))
        return self.value(outputs, targets)

    def move(self) -> None:
        """A step of all clients on the examples of `index`."""
        inputs, targets = self.inputs[self.index], self.targets[self.index]
        grads = self.grads(self.many, inputs, targets)
        with torch.no_grad():
            torch._foreach_add_(self.many, list(grads), alpha=-self.of.local.lr)

    def train(self, cohort: Sequence[int]) -> list[Tensor]:
        with torch.no_grad():
            for v, start in zip(self.many, self.start, strict=True):
                v.copy_(start.expand_as(v))
        for index in self.orders(cohort):
            self.index.copy_(index)
            self.move()
        return [v.sum(0) for v in self.many]


class VmappedGraph(Vmapped):
    """That step as a CUDA graph."""

    def __init__(self, of: Work, data: FederatedData, device: str, precision: str = "full") -> None:
        super().__init__(of, data, device, precision)
        side, now = new_stream(), torch.cuda.current_stream()
        side.wait_stream(now)
        with torch.cuda.stream(side):
            for _ in range(3):
                super().move()
        now.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=side):
            super().move()

    def move(self) -> None:
        if not hasattr(self, "graph"):
            super().move()
        else:
            self.graph.replay()


LOOPS = {"eager": Eager, "graphs": Graphs, "vmap": Vmapped, "vmap graph": VmappedGraph}
ON_CUDA = ("graphs", "vmap graph")  # they need CUDA
