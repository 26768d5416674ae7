"""Who was asked in a round and who answered, and what becomes of a round with too few updates."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from fedloom.core.parsing import one_line
from fedloom.engines.base import TooFewError
from fedloom.engines.client_round import RangeResult
from fedloom.engines.summation import push
from fedloom.errors import ClientError, WireError

from .message import DeclinedError, LateError, MissingError

_log = logging.getLogger(__name__)
Row = dict[str, Any]


class SpareError(WireError):
    """An update is not needed: enough of the other clients' came."""


_KIND = {LateError: "late", MissingError: "lost", SpareError: "spare", DeclinedError: "declined"}
_REASONS = {  # of those who do not count, but for spare ones
    "lost": "no answer in time",
    "late": "answer for an earlier round",
    "declined": "refused by the node",
    "refused": "refused by the server",
}


class RefusedUpdate(NamedTuple):
    """An update that does not count. round: 0, 1, ..., -1 for the probe; kind: "late", "lost",
    "spare", "declined" by its node, or "refused" for what cannot be read or taken.
    """

    round: int
    client: int
    why: str
    kind: str = "refused"


class Attendance:
    """min_updates: updates that a round needs; redraws: how often a round with fewer is done again
    with other clients; max_failed_rounds: how many rounds in a row may have fewer even so, before
    the run ends. row: what a line of clients.jsonl says of the last round; refused: updates that
    did not count.
    """

    def __init__(self, min_updates: int, max_failed_rounds: int | None, redraws: int) -> None:
        self._min_updates, self._max_failed_rounds = min_updates, max_failed_rounds
        self.redraws, self.refused = redraws, list[RefusedUpdate]()
        self.row: Row = {}
        self._failed_rounds = 0  # rounds in a row with fewer than min_updates
        self._round, self._reported = -1, 0  # counted last; entries of `refused` that are in rows
        self._draws: list[Row] = []  # the rows of this round's draws before
        self._question_row: Row = {}  # of this draw

    def counts(self, round: int) -> bool:
        """Whether a round has not been counted yet."""
        return round != self._round

    def refuse(self, round: int, i: int, error: WireError) -> None:
        """List a client whose update does not count."""
        kind, why = _KIND.get(type(error), "refused"), one_line(str(error))
        self.refused.append(RefusedUpdate(round, i, why, kind))
        _log.warning("round %d: client %d: not counted: %s", round + 1, i, why)

    def note_answers(self, out: RangeResult, round: int) -> None:
        """Note whose answers came before the local steps. Raises TooFewError if none did."""
        clients = [s.client for s in out.stats if s.answered]
        self._question_row = {"questioned": clients}
        if not clients:
            reason = self._too_few(self._row_of(out, round), out, round, kept=False)
            raise TooFewError(reason, out.stats, {}, again=False)

    def conclude(self, out: RangeResult, round: int, kept: bool) -> RangeResult:
        """A round's result; without any update if there are too few. kept: whether updates that
        came stay here for another draw. Raises TooFewError, ClientError.
        """
        row = self._row_of(out, round)
        if len(row["answered"]) >= self._min_updates:
            self._failed_rounds = 0
            self._end(row, round)
            return out
        self._too_few(row, out, round, kept)
        none = RangeResult([], {}, [s._replace(answered=False) for s in out.stats])
        for place in range(len(none.stats)):
            push(none.nodes, 0, place, None)
        return none

    def _too_few(self, row: Row, out: RangeResult, round: int, kept: bool) -> str:
        """A draw with too few updates; if it was the last one -> what is said. Raises TooFewError,
        ClientError.
        """
        updates = row["answered"]
        reason = (
            f"round {round + 1}: {len(updates)} of {len(out.stats)} updates came, fewer than "
            f"min_updates = {self._min_updates}{_why(row)}"
        )
        row |= {"answered": [], "unused": updates}
        if len(self._draws) < self.redraws:
            self._draws.append(row)
            _log.warning("%s: its clients are drawn again", reason)
            lost = [s for s in out.stats if not (s.answered and kept)]
            raise TooFewError(reason, lost, {s.client: s for s in out.stats if s not in lost})
        self._failed_rounds += 1
        if self._failed_rounds == self._max_failed_rounds:
            raise ClientError(
                f"{reason}, and so it was in {self._failed_rounds} rounds in a row; see which "
                "nodes are off, then go on with the run"
            )
        _log.warning("%s: the model stays", reason)
        self._end(row, round)
        return reason

    def _end(self, row: Row, round: int) -> None:
        self.row = {"round": round + 1, **row} | ({"redrawn": self._draws} if self._draws else {})
        self._round, self._draws = round, []

    def _row_of(self, out: RangeResult, round: int) -> Row:
        """Who was asked, who answered, why others did not count; and whose updates were late, lost,
        not needed or refused by their node, if there were any.
        """
        new = [r for r in self.refused[self._reported :] if r.round == round]
        self._reported = len(self.refused)
        cohort = [s.client for s in out.stats]
        answered = [s.client for s in out.stats if s.answered]
        kinds = {r.client: r.kind for r in new if r.client not in answered}
        by_kind = {name: [i for i in cohort if kinds.get(i) == name] for name in _KIND.values()}
        why = {str(r.client): r.why for r in new}
        questioned, self._question_row = self._question_row, {}
        return {"asked": cohort, "answered": answered, "refused": why, **questioned} | {
            name: clients for name, clients in by_kind.items() if clients
        }


def _why(row: Row) -> str:
    """How many did not count for which reason: " (no answer in time: 2)"."""
    counts = {kind: len(row.get(kind, ())) for kind in _REASONS if kind != "refused"}
    others = len(row["answered"]) + len(row.get("spare", ())) + sum(counts.values())
    counts["refused"] = len(row["asked"]) - others
    reasons = "; ".join(f"{_REASONS[kind]}: {count}" for kind, count in counts.items() if count)
    return f" ({reasons})" if reasons else ""


def nobody(round: int) -> Row:
    """The row of a round (from 1) whose draw had no client."""
    return {"round": round, "asked": [], "answered": [], "refused": {}}
