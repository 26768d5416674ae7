"""Runs that ranks share out, and what one process makes of them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

from cases import CASES
from fedloom import Checkpoint, Evaluation, Local
from fedloom.algorithms import Scaffold
from fedloom.checks.tiny_federation import Trial, finish
from fedloom.checks.tiny_federation import run as alone
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.engines import Serial
from fedloom.engines.client_results import RangeResult, Request, TrainTask
from fedloom.errors import ClientError
from fedloom.storage.rank_states import RankStates
from tiny import clusters, same, small

# {case: engine}, of each kind; dp_accounting is an extra, and these do without it
CUT = {
    "scaffold": "serial",
    "fafed": "vectorised:2",
    "stem": "serial",
    "fiarse": "serial",
    "way down, both": "vectorised:1",
    "churn, forgetting": "serial",
    "a huge entry": "serial",
    "Ditto, tested": "serial",
    "krum": "serial",
    "drawing": "serial",
    "late, scaffold": "vectorised:1",
}
ALL = {
    name: CUT.get(name, "serial")
    for name in CASES
    if not name.startswith(("dp", "discrete", "private"))
}


def differing(name: str) -> list[str]:
    """Run a case on all ranks and alone -> what is not equal at this rank."""
    make, engine = CASES[name].make, ALL[name]
    ours = make(engine=engine)
    ours.run()
    loop, group = ours.loop, ours.loop.group
    states = loop.memory
    assert isinstance(states, RankStates) and group.size == int(os.environ["WORLD_SIZE"])
    here = states.states.get(range(loop.fed.population))
    loop.memory = states.states
    mine, ref = finish(loop), alone(make(engine=engine))
    out = [f for f in ("up", "down", "history") if getattr(mine, f) != getattr(ref, f)]
    out += [] if same(mine.srv, ref.srv) else ["the server state"]
    out += [f"the state of client {i}" for i, row in here.items() if not same(row, ref.memory[i])]
    held = group.gather(sorted(here))
    if sorted(i for some in held for i in some) != sorted(ref.memory):
        out.append(f"which clients have a state: {held} and {sorted(ref.memory)}")
    return out


# ------------------------------------------------------------------------------------ to be stopped
class _Stopping(Serial):
    """Something happens at this rank in one round."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__()
        self.what, self.at = what, at

    def map(self, what: Request, task: TrainTask) -> RangeResult:
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            self._happens(task.round)
        results = super().map(what, task)
        if self.what == "slow" and task.round == self.at:
            time.sleep(1.5)
            print(f"slowest: {time.time()}", file=sys.stderr)
        return results

    def _happens(self, now: int) -> None:
        if self.what == "full" and now in (self.at, self.at + 2):  # for two rounds
            limit = 10 if now == self.at else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if now != self.at:
            return
        if self.what == "fail":
            raise LookupError("a part of my own failed")
        if self.what == "client":
            raise ClientError("the loss of client 3 is wrong")
        if self.what in ("kill", "term"):
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM}[self.what])
            time.sleep(0.1)


def stateful(rounds: int, *options: str) -> Trial:
    """SCAFFOLD with residuals, a checkpoint after every round. options: "fail:RANK:ROUND", and the
    same with client, kill, term, slow, or full: that rank can write no file for two rounds.
    """
    exp = small(
        Scaffold(),
        data=clusters(sizes=(1, 3, 5, 8, 11, 2, 13, 4, 6)),
        rounds=rounds,
        cohort=5,
        local=Local(epochs=1.5, batch=4, lr=0.1),
        compress=Link(FieldCodec(TopK(ratio=0.2), Residual())),
        checkpoint=Checkpoint(every_rounds=1, every_seconds=None),
        evaluate=Evaluation(every=2),
    )
    for option in options:
        what, rank, at = option.split(":")
        if rank == os.environ.get("RANK"):
            exp.engine = _Stopping(what, int(at))
    return exp
