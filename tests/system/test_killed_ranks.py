"""Ranks that are killed, stopped, or started wrongly: real processes, real torchrun."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from fedloom.checks.tiny_federation import finish
from support import ranks
from support.folders import rows
from support.rank_cases import stateful
from tiny import environment, same

pytestmark = pytest.mark.slow
ROUNDS = 8


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What one process makes of it, and nothing stops."""
    exp = stateful(ROUNDS)
    exp.run(tmp_path_factory.mktemp("whole") / "run")
    return finish(exp.loop)


def same_end(folder, whole):
    """The finished run in a folder, as one process reads it, ended as `whole`."""
    exp = stateful(ROUNDS)
    exp.resume(folder)
    end = finish(exp.loop)
    states = all(same(end.memory[i], whole.memory[i]) for i in whole.memory)
    return same(end.srv, whole.srv) and end[2:] == whole[2:] and states


@pytest.mark.parametrize("size", [2, 3])
def test_a_killed_rank_costs_no_bit(size, whole, tmp_path):
    """torchrun starts all ranks again, and they go on from the last checkpoint."""
    draw = random.Random(size)
    kill = f"kill:{draw.randrange(size)}:{draw.randrange(1, ROUNDS)}"
    own = environment() | {"OMP_NUM_THREADS": "1"}
    own["PYTHONPATH"] += f":{ranks.HERE.parents[1]}"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    line += [f"--nproc-per-node={size}", str(ranks.HERE), "story", str(tmp_path / "run")]
    given = {"env": own, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*line, str(ROUNDS), kill], **given)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and f'"round": {ROUNDS}' in said, said
    assert "a rank has ended without a word" in said and same_end(tmp_path / "run", whole)


def test_sigterm_saves_at_all_ranks_and_another_number_goes_on(whole, tmp_path):
    run = tmp_path / "run"
    ends = ranks.run(3, "story", run, ROUNDS, "term:1:3")
    assert [end.code for end in ends] == [143] * 3, ends
    assert len(rows(run)) == 3
    ends = ranks.run(2, "story", run, ROUNDS, "fail:0:5", "slow:1:5")
    assert all("a part of my own failed" in end.err and end.code == 1 for end in ends), ends
    assert time.time() - float(re.search(r"slowest: (\S+)", ends[1].err)[1]) < 10
    ends = ranks.run(4, "story", run, ROUNDS)
    assert json.loads(ends[0].out)["number"] == 4, ends
    assert same_end(run, whole)


def test_a_full_disk_at_one_rank_is_everybodys_warning_and_at_the_end_an_error(whole, tmp_path):
    """The run goes on without these checkpoints, and without the last one it has not ended."""
    run, said = tmp_path / "run", "the checkpoint after round {} could not be written: File too"
    ends = ranks.run(2, "story", run, ROUNDS, "full:1:3")
    assert all(end.code == 0 and said.format(4) in end.err for end in ends), ends
    assert all(said.format(5) in end.err and said.format(6) not in end.err for end in ends), ends
    assert same_end(run, whole)
    late = tmp_path / "late"
    ends = ranks.run(2, "story", late, ROUNDS, f"full:1:{ROUNDS - 1}")
    assert all(end.code == 1 and said.format(ROUNDS) in end.err for end in ends), ends
    ends = ranks.run(2, "story", late, ROUNDS)
    assert all(end.code == 0 for end in ends) and same_end(late, whole), ends


def test_a_rank_that_never_answers_is_not_waited_for_without_end(tmp_path):
    words = ["-m", "fedloom", "run", "digits", "rounds=3", "data.clients=4", "ranks.timeout=6"]
    processes = ranks.begin(2, *words, "--out", tmp_path / "run")
    processes[1].send_signal(signal.SIGSTOP)  # as by a machine that hangs
    try:
        assert processes[0].wait(100) == 2
        said = processes[0].communicate()[1]
        assert "the ranks cannot meet at 127.0.0.1:" in said and "6 s" in said
    finally:
        processes[1].kill()
        processes[1].communicate()


SMALL = ["-m", "fedloom", "run", "digits", "rounds=2", "data.clients=4", "cohort=4", "--out", "run"]


def errors(ends):
    """Of each rank, without its name."""
    lines = [x for end in ends for x in end.err.splitlines() if "error: " in x]
    return [re.sub(r"^rank [1-9]: (?=error: )", "", x) for x in lines]


@pytest.mark.parametrize(
    ("size", "last", "apart", "said"),
    [
        (2, ["local.lr=0.3"], False, "local.lr is 0.1 at rank 0"),
        (2, ["evaluate.every=2"], False, "evaluate.every is 1 at rank 0"),
        (2, [], True, "is not the folder of rank 0"),
        (5, [], False, "5 ranks, and the largest cohort has 4 clients"),
    ],
)
def test_bad_input_is_one_line_from_each_rank(size, last, apart, said, tmp_path):
    folders = [tmp_path / (str(r) if apart else "all") for r in range(size)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    ends = ranks.run(size, *SMALL, last=last, where=folders)
    assert {end.code for end in ends} == {2}, ends
    assert len(errors(ends)) == size and all(said in line for line in errors(ends)), ends
    assert ends[0].err.startswith("error: ") and ends[1].err.startswith("rank 1: error: ")
    assert not any("Traceback" in end.err for end in ends)


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        processes = ranks.begin(2, *SMALL, "ranks.timeout=5", port=port, where=[tmp_path] * 2)
        processes[1].kill()  # it waits for an answer of what listens there
        end = ranks.wait(processes, 60)[0]
    assert end.code == 2 and errors([end]) and f"127.0.0.1:{port}" in errors([end])[0], end
    assert "the port is in use" in end.err
