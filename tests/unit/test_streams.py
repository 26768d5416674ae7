"""Steps on CUDA, on a stand-in for torch.cuda: rows in streams of their own, and graphs."""

import contextlib
import gc
import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.core.vector import rec
from fedloom.engines import cuda_graph, recorded
from fedloom.engines.by_row import STREAMS, ByRow, SideBySide
from fedloom.engines.cuda_graph import CaptureError, CudaGraph
from fedloom.engines.recorded import Recorded, StepContext
from fedloom.engines.step_graph import write_step

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
        try:
            yield
        finally:
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


# ------------------------------------------------------------- graphs, on a stand-in for torch.cuda
class Replayed(TorchDispatchMode):
    """What a CUDA graph does: the operations inside once more, into the same memory."""

    def __init__(self, streams):
        super().__init__()
        self.streams, self.done = streams, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.done:
            again = func(*args, **kwargs)
            if again is not out and again.data_ptr() != out.data_ptr():
                out.copy_(again)


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda with graphs that replay on the CPU; why: an error of the next capture."""
    streams = Streams(monkeypatch)
    fake = SimpleNamespace(streams=streams, why="", captured=0, places=[])

    @contextlib.contextmanager
    def graph(captured, pool, stream):
        fake.places.append((pool, stream.name))
        before, streams.now = streams.now, stream
        with captured:
            yield
        if fake.why:  # torch's own leaves its stream the current one then
            raise RuntimeError(fake.why)
        streams.now, captured.done = before, [*captured.done]

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Replayed(streams))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(CudaGraph, "failed", False)
    cuda_graph.place_of.cache_clear()
    yield fake
    cuda_graph.place_of.cache_clear()


def test_a_graph_reads_what_it_is_given_and_its_results_stay(cuda):
    calls = []

    def function(a, b):
        calls.append(1)
        return [(a * 2).add_(b), a.sum()]

    x, y = torch.ones(3), torch.ones(3)
    graph = CudaGraph(function, [x, y])
    count = len(calls)
    first = graph(x, y)
    y.data.mul_(5)  # which no counter of torch's tells
    second = graph(torch.full((3,), 2.0), y)
    assert first[0].tolist() == [3.0] * 3 and first[1] == 3
    assert second[0].tolist() == [9.0] * 3 and second[1] == 6
    assert len(calls) == count == cuda_graph.WARM_UP + 1 and cuda.streams.now.name == MAIN


def test_graphs_share_a_stream_and_their_memory(cuda):
    for n in range(1, 3):
        CudaGraph(lambda a: [a + 1], [torch.ones(n)])
    assert len(set(cuda.places)) == 1


def test_after_a_capture_that_fails_the_stream_is_the_one_of_before(cuda):
    cuda.why = "operation not permitted when stream is capturing"
    with pytest.raises(CaptureError, match="CUDA makes no graph of it: operation not permitted"):
        CudaGraph(lambda a: [a + 1], [torch.ones(2)])
    assert cuda.streams.now.name == MAIN
    with pytest.raises(CaptureError, match="it made none of an earlier step"):
        CudaGraph(lambda a: [a + 1], [torch.ones(2)])


def test_a_graph_keeps_what_its_function_holds(cuda):
    """Constants, which the operations of the graph read."""
    times = lambda a: [a * torch.tensor([2.0, 3.0])]
    seen = weakref.ref(times)
    graph = CudaGraph(times, [torch.ones(2)])
    del times
    gc.collect()
    assert seen() is not None and graph(torch.ones(2))[0].tolist() == [2.0, 3.0]


def test_a_step_that_cannot_be_captured_runs_as_it_is_and_no_other_is_tried(monkeypatch):
    def fails(*given):
        raise CaptureError("CUDA makes no graph of it: no")

    monkeypatch.setattr(recorded, "write_step", fails)
    records = Recorded(after=1)
    for length in (2, 2, 2, 3, 3, 3):
        arguments = (rec(x=torch.ones(length)),)
        beside = StepContext.of((), list, "step")
        do = lambda record: (rec(x=record.x * 2),)
        (result,) = records.step("shape", do, arguments, beside, (Counter(),), (0, 0))
        assert result.x.tolist() == [2.0] * length
    assert [*records.refused.values()] == ["CUDA makes no graph of it: no"]
    assert records.recordings == recorded.MOST


# --------------------------------------------------------------------------- what else is written
def written(do, *inputs):
    return write_step(lambda *records: (rec(x=do(*inputs)),), (), inputs, list)


def test_only_what_a_step_reads_is_given_to_its_replay():
    a, b = torch.ones(2), torch.ones(3)
    step = written(lambda a, b: a * 2, a, b)
    assert step.replay([torch.full((2,), 3.0), None])[0].x.tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (lambda a, b: a * 2, ""),
        (lambda a, b: [b * 2, a * 2][1], "it reads or makes a tensor on meta"),
        (lambda a, b: a.to("meta"), "it reads or makes a tensor on meta"),
        (lambda a, b: [torch.zeros(2, device="meta"), a * 2][1], ""),
        (lambda a, b: a * torch.tensor(2.0), ""),
    ],
)
def test_a_step_that_leaves_the_device_is_not_recorded(do, why):
    """A graph on CUDA would read the other device once, when it is made."""
    assert written(do, torch.ones(2), torch.ones((), device="meta")).why.startswith(why)
