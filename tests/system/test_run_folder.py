"""A run writes, cuts and deletes what it made itself, in a folder that is its own alone, and reads
no file that a name in a file leads to elsewhere.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from crash_script import agree, experiment
from hypothesis import given, settings
from hypothesis import strategies as st

import fedloom.experiment.experiment
import fedloom.storage.world
from fedloom.core.vector import rec
from fedloom.errors import CheckpointError, ConfigError
from fedloom.storage.atomic import checksum
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.manifest import check_run, read_manifest, round_folders, write_manifest
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower.node_files import NodeStates


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


def test_a_folder_with_something_in_it_is_no_place_for_a_run(tmp_path):
    for name in ("environment.json", "checkpoints/best/notes.txt", ".x.1.part/notes", "notes"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match="exists and is not empty; choose another folder"):
            experiment(rounds=1).run(folder)
        assert content(folder) == {Path(name): b"mine"}


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
def test_of_two_that_begin_at_once_the_second_writes_nothing(tmp_path, monkeypatch):
    describe, seen = fedloom.experiment.experiment.describe, []

    def slowly(*arguments):
        monkeypatch.setattr(fedloom.experiment.experiment, "describe", describe)
        before = content(tmp_path)
        with pytest.raises(ConfigError, match="is being run by another process") as caught:
            experiment(rounds=2, seed=6).run(tmp_path / "run")
        assert f"process {os.getpid()} on" in str(caught.value)
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
        with pytest.raises(ConfigError, match="is being run by another process"):
            experiment(rounds=4).resume(tmp_path / "run")
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
ODD = [
    {},
    {"segments": 3},
    {"segments": [[]]},
    {"segments": [[1, 2, 3]]},
    {"segments": None},
    [],
    0,
]


def reindex(run, change):
    """Another index of client states in every checkpoint, with checksums that fit."""
    for folder in round_folders(run / "checkpoints"):
        index = change(json.loads((folder / "memory.json").read_text()))
        (folder / "memory.json").write_text(json.dumps(index))
        manifest = read_manifest(folder)
        sums = manifest["sha256"] | {"memory.json": checksum(folder / "memory.json")}
        write_manifest(folder, manifest | {"sha256": sums})


def refused(call, *said):
    """It is one line, which says this."""
    with pytest.raises(CheckpointError) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
    assert all(part in str(caught.value) for part in said), caught.value


@pytest.mark.parametrize("kind", [*HOSTILE, "absolute"])
def test_client_states_are_read_from_files_of_the_run_only(kind, run):
    victim = run.parent / VICTIM
    shutil.copy(min((run / "memory").iterdir()), victim)
    name = str(victim) if kind == "absolute" else HOSTILE[kind]
    rename = lambda index: index | {"segments": [[name, *of[1:]] for of in index["segments"]]}
    reindex(run, rename)
    before = victim.read_bytes(), sorted(run.rglob("*"))
    refused(lambda: resume(run), "memory.json names", "no checkpoint of")
    assert (victim.read_bytes(), sorted(run.rglob("*"))) == before


@pytest.mark.parametrize("index", ODD, ids=str)
def test_an_index_of_other_values_is_one_line(index, run):
    reindex(run, lambda old: index)
    refused(lambda: resume(run), "no checkpoint of")


OWN = ["rounds.jsonl", "checkpoints", "memory", ".lock", "checkpoints/00000006"]
OWN += [f"checkpoints/00000006/{name}" for name in ("manifest.json", "state.safetensors")]


@pytest.mark.parametrize("name", OWN)
def test_a_link_is_refused_and_what_it_leads_to_stays(name, run, tmp_path):
    home = tmp_path / "home"
    shutil.move(run / name, home)
    (run / name).symlink_to(home)
    before = content(tmp_path)
    refused(lambda: resume(run), f"{name}' is a link", "put a copy")
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["memory/*", "*/state.safetensors", "*/memory.json"])
def test_a_link_in_place_of_a_file_with_states_is_refused(name, run):
    for number, file in enumerate(sorted(run.rglob(name))):
        home = run.parent / str(number)
        file.rename(home)
        file.symlink_to(home)
    refused(lambda: resume(run), "is a link")
    if name != "memory/*":
        refused(lambda: experiment(rounds=10).open(run), "is a link")
        refused(lambda: check_run(run), "is a link")


@pytest.mark.parametrize("kind", [*TEXTS, "pipe"])
def test_a_manifest_names_the_files_of_its_checkpoint_only(kind, run):
    os.mkfifo(run.parent / "pipe")  # whoever opens it waits
    name = "../../../pipe" if kind == "pipe" else HOSTILE[kind]
    for folder in round_folders(run / "checkpoints"):
        manifest = read_manifest(folder)
        write_manifest(folder, manifest | {"sha256": manifest["sha256"] | {name: "0"}})
    refused(lambda: resume(run), "manifest.json names other files than")
    refused(lambda: check_run(run), "manifest.json names other files than")


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
    with pytest.raises(CheckpointError, match=r"memory\.json names|is missing in"):
        memory.restore(index)
    if memory._referenced:
        assert "/" not in name and not name.startswith(".")


@pytest.mark.parametrize("name", [chr(0x663) * 8, "3", "000000003", "-0000003", "00000003.part"])
def test_a_node_knows_its_versions_by_name(name, tmp_path):
    states = NodeStates(tmp_path / "states")
    states.put(2, rec(t=1.0))
    other = tmp_path / "states" / f"{name}.safetensors"
    other.write_text("not ours")
    assert states.at(3, 0) is None and other.exists()
    assert states.at(2, 0) == rec(t=1.0)


def test_a_node_reads_no_link(tmp_path):
    states = NodeStates(tmp_path / "states")
    states.put(2, rec(t=1.0))
    own = tmp_path / "states" / "00000002.safetensors"
    own.rename(tmp_path / VICTIM)
    own.symlink_to(tmp_path / VICTIM)
    refused(lambda: states.at(2, 0), "it is a link")
