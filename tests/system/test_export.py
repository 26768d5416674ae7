"""An exported folder is all that is needed to use a model: its inputs, its classes, its score."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import runpy
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_model
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from fedloom import Experiment, FedAvg, Local
from fedloom.cli import exported
from fedloom.cli.__main__ import cli
from fedloom.cli.export_check import ExportFacts, describe
from fedloom.cli.export_network import write_script
from fedloom.config import resolve
from fedloom.data import Images, digits, from_arrays, heart, iid
from fedloom.data.own import cells
from fedloom.data.own.columns import as_table
from fedloom.data.own.making import PerClient
from fedloom.data.own.preparation import Column, Preparation
from fedloom.data.published.heart import INPUTS
from fedloom.data.published.shakespeare import ALPHABET
from fedloom.data.raw_inputs import Characters, Columns, Pixels, Running, Words, recipe
from fedloom.models import MODELS, mlp
from fedloom.models.recurrent import LSTM
from fedloom.report import group_runs, load_run
from fedloom.report.clients import preparation_lines
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1")

EVIL = "'\"\"\"\n\\x41'''\nopen('harm','w')#\\"


# -------------------------------------------------------------------------------- inputs, by kind
WORDS = {"<pad>": 0, "<unk>": 1, "it's": 2, ",": 3, "o": 4, "été": 5}
BY_WORD = {"a": 0, "<eos>": 1, "<unk>": 2}
GREY, RED = torch.arange(2 * 64) % 17, torch.arange(2 * 3 * 4) * 10
CELLS = Preparation(
    (
        Column(EVIL, "number", mean=45.0, std=2.0),
        Column("sex", "one_hot", ("f", EVIL)),
        Column("stage", "ordinal", ("I", "II", "III")),
    )
)
NUMBERED = Preparation(
    (Column("cp", "one_hot", ("0.5", "1", "?"), "?"), Column("stage", "ordinal", ("1", "2")))
)
CASES: list[tuple[Any, Any, Tensor]] = [
    (Pixels(16), None, Pixels(16).store(GREY.view(2, 1, 8, 8))),
    (Pixels(255, 0.286, 0.3529), None, Pixels(255, 0.286, 0.3529).store(GREY.view(2, 1, 8, 8))),
    (None, Images(mean=(0.1, 0.2, 0.3), std=(0.3, 0.7, 0.9)), RED.view(2, 3, 2, 2).byte()),
    (None, None, torch.tensor([[0.1, -2.0]])),
    (None, None, torch.tensor([[1, 2]])),
    (Columns(("a", EVIL)), None, torch.tensor([[0.1, -2.0]])),
    (CELLS, None, torch.tensor([[0.5, 1, 0, 2], [-0.25, 0, 1, 0], [4, 0, 0, 1]])),
    (NUMBERED, None, torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]])),
    (Words(WORDS, 4), None, torch.tensor([[2, 3, 1, 0], [0, 0, 0, 0], [5, 4, 4, 4]])),
    (Characters(ALPHABET), None, torch.tensor([[0, 79, 7], [5, 6, 7]])),
    (Running(BY_WORD), None, torch.tensor([[0, 1, 2], [2, 2, 1]])),
]


def written(
    folder: Path, module: nn.Module, how: dict[str, Any], dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """An export of this module -> the names of its script."""
    about: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "metric": None}
    about |= {"classes": [], "outcome": "classes", "threshold": 0.5, "ranges": {}, "reading": {}}
    row = describe(about, how, None, folder)
    write_script(folder, module, ExportFacts(about, row, None, "", False))
    return runpy.run_path(str(folder / "predict.py"))


@pytest.mark.parametrize(("raw", "transform", "stored"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_script_makes_the_inputs_that_the_model_was_trained_on(
    raw: Any, transform: Any, stored: Tensor, dtype: torch.dtype, tmp_path: Path
) -> None:
    transform = None if transform is None else transform.astype(dtype)
    wanted = stored if transform is None else transform.plain(stored)
    wanted = wanted.to(dtype) if wanted.is_floating_point() else wanted
    how = recipe(raw, transform, stored)
    assert json.loads(json.dumps(how)) == how
    made = written(tmp_path, nn.Flatten(), how, dtype)
    samples = stored.numpy() if raw is None else raw.back(stored)
    assert torch.equal(made["prepare"](samples), wanted)
    assert made["prepare"](samples).dtype == wanted.dtype
    assert len(made["outputs"](samples)) == len(stored)
    if isinstance(samples[0], str):  # numbers may be given instead of texts
        assert torch.equal(made["prepare"](stored.numpy()), wanted)


def test_a_script_takes_a_number_however_it_is_written(tmp_path: Path) -> None:
    """As training does: by the same cells."""
    rows = [(" 1 ", "2"), ("1.0", "02"), (1, 2.0), (1.0, "+2"), (".50", 1), ("x", 1), (None, 1)]
    table = as_table("t.csv", dict(zip(("cp", "stage"), zip(*rows, strict=True), strict=True)))
    wanted = NUMBERED.of(table)
    how = recipe(NUMBERED, None, wanted)
    assert torch.equal(written(tmp_path, nn.Flatten(), how)["prepare"](rows), wanted)
    assert wanted[:4].tolist() == [[0, 1, 0, 1]] * 4 and wanted[5:, :3].sum() == 1


def test_published_digits_are_what_a_script_takes(fedloom: Fedloom, a: str) -> None:
    from sklearn.datasets import load_digits

    assert "checked: accuracy" in fedloom("export", "a").output
    made, data = runpy.run_path("a/export/predict.py"), digits()
    assert data.test_inputs is not None
    rows = lambda images: sorted(map(tuple, images.flatten(1).tolist()))
    whole = torch.cat([data.inputs, data.test_inputs])
    bunch = load_digits()
    bunch.images.flags.writeable = False  # as an array of a file's bytes is
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(made["prepare"](bunch.images)) == rows(whole)
    assert set(made["predict"](bunch.images)) <= set("0123456789")
    for wrong, said in ((bunch.images / 16, "fractions"), (bunch.images[:, :4], "shape")):
        with pytest.raises(ValueError, match=said):
            made["prepare"](wrong)


# ------------------------------------------------------------------------------------------ names
def test_names_are_values_and_never_code(fedloom: Fedloom) -> None:
    folder = Path(EVIL.replace("/", ""))
    fedloom("run", *SMALL, "--out", folder, "--quiet")
    partition = json.loads((folder / "partition.json").read_text())
    partition["class_names"] = [f"{EVIL}{i}" for i in range(10)]
    (folder / "partition.json").write_text(json.dumps(partition))
    (folder / "manifest.json").unlink()  # whoever writes here can do that too
    for name in ("export", "it's\"\n\\"):
        output = fedloom("export", folder, "--out", folder / name).output
        assert "checked: accuracy" in output
        code = folder / name / "predict.py"
        assert code.read_text() == Path(exported.__file__).read_text()
        made = runpy.run_path(str(code))
        about = made["about"]()
        assert (about["run"], about["round"]) == (folder.name, 2)
        assert about["classes"] == partition["class_names"]
        assert made["predict"](np.zeros((1, 8, 8)))[0] in partition["class_names"]
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
def test_an_altered_description_is_refused(
    change: dict[str, Any], fedloom: Fedloom, a: str
) -> None:
    partition = json.loads(Path("a/partition.json").read_text())
    partition["inputs"] |= change
    Path("a/partition.json").write_text(json.dumps(partition))
    Path("a/manifest.json").unlink()  # the seal would refuse it before
    text = fedloom("export", "a", code=1).output
    assert "a/partition.json' is damaged" in text
    assert not Path("a/export/predict.py").exists() and not Path("harm").exists()


# ------------------------------------------------------------------------------------------ checks
def test_an_export_is_checked_without_fedloom(fedloom: Fedloom, check: Any, a: str) -> None:
    assert "359 raw samples" in fedloom("export", "a", "--test-set").output
    last = json.loads(Path("a/summary.json").read_text())["last"]["value"]
    code, output = check("a/export/predict.py", "--check", "a/export/test.npz")
    assert code == 0 and output.count(f"{last:.6g}") == 2 and "the same" in output
    made = runpy.run_path("a/export/predict.py")
    with np.load("a/export/test.npz") as arrays:
        inputs, targets = arrays["inputs"], arrays["targets"]
    assert inputs.dtype == np.uint8 and int(inputs.max()) == 16
    assert made["score"](inputs, targets) == pytest.approx(last, abs=1e-12)
    np.savez("b.npz", inputs=inputs, targets=(targets + 1) % 10)
    code, output = check("a/export/predict.py", "--check", "b.npz")
    assert code == 1 and "NOT THE SAME" in output
    np.savez("c.npz", inputs=inputs)
    np.save("larger.npy", np.zeros((2, 1, 16, 16)))
    Path("new.png").write_bytes(b"\x89PNG")
    for words, said in (
        (("new.png",), "error: new.png: the model was not trained on picture files; give a .npy"),
        (("larger.npy",), "larger.npy: a sample has the shape (1, 8, 8), got (1, 16, 16)"),
        (("--check", "c.npz"), "error: c.npz: 'targets is not a file in the archive'"),
        (("--check", "none.npz"), "error: none.npz: No such file or directory"),
        ((), "error: give a file of samples, or --check FILE.npz"),
    ):
        code, output = check("a/export/predict.py", *words)
        assert code == 2 and said in output


@pytest.mark.slow
def test_an_export_is_checked_in_a_python_of_its_own(fedloom: Fedloom, a: str) -> None:
    fedloom("export", "a", "--test-set")
    start = "import runpy, sys; sys.modules['fedloom'] = None; del sys.argv[0]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    call = [sys.executable, "-c", start, "a/export/predict.py", "--check", "a/export/test.npz"]
    found = subprocess.run(call, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and "the same" in found.stdout, found.stderr


def test_another_score_than_the_runs_is_an_error(
    fedloom: Fedloom,
    monkeypatch: pytest.MonkeyPatch,
    a: str,
) -> None:
    last = json.loads(Path("a/summary.json").read_text())["last"]["value"]
    for said in (last + 0.01, last - 0.01):
        monkeypatch.setattr("fedloom.cli.export_check._run_score", lambda *parts, said=said: said)
        text = fedloom("export", "a", code=1).output
        assert f"but the run said {said:.6g}" in text
    monkeypatch.setattr("fedloom.cli.export_check._run_score", lambda *parts: None)
    assert "the run did not measure it" in fedloom("export", "a").output


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["heterofl", "fiarse"])
def test_sub_models_are_checked_too(rule: str, fedloom: Fedloom) -> None:
    sizes = ("submodel.capacities=[0.25, 1]", "evaluate.sizes=[0.5]")
    fedloom("run", *SMALL, f"submodel={rule}", *sizes, "--out", "a", "--quiet")
    summary = json.loads(Path("a/summary.json").read_text())["sizes"]
    for size, said in (
        ("0.25", summary["global"]["0.25"]),
        ("0.5", summary["unseen"][0]["global"]),
    ):
        output = fedloom("export", "a", "--capacity", size, "--test-set").output
        assert f"checked: accuracy {said:.6g} on 359 raw test samples, and the run said" in output
        with np.load(f"a/export-{size}/test.npz") as arrays:
            made = runpy.run_path(f"a/export-{size}/predict.py")
            assert made["score"](arrays["inputs"], arrays["targets"]) == pytest.approx(said)
    assert "did not measure it" in fedloom("export", "a", "--capacity", "0.7").output


# ------------------------------------------------------------------------------------------- texts
def reviews(path: str, rows: int) -> None:
    with Path(path).open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["who", "text", "label"])
        for i in range(rows):
            out.writerow(
                ["ab"[i % 2], ("It's good, " if i % 3 else "bad \\ ") * (i % 4 + 1), i % 3]
            )


@pytest.mark.slow
def test_texts_bring_their_vocabulary(fedloom: Fedloom, check: Any) -> None:
    reviews("train.csv", 30)
    reviews("test.csv", 7)
    data = ("data=table", "data.path=train.csv", "data.test=test.csv", "data.text=text")
    data += ("data.client=who", "data.length=6", "data.vocabulary=9", "data.partition=natural")
    data += ("data.clients=2",)
    model = ("model=transformer_text", "model.vocabulary=9", "model.classes=3", "model.width=8")
    fedloom("run", *data, *model, "model.length=6", "cohort=2", *SMALL, "--out", "a", "--quiet")
    output = fedloom("export", "a", "--test-set").output
    assert "checked: accuracy" in output
    code, said = check("a/export/predict.py", "--check", "a/export/test.npz")
    assert code == 0 and "the same" in said
    made = runpy.run_path("a/export/predict.py")
    with Path("test.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    from fedloom.config import from_run

    stored = from_run("a").data().test_inputs
    assert stored is not None
    assert sorted(made["prepare"](texts).tolist()) == sorted(stored.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["false", "true"])
def test_a_language_model_is_checked_by_its_perplexity(
    tied: str, fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(Path().resolve()))
    Path("wikitext-2").mkdir()
    for part, count in (("train", 60), ("test", 30)):
        line = " ".join(["the", "cat", "=", "saw", "<unk>", "été"] * count)
        Path(f"wikitext-2/wiki.{part}.tokens").write_text(f" {line} \n")
    data = ("data=wikitext2", "data.length=5", "data.partition=iid", "data.clients=2")
    model = ("model=lstm_language_model", "model.vocabulary=7", "model.embedding=4")
    model += ("model.hidden=4", f"model.tied={tied}")
    fedloom("run", *data, *model, "cohort=2", *SMALL, "--out", "a", "--quiet")
    output = fedloom("export", "a").output
    assert "checked: perplexity" in output
    made = runpy.run_path("a/export/predict.py")
    for words in (1, 5, 12):  # of any length
        text = " ".join(["the", "cat", "=", "saw", "<eos>", "dog"][:words] * (1 + words // 6))
        assert made["outputs"]([text]).shape == (1, len(text.split()), 7)
    for name in ("model.safetensors", "summary.json"):  # as of a run that has not ended
        Path("a", name).unlink()
    assert "checked: perplexity" in fedloom("export", "a").output


TEXT = {"vocabulary": 9, "length": 9, "width": 8, "heads": 2}
SIZES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "logistic": ({}, (1, 28, 28)),
    "mlp": ({"hidden": (8,)}, (1, 8, 8)),
    "cnn_fafed_mnist": ({}, (1, 28, 28)),
    "cnn_fafed_fashion": ({}, (1, 28, 28)),
    "cnn_fafed_cifar": ({}, (3, 32, 32)),
    "cnn_cfedavg": ({}, (1, 28, 28)),
    "cnn_femnist": ({}, (1, 28, 28)),
    "cnn_celeba": ({}, (3, 84, 84)),
    "resnet8": ({}, (3, 8, 8)),
    "resnet18": ({"norm": "static_batch", "exits": True}, (3, 16, 16)),
    "resnet18_fedsmoo": ({}, (3, 8, 8)),
    "resnet18_fiarse": ({}, (3, 16, 16)),
    "lstm_shakespeare": ({"hidden": 6}, (9,)),
    "lstm_language_model": ({"vocabulary": 9, "embedding": 5, "hidden": 4}, (9,)),
    "transformer_text": (TEXT, (9,)),
    "unet": ({}, (1, 12, 10)),
}


def test_sizes_are_of_every_model() -> None:
    assert {*SIZES} == {*MODELS} - {"roberta_base", "huggingface_text"}


# their layers are those of resnet18
ALIKE = {"resnet8", "resnet18_fedsmoo", "resnet18_fiarse"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in ALIKE else []) for n in SIZES]
)
def test_every_model_computes_the_same_for_any_number_of_samples(name: str, tmp_path: Path) -> None:
    options, shape = SIZES[name]
    torch.manual_seed(0)
    want = MODELS[name](**options).eval()
    inputs = torch.randint(0, 9, (3, *shape))
    inputs = inputs if len(shape) == 1 else inputs.float()
    made = written(tmp_path, want, recipe(None, None, inputs))
    for samples in (inputs, inputs[:1], torch.cat([inputs, inputs])):
        with torch.no_grad():
            wanted = want(samples)
        if name.startswith("lstm"):  # step by step, which are other products
            torch.testing.assert_close(made["outputs"](samples), wanted)
        else:
            assert torch.equal(made["outputs"](samples), wanted)


class Own(nn.Module):
    """A network of a user's."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.recurrent(inputs)[0][:, -1]
        return out


class Branch(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum() > 0 else -inputs


class OneSize(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / len(inputs)


@pytest.mark.parametrize("kind", [nn.LSTM, LSTM, nn.GRU])
def test_a_recurrent_network_of_a_users_is_exported(kind: Any, tmp_path: Path) -> None:
    want, inputs = Own(kind(3, 4, batch_first=True)).eval(), torch.randn(3, 5, 3)
    made = written(tmp_path, want, recipe(None, None, inputs))
    with torch.no_grad():
        torch.testing.assert_close(made["outputs"](inputs), want(inputs))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Sequential(Branch()), f"Branch.forward ({__file__}, line "),
        (OneSize(), "OneSize, whose code fixes the number of samples in a batch"),
    ],
)
def test_a_network_that_cannot_be_exported_is_named_in_one_line(
    network: nn.Module, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs = torch.ones(2, 3)
    made = written(tmp_path, network, recipe(None, None, inputs))
    output, errors = capfd.readouterr()
    line, *_ = output.splitlines()
    assert line.startswith("not exported: the network: torch.export refuses ") and said in line
    assert not errors and not (tmp_path / "model.pt2").exists()
    with pytest.raises(RuntimeError, match="the export has no network"):
        made["outputs"](inputs)
    assert torch.equal(made["outputs"](inputs, network.train()), network(inputs))
    assert not network.training


NETS = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))

@torch.library.custom_op("mine::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2

halved.register_fake(torch.empty_like)
halved.register_autograd(lambda ctx, grad: grad / 2)

class Custom(Net):
    def forward(self, inputs):
        return halved(super().forward(inputs))

class Branch(Net):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if outputs.sum() > 0 else -outputs
"""


def test_a_network_of_a_users_file_is_exported_or_its_line_is_named(fedloom: Fedloom) -> None:
    Path("nets.py").write_text(NETS)
    line = NETS[: NETS.index("return outputs")].count("\n") + 1
    refused = f"torch.export refuses Branch.forward ({Path('nets.py').absolute()}, line {line}): "
    custom = "the network: it calls torch.ops.mine.halved.default, and only operators of "
    custom += "torch.ops.aten are run, since others may run code; make it yourself"
    nets = ("Net", "model.pt2: the network"), ("Branch", refused), ("Custom", custom)
    for name, said in nets:
        fedloom("run", *SMALL, f"model=nets.py:{name}", "--out", name, "--quiet")
        output = fedloom("export", name).output
        assert said in output and "checked: accuracy" in output
        weights = Path(
            name, "export", "weights.safetensors"
        )  # once: in the network, if there is one
        assert weights.exists() == (name != "Net") != Path(name, "export", "model.pt2").exists()
    Path("nets.py").unlink()
    assert runpy.run_path("Net/export/predict.py")["outputs"](np.zeros((3, 8, 8))).shape == (3, 10)


def test_another_torch_that_cannot_load_a_network_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    made = written(tmp_path, nn.Flatten(), recipe(None, None, torch.ones(2, 3)))
    made["about"]()["torch"] = "9.0.0"
    (tmp_path / "model.pt2").write_bytes(b"something newer")
    with pytest.raises(RuntimeError, match=r"model.pt2 is damaged, .* or install torch 9.0.0"):
        made["outputs"](torch.ones(2, 3))
    shown = caplog.text + capfd.readouterr().err
    assert "Traceback" not in shown, "torch shows its own"
    (tmp_path / "model.pt2").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"model.pt2 is missing: it belongs beside the script"
    ):
        made["outputs"](torch.ones(2, 3))


class Evil:
    """What writes the file `harm` as soon as it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("harm", "w")


def pickled() -> bytes:
    file = io.BytesIO()
    torch.save(Evil(), file)
    return file.getvalue()


CODE = '__import__(\\"builtins\\").open(\\"harm\\", \\"w\\")'
INSTEAD: dict[str, Callable[[str, bytes], tuple[str, bytes]]] = {
    "inputs": lambda name, raw: (name, pickled() if "sample_inputs" in name else raw),
    "capitals": lambda name, raw: (
        (name.replace("model.pt", "MODEL.PT"), pickled())
        if "sample_inputs" in name
        else (name, raw)
    ),
    "constant": lambda name, raw: (
        name,
        b'{"config": {"c": {"path_name": "tensor_0", "is_param": false, "use_pickle": true}}}'
        if "constants_config" in name
        else raw,
    ),
    "object": lambda name, raw: (
        ("archive/data/constants/opaque_obj_0", pickle.dumps(Evil()))
        if name.endswith("/version")
        else (name, raw)
    ),
    "size": lambda name, raw: (name, re.sub(rb"Symbol\([^)]*\)", CODE.encode(), raw)),
    "call": lambda name, raw: (
        name,
        raw.replace(b"torch.ops.aten.linear.default", b"torch.os.abort"),
    ),
    "guard": lambda name, raw: (
        name,
        raw.replace(b'"guards_code": []', f'"guards_code": ["{CODE}"]'.encode()),
    ),
}


@pytest.mark.parametrize("what", INSTEAD)
def test_a_network_that_would_run_code_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever torch unpickles, evaluates or calls by the names in an archive."""
    monkeypatch.chdir(tmp_path)
    inputs = torch.ones(2, 3)
    made = written(tmp_path, nn.Sequential(nn.Linear(3, 2)), recipe(None, None, inputs))
    with zipfile.ZipFile("model.pt2") as old:
        parts = [(name, old.read(name)) for name in old.namelist()]
    altered = [INSTEAD[what](name, raw) for name, raw in parts]
    assert altered != parts or what == "guard"
    with zipfile.ZipFile("model.pt2", "w") as new:
        for name, raw in altered:
            new.writestr(name, raw)
    if what == "guard":  # left away
        assert made["outputs"](inputs).shape == (2, 2)
    else:
        calls = r"calls torch.os.abort, and only operators of torch.ops.aten are run, since others "
        why = rf"model.pt2 is refused: it {calls if what == 'call' else ''}may run code; "
        with pytest.raises(
            RuntimeError, match=why + r"make it yourself, .* outputs\(samples, network"
        ):
            made["outputs"](inputs)
    assert not Path("harm").exists()


def test_damaged_files_are_named_in_one_line(fedloom: Fedloom, check: Any, a: str) -> None:
    fedloom("export", "a", "--test-set")
    folder = Path("a/export")
    for name in ("model.pt2", "about.json", "test.npz"):
        raw = (folder / name).read_bytes()
        for damaged in (raw[: len(raw) // 2], b"", b"[1]", b'{"a": 1}', b"\xff" * 99):
            (folder / name).write_bytes(damaged)
            code, output = check("a/export/predict.py", "--check", "a/export/test.npz")
            assert code == 2 and output.startswith("error: a/export/test.npz: "), output
            assert output.count("\n") == 1 and "copy it again" in output, output
            assert "install torch" not in output
        (folder / name).write_bytes(raw)
    np.save("one.npy", np.zeros((2, 8, 8)))
    Path("one.npy").write_bytes(Path("one.npy").read_bytes()[:200])
    code, output = check("a/export/predict.py", "one.npy")
    assert code == 2 and "copy it again" in output
    assert check("a/export/predict.py", "--check", "a/export/test.npz")[0] == 0


# ------------------------------------------------------------------------------------- from Python
@dataclass(frozen=True)
class Halved:
    """A transform of a user's."""

    draws: int = 0
    out: torch.dtype = torch.float32

    def plain(self, inputs: Tensor) -> Tensor:
        return inputs.float() / 2

    def augmented(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return self.plain(inputs)

    def astype(self, dtype: torch.dtype) -> Halved:
        return self

    def about(self) -> dict[str, Any]:
        return {}


def from_python(out: str, **changes: Any) -> None:
    parts: dict[str, Any] = {"algorithm": FedAvg(), "model": lambda: mlp(64), "device": "cpu"}
    local = Local(epochs=1, lr=0.1)
    Experiment(**(parts | {"rounds": 1, "local": local} | changes)).run(out)


def test_a_run_from_python_knows_its_inputs_as_well(fedloom: Fedloom) -> None:
    from_python("a", data=digits(iid(clients=5)))
    text = fedloom("export", "a").output
    assert "not checked: the run was started from Python" in text
    assert "not exported: the network: only the Python code that started the run knows it" in text
    made, data, network = runpy.run_path("a/export/predict.py"), digits(), mlp(64)
    load_model(network, "a/export/weights.safetensors")
    assert data.test_inputs is not None and data.test_targets is not None
    images = Pixels(16).back(data.test_inputs)
    last = json.loads(Path("a/summary.json").read_text())["last"]["value"]
    assert made["score"](images, data.test_targets, network) == pytest.approx(last, abs=1e-12)
    with pytest.raises(RuntimeError, match="the export has no network"):
        made["predict"](images)


def test_a_users_own_transform_and_metric_are_said_to_be_missing(fedloom: Fedloom) -> None:
    inputs, targets = torch.randint(0, 9, (20, 64)), torch.arange(20) % 10
    data = from_arrays(inputs, targets, iid(4), test=(inputs, targets), transform=Halved())
    own = {"mine": lambda outputs, targets: (outputs.argmax(1) == targets).float()}
    from_python("a", data=data, metrics=own)
    text = fedloom("export", "a").output
    assert "not exported: the transform Halved, your own code; call it in prepare()" in text
    with pytest.raises(ValueError, match="samples are no numbers, and nothing here says how they"):
        runpy.run_path("a/export/predict.py")["prepare"](["a", "b"])
    assert "not exported: the metric 'mine', code that is not fedloom's" in text


TABLE = """
rounds = 2
algorithm = "fedavg"
model = {name = "mlp", inputs = 4, hidden = [8], classes = 2}
[data]
name = "table"
path = "*.csv"
target = "out"
columns = {sex = "one_hot", stage = ["I", "II", "III"]}
missing = "most_frequent"
standardise = true
date = "day"
test_from = "2024-01-21"
partition = "natural"
"""


def test_rows_of_a_table_are_prepared_as_in_training(fedloom: Fedloom, check: Any) -> None:
    draw = np.random.default_rng(0)
    for site in ("bonn", "lyon"):
        rows = ["age,sex,stage,day,out"]
        for day in range(1, 31):
            age, sex = draw.integers(20, 90), draw.choice(["f", "m", ""])
            out = "ward" if age > 55 else "home"
            rows.append(f"{age or ''},{sex},{draw.choice(['I', 'II', ''])},2024-01-{day:02d},{out}")
        Path(f"{site}.csv").write_text("\n".join([*rows, ",,,2024-01-31,ward"]))
    Path("my.toml").write_text(TABLE)
    fedloom("run", "my.toml", "--out", "a", "--quiet")
    (group,) = group_runs([load_run("a")])
    assert preparation_lines([group])[2].startswith(
        "stage: 0 to 2 for I < II < III, missing values as 'I"
    )
    assert "checked: accuracy" in fedloom("export", "a", "--test-set").output
    assert check("a/export/predict.py", "--check", "a/export/test.npz")[0] == 0
    made = runpy.run_path("a/export/predict.py")
    whole = resolve("a/config.toml").data()
    new = pandas.read_csv("bonn.csv").tail(11)
    assert torch.equal(made["prepare"](new), whole.test_inputs[:11])
    assert torch.equal(made["prepare"](new.to_dict("records")), whole.test_inputs[:11])
    assert set(made["predict"](new[["stage", "out", "sex", "age"]])) <= {"home", "ward"}
    with pytest.raises(ValueError, match="column 'stage', row 1: 'IV' is none of I, II, III"):
        made["prepare"]([{"age": 3, "sex": "x", "stage": "IV"}])


def test_a_script_recodes_cells_as_training_did(fedloom: Fedloom) -> None:
    rows = [f"{sex},{sex in 'wF'}" for sex in "wmFM" * 5]
    Path("t.csv").write_text("\n".join(["sex,out", *rows]) + "\n")
    words = "name=table path=t.csv target=out columns.sex=dummy test_share=0.3 partition=iid"
    words += " recode.sex.w=F recode.sex.m=M partition.clients=2"
    change = ["rounds=1", "cohort=2", "model=logistic", "model.inputs=1", "model.classes=2"]
    change += ["local.lr=0.1", "data=table", *(f"data.{word}" for word in words.split())]
    Path("my.toml").write_text('algorithm = "fedavg"\n')
    fedloom("run", "my.toml", *change, "--out", "a", "--quiet")
    assert "checked: accuracy" in fedloom("export", "a").output
    made = runpy.run_path("a/export/predict.py")
    assert made["prepare"]([{"sex": sex} for sex in "wmFM"]).flatten().tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="row 1: 'x' is none of F, M"):
        made["prepare"]([{"sex": "x"}])


@pytest.mark.slow
def test_data_that_are_gone_are_said(fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    reviews("train.csv", 30)
    data = ("data=table", "data.path=train.csv", "data.text=text", "data.partition=natural")
    data += ("data.client=who", "data.length=6", "data.vocabulary=9")
    data += ("data.clients=2",)
    model = ("model=transformer_text", "model.vocabulary=9", "model.classes=3", "model.width=8")
    fedloom("run", *data, *model, "model.length=6", "cohort=2", *SMALL, "--out", "a", "--quiet")
    assert "not checked: the run has no test set" in fedloom("export", "a").output
    os.unlink("train.csv")
    text = fedloom("export", "a").output
    assert "not checked: the data are not at hand: " in text
    made = runpy.run_path("a/export/predict.py")
    assert made["prepare"](["bad zzz"]).tolist()[0][1:] == [1, 0, 0, 0, 0]
    assert made["outputs"](["bad zzz"]).shape == (1, 3)
    assert "--test-set: " in fedloom("export", "a", "--test-set", code=2).output


# ------------------------------------------------------------------------------ new rows of a table
PATIENTS = """
rounds = 2
algorithm = "fedavg"
metrics = ["auc", "brier", "accuracy"]
model = {name = "logistic", inputs = 5, classes = 2}
evaluate = {threshold = 0.4}
[data]
name = "table"
path = "sites/*.csv"
target = "out"
columns = {sex = "one_hot", stage = ["I", "II", "III"]}
missing = {age = "median"}
standardise = true
date = "day"
test_from = "2024-01-21"
partition = "natural"
"""


@pytest.fixture(scope="module")
def exported_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two hospitals' tables, and its export."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "sites").mkdir()
    draw = np.random.default_rng(0)
    for site in ("bonn", "lyon"):
        rows = ["age,sex,stage,dose,day,out"]
        for day in [*range(1, 31)] * 2:
            age, sex, stage = (
                draw.integers(20, 90),
                draw.choice(["f", "m"]),
                draw.choice(["I", "II"]),
            )
            out = "ward" if age + draw.normal() * 20 > 55 else "home"
            rows.append(f"{age},{sex},{stage},{draw.random():.3f},2024-01-{day:02d},{out}")
        (folder / "sites" / f"{site}.csv").write_text(
            "\n".join([*rows, ",m,II,.5,2024-01-02,ward"])
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("my.toml").write_text(PATIENTS)
        for words in (["run", "my.toml", "--out", "a", "--quiet"], ["export", "a"]):
            done = CliRunner().invoke(cli, words)
            assert done.exit_code == 0, done.output
    assert "checked: auc" in done.output
    return folder


def test_a_patients_file_becomes_the_runs_own_scores(
    exported_table: Path, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predicted from the files of the sites, by the script alone: AUC, Brier score and accuracy."""
    monkeypatch.chdir(exported_table)
    rows = pandas.concat([pandas.read_csv(f, dtype=str) for f in sorted(Path("sites").glob("*"))])
    tests = rows[rows["day"] >= "2024-01-21"]
    tests.drop(columns=["out", "day"]).to_csv("patients.csv", index=False)
    code, output = check("a/export/predict.py", "patients.csv", "--out", "scores.csv")
    assert code == 0 and all(line.startswith("warning: ") for line in output.splitlines())
    found = pandas.read_csv("scores.csv")
    assert [*found] == ["row", "probability_home", "probability_ward", "class"]
    assert found["row"].tolist() == [*range(1, len(tests) + 1)]
    likely, ill = found["probability_ward"], (tests["out"] == "ward").to_numpy()
    assert (found["class"] == np.where(likely > 0.4, "ward", "home")).all()
    last = json.loads(Path("a/rounds.jsonl").read_text().splitlines()[-1])
    assert roc_auc_score(ill, likely) == pytest.approx(last["test_auc"], abs=1e-6)
    assert ((likely - ill) ** 2).mean() == pytest.approx(last["test_brier"], abs=1e-6)
    right = (found["class"] == tests["out"].to_numpy()).mean()
    assert right == pytest.approx(last["test_accuracy"], abs=1e-6)
    about = json.loads(Path("a/export/about.json").read_text())
    own = json.loads(Path("a/clients.json").read_text())["metrics"]
    assert about["scores"]["sites"]["lyon"] == {name: own[name][1] for name in own}
    trained = rows[rows["day"] < "2024-01-21"]["age"].astype(float)
    assert about["threshold"] == 0.4 and about["ranges"]["age"] == [trained.min(), trained.max()]
    assert Path("a/export/cells.py").read_text() == Path(cells.__file__).read_text()
    card = Path("a/export/README.md").read_text()
    assert f"| lyon | 41 | 20 | {own['auc'][1]:.4f} | {own['brier'][1]:.4f} |" in card
    assert "- Sites with fewer than 50 test rows: bonn (20), lyon (20)." in card


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("31,m,II", "31,x,II", "column 'sex', row 2: 'x' is none of f, m"),
        ("31,m,II", "31,m,IV", "column 'stage', row 2: 'IV' is none of I, II, III"),
        ("31,m,II", "old,m,II", "column 'age', row 2: 'old' is no finite number"),
        (
            "31,m,II",
            "31,,II",
            "column 'sex', row 2: it is empty, and in training no such cell was; fill it",
        ),
        ("31,m,II", "31,m", "row 2 has 3 cells, and the header 4"),
        ("sex", "gender", "no column 'sex'; there are age, gender, stage, dose"),
        ("sex", "age", "two columns are called 'age'"),
        (",", ";", "its cells are not separated by ','; save it so"),
        ("40,f,I,0.5\n31,m,II,0.1\n", "", "it has no rows below a header"),
        ("31,m,II", "31,m,é", "it is not UTF-8; save it so"),
    ],
)
def test_a_row_that_the_model_was_not_trained_for_is_refused(
    old: str, new: str, said: str, exported_table: Path, check: Any, tmp_path: Path
) -> None:
    text = "age,sex,stage,dose\n40,f,I,0.5\n31,m,II,0.1\n".replace(old, new)
    (tmp_path / "new.csv").write_text(text, encoding="latin-1")
    code, output = check(
        str(exported_table / "a/export/predict.py"), str(tmp_path / "new.csv"), "--out", "s.csv"
    )
    assert code == 2 and output == f"error: {tmp_path / 'new.csv'}: {said}\n"
    assert not Path("s.csv").exists()


def test_rows_outside_of_the_trained_ranges_are_counted(
    exported_table: Path, check: Any, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("age,sex,stage,dose\n190,f,I,0.5\n31,m,II,-3\n,m,I,-4\n")
    code, output = check(str(exported_table / "a/export/predict.py"), str(tmp_path / "new.csv"))
    header, *rows, ages, doses = output.splitlines()
    assert code == 0 and header == "row,probability_home,probability_ward,class" and len(rows) == 3
    assert f"warning: {tmp_path}/new.csv, column 'age': 1 of 3 rows outside 20 to 8" in ages
    assert "column 'dose': 2 of 3 rows outside 0.0" in doses
    assert rows[0].split(",")[1] == f"{float(rows[0].split(',')[1]):.6g}"
    assert check(str(exported_table / "a/export/predict.py"), "away.csv") == (
        2,
        "error: away.csv: No such file or directory\n",
    )


def test_rows_of_a_value_that_training_knew_no_input_for_are_counted(
    exported_table: Path, check: Any, tmp_path: Path
) -> None:
    """Rules of sites that were described say others = true: one_hot takes any value."""
    shutil.copytree(exported_table / "a/export", tmp_path / "export")
    about = json.loads((tmp_path / "export/about.json").read_text())
    next(r for r in about["inputs"]["rules"] if r["kind"] == "one_hot")["others"] = True
    (tmp_path / "export/about.json").write_text(json.dumps(about))
    (tmp_path / "new.csv").write_text("age,sex,stage,dose\n40,x,I,0.5\n31,m,II,0.1\n")
    code, output = check(str(tmp_path / "export/predict.py"), str(tmp_path / "new.csv"))
    said = "column 'sex': 1 of 2 rows, as 'x', are none of f, m"
    assert code == 0 and output.endswith(f"warning: {tmp_path}/new.csv, {said}\n")


@pytest.mark.slow
def test_an_export_keeps_its_neighbours_and_leaves_no_older_network(fedloom: Fedloom) -> None:
    Path("nets.py").write_text(NETS)
    for name in ("Net", "Branch"):
        fedloom("run", *SMALL, f"model=nets.py:{name}", "--out", name, "--quiet")
        fedloom("export", name, "--out", "nets", "--test-set")
        there = {path.name for path in Path("nets").iterdir()}
        files = {"about.json", "predict.py", "README.md", "test.npz"}
        assert there == files | {"model.pt2" if name == "Net" else "weights.safetensors"}
    assert Path("nets.py").read_text() == NETS


@pytest.mark.slow
def test_a_hospitals_patients_are_prepared_by_its_own_numbers(fedloom: Fedloom, check: Any) -> None:
    """Which the folder has of a simulation, and a file at the node's place has of a deployment."""
    metrics = "metrics=auc,brier,accuracy"
    fedloom("run", "heart", metrics, "rounds=2", "evaluate.target=none", "--out", "a", "--quiet")
    assert "checked: auc" in fedloom("export", "a").output
    data, own = heart(), json.loads(Path("a/clients.json").read_text())["metrics"]
    assert data.test_inputs is not None and data.test_targets is not None and data.test_clients
    assert isinstance(data.raw, PerClient)
    for i, site in enumerate(data.client_names):
        rows = data.test_clients.of(i)
        texts = data.raw.by_client[site].back(data.test_inputs[rows])
        pandas.DataFrame(texts, columns=[*INPUTS]).to_csv(f"{site}.csv", index=False)
        words = (f"{site}.csv", "--site", site, "--out", f"{site}.scores.csv")
        assert check("a/export/predict.py", *words)[0] == 0
        likely = pandas.read_csv(f"{site}.scores.csv")["probability_ill"]
        ill = data.test_targets[rows].numpy()
        assert ((likely - ill) ** 2).mean() == pytest.approx(own["brier"][i], abs=1e-6)
        assert roc_auc_score(ill, likely) == pytest.approx(own["auc"][i], abs=1e-6)
    head, first, second = Path("va.csv").read_text().splitlines()[:3]
    Path("gap.csv").write_text("\n".join([head, first, "?," + second.partition(",")[2], ""]))
    code, output = check("a/export/predict.py", "gap.csv", "--site", "va")
    said = "column 'age', row 2: ? is empty, and in training no such cell was; fill it"
    assert code == 2 and output.startswith(f"error: gap.csv: {said}")
    code, output = check("a/export/predict.py", "va.csv")
    said = "every site prepared its columns by its own rows: give --site, one of cleveland, hung"
    assert code == 2 and output.startswith(f"error: va.csv: {said}")
    about = json.loads(Path("a/export/about.json").read_text())
    Path("preparation.json").write_text(json.dumps(about["inputs"].pop("sites")["va"]))
    Path("a/export/about.json").write_text(
        json.dumps(about | {"inputs": about["inputs"] | {"sites": {}}})
    )  # as of a deployed run
    for site, said in (
        ("va", "by its own rows, and 'va' is none: give --site, the file preparation.json of the"),
        ("preparation.json", Path("va.scores.csv").read_text()),
    ):
        assert said in check("a/export/predict.py", "va.csv", "--site", site)[1]
