"""A run that has ended is sealed: whoever reads a file that was altered later says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from crash_script import experiment

from fedloom import load_runs
from fedloom.errors import CheckpointError
from fedloom.report import load_run
from fedloom.study import state_of
from tiny import Fedloom, weights

SMALL = ("digits", "rounds=2", "cohort=2", "checkpoint.every_rounds=1", "engine=serial", "--quiet")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a configuration, with two checkpoints."""
    from click.testing import CliRunner

    from fedloom.cli.__main__ import cli

    folder = tmp_path_factory.mktemp("ended") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.cli.printing.illustrate", lambda run: None)
        found = CliRunner().invoke(cli, ["run", *SMALL, "--out", str(folder)])
    assert found.exit_code == 0, found.output
    return folder


@pytest.fixture
def sealed(ended: Path, tmp_path: Path, fedloom: Fedloom) -> str:
    """A copy of it, as a name in the working folder."""
    shutil.copytree(ended, tmp_path / "a")
    return "a"


def flip(file: Path, at: int = -5, bit: int = 1) -> None:
    """Change a bit."""
    raw = bytearray(file.read_bytes())
    raw[at] ^= bit
    file.write_bytes(raw)


def newest(run: str, name: str) -> Path:
    """A file of the newest checkpoint."""
    return max(Path(run, "checkpoints").iterdir()) / name


SHOWN = ("summary.json", "config.toml", "rounds.jsonl", "clients.json", "partition.json")
SHOWN += ("environment.json", "ledger.json")


@pytest.mark.parametrize("name", SHOWN)
def test_every_reader_refuses_an_altered_file(name: str, sealed: str, fedloom: Fedloom) -> None:
    file = Path(sealed, name)
    digit = max(i for i, c in enumerate(file.read_text()) if c.isdigit())
    flip(file, digit)  # another digit, or a sign that stands beside the digits
    for command in ("show ./a", "compare a", "report a", "export a", "paper measure a clients"):
        said = fedloom(*command.split(), code=1).output
        assert name in said and "does not have the checksum it was written with" in said, command
        assert "put back the file as it was" in said
    with pytest.raises(CheckpointError, match=name):
        load_runs(sealed)
    if name == "summary.json":
        with pytest.raises(CheckpointError, match=name):
            state_of(Path(sealed))


@pytest.mark.parametrize("bit", [1, 64])
def test_an_altered_model_is_not_exported(bit: int, sealed: str, fedloom: Fedloom) -> None:
    flip(Path(sealed, "model.safetensors"), bit=bit)
    for command in ("export a", "show ./a"):
        said = fedloom(*command.split(), code=1).output
        assert "model.safetensors does not have the checksum" in said
        assert "write it anew with `fedloom run --resume a`" in said
    assert not list(Path(sealed).glob("export*"))
    fedloom("compare", "a")  # which does not read it


@pytest.mark.parametrize("name", ["state.safetensors", "memory.json", "manifest.json"])
def test_a_damaged_newest_checkpoint_is_said(name: str, sealed: str, fedloom: Fedloom) -> None:
    flip(newest(sealed, name), at=-12)
    for command in ("show ./a", "paper measure a hessian"):
        said = fedloom(*command.split(), code=1).output
        assert f"{name} does not have the checksum" in said or f"{name} is damaged" in said
        assert "go on from the checkpoint before it with `fedloom run --resume a`" in said
    for file in ("model.safetensors", "summary.json"):  # of a run that has not ended
        Path(sealed, file).unlink()
    assert name in fedloom("export", "a", code=1).output
    assert not list(Path(sealed).glob("export*"))


def test_what_was_altered_is_written_anew_by_a_resume(
    sealed: str, ended: Path, fedloom: Fedloom
) -> None:
    for name in ("model.safetensors", "summary.json", "clients.json", "ledger.json"):
        flip(Path(sealed, name))
    for name in ("environment.json", "partition.json"):
        flip(Path(sealed, name))
    flip(newest(sealed, "state.safetensors"))
    assert "fedloom run --resume a" in fedloom("show", "./a", code=1).output
    fedloom("run", "--resume", "a", "--quiet")
    fedloom("show", "./a")
    for name in ("model.safetensors", "clients.json", "partition.json"):
        assert Path(sealed, name).read_bytes() == (ended / name).read_bytes()


def test_a_run_that_goes_on_is_sealed_again(sealed: str, fedloom: Fedloom) -> None:
    fedloom("run", "--resume", "a", "rounds=3", "label=longer", "--quiet")
    assert load_run(sealed).rounds.tolist() == [1, 2, 3]
    assert "longer" in fedloom("show", "./a").output
    flip(Path(sealed, "summary.json"))
    assert "summary.json" in fedloom("compare", "a", code=1).output


def test_a_damaged_run_among_others_is_named(sealed: str, fedloom: Fedloom) -> None:
    for name in ("b", "c"):
        shutil.copytree(sealed, f"runs/{name}")
    flip(Path("runs/c/summary.json"))
    assert "'runs/c' is damaged: summary.json" in fedloom("compare", "runs", code=1).output
    listed = fedloom("list", "runs").output
    assert "runs/c  damaged" in listed and "runs/b  damaged" not in listed


def test_a_file_of_another_length_is_altered_but_for_logs(sealed: str, fedloom: Fedloom) -> None:
    with open(Path(sealed, "rounds.jsonl"), "a") as file:
        file.write('{"round": 3')  # a run that goes on
    fedloom("show", "./a")
    with open(Path(sealed, "config.toml"), "a") as file:
        file.write("\n")
    assert "config.toml is longer than it was" in fedloom("show", "./a", code=1).output


def test_settings_that_were_changed_on_purpose_are_taken_without_the_seal(
    sealed: str, fedloom: Fedloom
) -> None:
    file = Path(sealed, "config.toml")
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    for command in ("show ./a", "run --resume a --quiet"):
        assert "delete a/manifest.json" in fedloom(*command.split(), code=1).output
    Path(sealed, "manifest.json").unlink()
    fedloom("run", "--resume", "a", "--quiet")
    assert load_run(sealed).finished and Path(sealed, "manifest.json").is_file()


def test_the_log_is_sealed_without_its_checkpoints(sealed: str, fedloom: Fedloom) -> None:
    shutil.rmtree(Path(sealed, "checkpoints"))
    fedloom("show", "./a")
    flip(Path(sealed, "rounds.jsonl"))
    assert "rounds.jsonl does not have the checksum" in fedloom("show", "./a", code=1).output


def test_a_file_that_was_deleted_is_no_alteration(sealed: str, fedloom: Fedloom) -> None:
    """A model is large, and is not read for tables; without a summary a run has not ended."""
    for name in ("model.safetensors", "summary.json", "clients.json"):
        Path(sealed, name).unlink()
        fedloom("show", "./a")
    assert not load_run(sealed).finished and state_of(Path(sealed)) == "begun"


# --------------------------------------------------------------- runs that nothing, or half, seals
def test_runs_of_before_there_were_seals_are_read(sealed: str, fedloom: Fedloom) -> None:
    Path(sealed, "manifest.json").unlink()
    for command in ("show ./a", "compare a", "export a"):
        fedloom(*command.split())
    fedloom("run", "--resume", "a", "rounds=3", "--quiet")
    flip(Path(sealed, "model.safetensors"))
    fedloom("export", "a", code=1)


def test_a_run_in_progress_is_read_after_every_round(tmp_path: Path) -> None:
    seen = []

    def look(row: dict[str, Any]) -> None:
        seen.append(load_run(tmp_path / "run").rounds.tolist())

    experiment(rounds=3, on_round=[look]).run(tmp_path / "run")
    experiment(rounds=5, on_round=[look]).resume(tmp_path / "run")
    assert seen == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]


def test_a_run_that_broke_off_is_read_and_its_settings_are_sealed(run: Path, whole: Any) -> None:
    assert load_run(run).rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    (run / "config.toml").write_text((run / "config.toml").read_text() + "\n")
    with pytest.raises(CheckpointError, match=r"config\.toml is longer"):
        load_run(run)
    with pytest.raises(CheckpointError, match="is damaged"):
        flip(run / "fingerprint.json")
        experiment(rounds=10).resume(run)


@pytest.mark.parametrize("name", ["model.safetensors", "clients.json", "summary.json"])
def test_a_kill_while_results_are_written_breaks_no_seal(
    name: str, run: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedloom.storage.atomic as atomic

    experiment(rounds=8).resume(run)
    write = atomic.os.replace

    def killed(a: Path, b: Path) -> None:
        write(a, b)
        if Path(b).name == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(atomic.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=10).resume(run)
    monkeypatch.undo()
    assert load_run(run).rounds.tolist() == list(range(1, 11))
    assert weights(experiment(rounds=10).resume(run).model) == weights(whole.model)
    load_run(run)


def test_a_reader_meets_a_run_that_writes_a_file_anew(
    sealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the manifest of before in its hand, and the file of after: not damage."""
    from fedloom.storage import seal

    reader = seal.Seal(sealed)
    with seal.resealed(Path(sealed), "summary.json"):
        Path(sealed, "summary.json").write_text("{}")
    assert reader.read("summary.json") == b"{}"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"format": 2}', '{"format": 2, "files": {}}', "[" * 100_000, '{"format": 1e400}'],
)
def test_a_manifest_that_is_none_is_one_line(text: str, sealed: str, fedloom: Fedloom) -> None:
    Path(sealed, "manifest.json").write_text(text)
    said = fedloom("show", "./a", code=1).output
    assert "'a' is damaged: manifest.json" in said and "or delete it" in said


@pytest.mark.parametrize("wrong", [3, [], {"bytes": "x"}, {"bytes": 1e999, "sha256": 1}])
def test_a_manifest_of_other_kinds_of_values_is_one_line(wrong: Any, sealed: str) -> None:
    from fedloom.storage.manifest import write_manifest

    for files in (wrong, {"summary.json": wrong}):
        write_manifest(Path(sealed), {"files": files})
        if files != []:
            with pytest.raises(CheckpointError, match=r"is damaged: .*manifest\.json"):
                load_run(sealed)
