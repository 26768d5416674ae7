"""The built-in networks: sizes as published, blocks by name, what they compute, first weights."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.config import resolve
from fedloom.core.blocks import find_blocks
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.engines.scores import FEW, Slices
from fedloom.errors import ClientError, CompositionError, ConfigError, DataError
from fedloom.federation.sampling import Churn
from fedloom.models import (
    MODELS,
    cnn_celeba,
    cnn_fafed_fashion,
    cnn_fafed_mnist,
    logistic,
    lstm_language_model,
    lstm_shakespeare,
    mlp,
    resnet8,
    resnet18,
    resnet18_fedsmoo,
    resnet18_fiarse,
    transformer_text,
    with_statistics,
)
from fedloom.submodels import HeteroFL, ScaleFL
from resnet import resnet18 as reference
from support.refusals import refused

pytestmark = pytest.mark.usefixtures("seed_zero")

close = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def count(net: nn.Module) -> int:
    return sum(value.numel() for value in net.parameters())


def shapes(build, *options) -> nn.Module:
    """A model without numbers: drawing fifty million of them takes seconds."""
    with torch.device("meta"):
        return build(*options)


STEM, NORMS, HEAD = 1_728, 9_600, 5_130  # of FIARSE's network; its layers:
LAYERS = 147_456 + 524_288 + 2_097_152 + 8_388_608
PUBLISHED = {  # the count, and the sum of the layers
    "logistic": (7_850, 785 * 10),
    "mlp": (4_810, 65 * 64 + 65 * 10),
    "cnn_fafed_mnist": (431_080, 520 + 25_050 + 400_500 + 5_010),
    "cnn_fafed_fashion": (26_620, 50 + 460 + 25_100 + 1_010),
    "cnn_fafed_cifar": (581_866, 448 + 4_640 + 18_496 + 524_800 + 32_832 + 650),
    "cnn_cfedavg": (582_026, 832 + 51_264 + 524_800 + 5_130),
    "cnn_femnist": (6_603_710, 832 + 51_264 + 3137 * 2048 + 2049 * 62),
    "resnet8": (78_042, 432 + 4_608 + 14_336 + 57_344 + 32 * (1 + 2 + 6 + 12) + 650),
    "resnet18": (11_173_962, STEM + LAYERS + NORMS + HEAD),
    "resnet18_fiarse": (11_173_962, STEM + LAYERS + NORMS + HEAD),
    "resnet18_fedsmoo": (11_181_642, 7 * 7 * 3 * 64 + LAYERS + NORMS + HEAD),
    "cnn_celeba": (31_202, 896 + 3 * 9_248 + 4 * 64 + 1_153 * 2),
    "lstm_shakespeare": (819_920, 640 + 1_024 * (8 + 258) + 1_024 * (256 + 258) + 257 * 80),
    "lstm_language_model": (50_065_078, 21_630_700 + 2 * 3_385_200 + 21_663_978),
    "transformer_text": (2_973_700, 20_128 * 128 + 2 * (12 * 128**2 + 13 * 128) + 256 + 129 * 4),
}
FETCHED = {"roberta_base": "124,648,708", "huggingface_text": "its own"}  # not built here
PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


@pytest.mark.parametrize("name", [n for n in MODELS if n not in FETCHED])
def test_parameters_are_as_many_as_published_and_each_is_in_a_block(name):
    net = Net(shapes(MODELS[name]))
    if name in PUBLISHED:
        published, layers = PUBLISHED[name]
        assert net.layout.d == published == layers
    blocks = find_blocks(net.module, net.params).parts
    held = [i for block in blocks for i in block.places.values()]
    assert sorted(held) == list(range(len(net.params)))
    line = next(line for line in PAGE.splitlines() if f"| `model={name}" in line)
    assert resolve("digits", line.split("`")[1].split()).values["model"]["name"] == name


def test_the_page_lists_every_model_as_it_is():
    rows = re.findall(r"^\| `model=(\w+).*\| (.*) \|$", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == list(MODELS)
    for name, parameters in rows:
        assert parameters == (FETCHED.get(name) or f"{count(shapes(MODELS[name])):,}")
    assert count(mlp(inputs=7, hidden=[5, 3], classes=2)) == 8 * 5 + 6 * 3 + 4 * 2


# -------------------------------------------------------------------------------- small networks
SMALL = {  # the shape of an input, classes, what follows every layer but the head
    "logistic": ((1, 28, 28), 10, []),
    "mlp": ((1, 8, 8), 10, [nn.ReLU]),
    "cnn_fafed_mnist": ((1, 28, 28), 10, [nn.ReLU] * 3),
    "cnn_fafed_fashion": ((1, 28, 28), 10, [nn.Tanh] * 3),
    "cnn_fafed_cifar": ((3, 32, 32), 10, [nn.ReLU] * 5),
    "cnn_cfedavg": ((1, 28, 28), 10, [nn.ReLU] * 3),
    "cnn_femnist": ((1, 28, 28), 62, [nn.ReLU] * 3),
}


def activate_then_pool(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for block in net:
        layers = dict(block.named_children())
        for layer in ("conv", "activation", "pool") if "conv" in layers else layers:
            x = layers[layer](x)
        x = x if layers else block(x)
    return x


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_end_in_their_head_and_may_pool_first(name):
    shape, classes, activations = SMALL[name]
    net, x = MODELS[name](), torch.randn(4, *shape)
    assert list(dict(net.named_children()))[-1] == "head" and isinstance(net.head, nn.Linear)
    assert not any(part.isdigit() for key, _ in net.named_modules() for part in key.split("."))
    leaves = [layer for layer in net.modules() if not list(layer.children())]
    assert [type(x) for x in leaves if isinstance(x, nn.ReLU | nn.Tanh)] == activations
    torch.testing.assert_close(net(x), activate_then_pool(net, x))
    assert net(x).shape == (4, classes)


@pytest.mark.parametrize("build", [cnn_fafed_mnist, cnn_fafed_fashion])
def test_the_authors_first_weights_and_torchs(build):
    for key, value in build().named_parameters():
        if key.endswith("bias"):
            assert (value == 1 / value.numel()).all()
        else:
            fan_in, fan_out = value[0].numel(), value.shape[0] * value[0, 0].numel()
            std = math.sqrt(2 / (fan_in + fan_out))
            # the estimate of a standard deviation has relative error 1 / sqrt(2 n)
            assert abs(value.std() / std - 1) < 5 / math.sqrt(2 * value.numel())
            assert value.abs().max() > std * math.sqrt(3), "normal, not uniform"
    for key, value in build(init="torch").named_parameters():
        if key.endswith("weight"):
            assert value.abs().max() <= 1 / math.sqrt(value[0].numel())


def test_the_activation_of_the_mlp_is_the_one_asked_for():
    for name, function in (("relu", torch.relu), ("tanh", torch.tanh)):
        net, x = mlp(activation=name), torch.randn(5, 64)
        hidden = function(x @ net.fc1.linear.weight.T + net.fc1.linear.bias)
        torch.testing.assert_close(net(x), hidden @ net.head.weight.T + net.head.bias)


# ----------------------------------------------------------------------------------------- resnets
BLOCKS = {
    "resnet8": (lambda: resnet8(), (3, 32, 32)),
    "resnet18": (lambda: resnet18(), (3, 16, 16)),
    "resnet18_fedsmoo": (lambda: resnet18_fedsmoo(), (3, 32, 32)),
    "resnet18_fiarse": (lambda: resnet18_fiarse(), (3, 16, 16)),
    "cnn_celeba": (lambda: cnn_celeba(norm="group"), (3, 84, 84)),
    "lstm_shakespeare": (lambda: lstm_shakespeare(9, 4, 6), None),
    "lstm_language_model": (lambda: lstm_language_model(9, 4, 4), None),
    "transformer_text": (lambda: transformer_text(9, 3, 7, 8, 2), None),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_one_after_another_are_the_network(name):
    build, shape = BLOCKS[name]
    net, inputs = Net(build()), torch.randn(3, *shape) if shape else torch.randint(9, (3, 5))
    net.check_blocks("FedMLB", inputs, trained=True)
    assert net.blocks[-1] == "head" and len(net.blocks) >= 4
    assert net.features(net.init(), inputs).shape[0] == 3


@pytest.mark.parametrize(
    ("build", "norm", "places"), [(resnet18, 80, 32), (resnet18_fedsmoo, 111.7, 8)]
)
def test_first_weights_and_stems_of_the_resnets_are_those_that_were_measured(build, norm, places):
    net = build()
    x = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    assert float(x.norm()) == pytest.approx(norm, rel=2e-3)
    assert net.stem(torch.randn(1, 3, 32, 32)).shape == (1, 64, places, places)


def test_the_large_stem_pools_what_is_activated():
    stem, images = resnet18_fedsmoo().stem, torch.randn(2, 3, 20, 20)
    want = F.max_pool2d(F.relu(stem.norm(stem.conv(images))), 3, 2, 1)
    torch.testing.assert_close(stem(images), want)


def test_the_small_resnet_is_cut_by_width_and_by_depth():
    """Its masked and sliced parts are tried with all models; ScaleFL ends at its exits."""
    net = Net(resnet8(norm="static_batch", exits=True))
    assert net.layout.d == 78_042 + (16 + 1) * 10 + (32 + 1) * 10
    kept = ScaleFL().view(None, net, 1 / 64, 0).net.module.stages
    assert kept in (("stem", "layer1"), ("stem", "layer1", "layer2"))
    half = Net(resnet8(norm="static_batch"))
    assert HeteroFL().view(None, half, 1 / 4, 0).held.numel() == pytest.approx(78_042 / 4, rel=0.1)


def test_fiarses_network_is_the_independent_one():
    ours, theirs = resnet18_fiarse(), reference()
    both = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(a.shape == b.shape for a, b in both)
    with torch.no_grad():
        for a, b in both:
            a.copy_(b)
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(ours(images), theirs(images))


def test_norms_have_the_groups_that_were_asked_for_and_plain_batch_norm_statistics():
    for norm, groups in (("group", 2), ("group", 4), ("instance", 64)):
        net = shapes(lambda norm=norm, groups=groups: resnet18(norm=norm, groups=groups))
        kinds = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
        assert len(kinds) == 20 and kinds[0].num_groups == groups
    for norm in ("static_batch", "batch"):
        net = shapes(lambda norm=norm: resnet18(norm=norm))
        assert bool(list(net.buffers())) == (norm == "batch") and count(net) == 11_173_962


# from the specification: the share of the parameters that ceil(r n) of the n channels hold
@pytest.mark.parametrize(("r", "share"), [(1 / 8, 0.01579), (1 / 4, 0.06278), (1 / 2, 0.25037)])
def test_the_resnet_is_cut_to_the_published_shares(r, share):
    net = Net(resnet18_fiarse())
    view = HeteroFL().view(None, net, r * r, 0)
    assert len(view.held) / net.layout.d == pytest.approx(share, abs=5e-6)
    assert view.net(view.net.init(), torch.randn(2, 3, 16, 16)).shape == (2, 10)


def test_gathered_statistics_are_the_means_of_those_of_the_batches():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)).double()
    batches = [torch.randn(4, 2, 6, 6, dtype=torch.float64) + k for k in range(3)]
    settled = with_statistics(net, iter(batches))
    maps = [net[0](b).detach().movedim(1, 0).flatten(1) for b in batches]
    close(settled[1].running_mean, torch.stack([m.mean(1) for m in maps]).mean(0))
    close(settled[1].running_var, torch.stack([m.var(1) for m in maps]).mean(0))
    z = net[0](batches[0][:1])
    mean, var = (v.view(1, 3, 1, 1) for v in (settled[1].running_mean, settled[1].running_var))
    close(settled(batches[0][:1]), (z - mean) / (var + 1e-5).sqrt())
    assert net[1].running_mean is None and net.training


def test_statistics_of_later_layers_see_training_norms_and_no_dropout():
    norm = lambda: nn.BatchNorm1d(2, track_running_stats=False)
    net = nn.Sequential(norm(), nn.Dropout(0.5), norm()).double()
    a = torch.randn(5, 2, dtype=torch.float64)
    first = (a - a.mean(0)) / (a.var(0, unbiased=False) + 1e-5).sqrt()
    close(with_statistics(net, [a])[2].running_var, first.var(0))


# -------------------------------------------------------------------------------------------- text
def test_leafs_network_says_what_torchs_layers_say():
    net, tokens = lstm_shakespeare(9, 4, 6), torch.randint(9, (3, 5))
    both = nn.LSTM(4, 6, 2, batch_first=True)
    own = [p for i in (1, 2) for p in getattr(net, f"lstm{i}").lstm.parameters()]
    with torch.no_grad():
        for a, b in zip(both.parameters(), own, strict=True):
            a.copy_(b)
    outputs = both(net.embedding.weights(tokens))[0]
    torch.testing.assert_close(net(tokens), net.head(outputs[:, -1]))


def test_a_text_in_two_pieces_with_the_state_carried_is_the_whole_text():
    net, tokens = lstm_language_model(9, 4, 4).double().eval(), torch.randint(9, (3, 8))
    whole, (h, c) = net((tokens, net.zeros(3)))
    close(net(tokens), whole)
    first, state = net((tokens[:, :5], net.zeros(3)))
    second, end = net((tokens[:, 5:], state))
    close(torch.cat([first, second], 1), whole)
    close(torch.stack(end), torch.stack((h, c)))
    assert whole.shape == (3, 8, 9)


def test_dropout_is_behind_the_embedding_and_every_layer_and_tied_weights_are_one():
    drops = lambda m: isinstance(m, nn.Dropout) and m.p == 0.5
    kinds = [n for n, m in lstm_language_model(9, 4, 4, layers=3).named_modules() if drops(m)]
    assert kinds == ["embedding.drop", "lstm1.drop", "lstm2.drop", "lstm3.drop"]
    net = lstm_language_model(9, 4, 4, tied=True)
    assert net.head.weight is net.embedding.weights.weight
    assert count(net) == 36 + 2 * 16 * 10 + 9


def encoder(ours: nn.Module) -> nn.Module:
    """torch's own layer with the weights of this one."""
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, activation="gelu", batch_first=True, norm_first=True, dropout=0.0
    ).double()
    attention, dense = ours.attention, ours.dense
    pairs = {"self_attn.in_proj_": attention.enter, "self_attn.out_proj.": attention.leave}
    pairs |= {"linear1.": dense.enter, "linear2.": dense.leave}
    pairs |= {"norm1.": ours.norm1, "norm2.": ours.norm2}
    state = {k + n: v.detach() for k, layer in pairs.items() for n, v in layer.named_parameters()}
    theirs.load_state_dict(state)
    return theirs


def test_the_transformer_says_what_torchs_layers_say():
    net = transformer_text(9, 3, 7, 8, 2, layers=2, dropout=0.0, padding=0).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p))
    tokens = torch.randint(1, 9, (3, 7))
    tokens[0, 4:], tokens[1, 6:] = 0, 0
    a, blank = net.embedding.weights(tokens) + net.embedding.places, tokens == 0
    for layer in (net.layer1, net.layer2):
        a = encoder(layer)(a, src_key_padding_mask=blank)
    a = F.layer_norm(a, (8,), net.layer2.norm.weight, net.layer2.norm.bias)
    mean = torch.stack([a[k, :n].mean(0) for k, n in enumerate((4, 6, 7))])
    close(net(tokens), net.head(mean))


def test_padding_changes_nothing_and_first_weights_of_the_transformer_are_small():
    net = transformer_text(9, 3, 7, 8, 2).double().eval()
    tokens = torch.randint(1, 9, (2, 4))
    close(net(F.pad(tokens, (0, 3))), net(tokens))
    assert bool(net(torch.zeros(1, 7, dtype=torch.int64)).isfinite().all()), "padding alone"
    large = transformer_text().embedding
    for value in (large.weights.weight.detach(), large.places.detach()):
        loose = 5 / math.sqrt(2 * value.numel())
        assert float(value.std()) == pytest.approx(0.02, rel=loose)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: logistic(inputs=0), "inputs must be a whole number"),
        (lambda: mlp(hidden=()), "logistic"),
        (lambda: mlp(hidden=64), "hidden must be a list of whole numbers from 1, got 64"),
        (lambda: mlp(hidden=(8, 0)), "hidden must be"),
        (lambda: mlp(hidden=(2.5,)), "2.5"),
        (lambda: mlp(activation="gelu"), "'gelu'"),
        (lambda: cnn_fafed_mnist(init="xavier"), "'xavier'"),
        (lambda: logistic(classes=True), "classes must be"),
        *[(lambda n=n: MODELS[n](classes=-1), "classes must be") for n in SMALL],
        (lambda: resnet18(0), "classes must be"),
        (lambda: resnet18(stem="5x5"), "stem must be"),
        (lambda: resnet18(norm="grup"), "did you mean 'group'"),
        (lambda: resnet18(groups=3), "groups must divide the widths 64, 128, 256, 512, got 3"),
        (lambda: resnet18(groups=0), "groups must be"),
        (lambda: resnet18(init="xavier"), "init must be"),
        (lambda: cnn_celeba(norm="none"), "norm must be one of group, instance"),
        (lambda: lstm_shakespeare(layers=0), "layers must be"),
        (lambda: lstm_language_model(dropout=1.0), "dropout must be in [0, 1)"),
        (lambda: lstm_language_model(9, 4, 5, tied=True), "embedding = 4 and hidden = 5"),
        (lambda: transformer_text(width=10, heads=4), "multiple of heads, got 10 and 4"),
        (lambda: transformer_text(9, padding=9), "padding must be a token from 0 to 8"),
        (lambda: transformer_text(dropout=-1), "dropout must be"),
    ],
)
def test_what_makes_no_network_is_refused(build, says):
    refused(build, says, kind=ConfigError)


SIX = torch.ones(1, 6, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: transformer_text(9, length=5, width=8)(SIX), "6 tokens ... 5 ... length = 6"),
        (lambda: with_statistics(mlp(), [torch.zeros(2, 64)]), "no batch norm"),
        (lambda: with_statistics(nn.Sequential(nn.BatchNorm1d(2)), []), "no batches"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(call, says):
    refused(call, says, kind=DataError)


# ------------------------------------------------------------------------ one value to normalise
def lone(norm: nn.Module, sizes: tuple[int, ...], tests: int = 4, **changes):
    """Clients of so many images 4 x 4, which a convolution makes into one place."""
    image = lambda n: (np.random.default_rng(n).normal(size=(n, 1, 4, 4)), np.arange(n) % 2)
    module = nn.Sequential(nn.Conv2d(1, 4, 4), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    return Experiment(
        algorithm=FedAvg(), model=module, rounds=1, local=Local(batch=3, **changes), device="cpu",
        data=from_clients([image(n) for n in sizes], test=image(tests)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "sizes", "tests", "says"),
    [
        (
            nn.GroupNorm(4, 4),
            (6, 7),
            4,
            "one value ... as client 1 has (7 in batches of 3)",
        ),
        (nn.BatchNorm2d(4), (6, 1), 4, "one value ... as client 1 has (1 in all)"),
        (nn.GroupNorm(4, 4), (6, 6), 501, "as the test set ends with (501 in batches of 500)"),
    ],
)
def test_a_norm_of_one_value_is_refused_before_anything_runs(norm, sizes, tests, says):
    refused(lone(norm, sizes, tests).build, says, kind=CompositionError)


def test_where_no_batch_is_of_one_example_the_same_norms_run():
    for norm in (nn.GroupNorm(4, 4), nn.BatchNorm2d(4)):
        lone(norm, (6, 6)).build()
        lone(norm, (7, 6), drop_last=True).build()
    lone(nn.GroupNorm(2, 4), (7, 1)).build()  # two values a group
    loop = lone(nn.BatchNorm2d(4), (6, 6), 501).build()  # in evaluation its statistics are known
    assert not loop.net.buffers().view(2, 4)[0].any(), "and the trial moved none"


def test_a_client_that_never_takes_part_may_have_one_example():
    given = lone(nn.BatchNorm2d(4), (6, 1))
    dataclasses.replace(given, cohort=[[0]]).build()
    changing = dataclasses.replace(given, churn=Churn(active=1, every=5), rounds=40)
    refused(changing.run, "client 1, round ... ; a norm has one value to norm", kind=ClientError)


def test_a_small_part_may_be_the_one_that_cannot():
    slim = lone(nn.GroupNorm(2, 4), (7, 6))
    slim.submodel, slim.capacities = HeteroFL(exact=False), [1 / 4, 1.0]
    refused(slim.build, "a norm has one value", kind=CompositionError)


FORMATS = {"torch's order": torch.contiguous_format, "channels-last": torch.channels_last}


@pytest.mark.parametrize("order", FORMATS)
@pytest.mark.parametrize(
    ("pool", "shape", "slices"),
    [
        (nn.MaxPool2d(2), (3, 5, 7, 9), True),
        (nn.MaxPool2d((2, 2), (2, 2)), (1, 1, 2, 2), True),
        (nn.MaxPool2d(2), (2, FEW + 1, 6, 6), "in torch's order"),
        (nn.MaxPool2d(2, ceil_mode=True), (1, 1, 5, 5), False),
        (nn.MaxPool2d(2, dilation=2), (1, 1, 5, 5), False),
        (nn.MaxPool2d(2, 1), (1, 1, 5, 5), False),
        (nn.MaxPool2d((2, 3)), (1, 1, 5, 5), False),
        (nn.MaxPool2d(3, 2, padding=1), (1, 1, 5, 5), False),
    ],
)
def test_pooling_without_a_gradient_has_the_values_of_torch(
    pool, shape, slices, order, monkeypatch
):
    x = torch.randn(shape).contiguous(memory_format=FORMATS[order])
    x.flatten()[::3] = 1.0  # equal ones
    x.flatten()[0] = torch.nan
    used, real = [], torch.maximum
    monkeypatch.setattr(torch, "maximum", lambda *pair: used.append(1) or real(*pair))
    with torch.no_grad(), Slices():
        y = pool(x)
        if pool.kernel_size == pool.stride == 2:
            with pytest.raises(RuntimeError, match="too small"):
                nn.MaxPool2d(2)(x[..., :1])
    want = pool(x)
    torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True)
    assert y.stride() == want.stride()
    assert bool(used) == (slices is True or (slices == "in torch's order" and order in slices))
    with Slices():
        assert pool(x.requires_grad_()).requires_grad and len(used) in (0, 2)
        assert nn.AdaptiveMaxPool2d(1)(x).shape[2:] == (1, 1)
