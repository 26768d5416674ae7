"""A function of tensors as a CUDA graph: one launch for all its operations. Not seen on a GPU yet;
tests/unit/test_streams.py runs it on a stand-in for torch.cuda.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

WARM_UP = 3  # times that a function runs before a graph of it is made


class CaptureError(RuntimeError):
    """CUDA makes no graph of a function. torch's memory for graphs is then in an unknown state, so
    no other graph is made in this process.
    """


class Place(NamedTuple):
    """Where graphs of a device are made: a stream, and the memory that they share. One follows
    another, and their results are copied at once.
    """

    stream: Any
    pool: Any


@functools.cache
def place_of(device: torch.device) -> Place:
    """The place of a device; the device must be the current one."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
    return Place(stream, torch.cuda.graph_pool_handle())


class CudaGraph:
    """function(*inputs), captured on inputs like these, all on one device of CUDA. failed: whether
    a capture has failed in this process.
    """

    failed: ClassVar[bool] = False

    def __init__(self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        """Raises CaptureError."""
        if CudaGraph.failed:
            raise CaptureError("CUDA makes no graph of it: it made none of an earlier step")
        device = inputs[0].device
        self._function = function  # whose constants the graph reads
        self._inputs = [v.clone() for v in inputs]
        with torch.no_grad(), torch.cuda.device(device):
            place, now = place_of(device), torch.cuda.current_stream()
            self._graph = torch.cuda.CUDAGraph()
            place.stream.wait_stream(now)
            # torch.cuda.graph alone would leave its stream the current one if a capture fails
            with torch.cuda.stream(place.stream):
                for _ in range(WARM_UP):
                    function(*self._inputs)
                try:
                    with torch.cuda.graph(self._graph, place.pool, place.stream):
                        self._outputs = function(*self._inputs)
                except RuntimeError as error:
                    CudaGraph.failed = True
                    raise CaptureError(f"CUDA makes no graph of it: {error}") from error
            now.wait_stream(place.stream)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        for memory, v in zip(self._inputs, inputs, strict=True):
            memory.copy_(v)
        self._graph.replay()
        return [v.clone() for v in self._outputs]  # the next replay overwrites them
