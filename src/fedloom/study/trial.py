"""A run of a study: its settings and folder, what became of it, and how it goes on; and many runs,
one after the other or several at once, each in a process that keeps its data.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from ..config import Config, resolve
from ..core.interrupts import TimeUpError, stoppable
from ..data import FederatedData
from ..engines import is_auto
from ..errors import ClientError, ConfigError, FedloomError
from ..report.runs import Metric, load_run
from ..report.runs import Run as Result
from ..storage.atomic import write_atomic
from ..storage.identity import bits_of, digest, run_digest
from ..storage.manifest import is_finished, read_object
from ..storage.run_directory import RunDirectory

FAILURE = "failure.txt"  # in the folder of a run that did not finish, and will not: the reason
OVER = ("finished", "failed")


class Run(Protocol):
    """A trial, or a run of a paper's table. title: for progress; rounds: in all."""

    @property
    def title(self) -> str: ...
    @property
    def rounds(self) -> int: ...
    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True, eq=False)
class Trial:
    """One run. choice: {setting: its value, as it was typed}."""

    choice: Mapping[str, str]
    seed: int
    config: Config
    folder: Path

    @property
    def title(self) -> str:
        """What it is, for progress."""
        return f"{self.folder.parent.name}: {as_words({**self.choice, 'seed': str(self.seed)})}"

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return int(self.config.values["rounds"])


def as_words(choice: Mapping[str, str]) -> str:
    """A choice as it is typed.

    >>> as_words({"local.lr": "0.1", "cohort": "4"})
    'local.lr=0.1 cohort=4'
    """
    return " ".join(f"{key}={value}" for key, value in choice.items())


def trial_in(
    folder: Path, source: str | Path, common: Sequence[str], choice: Mapping[str, str], seed: int
) -> Trial:
    """A trial in a folder below `folder`, named by the tried values and a hash of all settings that
    decide the numbers. shared: changes before the choice. Raises ConfigError.
    """
    pairs = [f"{key}={value}" for key, value in choice.items()]
    config = resolve(source, [*common, *pairs, f"seed={seed}"])
    words = [re.sub(r"[^\w.=+-]+", "-", re.sub(r"^[^=]*\.", "", pair)) for pair in pairs]
    name = f"{'_'.join(words)[:80].strip('-')}-seed{seed}-{run_digest(config.values)[:8]}"
    return Trial(choice, seed, config, folder / name)


class DataCache:
    """The data of the last run, kept for the next one that shares them."""

    def __init__(self) -> None:
        self._key = ""
        self._data: FederatedData | None = None

    def of(self, config: Config) -> FederatedData:
        """The data of a configuration. Raises ConfigError or DataError."""
        values = config.values
        seed = values["seed"] if "tests" in values["data"] else None  # of clients' test sets
        key = digest([values["data"], values["dtype"], seed])
        if key != self._key or self._data is None:
            self._key, self._data = "", None  # the old ones first, for both may not fit
            self._key, self._data = key, config.data()
        return self._data


def check_all(trials: Sequence[Trial], cache: DataCache | None = None) -> None:
    """Build every combination that has not begun, with its data and its model, and train nothing:
    so errors come now and not hours later. Raises ConfigError, naming the combination.
    """
    keys, cache = set[tuple[Any, ...]](), cache or DataCache()
    for trial in trials:
        key = (trial.folder.parent, *trial.choice.values())
        if key in keys or state_of(trial.folder) != "new":
            continue
        keys.add(key)
        try:
            experiment = trial.config.experiment(data=cache.of(trial.config))
            experiment.engine = "serial" if is_auto(experiment.engine) else experiment.engine
            experiment.build()
        except FedloomError as error:
            raise ConfigError(f"{as_words(trial.choice)}: {error}; nothing was run") from error


def state_of(folder: Path) -> str:
    """ "new", "begun", "finished" or "failed"."""
    if (folder / FAILURE).is_file():
        return "failed"
    if is_finished(folder, read_object(folder, "summary.json")):
        return "finished"
    return "begun" if (folder / "config.toml").is_file() else "new"


def run_trial(trial: Run, progress: bool = False, **more: Any) -> str:
    """Run a trial, continue it in the engine it began with, or skip it if it is over -> its state.
    A run whose client fails is a result too: the reason stays in its folder. Raises any other
    error. more: as of Config.experiment.
    """
    state, config = state_of(trial.folder), trial.config
    if state in OVER:
        return state
    if state == "begun":
        engine = str(RunDirectory(trial.folder).read_config().get("engine", "serial"))
        if bits_of(engine) != bits_of(str(config.values["engine"])):
            config = replace(config, values={**config.values, "engine": engine})
    experiment = config.experiment(**more)
    try:
        go = experiment.resume if state == "begun" else experiment.run
        go(trial.folder, progress=progress)
    except ClientError as error:
        write_atomic(trial.folder / FAILURE, f"{error}\n")
    return state_of(trial.folder)


Say = Callable[[Any], None]  # what a piece of work says before it is done
Work = Callable[[Any, Say], Any]
P = TypeVar("P")
_PATIENCE = 60.0  # seconds that a stopped process has to save its state


class Jobs:
    """Does pieces of work in `count` processes, each on its share of the processors; of one, in
    this process. work: sent there once and called as work(piece, say), a module's function or an
    object of a module's class. This process stops the others with SIGTERM.
    """

    def __init__(self, work: Work, count: int) -> None:
        self._work, self._count = work, count
        self._running: dict[Connection, tuple[Any, Any]] = {}  # its process, and its piece

    def run(
        self, pieces: Sequence[P], begin: Callable[[P], None], on_message: Callable[[P, Any], None]
    ) -> Iterator[tuple[P, Any]]:
        """Yield (piece, its result) as they end. begin(piece) and on_message(piece, text) are
        called here. Raises what a piece raised, or what is raised here, after all others have been
        stopped; and FedloomError for a process that was killed.
        """
        count = min(self._count, len(pieces))
        if count < 2:
            for piece in pieces:
                begin(piece)
                yield piece, self._work(piece, functools.partial(on_message, piece))
            return
        left = list(pieces)[::-1]
        with stoppable():
            try:
                for number in range(count):
                    self._start(number, count)
                for pipe in list(self._running):
                    self._next(pipe, left, begin)
                while self._running:
                    for pipe in cast("list[Connection]", wait(list(self._running))):
                        result = self._read(pipe, on_message)
                        if result is not None:
                            yield result
                            self._next(pipe, left, begin)
            finally:
                self._stop()

    def _start(self, number: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        near_end, far_end = context.Pipe()
        process = context.Process(
            target=_serve, args=(far_end, self._work, number, count), daemon=False
        )
        process.start()
        far_end.close()
        self._running[near_end] = (process, None)

    def _next(self, pipe: Any, left: list[P], begin: Callable[[P], None]) -> None:
        """Give a process its next piece, or let it end."""
        process, _ = self._running[pipe]
        if not left:
            with suppress(OSError):
                pipe.send(None)
            process.join(_PATIENCE)
            pipe.close()
            del self._running[pipe]
            return
        piece = left.pop()
        self._running[pipe] = (process, piece)
        begin(piece)
        pipe.send(piece)

    def _read(self, pipe: Any, on_message: Callable[[P, Any], None]) -> tuple[P, Any] | None:
        """What a process says: the result of its piece, or None before that."""
        process, piece = self._running[pipe]
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            process.join(_PATIENCE)
            raise FedloomError(
                f"a process that ran a job ended (exit code {process.exitcode}), perhaps for want "
                "of memory; take fewer at once, and run the same command again to "
                "resume"
            ) from None
        if kind == "said":
            on_message(piece, value)
            return None
        if kind == "raised":
            raise value
        return piece, value

    def _stop(self) -> None:
        """End all processes; each saves what it runs."""
        for process, _ in self._running.values():
            if process.is_alive():
                process.terminate()
        for pipe, (process, _) in self._running.items():
            pipe.close()
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
        self._running.clear()


def _serve(pipe: Connection, work: Work, number: int, count: int) -> None:
    """What a process does: pieces of work until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops everybody
    _take_share(number, count)
    with suppress(EOFError, OSError, KeyboardInterrupt):  # the parent is gone, or stops this
        while (piece := pipe.recv()) is not None:
            try:
                result = work(piece, lambda value: pipe.send(("said", value)))
            except (FedloomError, OSError) as error:
                pipe.send(("raised", error))
                continue
            pipe.send(("done", result))


def _take_share(number: int, count: int) -> None:
    """Use this process's share of the processors, for engines that start as many."""
    count_each = 1
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        count_each = max(1, len(processors) // count)
        first = number * count_each % len(processors)
        os.sched_setaffinity(0, processors[first : first + count_each])
    if torch := sys.modules.get("torch"):  # the work may need none
        torch.set_num_threads(count_each)


_SHORT, _LEAST = 10.0, 0.01  # seconds of a run: the first is measured again; no run takes less
R = TypeVar("R", bound=Run)


class Observer:
    """What is told how far many runs are, and does nothing. Any may raise TimeUpError."""

    def add(self, runs: Sequence[Run]) -> None:
        """More runs are to come."""

    def begin(self, run: Run) -> None:
        """A run begins, or goes on."""

    def row(self, run: Run, row: Mapping[str, Any]) -> None:
        """A round is done."""

    def end(self, run: Run, state: str) -> None:
        """A run is over: "finished", "failed" or "refused"."""


class Outcome(NamedTuple):
    """What came of a run. why: of a failure; afterwards: what was measured on it."""

    state: str
    why: str = ""
    afterwards: Mapping[str, float] = {}


class RunTrials:
    """Runs a trial, resumes or skips it. warn: whether to say what a run warns of."""

    def __init__(self, warn: bool = True) -> None:
        self.cache, self._warn = DataCache(), warn

    def __call__(self, trial: Run, on_row: Say) -> Outcome:
        """on_row: called with every row of the run."""
        log = logging.getLogger("fedloom")
        level = log.level
        if not self._warn:
            log.setLevel(logging.ERROR)
        try:
            state = run_trial(trial, data=self.cache.of(trial.config), on_round=on_row)
        finally:
            log.setLevel(level)
        failed = state == "failed"
        return Outcome(state, (trial.folder / FAILURE).read_text("utf-8").strip() if failed else "")


def run_all(
    runs: Sequence[R], work: Work, jobs: int = 1, watch: Observer | None = None
) -> Iterator[tuple[R, Outcome]]:
    """(run, what came of it) as they end, `jobs` at once. Raises what Jobs.run raises."""
    watch = watch or Observer()
    watch.add(runs)
    for run, outcome in Jobs(work, jobs).run(runs, watch.begin, watch.row):
        yield run, outcome
        watch.end(run, outcome.state if outcome.state in OVER else "refused")


class Runs:
    """Runs what is missing, `jobs` at once, and keeps what finished. watch: is shown every run.
    What the runs warn of is not said: most of them only try settings.
    """

    def __init__(self, jobs: int, watch: Observer | None = None) -> None:
        self.jobs, self._watch, self._work = jobs, watch, RunTrials(warn=False)
        self._results = dict[Path, Result]()

    def run(self, trials: Iterable[Trial]) -> None:
        """Run what is not over of these. Raises TimeUpError when `watch` does."""
        missing = [trial for trial in trials if state_of(trial.folder) not in OVER]
        for _ in run_all(missing, self._work, self.jobs, self._watch):
            pass

    def result_of(self, trial: Trial) -> Result | None:
        """A finished run; None of another one."""
        if trial.folder not in self._results and state_of(trial.folder) == "finished":
            self._results[trial.folder] = load_run(trial.folder)
        return self._results.get(trial.folder)

    def seconds_of(self, first: Trial, second: Trial) -> float:
        """What a run takes, by the first one; by the second if that was short."""
        duration = self._timed(first)
        again = duration < _SHORT and state_of(first.folder) == "finished"
        return self._timed(second) if again else duration

    def _timed(self, trial: Trial) -> float:
        began = time.monotonic()
        with suppress(TimeUpError):
            self.run([trial])
        rounds = trial.rounds
        if state_of(trial.folder) == "begun":
            rounds = max(1, load_run(trial.folder).rounds.size)
        each = (time.monotonic() - began) * trial.rounds / rounds
        return max(each, seconds(self.result_of(trial)), _LEAST)

    @property
    def cost(self) -> tuple[int, float]:
        """How many runs finished, and their seconds in all."""
        return len(self._results), sum(map(seconds, self._results.values()))

    @property
    def metric(self) -> Metric:
        """What is compared. Raises ConfigError if no run has it, or nobody knows what is better."""
        if not self._results:
            raise ConfigError("no run finished, so that there is nothing to compare")
        metric = next(iter(self._results.values())).metric
        if metric.higher_is_better is None:
            raise ConfigError(
                f"nothing says whether {metric.name} is better higher or lower; run it with "
                "higher_is_better"
            )
        return metric


def seconds(run: Result | None) -> float:
    """What a run took; 0 of none."""
    return 0.0 if run is None else float(run.summary["seconds"] or 0.0)
