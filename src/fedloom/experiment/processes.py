"""What a run needs of the processes that compute it: its engine, its client states, and ranks that
are alike.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..core.device import device_of
from ..core.interrupts import stoppable
from ..core.net import Net
from ..core.ranks import Group
from ..data import FederatedData
from ..engines import (
    Auto,
    Choice,
    Ranks,
    Streams,
    Vectorised,
    Workers,
    choose_chunk,
    family_of,
    is_auto,
    make_engine,
    on_processes,
)
from ..engines.base import Engine
from ..errors import ConfigError
from ..federation.federation import Federation
from ..plan import Plan
from ..server.rounds import Run
from ..storage.client_state import ClientMemory, ClientStates
from ..storage.identity import flatten
from ..storage.rank_states import RankStates, check_shared
from ..storage.run_directory import RunDirectory
from .provenance import fingerprint, unmarked

_log = logging.getLogger(__name__)


def choose_engine(
    plan: Plan, fed: Federation, net: Net, clients: int, group: Group, name: str = "auto"
) -> Choice:
    """What is taken for "auto", or for "vectorised" or "streams" without a number, in rounds of so
    many clients: the same at all ranks.
    """

    def choose() -> Choice:
        parts = plan, fed, net, clients, group.size
        if is_auto(name):
            return family_of(*parts)
        return choose_chunk(*parts, Streams if name.endswith("streams") else Vectorised)

    return group.first(lambda: replace(choose(), setting=name))


def engine_for(requested: str | Engine, group: Group, largest: int, rounds: int) -> Engine:
    """The engine of a run. Several ranks share the clients out among them, and run this engine
    inside, each in one process. largest: how many clients a cohort has at most. Raises ConfigError.
    """
    engine = make_engine(requested) if isinstance(requested, str) else requested
    if isinstance(engine, Auto):
        engine.fit(largest, rounds)
        engine = engine if group.size == 1 else engine.inner
    if isinstance(engine, Ranks) and group.size == 1:
        _log.warning("engine = %s: torchrun started no other rank of this run", engine.text)
        engine = engine.inner
    if group.size > 1:
        engine = engine if isinstance(engine, Ranks) else Ranks(engine)
        engine.group = group
    if isinstance(engine, Workers | Ranks):
        engine.fit(largest)
    return engine


def device_for(name: str, engine: str | Engine, group: Group) -> torch.device:
    """The run's device; "auto" is the CPU if the engine uses processes. The ranks of a machine
    share its GPUs.
    """
    device = device_of("cpu" if name == "auto" and on_processes(engine) else name)
    if device.type == "cuda" and ":" not in name and group.size > 1:
        return device_of(f"cuda:{group.local % torch.cuda.device_count()}")
    return device


@contextmanager
def as_one(group: Group) -> Iterator[None]:
    """Inside, a signal to stop is one for all ranks."""
    if group.size == 1:
        yield
        return
    with stoppable(), group.together():
        yield


def check_bound(folder: RunDirectory | None, resident_bytes: int | None) -> None:
    """Raise ConfigError for a bound on client states in memory without a place for the others."""
    if folder is None and resident_bytes is not None:
        raise ConfigError(
            f"resident_bytes = {resident_bytes} keeps the other client states on disk, and this "
            "run has no folder: give run(out=...), or drop it"
        )


def states_for(
    engine: Engine,
    folder: Path | None,
    resident_bytes: int | None,
    device: torch.device,
    parts: bool,
) -> ClientStates:
    """Where client states are between rounds; folder: where they are on disk. parts: clients may
    hold a part of the model. Raises ConfigError if not all ranks see the folder.
    """
    if not isinstance(engine, Ranks):
        return ClientMemory(folder, resident_bytes, device, parts=parts)
    if folder is not None:
        check_shared(folder.parent, engine.group)
    memory = ClientMemory(folder, resident_bytes, device, f"r{engine.group.rank}-", parts)
    return RankStates(memory, engine.group, engine.cut, device)


def check_alike(group: Group, config: Mapping[str, Any], data: FederatedData, run: Run) -> None:
    """Raise ConfigError if the ranks of a run differ in versions, settings, data or model."""
    if group.size == 1:
        return
    entries: dict[str, Any] = {"fedloom": __version__, "torch": torch.__version__}
    entries |= flatten(unmarked(config, "~"))  # a function may hold its rank
    entries |= {f"the content of {k}": v for k, v in fingerprint(config, data, run).items()}
    ranks = group.gather({k: v for k, v in entries.items() if k != "device"})
    for rank, theirs in enumerate(ranks):
        keys = [k for k in {**ranks[0], **theirs} if ranks[0].get(k) != theirs.get(k)]
        if keys:
            values = [repr(one.get(keys[0])) for one in (ranks[0], theirs)]
            raise ConfigError(
                f"{keys[0]} is {values[0]} at rank 0 ({group.hosts[0]}) and {values[1]} at rank "
                f"{rank} ({group.hosts[rank]}): start torchrun with the same command, versions "
                "and data on every machine"
            )
