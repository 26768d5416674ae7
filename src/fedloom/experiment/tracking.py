"""The trackers of a run: they see its settings and rows, and cannot harm it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..server.rounds import Run
from ..storage.identity import flatten
from ..trackers import TRACKERS, About, Session, Tracker, numbers
from .result import Result

_log = logging.getLogger(__name__)
_FILE = "trackers.json"  # of a run directory: {kind of tracker: name of its session}


def trackers_of(tracker: Any) -> list[Tracker]:
    """Trackers: one, its name, or several. Raises ConfigError for an unknown name, and for a
    library that is missing.
    """
    several = isinstance(tracker, Sequence) and not isinstance(tracker, str)
    trackers = [] if tracker is None else list(tracker) if several else [tracker]
    trackers = [TRACKERS.make(one) if isinstance(one, str) else one for one in trackers]
    for one in trackers:
        one.check()
    return trackers


class Tracking:
    """Sends the rows of one run to its trackers. A tracker that fails is told nothing more, and one
    warning says so: the run goes on.
    """

    def __init__(
        self, trackers: Sequence[Tracker], config: Mapping[str, Any], label: str, run: Run
    ) -> None:
        self._trackers: dict[str, Tracker] = {}
        for tracker in trackers if run.group.rank == 0 else ():
            kind = type(tracker).__name__
            same = sum(type(one) is type(tracker) for one in self._trackers.values())
            self._trackers[f"{kind} {same + 1}" if same else kind] = tracker
        self._config, self._label, self._run = config, label, run
        self._open: dict[str, Session] = {}
        self._session_names: dict[str, str] = {}
        self.summary: Mapping[str, Any] | None = None

    def __enter__(self) -> Tracking:
        """Open every session; of a resumed run, the one of the earlier rounds."""
        if self._trackers:
            self._run.log.watching.append(self._update)
        folder = self._run.checkpoints.folder
        if folder is not None and self._run.state.round > 0 and (folder.path / _FILE).is_file():
            self._session_names = folder.read_object(_FILE)
        for kind, tracker in self._trackers.items():
            self._safely(kind, self._begin, kind, tracker)
        return self

    def record_result(self, result: Result) -> Result:
        """The result of a run that came to its end, whose summary is sent at the close."""
        self.summary = result.summary
        return result

    def _begin(self, kind: str, tracker: Tracker) -> None:
        import tomli_w

        run = self._run
        seed, folder = run.fed.seed, run.checkpoints.folder
        config = dict(self._config)
        info = About(
            name=f"{self._label}-seed{seed}" if folder is None else folder.path.resolve().name,
            label=self._label,
            settings=flatten(config),
            text=tomli_w.dumps(config),
            folder=None if folder is None else folder.path,
            round=run.state.round,
            known=self._session_names.get(kind),
        )
        self._open[kind] = session = tracker.open(info)
        self._session_names[kind] = session.name
        if folder is not None:
            folder.write_json(_FILE, self._session_names)
        for row in run.log.history:  # a stop may have come between a row and its tracker
            session.log(numbers(row))

    def _update(self, row: Mapping[str, Any]) -> None:
        """Send a round's row."""
        values = numbers(row)
        for kind, session in list(self._open.items()):
            self._safely(kind, session.log, values)

    def __exit__(self, *_: object) -> None:
        """Close every session."""
        ends = None if self.summary is None else _ends(self.summary)
        for kind, session in list(self._open.items()):
            self._safely(kind, session.end, ends)
        self._open = {}

    def _safely(self, kind: str, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # whatever a library raises: the run does not depend on it
            self._open.pop(kind, None)
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _log.warning("tracker %s failed, and is told nothing more: %s", kind, why)


def _ends(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary: also the values of the best and of the last evaluation."""
    values = {k: v["value"] for k, v in summary.items() if k in ("best", "last") and v}
    return numbers({**summary, **values})
