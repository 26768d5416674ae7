"""What carries messages in the simulation of faults, in the place of Flower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedloom_flower.message_exchange import Reply, UnreadableError

if TYPE_CHECKING:
    from .faults import Simulation


class SimulatedTransport:
    """What carries messages, between one life of the server and the nodes. Each may be lost, late,
    come twice or after a later one, both ways, long after its time too.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._sim, self._faults = simulation, simulation.faults
        self._box: dict[str, list[Reply]] = {}
        self._sent = 0

    def present(self) -> dict[int, int]:
        return {i: i for i, node in self._sim.nodes.items() if node and not self._apart(i)}

    def _apart(self, i: int) -> bool:
        """Whether a node cannot be reached; it then lasts."""
        if self._faults.occurs("split", i):
            self._sim.apart[i] = self._sim.now + 90.0
        return self._sim.apart[i] > self._sim.now

    def push(self, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        names, present = {}, self.present()
        for i, raw in messages.items():
            if i not in present:
                continue
            self._sent += 1
            names[name := f"{self._sim.lives}.{self._sent}"] = i
            if self._faults.occurs("lost", f"to {i}"):
                continue
            for _ in range(2 if self._faults.occurs("doubled", f"to {i}") else 1):
                arrived = self._cut(f"to {i}", raw)
                self._sim.later(self._seconds(f"to {i}"), self._deliver, name, i, arrived)
        return names

    def _deliver(self, name: str, i: int, raw: bytes) -> None:
        answer = None if self._apart(i) else self._sim.answer(i, raw)
        if answer is None or self._faults.occurs("lost", f"from {i}"):
            return
        for _ in range(2 if self._faults.occurs("doubled", f"from {i}") else 1):
            arrived = self._cut(f"from {i}", answer)
            self._sim.later(self._seconds(f"from {i}"), self._arrive, name, arrived)

    def _arrive(self, name: str, raw: bytes) -> None:
        self._box.setdefault(name, []).append(Reply(name, raw))

    def _cut(self, way: str, raw: bytes) -> bytes:
        """The bytes that arrive: TLS lets no others through, but they may come to an early end."""
        return raw[: len(raw) // 2] if self._faults.occurs("damaged", way) else raw

    def _seconds(self, way: str) -> float:
        if not self._faults.occurs("late", way):
            return 0.05
        return self._faults.draw(f"{way} {self._sim.now}").choice([3.0, 40.0, 130.0, 400.0])

    def pull(self, names: list[str]) -> list[Reply]:
        ready = [name for name in names if self._box.get(name)]
        if ready and self._faults.occurs("unreadable"):
            raise UnreadableError("cut off")
        return [self._box[name].pop(0) for name in ready]
