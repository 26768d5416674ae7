"""Fixtures that are shared: processes, which take seconds to start."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from fedloom.engines import Engine, Serial, Workers
from tiny import Shared

# FEDLOOM_TEST_SEED=N draws everything anew: what passes for one seed only is no test
SEED = int(os.environ.get("FEDLOOM_TEST_SEED", "0"))

# a busy machine is no failure; the same examples every time, as long as no seed is asked for
settings.register_profile("fedloom", deadline=None, derandomize=SEED == 0)
settings.load_profile("fedloom")


def pytest_collection_finish() -> None:
    """Twelve thousand cases stay until the end: whoever looks for garbage need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Signals work in tests, also in a shell's background job, which begins with Ctrl-C switched
    off, and under nohup, which switches SIGHUP off.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run beside each other, and steps of new shapes are not computed with more threads to
    compare: tests of threads ask for them.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """No test, and no process that it starts, uses what was measured or told in another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", "")
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """No file of a test must outlive the machine, and forcing it to the disk takes longest. What is
    forced, and when, is tested with a disk that crashes (support/disk.py).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def _as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may see another's random state, or depend on the order of tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(request.node.nodeid.encode()) + SEED)
        yield


@pytest.fixture
def seed_zero(_as_it_was: None) -> None:
    """The same numbers whatever a test is called: for models that are made in it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def engine_of() -> Iterator[Callable[[str], Engine | str]]:
    """A function that gives a fresh engine by its name; those of workers share two processes, which
    do the shares of one, two or three workers: what a share is depends on their number alone.
    vectorised, which starts nothing, stays a name.
    """
    from loky import ProcessPoolExecutor

    pool: Any = None

    def make(name: str) -> Engine | str:
        nonlocal pool
        if name.startswith("vectorised"):
            return name
        if name == "serial":
            return Serial()
        first, _, chunk = name.partition("+vectorised:")
        if pool is None:
            one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            pool = ProcessPoolExecutor(max_workers=2, env=one)
        first, _, onednn = first.partition("+")
        number = int(first.removeprefix("workers:"))
        return Shared(pool, number, int(chunk) if chunk else None, bool(onednn))

    yield make
    if pool is not None:
        pool.shutdown(wait=True, kill_workers=True)


@pytest.fixture
def shared_workers(
    engine_of: Callable[[str], Engine | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that a run makes by their name use the processes of engine_of, too."""
    made = engine_of("workers:1")
    assert isinstance(made, Shared)
    monkeypatch.setattr(Workers, "_pool", made._pool, raising=False)
    monkeypatch.setattr(Workers, "_start", Shared._start)
    monkeypatch.setattr(Workers, "_end", Shared._end)


@pytest.fixture
def accounts_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of privacy, or a step, costs 0.5, without dp-accounting, which is an extra."""
    from fedloom.aggregation import discrete_gaussian, privacy
    from fedloom.federation import private_examples

    for module in (discrete_gaussian, privacy, private_examples):
        monkeypatch.setattr(module, "epsilon", lambda noise, share, delta, rounds: 0.5 * rounds)
    monkeypatch.setattr(privacy, "tight_epsilon", lambda *given: 0.4)
