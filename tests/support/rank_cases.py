"""Runs that ranks share out, and what one process makes of them."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fedloom import Checkpoint, Churn, Evaluation, Local
from fedloom.aggregation import CentredClipping, IntegerRing, Krum, NormBound
from fedloom.algorithm import FedAvg
from fedloom.algorithms import FAFED, STEM, Ditto, FedACG, FedLin, Mime, Scaffold
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks.tiny_federation import Trial, finish
from fedloom.checks.tiny_federation import run as alone
from fedloom.compression.codecs import QSGD, TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import Link, Via
from fedloom.engines import Serial
from fedloom.engines.client_results import RangeResult, Request, TrainTask
from fedloom.errors import ClientError
from fedloom.federation.attacks import Alie
from fedloom.federation.choice import PowerOfChoice
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import LogNormal
from fedloom.objectives import MOON
from fedloom.storage.rank_states import RankStates
from fedloom.submodels import FIARSE, FedPer, HeteroFL
from support.own_stages import Noise, Signs
from tiny import clusters, mlp, same, with_tests

SIZES = (1, 3, 5, 8, 11, 2, 13, 4, 6)
Make = Callable[[], Trial]


def trial(algorithm: Any, engine: str = "serial", **changes: Any) -> Trial:
    """Seven of nine clients in each of three rounds: three chunks of three."""
    settings: dict[str, Any] = {
        "model": mlp(),
        "data": clusters(sizes=SIZES),
        "rounds": 3,
        "cohort": 7,
        "local": Local(epochs=1.5, batch=4, lr=0.1),
        "seed": 11,
        "device": "cpu",
        "engine": engine,
    }
    return Trial(algorithm=algorithm, **(settings | changes))


class Spike(Scaffold):
    """Client 4, who has 11 samples, sends one huge entry in rounds 1 and 3."""

    huge = 1e38

    def finish(self, x: Any, loc: Any, msg: Any, mem: Any, job: Any) -> Any:
        up, mem = super().finish(x, loc, msg, mem, job)
        now = torch.as_tensor((job.weight == 11.0) & (job.round != 1))
        spike = torch.zeros_like(x).index_fill(0, torch.tensor([3]), self.huge)
        return up._replace(delta=up.delta + torch.where(now, spike, 0.0)), mem


def _parts() -> dict[str, Make]:
    """Every other axis, and what a round may meet."""
    link = Link(Via(TopK(ratio=0.1), Residual()))
    levels = [0.25, 1.0]
    return {
        "top-k": lambda: trial(Scaffold(), compress=link),
        "ef21": lambda: trial(FedAvg(), compress=Link(Via(TopK(ratio=0.1), EF21()))),
        "down": lambda: trial(FedAvg(), compress=Link(Via(QSGD()), down=QSGD())),
        "heterofl": lambda: trial(FedAvg(), submodel=HeteroFL(), capacities=levels),
        "fiarse": lambda: trial(FedAvg(), submodel=FIARSE(), capacities=levels),
        "moon": lambda: trial(FedAvg(), objective=MOON()),
        "bernoulli": lambda: trial(Scaffold(), cohort=0.5, sampling="bernoulli", rounds=5),
        "asynchronous": lambda: trial(
            Scaffold(),
            clock=Asynchronous(buffer=7, concurrency=9),
            devices=LogNormal(sigma=1.5),
            rounds=5,
        ),
        "churn": lambda: trial(
            Scaffold(), cohort=4, rounds=5, churn=Churn(active=6, every=2, forget=True)
        ),
        "buffers": lambda: trial(FedAvg(), model=_normed(), data=clusters(sizes=[4, 8, 12] * 3)),
        "float64": lambda: trial(
            Scaffold(), model=mlp(torch.float64), data=clusters(torch.float64, sizes=SIZES)
        ),
        "skip": lambda: trial(Spike(), nonfinite="skip"),
        "mime, heterofl": lambda: trial(Mime(), submodel=HeteroFL(), capacities=levels),
        "choice": lambda: trial(FedAvg(), cohort=3, rounds=4, choose=PowerOfChoice(among=6)),
        "fedper": lambda: trial(FedAvg(), private=FedPer(), data=with_tests(clusters(sizes=SIZES))),
        "personal": lambda: trial(Ditto(), data=with_tests(clusters(sizes=SIZES)), cohort=4),
        "poisson": lambda: trial(Scaffold(), cohort=0.2, sampling="poisson", rounds=5),
        "krum": lambda: trial(Scaffold(), aggregation=Krum(several=3)),
        "clipping": lambda: trial(Scaffold(), "vectorised:2", aggregation=CentredClipping()),
        "bound": lambda: trial(Scaffold(), aggregation=NormBound(norm=0.1)),
        "ring": lambda: trial(Scaffold(), aggregation=IntegerRing()),
        "alie": lambda: trial(Scaffold(), attack=Alie(share=0.4)),
        "drawing": _drawing,
        "median": lambda: trial(
            FedAvg(), aggregation="median", model=_normed(), data=clusters(sizes=[4, 8, 12] * 3)
        ),
    }


def _normed() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 3)
    )


class Drawing(torch.nn.Linear):
    """Blurs its inputs whenever it is called."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs + 0.5 * torch.randn_like(inputs))


def _drawing() -> Trial:
    """Three batches of test examples."""
    data = clusters(sizes=SIZES)
    assert data.test_inputs is not None and data.test_targets is not None
    many = torch.cat([data.test_inputs] * 30), torch.cat([data.test_targets] * 30)
    data = dataclasses.replace(data, test_inputs=many[0], test_targets=many[1])
    torch.manual_seed(5)
    return trial(FedAvg(), model=Drawing(5, 3), data=data)


def _cases() -> Iterator[tuple[str, Make]]:
    for name in ALGORITHMS:
        for engine in ("serial", "vectorised:3"):
            kind = "engines"
            yield f"{kind}:{name}, {engine}", lambda n=name, e=engine: trial(make_algorithm(n), e)
    for name, make in _parts().items():
        yield f"parts:{name}", make
    yield "own:signs", lambda: trial(Scaffold(), stages=(Signs(), Noise()))
    yield "own:noise", lambda: trial(FedAvg(), "vectorised:3", stages=(Noise(),), compress="qsgd")
    yield "workers:scaffold", lambda: trial(Scaffold(), "workers:2")
    yield "cut:scaffold", lambda: trial(Scaffold())
    yield "cut:fafed", lambda: trial(FAFED(), "vectorised:3", weighting="uniform")
    yield "cut:stem", lambda: trial(STEM())
    yield "cut:fedacg", lambda: trial(FedACG(), "vectorised:2", rounds=2)
    yield "cut:fedlin", lambda: trial(FedLin(), rounds=2)
    for name in (
        "fiarse",
        "down",
        "churn",
        "skip",
        "choice",
        "personal",
        "krum",
        "alie",
        "drawing",
    ):
        yield f"cut:{name}", _parts()[name]


CASES: dict[str, Make] = dict(_cases())


def differing(name: str) -> list[str]:
    """Run a case on all ranks and alone -> what is not equal at this rank."""
    make = CASES[name]
    ours = make()
    ours.run()
    loop, group = ours.loop, ours.loop.group
    states = loop.memory
    assert isinstance(states, RankStates) and group.size == int(os.environ["WORLD_SIZE"])
    here = states.own.get(range(loop.fed.population))
    loop.memory = states.own
    mine, ref = finish(loop), alone(make())
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
    exp = trial(
        Scaffold(),
        rounds=rounds,
        cohort=5,
        compress=Link(Via(TopK(ratio=0.2), Residual())),
        checkpoint=Checkpoint(every_rounds=1, every_seconds=None),
        evaluate=Evaluation(every=2),
    )
    for option in options:
        what, rank, at = option.split(":")
        if rank == os.environ.get("RANK"):
            exp.engine = _Stopping(what, int(at))
    return exp
