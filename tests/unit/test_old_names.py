"""Settings that were called otherwise in fedloom 0.1 still work, with a warning."""

from __future__ import annotations

import pytest

import fedloom
from fedloom import Checkpoint, Evaluation, FedAvg, LocalSGD
from fedloom.config import from_run, resolve
from fedloom.errors import ConfigError
from fedloom.objectives import MOON, CrossEntropy
from fedloom.submodels import HeteroFL
from tiny import small


def test_a_setting_has_the_name_that_it_has_in_a_file():
    with pytest.warns(DeprecationWarning) as said:
        often = fedloom.Saving(rounds=2, seconds=None)
        run = small(FedAvg(), loss=MOON(), evaluation=Evaluation(every=3), saving=often)
        assert (run.loss, run.evaluation, run.saving) == (run.objective, run.evaluate, often)
        assert often.rounds == 2
    assert often == Checkpoint(every_rounds=2, every_seconds=None)
    assert run.objective == MOON() and run.evaluate.every == 3
    words = " ".join(str(w.message) for w in said)
    for old, new in (("loss", "objective"), ("saving", "checkpoint"), ("seconds", "every_seconds")):
        assert f"{old} is now called {new}" in words
    with pytest.raises(ConfigError, match="both are given; keep objective"):
        small(FedAvg(), loss=MOON(), objective=MOON())


def test_an_old_key_of_a_file_warns_and_works(tmp_path, caplog):
    (tmp_path / "config.toml").write_text(
        resolve("digits").to_toml() + "\n[memory]\nresident_bytes = 7\n"
    )
    assert from_run(tmp_path).values["resident_bytes"] == 7 and not caplog.text
    found = resolve(tmp_path / "config.toml", ["memory.resident_bytes=8"])
    assert found.values["resident_bytes"] == 8 and "memory" not in found.values
    assert caplog.text.count("memory.resident_bytes is now called resident_bytes") == 2


OLD = [
    (LocalSGD, "linear", "sent"),
    (LocalSGD, "partial", "WHOLE_MODEL"),
    (CrossEntropy, "whole", "leave the line out"),
    (CrossEntropy, "carries", "leave the line out"),
    (CrossEntropy, "named", "name="),
    (CrossEntropy, "exits", "Needs.EXITS"),
    (CrossEntropy, "drawn", "Needs.DRAWN_PARTS"),
    (CrossEntropy, "ordered", "Needs.TEXT_ORDER"),
    (HeteroFL, "title", "the class's name"),
    (HeteroFL, "exits", "Needs.EXITS"),
    (HeteroFL, "ordered", "Needs.DRAWN_PARTS"),
]


@pytest.mark.parametrize("base, name, instead", OLD)
def test_an_old_declaration_says_what_to_write(base, name, instead):
    with pytest.raises(ConfigError, match=f"Own.{name} was a declaration.*{instead}"):
        type("Own", (base,), {name: ()})
