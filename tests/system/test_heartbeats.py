"""How long a worker process may be silent until it is taken for one that stands still."""

import struct
import time

import pytest

from fedloom.engines import heartbeat as pulse


class Scene:
    """Workers whose heartbeats a test writes, and a clock."""

    def __init__(self, folder, workers=1):
        self.folder, self.now = folder, 0.0
        self.watch = pulse.Heartbeats(folder, workers)

    def beats(self, count, task=1, worker=7):
        words = struct.pack(pulse._FORMAT, count, task)
        (self.folder / f"pulse.{worker}").write_bytes(words)

    def wait(self, seconds):
        """What is seen within these seconds."""
        for _ in range(seconds):
            self.now += 1
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


def test_a_silent_worker_is_given_ten_minutes(scene):
    seen = scene()
    seen.beats(1)
    assert seen.wait(601) is None
    assert seen.wait(1) == pulse.Hung(7, 1, 601.0)


def test_a_worker_is_given_twenty_times_the_slowest_step(scene):
    seen = scene()
    for count in range(5):
        seen.beats(count)
        assert seen.wait(100) is None
    assert seen.watch.slowest == 100
    assert seen.wait(1901) is None
    assert seen.wait(1) == pulse.Hung(7, 1, 2001.0)


def test_a_worker_without_a_task_may_be_silent_but_not_for_ever(scene):
    seen = scene(workers=2)
    seen.beats(1, task=0)
    seen.beats(1, task=2, worker=8)
    seen.wait(1)
    for count in range(2, 30):
        seen.beats(count, task=2, worker=8)
        assert seen.wait(30) is None
    seen.beats(99, task=0, worker=8)
    limit = int(pulse.SILENCE)
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
