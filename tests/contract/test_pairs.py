"""All parts with each other: every pair of values of two axes, in every engine.

`make test` runs a cut with the methods in cases.QUICK in which every value of every other axis
occurs; `make test-all` runs all pairs.
"""

from __future__ import annotations

import functools

import pairs
import pytest
import torch
from pairs import AXES

from cases import QUICK
from fedloom import LocalSGD
from fedloom.checks.audit import Audited
from fedloom.checks.compare import unequal, unlike
from fedloom.checks.purity import Watch
from fedloom.checks.tiny_federation import End, experiment, finish, run
from fedloom.core.vector import rec
from fedloom.engines import Serial
from fedloom.errors import CompositionError
from fedloom.storage.run_directory import Checkpoint

CUT = pairs.cut()
MIXES = [
    pytest.param(dict(mix), marks=[] if mix in CUT else pytest.mark.slow, id=pairs.shown(mix))
    for mix in pairs.mixes()
]
# two processes for every second mix of the cut, and a stop and a resume for the others
SOME = [
    pytest.param(m.values[0], marks=m.marks or ([pytest.mark.slow] if n % 2 else []), id=m.id)
    for n, m in enumerate(MIXES)
]
OTHERS = [
    pytest.param(m.values[0], marks=m.marks or ([] if n % 2 else [pytest.mark.slow]), id=m.id)
    for n, m in enumerate(MIXES)
]
REFUSED = [pair for pair in pairs.pairs() if pairs.refusal(pair)]
CHUNK = "vectorised:3"


# ------------------------------------------------------------------------------------- the covering
def test_every_pair_that_has_a_meaning_is_met_and_no_other():
    met = {pair for mix in pairs.mixes() for pair in pairs.pairs_of(dict(mix))}
    assert met == set(pairs.pairs()) - set(REFUSED)
    assert all(list(dict(mix)) == list(AXES) for mix in pairs.mixes())


def test_the_cut_has_every_value_of_every_axis_and_some_methods():
    assert {value for mix in CUT for value in mix} == {
        (axis, value)
        for axis, values in AXES.items()
        for value in (QUICK if axis == "algorithm" else values)
    }


@pytest.mark.slow
def test_every_mix_has_a_meaning():
    for mix in pairs.mixes():
        pairs.trial(dict(mix)).build()


class NeverOpened(Serial):
    def open(self, plan, fed, net):
        raise AssertionError("it ran")


@pytest.mark.parametrize("pair", REFUSED, ids=lambda pair: f"{pair[0][1]}-{pair[1][1]}")
def test_a_pair_without_meaning_is_refused_by_name_before_anything_runs(pair, tmp_path):
    one, other = pairs.refusal(pair)
    with pytest.raises(CompositionError) as caught:
        trial = pairs.trial(pairs.with_only(pair), engine=NeverOpened())
        trial.run(tmp_path / "run")
    text = str(caught.value)
    assert one in text and other in text and "\n" not in text
    assert ":" in text, "and says why"
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------- every mix
@functools.cache
def serial(mix: tuple[tuple[str, str], ...], dtype: torch.dtype) -> End:
    return run(pairs.trial(dict(mix), dtype))


def bits_agree(end: End, want: End) -> None:
    assert not unequal(end.srv, want.srv)
    assert end.memory.keys() == want.memory.keys()
    for i in want.memory:
        assert not unequal(end.memory[i], want.memory[i]), f"client {i}"
    assert end[2:] == want[2:]


@pytest.mark.parametrize("mix", MIXES)
def test_vectorised_agrees_with_serial_and_both_bills_are_true(mix):
    close, audit = pairs.tolerance(mix), Audited()
    want = run(pairs.trial(mix, torch.float64, engine=audit))
    end = run(pairs.trial(mix, torch.float64, engine=CHUNK))
    assert (end.up, end.down) == (want.up, want.down) == (dict(audit.up), dict(audit.down))
    assert not unlike(end.srv, want.srv, close)
    for i in want.memory:
        assert not unlike(end.memory[i], want.memory[i], close), f"client {i}"
    for row, other in zip(end.history, want.history, strict=True):
        for name, value in other.items():
            assert row[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    for name in ("steps", "gradients", "bytes_up", "bytes_down", "answered"):
        assert [row[name] for row in end.history] == [row[name] for row in want.history]


@pytest.mark.parametrize("mix", SOME)
def test_workers_have_the_bits_of_serial(mix, engine_of):
    want = serial(tuple(mix.items()), torch.float32)
    bits_agree(run(pairs.trial(mix, engine=engine_of("workers:2"))), want)


@pytest.mark.parametrize("mix", SOME)
def test_no_argument_is_changed_and_every_method_is_a_function(mix):
    want = serial(tuple(mix.items()), torch.float32)
    watch = Watch(inner=pairs.trial(mix).algorithm)
    end = run(pairs.trial(mix, algorithm=watch))
    assert not watch.notes.broken
    assert not unequal(end.srv, want.srv)
    assert (end.up, end.down) == (want.up, want.down)


@pytest.mark.parametrize("mix", OTHERS)
def test_a_run_that_is_resumed_has_the_bits_of_one_that_never_stopped(mix, tmp_path):
    saving = Checkpoint(every_rounds=1, every_seconds=None)
    pairs.trial(mix, rounds=2, checkpoint=saving).run(tmp_path / "run")
    second = pairs.trial(mix, checkpoint=saving)
    second.resume(tmp_path / "run")
    bits_agree(finish(second.loop), serial(tuple(mix.items()), torch.float32))


class Counts(LocalSGD):
    """Sends a number of the job, and one that it computes."""

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, k=job.steps, length=delta.norm(), weight=job.weight), mem

    def uniform(self, up, job):
        return rec(k=up.k, length=up.length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_in_an_answer_costs_a_double_in_every_engine(dtype, engine_of):
    for engine in ("serial", CHUNK, engine_of("workers:2")):
        end = run(experiment(dtype, algorithm=Counts(), engine=engine))
        answers = sum(row["answered"] for row in end.history)
        assert end.up["k"] == end.up["length"] == end.up["weight"] == 8 * answers
