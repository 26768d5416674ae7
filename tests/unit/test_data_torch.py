"""A torch Dataset per client."""

from __future__ import annotations

import pytest
import torch
from published import refused
from torch.utils.data import DataLoader, TensorDataset

from fedloom.data import Images, from_arrays, from_clients, from_datasets, iid
from fedloom.errors import DataError


class Squares(torch.utils.data.Dataset):
    def __init__(self, count, bad=None):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == self.bad:
            raise RuntimeError("disk gone")
        return torch.full((2,), float(i)), i % 3


def test_a_dataset_per_client():
    data = from_datasets([Squares(2), Squares(4)], test=Squares(3))
    assert data.sizes.tolist() == [2, 4] and data.client(1)[0][:, 0].tolist() == [0, 1, 2, 3]
    assert data.test_targets.tolist() == [0, 1, 2] and data.targets.dtype == torch.int64
    own = from_datasets([Squares(2), Squares(4)], client_tests=[Squares(1), Squares(2)])
    assert own.test_clients.sizes.tolist() == [1, 2]


def test_a_dataset_that_raises_is_named_with_client_and_sample():
    refused(
        lambda: from_datasets([Squares(2), Squares(4, bad=3)]),
        "client 1, sample 3: Squares raised RuntimeError: disk gone",
    )
    refused(lambda: from_datasets([[(torch.zeros(2), 0), (torch.zeros(3), 0)]]), "sample 1", "(3,)")
    refused(lambda: from_datasets([[(1, 2, 3)]]), "client 0, sample 0", "a pair of inputs")
    refused(lambda: from_datasets([iter([])]), "client 0", "has no len()")
    refused(lambda: from_datasets([Squares(1), []]), "client 1 has no training samples")


class Named(torch.utils.data.Dataset):
    """As torchvision's: labels are numbers of `classes`, perhaps changed by target_transform."""

    def __init__(self, classes, labels, target_transform=None):
        self.classes, self.labels, self.target_transform = classes, labels, target_transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        label = self.classes.index(self.labels[i])
        return torch.zeros(2), self.target_transform(label) if self.target_transform else label


def test_datasets_that_name_their_classes_are_joined_by_name(caplog):
    a, b = Named(["cat", "dog"], ["dog", "cat"]), Named(["dog", "emu"], ["dog", "emu", "dog"])
    parts = [a, torch.utils.data.Subset(b, [1, 2])]
    data = from_datasets(parts, test=Named(["emu", "cat"], ["emu", "cat"]))
    assert data.class_names == ("cat", "dog", "emu")
    assert data.targets.tolist() == [1, 0, 2, 1] and data.test_targets.tolist() == [2, 0]
    given = from_datasets({"x": a, "y": b}, class_names=["emu", "dog", "cat"])
    assert given.targets.tolist() == [1, 2, 1, 0, 1] and given.class_names[0] == "emu"
    own = from_datasets({"x": a, "y": b}, client_tests={"y": Named(["emu"], ["emu"])})
    assert own.test_targets.tolist() == [2] and not caplog.messages
    same = from_datasets([a, a], class_names=["Katze", "Hund"])
    assert same.targets.tolist() == [1, 0, 1, 0] and same.class_names == ("Katze", "Hund")
    from_datasets([a, Named(["Cat"], ["Cat"])])
    assert "'cat' and 'Cat' differ by capitals or blanks alone" in caplog.text


def test_datasets_whose_classes_cannot_be_joined_are_refused_with_both_orders():
    a, b = Named(["cat", "dog"], ["dog"]), Named(["dog", "cat"], ["dog"])
    orders = ("dog, cat", "cat, dog")
    refused(lambda: from_datasets([a, b, Squares(2)]), "client 1", *orders, "client 2 lists none")
    numbered = Named(["dog", "cat"], ["dog"], target_transform=lambda label: 1 - label)
    assert from_datasets([a, numbered]).targets.tolist() == [1, 1]
    refused(lambda: from_datasets([a, b], class_names=["x", "y"]), *orders, "class_names are x, y")


class Noisy(torch.utils.data.Dataset):
    """Flips a picture in half of all cases, as torchvision's RandomHorizontalFlip."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        picture = torch.arange(4.0).view(1, 2, 2)
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture, i % 2


def test_a_dataset_that_augments_at_random_is_refused():
    says = ("is another one when it is read twice", "transform=Images(")
    torch.manual_seed(0)
    refused(lambda: from_datasets([Squares(2), Noisy()]), "client 1, sample", *says)
    refused(lambda: from_datasets([Squares(2)], test=Noisy()), "test, sample", *says)
    hole = [(torch.tensor([float("nan")]), 0)]
    refused(lambda: from_datasets([hole]), "row 0 holds NaN")


def test_pictures_of_a_dataset_are_augmented_by_a_transform():
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    one = [(pillow.new("L", (4, 3), 51), 0)]
    assert from_datasets([one]).inputs.unique().tolist() == pytest.approx([0.2])
    data = from_datasets([one], test=one, transform=Images(mean=(0.0,), std=(1.0,), flip=True))
    assert data.inputs.dtype == torch.uint8 and data.inputs.shape == (1, 1, 3, 4)
    assert data.test_inputs.unique().tolist() == [51] and data.transform.flip


def test_a_data_loader_is_refused_in_words():
    loader = DataLoader(TensorDataset(torch.rand(6, 2), torch.zeros(6).long()), batch_size=2)
    for make in (
        lambda: from_datasets([loader]),
        lambda: from_clients({"lyon": loader}),
        lambda: from_arrays(loader, None, iid(2)),
    ):
        with pytest.raises(DataError, match=r"is a DataLoader; give its dataset"):
            make()
