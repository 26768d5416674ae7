"""A step of many clients is recorded once and replayed: the same operations of torch on other
numbers, without vmap, autograd and Python (step_graph.py). A record is kept if it is faster, and
has the step's own bits on the next steps and in a later round.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.device import wait_for
from ..core.vector import as_bytes
from .cuda_graph import CaptureError
from .heartbeat import beat
from .step_graph import ModelState, Replay, StepGraph, tensors_of, write_step

AFTER = 8  # steps of a shape, before one is recorded
CHECKS = 3  # steps that are computed both ways before a record stays; and one of a later round
FASTER = 0.95  # times as long: several threads, and a replay, must gain that much
MOST = 16  # steps that are recorded in a run
NEAR = 1e-3  # on CUDA the largest difference of a replay to a step, as a part of a vector's largest
NOTHING = 1e-6  # what such a largest value is at least
LONG = 4e-4  # seconds of an operation on a CPU: a replay saves about 1e-5 of each
AFTER_ON_CUDA = 2  # as AFTER, where a replay saves more

T = TypeVar("T")
Counts = tuple[Counter[tuple[int, int]], ...]  # by step and batch, see LocalRound.gradients

_log = logging.getLogger(__name__)


class Threads:
    """Steps with so many threads, if the results are those of one thread, and sooner there. clock:
    seconds.

    Operations on single entries have the same bits with any number of threads; a sum has not, which
    torch and MKL may cut where a thread's part ends. Where they cut is a matter of shapes and of
    the number of threads, not of values: so the first step of a shape is computed both ways.
    """

    def __init__(self, number: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.number, self._clock = number, clock
        self._threads: dict[Hashable, int] = {}  # threads of steps of a shape

    def step(
        self, shape: Hashable, do: Callable[..., T], arguments: Any, reset: Callable[[], None]
    ) -> T:
        """do(*arguments), which is computed three times if the shape is new: then reset() is called
        in between. shape: all that decides which operations `do` does, and on how large tensors.
        """
        if self.number < 2:
            return do(*arguments)
        if shape in self._threads:
            return self._timed(self._threads[shape], do, arguments)[0]
        # `do` may write into what it is given
        first, second = (tree_map_only(Tensor, Tensor.clone, arguments) for _ in range(2))
        self._timed(1, do, first)  # the first step has costs that no later one has
        reset()
        many, several = self._timed(self.number, do, second)
        reset()
        one, single = self._timed(1, do, arguments)
        why = "" if same_bytes(one, many) else "they change bits"
        if not why and several > FASTER * single:
            why = "they gain nothing"
        self._threads[shape] = threads = 1 if why else self.number
        _log.info(
            "many clients at once: steps of shape %s take %d of %d threads%s",
            *(shape, threads, self.number, f": {why}" if why else ""),
        )
        return one

    def _timed(self, number: int, do: Callable[..., T], arguments: Any) -> tuple[T, float]:
        torch.set_num_threads(number)
        try:
            began = self._clock()
            return do(*arguments), self._clock() - began
        finally:
            torch.set_num_threads(1)


def same_bytes(one: Any, many: Any) -> bool:
    """True if all tensors have equal bytes."""
    pairs = zip(tree_leaves(one), tree_leaves(many), strict=True)
    return all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in pairs)


def _near(one: Any, many: Any) -> bool:
    """True if all tensors (C, ...) are equal, in each row up to NEAR of its largest finite value.
    Several numbers (C,) are one row.
    """
    for a, b in zip(tree_leaves(one), tree_leaves(many), strict=True):
        row, other = (v.double().reshape(len(v) if v.ndim > 1 else 1, -1) for v in (a, b))
        if not b.numel():
            continue
        largest = torch.where(other.isfinite(), other.abs(), 0.0).amax(1, keepdim=True)
        bound = NEAR * largest.clamp(min=NOTHING)
        if not torch.allclose(row / bound, other / bound, rtol=0.0, atol=1.0, equal_nan=True):
            return False
    return True


class StepContext(NamedTuple):
    """What steps read beside their arguments. kind: what decides their operations beside shapes."""

    tensors: list[Tensor]
    kind: Hashable
    model_state: ModelState

    @classmethod
    def of(cls, others: Iterable[Any], model_state: ModelState, kind: Hashable) -> StepContext:
        """The tensors among others, and those in the model."""
        values = [*others, *model_state()]
        tensors = [v for v in values if isinstance(v, Tensor)]
        numbers = [v for v in values if isinstance(v, int | float)]
        return cls(tensors, (kind, _like(tensors), tuple(numbers)), model_state)


@dataclass
class Record:
    """A step, written down in a round. counts: {batch: how many} that it adds to each of Counts.
    seconds: of the step and of the replay, in each check; later: one was in a later round.
    """

    replay: Replay
    counts: list[dict[int, int]]
    round: int
    seconds: list[tuple[float, float]] = field(default_factory=list)
    later: bool = False

    def needs_check(self, round: int) -> bool:
        """Whether a step of this round is computed both ways."""
        return len(self.seconds) < CHECKS or (not self.later and round != self.round)

    def check(self, same: bool, seconds_of_both: tuple[float, float], round: int) -> str:
        """Why it is forgotten after a check, "" if it stays."""
        self.seconds.append(seconds_of_both)
        self.later = round != self.round
        slow, fast = (min(seconds) for seconds in zip(*self.seconds, strict=True))
        if not same:
            return "a replay has other bits than the step: it keeps a number between calls"
        if len(self.seconds) >= CHECKS and fast > FASTER * slow:
            return f"a replay takes {fast / slow:.2f} of a step's time"
        return ""


class Recorded:
    """The steps of a run, replayed where that changes nothing but the time. threads: of a step;
    after: see AFTER; clock: seconds, not those of other programs on a CPU; exact: to the bit, which
    CUDA does not promise. refused: {what a step is: why it is not replayed}.
    """

    def __init__(
        self,
        threads: Threads | None = None,
        after: int | None = None,
        clock: Callable[[], float] = time.process_time,
        exact: bool = True,
    ) -> None:
        self._threads, self._clock, self._exact = threads or Threads(1), clock, exact
        usual = AFTER if exact else AFTER_ON_CUDA
        # the first step of a shape is the one that threads are tried on
        self._after = max(usual if after is None else after, int(self._threads.number > 1))
        self._occurrences, self._records = Counter[Hashable](), dict[Hashable, Record]()
        self._step_seconds: dict[Hashable, float] = {}  # by the last step before the recording
        self.refused: dict[Hashable, str] = {}
        self.recordings = self.replayed = 0

    def step(
        self,
        shape: Hashable,
        do: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: StepContext,
        counts: Counts,
        place: tuple[int, int],
    ) -> Any:
        """do(*arguments), a tuple of records, or what a replay of it gives. shape: see
        Threads.step; counts: of what `do` does; place: its round and step.
        """
        tensors = tensors_of(*arguments)
        inputs = [*tensors, *context.tensors]
        first: dict[int, int] = {}  # one tensor may be several inputs
        same = tuple(first.setdefault(id(v), n) for n, v in enumerate(inputs))
        key, device = (shape, context.kind, _like(tensors), same), inputs[0].device

        record = self._records.get(key)
        if record is not None and not record.needs_check(place[0]):
            self.replayed += 1
            beat()
            for counter, new in zip(counts, record.counts, strict=True):
                counter.update({(place[1], batch): count for batch, count in new.items()})
            return self._threads.step(shape, lambda *_: record.replay(inputs), arguments, _nothing)
        before = [counter.copy() for counter in counts]

        def computed(work: Callable[..., Any]) -> Any:
            return self._threads.step(shape, work, arguments, lambda: _set(counts, before))

        if record is None:
            self._occurrences[key] += 1
            number = self._occurrences[key]
            if number == self._after:
                result, self._step_seconds[key] = self._timed(computed, do, device)
                return result
            if number < self._after or key in self.refused or self.recordings >= MOST:
                return computed(do)
            step = self._record_step(key, computed, do, inputs, context.model_state)
            if step is None:
                _set(counts, before)
                return computed(do)
            if key not in self.refused:
                self._records[key] = Record(step.replay, _new(counts, before), place[0])
            return step.result
        result, slow = self._timed(computed, do, device)
        other, fast = self._timed(computed, lambda *_: record.replay(inputs), device)
        alike = (same_bytes if self._exact else _near)(result, other)
        if why := record.check(alike, (slow, fast), place[0]):
            self._refuse(key, why)
        return result

    def forget(self) -> bool:
        """Forget all records, whose memory a GPU needs, and make no others -> whether there were
        any.
        """
        were = bool(self._records)
        self._records.clear()
        self.recordings = MOST
        torch.cuda.empty_cache()
        return were

    def _record_step(
        self,
        key: Hashable,
        computed: Callable[..., Any],
        do: Callable[..., Any],
        inputs: list[Tensor],
        model_state: ModelState,
    ) -> StepGraph | None:
        """A step that is written down; None if that fails, perhaps by an error of the step's."""
        self.recordings += 1
        try:
            step: StepGraph = computed(lambda *now: write_step(do, now, inputs, model_state))
        except CaptureError as error:
            self.recordings = MOST
            self._refuse(key, str(error))
            return None
        except Exception as error:
            self._refuse(key, f"recording it fails: {error}")
            return None
        each = self._step_seconds.pop(key, 0.0) / max(1, step.operations)
        if step.why:
            self._refuse(key, step.why)
        elif self._exact and each > LONG:
            self._refuse(key, f"its operations take {1e6 * each:.0f} microseconds each")
        return step

    def _refuse(self, key: Hashable, why: str) -> None:
        """Replay no such step, and say why."""
        self._records.pop(key, None)
        if why not in self.refused.values():
            _log.info("many clients at once: some steps are not recorded and replayed: %s", why)
        self.refused[key] = why

    def _timed(
        self, computed: Callable[..., Any], work: Callable[..., Any], device: torch.device
    ) -> tuple[Any, float]:
        wait_for(device)
        start = self._clock()
        result = computed(work)
        wait_for(device)
        return result, self._clock() - start


def _nothing() -> None:
    """The threads of a step that is replayed are known: it is not tried."""


def _like(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((v.shape, v.stride(), v.dtype) for v in tensors)


def _set(counts: Counts, to: Sequence[Counter[tuple[int, int]]]) -> None:
    for counter, old in zip(counts, to, strict=True):
        counter.clear()
        counter.update(old)


def _new(counts: Counts, before: Sequence[Counter[tuple[int, int]]]) -> list[dict[int, int]]:
    """What one step has counted, by batch."""
    pairs = zip(counts, before, strict=True)
    return [{batch: n for (_, batch), n in (now - old).items()} for now, old in pairs]
