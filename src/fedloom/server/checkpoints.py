"""The checkpoints of a run: what they hold of it, when they are written, and the way back."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ..aggregation import Aggregation
from ..core.interrupts import undisturbed
from ..core.vector import rec
from ..errors import CheckpointError
from ..evaluation.settings import Curve
from ..storage.atomic import remedy
from ..storage.run_directory import Checkpoint, RunDirectory, Snapshot
from .arrivals import as_json, restored, versions
from .state import Ledger, State

if TYPE_CHECKING:
    from .rounds import Run

_log = logging.getLogger(__name__)


def snapshot_of(run: Run) -> Snapshot:
    """What a checkpoint holds of a run: its state, and the row that is not written yet."""
    state, clock = run.state, run.state.under_way
    more = {} if clock is None else {"told": versions(clock)}
    more |= {} if state.explored is None else {"sizes": state.explored}
    record = rec(srv=state.srv, gathered=state.aggregation, **state.stages._asdict(), **more)
    extra: dict[str, Any] = {
        "ledger": state.ledger.as_dict(),
        "curve": asdict(state.curve),
        "examples": {str(i): n for i, n in state.trained.items()},
        "population": run.fed.population,
        "unlogged": run.log.pending,
        "ends": state.ends,
    }
    extra |= {} if clock is None else {"clock": as_json(clock)}
    return Snapshot(state.round, record, state.buffers, extra)


def state_of(run: Run, snapshot: Snapshot) -> State:
    """The state of which snapshot_of() made this."""
    record, extra, sizes = snapshot.srv, snapshot.extra, run.evaluator.sizes
    others = {"srv", "gathered", "told", "sizes"}
    stages = {k: v for k, v in record._asdict().items() if k not in others}
    state = State(
        round=snapshot.round,
        srv=record.srv,
        stages=rec(**stages),
        aggregation=record.gathered,
        buffers=snapshot.buffers,
        ledger=Ledger(**extra["ledger"]),
        curve=Curve(**extra["curve"]),
        under_way=restored(record.told, extra["clock"]) if "clock" in extra else None,
        trained={int(i): n for i, n in extra["examples"].items()},
        ends=extra["ends"],
    )
    if sizes is None:
        return state
    x = run.step.broadcast(state).x
    explored = sizes.restored(getattr(record, "sizes", None), x, snapshot.round)
    return state._replace(explored=explored)


class Checkpoints:
    """Saves a run and goes back to it. settings: when, and how many are kept; folder: of the run,
    None: nothing is saved; saved: the round of the newest one.
    """

    def __init__(self, settings: Checkpoint) -> None:
        self.settings, self.saved = settings, -1
        self.folder: RunDirectory | None = None

    def due(self, run: Run, last: float) -> bool:
        """True if a run saves after this round. last: the time of the last one."""
        return self.folder is not None and self.settings.due(run.state.round, last, run.group)

    @undisturbed()
    def save(self, run: Run, final: bool = False) -> None:
        """Write a checkpoint. A full disk is a warning, but an error if `final`."""
        if self.folder is None or run.state.round == self.saved:
            return
        round = run.state.round
        try:
            self.folder.save(snapshot_of(run), run.memory, self.settings.keep)
            self.saved = round
        except OSError as error:
            before = "no other is there yet" if self.saved < 0 else "the one before it is whole"
            message = (
                f"the checkpoint after round {round} could not be written: "
                f"{error.strerror or error}; {before}: {remedy(error)}, then {self.folder.resume}"
            )
            if final or run.plan.aggregation.unkeyed:  # a round that is repeated is paid twice
                raise CheckpointError(message) from error
            _log.warning(message)

    def restore(self, run: Run) -> None:
        """Go back to the newest checkpoint of the folder, or to the beginning if there is none."""
        folder, group = self.folder, run.group
        assert folder is not None
        snapshot = folder.load(run.memory, run.net.device)
        _check_spent(run.plan.aggregation, group.first(folder.least_rounds), snapshot)
        if snapshot is None:
            log = folder.rounds
            if group.first(lambda: log.exists() and log.stat().st_size > 0):
                _log.warning("'%s' has no checkpoint yet: begins again at round 1", folder.path)
            folder.rewind(0, -1)
            run.begin()
            return
        size, unlogged = int(snapshot.extra["log"]), snapshot.extra["unlogged"]
        history = folder.read_rounds(size, snapshot.round - len(unlogged))
        folder.rewind(size, snapshot.round)
        state = state_of(run, snapshot)
        now, curve = run.evaluator.curve, state.curve
        if now.ema != curve.ema:
            message = "evaluate.ema stays %g: the moving averages until now were made with it"
            _log.warning(message, curve.ema)
        curve = replace(curve, higher_is_better=now.higher_is_better)
        run.state = state._replace(curve=curve)
        self.saved = snapshot.round
        for row in history:  # no warning twice
            run.log.monitor.see(row)
            run.log.selection.see(row)
        run.log.begin(history + unlogged, len(history))

    def before(self, run: Run, round: int) -> list[dict[str, Any]]:
        """Go to the newest checkpoint before this round (from 1), or to the beginning if none is
        kept -> all rows of the log. From now on the run's folder is left alone.
        """
        folder = self.folder
        assert folder is not None
        rows, snapshot = folder.read_log(), folder.load(run.memory, run.net.device, before=round)
        self.folder = None
        if snapshot is None:
            run.begin()
            return rows
        run.state = state_of(run, snapshot)
        if len(rows) < snapshot.round:
            rows += snapshot.extra["unlogged"]
        run.log.begin(rows[: snapshot.round], snapshot.round)
        return rows


def _check_spent(aggregation: Aggregation, rounds: int, snapshot: Snapshot | None) -> None:
    """Raise CheckpointError if a run with noise that cannot be made again would go back to a
    checkpoint, or its beginning, although more rounds are done.
    """
    saved = 0 if snapshot is None else snapshot.round
    if aggregation.unkeyed and rounds > saved:
        raise CheckpointError(
            f"this private run has done {rounds} rounds, and its newest whole checkpoint has "
            f"{saved}: the others would be paid twice; put back the newest checkpoint from a "
            "backup, or begin another run"
        )
