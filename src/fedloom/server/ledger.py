"""The costs of a run: bytes by message field, steps, gradients, seconds."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.arithmetic import average, plain_number
from ..engines.client_round import ClientCost
from ..engines.evaluation import Score
from ..errors import ConfigError

_log = logging.getLogger(__name__)
Row = dict[str, Any]


@dataclass
class Ledger:
    """Totals since round 1; bytes are those of the messages' own encoding (fedloom.core.wire)."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    client_rounds: int = 0
    answers: int = 0
    steps: int = 0
    gradients: int = 0
    loss_values: int = 0  # losses without a gradient
    seconds: float = 0.0
    simulated: float = 0.0  # simulated seconds, 0 without a device profile

    def add(
        self,
        stats: Iterable[ClientCost],
        seconds: float,
        simulated: float = 0.0,
        others: Iterable[ClientCost] = (),
    ) -> None:
        """One more round. others: of candidates that did not take part."""
        for cost in stats:
            self._pay(cost)
            self.client_rounds += 1
            self.answers += cost.answered
            self.steps += cost.steps
        for cost in others:
            self._pay(cost)
        self.seconds += seconds
        self.simulated += simulated

    def _pay(self, cost: ClientCost) -> None:
        for name, count in cost.bytes_down.items():
            self.down[name] = self.down.get(name, 0) + count
        for name, count in cost.bytes_up.items():
            self.up[name] = self.up.get(name, 0) + count
        self.gradients += cost.gradients
        self.loss_values += cost.values

    @property
    def bytes_down(self) -> int:
        """All bytes from the server to clients."""
        return sum(self.down.values())

    @property
    def bytes_up(self) -> int:
        """All bytes from clients to the server."""
        return sum(self.up.values())

    @property
    def traffic(self) -> int:
        """All bytes of both directions."""
        return self.bytes_down + self.bytes_up

    def means(self, history: list[Row], name: str) -> Iterator[tuple[int, float, int, float]]:
        """Of every row with a moving average of this name: round, average, bytes and seconds until
        then.
        """
        ways = "bytes_down", "bytes_up"  # these and seconds are in no row where they are secret
        sums = [(sum(row.get(way, 0) for way in ways), row.get("seconds", 0.0)) for row in history]
        # the costs before round 1 are in no row
        sent = self.traffic - sum(n for n, _ in sums)
        seconds = self.seconds - math.fsum(s for _, s in sums)
        for row, (more, longer) in zip(history, sums, strict=True):
            sent, seconds = sent + more, seconds + longer
            if name in row:
                yield row["round"], row[name], sent, seconds

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return asdict(self)


def skipped(
    stats: list[ClientCost], round: int, names: Sequence[str] = (), explained: bool = False
) -> Row:
    """The clients whose updates are left out; with a warning that they were not finite, unless the
    engine has explained it.
    """
    out = [s.client for s in stats if not s.answered]
    if not out:
        return {}
    called = [names[i] for i in out] if names else []
    some = ", ".join(map(str, (called or out)[:10])) + (", ..." if len(out) > 10 else "")
    if not explained:
        _log.warning("round %d: left out, as not finite: the updates of clients %s", round, some)
    return {"skipped": out} | ({"skipped_names": called} if called else {})


def row_of(
    stats: list[ClientCost],
    others: list[ClientCost],
    round: int,
    named: bool,
    names: Sequence[str] = (),
    explained: bool = False,
) -> Row:
    """A round's columns about its clients. others: candidates that did not take part; named:
    whether the clients are named, as where more than a draw decides who takes part. names: of all
    clients, if they have some; explained: see skipped().
    """
    listed: Row = {"clients": sorted(s.client for s in stats)} if named else {}
    if named and names:
        listed["client_names"] = [names[client] for client in listed["clients"]]
    answered = [s for s in stats if s.answered]
    losses = [s.loss for s in answered if s.loss is not None]
    values = sum(s.values for s in (*stats, *others))
    return {
        "cohort": len(stats),
        **listed,
        "answered": len(answered),
        **skipped(stats, round, names, explained),
        "train_loss": average(losses) if losses else None,
        "steps": sum(s.steps for s in stats),
        "gradients": sum(s.gradients for s in stats),
        **({"loss_values": values} if values else {}),  # without a gradient
    }


def own_columns(found: Any, row: Row, whose: str) -> Row:
    """found, a user's columns for a row that has none of these names, with Python's numbers. Raises
    ConfigError.
    """
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigError(
            f"{whose} must give numbers by their names, {{'norm': 0.5}}, got {found!r}"
        )
    if taken := sorted(found.keys() & row.keys()):
        raise ConfigError(f"{whose}: a round has a column '{taken[0]}' already; rename it")
    made = {name: plain_number(value) for name, value in found.items()}
    for name, value in made.items():
        if value is not None and not isinstance(value, int | float | str):
            raise ConfigError(f"{whose}: column '{name}' must be a number, got {value!r}")
    return made


def bytes_of(way: str, now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """A round's bytes: in all, and by field."""
    moved = {name: count - before.get(name, 0) for name, count in now.items()}
    fields = {f"bytes_{way}.{name}": count for name, count in moved.items() if count}
    return {f"bytes_{way}": sum(moved.values()), **fields}


def squares(stats: list[ClientCost]) -> dict[str, float]:
    """The means over the updates of ||delta||^2 and ||e||^2, if delta is compressed: the error
    norms of CFedAvg's figures.
    """
    found = [s.squares for s in stats if s.squares is not None]
    if not found:
        return {}
    means = [average(v) for v in zip(*found, strict=True)]
    return {"delta_square": means[0], "residual_square": means[1]}


def put(row: Row, part: str, score: Score, metrics: dict[str, Any]) -> None:
    """Write the loss and the metrics of a score as columns."""
    row[f"{part}_loss"] = score.loss / max(score.examples, 1)
    row.update({f"{part}_{k}": score.mean(k, metrics[k]) for k in score.values})
