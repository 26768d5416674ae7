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

    def __init__(self, there: Simulation) -> None:
        self._sim, self._faults = there, there.faults
        self._box: dict[str, list[Reply]] = {}
        self._sent = 0

    def present(self) -> dict[int, int]:
        return {i: i for i, node in self._sim.nodes.items() if node and not self._apart(i)}

    def _apart(self, i: int) -> bool:
        """Whether a node cannot be reached; it then lasts."""
        if self._faults.comes("split", i):
            self._sim.apart[i] = self._sim.now + 90.0
        return self._sim.apart[i] > self._sim.now

    def push(self, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        names, there = {}, self.present()
        for i, raw in messages.items():
            if i not in there:
                continue
            self._sent += 1
            names[name := f"{self._sim.lives}.{self._sent}"] = i
            if self._faults.comes("lost", f"to {i}"):
                continue
            for _ in range(2 if self._faults.comes("doubled", f"to {i}") else 1):
                came = self._cut(f"to {i}", raw)
                self._sim.later(self._seconds(f"to {i}"), self._deliver, name, i, came)
        return names

    def _deliver(self, name: str, i: int, raw: bytes) -> None:
        said = None if self._apart(i) else self._sim.answer(i, raw)
        if said is None or self._faults.comes("lost", f"from {i}"):
            return
        for _ in range(2 if self._faults.comes("doubled", f"from {i}") else 1):
            back = self._cut(f"from {i}", said)
            self._sim.later(self._seconds(f"from {i}"), self._arrive, name, back)

    def _arrive(self, name: str, raw: bytes) -> None:
        self._box.setdefault(name, []).append(Reply(name, raw))

    def _cut(self, way: str, raw: bytes) -> bytes:
        """The bytes that arrive: TLS lets no others through, but they may come to an early end."""
        return raw[: len(raw) // 2] if self._faults.comes("damaged", way) else raw

    def _seconds(self, way: str) -> float:
        if not self._faults.comes("late", way):
            return 0.05
        return self._faults.draw(f"{way} {self._sim.now}").choice([3.0, 40.0, 130.0, 400.0])

    def pull(self, names: list[str]) -> list[Reply]:
        there = [name for name in names if self._box.get(name)]
        if there and self._faults.comes("unreadable"):
            raise UnreadableError("cut off")
        return [self._box[name].pop(0) for name in there]
