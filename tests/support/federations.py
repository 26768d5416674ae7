"""Federations of several kinds of data, each as a function dtype, **settings -> the experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloom import FedAvg, Local
from fedloom.checks.tiny_federation import SIZES, Trial, experiment
from fedloom.data import FederatedData, Images, Ragged, from_clients
from fedloom.data.transforms import Transform
from fedloom.federation.schedules import FAFEDTheory
from fedloom.models import SeveralInputs, joined, lstm_language_model
from fedloom.objectives import CrossEntropy, LanguageModel
from tiny import clusters, mlp, small, with_tests

from . import modules

SHORT = {"local": Local(epochs=1, batch=4, lr=0.05), "rounds": 3}


def on_clusters(dtype: torch.dtype, **settings: Any) -> Trial:
    """Four rounds of four of seven clients, of five numbers and a label."""
    return small(settings.pop("algorithm", None) or FedAvg(), dtype, **settings)


TEXTS = (3, 8, 5, 11, 2)  # short last batches
# L small enough that rho / (12 L q) is a rate at which something happens
THEORY = FAFEDTheory(N=len(TEXTS), q=3, L=0.03, rho=0.1, b=4)


def _sampled(sample: Callable[[Any, int], Any], dtype: torch.dtype) -> FederatedData:
    draw = np.random.default_rng(8)
    return from_clients([sample(draw, n) for n in TEXTS], test=sample(draw, 9), dtype=dtype)


def photographs(dtype: torch.dtype) -> FederatedData:
    return _sampled(lambda d, n: (d.normal(size=(n, 3, 8, 8)), d.integers(3, size=n)), dtype)


def masks(dtype: torch.dtype) -> FederatedData:
    """Pictures of 6 x 7 pixels, each of one of three classes, but a fifth that do not count."""
    shape, chances = (6, 7), [0.4, 0.3, 0.1, 0.2]
    draw = lambda d, n: d.choice([0, 1, 2, 255], size=(n, *shape), p=chances)
    return _sampled(lambda d, n: (d.normal(size=(n, 1, *shape)), draw(d, n)), dtype)


def texts(dtype: torch.dtype) -> FederatedData:
    """Five words, and one of three classes."""
    size = (modules.WORDS, 5)
    return _sampled(lambda d, n: (d.integers(size[0], size=(n, 5)), d.integers(3, size=n)), dtype)


def on_texts(dtype: torch.dtype, **settings: Any) -> Trial:
    """Three of five clients in each round."""
    given = {
        "algorithm": FedAvg(),
        "data": texts,
        "rounds": 3,
        "cohort": 3,
        "local": Local(epochs=1, batch=4, lr=0.1),
        "seed": 4,
        "device": "cpu",
    } | settings
    data = given.pop("data")
    return Trial(**given, data=data(dtype) if callable(data) else data, dtype=dtype)


def images(dtype: torch.dtype = torch.float32) -> FederatedData:
    """Bytes that are turned, cut and mirrored at random."""
    draw, sizes = np.random.default_rng(0), (1, 3, 8, 11, 2)
    count = sum(sizes)
    return FederatedData(
        name="images",
        inputs=torch.from_numpy(draw.integers(0, 256, (count, 2, 6, 6), dtype=np.uint8)),
        targets=torch.from_numpy(draw.integers(0, 3, count)),
        clients=Ragged.from_sizes(torch.tensor(sizes), torch.arange(count)),
        test_inputs=torch.from_numpy(draw.integers(0, 256, (20, 2, 6, 6), dtype=np.uint8)),
        test_targets=torch.from_numpy(draw.integers(0, 3, 20)),
        transform=Images(
            mean=(0.4, 0.5), std=(0.2, 0.3), crop=2, flip=True, rotate=15.0, dtype=dtype
        ),
    )


def small_images_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


STREAMS = (11, 8, 5, 1)  # windows: streams of 5, 4, 2 and 1 batches, the last of one example
READ_ON = Local(steps=3, batch=2, lr=0.5, order="text", clip=0.25)
VOCABULARY = 7


def stream(client: int) -> tuple[Any, Any]:
    """The windows (n, 3) of a client's text, and the next words."""
    words = np.random.default_rng(client).integers(VOCABULARY, size=STREAMS[client] * 3 + 1)
    return words[:-1].reshape(-1, 3), words[1:].reshape(-1, 3)


def reading(dtype: torch.dtype = torch.float64, dropout: float = 0.0, **settings: Any) -> Trial:
    """A text that is read on, with the network's state carried along."""
    torch.manual_seed(6)
    given = {
        "model": lambda: lstm_language_model(VOCABULARY, 4, 4, dropout=dropout),
        "data": from_clients([stream(i) for i in range(4)], test=stream(0), dtype=dtype),
        "rounds": 4,
        "cohort": 1.0,
        "objective": LanguageModel(),
        "local": READ_ON,
    }
    return on_texts(dtype, **(given | settings))


@dataclasses.dataclass(frozen=True)
class TwoViews(Transform):
    """(n, 5) in evaluation, two noisy copies (n, 2, 5) in training."""

    @property
    def draws(self) -> int:
        return 10

    @property
    def out(self) -> torch.dtype:
        return torch.float64

    def plain(self, inputs: Tensor) -> Tensor:
        return inputs

    def augmented(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs[:, None] + draws.view(-1, 2, 5).to(inputs) / 4


class Agreement(CrossEntropy):
    """The outputs of two views are to be alike; by example."""

    def loss(self, net: Any, x: Any, batch: Any, ref: Any, mem: Any) -> Tensor:
        views, targets = batch
        one, other = (net(x, views[:, v]) for v in (0, 1))
        loss = functional.cross_entropy(one, targets, reduction="none")
        return loss + ((one - other) ** 2).sum(1)


def two_views(dtype: torch.dtype = torch.float32, **settings: Any) -> Trial:
    data = dataclasses.replace(clusters(dtype), transform=TwoViews())
    return on_clusters(dtype, **({"data": data, "objective": Agreement(), "rounds": 2} | settings))


class Two(nn.Module):
    """A network of a word and of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.head = nn.Embedding(5, 4), nn.Linear(7, 3)

    def forward(self, numbers: Tensor, word: Tensor) -> Tensor:
        return self.head(torch.cat([self.word(word), numbers], 1))


def two_inputs(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The model and data of several inputs per example."""
    draw = torch.Generator().manual_seed(3)
    examples = [
        (
            {
                "word": torch.randint(0, 5, (n,), generator=draw),
                "numbers": torch.randn(n, 3, generator=draw),
            },
            torch.arange(n) % 3,
        )
        for n in SIZES
    ]
    data = from_clients([(joined(one), y) for one, y in examples], dtype=dtype)
    return {"model": lambda: SeveralInputs(Two(), examples[0][0]), "data": data}


def on_two_inputs(dtype: torch.dtype = torch.float32, **settings: Any) -> Trial:
    return experiment(dtype, **(SHORT | two_inputs(dtype) | settings))


class Mean:
    """A metric of the whole set."""

    higher_is_better = True

    def reset(self) -> None:
        self.seen: list[Tensor] = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.seen.append(preds[:, 0])

    def compute(self) -> Tensor:
        return torch.cat(self.seen).mean()


def drawing(dtype: torch.dtype = torch.float32, **settings: Any) -> Trial:
    """A model that draws whenever it is called. 1,200 test samples are three batches of an
    evaluation, and each client has some of them.
    """
    data = clusters(dtype, sizes=[4, 8, 12])
    many = lambda v: torch.cat([v] * 30)
    data = dataclasses.replace(
        data, test_inputs=many(data.test_inputs), test_targets=many(data.test_targets)
    )
    given = {"model": lambda: modules.Drawing(mlp(dtype)), "data": with_tests(data), "cohort": 2}
    return on_clusters(dtype, **(given | settings))


SENTENCE, PAD = 5, 8


def sentences(
    dtype: torch.dtype = torch.float32, padding: bool = False, test: bool = True
) -> FederatedData:
    """Texts of nine words, in which a word is followed by the next one, most of the time."""
    draw = np.random.default_rng(3)

    def sample(n: int) -> tuple[Any, Any]:
        first = draw.integers(PAD, size=(n, 1))
        steps = draw.choice([1, 2], p=[0.9, 0.1], size=(n, SENTENCE)).cumsum(1)
        line = np.concatenate([first, (first + steps) % PAD], 1)
        if padding:
            line[:, -1] = PAD
        return line[:, :-1] % PAD, line[:, 1:]

    data = from_clients(
        [sample(n) for n in (3, 6, 5)], test=sample(30) if test else None, dtype=dtype
    )
    about = {**data.about, "target_padding": PAD} if padding else data.about
    return dataclasses.replace(data, about=about)
