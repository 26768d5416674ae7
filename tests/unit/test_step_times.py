"""Times of steps that are remembered for estimates: what is found again, and what is not."""

from __future__ import annotations

import datetime
import json

import pytest

from fedloom.papers import step_times
from fedloom.papers.step_times import key_of, remember, remembered


def test_what_was_measured_is_remembered_for_a_month(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    key = key_of("step", (3, 4))
    assert remembered(key) is None and key != key_of("step", (3, 5))
    remember(key, (0.5, 0.25))
    assert remembered(key) == (0.5, 0.25)
    file = tmp_path / "cache" / "steps.json"
    today = datetime.date.today()
    for days, known in ((29, True), (30, False), (-1, False)):
        day = (today - datetime.timedelta(days)).isoformat()
        file.write_text(json.dumps({key: {"day": day, "seconds": [0.5, 0.25]}}))
        assert (remembered(key) is not None) == known


def test_only_the_newest_entries_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    monkeypatch.setattr(step_times, "MOST", 3)
    for n in range(5):
        remember(str(n), (1.0, 1.0))
    assert [n for n in range(5) if remembered(str(n))] == [2, 3, 4]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', "\x00"])
def test_a_broken_file_is_none(monkeypatch, tmp_path, text):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    file, today = tmp_path / "steps.json", datetime.date.today().isoformat()
    for seconds in (text, [1], [1, -1], [1, "inf"], None):
        file.write_text(json.dumps({"x": {"day": today, "seconds": seconds}}))
        assert remembered("x") is None
    file.write_text(text)
    assert remembered("x") is None
    remember("x", (1.0, 1.0))
    assert remembered("x") == (1.0, 1.0)
    file.unlink()
    file.mkdir()  # where nothing can be written, nothing is said either
    remember("x", (1.0, 1.0))
    monkeypatch.setenv("FEDLOOM_CACHE", "")
    remember("x", (1.0, 1.0))
    assert remembered("x") is None
