"""A run writes, cuts and deletes what it made itself, in a folder that is its own alone, and reads
no file that a name in a file leads to elsewhere. One that has ended is sealed: whoever reads a file
that was altered later says so.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from crash_script import agree, experiment
from hypothesis import given, settings
from hypothesis import strategies as st

import fedloom.experiment.experiment
import fedloom.storage.world
from fedloom import load_runs
from fedloom.cli.__main__ import cli
from fedloom.core.vector import rec
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import load_run
from fedloom.storage import manifest, world
from fedloom.storage.atomic import checksum
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.manifest import check_run, read_manifest, round_folders, write_manifest
from fedloom.storage.run_directory import RunDirectory
from fedloom.study import state_of
from fedloom_flower.node_files import NodeStates
from support.refusals import refused
from tiny import weights


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def resume(run):
    return experiment(rounds=10).resume(run)


# ------------------------------------------------------------------------------ what others made
def test_what_others_put_into_a_run_folder_stays(run, whole):
    newest = run / "checkpoints" / "00000006"
    names = ["zz/notes.txt", "00000009.bak/notes.txt", "notes.txt", "00000008/notes.txt"]
    mine = [run / "checkpoints" / name for name in names]
    mine += [newest / "notes.txt", run / "memory" / "mine.safetensors"]
    mine += [run / "papers" / ".draft.tex.1.part", run / "half.part"]
    shutil.copytree(newest, run / "checkpoints" / "best")
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    best = content(run / "checkpoints" / "best")
    agree(resume(run), whole)
    assert [path for path in mine if path.read_text() != "mine"] == []
    assert content(run / "checkpoints" / "best") == best
    assert not (newest / "manifest.json").exists()  # it is an old one by now, and let go


def test_a_copied_checkpoint_is_not_gone_on_from(run, whole):
    """It sorts behind all that are named by their rounds."""
    done = []
    shutil.move(run / "checkpoints" / "00000004", run / "checkpoints" / "best")
    on_round = [lambda row: done.append(row["round"])]
    agree(experiment(rounds=10, on_round=on_round).resume(run), whole)
    assert done == [7, 8, 9, 10]


@pytest.mark.parametrize(
    "name", ["environment.json", "checkpoints/best/notes.txt", ".x.1.part/notes", "notes"]
)
def test_a_folder_with_something_in_it_is_no_place_for_a_run(name, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    run = lambda: experiment(rounds=1).run(tmp_path)
    refused(run, "is not empty; choose another folder (--out, in", kind=ConfigError)
    assert content(tmp_path) == {Path(name): b"mine"}


def test_a_run_from_python_goes_on_with_resume(tmp_path):
    experiment(rounds=1).run(tmp_path)
    run = lambda: experiment(rounds=1).run(tmp_path)
    refused(run, "go on with Experiment(...).resume(", kind=ConfigError)


def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(whole, tmp_path):
    """Its rounds would be cut away."""
    run = Path(shutil.copytree(whole.path, tmp_path / "run"))
    rows = (run / "rounds.jsonl").read_bytes()
    for emptied in (False, True):  # to save room
        shutil.rmtree(run / "checkpoints")
        if emptied:
            (run / "checkpoints").mkdir()
        with pytest.raises(CheckpointError, match="its checkpoints are gone; put back"):
            resume(run)
        (run / "checkpoints").mkdir(exist_ok=True)
    assert (run / "rounds.jsonl").read_bytes() == rows


# ------------------------------------------------------------------------------- one run at a time
BUSY = "is being run by another process"


def test_of_two_that_begin_at_once_the_second_writes_nothing(tmp_path, monkeypatch):
    describe, seen = fedloom.experiment.experiment.describe, []

    def slowly(*arguments):
        monkeypatch.setattr(fedloom.experiment.experiment, "describe", describe)
        before, other = content(tmp_path), experiment(rounds=2, seed=6)
        refused(lambda: other.run(tmp_path / "run"), BUSY, f"process {os.getpid()} on")
        assert content(tmp_path) == before
        seen.append(RunDirectory(tmp_path / "run").holder())
        describe(*arguments)

    monkeypatch.setattr(fedloom.experiment.experiment, "describe", slowly)
    one = experiment(rounds=2).run(tmp_path / "run")
    agree(experiment(rounds=2).resume(tmp_path / "run"), one)
    assert len(seen) == 1 and seen[0] is not None
    assert RunDirectory(tmp_path / "run").holder() is None


def test_nobody_resumes_what_is_running(tmp_path):
    def again(row):
        before = content(tmp_path)
        refused(lambda: experiment(rounds=4).resume(tmp_path / "run"), BUSY, kind=ConfigError)
        assert content(tmp_path) == before

    experiment(rounds=2, on_round=[again]).run(tmp_path / "run")


def test_a_run_whose_folder_was_taken_leaves_the_new_one_alone(tmp_path):
    """Somebody removes a folder, and begins again there, while the first run still goes on."""

    def begin_again(row):
        if row["round"] == 2:
            shutil.rmtree(tmp_path / "run")
            experiment(rounds=3, seed=6).run(tmp_path / "run")

    with pytest.raises(CheckpointError, match="another run has begun there"):
        experiment(rounds=4, on_round=[begin_again]).run(tmp_path / "run")
    wanted = experiment(rounds=3, seed=6, resident_bytes=None).run()
    agree(experiment(rounds=3, seed=6).resume(tmp_path / "run"), wanted)


@pytest.mark.parametrize("first", ["partition.json", "fingerprint.json", "config.toml"])
def test_a_run_killed_before_it_could_be_resumed_can_be_started_again(first, tmp_path, monkeypatch):
    write = fedloom.storage.world.replace

    def killed(a, b):
        if Path(b).name == first:
            raise KeyboardInterrupt
        write(a, b)

    monkeypatch.setattr(fedloom.storage.world, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=1).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="not a run directory"):
        experiment(rounds=1).resume(tmp_path / "run")
    monkeypatch.undo()
    assert len(experiment(rounds=1).run(tmp_path / "run").history) == 1


# ---------------------------------------------------------------------------------- hostile names
VICTIM = "victim.safetensors"
HOSTILE = {
    "above": f"../../{VICTIM}",
    "beside": f"./../memory/../../{VICTIM}",
    "a folder": "checkpoints/00000001.safetensors",
    "NUL": "00000001.safetensors\0",
    "a line": "00000001.safetensors\n",
    "nothing": "",
    "dots": "..",
    "long": "0" * 5000 + ".safetensors",
    "other digits": chr(0x661) * 8 + ".safetensors",
    "a rank above": f"r1-../{VICTIM}",
    "a number": 1,
    "a list": ["00000001.safetensors"],
    "none": None,
}
TEXTS = [kind for kind, name in HOSTILE.items() if isinstance(name, str)]
ODD = [{}, *({"segments": wrong} for wrong in (3, [[]], [[1, 2, 3]], None)), [], 0]
GONE = CheckpointError


def reindex(run, change):
    """Another index of client states in every checkpoint, with checksums that fit."""
    for folder in round_folders(run / "checkpoints"):
        index = change(json.loads((folder / "memory.json").read_text()))
        (folder / "memory.json").write_text(json.dumps(index))
        manifest = read_manifest(folder)
        sums = manifest["sha256"] | {"memory.json": checksum(folder / "memory.json")}
        write_manifest(folder, manifest | {"sha256": sums})


@pytest.mark.parametrize("kind", [*HOSTILE, "absolute"])
def test_client_states_are_read_from_files_of_the_run_only(kind, run):
    victim = run.parent / VICTIM
    shutil.copy(min((run / "memory").iterdir()), victim)
    name = str(victim) if kind == "absolute" else HOSTILE[kind]
    reindex(run, lambda old: old | {"segments": [[name, *of[1:]] for of in old["segments"]]})
    before = victim.read_bytes(), sorted(run.rglob("*"))
    said = refused(lambda: resume(run), "memory.json names", "no checkpoint of", kind=GONE)
    assert len(said) < 1500 and (victim.read_bytes(), sorted(run.rglob("*"))) == before


@pytest.mark.parametrize("index", ODD, ids=str)
def test_an_index_of_other_values_is_one_line(index, run):
    reindex(run, lambda old: index)
    refused(lambda: resume(run), "no checkpoint of", kind=GONE)


NEWEST = "checkpoints/00000006"
LINKS = ["rounds.jsonl", "checkpoints", "memory", ".lock", NEWEST, f"{NEWEST}/manifest.json"]
LINKS += [f"{NEWEST}/state.safetensors", "memory/*"]
LINKS += ["checkpoints/*/state.safetensors", "checkpoints/*/memory.json"]


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_refused_and_what_it_leads_to_stays(name, run, tmp_path):
    for number, file in enumerate(sorted(run.glob(name))):
        home = tmp_path / str(number)
        file.rename(home)
        file.symlink_to(home)
    whole = lambda: {k: v for k, v in content(tmp_path).items() if k != Path("run/.lock")}
    before = whole()
    says = ["is a link"] if "*" in name else [f"{name}' is a link", "put a copy"]
    refused(lambda: resume(run), *says, kind=GONE)
    if name.startswith("checkpoints/*"):
        refused(lambda: experiment(rounds=10).open(run), "is a link", kind=GONE)
        refused(lambda: check_run(run), "is a link", kind=GONE)
    assert whole() == before


@pytest.mark.parametrize("kind", [*TEXTS, "pipe"])
def test_a_manifest_names_the_files_of_its_checkpoint_only(kind, run):
    os.mkfifo(run.parent / "pipe")  # whoever opens it waits
    name = "../../../pipe" if kind == "pipe" else HOSTILE[kind]
    for folder in round_folders(run / "checkpoints"):
        manifest = read_manifest(folder)
        write_manifest(folder, manifest | {"sha256": manifest["sha256"] | {name: "0"}})
    for call in (lambda: resume(run), lambda: check_run(run)):
        assert len(refused(call, "manifest.json names other files than", kind=GONE)) < 1500


def test_the_seal_of_a_run_opens_no_file_that_it_names(run):
    os.mkfifo(run.parent / "pipe")
    files = {name: {"bytes": 1, "sha256": "0"} for name in ("../pipe", str(run.parent / "pipe"))}
    write_manifest(run, {"files": files})
    check_run(run)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("./r0-9\0 \nsafetnor\\~"), max_size=40))
def test_no_name_leaves_the_folder(name):
    memory = ClientMemory(Path("nowhere") / "memory")
    index = {"next": 1, "segments": [[name, 1, "x"]], "clients": [0], "segment_of": [0]}
    said = refused(lambda: memory.restore(index), kind=GONE)
    if "memory.json names" not in said:
        assert "is missing in" in said and "/" not in name and not name.startswith(".")


@pytest.mark.parametrize("name", [chr(0x663) * 8, "3", "000000003", "-0000003", "00000003.part"])
def test_a_node_knows_its_versions_by_name_and_reads_no_link(name, tmp_path):
    states = NodeStates(tmp_path / "states")
    states.put(2, rec(t=1.0))
    other = tmp_path / "states" / f"{name}.safetensors"
    other.write_text("not ours")
    assert states.at(3, 0) is None and other.exists()
    assert states.at(2, 0) == rec(t=1.0)
    own = tmp_path / "states" / "00000002.safetensors"
    own.rename(tmp_path / VICTIM)
    own.symlink_to(tmp_path / VICTIM)
    refused(lambda: states.at(2, 0), "it is a link", kind=GONE)


# ----------------------------------------------------------------------------------------- the seal
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
    os.truncate(sealed / "config.toml", (sealed / "config.toml").stat().st_size - 1)
    shutil.rmtree(sealed / "checkpoints")  # the log is sealed without them
    fedloom("show", "./a")
    flip(sealed / "rounds.jsonl", at=5)
    assert "rounds.jsonl does not have the checksum" in fedloom("show", "./a", code=1).output


def test_settings_that_were_changed_on_purpose_are_taken_without_the_seal(sealed, fedloom):
    file = sealed / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    for command in ("show ./a", "run --resume a --quiet"):
        assert "delete a/manifest.json" in fedloom(*command.split(), code=1).output
    (sealed / "manifest.json").unlink()
    fedloom("run", "--resume", "a", "--quiet")
    assert load_run(sealed).finished and (sealed / "manifest.json").is_file()


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
    assert seen == [[*range(1, last + 1)] for last in range(1, 6)]


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
BROKEN += ['{"format": 1e400}']


@pytest.mark.parametrize("text", BROKEN)
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
