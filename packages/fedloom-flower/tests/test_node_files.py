"""The files of a node fail: the run goes on, and the server is told no path of the site."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import sys

import pytest
from click.testing import CliRunner

from federations.places import SMALL, Here, folder
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.errors import CheckpointError, ClientError
from fedloom_flower.cli.deploy import _follow
from fedloom_flower.server import serve

SIZES = [480, 479, 479]


class Removing(Here):
    """Before the second round `does` is done to the folder of client 0's states."""

    does = staticmethod(shutil.rmtree)
    rounds = 0

    def __call__(self, messages, seconds, enough):
        self.rounds += 1
        if self.rounds == 2:
            self.does(self.places[0]._node.states.folder)
        return super().__call__(messages, seconds, enough)


def test_states_that_are_removed_under_a_running_node_are_made_anew(tmp_path):
    fed = folder(tmp_path, resolve("digits", [*SMALL, "rounds=3"]), SIZES, classes=10)
    here = Removing(fed)
    result = serve(fed, lambda roll: here)
    assert [row["answered"] for row in result.history] == [3, 3, 3]
    states = fed.node(0).path / "states"
    assert stat.S_IMODE(states.stat().st_mode) == 0o700 and list(states.glob("*.safetensors"))


def test_a_node_whose_disk_fails_names_no_path_and_is_no_missing_answer(tmp_path, caplog):
    config = resolve("digits", [*SMALL, "rounds=3", "algorithm=scaffold"])
    fed = folder(tmp_path, config, SIZES, classes=10, min_updates=2, max_failed_rounds=1, redraws=0)

    class Blocked(Removing):
        def does(self, states):
            shutil.rmtree(states)
            states.write_text("no folder")
            self.off.add(1)

    with pytest.raises(ClientError) as ended:
        serve(fed, lambda roll: Blocked(fed))
    assert "round 2: 1 of 3 updates came, fewer than min_updates = 2" in str(ended.value)
    assert "(no answer in time: 1; refused by the node: 1)" in str(ended.value)
    why = next(r.getMessage() for r in caplog.records if "client 0: not counted" in r.getMessage())
    assert "the node's files cannot be used: File exists" in why
    assert str(tmp_path) not in why and os.sep not in why


def test_a_damaged_state_is_named_without_the_folder_of_the_node(tmp_path):
    config = resolve("digits", [*SMALL, "rounds=3", "algorithm=scaffold"])
    fed = folder(tmp_path, config, SIZES, classes=10)

    class Damaged(Removing):
        def does(self, states):
            for file in states.glob("*.safetensors"):
                file.write_bytes(b"damaged")

    here = Damaged(fed)
    serve(fed, lambda roll: here)
    row = json.loads((fed.run / "clients.jsonl").read_text().splitlines()[1])
    assert row["declined"] == [0] and str(tmp_path) not in row["refused"]["0"]
    assert "'states/0000" in row["refused"]["0"]
    with pytest.raises(CheckpointError, match=str(fed.node(0).path)):  # here it is named in full
        here.places[0]._node.states._read(0)


def test_the_end_of_a_deployed_run_names_a_command_that_needs_no_extra(
    tmp_path, monkeypatch, capsys
):
    fed = folder(tmp_path, resolve("digits", SMALL), SIZES, classes=10)
    serve(fed, lambda roll: Here(fed))
    done = {"run-id": "7", "status": "finished:completed"}
    monkeypatch.setattr("fedloom_flower.programs.runs", lambda fed: [done])
    _follow(fed, "7")
    shown, report = capsys.readouterr().out.splitlines()[-2:]
    assert "with fedloom[report]" in report
    for library in ("matplotlib", "jinja2", "pandas"):
        monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    words = shlex.split(shown.partition("see it: fedloom ")[2])
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 0 and "accuracy" in told.output, told.output
