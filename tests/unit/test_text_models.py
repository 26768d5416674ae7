"""The LSTM of our own, and models of Hugging Face: RoBERTa in blocks, LoRA."""

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedloom import Experiment, FedAvg, Local
from fedloom.core.dropout import HashedDropout, seeded, swap
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.models import LSTM, huggingface_text, roberta_base
from fedloom.objectives import FedMLB
from support.refusals import refused
from tiny import clusters, small, weights

CASES = [{"num_layers": 1}, {"num_layers": 3}]
CASES += [{"num_layers": 2, "bias": False}, {"num_layers": 2, "batch_first": True}]
F, H, B, T = 3, 5, 4, 6


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def pair(dtype=torch.float64, **options):
    torch.manual_seed(2)
    theirs = nn.LSTM(F, H, **options).to(dtype)
    ours = LSTM(F, H, **options).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def batch(batch_first=False, dtype=torch.float64, **_):
    torch.manual_seed(3)
    return torch.randn(*((B, T) if batch_first else (T, B)), F, dtype=dtype)


def results(net, a, state):
    """Outputs, states, and the gradients of a weighted sum of them all."""
    a = a.clone().requires_grad_()
    state = tuple(v.clone().requires_grad_() for v in state)
    outputs, (h, c) = net(a, state)
    weigh = lambda v: (v * torch.linspace(-1, 2, v.numel(), dtype=v.dtype).view(v.shape)).sum()
    total = weigh(outputs) + weigh(h) + 0.5 * weigh(c)
    return [outputs, h, c, *torch.autograd.grad(total, [a, *state, *net.parameters()])]


@pytest.mark.parametrize("case", CASES)
def test_it_is_torchs_lstm_with_all_gradients_and_names(case):
    ours, theirs = pair(**case)
    state = tuple(torch.randn(case["num_layers"], B, H, dtype=torch.float64) for _ in range(2))
    both = (results(net, batch(**case), state) for net in (ours, theirs))
    for one, other in zip(*both, strict=True):
        close(one, other)
    shapes = [[(n, p.shape) for n, p in net.named_parameters()] for net in (ours, theirs)]
    assert shapes[0] == shapes[1]


def test_first_weights_are_uniform_as_torch_draws_them():
    for value in LSTM(7, 25).parameters():
        assert 0.9 / 5 < value.abs().max() <= 1 / 5


@pytest.mark.parametrize(
    ("dtype", "loose"),
    [(torch.float32, {"rtol": 1e-5, "atol": 1e-5}), (torch.float64, {"rtol": 0, "atol": 1e-12})],
)
def test_vmap_of_grad_is_one_client_after_another(dtype, loose):
    # in float32 torch's kernel would warn here, and warnings are errors
    ours, _ = pair(dtype, num_layers=2)
    start = {k: v.detach() for k, v in ours.named_parameters()}
    many = {k: torch.stack([v, v + 0.1, -v]) for k, v in start.items()}
    data = torch.stack([batch(dtype=dtype) + k for k in range(3)])
    loss = lambda p, a: functional_call(ours, p, (a,))[0].square().sum()
    together = vmap(grad(loss))(many, data)
    for k in range(3):
        own = {n: v[k].clone().requires_grad_() for n, v in many.items()}
        alone = torch.autograd.grad(loss(own, data[k]), list(own.values()))
        for name, want in zip(own, alone, strict=True):
            torch.testing.assert_close(together[name][k], want, **loose)


def test_dropout_lies_between_the_layers_and_nowhere_else():
    ours, theirs = pair(num_layers=3, dropout=0.4)
    layers = [nn.LSTM(F if i == 0 else H, H).double() for i in range(3)]
    for i, layer in enumerate(layers):
        own = {k: v for k, v in theirs.state_dict().items() if k.endswith(f"l{i}")}
        layer.load_state_dict({k.replace(f"l{i}", "l0"): v for k, v in own.items()})
    ours, drop = swap(copy.deepcopy(ours)), HashedDropout(0.4)
    a = batch()
    with seeded(7):
        outputs = ours(a)[0]
    with seeded(7):
        for i, layer in enumerate(layers):
            a = a if i == 0 else drop(a.transpose(0, 1)).transpose(0, 1)
            a = layer(a)[0]
    close(outputs, a)
    close(ours.eval()(batch())[0], theirs.eval()(batch())[0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_a_short_batch_changes_no_mask(batch_first):
    ours = swap(pair(num_layers=2, dropout=0.5, batch_first=batch_first)[0])
    a, axis = batch(batch_first), 0 if batch_first else 1
    with seeded(5):
        whole = ours(a)[0]
    with seeded(5):
        part = ours(a.narrow(axis, 0, 2))[0]
    close(part, whole.narrow(axis, 0, 2))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LSTM(0, 4), "input_size must be"),
        (lambda: LSTM(3, 4, num_layers=True), "num_layers must be"),
        (lambda: LSTM(3, 4, dropout=1.0), "[0, 1)"),
        (lambda: LSTM(3, 4, batch_first=True)(torch.zeros(4, 3)), "takes (B, T, 3), got [4, 3]"),
    ],
)
def test_sizes_and_inputs_that_do_not_fit_are_refused(make, says):
    refused(make, says)


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
