"""An exported folder is all that is needed to use a model, and runs nobody else's code."""

import json
import runpy
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.cli import exported
from fedloom.data import Images, digits, from_arrays, iid
from fedloom.data.own.columns import as_table
from fedloom.data.own.preparation import Column, Preparation
from fedloom.data.published.leaf import ALPHABET
from fedloom.data.raw_inputs import Characters, Columns, Pixels, Running, Words, recipe
from fedloom.models import mlp
from fedloom.storage.manifest import seal
from fedloom.submodels import PRIVATE
from support.exports import written
from support.folders import parameters, record

SMALL = ("rounds=2", "local.epochs=1")
SCRIPT = "a/export/predict.py"
EVIL = "'\"\"\"\n\\x41'''\nopen('harm','w')#\\"


# -------------------------------------------------------------------------------- inputs, by kind
VOCABULARY = {"<pad>": 0, "<unk>": 1, "it's": 2, ",": 3, "o": 4, "été": 5}
GREY, RED = (torch.arange(2 * 64) % 17).view(2, 1, 8, 8), torch.arange(2 * 3 * 4) * 10
CELLS = Preparation(
    (
        Column(EVIL, "number", mean=(45.0,), std=(2.0,)),
        Column("sex", "one_hot", ("f", EVIL)),
        Column("stage", "ordinal", ("I", "II", "III")),
    )
)
NUMBERED = Preparation(
    (Column("cp", "one_hot", ("0.5", "1", "?"), "?"), Column("stage", "ordinal", ("1", "2")))
)
FRACTIONS = torch.tensor([[0.1, -2.0]])
CASES = {
    "pixels": (Pixels(16), None, Pixels(16).store(GREY)),
    "scaled pixels": (Pixels(255, 0.286, 0.3529), None, Pixels(255, 0.286, 0.3529).store(GREY)),
    "images": (
        None,
        Images(mean=(0.1, 0.2, 0.3), std=(0.3, 0.7, 0.9)),
        RED.view(2, 3, 2, 2).byte(),
    ),
    "numbers": (None, None, FRACTIONS),
    "whole numbers": (None, None, torch.tensor([[1, 2]])),
    "columns": (Columns(("a", EVIL)), None, FRACTIONS),
    "cells": (CELLS, None, torch.tensor([[0.5, 1, 0, 2], [-0.25, 0, 1, 0], [4, 0, 0, 1]])),
    "numbered": (NUMBERED, None, torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]])),
    "words": (
        Words(VOCABULARY, 4),
        None,
        torch.tensor([[2, 3, 1, 0], [0, 0, 0, 0], [5, 4, 4, 4]]),
    ),
    "characters": (Characters(ALPHABET), None, torch.tensor([[0, 79, 7], [5, 6, 7]])),
    "running text": (
        Running({"a": 0, "<eos>": 1, "<unk>": 2}),
        None,
        torch.tensor([[0, 1, 2], [2, 2, 1]]),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_script_makes_the_inputs_that_the_model_was_trained_on(name, dtype, tmp_path):
    raw, transform, stored = CASES[name]
    transform = None if transform is None else transform.astype(dtype)
    wanted = stored if transform is None else transform.plain(stored)
    wanted = wanted.to(dtype) if wanted.is_floating_point() else wanted
    how = recipe(raw, transform, stored)
    assert json.loads(json.dumps(how)) == how
    script = written(tmp_path, nn.Flatten(), how, dtype)
    samples = stored.numpy() if raw is None else raw.back(stored)
    assert torch.equal(script["prepare"](samples), wanted)
    assert script["prepare"](samples).dtype == wanted.dtype
    assert len(script["outputs"](samples)) == len(stored)
    if isinstance(samples[0], str):  # numbers may be given instead of texts
        assert torch.equal(script["prepare"](stored.numpy()), wanted)


def test_a_script_takes_a_number_however_it_is_written(tmp_path):
    """As training does: by the same cells."""
    rows = [(" 1 ", "2"), ("1.0", "02"), (1, 2.0), (1.0, "+2"), (".50", 1), ("x", 1), (None, 1)]
    table = as_table("t.csv", dict(zip(("cp", "stage"), zip(*rows, strict=True), strict=True)))
    wanted = NUMBERED.of(table)
    script = written(tmp_path, nn.Flatten(), recipe(NUMBERED, None, wanted))
    assert torch.equal(script["prepare"](rows), wanted)
    assert wanted[:4].tolist() == [[0, 1, 0, 1]] * 4 and wanted[5:, :3].sum() == 1


def test_published_digits_are_what_a_script_takes(fedloom, a):
    from sklearn.datasets import load_digits

    assert "checked: on 359 raw test rows" in fedloom("export", "a").output
    script, data = runpy.run_path(SCRIPT), digits()
    rows = lambda images: sorted(map(tuple, images.flatten(1).tolist()))
    bunch = load_digits()
    bunch.images.flags.writeable = False  # as an array of a file's bytes is
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = torch.cat([data.inputs, data.test_inputs])
        assert rows(script["prepare"](bunch.images)) == rows(whole)
    assert set(script["predict"](bunch.images)) <= set("0123456789")
    for wrong, said in ((bunch.images / 16, "fractions"), (bunch.images[:, :4], "shape")):
        with pytest.raises(ValueError, match=said):
            script["prepare"](wrong)


# ------------------------------------------------------------------------------------------ names
def test_names_are_values_and_never_code(fedloom):
    folder = Path(EVIL.replace("/", ""))
    fedloom("run", *SMALL, "--out", folder, "--quiet")
    partition = record(folder, "partition")
    partition["class_names"] = [f"{EVIL}{i}" for i in range(10)]
    (folder / "partition.json").write_text(json.dumps(partition))
    (folder / "manifest.json").unlink()  # whoever writes here can do that too
    for name in ("export", "it's\"\n\\"):
        assert "checked: on 359" in fedloom("export", folder, "--out", folder / name).output
        code = folder / name / "predict.py"
        assert code.read_text() == Path(exported.__file__).read_text()
        script = runpy.run_path(str(code))
        about = script["about"]()
        assert (about["run"], about["round"]) == (folder.name, 2)
        assert about["classes"] == partition["class_names"]
        assert script["predict"](np.zeros((1, 8, 8)))[0] in partition["class_names"]
    assert not list(Path().rglob("harm"))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float32); open('harm', 'w'); (0"},
        {"scale": "16).div(open('harm', 'w')"},
        {"mean": ["open('harm', 'w')"]},
        {"shape": ["open('harm', 'w')"]},
        {"kind": "other"},
    ],
)
def test_an_altered_description_is_refused(change, fedloom, a):
    partition = record("a", "partition")
    partition["inputs"] |= change
    Path("a/partition.json").write_text(json.dumps(partition))
    Path("a/manifest.json").unlink()  # the seal would refuse it before
    assert "a/partition.json' is damaged" in fedloom("export", "a", code=1).output
    assert not Path(SCRIPT).exists() and not Path("harm").exists()


# ------------------------------------------------------------------------------------------ checks
def images(file="digits.npy"):
    """Raw test rows of the digits in a file -> their classes."""
    np.save(file, Pixels(16).back(digits().test_inputs))
    return digits().test_targets


def test_an_export_predicts_without_fedloom(fedloom, check, a):
    fedloom("export", "a")
    targets = images()
    code, output = check(SCRIPT, "digits.npy", "--out", "scores.csv")
    assert (code, output) == (0, "")
    classes = [int(line.rpartition(",")[2]) for line in Path("scores.csv").read_text().split()[1:]]
    right = np.mean(np.array(classes) == targets.numpy())
    assert right == pytest.approx(record("a")["last"]["value"], abs=1e-12)
    np.savez("c.npz", targets=targets)
    np.save("larger.npy", np.zeros((2, 1, 16, 16)))
    Path("new.png").write_bytes(b"\x89PNG")
    for file, said in (
        ("new.png", "error: new.png: the model was not trained on picture files; give a .npy"),
        ("larger.npy", "larger.npy: a sample has the shape (1, 8, 8), got (1, 16, 16)"),
        ("c.npz", "error: c.npz: 'inputs is not a file in the archive'"),
        ("none.npz", "error: none.npz: No such file or directory"),
    ):
        code, output = check(SCRIPT, file)
        assert code == 2 and said in output


@pytest.mark.slow
def test_an_export_predicts_in_a_python_of_its_own(fedloom, a):
    fedloom("export", "a")
    images()
    start = "import runpy, sys; sys.modules['fedloom'] = None; del sys.argv[0]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    call = [sys.executable, "-c", start, SCRIPT, "digits.npy"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("\n") == 360, done.stderr


def test_other_outputs_than_the_networks_are_an_error(fedloom, monkeypatch, a):
    back = lambda data, inputs: data.raw.back(inputs) + 1
    monkeypatch.setattr("fedloom.cli.export_check._back", back)
    assert "gives other outputs for raw test rows" in fedloom("export", "a", code=1).output


def test_damaged_files_are_named_in_one_line(fedloom, check, a):
    fedloom("export", "a")
    images("a/export/new.npy")
    for name in ("model.pt2", "about.json", "new.npy"):
        file = Path("a/export", name)
        raw = file.read_bytes()
        for damaged in (raw[: len(raw) // 2], b"", b"[1]", b'{"a": 1}', b"\xff" * 99):
            file.write_bytes(damaged)
            code, output = check(SCRIPT, "a/export/new.npy")
            assert code == 2 and output.startswith("error: a/export/new.npy: "), output
            assert output.count("\n") == 1 and "copy it again" in output, output
            assert "install torch" not in output
        file.write_bytes(raw)
    assert check(SCRIPT, "a/export/new.npy")[0] == 0


# ----------------------------------------------------------------------------------------- folders
def test_weights_by_name_are_written_where_they_are_asked_for(fedloom, a):
    fedloom("export", "a")
    assert not [*Path("a/export").glob("*.safetensors")], "they are in model.pt2"
    fedloom("export", "a", "--weights")
    weights, want = map(load_file, ("a/export/weights.safetensors", "a/model.safetensors"))
    assert weights.keys() == want.keys()
    assert all(torch.equal(weights[name], want[name]) for name in want)


def test_the_newest_model_is_exported(fedloom, a):
    old = {name: Path("a", name).read_bytes() for name in ("model.safetensors", "summary.json")}
    fedloom("run", "--resume", "a", "rounds=4", "--quiet")
    newest = parameters("a")
    for name, content in old.items():  # as if the run had been stopped behind round 4 of more
        Path("a", name).write_bytes(content)
    seal(Path("a"), *old)
    assert "round 4" in fedloom("export", "a", "--weights").output
    assert parameters("a/export", "weights.safetensors") == newest
    for name in old:
        Path("a", name).unlink()
    Path("folder").mkdir()
    fedloom("export", "a", "--out", "folder", "--weights")
    assert parameters("folder", "weights.safetensors") == newest


def test_an_export_replaces_nothing_else(fedloom, a):
    before = Path("a/config.toml").read_text()
    for out, said in (
        ("a/config.toml", "is a file; an export is a folder"),
        ("a", "has files that are no export's, such as summary.json"),
        ("/proc/x", "cannot be written"),
    ):
        text = fedloom("export", "a", "--out", out, code=2).output
        assert said in text and "unexpected" not in text
    assert Path("a/config.toml").read_text() == before


# ------------------------------------------------------------------------------------- from Python
@dataclass(frozen=True)
class Halved:
    draws: int = 0
    out: torch.dtype = torch.float32

    def plain(self, inputs):
        return inputs.float() / 2

    def augmented(self, inputs, draws):
        return self.plain(inputs)

    def astype(self, dtype):
        return self

    def about(self):
        return {}


def from_python(out, **changes):
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(64), "device": "cpu", "rounds": 1}
    Experiment(**(parts | {"local": Local(epochs=1, lr=0.1)} | changes)).run(out)


def test_a_run_from_python_knows_its_inputs_as_well(fedloom):
    from_python("a", data=digits(iid(clients=5)))
    text = fedloom("export", "a").output
    assert "not checked: the run was started from Python" in text
    assert "not exported: the network: only the Python code that started the run knows it" in text
    script, data, network = runpy.run_path(SCRIPT), digits(), mlp(64)
    load_model(network, "a/export/weights.safetensors")
    samples = Pixels(16).back(data.test_inputs)
    right = np.array(script["predict"](samples, network)) == data.test_targets.numpy().astype(str)
    assert np.mean(right) == pytest.approx(record("a")["last"]["value"], abs=1e-12)
    with pytest.raises(RuntimeError, match="the export has no network"):
        script["predict"](samples)
    from_python("b", data=digits(iid(clients=3)), private=PRIVATE.make("alone"))
    for words in ((), ("--client", "0")):
        text = fedloom("export", "b", *words, code=2).output
        assert "only the Python code that started the run can make it" in text


def test_a_users_own_transform_is_said_to_be_missing(fedloom):
    inputs, targets = torch.randint(0, 9, (20, 64)), torch.arange(20) % 10
    data = from_arrays(inputs, targets, iid(4), test=(inputs, targets), transform=Halved())
    from_python("a", data=data)
    text = fedloom("export", "a").output
    assert "not exported: the transform Halved, your own code; call it in prepare()" in text
    with pytest.raises(ValueError, match="samples are no numbers, and nothing here says how they"):
        runpy.run_path(SCRIPT)["prepare"](["a", "b"])
