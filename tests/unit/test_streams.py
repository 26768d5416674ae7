"""The rows of a step on CUDA: each in a stream of its own, on a stand-in for CUDA's streams."""

import contextlib
from collections import Counter

import pytest
import torch

from fedloom.core.vector import rec
from fedloom.engines.by_row import STREAMS, ByRow, SideBySide
from fedloom.engines.step_graph import InputMemory, write_step

MAIN = -1


class Streams:
    """Streams that say, for what is done in them, what is known to be done by then. now: where
    operations go; done: {stream: how many}; known: {stream: {other: how many it has waited for}}.
    """

    def __init__(self, monkeypatch):
        self.now, self.made, self.done, self.known = Stream(self, MAIN), 0, {MAIN: 0}, {MAIN: {}}
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "stream", self.inside)
        monkeypatch.setattr(torch.cuda, "Stream", self.make)

    def make(self, device):
        self.made += 1
        self.done[self.made], self.known[self.made] = 0, {}
        return Stream(self, self.made)

    @contextlib.contextmanager
    def inside(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before


class Stream:
    def __init__(self, all, name):
        self.all, self.name = all, name

    def wait_stream(self, other):
        known = self.all.known[self.name]
        for name, count in (*self.all.known[other.name].items(), (other.name, 0)):
            done = self.all.done[name] if name == other.name else count
            known[name] = max(known.get(name, 0), done)


def step(rows):
    """A step of so many rows, and what it is given: a table, and what all of them share."""

    def one(row, shared):
        factor = torch.tensor(2.0)
        factor += row.v.sum()
        return (rec(x=(row.v * shared.v).cumsum(0) * factor),)

    return ByRow(one, (0, None)), (rec(v=torch.arange(rows * 3.0).view(rows, 3)), rec(v=SHARED))


SHARED = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize("rows", [1, 3, 18])
def test_one_row_is_written_down_and_replayed_for_all(rows):
    do, arguments = step(rows)
    inputs = [record.v for record in arguments]
    written = write_step(do, arguments, inputs, list)
    assert written.operations % rows == 0 and 3 <= written.operations / rows <= 9
    for factor in (1.0, 3.0):
        table = factor * arguments[0].v
        want = (table * SHARED).cumsum(1) * (2 + table.sum(1, keepdim=True))
        (result,) = written.replay([table, SHARED])
        assert torch.equal(result.x, want)
    assert not written.why and torch.equal(written.result[0].x, do(*arguments)[0].x)


@pytest.mark.parametrize("rows", [1, 3, STREAMS + 2])
def test_each_row_is_in_a_stream_of_its_own_and_reads_nothing_too_early(rows, monkeypatch):
    streams, places = Streams(monkeypatch), []

    def one(row, shared):
        now = streams.now.name
        assert now != MAIN and streams.known[now][MAIN] == streams.done[MAIN]
        places.append(now)
        streams.done[now] += 1
        return [row * shared]

    side_by_side = SideBySide(one, (True, False), rows, torch.device("cuda"))
    table, real = torch.arange(rows * 3.0).view(rows, 3), torch.stack

    def stack(values):
        assert streams.now.name == MAIN
        assert all(streams.known[MAIN][name] == streams.done[name] for name in places)
        return real(values)

    monkeypatch.setattr(torch, "stack", stack)
    for _ in range(2):  # a graph is run before it is captured
        streams.done[MAIN] += 1
        (result,) = side_by_side(table, SHARED)
        assert torch.equal(result, table * SHARED)
    assert len(set(places)) == min(rows, STREAMS) and places[:rows] == places[rows:]


def test_what_a_function_counts_is_counted_for_one_row():
    counts, seen = Counter({"before": 2}), []

    def one(x):
        seen.append(dict(counts))
        counts["calls"] += 1
        return x

    ByRow(one, 0, (counts,))(torch.eye(3))
    assert seen == [{"before": 2}] * 3 and counts == {"before": 2, "calls": 1}


def test_what_has_not_changed_is_not_copied_again():
    model, batch = torch.zeros(3), torch.zeros(2)
    memory = InputMemory([model, batch])

    def copied(*inputs):
        before = [v._version for v in memory.tensors]
        memory.fill(inputs)
        assert all(map(torch.equal, memory.tensors, inputs))
        return [v._version - old for v, old in zip(memory.tensors, before, strict=True)]

    assert copied(model, torch.ones(2)) == [0, 1]
    assert copied(model.add_(1), torch.ones(2)) == [1, 1]  # the same tensor, written into
    other = torch.full((3,), 5.0)
    assert copied(other, batch) == [1, 1] and copied(other, batch) == [0, 0]
    del other
    assert copied(torch.zeros(3), batch) == [1, 0]  # perhaps where the other one was
