"""What ranks tell each other, without other processes; those are in contract and system."""

import pickle
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fedloom.algorithm import FedAvg
from fedloom.core import ranks
from fedloom.core.interrupts import Stopped
from fedloom.core.ranks import ALONE, Group
from fedloom.core.vector import rec
from fedloom.engines import Ranks, Serial, Vectorised, Workers, make_engine
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.ranks import RankSettings
from fedloom.errors import ClientError, ConfigError, WorkerError
from fedloom.experiment.processes import device_for, engine_for
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.rank_states import RankStates
from support.refusals import refused
from tiny import same, small
from unit.test_storage import row


class Many(Group):
    """A group in which nobody else answers."""

    def __init__(self, size, here=2):
        self.size, self.locals, self.hosts = size, here, [f"node{r}" for r in range(size)]


class Thread(Many):
    """One of several ranks that are threads of this process. given: what each gives."""

    def __init__(self, rank, given, barrier):
        super().__init__(len(given))
        self.rank, self.given, self.barrier = rank, given, barrier

    def everybodys(self, value):
        self.given[self.rank] = value
        self.barrier.wait(60)
        given = [*self.given]
        self.barrier.wait(60)
        return given

    def gather(self, value, error=None):
        heads = self.everybodys((value, error))
        for _, error in heads:
            if error is not None:
                raise error
        return [value for value, _ in heads]

    def exchange(self, give, take=None):
        return [theirs[self.rank] for theirs in self.everybodys(give)]


def at_each(size, work):
    """What work(group) gives at each of so many ranks."""
    given, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(lambda rank: work(Thread(rank, given, barrier)), range(size))]


def opened(engine):
    loop = small(FedAvg()).build()
    engine.open(loop.plan, loop.fed, loop.net)
    return engine


def test_an_engine_by_its_name_and_what_it_is_without_torchrun(caplog):
    engine = make_engine("ranks+vectorised:3")
    assert isinstance(engine, Ranks) and engine.text == "ranks+vectorised:3" and engine.chunk == 3
    assert make_engine("ranks").text == engine_for("serial", Many(2), 4, 10).text == "ranks+serial"
    assert isinstance(engine_for("ranks+vectorised:3", ALONE, 4, 10), Vectorised)
    assert "torchrun started no other rank" in caplog.text


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: make_engine("ranks+ranks"), "engine"),
        (lambda: make_engine("workers:2+ranks"), "engine"),
        (lambda: make_engine("ranks+auto"), "engine"),
        (lambda: make_engine("ranks:3"), "engine"),
        (lambda: engine_for("serial", Many(8), 4, 10), "8 ranks, and the largest cohort has 4"),
        (
            lambda: opened(engine_for("vectorised:3", Many(2), 3, 10)),
            "1 chunk of 3 ... vectorised:2",
        ),
    ],
)
def test_ranks_that_cannot_be_are_refused(make, said):
    refused(make, said, kind=ConfigError)


def test_workers_share_the_processors_of_a_machine(monkeypatch):
    engine = engine_for("workers", Many(2, here=1000), 4, 10)
    assert engine.text == "ranks+workers:1"
    monkeypatch.setattr(
        Workers, "open", lambda *parts: pytest.fail("another one only waits for it")
    )
    opened(engine)


def test_a_rank_with_another_server_state_is_named():
    def of(group, least):
        engine, x = opened(Ranks(Serial(), group)), torch.ones(3)
        x[2] += least * (group.rank == 1)
        return engine.map(Request.TRAIN, TrainTask(rec(x=x), torch.empty(0), {}, [], 4)).stats

    assert at_each(3, lambda group: of(group, 0.0)) == [[], [], []]
    with pytest.raises(WorkerError, match=r"round 5: the server state at rank 1 \(node1\) differs"):
        at_each(3, lambda group: of(group, 2.0**-23))


def test_ranges_are_whole_chunks_and_one_for_each_rank():
    engine = opened(Ranks(Vectorised(3), Many(4)))
    assert engine.cut([2] * 8) == [(0, 3), (3, 6), (6, 8), (8, 8)]


@pytest.mark.parametrize(
    ("said", "restarts", "words"),
    [
        ("EADDRINUSE, port 29500", "0", "host0:29500 ... the port is in use"),
        ("Gloo connectFullMesh failed", "2", "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        ("Gloo connectFullMesh failed", "0", "within ranks.timeout = 5 s"),
        ("", "0", "no reason given"),
    ],
)
def test_why_ranks_do_not_meet(said, restarts, words, monkeypatch):
    def fails(*given, **more):
        raise RuntimeError(said)

    place = {"MASTER_ADDR": "host0", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "2"}
    for name, value in (place | {"TORCHELASTIC_RESTART_COUNT": restarts}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "rendezvous", fails)
    refused(lambda: ranks.join(5.0), words, kind=ConfigError)


def test_one_process_waits_for_nobody():
    assert ranks.join(5.0) is ALONE and not ranks.launched()
    assert ALONE.gather(3) == [3] and ALONE.first(lambda: 4) == 4
    refused(lambda: ALONE.gather(3, ClientError("no")), kind=ClientError)
    assert RankSettings().timeout == 600
    assert device_for("cpu", "serial", Many(2)) == torch.device("cpu")


def test_errors_travel():
    class OwnError(Exception):
        pass

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = ranks.Ranks(5.0)
        group.rank = 1  # as another one would see what rank 0 gives
        refused(lambda: group.gather(3, OwnError("mine")), "OwnError: mine", kind=WorkerError)
        refused(lambda: group.gather(3, ClientError("one line")), "one line", kind=ClientError)
        assert group.gather(3) == [3]
    finally:
        dist.destroy_process_group()
    assert pickle.loads(pickle.dumps(Stopped(15))).code == 143


def test_any_number_of_ranks_divides_and_joins_an_index(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(9)})
    memory.save()
    memory.put({i: row(i, 1) for i in (2, 3, 8)})
    index = memory.save()

    def of(group):
        states = RankStates(ClientMemory(tmp_path, prefix=f"r{group.rank}-"), group, None)
        states.restore(index)
        return len(states.states), states.save(), states.last([2, 4, 9])

    counts, (joined, *others), lasts = zip(*at_each(4, of), strict=True)
    assert counts == (3, 2, 2, 2) and others == [joined] * 3
    assert lasts == ({2: 1, 4: 0, 9: None},) * 4
    memory.restore(joined)
    assert all(same(memory.get([i])[i], row(i, int(i in (2, 3, 8)))) for i in range(9))


def test_rows_keep_their_bits_on_the_way():
    rows = {3: row(3), 5: row(5, 2)}

    def of(group):
        states = RankStates(ClientMemory(), group, lambda cohort: [(0, 0), (0, len(cohort))])
        states.put({} if group.rank else rows)
        return states.get([3, 5]), len(states.states)

    (none, left), (moved, here) = at_each(2, of)
    assert (none, left, here) == ({}, 0, 2) and moved.keys() == rows.keys()
    assert all(same(moved[i], rows[i]) for i in rows)


def test_the_script_for_slurm_starts_what_it_says(tmp_path):
    """With stand-ins for Slurm's commands; the script itself is the page's."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    script = re.search(r"```\n(#!/bin/bash\n#SBATCH.*?)```", page, re.DOTALL)
    for name, does in {"srun": 'echo "$@"', "scontrol": "printf 'node7\\nnode8\\n'"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "31", "SLURM_JOB_NODELIST": "node[7-8]"}
    slurm |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "SCRATCH": "/scratch/me"}
    how = {"capture_output": True, "text": True, "check": True}
    done = subprocess.run(["bash", "-eu", "-c", script[1]], env=slurm, **how)
    assert done.stdout == (
        "torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-id 31 "
        "--rdzv-endpoint node7:29500 -m fedloom run my.toml --out /scratch/me/my-run "
        "--resume-if-begun\n"
    )
