"""Random kills and hostile messages, as many as are asked for; nothing may be lost or get through.

    python benchmarks/soak.py --kills 50 --messages 100000 [--seconds 600] [--seed 0]
        [--record soak.json] [--folder DIR]

Kills: runs with client state, feedback and masks, in every engine, die by SIGKILL at a random
moment, go on, die again, until one ends; its model, server state, history, ledger and clients'
scores must have the bits of the run that nothing stopped. With workers it is the run or one of its
workers that dies. Every process is forked from one that has imported torch and has run nothing.
Messages: valid ones of every codec and of chains, damaged at random, are read as a server would:
each gives a finite vector of the model's length or a WireError, and nothing else.

--record keeps the counts after every run and every batch: the same command goes on with them. Ends
with 1 at the first loss, which it describes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from messages import LAYOUT, codecs, damaged, valid, wrong, wrong_packet

from fedloom import Checkpoint, Evaluation, Experiment, Local, __version__
from fedloom.algorithms import FAFED, Scaffold
from fedloom.checks.tiny_federation import CAPACITIES, SIZES, federation, network
from fedloom.compression.codecs.powersgd import PowerSGD
from fedloom.compression.codecs.sparse import TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.vector import as_bytes, fields, rec
from fedloom.federation.schedules import Exponential, FAFEDTheory
from fedloom.objectives import MOON
from fedloom.storage.atomic import write_atomic
from fedloom.submodels import FIARSE
from fedloom.wrappers import Lookahead

# workers in a fifth of the runs: only their processes have to import torch, for seconds
ENGINES = (*("serial", "vectorised:2") * 4, "workers:2", "workers:2+vectorised:2")
KINDS = ("state", "masks", "theory", "both ways")
ROUNDS = 10
BATCH = 10_000  # messages of one seed
EVERY = 10.0  # seconds between two lines of progress


# ----------------------------------------------------------------------------------------- the runs
def experiment(engine: str, kind: str) -> Experiment:
    """A run of a second that remembers much, and writes a checkpoint after every round.

    state: control variates. masks: those, a look-ahead, MOON's previous models, FIARSE's masks,
    top-k with a residual. theory: FAFED with momentum and top-k on two fields. both ways: PowerSGD
    with its factors, EF21 and a codec down.
    """
    settings: dict[str, Any] = {
        "algorithm": Scaffold(),
        "model": network,
        "data": federation(torch.float32),
        "rounds": ROUNDS,
        "cohort": 4,
        "local": Local(epochs=1, batch=4, lr=0.05, schedule=Exponential(decay=0.99)),
        "seed": 5,
        "engine": engine,
        "device": "cpu",
        "evaluate": Evaluation(every=5),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
        "resident_bytes": 6000,
    }
    schedule = FAFEDTheory(N=len(SIZES), q=4, rho=1.0)
    more: dict[str, dict[str, Any]] = {
        "state": {},
        "masks": {
            "algorithm": Lookahead(inner=Scaffold(), lam=0.5),
            "objective": MOON(),
            "submodel": FIARSE(),
            "capacities": CAPACITIES,
            "compress": FieldCodec(TopK(ratio=0.2), Residual()),
        },
        "theory": {
            "algorithm": FAFED(c=schedule.c),
            "local": Local(steps=4, batch=4, lr=1.0, schedule=schedule, probe_batch=8),
            "compress": FieldCodec(TopK(ratio=0.2), Residual()),
        },
        "both ways": {"compress": Link(FieldCodec(PowerSGD(rank=1), EF21()), down="int8")},
    }
    return Experiment(**(settings | more[kind]))


def digest(result: Any) -> str:
    """All that a run came to, without what a clock gave."""
    state = hashlib.sha256()
    tensors = {**result.model.state_dict(), **fields(result.state)}
    for name, value in tensors.items():
        state.update(name.encode())
        plain = as_bytes(value).numpy().tobytes() if isinstance(value, torch.Tensor) else value
        state.update(plain if isinstance(plain, bytes) else repr(plain).encode())
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    ledger = {k: v for k, v in result.ledger.as_dict().items() if k != "seconds"}
    state.update(json.dumps([rows, ledger, result.clients], sort_keys=True).encode())
    return state.hexdigest()


def go(folder: Path, engine: str, kind: str) -> None:
    """In a process of its own: begin or go on, and at the end write what came of it."""
    os.dup2(os.open(folder.with_suffix(".errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    torch.set_num_threads(1)
    exp = experiment(engine, kind)
    begun = (folder / "config.toml").exists()  # written last: before it there is nothing to resume
    result = exp.resume(folder) if begun else exp.run(folder)
    write_atomic(folder.with_suffix(".digest"), digest(result))


# -------------------------------------------------------------------------------------- the counts
@dataclass
class Counts:
    """What was done; as JSON in the record."""

    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    worker_kills: int = 0
    in_writes: int = 0
    runs: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    batches: int = 0
    seconds: float = 0.0
    loss: str = ""

    @property
    def killed(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    @property
    def read(self) -> int:
        """All messages."""
        return sum(self.messages.values())

    def line(self) -> str:
        """For people."""
        return (
            f"{self.killed:,} kills ({self.worker_kills:,} of workers, "
            f"{self.in_writes:,} amid a write) in {self.runs:,} runs, "
            f"{self.read:,} messages ({self.refused:,} refused), "
            f"{'LOST: ' + self.loss if self.loss else 'nothing lost'}, {self.seconds:,.0f} s"
        )


class Soak:
    """The counts with their record, their clock and their lines of progress."""

    def __init__(self, seed: int, record: Path | None, seconds: float) -> None:
        self.record, self.counts = record, Counts(seed)
        if record is not None and record.is_file():
            found = Counts(**json.loads(record.read_text())["counts"])
            if found.seed != seed:
                sys.exit(f"error: {record} is of --seed {found.seed}; take it, or another record")
            self.counts = found
        self._before, self._began = self.counts.seconds, time.monotonic()
        self._said, self._end = self._began, self._began + seconds

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self._end

    def keep(self) -> None:
        """Write the record, and now and then a line."""
        now = time.monotonic()
        self.counts.seconds = round(self._before + now - self._began, 1)
        if self.record is not None:
            about = {"fedloom": __version__, "torch": torch.__version__}
            counts = vars(self.counts)
            write_atomic(self.record, json.dumps({"counts": counts, **about}, indent=1) + "\n")
        if now - self._said > EVERY:
            self._said = now
            print(self.counts.line(), flush=True)


# ---------------------------------------------------------------------------------------- the kills
def kill(soak: Soak, goal: int, folder: Path, engines: tuple[str, ...]) -> None:
    """Kill runs until there were `goal` kills, or the time is over."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["soak"])
    warm = forks.Process(target=print, args=("soak: begun",))  # starts what all are forked from
    warm.start()
    warm.join()
    whole: dict[tuple[str, str], tuple[str, float]] = {}
    counts = soak.counts
    while counts.killed < goal and not soak.late and not counts.loss:
        draw = random.Random(f"{counts.seed} {counts.runs}")
        engine = engines[counts.runs % len(engines)]
        kind = KINDS[(counts.runs + counts.runs // len(engines)) % len(KINDS)]
        if (engine, kind) not in whole:
            whole[engine, kind] = _undisturbed(forks, folder / "whole", engine, kind)
        wanted, seconds = whole[engine, kind]
        run, died = folder / "run", 0
        while not run.with_suffix(".digest").exists() and not counts.loss:
            late = counts.killed >= goal or soak.late  # then the last run ends in peace
            room = 1.2 * seconds * (1 + died / 8)  # a machine that slows must not kill for ever
            delay = math.inf if late else draw.uniform(0, room)
            died += _once(forks, run, engine, kind, delay, draw, counts)
        _compare(run, wanted, f"{engine}, {kind}, after {died} kills", counts)
        counts.runs += 1
        soak.keep()
        if not counts.loss:
            _clear(run)


def _undisturbed(forks: Any, run: Path, engine: str, kind: str) -> tuple[str, float]:
    """What a run comes to that nothing stops, and its seconds."""
    started = time.monotonic()
    process = forks.Process(target=go, args=(run, engine, kind))
    process.start()
    process.join()
    seconds = time.monotonic() - started
    if not run.with_suffix(".digest").exists():
        sys.exit(f"error: {engine}, {kind}: {run.with_suffix('.errors').read_text()[-2000:]}")
    found = run.with_suffix(".digest").read_text()
    _clear(run)
    return found, seconds


def _once(
    forks: Any,
    run: Path,
    engine: str,
    kind: str,
    delay: float,
    draw: random.Random,
    counts: Counts,
) -> int:
    """Start, and kill after a while -> 1 if something was killed."""
    process = forks.Process(target=go, args=(run, engine, kind))
    process.start()
    only_worker = "workers" in engine and draw.random() < 0.5
    process.join(None if delay == math.inf else delay)
    if draw.random() < 0.5:
        _await_write(process, run)
    if process.exitcode is not None:
        if process.exitcode:
            errors = run.with_suffix(".errors").read_text()[-500:]
            counts.loss = f"{engine}, {kind}: exit {process.exitcode}: {errors}"
        return 0
    workers = _children(process.pid) if only_worker else []
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(workers) if workers else process.pid, signal.SIGKILL)
    counts.kills[engine] = counts.kills.get(engine, 0) + 1
    counts.worker_kills += bool(workers)
    process.join()
    counts.in_writes += any(run.rglob("*.part"))
    return 1


def _await_write(process: Any, run: Path) -> None:
    """Wait for a file that is being written, for a second at most."""
    end = time.monotonic() + 1
    while time.monotonic() < end and process.is_alive():
        with contextlib.suppress(FileNotFoundError):  # a folder that goes meanwhile
            if any(run.rglob(".*.part")):
                return


def _children(pid: int) -> list[int]:
    """The processes that a process has started and that have threads of torch: its workers."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    said = {int(p): Path(f"/proc/{p}/cmdline") for p in found}
    return [p for p, line in said.items() if line.exists() and b"popen_loky" in line.read_bytes()]


def _compare(run: Path, wanted: str, what: str, counts: Counts) -> None:
    file = run.with_suffix(".digest")
    if not counts.loss and file.read_text() != wanted:
        counts.loss = f"{what}: other bits than the run that nothing stopped; see {run}"
    if not counts.loss and list(run.rglob("*.part")):
        counts.loss = f"{what}: unfinished files are left in {run}"


def _clear(run: Path) -> None:
    shutil.rmtree(run, ignore_errors=True)
    for suffix in (".digest", ".errors"):
        run.with_suffix(suffix).unlink(missing_ok=True)


# ------------------------------------------------------------------------------------ the messages
def read(soak: Soak, goal: int) -> None:
    """Read damaged messages until there were `goal`, or the time is over."""
    parts = codecs()
    dtypes = (torch.float32, torch.float64, torch.float16)
    cases = [(n, c, t, list(valid(c, t))) for n, c in parts.items() for t in dtypes]
    every = [raw for *_, found in cases for raw in found]
    link = Link({"delta": FieldCodec(TopK(ratio=0.1))})
    like = rec(delta=torch.zeros(LAYOUT.d), dc=torch.zeros(LAYOUT.d), weight=1.0)
    counts = soak.counts
    while counts.read < goal and not soak.late and not counts.loss:
        draw = random.Random(f"{counts.seed} messages {counts.batches}")
        size, names = min(BATCH, goal - counts.read), collections.Counter(counts.messages)
        for n in range(size):
            name, codec, dtype, found = cases[n % len(cases)]
            raw = damaged(draw.choice(found), draw.choice(every), draw)
            names[name] += 1
            why = wrong(codec, raw, dtype)
            counts.refused += why is None
            if why:
                counts.loss = f"{name}, {dtype}: {why}: {raw.hex()}"
                break
            if n % 20 == 0 and (why := wrong_packet(link, like, raw, draw)):
                counts.loss = f"a packet: {why}: {raw.hex()}"
                break
        counts.messages, counts.batches = dict(names), counts.batches + 1
        soak.keep()


def main(words: list[str] | None = None) -> int:
    """Soak -> exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--folder", type=Path, help="where runs live and die")
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    soak = Soak(given.seed, given.record, given.seconds)
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fedloom-soak-", dir=given.folder))
    kill(soak, given.kills, folder, tuple(given.engines))
    if not soak.counts.loss:
        shutil.rmtree(folder, ignore_errors=True)  # a loss is left to be looked at
        read(soak, given.messages)
    soak.keep()
    print(soak.counts.line())
    return 1 if soak.counts.loss else 0


if __name__ == "__main__":
    import soak  # by its own name, as the processes know it that are forked

    sys.exit(soak.main())
