"""How long a worker process may be silent until it is taken for one that stands still."""

import struct
import time

import pytest

from fedloom.engines import heartbeat as pulse


class Scene:
    """Workers whose heartbeats a test writes, and a clock."""

    def __init__(self, folder, workers=1):
        self.folder, self.now, self.spent = folder, 0.0, 0
        self.watch = pulse.Heartbeats(folder, workers)

    def beats(self, count, task=1, worker=7):
        words = struct.pack(pulse._FORMAT, count, task, int(1000 * self.spent))
        (self.folder / f"pulse.{worker}").write_bytes(words)

    def wait(self, seconds, computing=0.0):
        """What is seen within these seconds, of which a share is spent on a processor."""
        for _ in range(seconds):
            self.now, self.spent = self.now + 1, self.spent + computing
            if computing:
                count, task, _ = self.watch._pulses()[7]
                self.beats(count, task)
            if still := self.watch.look():
                return still
        return None


@pytest.fixture
def scene(tmp_path, monkeypatch):
    scenes = []

    def make(**options):
        monkeypatch.setattr(time, "monotonic", lambda: scenes[0].now if scenes else 0.0)
        scenes.append(Scene(tmp_path, **options))
        return scenes[0]

    return make


@pytest.mark.parametrize(
    ("patient", "computing", "seconds"),
    [
        ([(61, 0.0)], 0.0, 61.0),
        ([(601, 0.05)], 0.05, 601.0),  # a long first step
        ([(1, 0.0), (1, 0.9), (59, 0.0)], 0.0, 61.0),  # written late: no computing
    ],
    ids=["a minute", "ten minutes if it computes", "a minute after what was written late"],
)
def test_a_silent_worker_is_given(patient, computing, seconds, scene):
    seen = scene()
    seen.beats(1)
    assert all(seen.wait(*of) is None for of in patient)
    assert seen.wait(1, computing) == pulse.Hung(7, 1, seconds)


def test_a_worker_is_given_twenty_times_the_slowest_step(scene):
    seen = scene()
    for count in range(5):
        seen.beats(count)
        assert seen.wait(10) is None
    assert seen.watch.slowest == 10
    assert seen.wait(191) is None
    assert seen.wait(1) == pulse.Hung(7, 1, 201.0)


def test_a_worker_without_a_task_may_be_silent_but_not_for_ever(scene):
    seen = scene(workers=2)
    seen.beats(1, task=0)
    seen.beats(1, task=2, worker=8)
    seen.wait(1)
    for count in range(2, 30):
        seen.beats(count, task=2, worker=8)
        assert seen.wait(30) is None
    seen.beats(99, task=0, worker=8)
    limit = pulse.TIMES * 30
    assert seen.wait(limit + 1) is None
    assert seen.wait(1) == pulse.Hung(None, 0, limit + 1)


def test_processes_that_are_starting_are_given_ten_minutes(scene):
    seen = scene(workers=2)
    seen.beats(1, task=0)
    assert seen.wait(601) is None
    assert seen.wait(1).worker is None


def test_a_stop_of_the_parent_is_nobodys_silence(scene):
    seen = scene()
    seen.beats(1)
    for _ in range(20):
        assert seen.wait(1) is None
        seen.now += 3600  # Ctrl-Z
    assert seen.watch.look() is None
