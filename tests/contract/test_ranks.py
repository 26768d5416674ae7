"""Any number of ranks has the bits and the history of one process."""

from __future__ import annotations

import pytest
from test_replay import agree as replay_agrees
from test_replay import content

from fedloom.checks.tiny_federation import finish
from support import ranks
from support.rank_cases import CASES, stateful
from tiny import agree


def told(line: str) -> bool:
    """Say whether a rank's line is no warning about a method."""
    return line.startswith(("cut:", "own:", "engines:", "parts:", "workers:", "the loss"))


def test_two_ranks_have_the_bits_of_one_process_and_fail_and_go_on_together(tmp_path):
    """A failure at one rank is everybody's sentence; one process repeats a round of two ranks, and
    goes on where they were.
    """
    ends = ranks.run(2, "quick", run := tmp_path / "run")
    names = [name for name in CASES if name.startswith(("cut:", "own:"))]
    assert ends[0].out.split("\n") == [*names, ""], ends
    for end in ends:
        assert end.code == 0, end.err
        assert [x for x in end.err.splitlines() if told(x)] == ["the loss of client 3 is wrong"]
    before = content(run)
    assert replay_agrees(lambda: stateful(6), run, 3)
    assert content(run) == before
    again, whole = stateful(6), stateful(6)
    again.resume(run)
    whole.run(tmp_path / "whole")
    agree(finish(again.loop), finish(whole.loop))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["engines", "parts", "workers"])
def test_every_method_and_every_other_axis(size, kind):
    ends = ranks.run(size, "agreement", kind, seconds=600)
    names = [name for name in CASES if name.startswith(f"{kind}:")]
    assert ends[0].out.split("\n") == [*names, ""], ends
    for end in ends:
        assert end.code == 0 and not [x for x in end.err.splitlines() if told(x)], end.err
