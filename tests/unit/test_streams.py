"""The rows of a step on CUDA: each in a stream of its own, on a stand-in for CUDA's streams."""

import contextlib
from collections import Counter

import pytest
import torch
from torch import fx

from fedloom.core.vector import rec
from fedloom.engines.by_row import ByRow
from fedloom.engines.step_graph import STREAMS, SideBySide, write_step

MAIN = -1


class Streams:
    """Streams that say, for what is done in them, what is known to be done by then. now: where
    operations go; done: {stream: how many}; known: {stream: {other: how many it has waited for}}.
    """

    def __init__(self, monkeypatch):
        self.now, self.made, self.done, self.known = Stream(self, MAIN), 0, {MAIN: 0}, {MAIN: {}}
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "stream", self.inside)

    def make(self):
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


class Watched(SideBySide):
    """Notes in which stream each value was made, and refuses to read one too early."""

    def __init__(self, module, streams):
        super().__init__(module, streams.make)
        self.streams, self.places = streams, {}

    def run_node(self, n: fx.Node):
        result = super().run_node(n)
        row, streams = n.meta.get("row"), self.streams
        at = MAIN if row is None else self._streams[row % len(self._streams)].name
        for read in n.all_input_nodes:
            where, number = self.places[read]
            assert where == at or streams.known[at].get(where, 0) >= number, (n, read)
        streams.done[at] += 1
        self.places[n] = at, streams.done[at]
        return result


def step(rows):
    """A step of so many rows, and what it is given: a table, and what all of them share."""

    def one(v, shared):
        factor = torch.tensor(2.0)
        factor += v.sum()
        return (rec(x=(v * shared).cumsum(0) * factor),)

    do = ByRow(lambda row, shared: one(row.v, shared.v), (0, None))
    return do, (rec(v=torch.arange(rows * 3.0).view(rows, 3)), rec(v=torch.tensor([1.0, 2, 3])))


@pytest.mark.parametrize("rows", [1, 3, STREAMS + 2])
def test_each_row_is_in_a_stream_of_its_own_and_reads_nothing_too_early(rows, monkeypatch):
    do, arguments = step(rows)
    inputs = [record.v for record in arguments]
    modules, real = [], fx.GraphModule
    make = lambda *given: modules.append(real(*given)) or modules[0]
    monkeypatch.setattr(fx, "GraphModule", make)
    written = write_step(do, arguments, inputs, list)
    table, shared = inputs
    want = (table * shared).cumsum(1) * (2 + table.sum(1, keepdim=True))
    assert not written.why and torch.equal(written.result[0].x, want)
    streams = Streams(monkeypatch)
    runner = Watched(modules[0], streams)
    for _ in range(2):  # a graph is run before it is captured
        (result,) = runner.run(*inputs)
        assert torch.equal(result, want)
    used = {where for where, _ in runner.places.values()}
    assert used == {MAIN, *range(1, min(rows, STREAMS) + 1)}


def test_what_a_function_counts_is_counted_for_one_row():
    counts, seen = Counter({"before": 2}), []

    def one(x):
        seen.append(dict(counts))
        counts["calls"] += 1
        return x

    ByRow(one, 0, (counts,))(torch.eye(3))
    assert seen == [{"before": 2}] * 3 and counts == {"before": 2, "calls": 1}
