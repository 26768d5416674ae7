"""Names that are read from a file in a run folder lead nowhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_script import experiment
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.vector import rec
from fedloom.errors import CheckpointError
from fedloom.storage.atomic import checksum
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.manifest import read_manifest, round_folders, write_manifest
from fedloom.storage.seal import Seal
from fedloom_flower.node_states import NodeStates

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


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the index of client states in every checkpoint, with checksums that fit."""
    for folder in round_folders(run / "checkpoints"):
        index = json.loads((folder / "memory.json").read_text())
        change(index)
        (folder / "memory.json").write_text(json.dumps(index))
        manifest = read_manifest(folder)
        sums = manifest["sha256"] | {"memory.json": checksum(folder / "memory.json")}
        write_manifest(folder, manifest | {"sha256": sums})


def refused(call: Callable[[], Any], *said: str) -> None:
    """It is one line, which says this."""
    with pytest.raises(CheckpointError) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
    for part in said:
        assert part in str(caught.value)


@pytest.fixture
def victim(run: Path) -> Path:
    """A file of client states that is not this run's, where a hostile name leads."""
    found = run.parent / VICTIM
    shutil.copy(min((run / "memory").iterdir()), found)
    return found


@pytest.mark.parametrize("kind", [*HOSTILE, "absolute"])
def test_client_states_are_read_from_files_of_the_run_only(
    kind: str, run: Path, victim: Path
) -> None:
    name = str(victim) if kind == "absolute" else HOSTILE[kind]
    before = victim.read_bytes(), sorted(run.rglob("*"))

    def change(index: dict[str, Any]) -> None:
        for segment in index["segments"]:
            segment[0] = name

    rewrite(run, change)
    refused(lambda: experiment(rounds=10).resume(run), "memory.json names", "no checkpoint of")
    assert (victim.read_bytes(), sorted(run.rglob("*"))) == before


@pytest.mark.parametrize(
    "index",
    [{}, {"segments": 3}, {"segments": [[]]}, {"segments": [[1, 2, 3]]}, {"segments": None}, [], 0],
)
def test_an_index_of_other_values_is_one_line(index: Any, run: Path) -> None:
    for folder in round_folders(run / "checkpoints"):
        (folder / "memory.json").write_text(json.dumps(index))
        manifest = read_manifest(folder)
        sums = manifest["sha256"] | {"memory.json": checksum(folder / "memory.json")}
        write_manifest(folder, manifest | {"sha256": sums})
    refused(lambda: experiment(rounds=10).resume(run), "no checkpoint of")


def test_a_link_in_place_of_client_states_is_refused(run: Path, victim: Path) -> None:
    for file in (run / "memory").iterdir():
        file.rename(run.parent / file.name)
        file.symlink_to(run.parent / file.name)
    refused(lambda: experiment(rounds=10).resume(run), "is a link")


@pytest.mark.parametrize("name", ["state.safetensors", "memory.json"])
def test_a_link_in_place_of_a_checkpoints_file_is_refused(name: str, run: Path) -> None:
    for folder in round_folders(run / "checkpoints"):
        (folder / name).rename(run.parent / f"{folder.name}-{name}")
        (folder / name).symlink_to(run.parent / f"{folder.name}-{name}")
    refused(lambda: experiment(rounds=10).resume(run), "is a link")
    refused(lambda: experiment(rounds=10).open(run), "is a link")
    refused(Seal(run).check_all, "is a link")


@pytest.mark.parametrize("kind", [*(k for k, v in HOSTILE.items() if isinstance(v, str)), "pipe"])
def test_a_manifest_names_the_files_of_its_checkpoint_only(kind: str, run: Path) -> None:
    os.mkfifo(run.parent / "pipe")  # whoever opens it waits
    name = "../../../pipe" if kind == "pipe" else str(HOSTILE[kind])
    for folder in round_folders(run / "checkpoints"):
        manifest = read_manifest(folder)
        write_manifest(folder, manifest | {"sha256": manifest["sha256"] | {name: "0"}})
    refused(lambda: experiment(rounds=10).resume(run), "manifest.json names other files than")
    refused(Seal(run).check_all, "manifest.json names other files than")


def test_the_seal_of_a_run_opens_no_file_that_it_names(run: Path) -> None:
    os.mkfifo(run.parent / "pipe")
    files = {name: {"bytes": 1, "sha256": "0"} for name in ("../pipe", str(run.parent / "pipe"))}
    write_manifest(run, {"files": files})
    Seal(run).check_all()


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("./r0-9\0 \nsafetnor\\~"), max_size=40))
def test_no_name_leaves_the_folder(name: str) -> None:
    memory = ClientMemory(Path("nowhere") / "memory")
    index = {"next": 1, "segments": [[name, 1, "x"]], "clients": [0], "segment_of": [0]}
    with pytest.raises(CheckpointError, match=r"memory\.json names|is missing in"):
        memory.restore(index)
    if memory._referenced:
        assert "/" not in name and not name.startswith(".")


# ------------------------------------------------------------------------------ states at a node
@pytest.mark.parametrize("name", [chr(0x663) * 8, "3", "000000003", "-0000003", "00000003.part"])
def test_a_node_knows_its_versions_by_name(name: str, tmp_path: Path) -> None:
    states = NodeStates(tmp_path / "states")
    states.put(2, rec(t=1.0))
    other = tmp_path / "states" / f"{name}.safetensors"
    other.write_text("not ours")
    assert states.at(3, 0) is None and other.exists()
    assert states.at(2, 0) == rec(t=1.0)


def test_a_node_reads_no_link(tmp_path: Path) -> None:
    states = NodeStates(tmp_path / "states")
    states.put(2, rec(t=1.0))
    (tmp_path / "states" / "00000002.safetensors").rename(tmp_path / VICTIM)
    (tmp_path / "states" / "00000002.safetensors").symlink_to(tmp_path / VICTIM)
    refused(lambda: states.at(2, 0), "it is a link")
