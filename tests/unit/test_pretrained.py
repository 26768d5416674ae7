"""Hugging Face models: an output with logits, RoBERTa in blocks, LoRA."""

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.models import huggingface_text, roberta_base
from fedloom.objectives import FedMLB
from support.refusals import refused
from tiny import clusters, small, weights


# ------------------------------------------------------------------- without the library
class Answer(nn.Module):
    """Gives its logits as a field, as the models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, inputs):
        return SimpleNamespace(logits=self.inner(inputs), loss=None)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_an_output_that_holds_logits_is_these(engine):
    torch.manual_seed(1)
    module = Answer()
    one = small(FedAvg(), model=module, engine=engine).run()
    other = small(FedAvg(), model=module.inner, engine=engine).run()
    assert torch.equal(one.state.x, other.state.x) and one.last == other.last
    net, x = Net(module), Net(module).init()
    inputs = clusters().inputs
    assert torch.equal(net(x, inputs), module.inner(inputs))


@pytest.mark.parametrize(("lora", "package"), [(0, "transformers"), (2, "peft")])
def test_a_package_that_is_missing_is_named(lora, package, monkeypatch, tmp_path):
    source = folder(tmp_path) if lora else "x"  # LoRA goes into a model of transformers
    monkeypatch.setitem(sys.modules, package, None)
    make = lambda: huggingface_text(source, lora=lora)
    refused(make, f"needs {package} ... [text]", kind=ConfigError)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"classes": 0}, "classes must be"),
        ({"padding": -1}, "padding must be"),
        ({"lora": True}, "lora must be"),
        ({"lora_alpha": 0.0}, "lora_alpha must be in (0, inf)"),
        ({"lora_dropout": 1.0}, "lora_dropout must be in [0, 1)"),
    ],
)
def test_values_out_of_range_are_refused(options, says):
    refused(lambda: huggingface_text("x", **options), says, kind=ConfigError)


# ---------------------------------------------------------------------------- with it: small models
def need():
    return pytest.importorskip("transformers", reason="the extra fedloom[text] is not installed")


SIZE = {
    "vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 12, "type_vocab_size": 1,
    "pad_token_id": 1,
}  # fmt: skip


def folder(path):
    """A small RoBERTa of random weights, saved as its publishers do."""
    transformers = need()
    torch.manual_seed(3)
    config = transformers.RobertaConfig(**SIZE)
    transformers.RobertaForSequenceClassification(config).save_pretrained(path)
    return str(path)


def tokens(n=4):
    torch.manual_seed(5)
    out = torch.randint(2, 19, (n, 7))
    out[0, 4:], out[1, 6:] = 1, 1
    return out


def test_roberta_in_blocks_says_what_the_library_says(tmp_path):
    transformers = need()
    ours = roberta_base(classes=3, source=folder(tmp_path)).eval()
    kind = transformers.AutoModelForSequenceClassification
    theirs = kind.from_pretrained(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    theirs.classifier.load_state_dict(ours.head.state_dict())
    theirs.eval()
    mask = (tokens() != 1).long()
    with torch.no_grad():
        want = theirs(input_ids=tokens(), attention_mask=mask).logits
        torch.testing.assert_close(ours(tokens()), want, rtol=1e-5, atol=1e-6)
    net = Net(ours)
    assert net.blocks == ("embedding", "layer1", "layer2", "head")
    net.check_blocks("FedMLB", tokens(), trained=True)
    assert net.features(net.init(), tokens()).shape == (4, 8)


def test_a_model_that_is_not_roberta_gets_the_mask_of_its_padding(tmp_path):
    transformers = need()
    config = transformers.DistilBertConfig(
        vocab_size=19, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=12
    )
    transformers.DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    net = huggingface_text(str(tmp_path), classes=3, padding=1).eval()
    long, short = tokens()[:1], tokens()[:1, :4]
    torch.testing.assert_close(net(long), net(short), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_roberta_base_has_the_published_parameters(tmp_path):
    transformers = need()
    big = SIZE | {
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 514,
    }  # fmt: skip
    transformers.RobertaConfig(**big).save_pretrained(tmp_path)
    net = roberta_base(source=str(tmp_path), pretrained=False)
    norms, kinds, head = 25 * 2 * 768, 768, 593_668  # from the specification
    assert sum(p.numel() for p in net.parameters()) == 124_648_708
    assert 394_752 + 38_603_520 + 85_017_600 + norms + kinds + head == 124_648_708


def test_weights_come_from_the_source_or_are_drawn(tmp_path):
    source = folder(tmp_path)
    same = [roberta_base(source=source).layer1 for _ in range(2)]
    drawn = roberta_base(source=source, pretrained=False).layer1
    assert weights(same[0]) == weights(same[1]) != weights(drawn)


def test_lora_trains_adapters_and_the_head_alone(tmp_path):
    pytest.importorskip("peft", reason="the extra fedloom[text] is not installed")
    source = folder(tmp_path)
    net = roberta_base(classes=3, source=source, lora=2)
    trained = {n: p.numel() for n, p in net.named_parameters() if p.requires_grad}
    adapters = [n for n in trained if "lora_" in n]
    # query and value of both layers, A (2, 8) and B (8, 2) each
    assert sum(trained[n] for n in adapters) == 2 * 2 * 2 * 16
    assert {n.partition(".")[0] for n in trained if n not in adapters} == {"head"}
    assert Net(net).layout.d == 128 + (8 * 8 + 8) + (8 * 3 + 3)
    torch.manual_seed(0)
    plain = roberta_base(classes=3, source=source)
    plain.head.load_state_dict(net.head.state_dict())
    torch.testing.assert_close(net.eval()(tokens()), plain.eval()(tokens()))  # B begins at zero


def run(module, dtype, engine, **changes):
    draw = np.random.default_rng(8)
    sample = lambda n: (draw.integers(2, 19, size=(n, 6)), draw.integers(3, size=n))
    experiment = Experiment(
        algorithm=FedAvg(), model=copy.deepcopy(module).to(dtype), rounds=2, seed=4, device="cpu",
        data=from_clients([sample(n) for n in (3, 5, 2)], test=sample(9), dtype=dtype),
        local=Local(epochs=2, batch=4, lr=0.1), engine=engine, **changes,
    )  # fmt: skip
    return experiment.run().state.x


@pytest.mark.slow
@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("loss", [None, FedMLB()])
def test_all_engines_agree_on_it_dropout_and_all(lora, loss, tmp_path, engine_of):
    if lora:
        pytest.importorskip("peft", reason="the extra fedloom[text] is not installed")
    module = roberta_base(classes=3, source=folder(tmp_path), lora=lora, lora_dropout=0.1)
    one, other = (
        run(module, torch.float32, e, objective=loss) for e in ("serial", engine_of("workers:2"))
    )
    assert torch.equal(one, other)
    one, other = (run(module, torch.float64, e, objective=loss) for e in ("serial", "vectorised"))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert not torch.equal(one, Net(module).init().double())


def test_a_source_that_is_not_there_is_refused(tmp_path):
    need()
    make = lambda: roberta_base(source=str(tmp_path / "nothing"))
    refused(make, "nothing' cannot be read", kind=DataError)
