"""fedloom as it comes against every engine by hand, on 24 works: is the default's choice good?

    python benchmarks/grid.py [--work TEXT ...] [--turns 3] [--without E ...] [--apart] [--record F]

Four models (logistic regression, FAFED's Fashion-MNIST network, LEAF's FEMNIST network, a residual
network of 78,042 parameters with group norm) x cohort 5 and 100 x batch 10 (5 steps) and 100 (2
steps), FedAvg; and FedSMOO, SCAFFOLD and top-k of 1 % on the first three, cohort 20, batch 20, but
for top-k on LEAF's network.

Every contender is a process. `auto` runs alone for 30 s (a round at least) and decides meanwhile.
An engine whose first three rounds are all slower than twice auto's pace ends at once, to leave its
memory to the others. Then all do two seconds of rounds in turn (a round at least). A run of n
rounds takes what came before the first round, and what early rounds took beyond the later pace, and
n times the median pace. n is what the best engine by hand does in 30 s, and in 300 s. The table has
the ratio of the default to the best engine by hand for both. With --apart each engine runs alone
for a minute, and the mean of the later half of its rounds is its pace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedloom import Algorithm, Experiment, FedAvg, Local
from fedloom.algorithms import SCAFFOLD, FedSMOO
from fedloom.data import from_arrays, iid
from fedloom.models import cnn_fafed_fashion, cnn_femnist, logistic, resnet8

ALONE = 30.0  # seconds in which auto decides
TURN = 2.0  # seconds of a turn


class Work(NamedTuple):
    """A model, the shape and classes of examples, cohort, batch, steps, method and codec."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    cohort: int
    batch: int
    steps: int
    algorithm: Callable[[], Algorithm] = FedAvg
    compress: str | None = None

    def experiment(self, engine: str) -> Experiment:
        """The work as an experiment: twice as many clients as a cohort has, random examples."""
        torch.manual_seed(0)
        clients, each = 2 * self.cohort, self.batch * self.steps
        inputs = torch.randn(clients * each, *self.shape)
        targets = torch.randint(0, self.classes, (clients * each,))
        return Experiment(
            data=from_arrays(inputs, targets, iid(clients)),
            model=self.model,
            algorithm=self.algorithm(),
            local=Local(steps=self.steps, batch=self.batch, lr=0.01),
            cohort=self.cohort,
            rounds=100_000,
            engine=engine,
            metrics={},
            compress=self.compress,
        )

    def by_hand(self) -> list[str]:
        """The engines that a user could choose."""
        half, whole = -(-self.cohort // 2), self.cohort
        names = ["serial", "workers:2", "serial+onednn", "workers:2+onednn"]
        return [*names, f"vectorised:{whole}", f"workers:2+vectorised:{half}"]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "logistic": (lambda: logistic(784, 10), (784,), 10),
    "fafed": (cnn_fafed_fashion, (1, 28, 28), 10),
    "leaf": (cnn_femnist, (1, 28, 28), 62),
    "resnet8": (lambda: resnet8(10), (3, 32, 32), 10),
}
METHODS: dict[str, dict[str, Any]] = {
    "fedsmoo": {"algorithm": FedSMOO},
    "scaffold": {"algorithm": SCAFFOLD},
    "topk": {"compress": "topk:0.01"},
}
WORKS = {
    f"{name} {cohort} {batch}": Work(*parts, cohort, batch, 5 if batch == 10 else 2)
    for name, parts in MODELS.items()
    for cohort in (5, 100)
    for batch in (10, 100)
} | {
    f"{name} {method}": Work(*MODELS[name], 20, 20, 5, **given)
    for name in ("logistic", "fafed", "leaf")
    for method, given in METHODS.items()
    if (name, method) != ("leaf", "topk")
}


def contender(pipe: Any, work: str, engine: str) -> None:
    """One process: seconds come in, the seconds of every round that began in them go out."""
    if engine != "auto":  # where memory does not last for all, auto stays
        Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")
    try:
        exp = WORKS[work].experiment(engine)
        began = time.perf_counter()
        run = exp.build()
        run.engine.open(run.plan, run.fed, run.net)
        run.begin()
        pipe.send((time.perf_counter() - began, exp.used_engine if engine == "auto" else ""))
    except Exception as error:  # an engine that refuses the work is no contender
        pipe.send((None, str(error)))
        return
    done = 0
    while (seconds := pipe.recv()) is not None:
        rounds: list[float] = []
        first = time.perf_counter()
        while not rounds or time.perf_counter() - first < seconds:
            began = time.perf_counter()
            run.until(done := done + 1)
            rounds.append(time.perf_counter() - began)
        pipe.send(rounds)
    run.engine.close()


class Contender:
    """A process that does rounds when it is told; what it took."""

    def __init__(self, work: str, engine: str) -> None:
        make = multiprocessing.get_context("spawn")
        self.engine = engine
        self.turns: list[list[float]] = []
        self.pipe, theirs = make.Pipe()
        self.process = make.Process(target=contender, args=(theirs, work, engine))
        self.process.start()
        theirs.close()
        self.first: list[float] = []
        self.start, self.said = self._told() or (None, "")

    def _told(self, seconds: float | None = None) -> Any:
        """What it says, once it was told so many seconds; None if it has ended."""
        try:
            if seconds is not None:
                self.pipe.send(seconds)
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            return None

    def do(self, seconds: float) -> list[float]:
        """The seconds of the rounds that began in so many seconds."""
        return self._told(seconds) or []

    @property
    def pace(self) -> float:
        """Seconds a round: the median over turns of the mean in a turn."""
        return float(statistics.median(statistics.mean(turn) for turn in self.turns))

    @property
    def extra(self) -> float:
        """Seconds before the first round, and what first rounds took beyond their later pace."""
        later = statistics.mean(self.first[len(self.first) * 2 // 3 :])
        extra = sum(self.first) - len(self.first) * later if len(self.first) > 2 else 0.0
        return float(self.start) + max(0.0, extra)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ConnectionError):
            self.pipe.send(None)
        self.process.join()


def apart(work: str, without: Sequence[str]) -> dict[str, Any]:
    """One contender after another, which would not fit into memory together -> a line."""
    found = []
    for engine in ("auto", *WORKS[work].by_hand()):
        if not any(word in engine for word in without):
            found.append(one := Contender(work, engine))
            one.first = one.do(2 * ALONE)
            one.turns = [one.first[len(one.first) // 2 :]]
            one.close()
    return line_of(work, found[0], found[1:], dict.fromkeys(without, "left out"))


def measured(work: str, turns: int, without: Sequence[str]) -> dict[str, Any]:
    """All contenders of a work in turn, but for those `without` -> a line of the record."""
    auto = Contender(work, "auto")
    if auto.start is None:
        raise SystemExit(f"{work}: {auto.said}")
    auto.first = auto.do(ALONE)
    pace = statistics.mean(auto.first[len(auto.first) * 2 // 3 :])
    others, out = [], {}
    for engine in WORKS[work].by_hand():
        if any(word in engine for word in without):
            out[engine] = "left out"
            continue
        one = Contender(work, engine)
        if one.start is not None:
            one.first = [seconds for _ in range(3) for seconds in one.do(0.0)]
        if len(one.first) == 3 and min(one.first) <= 2 * pace:
            others.append(one)
            continue
        ended = one.said or "its process ended: out of memory?"
        out[engine] = f"{min(one.first):.3g} s a round" if len(one.first) == 3 else ended
        one.close()
    for _ in range(turns):
        for one in (auto, *others):
            one.turns.append(one.do(TURN))
    for one in (auto, *others):
        one.close()
    return line_of(work, auto, others, out)


def line_of(
    work: str, auto: Contender, others: Sequence[Contender], out: Mapping[str, str]
) -> dict[str, Any]:
    """What was measured, and the default's time to that of the best by hand."""
    line: dict[str, Any] = {"work": work, "took": auto.said, "out": out}
    line["engines"] = {
        one.engine: {"pace": round(one.pace, 5), "extra": round(one.extra, 3)}
        for one in (auto, *others)
    }
    for seconds in (30, 300):
        by_hand = {one.engine: max(1.0, (seconds - one.extra) / one.pace) for one in others}
        best = max(by_hand, key=lambda name: by_hand[name])
        rounds = by_hand[best]
        least = next(one for one in others if one.engine == best)
        ratio = (auto.extra + rounds * auto.pace) / (least.extra + rounds * least.pace)
        line |= {f"best {seconds}": best, f"ratio {seconds}": round(ratio, 3)}
    return line


def main() -> None:
    """Print a line per work, and add it to a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--without", nargs="+", default=[], help="engines with this in their name")
    parser.add_argument("--apart", action="store_true", help="one engine after another, a minute")
    parser.add_argument("--record", type=Path, help="a JSON line per work is added to it")
    options = parser.parse_args()
    print("| work | as it comes takes | best by hand | 30 s | 300 s |\n|:--|:--|:--|--:|--:|")
    for work in options.work:
        load = os.getloadavg()[0]
        if options.apart:
            line = apart(work, options.without)
        else:
            line = measured(work, options.turns, options.without)
        line["load"] = round(load, 2)
        cells = [line["took"], line["best 300"], line["ratio 30"], line["ratio 300"]]
        print(f"| {work} | {' | '.join(map(str, cells))} |", flush=True)
        if options.record:
            with open(options.record, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
