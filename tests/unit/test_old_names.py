"""Settings that were called otherwise in fedloom 0.1 still work, with a warning."""

from __future__ import annotations

import json

import pytest

import fedloom
from fedloom import Checkpoint, Churn, Evaluation, FedAvg, LocalSGD
from fedloom.config import from_run, resolve
from fedloom.config.overrides import refuse_repeats
from fedloom.errors import ConfigError
from fedloom.objectives import MOON, CrossEntropy
from fedloom.report import load_run
from fedloom.storage.identity import group_of, run_digest
from fedloom.submodels import HeteroFL
from tiny import results_agree, small


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


def test_turnover_is_the_old_name_of_churn(tmp_path, caplog):
    """Of a file and of a change on the line: the run, its digest and its group are the same."""
    found = resolve("digits", ["churn.active=25"])
    file = tmp_path / "old.toml"
    file.write_text(found.to_toml().replace("[churn]", "[turnover]"))
    assert not caplog.text
    for old in (resolve(file), resolve("digits", ["turnover.active=25"])):
        assert old.values == {**found.values, "name": old.values["name"]}
    assert caplog.text.count("turnover is now called churn") == 1
    assert caplog.text.count("turnover.active is now called churn.active") == 1
    raw = {k: v for k, v in found.values.items() if k != "churn"}
    raw["turnover"] = found.values["churn"]
    for values in (raw, found.values):  # as before the new name
        assert (run_digest(values), group_of(values)) == ("74a045908fad", "fedavg-73773f88")
    file.write_text(file.read_text() + "\n[churn]\nactive = 5\n")
    with pytest.raises(ConfigError, match="turnover and churn are both given; keep churn"):
        resolve(file)
    with pytest.raises(ConfigError, match=r"churn\.active two values"):
        refuse_repeats(["turnover.active=25", "churn.active=5"])


def test_a_run_of_the_old_name_goes_on(tmp_path):
    """A folder as fedloom wrote it before: of Python objects, whose class was called Turnover."""
    often = Checkpoint(every_rounds=1, every_seconds=None)
    with pytest.warns(DeprecationWarning) as said:
        old = fedloom.Turnover(active=4, every=2)
        small(FedAvg(), rounds=2, cohort=3, turnover=old, checkpoint=often).run(tmp_path / "run")
    words = " ".join(str(w.message) for w in said)
    assert "fedloom.Turnover is now Churn" in words and "turnover is now called churn" in words
    config, marks = (tmp_path / "run" / name for name in ("config.toml", "fingerprint.json"))
    known = json.loads(marks.read_text())
    assert (known["turnover"], known["cohort"]) == ("7a91b06a92e3", "3ad700836370")  # as before
    new = load_run(tmp_path / "run").config
    text = config.read_text()
    assert '[churn]\nname = "Churn"' in text
    (tmp_path / "run" / "manifest.json").unlink()
    config.write_text(text.replace('[churn]\nname = "Churn"', '[turnover]\nname = "Turnover"'))
    assert load_run(tmp_path / "run").config == new
    given = {"cohort": 3, "churn": Churn(active=4, every=2), "checkpoint": often}
    whole = small(FedAvg(), rounds=4, **given).run()
    results_agree(small(FedAvg(), rounds=4, **given).resume(tmp_path / "run"), whole)


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
