"""An exported network computes what it did in training, and one that would run code is refused."""

import io
import pickle
import re
import runpy
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.data.raw_inputs import recipe
from fedloom.models import MODELS
from fedloom.models.recurrent import LSTM
from support.exports import written

SMALL = ("rounds=2", "local.epochs=1")
TEXT = {"vocabulary": 9, "length": 9, "width": 8, "heads": 2}
SIZES = {
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
ALIKE = {"resnet8", "resnet18_fedsmoo", "resnet18_fiarse"}  # their layers are those of resnet18


def test_sizes_are_of_every_model():
    assert {*SIZES} == {*MODELS} - {"roberta_base", "huggingface_text"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in ALIKE else []) for n in SIZES]
)
def test_every_model_computes_the_same_for_any_number_of_samples(name, tmp_path):
    options, shape = SIZES[name]
    torch.manual_seed(0)
    model = MODELS[name](**options).eval()
    inputs = torch.randint(0, 9, (3, *shape))
    inputs = inputs if len(shape) == 1 else inputs.float()
    script = written(tmp_path, model, recipe(None, None, inputs))
    for samples in (inputs, inputs[:1], torch.cat([inputs, inputs])):
        with torch.no_grad():
            wanted = model(samples)
        if name.startswith("lstm"):  # step by step, which are other products
            torch.testing.assert_close(script["outputs"](samples), wanted)
        else:
            assert torch.equal(script["outputs"](samples), wanted)


class Own(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, inputs):
        return self.recurrent(inputs)[0][:, -1]


class Branch(nn.Module):
    def forward(self, inputs):
        return inputs if inputs.sum() > 0 else -inputs


class OneSize(nn.Module):
    def forward(self, inputs):
        return inputs / len(inputs)


@pytest.mark.parametrize("kind", [nn.LSTM, LSTM, nn.GRU])
def test_a_recurrent_network_of_a_users_is_exported(kind, tmp_path):
    model, inputs = Own(kind(3, 4, batch_first=True)).eval(), torch.randn(3, 5, 3)
    script = written(tmp_path, model, recipe(None, None, inputs))
    with torch.no_grad():
        torch.testing.assert_close(script["outputs"](inputs), model(inputs))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Sequential(Branch()), f"Branch.forward ({__file__}, line "),
        (OneSize(), "OneSize, whose code fixes the number of samples in a batch"),
    ],
)
def test_a_network_that_cannot_be_exported_is_named_in_one_line(network, said, tmp_path, capfd):
    inputs = torch.ones(2, 3)
    script = written(tmp_path, network, recipe(None, None, inputs))
    output, errors = capfd.readouterr()
    line, *_ = output.splitlines()
    assert line.startswith("not exported: the network: torch.export refuses ") and said in line
    assert not errors and not (tmp_path / "model.pt2").exists()
    with pytest.raises(RuntimeError, match="the export has no network"):
        script["outputs"](inputs)
    assert torch.equal(script["outputs"](inputs, network.train()), network(inputs))
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


def test_a_network_of_a_users_file_is_exported_or_its_line_is_named(fedloom):
    Path("nets.py").write_text(NETS)
    line = NETS[: NETS.index("return outputs")].count("\n") + 1
    refused = f"torch.export refuses Branch.forward ({Path('nets.py').absolute()}, line {line}): "
    custom = "it calls torch.ops.mine.halved.default, and only operators of torch.ops.aten are run"
    for name, said in (("Net", "model.pt2: the network"), ("Branch", refused), ("Custom", custom)):
        fedloom("run", *SMALL, f"model=nets.py:{name}", "--out", name, "--quiet")
        output = fedloom("export", name).output
        assert said in output and "checked: on 359 raw test rows" in output
        files = {path.name for path in Path(name, "export").iterdir()}
        kept = files & {"model.pt2", "weights.safetensors"}  # once: in the network, if there is one
        assert kept == {"model.pt2" if name == "Net" else "weights.safetensors"}
    for name in ("Net", "Branch"):  # its neighbours stay, and no older network does
        fedloom("export", name, "--out", "nets")
        kept = "model.pt2" if name == "Net" else "weights.safetensors"
        files = {"about.json", "predict.py", "README.md", kept}
        assert {path.name for path in Path("nets").iterdir()} == files
    assert Path("nets.py").read_text() == NETS
    Path("nets.py").unlink()
    assert runpy.run_path("Net/export/predict.py")["outputs"](np.zeros((3, 8, 8))).shape == (3, 10)


def test_another_torch_that_cannot_load_a_network_is_said(tmp_path, caplog, capfd):
    script = written(tmp_path, nn.Flatten(), recipe(None, None, torch.ones(2, 3)))
    script["about"]()["torch"] = "9.0.0"
    (tmp_path / "model.pt2").write_bytes(b"something newer")
    with pytest.raises(RuntimeError, match=r"model.pt2 is damaged, .* or install torch 9.0.0"):
        script["outputs"](torch.ones(2, 3))
    assert "Traceback" not in caplog.text + capfd.readouterr().err, "torch shows its own"
    (tmp_path / "model.pt2").unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing: it belongs beside the script"):
        script["outputs"](torch.ones(2, 3))


# -------------------------------------------------------------------------------- hostile networks
class Evil:
    """What writes the file `harm` as soon as it is unpickled."""

    def __reduce__(self):
        return open, ("harm", "w")


def pickled():
    file = io.BytesIO()
    torch.save(Evil(), file)
    return file.getvalue()


CODE = '__import__(\\"builtins\\").open(\\"harm\\", \\"w\\")'
CONSTANT = b'{"config": {"c": {"path_name": "tensor_0", "is_param": false, "use_pickle": true}}}'
OBJECT = "archive/data/constants/opaque_obj_0"
# {what: (of which part of the archive, its name and content -> those instead)}
INSTEAD = {
    "inputs": ("sample_inputs", lambda name, raw: (name, pickled())),
    "capitals": (
        "sample_inputs",
        lambda name, raw: (name.replace("model.pt", "MODEL.PT"), pickled()),
    ),
    "constant": ("constants_config", lambda name, raw: (name, CONSTANT)),
    "object": ("/version", lambda name, raw: (OBJECT, pickle.dumps(Evil()))),
    "size": ("", lambda name, raw: (name, re.sub(rb"Symbol\([^)]*\)", CODE.encode(), raw))),
    "call": (
        "",
        lambda name, raw: (name, raw.replace(b"torch.ops.aten.linear.default", b"torch.os.abort")),
    ),
    "guard": (
        "",
        lambda name, raw: (
            name,
            raw.replace(b'"guards_code": []', f'"guards_code": ["{CODE}"]'.encode()),
        ),
    ),
}


@pytest.mark.parametrize("what", INSTEAD)
def test_a_network_that_would_run_code_is_refused(what, tmp_path, monkeypatch):
    """Whatever torch unpickles, evaluates or calls by the names in an archive."""
    monkeypatch.chdir(tmp_path)
    inputs = torch.ones(2, 3)
    script = written(tmp_path, nn.Sequential(nn.Linear(3, 2)), recipe(None, None, inputs))
    with zipfile.ZipFile("model.pt2") as old:
        parts = [(name, old.read(name)) for name in old.namelist()]
    of, instead = INSTEAD[what]
    altered = [instead(name, raw) if of in name else (name, raw) for name, raw in parts]
    assert altered != parts or what == "guard"
    with zipfile.ZipFile("model.pt2", "w") as new:
        for name, raw in altered:
            new.writestr(name, raw)
    if what == "guard":  # left away
        assert script["outputs"](inputs).shape == (2, 2)
    else:
        calls = "calls torch.os.abort, and only operators of torch.ops.aten are run, .*"
        why = f"model.pt2 is refused: it {calls if what == 'call' else ''}.*may run code; make it"
        with pytest.raises(RuntimeError, match=why):
            script["outputs"](inputs)
    assert not Path("harm").exists()
