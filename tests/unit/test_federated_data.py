"""FederatedData and its constructors: what fits, what is refused, held-out samples, pictures."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import Local
from fedloom.data import (
    FederatedData,
    Images,
    Ragged,
    Tokens,
    by_lists,
    dirichlet,
    from_arrays,
    from_clients,
    from_datasets,
    iid,
    natural,
)
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import Roll
from fedloom.data.heterogeneity import by_client
from fedloom.federation.federation import Federation
from support.refusals import refused


def small(**changes):
    parts = {
        "name": "small", "inputs": torch.arange(12.0).view(6, 2),
        "targets": torch.tensor([0, 1, 2, 0, 1, 0]),
        "test_inputs": torch.zeros(3, 2), "test_targets": torch.tensor([0, 3, 1]),
        "clients": Ragged.from_lists([[0, 5], [1, 2, 3]]),
    }  # fmt: skip
    return FederatedData(**{**parts, **changes})


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=8))
def test_ragged_keeps_every_list(lists):
    ragged = Ragged.from_lists(lists)
    assert [ragged.of(i).tolist() for i in range(ragged.count)] == lists
    assert ragged.sizes.tolist() == [len(part) for part in lists]
    assert ragged.owners().tolist() == [i for i, part in enumerate(lists) for _ in part]


def test_a_list_is_a_view_and_the_digest_tells_the_same_indices_cut_elsewhere():
    ragged = Ragged.from_lists([[1, 2], [3]])
    assert ragged.of(1).data_ptr() == ragged.indices[2:].data_ptr()
    for client in (-1, 2):
        refused(lambda client=client: ragged.of(client), "no client")
    digests = [Ragged.from_lists(x).digest() for x in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]])]
    assert len(set(digests)) == 3


# --------------------------------------------------------------------------------------- the facts
def test_the_facts_of_a_small_federation():
    data = small(about={"source": "here"})
    assert data.population == 2 and data.sizes.tolist() == [2, 3]
    assert data.classes == 4, "label 3 occurs in the test set alone"
    assert data.label_counts().tolist() == [[2, 0, 0, 0], [1, 1, 1, 0]]
    inputs, targets = data.client(1)
    assert inputs.tolist() == [[2, 3], [4, 5], [6, 7]] and targets.tolist() == [1, 2, 0]
    facts = json.loads(json.dumps(data.describe()))
    assert facts.items() >= {
        "clients": 2, "samples": 6, "samples_held": 5, "input_shape": [2], "classes": 4,
        "input_dtype": "float32", "test_samples": 3, "validation_samples": 0,
    }.items()  # fmt: skip
    assert facts["samples_per_client"] == {"min": 2, "median": 2.5, "max": 3}
    assert facts["about"] == {"source": "here"} and facts["split"] == data.clients.digest()


def test_regression_has_no_classes():
    data = from_arrays(np.zeros((6, 2)), np.linspace(0, 1, 6), iid(2))
    assert data.classes is None and data.targets.dtype == torch.float32


def test_the_data_of_one_client_know_all_clients():
    own = small().only(1)
    assert own.population == 2 and own.sizes.tolist() == [2, 3] and own.classes == 4
    assert torch.equal(own.client(1)[0], small().client(1)[0]) and len(own.inputs) == 3
    assert own.test_inputs is None and len(own.client(0)[0]) == 0
    for roll, says in (
        (Roll(torch.tensor([2, 4]), 4), "client 1 has 3 training samples, and the clients file"),
        (Roll(torch.tensor([3]), 4), "clients.toml ... has 1 clients, and there are 2 lists"),
        (Roll(torch.tensor([2, 3]), 2), "a label is 2, and the clients file ... 2 classes"),
    ):
        refused(lambda roll=roll: dataclasses.replace(own, roll=roll), says)


def test_clients_of_a_mapping_have_names_and_may_lack_tests():
    pairs = {"lyon": ([[1.0]], [0]), "bonn": ([[2.0], [3.0]], [1, 0])}
    data = from_clients(pairs, client_tests={"bonn": ([[9.0]], [1])})
    assert data.client_names == ("lyon", "bonn") and data.client_name(1) == "bonn"
    assert data.test_clients.sizes.tolist() == [0, 1] and data.test_inputs.tolist() == [[9]]
    assert data.with_validation(0.5, 0).client_names == data.client_names
    assert by_client(data)["client_names"] == ["lyon", "bonn"]
    assert "client_names" not in by_client(small()) and small().client_name(1) == "1"
    both = [(torch.zeros(2), 0)]
    assert from_datasets({"a": both, "b": both}).client_names == ("a", "b")


NO_TEST = {"test_inputs": None, "test_targets": None}
NAN = torch.tensor([[0.0, 0], [0, 0], [0, float("nan")], [0, 0], [float("inf"), 0], [0, 0]])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"targets": torch.zeros(5, dtype=torch.int64)}, "inputs have shape (6, 2) ... (5,)"),
        ({"clients": Ragged.from_lists([[0], [], [1]])}, "client 1 has no training samples;"),
        ({"clients": Ragged.from_lists([[0], [6]])}, "sample 6, but there are 6 training"),
        ({"clients": Ragged.from_lists([[0], [-1]])}, "sample -1"),
        ({"clients": Ragged.from_lists([])}, "at least one client"),
        ({"clients": Ragged(torch.tensor([0, 3, 2]), torch.tensor([0, 1]))}, "rise from 0"),
        ({"clients": Ragged(torch.tensor([0, 1]), torch.tensor([0, 1]))}, "rise from 0"),
        ({"clients": Ragged(torch.tensor([0, 1]), torch.tensor([0.5]))}, "float32"),
        ({"inputs": NAN}, "inputs row 2 holds NaN or infinity (2 of 6"),
        ({"inputs": NAN.to(torch.uint8)}, "transform=Images(...), or divide images by 255"),
        ({"inputs": torch.zeros(6, 2, dtype=torch.float16)}, "float16"),
        ({"targets": torch.zeros(6, dtype=torch.int32)}, "int32"),
        ({"targets": torch.tensor([0, 1, -1, 0, 0, 0])}, "targets row 2 is -1"),
        ({"targets": torch.zeros(6, 0, dtype=torch.int64)}, "one number a sample"),
        ({"targets": torch.tensor([0.0] * 4 + [torch.nan, 5])}, "targets row 4"),
        ({"test_targets": None}, "test_inputs are given without test_targets"),
        ({"test_inputs": None}, "test_targets are given without test_inputs"),
        ({"test_inputs": torch.zeros(2, 2)}, "test inputs have shape"),
        ({"test_inputs": torch.zeros(3, 4)}, "test inputs are (4,) float32 a sample"),
        ({"test_inputs": torch.zeros(3, 2).double()}, "float64 a sample"),
        ({"test_targets": torch.zeros(3)}, "test targets are () float32 a sample"),
        ({"test_inputs": torch.full((3, 2), float("nan"))}, "test inputs row 0"),
        ({"test_clients": Ragged.from_lists([[0]])}, "1 lists for 2 clients"),
        ({"test_clients": Ragged.from_lists([[0], [3]])}, "sample 3, but there are 3 test"),
        ({"validation": torch.tensor([2])}, "sample 2 is in the validation set and at client 1"),
        ({"validation": torch.tensor([9])}, "validation names sample 9"),
        ({"class_names": ("a", "b")}, "2 class_names, but labels go up to 3"),
        ({"client_names": ("a",)}, "1 client_names for 2 clients"),
        ({"about": {"path": object()}}, "about must be fit for JSON"),
        (NO_TEST | {"test_clients": Ragged.from_lists([[0], [1]])}, "test_clients are given with"),
    ],
)
def test_what_does_not_fit_is_refused(changes, says):
    refused(lambda: small(**changes), says)
    small(**NO_TEST, inputs=torch.full((6, 2), 3e38))  # a sum that overflows is not infinity


# -------------------------------------------------------------------------------------- validation
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    percent=st.integers(0, 99),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_every_client_gives_the_floor_of_its_share(sizes, percent, seed):
    lists = Ragged.from_sizes(torch.tensor(sizes), torch.randperm(sum(sizes)))
    data = from_arrays(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes)), by_lists(lists))
    floors = [percent * size // 100 for size in sizes]
    if percent and not any(floors):
        refused(lambda: data.with_validation(percent / 100, seed), "less than one sample each")
        return
    held = data.with_validation(percent / 100, seed)
    assert held.sizes.tolist() == [size - n for size, n in zip(sizes, floors, strict=True)]
    parts = [held.clients.indices, *([] if held.validation is None else [held.validation])]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(sum(sizes)))
    for client in range(len(sizes)):
        assert set(held.clients.of(client).tolist()) <= set(lists.of(client).tolist())


@pytest.mark.parametrize(("share", "held"), [(0.29, 29), (0.58, 58), (1 - 1e-12, 99)])
def test_rounding_of_the_share_neither_loses_a_sample_nor_takes_the_last(share, held):
    data = from_arrays(torch.zeros(100, 1), torch.zeros(100), iid(1))
    assert len(data.with_validation(share, 0).validation) == held


def test_validation_depends_on_seed_and_client_alone():
    arrays, lists = (torch.zeros(40, 1), torch.arange(40) % 3), [range(20), range(20, 40)]
    data = from_arrays(*arrays, by_lists(lists))
    first, again, other = (data.with_validation(0.5, seed) for seed in (1, 1, 2))
    assert torch.equal(first.validation, again.validation)
    assert not torch.equal(first.validation, other.validation)
    assert first.about["validation"] == {"share": 0.5, "seed": 1}
    assert data.validation is None and data.sizes.tolist() == [20, 20]
    alone = from_arrays(*arrays, by_lists(lists[:1])).with_validation(0.5, 1)
    assert torch.equal(first.clients.of(0), alone.clients.of(0))


# ------------------------------------------------------------------------------------ constructors
def test_clients_keep_their_samples_in_order_and_tests_become_one_set():
    pairs = [(np.full((n, 3), n), np.full(n, n)) for n in (2, 1, 4)]
    tests = [(np.full((n, 3), n), [n] * n) for n in (1, 0, 2)]
    data = from_clients(pairs, client_tests=tests)
    for client, (inputs, targets) in enumerate(pairs):
        own = data.client(client)
        assert np.array_equal(own[0], inputs) and np.array_equal(own[1], targets)
    assert data.test_inputs[:, 0].tolist() == [1, 2, 2]
    assert [data.test_clients.of(i).tolist() for i in range(3)] == [[0], [], [1, 2]]


@pytest.mark.parametrize(
    ("inputs", "dtype", "becomes"),
    [
        (np.zeros((2, 3)), torch.float32, torch.float32),
        (np.zeros((2, 3)), torch.float64, torch.float64),
        (np.zeros((2, 3), np.float32), torch.float64, torch.float64),
        (np.zeros((2, 3), ">f8"), torch.float32, torch.float32),
        (np.zeros((2, 3), np.float16), torch.float32, torch.float32),
        (np.zeros((2, 3), np.longdouble), torch.float64, torch.float64),
        (np.zeros((2, 3), np.int32), torch.float64, torch.int64),
        (np.zeros((2, 3), bool), torch.float32, torch.float32),
        (torch.zeros(2, 3).double(), torch.float32, torch.float32),
        (torch.zeros(2, 3, dtype=torch.int16), torch.float32, torch.int64),
        ([[0.5], [1.5]], torch.float32, torch.float32),
        (np.zeros((2, 3))[::-1], torch.float32, torch.float32),
        (np.broadcast_to(np.float32(0), (2, 3)), torch.float32, torch.float32),
    ],
)
def test_inputs_become_floats_or_tokens_and_targets_floats_or_labels(inputs, dtype, becomes):
    data = from_clients([(inputs, np.array([0, 1], np.uint8))], dtype=dtype)
    assert data.inputs.dtype == becomes and len(data.inputs) == 2
    assert data.targets.dtype == torch.int64
    assert from_clients([(inputs, np.array([0.5, 1]))], dtype=dtype).targets.dtype == dtype


def test_arrays_are_copied_only_where_a_tensor_could_write_to_a_read_only_one():
    inputs, array = torch.zeros(4, 2), np.zeros((4, 2), np.float32)
    assert from_arrays(inputs, torch.zeros(4), iid(2)).inputs.data_ptr() == inputs.data_ptr()
    array.flags.writeable = False
    assert from_arrays(array, torch.zeros(4), iid(2)).inputs.data_ptr() != array.ctypes.data


ONE, GREY = ([[0.0]], [0]), {"mean": (0.0,), "std": (1.0,)}
WRONG_SHARES, SHARED = (1.0, -0.1, math.nan), Ragged.from_lists([[0, 1, 2], [2, 3, 4]])
NOBODYS = Arrays(name="a", train=Samples(torch.zeros(2, 1), torch.zeros(2)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: from_clients([ONE, (np.zeros((1, 1), np.uint8), [0])]), "client 1 ... by 255"),
        (lambda: from_clients([ONE, ([], [])]), "client 1 has no training samples"),
        (lambda: from_clients([ONE, ([[0.0]], [0, 1])]), "client 1 has 1 inputs, but 2 targets"),
        (lambda: from_clients([ONE, ([[0.0, 1.0]], [0])]), "client 1 has inputs of shape (2,)"),
        (lambda: from_clients([ONE, ([[0.0]], [0.5])]), "client 1 has targets ... float32"),
        (lambda: from_clients([ONE, [1]]), "client 1 is not a pair"),
        (lambda: from_clients([ONE, 3]), "client 1 is not a pair"),
        (lambda: from_clients([([["a"]], [0])]), "client 0: inputs have type <U1"),
        (lambda: from_clients([([[1j]], [0])]), "complex"),
        (lambda: from_clients([([[1.0], [2.0, 3.0]], [0, 1])]), "not one array"),
        (lambda: from_clients([(1.0, [0])]), "single number"),
        (lambda: from_clients([]), "no clients"),
        (lambda: from_clients([ONE], test=ONE, client_tests=[ONE]), "or client_tests"),
        (lambda: from_clients([ONE], client_tests=[ONE, ONE]), "2 pairs for 1 clients"),
        (lambda: from_clients({"lyon": ONE, "bonn": 3}), "client bonn is not a pair"),
        (lambda: from_clients({"lyon": ONE}, client_tests={"lion": ONE}), "'lion' ... 'lyon'"),
        (lambda: from_clients([ONE], client_tests={"lyon": ONE}), "give the clients names too"),
        (lambda: from_clients([ONE], test=([[0.0, 1.0]], [0])), "test inputs are"),
        (lambda: from_clients([ONE], dtype=torch.float16), "dtype must be"),
        (lambda: from_arrays([[0.0]], [0, 1], iid(1)), "1 inputs, but 2 targets"),
        (lambda: from_arrays([[0.0]], [0], iid(2)), "2 clients cannot share 1 samples"),
        (lambda: from_arrays([[0.0]], [0.5], dirichlet(1, 1)), "needs labels"),
        (lambda: from_arrays([[0.0]], [0.5], iid(1)).label_counts(), "no labels"),
        # samples held out
        *((lambda s=s: small().with_validation(s, 0), "share must be in") for s in WRONG_SHARES),
        (lambda: small(clients=SHARED).with_validation(0.5, 0), "sample 2 is on 2 clients' lists"),
        (lambda: small().with_validation(0.5, 0).with_validation(0.5, 0), "already has"),
        # clients who made the samples
        (lambda: natural().split(torch.zeros(3), 0), "femnist ... iid"),
        (lambda: natural(clients=0), "clients must be"),
        (lambda: natural(min_size=0), "min_size must be"),
        (lambda: NOBODYS.divided(natural(), 0), "who made each sample"),
        # pictures
        (lambda: Images(mean=(0.0, 0.0), std=(1.0,)), "mean has 2 and std 1"),
        (lambda: Images(mean=(0.0,), std=(0.0,)), "std must be a list of numbers in"),
        (lambda: Images(mean=(math.nan,), std=(1.0,)), "mean must be a list of numbers, got"),
        (lambda: Images(**GREY, crop=-1), "crop must be ... got -1"),
        (lambda: Images(**GREY, crop=1.5), "got 1.5"),
        (lambda: Images(**GREY, crop_chance=1.1), "crop_chance must be in"),
        (lambda: Images(**GREY, rotate=-1.0), "rotate must be in"),
        (lambda: Images(**GREY, fill="white"), "fill must be one of black, mean, got"),
        (lambda: Images(**GREY, dtype=torch.float16), "float16"),
    ],
)
def test_arrays_shares_makers_and_moves_that_do_not_fit_are_refused(make, says):
    refused(make, says)


# ------------------------------------------------------------------------- who made each sample
@given(st.lists(st.integers(-1, 9), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 5))
def test_natural_clients_are_the_owners_with_enough(owners, least, seed):
    counts = {o: owners.count(o) for o in set(owners) - {-1}}
    enough = sorted(o for o, n in counts.items() if n >= least)
    choose = lambda **options: natural(min_size=least, **options).choose(
        torch.tensor(owners), "people", seed
    )
    if not enough:
        refused(choose, f"none of the {len(counts)} people has {least} samples")
        return
    lists, who = choose()
    assert who.tolist() == enough
    for client, owner in enumerate(enough):
        assert lists.of(client).tolist() == [i for i, o in enumerate(owners) if o == owner]
    some = min(1 + len(enough) // 2, len(enough))
    kept = choose(clients=some)[1].tolist()
    assert len(kept) == some and set(kept) <= set(enough) and kept == sorted(kept)
    assert kept == choose(clients=some)[1].tolist()
    refused(lambda: choose(clients=len(enough) + 1), f"there are {len(enough)} people")


MAKERS, TESTED = [4, 2, 4, 9, 2, 4], [9, 4, 7, 4, 9]


def test_clients_take_their_own_tests_along():
    arrays = Arrays(
        name="a",
        train=Samples(torch.arange(6.0)[:, None], torch.arange(6) % 2, torch.tensor(MAKERS)),
        test=Samples(torch.arange(10.0, 15)[:, None], torch.ones(5).long(), torch.tensor(TESTED)),
    )
    data = arrays.divided(natural(min_size=2), seed=0)
    assert data.sizes.tolist() == [2, 3], "2 and 4; 9 has one sample only"
    assert data.test_inputs.flatten().tolist() == [11, 13]
    assert [data.test_clients.of(i).tolist() for i in range(2)] == [[], [0, 1]]
    everyone = arrays.divided(natural(), seed=0)
    tests = [everyone.test_inputs[everyone.test_clients.of(i)] for i in range(3)]
    assert [t.flatten().tolist() for t in tests] == [[], [11, 13], [10, 14]]
    assert len(arrays.divided(iid(2), seed=0).test_inputs) == 5
    kept = [natural(clients=20).choose(torch.arange(200), "people", s)[1] for s in range(5)]
    assert len({tuple(k.tolist()) for k in kept}) == 5, "which ones are kept is the seed's"


NORMS = {"mean": (0.2, 0.4), "std": (0.5, 2.0)}
MEAN, STD = (np.array(v)[:, None, None] for v in NORMS.values())


def pictures(count=6, seed=0):
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(1, 256, (count, 2, 7, 5), dtype=np.uint8))


def draws_of(count):
    return torch.from_numpy(np.random.default_rng(1).random((count, 5)))


def by_hand(image, draw, transform, black):
    """Turn, then pad and cut, then mirror: each of them pixel by pixel on the last one's result."""
    channels, height, width = image.shape
    angle, chance, down, right, mirror = draw
    filler = np.zeros(channels) if black else np.full(channels, np.nan)  # nan stands for the mean
    turned = np.empty(image.shape)
    turn = (2 * angle - 1) * math.radians(transform.rotate)
    middle = ((height - 1) / 2, (width - 1) / 2)
    for i in range(height):
        for j in range(width):
            y, x = i - middle[0], j - middle[1]
            row = round(y * math.cos(turn) - x * math.sin(turn) + middle[0])
            column = round(y * math.sin(turn) + x * math.cos(turn) + middle[1])
            inside = 0 <= row < height and 0 <= column < width
            turned[:, i, j] = image[:, row, column] if inside else filler
    pad = transform.crop
    framed = np.empty((channels, height + 2 * pad, width + 2 * pad))
    framed[:] = filler[:, None, None]
    framed[:, pad : pad + height, pad : pad + width] = turned
    top = left = pad
    if chance < transform.crop_chance:
        top, left = math.floor(down * (2 * pad + 1)), math.floor(right * (2 * pad + 1))
    out = framed[:, top : top + height, left : left + width]
    return out[:, :, ::-1] if transform.flip and mirror < 0.5 else out


SINGLE = [{}, {"flip": True}, {"crop": 2}, {"rotate": 30.0}, {"rotate": 180.0}]
SEVERAL = [{"crop": 3, "crop_chance": 0.5}, {"rotate": 20.0, "crop": 2, "flip": True}]
SEVERAL += [{"rotate": 90.0, "crop": 1, "crop_chance": 0.4, "flip": True}]


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize("moves", [*SINGLE, *SEVERAL])
def test_moves_are_those_of_the_definition(moves, fill):
    transform = Images(**NORMS, fill=fill, dtype=torch.float64, **moves)
    images, draws = pictures(24), draws_of(24)
    moved = transform.augmented(images, draws)
    for image, draw, one in zip(images.numpy(), draws.tolist(), moved, strict=True):
        raw = by_hand(image, draw, transform, fill == "black")
        expected = np.where(np.isnan(raw), 0.0, (raw / 255 - MEAN) / STD)
        np.testing.assert_allclose(one.numpy(), expected, rtol=0, atol=1e-12)
    expected = torch.from_numpy((images.numpy() / 255 - MEAN) / STD)
    torch.testing.assert_close(transform.plain(images), expected, rtol=0, atol=1e-15)
    assert bool(transform.draws) == bool(moves) and images.dtype == torch.uint8
    assert transform.out == torch.float64 and transform.astype(torch.float32).out == torch.float32


# --------------------------------------------------------------- in the data and in the federation
def stored(transform=None):
    return FederatedData(
        name="stored", inputs=pictures(6), targets=torch.arange(6) % 3,
        clients=Ragged.from_lists([[0, 3], [1, 2, 4, 5]]),
        transform=transform or Images(**NORMS, crop=2, flip=True),
    )  # fmt: skip


def test_images_stay_bytes_and_reach_the_model_as_floats():
    data, rows = stored(), torch.tensor([1, 4])
    fed = Federation(data, Local(batch=2), seed=4)
    assert data.inputs.dtype == torch.uint8 and data.classes == 3
    inputs, targets = fed.batch(rows)
    assert torch.equal(inputs, data.transform.plain(data.inputs[rows]))
    assert targets.tolist() == [1, 1]
    draws = fed.draws(1, 0, 0, 2)
    moved = data.transform.augmented(data.inputs[rows], draws)
    assert torch.equal(fed.batch(rows, draws)[0], moved)
    assert data.astype(torch.float64).ready(data.inputs).dtype == torch.float64
    pairs = [(pictures(2), [0, 1]), (pictures(3), [1, 1, 0])]
    own = from_clients(pairs, test=(pictures(1), [0]), transform=Images(**NORMS))
    assert own.inputs.dtype == own.test_inputs.dtype == torch.uint8
    assert own.about["std"] == [0.5, 2.0] and own.sizes.tolist() == [2, 3]


def test_draws_depend_on_seed_round_client_and_step_and_on_nothing_else():
    draws = lambda *place, seed=4, batch=2: Federation(stored(), Local(batch=batch), seed).draws(
        *place
    )
    one = draws(1, 2, 3, 4)
    assert one.shape == (4, 5) and one.min() >= 0 and one.max() < 1
    assert torch.equal(one, draws(1, 2, 3, 4, batch=1))
    others = [draws(0, 2, 3, 4), draws(1, 1, 3, 4), draws(1, 2, 2, 4), draws(1, 2, 3, 4, seed=5)]
    assert not any(torch.equal(one, other) for other in others)
    assert Federation(stored(Images(**NORMS)), Local()).draws(0, 0, 0, 2) is None


def test_tokens_as_targets_are_counted_one_by_one(monkeypatch):
    inputs, targets = torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[0, 3], [3, 3], [1, 0]])
    clients = Ragged.from_lists([[0, 2], [1]])
    data = FederatedData(name="text", inputs=inputs, targets=targets, clients=clients)
    assert data.classes == 4 and data.label_counts_of(0).tolist() == [2, 1, 0, 1]
    assert data.label_counts().tolist() == [[2, 1, 0, 1], [0, 0, 0, 2]]
    with monkeypatch.context() as patch:  # a table that would fill the memory
        patch.setattr("fedloom.data.federated.LARGEST_TABLE", 7)
        refused(data.label_counts, "2 clients by 4 classes is too large ... label_counts_of")
        assert data.label_counts_of(1).tolist() == [0, 0, 0, 2]
    assert data.astype(torch.float64).inputs.dtype == torch.int64
    words = Tokens()
    assert (words.draws, words.out, words.astype(torch.float64)) == (0, torch.int64, words)
