"""The federation: which client trains on which data, how much, and with which randomness."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.parsing import shortened
from ..core.rng import generator, key, substream
from ..data import FederatedData
from ..data.clients import ClientNumbers
from ..errors import AuthorError, ConfigError, DataError
from .attacks import Attack
from .devices import Devices
from .local import Local
from .passes import Pass, Passes

MOST_STEPS = 10_000_000  # of a client in a round: the size of each step's batch is kept

# outputs, targets -> one value per example (B,), or the batch's mean as a scalar
Metric = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Federation:
    """Which client trains on which data, how much, and with which randomness. Batches are made on
    demand.

    channels_last: images go to the model in that memory format, which is faster for convolutions
    and pooling (a quarter off a step of FAFED's small network on a CPU). weighting: of client
    updates in the mean, "examples", "uniform", or a tuple of one weight per client. devices: how
    fast the clients are; None: time is not simulated. attack: what hostile clients do; None: there
    are none.
    """

    data: FederatedData
    local: Local
    seed: int = 0
    weighting: str | Sequence[float] = "examples"
    metrics: dict[str, Metric] = field(default_factory=dict)
    channels_last: bool = False
    capacities: Sequence[float] = ()
    devices: Devices | None = None
    attack: Attack | None = None

    def __post_init__(self) -> None:
        if self.capacities and len(self.capacities) != self.data.population:
            raise ConfigError(
                f"{len(self.capacities)} capacities are given for {self.data.population} clients; "
                "give one for each"
            )
        self._check_lists()
        if self.local.seconds is not None and self.devices is None:
            raise ConfigError(
                f"local.seconds = {self.local.seconds:g} needs to know how fast the clients are; "
                "give devices, such as devices=lognormal, or drop it"
            )
        batch = self.local.batch
        if self.local.drop_last and batch is not None:
            sizes = self.data.sizes
            if int(sizes.min()) < batch:
                i = int(sizes.argmin())
                raise DataError(
                    f"client {i} has {int(sizes[i])} samples, fewer than local.batch = {batch} "
                    "with drop_last: it would never train; use drop_last = false or a smaller batch"
                )

    def _check_lists(self) -> None:
        weights = () if isinstance(self.weighting, str) else self.weighting
        if bad := [weight for weight in weights if not weight > 0]:
            raise ConfigError(f"weighting must be a list of numbers above 0, got {bad[0]!r}")
        by_client = {"local.steps": self.local.steps, "local.lr_by_client": self._factors}
        for name, value in ({"weighting": self.weighting} | by_client).items():
            if isinstance(value, tuple) and value and len(value) != self.population:
                raise ConfigError(
                    f"{name} has {len(value)} numbers for {self.population} clients; give one for "
                    "each"
                )

    @functools.cached_property
    def speeds(self) -> list[float]:
        """Local steps per second of every client; empty if time is not simulated."""
        return self.devices.speeds(self.population, self.seed) if self.devices else []

    @functools.cached_property
    def _sizes(self) -> Any:
        return self.data.sizes.numpy()  # indexing a tensor costs ten times as much

    @functools.cached_property
    def _offsets(self) -> Any:
        return self.data.clients.offsets.numpy()

    @functools.cached_property
    def population(self) -> int:
        """N, the number of clients."""
        return self.data.population

    @functools.cached_property
    def hostile(self) -> frozenset[int]:
        """The clients that mean harm."""
        if self.attack is None:
            return frozenset()
        return self.attack.hostile(self.population, self.seed, self.data.client_names)

    @functools.cached_property
    def forges(self) -> bool:
        """True if hostile updates are made of the honest ones of their round."""
        return self.attack is not None and self.attack.omniscient and bool(self.hostile)

    def capacity(self, client: int) -> float:
        """The share of the model that a client can hold."""
        return self.capacities[client] if self.capacities else 1.0

    @functools.cached_property
    def parted(self) -> bool:
        """True if some clients hold only a part of the model."""
        return any(capacity != 1 for capacity in self.capacities)

    def weight(self, client: int) -> float:
        """The aggregation weight of a client update."""
        if isinstance(self.weighting, str):
            return float(self._sizes[client]) if self.weighting == "examples" else 1.0
        return float(self.weighting[client])

    def relative_size(self, client: int) -> float:
        """n_i N / sum of all n: a client's number of examples over the mean of all clients'."""
        return float(self._sizes[client]) / self._mean_size

    def relative_weight(self, client: int) -> float:
        """w_i N / sum of all w: a client's aggregation weight over the mean of all clients'."""
        return self.relative(self.weight(client))

    def relative(self, weight: float) -> float:
        """An aggregation weight over the mean of all clients'; 1.0 exactly where all are equal."""
        return weight * self.population / self.all_weights if self.unequal else 1.0

    @functools.cached_property
    def unequal(self) -> bool:
        """True if aggregation weights differ from client to client."""
        if self.weighting == "uniform":
            return False
        weights = self._sizes if isinstance(self.weighting, str) else self.weighting
        return bool(np.min(weights) != np.max(weights))

    @functools.cached_property
    def all_weights(self) -> float:
        """The sum of all clients' aggregation weights."""
        if isinstance(self.weighting, str):
            return float(self._sizes.sum() if self.weighting == "examples" else self.population)
        return math.fsum(self.weighting)

    @functools.cached_property
    def _mean_size(self) -> float:
        return float(self._sizes.mean())

    @functools.cached_property
    def _works(self) -> dict[int, _Work]:
        return {}

    def _work(self, client: int) -> _Work:
        """A client's work in every round, computed on first use."""
        work = self._works.get(client)
        if work is None:
            n = int(self._sizes[client])
            size = min(self.local.batch or n, n)
            whole = self.local.drop_last or self.local.order == "text"
            per_epoch = n // size if whole else -(-n // size)
            steps = self._steps(client, per_epoch)
            if steps > MOST_STEPS:
                raise ConfigError(
                    f"client {client} has {shortened(str(steps))} local steps in a round, and the "
                    f"most are {MOST_STEPS}; take a smaller local.epochs or local.steps"
                )
            work = _Work(size, per_epoch, steps, _sizes(n, size, per_epoch, steps))
            self._works[client] = work
        return work

    def _steps(self, client: int, per_epoch: int) -> int:
        epochs, setting = self.local.work
        steps = setting[client] if isinstance(setting, Sequence) else setting
        if epochs is not None:
            steps = max(1, math.floor(epochs * per_epoch + 0.5))
        if self.local.seconds is None:
            assert steps is not None
            return steps
        possible = max(1, math.floor(self.local.seconds * self.speeds[client] * (1 + 1e-12)))
        return possible if steps is None else min(steps, possible)

    def steps(self, client: int) -> int:
        """K_i: whole steps, at least one. A fraction of an epoch is rounded to the nearest number
        of steps, and local.seconds limits it to what the device can do.
        """
        return self._work(client).steps

    def duration(self, client: int, steps: int, bytes_down: int, bytes_up: int) -> float:
        """Simulated seconds of a client's round: its steps and its messages."""
        assert self.devices is not None
        return steps / self.speeds[client] + self.devices.travel(bytes_down, bytes_up)

    def sizes(self, client: int, steps_done: int = 0) -> tuple[int, ...]:
        """The batch sizes of a client's local steps in a round. steps_done: see order()."""
        work = self._work(client)
        if not steps_done % work.per_epoch:
            return work.sizes
        offset, n = steps_done % work.per_epoch, int(self._sizes[client])
        return _sizes(n, work.size, work.per_epoch, offset + work.steps)[offset:]

    @functools.cached_property
    def _source(self) -> torch.Generator:
        return torch.Generator()  # one for all clients: a new one costs as much as their order

    def order(self, client: int, round: int, steps_done: int = 0) -> Tensor:
        """The indices (sum of the sizes,) of a client's batches of a round in a row, on the CPU:
        shuffled again in each pass over its data, or (order "text", passes) continued from the last
        round. steps_done: with passes that go on, the client's steps before this round.
        """
        first, end = int(self._offsets[client]), int(self._offsets[client + 1])
        rows = self.data.clients.indices[first:end]
        if isinstance(self.local.passes, Passes):
            return rows.index_select(0, self._resumed(self.local.passes, client, steps_done))
        source = self._source.manual_seed(key(self.seed, "batches", round, client))
        size, per_epoch, todo, _ = self._work(client)
        if self.local.order == "text":
            places = torch.arange(todo) + self.first(client, round)
            streams = rows[: size * per_epoch].view(size, per_epoch)
            return streams[:, places % per_epoch].t().reshape(-1)
        passes, rest = divmod(todo, per_epoch)
        out: list[Tensor] = []
        for steps in [per_epoch] * passes + [rest] * (rest > 0):
            order = rows.index_select(0, torch.randperm(end - first, generator=source))
            out.append(order if steps * size >= len(order) else order[: steps * size])
        return out[0] if len(out) == 1 else torch.cat(out)

    def _resumed(self, passes: Passes, client: int, steps_done: int) -> Tensor:
        """The places (sum of the sizes,) in a client's list, from its step `steps_done` on."""
        size, per_epoch, todo, _ = self._work(client)
        out: list[Tensor] = []
        number, position = divmod(steps_done, per_epoch)
        while todo:
            steps = min(per_epoch - position, todo)
            order = passes.order(Pass(self.seed, client, number, *self._all_work))
            n = int(self._sizes[client])
            if order.dtype != torch.int64 or not torch.equal(order.sort().values, torch.arange(n)):
                raise AuthorError(
                    f"{passes.name}.order() must give every number from 0 to {n - 1} once, as "
                    f"torch.randperm({n}) does, and gives {shortened(str(order.tolist()))} for "
                    f"pass {number} of client {client}"
                )
            out.append(order[position * size : (position + steps) * size])
            number, position, todo = number + 1, 0, todo - steps
        return torch.cat(out)

    @functools.cached_property
    def _all_work(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Of every client: examples, batches in a pass, steps of a round."""
        works = list(map(self._work, range(self.population)))
        return self._sizes.tolist(), [w.per_epoch for w in works], [w.steps for w in works]

    def first(self, client: int, round: int) -> int:
        """The place of a client's first batch of a round in its pass, with order "text"."""
        work = self._work(client)
        return round * work.steps % work.per_epoch

    def pass_of(self, client: int) -> tuple[int, int]:
        """The size of a client's full batch, and the number of batches in a pass over its data."""
        work = self._work(client)
        return work.size, work.per_epoch

    def example_share(self, client: int) -> float:
        """The size of a client's full batch over its number of examples: q of DP-SGD."""
        return self._work(client).size / int(self._sizes[client])

    @functools.cached_property
    def _factors(self) -> Sequence[float]:
        rates, setting = self.local.lr_by_client, "local.lr_by_client"
        if not isinstance(rates, Mapping):
            return rates
        numbers = ClientNumbers(self.data.client_names, self.population).all_of([*rates], setting)
        factors = dict(zip(numbers, rates.values(), strict=True))
        return [factors.get(i, 1.0) for i in range(self.population)]

    def rate_factor(self, client: int) -> float:
        """What a client's local rates are multiplied with."""
        return float(self._factors[client]) if self._factors else 1.0

    def pace(self, client: int) -> int:
        """Steps of a pass over a client's data, if its rates depend on it; else 0."""
        return self._work(client).per_epoch if self._by_epoch else 0

    @functools.cached_property
    def _by_epoch(self) -> bool:
        return self.local.by_epoch

    def batches(self, client: int, round: int, steps_done: int = 0) -> Sequence[Tensor]:
        """The indices (B,) of every local step of a client in a round, on the data's device. With
        local.dp they are drawn anew by every call where the draws are the system's. steps_done: see
        order().
        """
        if self.local.dp is not None:
            rows, device = self.data.clients.of(client), self.data.inputs.device
            keys = self.seed, round, client
            steps, rate = self.steps(client), self.example_share(client)
            return [i.to(device) for i in self.local.dp.batches(rows, rate, steps, *keys)]
        # all at once, not step by step
        order = self.order(client, round, steps_done).to(self.data.inputs.device)
        sizes = self.sizes(client, steps_done)
        return (order,) if len(sizes) == 1 else order.split_with_sizes(sizes)

    def probe_batch(self, client: int) -> Tensor:
        """The indices (B,) of a client's batch in the exchange before round 1."""
        rows, size = self.data.clients.of(client), self.local.probe_batch or self.local.batch
        order = torch.randperm(len(rows), generator=generator(self.seed, "probe", client))
        return rows[order[: size or len(rows)]]

    def batch(self, index: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and targets (B, ...) of these samples, as the model gets them; with draws
        (of `draws`) the inputs are augmented. The indices may be on the CPU.
        """
        index = index.to(self.data.inputs.device)
        inputs = self.data.ready(self.data.inputs.index_select(0, index), draws)
        return self.formatted(inputs), self.data.targets.index_select(0, index)

    def draws(self, client: int, round: int, step: int, count: int) -> Tensor | None:
        """Random numbers that augment the batch of a local step, (count, numbers per sample) in [0,
        1), float64; None if nothing is random.
        """
        transform = self.data.transform
        if transform is None or not transform.draws:
            return None
        seed = substream(key(self.seed, "augment", round, client), step)
        source = torch.Generator().manual_seed(seed)
        return torch.rand(count, transform.draws, generator=source, dtype=torch.float64)

    def trial(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """A batch of these samples as a local step gets it, augmented, to look at before the run.
        Every batch of this size has the same random numbers.
        """
        return self.batch(index, self.draws(0, 0, 0, len(index)))

    def formatted(self, inputs: Tensor) -> Tensor:
        """Inputs in the memory format that the model gets."""
        return inputs.to(memory_format=torch.channels_last) if self.channels_last else inputs

    def cost(self, client: int) -> float:
        """Number of examples that a client trains on in a round, to balance ranges of a cohort."""
        work = self._work(client)
        return float(work.steps * work.size)


class _Work(NamedTuple):
    """A client's work in a round: size of a full batch, batches in a pass, steps, their sizes."""

    size: int
    per_epoch: int
    steps: int
    sizes: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _sizes(n: int, size: int, per_epoch: int, steps: int) -> tuple[int, ...]:
    """Batch sizes of this many steps: full ones, and the shorter last one of a pass."""
    one = [min(size, n - k * size) for k in range(per_epoch)]
    return tuple((one * (-(-steps // per_epoch)))[:steps])
