"""Engines of one process, and the reference engine: one client after another."""

from __future__ import annotations

from ..core.net import Net
from ..federation.federation import Federation
from ..plan import Plan
from .base import keep_memory
from .client_results import RangeResult, Request, TrainTask
from .client_round import Client
from .ranges import Clients


class InProcess:
    """An engine that runs clients in this process. A subclass's open() sets them."""

    _clients: Clients

    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """See Engine.map."""
        return self._clients.map(request, task)

    def close(self) -> None:
        """There is nothing to release."""


class Serial(InProcess):
    """One client after another. onednn: with large products of linear layers in oneDNN."""

    name = "serial"
    onednn = False  # also of an engine of a user's own, built on this one

    def __init__(self, onednn: bool = False) -> None:
        self.onednn = onednn

    @property
    def text(self) -> str:
        """The engine as a configuration writes it."""
        return "serial+onednn" if self.onednn else "serial"

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run."""
        keep_memory()
        net.onednn = self.onednn and fed.local.dp is None  # single examples are too small for it
        self._clients = Clients(plan, fed, net, client=self.client(plan, fed, net))

    def client(self, plan: Plan, fed: Federation, net: Net) -> Client:
        """What does the work of each client."""
        return Client(plan, fed, net)
