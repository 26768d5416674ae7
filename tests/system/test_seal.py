"""A run that has ended is sealed: whoever reads a file that was altered later says so."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from crash_script import experiment

from fedloom import load_runs
from fedloom.cli.__main__ import cli
from fedloom.errors import CheckpointError
from fedloom.report import load_run
from fedloom.storage import manifest, world
from fedloom.storage.manifest import write_manifest
from fedloom.study import state_of
from tiny import weights


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run of a configuration, with two checkpoints."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    words = ["digits", "rounds=2", "cohort=2", "checkpoint.every_rounds=1", "engine=serial"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.cli.printing.illustrate", lambda run: None)
        done = CliRunner().invoke(cli, ["run", *words, "--quiet", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def sealed(ended, fedloom):
    return Path(shutil.copytree(ended, "a"))


def flip(file, at=-5, bit=1):
    raw = bytearray(file.read_bytes())
    raw[at] ^= bit
    file.write_bytes(raw)


def newest(run, name):
    return max((run / "checkpoints").iterdir()) / name


SHOWN = ["summary.json", "config.toml", "rounds.jsonl", "clients.json", "partition.json"]
SHOWN += ["environment.json", "ledger.json"]


@pytest.mark.parametrize("name", SHOWN)
def test_every_reader_refuses_an_altered_file(name, sealed, fedloom):
    text = (sealed / name).read_text()
    flip(sealed / name, max(i for i, c in enumerate(text) if c.isdigit()))
    for command in ("show ./a", "compare a", "report a", "export a", "paper measure a hessian"):
        said = fedloom(*command.split(), code=1).output
        assert name in said and "does not have the checksum it was written with" in said, command
        assert "put back the file as it was" in said
    with pytest.raises(CheckpointError, match=name):
        load_runs(sealed)
    if name == "summary.json":
        with pytest.raises(CheckpointError, match=name):
            state_of(sealed)


@pytest.mark.parametrize("bit", [1, 64])
def test_an_altered_model_is_not_exported(bit, sealed, fedloom):
    flip(sealed / "model.safetensors", bit=bit)
    for command in ("export a", "show ./a"):
        said = fedloom(*command.split(), code=1).output
        assert "model.safetensors does not have the checksum" in said
        assert "write it anew with `fedloom run --resume a`" in said
    assert not list(sealed.glob("export*"))
    fedloom("compare", "a")  # which does not read it


@pytest.mark.parametrize("name", ["state.safetensors", "memory.json", "manifest.json"])
def test_a_damaged_newest_checkpoint_is_said(name, sealed, fedloom):
    flip(newest(sealed, name), at=-12)
    for command in ("show ./a", "paper measure a hessian"):
        said = fedloom(*command.split(), code=1).output
        assert f"{name} does not have the checksum" in said or f"{name} is damaged" in said
        assert "go on from the checkpoint before it with `fedloom run --resume a`" in said
    for file in ("model.safetensors", "summary.json"):  # of a run that has not ended
        (sealed / file).unlink()
    assert name in fedloom("export", "a", code=1).output
    assert not list(sealed.glob("export*"))


def test_what_was_altered_is_written_anew_by_a_resume(sealed, ended, fedloom):
    names = ["model.safetensors", "summary.json", "clients.json", "ledger.json"]
    for name in (*names, "environment.json", "partition.json"):
        flip(sealed / name)
    flip(newest(sealed, "state.safetensors"))
    assert "fedloom run --resume a" in fedloom("show", "./a", code=1).output
    fedloom("run", "--resume", "a", "--quiet")
    fedloom("show", "./a")
    for name in ("model.safetensors", "clients.json", "partition.json"):
        assert (sealed / name).read_bytes() == (ended / name).read_bytes()


def test_a_damaged_run_among_others_is_named(sealed, fedloom):
    for name in ("b", "c"):
        shutil.copytree(sealed, f"runs/{name}")
    flip(Path("runs/c/summary.json"))
    assert "'runs/c' is damaged: summary.json" in fedloom("compare", "runs", code=1).output
    listed = fedloom("list", "runs").output
    assert "runs/c  damaged" in listed and "runs/b  damaged" not in listed


def test_a_file_of_another_length_is_altered_but_for_logs(sealed, fedloom):
    with open(sealed / "rounds.jsonl", "a") as file:
        file.write('{"round": 3')  # a run that goes on
    fedloom("show", "./a")
    with open(sealed / "config.toml", "a") as file:
        file.write("\n")
    assert "config.toml is longer than it was" in fedloom("show", "./a", code=1).output


def test_settings_that_were_changed_on_purpose_are_taken_without_the_seal(sealed, fedloom):
    file = sealed / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    for command in ("show ./a", "run --resume a --quiet"):
        assert "delete a/manifest.json" in fedloom(*command.split(), code=1).output
    (sealed / "manifest.json").unlink()
    fedloom("run", "--resume", "a", "--quiet")
    assert load_run(sealed).finished and (sealed / "manifest.json").is_file()


def test_the_log_is_sealed_without_its_checkpoints(sealed, fedloom):
    shutil.rmtree(sealed / "checkpoints")
    fedloom("show", "./a")
    flip(sealed / "rounds.jsonl")
    assert "rounds.jsonl does not have the checksum" in fedloom("show", "./a", code=1).output


def test_a_file_that_was_deleted_is_no_alteration(sealed, fedloom):
    """A model is large, and is not read for tables; without a summary a run has not ended."""
    for name in ("model.safetensors", "summary.json", "clients.json"):
        (sealed / name).unlink()
        fedloom("show", "./a")
    assert not load_run(sealed).finished and state_of(sealed) == "begun"


# --------------------------------------------------------------- runs that nothing, or half, seals
def test_runs_of_before_there_were_seals_are_read(sealed, fedloom):
    (sealed / "manifest.json").unlink()
    for command in ("show ./a", "compare a", "export a"):
        fedloom(*command.split())
    fedloom("run", "--resume", "a", "rounds=3", "--quiet")
    flip(sealed / "model.safetensors")
    fedloom("export", "a", code=1)


def test_a_run_in_progress_is_read_after_every_round(tmp_path):
    seen = []
    look = [lambda row: seen.append(load_run(tmp_path / "run").rounds.tolist())]
    experiment(rounds=3, on_round=look).run(tmp_path / "run")
    experiment(rounds=5, on_round=look).resume(tmp_path / "run")
    assert seen == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]


def test_a_run_that_broke_off_is_read_and_its_settings_are_sealed(run):
    assert load_run(run).rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    (run / "config.toml").write_text((run / "config.toml").read_text() + "\n")
    with pytest.raises(CheckpointError, match=r"config\.toml is longer"):
        load_run(run)
    flip(run / "fingerprint.json")
    with pytest.raises(CheckpointError, match="is damaged"):
        experiment(rounds=10).resume(run)


@pytest.mark.parametrize("name", ["model.safetensors", "clients.json", "summary.json"])
def test_a_kill_while_results_are_written_breaks_no_seal(name, run, whole, monkeypatch):
    experiment(rounds=8).resume(run)
    write = world.replace

    def killed(a, b):
        write(a, b)
        if Path(b).name == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(world, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=10).resume(run)
    monkeypatch.undo()
    assert load_run(run).rounds.tolist() == list(range(1, 11))
    assert weights(experiment(rounds=10).resume(run).model) == weights(whole.model)
    load_run(run)


def test_a_reader_meets_a_run_that_writes_a_file_anew(sealed, monkeypatch):
    """It has the manifest of before in its hand, and the file of after: not damage."""
    compare, seen = manifest.altered, []

    def meanwhile(*entry, **how):
        if not seen:
            with manifest.resealed(sealed, "summary.json"):
                (sealed / "summary.json").write_text("{}")
        seen.append(compare(*entry, **how))
        return seen[-1]

    monkeypatch.setattr(manifest, "altered", meanwhile)
    assert manifest.read_file(sealed, "summary.json") == b"{}" and seen[0] and not seen[1]


BROKEN = ["{", "[]", '{"format": 2}', '{"format": 2, "files": {}}', "[" * 100_000]


@pytest.mark.parametrize("text", [*BROKEN, '{"format": 1e400}'])
def test_a_manifest_that_is_none_is_one_line(text, sealed, fedloom):
    (sealed / "manifest.json").write_text(text)
    said = fedloom("show", "./a", code=1).output
    assert "'a' is damaged: manifest.json" in said and "or delete it" in said


@pytest.mark.parametrize("wrong", [3, [], {"bytes": "x"}, {"bytes": 1e999, "sha256": 1}])
def test_a_manifest_of_other_kinds_of_values_is_one_line(wrong, sealed):
    for files in (wrong, {"summary.json": wrong}):
        write_manifest(sealed, {"files": files})
        if files != []:
            with pytest.raises(CheckpointError, match=r"is damaged: .*manifest\.json"):
                load_run(sealed)
