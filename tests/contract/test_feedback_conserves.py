"""Error feedback conserves in whole runs: of every coded field of every method, what the server
read and what the client still keeps add up to what the client computed, through absences and a
resume.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom import Checkpoint
from fedloom.algorithms.registry import make_algorithm
from fedloom.compression.link import Link
from fedloom.server.rounds import Run
from tiny import small

D = 102
# every way in which a field that is coded is added up
METHODS = ["fedavg", "scaffold", "fednova", "feddc", "fedsmoo", "fafed", "mimelite", "scaffnew"]
Sums = dict[tuple[int, str], Tensor]


class Watch:
    """Adds up what clients computed and what the server read, and keeps the last loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.computed: Sums = defaultdict(lambda: torch.zeros(D, dtype=torch.float64))
        self.read: Sums = defaultdict(lambda: torch.zeros(D, dtype=torch.float64))
        self.loop: Any = None
        deliver, until = Link.deliver, Run.until

        def delivered(link: Link, up: Any, state: Any, view: Any, seed: int, *place: Any) -> Any:
            before = {name: getattr(up, name).clone() for name in link.up}
            got = deliver(link, up, state, view, seed, *place)
            for name, value in before.items():
                self.computed[place[-1], name] += value
                self.read[place[-1], name] += getattr(got[0], name)
            return got

        def ran(run: Run, rounds: int) -> Any:
            self.loop = run
            return until(run, rounds)

        patch.setattr(Link, "deliver", delivered)
        patch.setattr(Run, "until", ran)

    def left(self, client: int, name: str) -> Tensor:
        """What a client still keeps of a field."""
        memory = self.loop.memory.get([client])
        found: Tensor = getattr(memory[client].link, name).e
        return found


@pytest.mark.parametrize("name", METHODS)
def test_every_method_conserves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds of 4 of 7 clients, stopped after the second."""
    watch, algorithm = Watch(monkeypatch), make_algorithm(name)

    def experiment(rounds: int) -> Any:
        saving = Checkpoint(every_rounds=1, every_seconds=None)
        parts = {"compress": "topk:0.1", "checkpoint": saving}
        return small(algorithm, torch.float64, rounds=rounds, **parts)

    experiment(2).run(tmp_path / "run")
    experiment(4).resume(tmp_path / "run")
    assert {name for _, name in watch.computed} == set(algorithm.compressible_up)
    for (client, name), total in watch.computed.items():
        found = watch.read[client, name] + watch.left(client, name)
        torch.testing.assert_close(found, total, rtol=0, atol=1e-12)
    assert any(bool(watch.left(*key).any()) for key in watch.computed), "something was held back"
    assert len({client for client, _ in watch.computed}) > 4, "not the same clients every round"
