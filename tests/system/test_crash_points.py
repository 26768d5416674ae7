"""A small run is crashed at every call that changes a file, and goes on from every state that the
crash may leave on the disk: see support/disk.py.
"""

import itertools

import pytest
import torch

from fedloom import Checkpoint, Evaluation, Local
from fedloom.algorithm import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.errors import CheckpointError, ConfigError, FedloomError
from fedloom.storage.manifest import check_run
from fedloom.storage.run_directory import RunDirectory
from fedloom.study import state_of
from support.disk import Disk, key, lay, on
from support.folders import record, rows
from tiny import clusters, small, timeless

DATA = clusters(sizes=(2, 3, 2))


def experiment(method=Scaffold, rounds=3, **changes):
    """A checkpoint after every round, and the best model; SCAFFOLD has client states in files."""
    torch.manual_seed(1)
    settings = {
        "model": torch.nn.Linear(5, 3),
        "data": DATA,
        "cohort": 2,
        "rounds": rounds,
        "local": Local(steps=1, batch=4, lr=0.1),
        "evaluate": Evaluation(every=2),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None, keep_best="test_loss"),
    }
    return small(method(), **(settings | changes))


def go_on(run, **changes):
    """What `fedloom run --resume-if-begun` does -> the rounds that were run now."""
    done, folder = [], RunDirectory(run)
    longer = folder.holds_run() and folder.read_config()["rounds"] < changes["rounds"]
    if not run.exists() or longer or state_of(run) != "finished":
        callback = [lambda row: done.append(row["round"])]
        experiment(on_round=callback, **changes).run(run, go_on=True)
    return done


def end_of(run):
    check_run(run)
    summary = {k: v for k, v in record(run).items() if "seconds" not in k}
    newest = max(p.name for p in (run / "checkpoints").iterdir())
    weights = [(run / f"{name}.safetensors").read_bytes() for name in ("model", "best")]
    ledger, clients = timeless(record(run, "ledger")), record(run, "clients")
    return [*weights, timeless(rows(run)), ledger, clients, summary, newest]


class Acknowledged:
    """The newest round whose checkpoint is said to be written."""

    def __init__(self, patch):
        self.round, save = 0, RunDirectory.save

        def told(run, state, *arguments):
            save(run, state, *arguments)
            self.round = state.round

        patch.setattr(RunDirectory, "save", told)


class Crashes:
    """A run in a folder, and its crashes. before: what is on the disk; settings: of the run."""

    def __init__(self, root, before=None, **settings):
        self.root, self.before, self.settings = root, before or {}, settings
        self.acknowledged = settings["rounds"] - 1 if before else 0
        lay(self.before, root / "whole")
        go_on(root / "whole" / "out" / "run", **settings)
        self.whole = end_of(root / "whole" / "out" / "run")

    def check(self, states):
        """Crash before every call, go on from every state -> how many calls and states. states:
        those of a disk that are looked at.
        """
        found, last = {}, self.acknowledged
        lay(self.before, self.root / "disk")
        with pytest.MonkeyPatch.context() as patch:
            said = Acknowledged(patch)

            def look(disk):  # what is there before a call is there after a crash
                for tree in states(disk):
                    where = f"before call {disk.calls}, after {disk.called[-1:]}: {lengths(tree)}"
                    safe = max(said.round, last)
                    if safe > found.get(key(tree), (-1,))[0]:
                        found[key(tree)] = (safe, where, tree)

            disk = Disk(self.root / "disk", look)
            on(disk, lambda: go_on(self.root / "disk" / "out" / "run", **self.settings))
        look(disk)
        for safe, where, tree in found.values():
            self.goes_on(tree, safe, where)
        return disk.calls, len(found)

    def goes_on(self, tree, said, where):
        """From this state the run comes to its end, and does no round again that is safe."""
        lay(tree, self.root / "after")
        run = self.root / "after" / "out" / "run"
        try:
            rounds = go_on(run, **self.settings)
        except FedloomError as error:
            raise AssertionError(f"{where}\n{error}") from error
        assert min(rounds, default=said + 1) > said, f"{where}: {said} was acknowledged"
        assert end_of(run) == self.whole, where


def files(tree, above=""):
    """(path, content) of the files of a state."""
    for name, value in tree.items():
        if isinstance(value, bytes):
            yield above + name, value
        else:
            yield from files(value, f"{above}{name}/")


def lengths(tree):
    return {name: len(value) for name, value in files(tree)}


def tree_of(folder):
    return {p.name: tree_of(p) if p.is_dir() else p.read_bytes() for p in folder.iterdir()}


def lost(disk):
    """The state that loses everything that is not safe; of the first calls every state."""
    return disk.crashes() if disk.calls < 9 else itertools.islice(disk.crashes(), 1, 2)


@pytest.mark.parametrize("bound", [None, 1])
def test_a_crash_at_any_call_loses_nothing_that_is_acknowledged(bound, tmp_path):
    calls, states = Crashes(tmp_path, rounds=2, resident_bytes=bound).check(lost)
    assert calls > 70 and states > 15, (calls, states)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [None, 1])
def test_every_state_after_a_crash_at_any_call(bound, tmp_path):
    """In whatever order names came to the disk, and wherever a content was cut."""
    run = Crashes(tmp_path, rounds=2, resident_bytes=bound)
    assert run.check(lambda disk: disk.crashes())[1] > 300


@pytest.mark.slow
def test_a_log_that_is_cut_at_any_byte(tmp_path):
    def states(disk):
        after = (disk.called or [""])[-1] == "append out/run/rounds.jsonl"
        return disk.crashes(every=True) if after else ()

    assert Crashes(tmp_path, rounds=2).check(states)[1] > 500


@pytest.mark.slow
def test_a_disk_that_is_full_from_any_call_on(tmp_path):
    """The run says so in one line, or ends; with room it goes on."""
    run = Crashes(tmp_path, rounds=2)
    for call in itertools.count():
        lay({}, tmp_path / "disk")
        there, disk = tmp_path / "disk" / "out" / "run", Disk(tmp_path / "disk", full=call)
        with pytest.MonkeyPatch.context() as patch:
            said = Acknowledged(patch)
            try:
                on(disk, lambda there=there: go_on(there, **run.settings))
            except (CheckpointError, ConfigError) as error:
                assert "No space left" in str(error) and "\n" not in str(error)
        assert not list(tmp_path.glob("disk/**/*.part"))
        run.goes_on(tree_of(tmp_path / "disk"), said.round, f"full from call {call} on")
        if call > disk.calls:
            break


@pytest.mark.slow
def test_a_bit_that_flips_in_any_file(tmp_path):
    """Half-way or at the end: the run ends as it would have, or says what is damaged in a line."""
    run, states, said = Crashes(tmp_path, rounds=2), {}, 0

    def look(disk):
        tree = next(disk.crashes())
        states[key(tree)] = tree

    lay({}, tmp_path / "disk")
    disk = Disk(tmp_path / "disk", look)
    on(disk, lambda: go_on(tmp_path / "disk" / "out" / "run", **run.settings))
    look(disk)
    half = [*states.values()][len(states) // 2]
    for tree, (name, raw) in [(t, file) for t in (half, next(disk.crashes())) for file in files(t)]:
        for place in sorted({0, len(raw) // 2, len(raw) - 1} if raw else ()):
            lay(tree, tmp_path / "after")
            flipped = raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :]
            (tmp_path / "after" / name).write_bytes(flipped)
            there = tmp_path / "after" / "out" / "run"
            try:
                go_on(there, **run.settings)
                assert end_of(there) == run.whole, (name, place)
            except FedloomError as error:
                assert "\n" not in str(error), (name, place)
                said += 1
    assert said > 30, said


def test_a_longer_run_goes_on_after_a_crash_at_any_call(tmp_path):
    lay({}, tmp_path / "short")
    disk = Disk(tmp_path / "short")
    on(disk, lambda: go_on(tmp_path / "short" / "out" / "run", method=FedAvg, rounds=1))
    before = next(disk.crashes())
    Crashes(tmp_path, before, method=FedAvg, rounds=2).check(lost)
