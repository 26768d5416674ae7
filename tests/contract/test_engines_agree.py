"""Every kind of run (tests/cases.py) is the same run in every engine, after a stop, and by the
plainest loop there is.

Serial is the measure. Workers, ranks, naive loops and resumed runs have its bits; many clients at
once agree in float64 to rounding, and in float32 to the documented bound.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pairs
import pytest
import torch
from naive import Naive

from cases import CASES, METHODS, Case, named
from fedloom import Checkpoint
from fedloom.checks.compare import CallRecorder, unequal, unlike
from fedloom.checks.engine_agreement import Audited
from fedloom.checks.tiny_federation import Trial
from fedloom.server.rounds import Run
from support import ranks
from support.rank_cases import ALL as EVERY_RANK
from support.rank_cases import CUT

AT_THE_END = Checkpoint(every_seconds=None)
MIXES = {
    f"mix, {pairs.shown(mix)}": Case(pairs.maker(dict(mix)), pairs.tolerance(dict(mix)), slow=slow)
    for mix, slow in pairs.to_run()
}
ALL = CASES | MIXES

pytestmark = pytest.mark.usefixtures("accounts_at_hand")


def ended(run: Run) -> dict[str, Any]:
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in run.log.history]
    return {
        "srv": run.state.srv,
        "buffers": run.state.buffers,
        "stages": run.state.stages,
        "memory": run.memory.get(range(run.fed.population)),
        "up": dict(run.state.ledger.up),
        "down": dict(run.state.ledger.down),
        "history": history,
    }


def end(trial: Trial) -> dict[str, Any]:
    run = trial.build()
    run.engine.open(run.plan, run.fed, run.net)
    try:
        run.begin()
        run.until(trial.rounds)
        return ended(run)
    finally:
        run.engine.close()


def bits_agree(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not unequal(one, other)


def agree_within(close: float, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Costs and who took part to the last digit, tensors and what was measured to rounding."""
    for part in ("srv", "buffers", "stages", "memory"):
        assert not unlike(one[part], other[part], close), part
    assert (one["up"], one["down"]) == (other["up"], other["down"])
    for row, want in zip(one["history"], other["history"], strict=True):
        assert row.keys() == want.keys()
        for name, value in want.items():
            exact = not isinstance(value, float)
            assert row[name] == (value if exact else pytest.approx(value, rel=1e-6, abs=1e-9)), name


class Measure:
    def __init__(self, name: str) -> None:
        self.name, self.case = name, ALL[name]
        self.known: dict[torch.dtype, dict[str, Any]] = {}

    def end(self, dtype: torch.dtype = torch.float32, **changes: Any) -> dict[str, Any]:
        return end(self.case.make(dtype=dtype, **changes))

    def serial(self, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        if dtype not in self.known:
            self.known[dtype] = self.end(dtype)
        return self.known[dtype]


# of the module: the tests of one case follow each other, so that serial runs once for all of them
@pytest.fixture(scope="module", params=named(ALL))
def every(request: pytest.FixtureRequest) -> Measure:
    return Measure(request.param)


def only(which: Any) -> Any:
    return pytest.mark.parametrize("every", named(ALL, which), indirect=True)


def test_two_workers_have_the_bits_of_serial(every, engine_of):
    bits_agree(every.end(engine=engine_of("workers:2")), every.serial())


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(every, tmp_path):
    """The cohorts, the streams of text and the clock go on where they were, too."""
    rounds = every.case.make().rounds
    saving = {"checkpoint": AT_THE_END}
    every.case.make(**saving, rounds=rounds // 2).run(tmp_path / "run")
    torch.manual_seed(98)  # whatever the process drew before
    again = every.case.make(**saving, rounds=rounds)
    again.resume(tmp_path / "run")
    bits_agree(ended(again.loop), every.serial())


@only(lambda case: not case.alone)
def test_many_clients_at_once_agree_in_float64_and_both_bills_are_true(every):
    audit = Audited()
    alone = every.end(torch.float64, engine=audit if every.case.billed else "serial")
    bills = dict(audit.up), dict(audit.down)
    assert not every.case.billed or (alone["up"], alone["down"]) == bills
    at_once = every.end(torch.float64, engine="vectorised:3")
    agree_within(every.case.close, at_once, alone)


@only(lambda case: case.naive)
def test_serial_has_the_bits_of_a_naive_loop(every):
    bits_agree(every.end(engine=Naive()), every.serial())


@pytest.mark.parametrize("every", METHODS, indirect=True)
def test_in_float32_vectorised_stays_within_the_documented_bound(every):
    x = every.end(engine="vectorised:3")["srv"].x
    bound = 1e-3 if every.name == "fafed" else 1e-5
    torch.testing.assert_close(x, every.serial()["srv"].x, rtol=0, atol=bound)


@pytest.mark.parametrize("every", METHODS, indirect=True)
def test_float32_and_float64_are_the_same_method(every):
    # FAFED divides by sqrt(v) + 0.01: at the others' rate rounding grows with every round
    local = dataclasses.replace(every.case.make().local, lr=0.01)
    run = (lambda dtype: every.end(dtype, local=local)) if every.name == "fafed" else every.serial
    ends = [run(dtype)["srv"].x for dtype in (torch.float32, torch.float64)]
    torch.testing.assert_close(ends[0].double(), ends[1], rtol=0, atol=2e-4)


@pytest.mark.parametrize("every", [*METHODS, *named(MIXES)], indirect=True)
def test_no_argument_is_changed_and_every_method_is_a_function(every):
    watch = CallRecorder(inner=every.case.make().algorithm)
    result, want = every.end(algorithm=watch), every.serial()
    assert not watch.notes.broken and not unequal(result["srv"], want["srv"])
    assert (result["up"], result["down"]) == (want["up"], want["down"])


@pytest.mark.parametrize("every", ["scaffold", "fafed", "heterofl", "median"], indirect=True)
def test_workers_in_chunks_have_the_bits_of_vectorised(every, engine_of):
    both = every.end(engine=engine_of("workers:2+vectorised:2"))
    bits_agree(both, every.end(engine="vectorised:2"))


@pytest.mark.parametrize("every", ["scaffold", "our LSTM, fafed"], indirect=True)
@pytest.mark.parametrize("engine", ["workers:1", "workers:3", "vectorised:1", "vectorised:32"])
def test_however_many_workers_or_clients_at_once(every, engine, engine_of):
    result = every.end(torch.float64, engine=engine_of(engine))
    agree_within(every.case.close, result, every.serial(torch.float64))


# ------------------------------------------------------------------------------------------- ranks
def said(end: ranks.Ended) -> list[str]:
    """A rank's lines that are no warnings about a method."""
    return [line for line in end.err.splitlines() if line.startswith(("differs: ", "the loss"))]


def test_two_ranks_have_the_bits_of_one_process_and_fail_and_go_on_together(tmp_path):
    """A failure at one rank is everybody's; one process repeats, and goes on with, what two did."""
    from test_replay import agree as replay_agrees
    from test_replay import content

    from support.rank_cases import stateful

    ends = ranks.run(2, "quick", run := tmp_path / "run", seconds=300)
    assert ends[0].out.split("\n") == [*CUT, ""], ends
    for each in ends:
        assert each.code == 0, each.err
        assert said(each) == ["the loss of client 3 is wrong"]
    before = content(run)
    assert replay_agrees(lambda: stateful(6), run, 3)
    assert content(run) == before
    again, whole = stateful(6), stateful(6)
    again.resume(run)
    whole.run(tmp_path / "whole")
    bits_agree(ended(again.loop), ended(whole.loop))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_ranks_has_the_bits_of_one_process(size):
    ends = ranks.run(size, "agreement", "all", seconds=900)
    assert ends[0].out.split("\n") == [*EVERY_RANK, ""], ends
    for each in ends:
        assert each.code == 0 and not said(each), each.err
