"""Trackers: what they are told, that they cannot harm a run, and the real libraries, each writing
to a local folder. `nox -s test-trackers` has the libraries; elsewhere their tests are skipped.
"""

import functools
import json
import logging
import struct
import sys
import time
import tomllib

import pytest

from fedloom import Experiment, Local
from fedloom.algorithms import FedAvg
from fedloom.config import resolve
from fedloom.data import digits
from fedloom.errors import ConfigError
from fedloom.models import mlp
from fedloom.storage.identity import group_of, run_digest
from fedloom.trackers import TRACKERS, MLflow, TensorBoard, WandB

digits_once = functools.cache(digits)


def small(rounds=3, **more):
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(64, (4,)), "data": digits_once()}
    parts |= {"cohort": 2, "local": Local(steps=1), "label": "mine"}
    return Experiment(rounds=rounds, **parts, **more)


class Fake:
    """A tracker of a user's own, which keeps what it is told; broken: the method that fails."""

    def __init__(self, broken=""):
        self.broken, self.name, self.told, self.abouts = broken, "abc", [], []

    def check(self):
        pass

    def open(self, about):
        self.abouts.append(about)
        self.log(what="open")
        return self

    def log(self, *values, what="log"):
        if what == self.broken:
            raise OSError("no\nnetwork")
        self.told.append((what, *values))

    def end(self, summary):
        self.log(summary, what="end")


def stopped(folder, tracker, second=None):
    """A run that is stopped after two rounds -> the result of its resumption."""

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(tracker=tracker, on_round=stop).run(folder)
    return small(tracker=second or tracker).resume(folder)


def test_a_tracker_sees_settings_every_row_and_the_end(tmp_path):
    one, two = Fake(), Fake()
    result = small(tracker=[one, two]).run(tmp_path / "r")
    assert one.told == two.told
    opened, *rows, end = one.told
    assert opened == ("open",)
    assert [row["round"] for _, row in rows] == [1, 2, 3]
    assert rows[2][1]["test_accuracy"] == result.last == end[1]["last"]
    assert all(isinstance(v, int | float) for _, row in rows for v in row.values())
    (about,) = one.abouts
    assert (about.name, about.label, about.round, about.known) == ("r", "mine", 0, None)
    assert about.settings["local.lr"] == 0.1 and "lr = 0.1" in about.text
    names = json.loads((tmp_path / "r/trackers.json").read_text())
    assert names == {"Fake": "abc", "Fake 2": "abc"}


def test_a_resumed_run_goes_on_in_the_same_session(tmp_path):
    first, second = Fake(), Fake()
    stopped(tmp_path / "r", first, second)
    assert first.told[-1] == ("end", None), "it may go on"
    assert (second.abouts[0].known, second.abouts[0].round) == ("abc", 2)
    rounds = [row[0]["round"] for what, *row in second.told if what == "log"]
    assert rounds == [1, 2, 3], "round 2 was stopped before a tracker saw it"


@pytest.mark.parametrize("broken", ["open", "log", "end"])
def test_a_tracker_that_fails_never_loses_a_run(broken, caplog):
    whole = Fake()
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = small(tracker=[Fake(broken), whole]).run()
    assert len(result.history) == 3 and whole.told[-1][0] == "end" and len(whole.told) == 5
    (said,) = [r.getMessage() for r in caplog.records]
    assert said == "tracker Fake failed, and is told nothing more: OSError: no network"


def test_what_is_no_tracker_and_a_missing_library_are_said_before_the_run(monkeypatch, tmp_path):
    for wrong, said in (
        ("tensorbord", "did you mean 'tensorboard'"),
        (3, r"tracker must be a name .* or a list of them, got 3"),
    ):
        with pytest.raises(ConfigError, match=said):
            small(tracker=wrong).run()
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"imported; run: pip install .*\[{name}\]"):
            small(tracker=name).run(tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_setting_names_a_tracker_and_decides_no_number():
    words = ["tracker=wandb", "tracker.mode=offline", "tracker.project=mine"]
    config, plain = resolve("digits", words), resolve("digits")
    assert config.experiment().tracker == WandB(mode="offline", project="mine")
    assert tomllib.loads(config.to_toml())["tracker"]["mode"] == "offline"
    assert run_digest(config.values) == run_digest(plain.values)
    assert group_of(config.values) == group_of(plain.values)
    with pytest.raises(ConfigError, match=r"tracker.mode must be one of online, offline"):
        resolve("digits", ["tracker=wandb", "tracker.mode=off"]).experiment()


def test_a_callback_may_see_the_model():
    seen = []

    def measure(row, model):
        seen.append((row["round"], sum(p.abs().sum().item() for p in model.parameters())))
        assert not model.training
        for p in model.parameters():
            p.data.zero_()  # it is a copy

    def plain(row, limit=3):
        assert limit == 3

    watched = small(on_evaluation=[measure, plain]).run()
    assert [r for r, _ in seen] == [1, 2, 3] and all(size > 0 for _, size in seen)
    assert watched.last == small().run().last


REAL = pytest.mark.filterwarnings("ignore")  # of their own


@REAL
def test_tensorboard_has_every_round_once_also_of_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = stopped(tmp_path / "r", TensorBoard())
    events = EventAccumulator(str(tmp_path / "r/tensorboard")).Reload()
    points = events.Scalars("test_accuracy")
    assert [p.step for p in points] == [1, 2, 3]
    assert points[-1].value == pytest.approx(result.last)
    assert "settings/text_summary" in events.Tags()["tensors"]
    small(tracker=TensorBoard(folder=str(tmp_path / "all")), seed=5).run()
    assert list((tmp_path / "all/mine-seed5").glob("events*"))


@REAL
def test_wandb_writes_offline_and_goes_on_in_the_same_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    result = stopped(tmp_path / "r", WandB(mode="offline"))
    files = sorted((tmp_path / "r/wandb").glob("offline-run-*/*.wandb"))
    name = json.loads((tmp_path / "r/trackers.json").read_text())["WandB"]
    assert len(files) == 2 and {file.name for file in files} == {f"run-{name}.wandb"}
    until = time.monotonic() + 20  # its own process may still write
    while len(wandb_rows(files[-1])) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    steps = {row["_step"]: row["test_accuracy"] for file in files for row in wandb_rows(file)}
    assert sorted(steps) == [1, 2, 3] and steps[3] == result.last


def wandb_rows(file):
    """The history in a file of an offline run: a log in LevelDB's format, behind seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, rows, parts = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # too little is left of a block
            at += 32768 - at % 32768
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, parts = Record.FromString(parts), b""
            items = record.history.item
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            rows += [row] if row else []
    return rows


@REAL
def test_mlflow_has_settings_and_every_round_once(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    tracker = MLflow(uri=(tmp_path / "mlruns").as_uri(), experiment="tried")
    result = stopped(tmp_path / "r", tracker)
    client = MlflowClient(tracking_uri=tracker.uri)
    place = client.get_experiment_by_name("tried")
    (run,) = client.search_runs([place.experiment_id])
    assert run.data.params["local.lr"] == "0.1" and run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert [p.step for p in points] == [1, 2, 3]
    assert points[-1].value == pytest.approx(result.last)
