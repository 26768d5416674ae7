"""The loop a person writes by hand, which speed is measured against: shuffled batches, in-place
steps, one mean.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedloom.data import FederatedData
from fedloom.federation.federation import Federation
from fedloom.federation.local import Local


class PlainLoop:
    """FedAvg; weights by number of examples."""

    def __init__(self, module: nn.Module, data: FederatedData, local: Local, seed: int = 0) -> None:
        self.module, self.fed = copy.deepcopy(module), Federation(data, local, seed)
        self.params = list(self.module.parameters())
        self.start = [p.detach().clone() for p in self.params]
        self.loss = nn.CrossEntropyLoss()
        clients = data.clients
        self.own = [clients.of(i) for i in range(clients.count)]

    def round(self, cohort: list[int]) -> None:
        """One round of FedAvg: a pass, or `steps` batches, over shuffled data."""
        inputs, targets, lr = self.fed.data.inputs, self.fed.data.targets, self.fed.local.lr
        steps, size = self.fed.local.steps, self.fed.local.batch
        totals = [torch.zeros_like(p) for p in self.start]
        weights = 0.0
        self.module.train()
        for i in cohort:
            with torch.no_grad():
                for p, start in zip(self.params, self.start, strict=True):
                    p.copy_(start)
            own = self.own[i]
            for index in own[torch.randperm(len(own))].split(size or len(own))[:steps]:
                loss = self.loss(self.module(inputs[index]), targets[index])
                for p in self.params:
                    p.grad = None
                loss.backward()
                with torch.no_grad():
                    for p in self.params:
                        p.add_(p.grad, alpha=-lr)
            weight = self.fed.weight(i)
            weights += weight
            with torch.no_grad():
                for total, p in zip(totals, self.params, strict=True):
                    total.add_(p, alpha=weight)
        with torch.no_grad():
            for start, total in zip(self.start, totals, strict=True):
                start.copy_(total / weights)
