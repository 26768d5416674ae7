"""What ranks tell each other, without other processes; those are in contract and system."""

from __future__ import annotations

import pickle
import re
import subprocess
import threading
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
from tiny import same, small


class Many(Group):
    """A group in which nobody else answers."""

    def __init__(self, size: int) -> None:
        self.size, self.hosts = size, [f"node{r}" for r in range(size)]


def test_an_engine_by_its_name_and_what_it_is_without_torchrun(caplog):
    engine = make_engine("ranks+vectorised:3")
    assert isinstance(engine, Ranks) and engine.text == "ranks+vectorised:3" and engine.chunk == 3
    assert make_engine("ranks").text == "ranks+serial"
    assert isinstance(engine_for("ranks+vectorised:3", ALONE, 4, 10), Vectorised)
    assert "torchrun started no other rank" in caplog.text
    assert engine_for("serial", Many(2), 4, 10).text == "ranks+serial"
    for wrong in ("ranks+ranks", "workers:2+ranks", "ranks+auto", "ranks:3"):
        with pytest.raises(ConfigError, match="engine"):
            make_engine(wrong)


def test_more_ranks_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"8 ranks, and the largest cohort has 4 clients"):
        engine_for("serial", Many(8), 4, 10)
    engine = engine_for("vectorised:3", Many(2), 3, 10)
    loop = small(FedAvg()).build()
    with pytest.raises(ConfigError, match=r"of 3, is 1 chunk of 3 clients.*vectorised:2"):
        engine.open(loop.plan, loop.fed, loop.net)


def test_workers_share_the_processors_of_a_machine():
    group = Many(2)
    group.locals = 1000
    engine = engine_for("workers", group, 4, 10)
    assert engine.text == "ranks+workers:1"
    loop = small(FedAvg()).build()
    engine.open(loop.plan, loop.fed, loop.net)
    assert isinstance(engine._run, Serial)  # no process that another one only waits for


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
    found = ranks._why(said, 5.0)
    assert "\n" not in found
    with pytest.raises(ConfigError, match=words):
        raise ConfigError(found)


def test_one_process_asks_nobody():
    assert ranks.join(5.0) is ALONE and ranks.is_first_to_say("a line") and not ranks.launched()
    assert ALONE.gather(3) == [3] and ALONE.first(lambda: 4) == 4
    with pytest.raises(ClientError):
        ALONE.gather(3, ClientError("no"))
    assert RankSettings().timeout == 600
    assert device_for("cpu", "serial", Many(2)) == torch.device("cpu")


def test_who_says_a_line_is_not_waited_for_without_end(monkeypatch):
    """The machine with torch's store may be off, and torch knows no end for that."""

    class Store:
        def add(self, name, number):
            return asked.wait(30) and number

    asked = threading.Event()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "_STORE", [Store()])
    monkeypatch.setattr(ranks, "_MEETING", 0.01)
    assert ranks.is_first_to_say("a line")
    asked.set()


def test_errors_travel():
    class OwnError(Exception):
        pass

    assert str(ranks._portable(OwnError("mine"))) == "OwnError: mine"
    assert ranks._portable(None) is None
    error = ClientError("one line")
    assert ranks._portable(error) is error
    assert pickle.loads(pickle.dumps(Stopped(15))).code == 143


def test_any_number_of_ranks_divides_and_joins_an_index(tmp_path):
    from unit.test_client_state import row

    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(9)})
    memory.save()
    memory.put({i: row(i, 1) for i in (2, 3, 8)})
    index = memory.save()
    home = {i: n % 4 for n, i in enumerate(index["clients"])}
    parts = [_part_of(index, home, r) for r in range(4)]
    owners = [ClientMemory(tmp_path, prefix=f"r{r}-") for r in range(4)]
    for owner, part in zip(owners, parts, strict=True):
        owner.restore(part)
    assert [len(owner) for owner in owners] == [3, 2, 2, 2]
    joined = _merge([owner.save() for owner in owners])
    whole = ClientMemory(tmp_path)
    whole.restore(joined)
    assert all(same(whole.get([i])[i], row(i, int(i in (2, 3, 8)))) for i in range(9))
    assert whole.last([2, 4, 9]) == {2: 1, 4: 0, 9: None}


def test_rows_keep_their_bits_on_the_way():
    from unit.test_client_state import row

    rows = {3: row(3), 5: row(5, 2)}
    back = _unpack(_pack(rows), "cpu")
    assert back.keys() == rows.keys() and all(same(back[i], rows[i]) for i in rows)
    assert len(_pack({})) == 0 and _unpack(_pack({}), "cpu") == {}


def test_the_script_for_slurm_starts_what_it_says(tmp_path):
    """With stand-ins for Slurm's commands; the script itself is the page's."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    script = re.search(r"```\n(#!/bin/bash\n#SBATCH.*?)```", page, re.DOTALL)
    assert script is not None
    stands = {"srun": 'echo "$@"', "scontrol": "printf 'node7\\nnode8\\n'"}
    for name, does in stands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "31", "SLURM_JOB_NODELIST": "node[7-8]"}
    done = subprocess.run(
        ["bash", "-eu", "-c", script[1]],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SCRATCH": "/scratch/me"} | slurm,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-id 31 "
        "--rdzv-endpoint node7:29500 -m fedloom run my.toml --out /scratch/me/my-run "
        "--resume-if-begun\n"
    )
