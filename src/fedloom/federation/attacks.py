"""Clients that mean harm: a role in the federation, to see what an aggregation is worth.

Who is hostile is drawn once, from the run's seed. A hostile client trains as the others do, and
sends something else (sent); or trains on data that it has changed (data); or, knowing what all
honest clients of the round have sent, makes of that what it sends (forged).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..core.hyper import NonNegative, Part, Positive, PositiveShare, hyper
from ..core.registry import Registry
from ..core.rng import generator
from ..core.vector import Rec, Vec, tree
from ..data import FederatedData
from ..data.clients import ClientNumbers
from ..errors import ConfigError, DataError


class Attack(Part):
    """What hostile clients do. share: round(share N) of the N clients are hostile, half up; or
    those in `clients`.
    """

    # omniscient: a hostile update is made of the honest ones of the round, see forged()
    omniscient: ClassVar[bool] = False
    share: PositiveShare = hyper(0.2, "of all clients that are hostile")
    clients: Sequence[int | str] | None = hyper(
        None, "the hostile clients, by name or number; none: a share, drawn from the seed"
    )

    @property
    def name(self) -> str:
        """The name in errors."""
        return type(self).__name__

    def hostile(self, population: int, seed: int, names: Sequence[str] = ()) -> frozenset[int]:
        """The hostile clients of so many. names: of the clients, if they have names.

        >>> len(SignFlip(share=0.3).hostile(10, seed=1))
        3
        """
        if self.clients is not None and not self.clients:
            raise ConfigError(
                "attack.clients names nobody; leave it out for a share of the clients, or leave "
                "out the attack"
            )
        if self.clients:
            numbers = ClientNumbers(names, population)
            return frozenset(numbers.all_of(self.clients, "attack.clients"))
        count = math.floor(self.share * population + 0.5)
        order = torch.randperm(population, generator=generator(seed, "attack"))
        return frozenset(order[:count].tolist())

    def data(self, data: FederatedData, hostile: frozenset[int]) -> FederatedData:
        """The data as the hostile clients have changed their own."""
        return data

    def sent(self, up: Rec, seed: int, round: int, client: int) -> Rec:
        """A hostile client's update instead of the one that it has trained."""
        return up

    def forged(self, honest: Tensor, hostile: int) -> Vec:
        """A field of all hostile updates of a round, (m,), from the honest rows (C, m)."""
        raise NotImplementedError


def _vectors(up: Rec, change: object) -> Rec:
    """An update with another value of each vector; numbers are as trained."""
    return tree(lambda v: change(v) if isinstance(v, Tensor) and v.ndim else v, up)  # type: ignore[operator]


class SignFlip(Attack):
    """Every vector of the update, times minus strength."""

    strength: Positive = hyper(1.0, "factor beside the sign", "1: a flip alone")

    def sent(self, up: Rec, seed: int, round: int, client: int) -> Rec:
        return _vectors(up, lambda v: -self.strength * v)


class Scaled(Attack):
    """Every vector of the update, times strength: one client outweighs the others (Bagdasaryan et
    al., AISTATS 2020, section 4.1).
    Reference: https://arxiv.org/abs/1807.00459
    """

    strength: Positive = hyper(10.0, "factor", "cohort: one client replaces the model")

    def sent(self, up: Rec, seed: int, round: int, client: int) -> Rec:
        return _vectors(up, lambda v: self.strength * v)


class Gaussian(Attack):
    """Normal noise of mean 0 and this deviation instead of every vector (Blanchard et al., NeurIPS
    2017, section 6).
    Reference: https://arxiv.org/abs/1703.02757
    """

    strength: Positive = hyper(1.0, "standard deviation of every value", "200 for gradients")

    def sent(self, up: Rec, seed: int, round: int, client: int) -> Rec:
        source = generator(seed, "attack", round, client)

        def noise(v: Tensor) -> Tensor:
            normal = torch.randn(v.shape, generator=source, dtype=torch.float64)
            return (self.strength * normal).to(v)

        return _vectors(up, noise)


class LabelFlip(Attack):
    """Hostile clients train on the label C - 1 - y instead of y, of C classes, and send what comes
    of it (Fang et al., USENIX Security 2020, section 5.1).
    Reference: https://arxiv.org/abs/1911.11815
    """

    def data(self, data: FederatedData, hostile: frozenset[int]) -> FederatedData:
        if data.classes is None:
            raise DataError(
                f"attack = label_flip needs classes, but '{data.name}' has floating targets; take "
                "sign_flip"
            )
        lists = [data.clients.of(i) for i in sorted(hostile)]
        index = torch.cat(lists) if lists else torch.empty(0, dtype=torch.int64)
        times = torch.bincount(data.clients.indices, minlength=len(data.inputs))
        if len(index) and int(times[index].max()) > 1:
            raise DataError(
                "attack = label_flip changes the labels of hostile clients' samples, and some of "
                "them are on several clients' lists; take a partition without overlap"
            )
        index = index.to(data.targets.device)
        targets = data.targets.clone()
        labels = targets[index]
        flipped = data.classes - 1 - labels
        counts = data.ignored is None or labels != data.ignored
        targets[index] = torch.where(torch.as_tensor(counts), flipped, labels)
        return dataclasses.replace(data, targets=targets)


class Alie(Attack):
    """A little is enough: mean - z deviation of the honest updates, coordinate by coordinate
    (Baruch, Baruch & Goldberg, NeurIPS 2019, Algorithm 3). The deviation is that of the honest
    updates themselves, not an estimate from a few.
    Reference: https://arxiv.org/abs/1902.06156
    """

    omniscient = True
    strength: NonNegative | None = hyper(
        None, "z", "none: the largest that hides among a majority, from the cohort's numbers"
    )

    def forged(self, honest: Tensor, hostile: int) -> Vec:
        z = self.z(len(honest) + hostile, hostile) if self.strength is None else self.strength
        forged: Vec = honest.mean(0) - z * honest.std(0, correction=0)
        return forged

    def z(self, count: int, hostile: int) -> float:
        """z of the paper: s = floor(n / 2 + 1) - m honest clients must lie further out; it is the
        quantile (n - m - s) / (n - m) of the normal distribution, and not below 0.

        >>> round(Alie().z(50, 24), 3)  # s = 2 of 26
        1.426
        """
        honest = count - hostile
        quantile = (honest - (count // 2 + 1 - hostile)) / honest
        return max(0.0, statistics.NormalDist().inv_cdf(min(max(quantile, 1e-9), 1 - 1e-9)))


class InnerProduct(Attack):
    """Inner product manipulation: minus strength times the mean of the honest updates (Xie, Koyejo
    & Gupta, UAI 2020, section 4).
    Reference: https://arxiv.org/abs/1903.03936
    """

    omniscient = True
    strength: Positive = hyper(0.1, "epsilon", "0.1 hides from distances, 10 overwhelms a mean")

    def forged(self, honest: Tensor, hostile: int) -> Vec:
        return -self.strength * honest.mean(0)


ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {
        "sign_flip": SignFlip,
        "scaled": Scaled,
        "gaussian": Gaussian,
        "label_flip": LabelFlip,
        "alie": Alie,
        "ipm": InnerProduct,
    },
)
