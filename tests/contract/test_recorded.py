"""A step that is recorded once and replayed has the bits, the costs and the losses of one that is
computed anew, in every kind of run (tests/cases.py); what cannot be replayed is computed anew.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_engines_agree import MIXES, agree_within, bits_agree
from test_engines_agree import end as contract_end

from cases import CASES
from fedloom import FedAvg
from fedloom.checks import check
from fedloom.checks.tiny_federation import Trial
from fedloom.cli.dry_run import measure
from fedloom.core.vector import Rec, Vec, rec
from fedloom.engines import Streams, Vectorised, recorded
from fedloom.engines.recorded import Record, Recorded, StepContext, Threads
from fedloom.engines.together import Together
from fedloom.errors import ClientError, CompositionError
from tiny import small

pytestmark = pytest.mark.usefixtures("accounts_at_hand")

ALL = CASES | dict([*MIXES.items()][::3])  # every pair of parts is in several mixes
NONE = {"constant buffers, a client alone"}  # one client after another
# beside these all are slow: a method of each kind, what changes by round, what models and stages
# hold, private gradients
QUICK = {
    *("fedavg", "fedsmoo", "mime", "fednova, momentum", "Draws", "transformer", "late, parts"),
    *("fiarse", "FedRep", "private examples", "way down, both", "constant buffers"),
}


def end(
    make: Callable[..., Trial], after: int, kind: type[Vectorised] = Vectorised
) -> tuple[dict[str, Any], Recorded]:
    """How a run ends in chunks of 4, and its records. after: see Recorded."""
    engine = kind(4, after)
    return contract_end(make(engine=engine)), engine.recorded


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is used as soon as it is made, without the checks that would find it wrong."""
    monkeypatch.setattr(Record, "needs_check", lambda self, round: False)
    monkeypatch.setattr(recorded, "MOST", 10**9)


def _cases() -> list[Any]:
    assert CASES.keys() >= QUICK
    slow = lambda name: [] if name in QUICK else pytest.mark.slow
    return [pytest.param(n, id=n, marks=slow(n)) for n, case in ALL.items() if not case.alone]


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("name", _cases())
def test_every_kind_of_run_has_the_bits_of_steps_that_are_computed_anew(name: str) -> None:
    """after = 0: the second step of a shape replays the first, of another client, step or round."""
    result, replays = end(ALL[name].make, 0)
    anew, none = end(ALL[name].make, 10**9)
    bits_agree(result, anew)
    assert none.recordings == 0
    if name in NONE:
        assert not replays.recordings
    elif name.startswith("constant buffers"):  # they count their calls
        assert "the model changes what it holds" in replays.refused.values()
        assert not replays.replayed
    elif "feddecorr" in name and not replays.recordings:
        assert not replays.refused  # it looks at whole batches: here each client trains alone
    else:
        assert replays.replayed and not replays.refused


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("name", _cases())
def test_clients_row_by_row_are_replayed_and_agree_with_one_after_another(name: str) -> None:
    """Replays to the bit, without vmap to rounding."""
    make = functools.partial(ALL[name].make, dtype=torch.float64)
    if name.startswith("constant buffers"):
        with pytest.raises(
            CompositionError, match=r"streams and .*: it changes its buffer 'calls'"
        ):
            end(make, 0, Streams)
        return
    result, replays = end(make, 0, Streams)
    bits_agree(result, end(make, 10**9, Streams)[0])
    agree_within(ALL[name].close, result, contract_end(make()))
    assert bool(replays.replayed) is ("feddecorr" not in name) and not replays.refused


# ----------------------------------------------------------------------------- what is not recorded
OF_NOBODY = "it reads a tensor [102] of neither model, part nor loc (test_recorded.py, line "
TABLE = torch.full((102,), 0.5)
FACTORS: dict[str, Callable[[Rec], Any]] = {  # of the message, which is one for all clients
    "a value": lambda msg: 1.0 if float(msg.x.norm()) > 2.5 else 0.5,
    "a list": lambda msg: 1.0 if max(msg.x.tolist()) > 0.6 else 0.5,
    "a tensor of its file": lambda msg: TABLE,
    "chance": lambda msg: random.random(),
}


class Scaled(FedAvg):
    """Steps along the gradient times what a replay does not see change."""

    by: str

    def direction(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Any, job: Any) -> Any:
        return grad(x) * FACTORS[self.by](msg), loc


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("a value", "it reads a value (aten._local_scalar_dense.default) (test_recorded.py, line "),
        ("a list", "it reads a value (tolist) (test_recorded.py, line "),
        ("a tensor of its file", OF_NOBODY),
        ("chance", "it draws random numbers of Python's or numpy's"),
    ],
)
def test_a_method_that_cannot_be_replayed_runs_as_it_is_and_is_named_once(
    by: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    make = lambda engine: small(Scaled(by=by), engine=engine)
    with caplog.at_level(logging.INFO, "fedloom"):
        result, replays = end(make, 0)
    bits_agree(result, end(make, 10**9)[0])
    assert replays.recordings and not replays.replayed
    said = [r.getMessage() for r in caplog.records if "recorded" in r.getMessage()]
    assert len(said) == 1 and why in said[0]


def test_check_and_the_estimate_say_what_cannot_be_replayed() -> None:
    for method, reason in ((Scaled(by="a tensor of its file"), OF_NOBODY), (FedAvg(), "")):
        for engine in ("vectorised:4", "auto+vectorised:4", "streams:4"):
            cost = measure(small(method, engine=engine))
            assert cost.not_replayed.startswith(reason)
            assert bool(cost.not_replayed) is bool(reason)
    (row,) = (
        o for o in check(Scaled(by="a value"), ()).outcomes if o.name == "steps can be replayed"
    )
    assert row.passed is None and "(test_recorded.py, line " in row.why
    (row,) = (o for o in check(FedAvg(), ()).outcomes if o.name == "steps can be replayed")
    assert row.passed


# ------------------------------------------------------------------------------------ a single step
class Steps:
    """Steps of a function of one record, on a clock of its own; so many seconds each."""

    def __init__(self, do: Callable[..., Any], slow: float = 2e-4, fast: float = 1e-4) -> None:
        self.now, self.calls, self.seconds = 0.0, 0, (slow, fast)
        self.do, self.counts = do, (Counter[tuple[int, int]](),)
        self.recorded = Recorded(after=1, clock=self.time)
        self._told = 0

    def time(self) -> float:
        """A step that was called since the last time took `slow`, a replay `fast`."""
        self.now += self.seconds[self.calls == self._told]
        self._told = self.calls
        return self.now

    def __call__(
        self, x: torch.Tensor, round: int = 0, known: tuple[torch.Tensor, ...] = ()
    ) -> Any:
        def do(given: Rec) -> Any:
            self.calls += 1
            self.counts[0][self.calls, -1] += 1
            return (self.do(given.x),)

        beside = StepContext.of(known, list, "step")
        return self.recorded.step("shape", do, (rec(x=x),), beside, self.counts, (round, 9))[0]


QUICKER = (2e-4, 1e-4)
doubled = lambda x: x * 2


def test_a_record_is_checked_three_times_and_in_a_later_round_and_then_used() -> None:
    steps, called = Steps(doubled), []
    for n, round in enumerate((0, 0, 0, 0, 0, 0, 0, 1, 1, 2)):
        x = torch.arange(3.0) + n
        assert torch.equal(steps(x, round), 2 * x)
        called.append(steps.calls)
    assert called == [1, 2, 3, 4, 5, 5, 5, 6, 6, 6]
    assert steps.recorded.replayed == 4 and not steps.recorded.refused


@pytest.mark.parametrize("when", [3, 7])
def test_a_number_that_changes_between_calls_is_found_by_the_checks(when: int) -> None:
    """In the round of the recording, or in a later one."""
    number = 1.0
    steps = Steps(lambda x: x * number)
    for n in range(10):
        number = 1.0 if n < when else 5.0
        assert steps(torch.ones(2), int(n >= when)).tolist() == [number] * 2
    assert "other bits" in next(iter(steps.recorded.refused.values()))


@pytest.mark.parametrize(
    ("drift", "beside", "found"),
    [
        (1e-4, 0.0, False),
        (1e-2, 0.0, True),
        (1e-4, math.nan, False),
        (1e-2, math.nan, True),
        (1e-4, math.inf, False),
        (1e-2, math.inf, True),
    ],
)
def test_on_cuda_the_checks_ask_for_rounding_and_not_for_bits(
    drift: float, beside: float, found: bool
) -> None:
    number = 1.0
    steps = Steps(lambda x: x * number)
    steps.recorded = Recorded(after=1, clock=steps.time, exact=False)
    for n in range(10):
        number = 1.0 + drift * (n > 2)
        steps(torch.tensor([1.0, -50.0, beside]))
    assert bool(steps.recorded.refused) is found


@pytest.mark.usefixtures("_unchecked")
def test_if_memory_runs_out_the_records_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clients of the chunk begin again, with the same bits; without records it is an error."""
    engine, real = Vectorised(4, 0), Together.advance

    def advance(self: Together, *given: Any) -> Any:
        result = real(self, *given)
        if full(engine.recorded.replayed):
            raise torch.OutOfMemoryError("full")
        return result

    forgotten = lambda: engine.recorded.recordings == recorded.MOST
    full = lambda replayed: replayed > 3 and not forgotten()
    monkeypatch.setattr(Together, "advance", advance)
    result = contract_end(small(FedAvg(), engine=engine))
    bits_agree(result, end(functools.partial(small, FedAvg()), 10**9)[0])
    assert engine.recorded.replayed == 4 and forgotten()
    full = lambda replayed: True
    with pytest.raises(ClientError, match="4 clients at once do not fit into the memory"):
        contract_end(small(FedAvg(), engine=engine))


def test_what_a_step_counts_is_counted_by_its_replays_at_their_place() -> None:
    steps = Steps(doubled)
    for _ in range(8):
        steps(torch.ones(2))
    assert steps.counts[0][9, -1] == steps.recorded.replayed == 3


def test_inputs_of_other_shapes_strides_and_identities_have_records_of_their_own() -> None:
    known = torch.ones(2, 2)
    steps = Steps(lambda x: (x * known).view(-1) if x.is_contiguous() else x + known)
    wide, square = torch.arange(8.0).view(2, 4)[:, ::2], torch.arange(4.0).view(2, 2)
    for n in range(7):
        wide += n
        assert torch.equal(steps(wide, 0, (known,)), wide + known)
        assert torch.equal(steps(square + n, 0, (known,)), (square + n).view(-1))
        assert torch.equal(steps(square.t(), 0, (known,)), square.t() + known)
        assert torch.equal(steps(known, 0, (known,)), (known * known).view(-1))
    assert steps.recorded.recordings == 4


def branches(x: torch.Tensor) -> torch.Tensor:
    own = torch.zeros(2)
    own[0] = x.sum()  # through a view of it
    return x * 2 if float(own.sum()) > -9 else x


def writes(x: torch.Tensor) -> torch.Tensor:
    total = torch.tensor(1.0)
    total += x.sum()
    own = x + total
    own.detach().unsqueeze_(0).add_(1)  # which is another view of the same memory
    return own


# a step, the seconds that it and its replay take, and why it is not replayed
STEPS: dict[str, tuple[Callable[..., Any], tuple[float, float], str]] = {
    "writes into what it made": (writes, QUICKER, ""),
    "gives a view": (lambda x: torch.ones(2).expand(2), QUICKER, ""),
    "reads a constant": (lambda x: x * float(torch.tensor(3.0)), QUICKER, ""),
    "gains nothing": (doubled, (1e-4, 0.98e-4), "a replay takes 0.98 of a step's time"),
    "few long operations": (doubled, (1.0, 0.5), "microseconds each"),
    "writes into what it is given": (
        lambda x: x.add_(1).clone(),
        QUICKER,
        "it writes into a tensor that it is given",
    ),
    "draws": (lambda x: x + 0 * torch.rand(2), QUICKER, "it draws from torch's generator"),
    "draws numpy's": (
        lambda x: x + 0 * float(np.random.rand()),
        QUICKER,
        "it draws random numbers of Python's or numpy's",
    ),
    "reads what it wrote": (branches, QUICKER, "it reads a value"),
    "has a length that is a value": (lambda x: x[x > -1], QUICKER, "it reads a value"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_is_replayed_where_that_is_the_same_and_quicker(kind: str) -> None:
    do, seconds, why = STEPS[kind]
    steps = Steps(do, *seconds)
    for n in range(9):
        x = torch.full((2,), float(n))
        assert torch.equal(steps(x.clone()), do(x.clone()))
    refused = [*steps.recorded.refused.values()]
    assert bool(steps.recorded.replayed) is not bool(why) and steps.recorded.recordings == 1
    assert (len(refused) == 1 and why in refused[0]) if why else not refused
    assert steps.calls == 9 or not why


def test_a_step_that_cannot_be_recorded_is_done_and_an_error_of_its_own_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(do: Any, arguments: Any, *rest: Any) -> None:
        do(*arguments)
        raise RuntimeError("no")

    monkeypatch.setattr(recorded, "write_step", fails)
    steps = Steps(doubled)
    for n in range(5):
        assert steps(torch.full((2,), float(n))).tolist() == [2.0 * n] * 2
    assert [*steps.recorded.refused.values()] == ["recording it fails: no"]
    assert sorted(steps.counts[0].values()) == [1] * 5  # that of the failure is not counted
    monkeypatch.undo()
    steps = Steps(lambda x: x @ torch.ones(len(x) if steps.calls < 2 else 7))
    steps(torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        steps(torch.ones(3))


def test_a_run_records_no_more_than_so_many_steps() -> None:
    steps = Steps(doubled)
    for length in range(1, 40):
        for _ in range(3):
            steps(torch.ones(length))
    assert steps.recorded.recordings == recorded.MOST


def test_a_record_keeps_no_tensor_of_the_step_that_it_was_made_of() -> None:
    steps, known = Steps(lambda x: (x * 2).sum()), torch.ones(5)
    x = torch.ones(3)
    seen = [weakref.ref(v) for v in (x, known)]
    for _ in range(8):
        seen.append(weakref.ref(steps(x, 0, (known,))))
    del x, known
    assert steps.recorded.replayed and not any(ref() is not None for ref in seen)


def test_replays_have_the_threads_of_the_step() -> None:
    asked: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        asked.append(torch.get_num_threads())
        return x * 2

    steps, clock = Steps(step), iter([0.0, 9.0, 0.0, 1.0, 0.0, 9.0, *[0.0] * 99])
    steps.recorded = Recorded(Threads(2, lambda: next(clock)), after=1, clock=steps.time)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(8):
            assert steps(torch.ones(2)).tolist() == [2.0, 2.0]
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert asked == [1, 2, 1, 2, 2, 2, 2] and steps.recorded.replayed == 3
