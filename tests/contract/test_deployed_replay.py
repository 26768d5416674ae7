"""A federation's server repeats its half of a round of what its nodes sent, which it kept."""

from __future__ import annotations

import stat

import pytest
import torch
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.config import from_run, resolve
from fedloom.deployment.kept_updates import kept_rounds
from fedloom.deployment.replay import replay
from fedloom.deployment.server import serve
from fedloom.errors import CheckpointError, CompositionError, ConfigError
from support.places import PRIVATE, SMALL, Here, folder

pytest.importorskip("cryptography", reason="the extra flower is not installed")
KEPT = {"keep_updates": "updates.key"}
LAST = [*SMALL, "rounds=3", "checkpoint.every_rounds=1", "checkpoint.keep=9"]


def ran(tmp_path, *changes, off=(), **settings):
    """The folder of a federation that has run with kept updates."""
    sizes = (480, 479, 479) if off else (None,) * 3  # then nobody need join
    config = resolve("digits", [*LAST, *changes])
    fed = folder(tmp_path, config, sizes, 10 if off else None, **{**KEPT, **settings})
    serve(fed, lambda roll: Here(fed, off=off))
    return fed


def said(*words, code=0):
    found = CliRunner().invoke(cli, ["replay", *map(str, words)], prog_name="fedloom")
    assert found.exit_code == code, found.output
    return found.output


KINDS = {
    "plain": (),
    "states and codecs both ways": (
        "algorithm=scaffold",
        "compress=topk:0.1",
        "compress.down=int8",
    ),
    "an exchange before the steps": ("algorithm=mime",),
    "masks": ("submodel=fiarse", "submodel.capacities=[1.0,0.5]"),
    "one row each": ("aggregation=median",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_sent_what_the_simulation_says(kind, tmp_path):
    """The same run as a simulation has the same updates, which are computed again there."""
    changes = KINDS[kind]
    fed = ran(tmp_path, *changes)
    alone = resolve("digits", [*LAST, *changes, "engine=serial"]).experiment()
    alone.run(out=tmp_path / "alone")
    with (
        replay(fed.run, 2) as ours,
        from_run(tmp_path / "alone").experiment().replay(tmp_path / "alone", 2) as theirs,
    ):
        ours.go()
        theirs.go()
        assert ours.unlike is None and ours.row is not None and ours.cohort == theirs.cohort
        assert torch.equal(ours.after, theirs.after)
        for i in ours.cohort:
            a, b = ours.client(i), theirs.client(i)
            assert torch.equal(a.sent.up.delta, b.sent.up.delta) and a.sent.sizes == b.sent.sizes
        assert ours.blame() == theirs.blame()


def test_what_is_kept_is_nobodys_without_the_key(tmp_path):
    fed = ran(tmp_path, off=[1])
    key, files = fed.path / "updates.key", [*fed.updates.glob("*/round-*")]
    assert kept_rounds(fed) == [1, 2, 3] and len(files) == 6  # client 1 sent nothing
    assert {stat.S_IMODE(path.stat().st_mode) for path in [key, *files]} == {0o600}
    assert not any(b"FEDLOOM2" in path.read_bytes() for path in files)
    out = said(fed.run, "--round", 3, "--blame")
    assert "round 3 is as in the log" in out and "no answer within" in out
    shown = said(fed.path, "--round", 3, "--client", 2, "--out", tmp_path / "sent.safetensors")
    assert "its state  at its node" in shown and "step" not in shown.replace("local steps", "")

    files[0].rename(other := fed.updates / "00000002" / "round-0-1")  # it is bound to its place
    assert "another key or other bytes" in said(fed.run, "--round", 2, code=1)
    other.unlink()
    key.write_text("00" * 32)
    assert "another key or other bytes" in said(fed.run, "--round", 3, code=1)
    key.write_text("no key")
    assert "is no key" in said(fed.run, "--round", 3, code=2)
    key.unlink()
    assert "updates.key' cannot be read" in said(fed.run, "--round", 3, code=2)


def test_what_cannot_be_repeated_is_said(tmp_path):
    fed = ran(tmp_path)
    assert "of round 7" in said(fed.run, "--round", 7, code=1)
    assert "at its node" in said(fed.run, "--round", 1, "--client", 0, "--step", 1, code=2)
    assert "leave out engine=serial" in said(fed.run, "engine=serial", "--round", 1, code=2)
    fed.settings_file.write_text(fed.settings_file.read_text().replace("updates.key", ""))
    with pytest.raises(ConfigError, match=r"keep_updates of .* is empty"), replay(fed.run, 1):
        pass


def test_private_updates_are_not_kept(tmp_path):
    pytest.importorskip("dp_accounting")
    with pytest.raises(CompositionError, match="keep_updates"):
        ran(tmp_path, *PRIVATE)


def test_a_new_run_in_the_folder_keeps_nothing_of_the_old_one(tmp_path):
    fed = ran(tmp_path)
    for path in sorted(fed.run.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for i in range(3):
        for path in sorted((fed.node(i).path / "states").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (fed.updates / "00000009").mkdir()
    serve(fed, lambda roll: Here(fed))
    assert kept_rounds(fed) == [1, 2, 3]
    with pytest.raises(CheckpointError, match="of round 9"), replay(fed.run, 9):
        pass
