"""What ranks tell each other, without other processes; those are in contract and system."""

import pickle
import re
import subprocess
from pathlib import Path

import pytest
import torch

from fedloom.algorithm import FedAvg
from fedloom.core import ranks
from fedloom.core.interrupts import Stopped
from fedloom.core.ranks import ALONE, Group
from fedloom.engines import Ranks, Serial, Vectorised, make_engine
from fedloom.engines.ranks import RankSettings, _checksum
from fedloom.errors import ClientError, ConfigError, WorkerError
from fedloom.experiment.processes import device_for, engine_for
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.rank_states import _merge, _pack, _part_of, _unpack
from support.refusals import refused
from tiny import same, small
from unit.test_storage import row


class Many(Group):
    """A group in which nobody else answers."""

    def __init__(self, size, here=2):
        self.size, self.locals, self.hosts = size, here, [f"node{r}" for r in range(size)]


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


def test_workers_share_the_processors_of_a_machine():
    engine = engine_for("workers", Many(2, here=1000), 4, 10)
    assert engine.text == "ranks+workers:1"
    assert isinstance(opened(engine)._run, Serial)  # no process that another one only waits for


def test_a_rank_with_another_server_state_is_named():
    x = torch.ones(3)
    y = x + torch.tensor([0.0, 0.0, 2.0**-23])
    assert _checksum(x, 1.0) == _checksum(x.clone(), 1.0) != _checksum(y, 1.0)
    with pytest.raises(WorkerError, match=r"round 5: the server state at rank 1 \(node1\) differs"):
        Ranks(Serial(), Many(3))._agree([7, 8, 7], "round 5")


def test_ranges_are_whole_chunks_and_one_for_each_rank():
    engine = Ranks(Vectorised(3), Many(4))
    assert engine._cut([1.0, 1.0, 1.0], 8) == [(0, 3), (3, 6), (6, 8), (8, 8)]


@pytest.mark.parametrize(
    ("said", "restarts", "words"),
    [
        ("EADDRINUSE, port 29500", "0", "host0:29500 .*the port is in use"),
        ("Gloo connectFullMesh failed", "2", "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        ("Gloo connectFullMesh failed", "0", "within ranks.timeout = 5 s"),
        ("", "0", "no reason given"),
    ],
)
def test_why_ranks_do_not_meet(said, restarts, words, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "host0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    why = ranks._why(said, 5.0)
    assert "\n" not in why and re.search(words, why)


def test_one_process_waits_for_nobody():
    assert ranks.join(5.0) is ALONE and not ranks.launched()
    assert ALONE.gather(3) == [3] and ALONE.first(lambda: 4) == 4
    refused(lambda: ALONE.gather(3, ClientError("no")), kind=ClientError)
    assert RankSettings().timeout == 600
    assert device_for("cpu", "serial", Many(2)) == torch.device("cpu")


def test_errors_travel():
    class OwnError(Exception):
        pass

    assert str(ranks._portable(OwnError("mine"))) == "OwnError: mine"
    error = ClientError("one line")
    assert ranks._portable(None) is None and ranks._portable(error) is error
    assert pickle.loads(pickle.dumps(Stopped(15))).code == 143


def test_any_number_of_ranks_divides_and_joins_an_index(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(9)})
    memory.save()
    memory.put({i: row(i, 1) for i in (2, 3, 8)})
    index = memory.save()
    home = {i: n % 4 for n, i in enumerate(index["clients"])}
    owners = [ClientMemory(tmp_path, prefix=f"r{r}-") for r in range(4)]
    for r, owner in enumerate(owners):
        owner.restore(_part_of(index, home, r))
    assert [len(owner) for owner in owners] == [3, 2, 2, 2]
    whole = ClientMemory(tmp_path)
    whole.restore(_merge([owner.save() for owner in owners]))
    assert all(same(whole.get([i])[i], row(i, int(i in (2, 3, 8)))) for i in range(9))
    assert whole.last([2, 4, 9]) == {2: 1, 4: 0, 9: None}


def test_rows_keep_their_bits_on_the_way():
    rows = {3: row(3), 5: row(5, 2)}
    back = _unpack(_pack(rows), "cpu")
    assert back.keys() == rows.keys() and all(same(back[i], rows[i]) for i in rows)
    assert len(_pack({})) == 0 and _unpack(_pack({}), "cpu") == {}


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
