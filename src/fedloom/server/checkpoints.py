"""The checkpoints of a run: what they hold of it, when they are written, and the way back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..core.interrupts import undisturbed
from ..core.vector import Rec, rec
from ..errors import CheckpointError
from ..storage.atomic import remedy
from ..storage.run_directory import Checkpoint, RunDirectory, State
from .aggregation_columns import check_spent
from .arrivals import as_json, restored, versions
from .evaluation import Curve
from .ledger import Ledger

if TYPE_CHECKING:
    from .rounds import Loop

_log = logging.getLogger(__name__)
Mean = tuple[int, float, int, float]  # of Ledger.means


class Checkpoints:
    """Saves a run and goes back to it. settings: when, and how many are kept; folder: of the run,
    None: nothing is saved; saved: the round of the newest one.
    """

    def __init__(self, settings: Checkpoint) -> None:
        self.settings, self.saved = settings, -1
        self.folder: RunDirectory | None = None

    def due(self, loop: Loop, last: float) -> bool:
        """True if a run saves after this round. last: the time of the last one."""
        return self.folder is not None and self.settings.due(loop.round, last, loop.group)

    @undisturbed()
    def save(self, loop: Loop, final: bool = False, pending: bool = False) -> None:
        """Write a checkpoint. A full disk is a warning, but an error if `final`. pending: also if
        the last row is not evaluated and written; the checkpoint keeps it, and a resumed run does.
        """
        unlogged, under_way = loop.log.pending, loop.chooser.under_way
        if self.folder is None or loop.round == self.saved or (unlogged and not pending):
            return
        extra: dict[str, Any] = {"ledger": loop.ledger.as_dict(), "curve": asdict(loop.curve)}
        extra["population"] = loop.fed.population
        if loop.accounts is not None:
            extra["examples"] = {str(i): n for i, n in loop.accounts.rounds.items()}
        if under_way is not None:
            extra["clock"] = as_json(under_way)
        if unlogged:
            extra["unlogged"] = unlogged
        try:
            state = State(loop.round, _record(loop), loop.buffers, extra)
            self.folder.save(state, loop.memory, self.settings.keep)
            self.saved = loop.round
        except OSError as error:
            before = "no other is there yet" if self.saved < 0 else "the one before it is whole"
            message = (
                f"the checkpoint after round {loop.round} could not be written: "
                f"{error.strerror or error}; {before}: {remedy(error)}, then {self.folder.resume}"
            )
            if final or loop.aggregation.unkeyed:  # a round that is repeated is paid twice
                raise CheckpointError(message) from error
            _log.warning(message)

    def restore(self, loop: Loop) -> None:
        """Go back to the newest checkpoint of the folder, or to the beginning if there is none."""
        folder, group = self.folder, loop.group
        assert folder is not None
        state = folder.load(loop.memory, loop.net.device)
        check_spent(loop.aggregation, group.first(folder.least_rounds), state)
        if state is None:
            log = folder.rounds
            if group.first(lambda: log.exists() and log.stat().st_size > 0):
                _log.warning("'%s' has no checkpoint yet: begins again at round 1", folder.path)
            folder.rewind(0, -1)
            loop.begin()
            return
        size, unlogged = int(state.extra["log"]), state.extra.get("unlogged", [])
        history = folder.read_rounds(size, state.round - len(unlogged))
        folder.rewind(size, state.round)
        self.take(loop, state)
        self.saved, ledger = state.round, Ledger(**state.extra["ledger"])
        means = lambda: ledger.means(history, f"test_{loop.headline}_ema")
        loop.evaluator.curve = _continued(loop.curve, state.extra["curve"], means)
        loop.log.ledger, loop.log.logged = ledger, len(history)
        for row in history:  # no warning twice
            loop.log.watch.see(row)
        loop.log.history = history + unlogged

    def before(self, loop: Loop, round: int) -> list[dict[str, Any]]:
        """Go to the newest checkpoint before this round (from 1), or to the beginning if none is
        kept -> all rows of the log. From now on the run's folder is left alone.
        """
        folder = self.folder
        assert folder is not None
        rows, state = folder.read_log(), folder.load(loop.memory, loop.net.device, before=round)
        self.folder = None
        if state is None:
            loop.begin()
            return rows
        self.take(loop, state)
        loop.log.ledger = Ledger(**state.extra["ledger"])
        if len(rows) < state.round:
            rows += state.extra.get("unlogged", [])
        loop.log.history = rows[: state.round]
        loop.log.logged = state.round
        return rows

    def take(self, loop: Loop, state: State) -> None:
        """Go to the round of a checkpoint, without its history; the client states are there."""
        record, sizes = state.srv, loop.evaluator.sizes
        loop.log.round = state.round
        loop.state = loop.step.continued(record, state.buffers, loop.cohorts)
        if loop.accounts is not None:
            loop.accounts.rounds = {int(i): n for i, n in state.extra["examples"].items()}
        if "clock" in state.extra:
            loop.chooser.under_way = restored(record.told, state.extra["clock"])
        if sizes is not None:
            sizes.restore(getattr(record, "sizes", None), loop.broadcast().x, loop.round)


def _record(loop: Loop) -> Rec:
    """The server's record and states: of stages by their names, of the aggregation, of sub-models
    and of an asynchronous clock if there are any.
    """
    now, sizes, under_way = loop.state, loop.evaluator.sizes, loop.chooser.under_way
    more = {} if not now.aggregation._fields else {"gathered": now.aggregation}
    more |= {} if sizes is None else {"sizes": sizes.state()}
    more |= {} if under_way is None else {"told": versions(under_way)}
    return rec(srv=now.srv, **now.stages._asdict(), **more)


def _continued(asked: Curve, saved: dict[str, Any], means: Callable[[], Iterator[Mean]]) -> Curve:
    """A checkpoint's curve, with the target that is asked for now. means: see Ledger.means."""
    curve = Curve(**saved)
    if asked.ema != curve.ema:
        told = "evaluate.ema stays %g: the moving averages until now were made with it"
        _log.warning(told, curve.ema)
    curve.higher_is_better = asked.higher_is_better
    if asked.target != curve.target:
        curve.aim(asked.target, means())
    return curve
