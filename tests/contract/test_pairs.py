"""Which pairs of parts have a meaning; the others are refused by name. That those that have one run
the same everywhere is in test_engines_agree.py.
"""

from __future__ import annotations

import pairs
import pytest
import torch
from pairs import AXES

from fedloom import LocalSGD
from fedloom.checks.tiny_federation import experiment, run
from fedloom.core.vector import rec
from fedloom.engines import Serial
from fedloom.errors import CompositionError

REFUSED = [pair for pair in pairs.pairs() if pairs.refusal(pair)]


# ------------------------------------------------------------------------------------- the covering
def test_every_pair_that_has_a_meaning_is_met_and_no_other():
    met = {pair for mix in pairs.mixes() for pair in pairs.pairs_of(dict(mix))}
    assert met == set(pairs.pairs()) - set(REFUSED)
    assert all(list(dict(mix)) == list(AXES) for mix in pairs.mixes())


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


class Counts(LocalSGD):
    """Sends a number of the job, and one that it computes."""

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, k=job.steps, length=delta.norm(), weight=job.weight), mem

    def unweighted(self, up, job):
        return rec(k=up.k, length=up.length)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_in_an_answer_costs_a_double_in_every_engine(dtype, engine_of):
    for engine in ("serial", "vectorised:3", engine_of("workers:2")):
        end = run(experiment(dtype, algorithm=Counts(), engine=engine))
        answers = sum(row["answered"] for row in end.history)
        assert end.up["k"] == end.up["length"] == end.up["weight"] == 8 * answers
