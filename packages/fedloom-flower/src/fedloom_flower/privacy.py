"""Differential privacy in a deployment: noise and cohorts that nobody can make again."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.aggregation import NoiseFrom
from fedloom.aggregation.discrete_gaussian import DiscreteGaussian, Words
from fedloom.aggregation.privacy import DifferentialPrivacy
from fedloom.errors import ConfigError
from fedloom.experiment.experiment import Experiment
from fedloom.federation.private_examples import ExamplePrivacy, Normals
from fedloom.federation.sampling import ClientSampler
from fedloom.storage import world

from .folder import Folder, check_secret, write_secret

P = TypeVar("P")


class SystemNoise(DifferentialPrivacy):
    """The same with noise from the operating system's generator, drawn once and never written down.
    torch's generators have 2^32 beginnings: whoever tries them all could take off their noise.
    """

    noise_from = NoiseFrom.SYSTEM

    @property
    def name(self) -> str:
        return DifferentialPrivacy.__name__

    def normals(self, seed: int, round: int) -> Callable[[torch.Size, torch.dtype], Tensor]:
        return system_normals


class SystemDiscreteGaussian(DiscreteGaussian):
    """A client's noise from the operating system's generator."""

    noise_from = NoiseFrom.SYSTEM

    @property
    def name(self) -> str:
        return DiscreteGaussian.__name__

    def words(self, seed: int, round: int, client: int) -> Words:
        return lambda n: np.frombuffer(world.urandom(8 * n), dtype=np.uint64)


class SystemExamples(ExamplePrivacy):
    """The privacy of examples with draws of the operating system's generator. The batches must be
    secret too: the accounts rely on nobody knowing who is in them.
    """

    unkeyed = True

    def uniforms(self, seed: int, round: int, client: int) -> Callable[[int], Tensor]:
        return lambda count: torch.from_numpy(system_uniforms(count))

    def normals(self, seed: int, round: int, client: int) -> Normals:
        return system_normals


def at_node(run: Experiment) -> Experiment:
    """A node's run with the system's draws, if it has local.dp or its aggregation noise of
    clients.
    """
    if isinstance(aggregation := run._aggregation, DiscreteGaussian):
        run = dataclasses.replace(run, aggregation=_convert(SystemDiscreteGaussian, aggregation))
    if run.local.dp is not None:
        local = dataclasses.replace(run.local, dp=_convert(SystemExamples, run.local.dp))
        run = dataclasses.replace(run, local=local)
    return run


def _convert(kind: type[P], part: Any) -> P:
    return kind(**{f.name: getattr(part, f.name) for f in dataclasses.fields(part)})


def system_uniforms(count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) of the system's generator."""
    whole = np.frombuffer(world.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return whole.astype(np.float64) * 2.0**-53


def system_normals(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Normal numbers of the system's generator (Box and Muller)."""
    count = shape.numel()
    half = (count + 1) // 2
    uniform = system_uniforms(2 * half) + 2.0**-54
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normals).to(dtype).reshape(shape)


_SECRET = 32  # bytes, of the operating system's generator


@dataclass(frozen=True)
class SecretClientSampler(ClientSampler):
    """Poisson cohorts from a secret of 32 bytes instead of the run's public seed.

    A client takes part if keyed BLAKE2b of (round, attempt, client), a number below 2^64, is below
    q 2^64. So all 256 bits of the secret count; torch's generators take 32 of a seed. The same
    secret gives the same cohorts, as a run that is resumed needs it.
    """

    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling != "poisson" or isinstance(self.size, Sequence):
            raise ConfigError(
                f"secret cohorts need sampling = poisson and a share or a number of clients, got "
                f"{self.sampling} and cohort = {self.size}"
            )
        if len(self.secret) != _SECRET:
            raise ConfigError(f"the secret has {len(self.secret)} bytes, and needs {_SECRET} bytes")

    def of(self, round: int, now: float = 0.0, attempt: int = 0) -> list[int]:
        limit = self.share * 2.0**64
        return [i for i in self.present(round, now) if self._uniform(round, attempt, i) < limit]

    def order(self, there: Sequence[int], round: int, attempt: int = 0) -> Iterator[int]:
        # of fixed sampling and of an asynchronous clock, which no secret cohorts go with
        raise NotImplementedError("the public seed would tell this order")

    def _uniform(self, *numbers: int) -> int:
        """A uniform number below 2^64 for a round, an attempt and a client."""
        message = b"".join(number.to_bytes(8, "little") for number in numbers)
        digest = hashlib.blake2b(message, key=self.secret, digest_size=8).digest()
        return int.from_bytes(digest, "little")


def deployed(experiment: Experiment, fed: Folder) -> Experiment:
    """A run whose aggregation is private, with the system's noise, and cohorts drawn from a secret
    that is kept in the folder. Raises ConfigError.
    """
    aggregation = experiment._aggregation
    if not isinstance(aggregation, DifferentialPrivacy):
        return experiment
    experiment = dataclasses.replace(experiment, aggregation=_convert(SystemNoise, aggregation))
    experiment._cohorts = SecretClientSampler(
        experiment.cohort,
        experiment.data.population,
        sampling=experiment.sampling,
        churn=experiment.churn,
        secret=_secret(fed),
    )
    return experiment


def _secret(fed: Folder) -> bytes:
    """What the cohorts of this run are drawn from; another run has another one. Raises
    ConfigError.
    """
    path = fed.secret("cohorts")
    if not (fed.run / "config.toml").is_file() or not path.exists():
        write_secret(path, secrets.token_bytes(_SECRET).hex().encode())
        fed.attendance(private=True).unlink(missing_ok=True)  # of a run before
    check_secret(path)
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        secret = b""
    if len(secret) != _SECRET:
        raise ConfigError(
            f"'{path}' is damaged, or of an earlier version whose secrets were too short; delete "
            "it: the cohorts of the next rounds are then drawn from a new secret"
        )
    return secret
