"""The reference engine: one client after another, in this process."""

from __future__ import annotations

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..federation.federation import Federation
from ..plan import Plan
from .base import keep_memory, one_thread
from .client_round import Client, RangeResult
from .evaluation import Score, scores_of
from .questions import ask_range, probe_range


class Serial:
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
        net.onednn = self.onednn
        self._plan, self._fed, self._net = plan, fed, net
        self._client = Client(plan, fed, net)

    def round(
        self,
        msg: Rec,
        buffers: Vec,
        memories: dict[int, Rec],
        cohort: list[int],
        round: int,
        first: int = 0,
        scale: float = 1.0,
    ) -> RangeResult:
        """Train a cohort, or a range of one."""
        with one_thread(self._fed.local.precision):
            return self._client.run_range(msg, buffers, memories, cohort, round, first, scale)

    def probe(self, x: Vec, buffers: Vec, clients: list[int], first: int = 0) -> RangeResult:
        """Ask clients once before round 0."""
        with one_thread(self._fed.local.precision):
            return probe_range(self._client, x, buffers, clients, first)

    def ask(
        self,
        msg: Rec,
        buffers: Vec,
        memories: dict[int, Rec],
        cohort: list[int],
        round: int,
        first: int = 0,
        losses: bool = False,
    ) -> RangeResult:
        """Ask a cohort before its local steps."""
        with one_thread(self._fed.local.precision):
            return ask_range(self._client, msg, buffers, memories, cohort, round, first, losses)

    def scores(self, x: Vec, buffers: Vec, inputs: Tensor, targets: Tensor) -> list[Score]:
        """The loss and the metrics of a model on data."""
        with one_thread():
            self._net.load_buffers(buffers)
            return scores_of(self._plan, self._fed, self._net, x, inputs, targets)

    def close(self) -> None:
        """There is nothing to release."""
