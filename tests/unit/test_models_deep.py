"""ResNets, LEAF's networks, recurrent ones and the transformer: counts, and what they compute."""

from __future__ import annotations

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
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.errors import ClientError, CompositionError, ConfigError, DataError
from fedloom.federation.sampling import Churn
from fedloom.models import (
    MODELS,
    cnn_celeba,
    lstm_language_model,
    lstm_shakespeare,
    resnet8,
    resnet18,
    resnet18_fedsmoo,
    resnet18_fiarse,
    transformer_text,
    with_statistics,
)
from fedloom.submodels import HeteroFL, ScaleFL
from resnet import resnet18 as reference

pytestmark = pytest.mark.usefixtures("seed_zero")

close = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def count(net: nn.Module) -> int:
    return sum(value.numel() for value in net.parameters())


def shapes(build, *options, **more) -> nn.Module:
    """A model without numbers: drawing fifty million of them takes seconds."""
    with torch.device("meta"):
        return build(*options, **more)


# ------------------------------------------------------------------------------------------ counts
STEM, NORMS, HEAD = 1_728, 9_600, 5_130  # of FIARSE's network; its layers:
LAYERS = 147_456 + 524_288 + 2_097_152 + 8_388_608
PUBLISHED = {
    "resnet8": (78_042, 432 + 4_608 + 14_336 + 57_344 + 32 * (1 + 2 + 6 + 12) + 650),
    "resnet18": (11_173_962, STEM + LAYERS + NORMS + HEAD),
    "resnet18_fiarse": (11_173_962, STEM + LAYERS + NORMS + HEAD),
    "resnet18_fedsmoo": (11_181_642, 7 * 7 * 3 * 64 + LAYERS + NORMS + HEAD),
    "cnn_celeba": (31_202, 896 + 3 * 9_248 + 4 * 64 + 1_153 * 2),
    "lstm_shakespeare": (819_920, 640 + 1_024 * (8 + 258) + 1_024 * (256 + 258) + 257 * 80),
    "lstm_language_model": (50_065_078, 21_630_700 + 2 * 3_385_200 + 21_663_978),
    "transformer_text": (2_973_700, 20_128 * 128 + 2 * (12 * 128**2 + 13 * 128) + 256 + 129 * 4),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    published, layers = PUBLISHED[name]
    assert count(shapes(MODELS[name])) == published == layers


@pytest.mark.parametrize(("build", "norm"), [(resnet18, 80), (resnet18_fedsmoo, 111.7)])
def test_the_first_weights_of_the_resnets_have_the_length_that_was_measured(build, norm):
    x = torch.cat([p.detach().reshape(-1) for p in build().parameters()])
    assert float(x.norm()) == pytest.approx(norm, rel=2e-3)


# ----------------------------------------------------------------------------------------- resnets
SMALL = {
    "resnet8": (lambda: resnet8(), (3, 32, 32)),
    "resnet18": (lambda: resnet18(), (3, 16, 16)),
    "resnet18_fedsmoo": (lambda: resnet18_fedsmoo(), (3, 32, 32)),
    "resnet18_fiarse": (lambda: resnet18_fiarse(), (3, 16, 16)),
    "cnn_celeba": (lambda: cnn_celeba(norm="group"), (3, 84, 84)),
    "lstm_shakespeare": (lambda: lstm_shakespeare(9, 4, 6), 9),
    "lstm_language_model": (lambda: lstm_language_model(9, 4, 4), 9),
    "transformer_text": (lambda: transformer_text(9, 3, 7, 8, 2), 9),
}


def batch(shape, n=3):
    return torch.randint(shape, (n, 5)) if isinstance(shape, int) else torch.randn(n, *shape)


@pytest.mark.parametrize("name", SMALL)
def test_blocks_one_after_another_are_the_network(name):
    build, shape = SMALL[name]
    net, inputs = Net(build()), batch(shape)
    net.check_blocks("FedMLB", inputs, trained=True)
    assert net.blocks[-1] == "head" and len(net.blocks) >= 4
    assert net.features(net.init(), inputs).shape[0] == 3


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
    mine, other = list(ours.parameters()), list(theirs.parameters())
    assert [p.shape for p in mine] == [p.shape for p in other]
    with torch.no_grad():
        for a, b in zip(mine, other, strict=True):
            a.copy_(b)
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize(("build", "places"), [(resnet18, 32), (resnet18_fedsmoo, 8)])
def test_the_stem_gives_maps_of_its_size(build, places):
    assert build().stem(torch.randn(1, 3, 32, 32)).shape == (1, 64, places, places)


def test_the_large_stem_pools_what_is_activated():
    stem, images = resnet18_fedsmoo().stem, torch.randn(2, 3, 20, 20)
    want = F.max_pool2d(F.relu(stem.norm(stem.conv(images))), 3, 2, 1)
    torch.testing.assert_close(stem(images), want)


@pytest.mark.parametrize(("norm", "groups"), [("group", 2), ("group", 4), ("instance", 64)])
def test_norms_have_the_groups_that_were_asked_for(norm, groups):
    kinds = [m for m in resnet18(norm=norm, groups=groups).modules() if isinstance(m, nn.GroupNorm)]
    assert len(kinds) == 20 and kinds[0].num_groups == groups


@pytest.mark.parametrize("norm", ["static_batch", "batch"])
def test_only_plain_batch_norm_has_statistics_of_its_own(norm):
    net = resnet18(norm=norm)
    assert bool(list(net.buffers())) == (norm == "batch")
    assert count(net) == 11_173_962


# from the specification: the share of the parameters that ceil(r n) of the n channels hold
@pytest.mark.parametrize(("r", "share"), [(1 / 8, 0.01579), (1 / 4, 0.06278), (1 / 2, 0.25037)])
def test_the_resnet_is_cut_to_the_published_shares(r, share):
    net = Net(resnet18_fiarse())
    view = HeteroFL().view(None, net, r * r, 0)
    assert len(view.held) / net.layout.d == pytest.approx(share, abs=5e-6)
    assert view.net(view.net.init(), torch.randn(2, 3, 16, 16)).shape == (2, 10)


# ------------------------------------------------------------------------ statistics of batch norm
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
    settled = with_statistics(net, [a])
    first = (a - a.mean(0)) / (a.var(0, unbiased=False) + 1e-5).sqrt()
    close(settled[2].running_var, first.var(0))


def test_a_network_without_batch_norm_has_no_statistics_to_gather():
    with pytest.raises(DataError, match="no batch norm"):
        with_statistics(resnet18(), [torch.zeros(2, 3, 8, 8)])
    with pytest.raises(DataError, match="no batches"):
        with_statistics(nn.Sequential(nn.BatchNorm1d(2)), [])


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
    close(end[0], h)
    close(end[1], c)
    assert whole.shape == (3, 8, 9)


def test_dropout_of_the_language_model_is_behind_the_embedding_and_every_layer():
    kinds = [n for n, m in lstm_language_model(9, 4, 4, layers=3).named_modules() if _drops(m)]
    assert kinds == ["embedding.drop", "lstm1.drop", "lstm2.drop", "lstm3.drop"]


def _drops(m):
    return isinstance(m, nn.Dropout) and m.p == 0.5


def test_tied_weights_are_one():
    net = lstm_language_model(9, 4, 4, tied=True)
    assert net.head.weight is net.embedding.weights.weight
    assert count(net) == 36 + 2 * 16 * 10 + 9


def encoder(net: nn.Module, i: int) -> nn.Module:
    """torch's own layer with the weights of layer i."""
    ours = getattr(net, f"layer{i}")
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, activation="gelu", batch_first=True, norm_first=True, dropout=0.0
    ).double()
    pairs = {
        "self_attn.in_proj_weight": ours.attention.enter.weight,
        "self_attn.in_proj_bias": ours.attention.enter.bias,
        "self_attn.out_proj.weight": ours.attention.leave.weight,
        "self_attn.out_proj.bias": ours.attention.leave.bias,
        "linear1.weight": ours.dense.enter.weight,
        "linear1.bias": ours.dense.enter.bias,
        "linear2.weight": ours.dense.leave.weight,
        "linear2.bias": ours.dense.leave.bias,
        "norm1.weight": ours.norm1.weight,
        "norm1.bias": ours.norm1.bias,
        "norm2.weight": ours.norm2.weight,
        "norm2.bias": ours.norm2.bias,
    }
    theirs.load_state_dict({k: v.detach() for k, v in pairs.items()})
    return theirs


def test_the_transformer_says_what_torchs_layers_say():
    net = transformer_text(9, 3, 7, 8, 2, layers=2, dropout=0.0, padding=0).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p))
    tokens = torch.randint(1, 9, (3, 7))
    tokens[0, 4:], tokens[1, 6:] = 0, 0
    a, blank = net.embedding.weights(tokens) + net.embedding.places, tokens == 0
    for i in (1, 2):
        a = encoder(net, i)(a, src_key_padding_mask=blank)
    a = F.layer_norm(a, (8,), net.layer2.norm.weight, net.layer2.norm.bias)
    mean = torch.stack([a[k, :n].mean(0) for k, n in enumerate((4, 6, 7))])
    close(net(tokens), net.head(mean))


def test_padding_changes_nothing_and_padding_alone_gives_numbers():
    net = transformer_text(9, 3, 7, 8, 2).double().eval()
    tokens = torch.randint(1, 9, (2, 4))
    close(net(F.pad(tokens, (0, 3))), net(tokens))
    assert bool(net(torch.zeros(1, 7, dtype=torch.int64)).isfinite().all())


def test_the_first_weights_of_the_transformer_are_small():
    net = transformer_text()
    for value in (net.embedding.weights.weight, net.embedding.places):
        assert float(value.detach().std()) == pytest.approx(
            0.02, rel=5 / math.sqrt(2 * value.numel())
        )


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: resnet18(0), "classes must be"),
        (lambda: resnet18(stem="5x5"), "stem must be"),
        (lambda: resnet18(norm="grup"), "did you mean 'group'"),
        (lambda: resnet18(groups=3), "groups must divide the widths 64, 128, 256, 512, got 3"),
        (lambda: resnet18(groups=0), "groups must be"),
        (lambda: resnet18(init="xavier"), "init must be"),
        (lambda: cnn_celeba(norm="none"), "norm must be one of group, instance"),
        (lambda: lstm_shakespeare(layers=0), "layers must be"),
        (lambda: lstm_language_model(dropout=1.0), r"dropout must be in \[0, 1\)"),
        (lambda: lstm_language_model(9, 4, 5, tied=True), "embedding = 4 and hidden = 5"),
        (lambda: transformer_text(width=10, heads=4), "multiple of heads, got 10 and 4"),
        (lambda: transformer_text(9, padding=9), "padding must be a token from 0 to 8"),
        (lambda: transformer_text(dropout=-1), "dropout must be"),
    ],
)
def test_what_makes_no_network_is_refused_in_one_line(build, says):
    with pytest.raises(ConfigError, match=says) as error:
        build()
    assert "\n" not in str(error.value)


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(DataError, match=r"6 tokens .* 5 positions; give model.length = 6"):
        transformer_text(9, length=5, width=8)(torch.ones(1, 6, dtype=torch.int64))


# ---------------------------------------------------------------------------------------- the page
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FETCHED = {"roberta_base": "124,648,708", "huggingface_text": "its own"}  # not built here


def test_the_page_lists_every_model_as_it_is():
    rows = re.findall(r"^\| `model=(\w+).*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == list(MODELS)
    for name, parameters in rows:
        there = FETCHED.get(name) or f"{count(shapes(MODELS[name])):,}"
        assert parameters == there


@pytest.mark.parametrize("name", [n for n in MODELS if n not in FETCHED])
def test_the_commands_of_the_page_are_taken(name):
    from fedloom.config import resolve

    line = next(line for line in PAGE.read_text().splitlines() if f"| `model={name}" in line)
    overrides = line.split("`")[1].split()
    assert resolve("digits", overrides).values["model"]["name"] == name


# ------------------------------------------------------------------------ one value to normalise
def lone(norm: nn.Module, sizes: tuple[int, ...], tests: int = 4, **changes):
    """Clients of so many images 4 x 4, which a convolution makes into one place."""
    image = lambda n: (np.random.default_rng(n).normal(size=(n, 1, 4, 4)), np.arange(n) % 2)
    module = nn.Sequential(nn.Conv2d(1, 4, 4), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    return Experiment(
        algorithm=FedAvg(),
        model=module,
        data=from_clients([image(n) for n in sizes], test=image(tests)),
        rounds=1,
        local=Local(batch=3, **changes),
        device="cpu",
    )


@pytest.mark.parametrize(
    ("norm", "sizes", "tests", "says"),
    [
        (nn.GroupNorm(4, 4), (6, 7), 4, "GroupNorm '1'.*as client 1 has .7 in batches of 3."),
        (nn.BatchNorm2d(4), (6, 1), 4, "BatchNorm2d '1'.*as client 1 has .1 in all."),
        (nn.GroupNorm(4, 4), (6, 6), 501, "as the test set ends with .501 in batches of 500."),
    ],
)
def test_a_norm_of_one_value_is_refused_before_anything_runs(norm, sizes, tests, says):
    with pytest.raises(CompositionError, match=says) as caught:
        lone(norm, sizes, tests).build()
    assert "\n" not in str(caught.value)


def test_where_no_batch_is_of_one_example_the_same_norms_run():
    for norm in (nn.GroupNorm(4, 4), nn.BatchNorm2d(4)):
        lone(norm, (6, 6)).build()
        lone(norm, (7, 6), drop_last=True).build()
    lone(nn.GroupNorm(2, 4), (7, 1)).build()  # two values a group
    before = nn.BatchNorm2d(4)
    loop = lone(before, (6, 6), 501).build()  # in evaluation its statistics are known
    assert not loop.net.buffers().view(2, 4)[0].any()  # and the trial moved none


def test_a_client_that_never_takes_part_may_have_one_example():
    given = lone(nn.BatchNorm2d(4), (6, 1))
    dataclasses.replace(given, cohort=[[0]]).build()
    changing = {"churn": Churn(active=1, every=5), "rounds": 40}
    with pytest.raises(ClientError, match=r"client 1, round \d+: .*; a norm has one value to norm"):
        dataclasses.replace(given, **changing).run()


def test_a_small_part_may_be_the_one_that_cannot():
    slim = lone(nn.GroupNorm(2, 4), (7, 6))
    slim.submodel, slim.capacities = HeteroFL(exact=False), [1 / 4, 1.0]
    with pytest.raises(CompositionError, match="GroupNorm '1' has one value"):
        slim.build()
