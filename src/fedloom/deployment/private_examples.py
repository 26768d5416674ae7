"""local.dp at a node: batches and noise that nobody can make again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..federation.federation import Federation
from ..federation.private_examples import ExamplePrivacy, Normals
from ..storage import world
from .privacy import system_normals


class SystemExamples(ExamplePrivacy):
    """The same with draws of the operating system's generator, which are never written down. The
    batches must be secret too: the accounts rely on nobody knowing who is in them.
    """

    unkeyed = True

    def uniforms(self, seed: int, round: int, client: int) -> Callable[[int], Tensor]:
        return system_uniforms

    def normals(self, seed: int, round: int, client: int) -> Normals:
        return system_normals


def system_uniforms(count: int) -> Tensor:
    """Numbers in [0, 1), float64, of the system's generator."""
    whole = np.frombuffer(world.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(whole.astype(np.float64) * 2.0**-53)


def with_system_draws(fed: Federation) -> Federation:
    """A node's federation with the system's draws, if it has local.dp."""
    dp = fed.local.dp
    if dp is None:
        return fed
    given = {f.name: getattr(dp, f.name) for f in dataclasses.fields(dp)}
    local = dataclasses.replace(fed.local, dp=SystemExamples(**given))
    return dataclasses.replace(fed, local=local)
