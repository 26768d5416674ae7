"""Fixtures that are shared: processes, which take seconds to start."""

from __future__ import annotations

import collections
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from fedloom.engines import Engine, Serial
from tiny import Shared

# FEDLOOM_TEST_SEED=N draws everything anew: what passes for one seed only is no test
SEED = int(os.environ.get("FEDLOOM_TEST_SEED", "0"))

# a busy machine is no failure; the same examples every time, as long as no seed is asked for
settings.register_profile("fedloom", deadline=None, derandomize=SEED == 0)
settings.load_profile("fedloom")


# These take every method, part or mix through one check: the quick suite has every second case of
# each, and `make test-all` all of them.
HALVED = {
    "test_pairs::test_vectorised_agrees_with_serial_and_both_bills_are_true",
    "test_pairs::test_workers_have_the_bits_of_serial",
    "test_pairs::test_no_argument_is_changed_and_every_method_is_a_function",
    "test_holders::test_partial_cohorts_reach_the_minimiser_of_each_coordinates_holders",
    "test_hyperparameters::test_another_value_changes_the_run",
    "test_hyperparameters::test_the_same_values_give_the_same_run",
    "test_authors::test_methods_are_pure_and_the_engine_changes_nothing",
    "test_authors::test_an_option_changes_the_run",
    "test_engines::test_in_float32_vectorised_stays_within_the_documented_bound",
    "test_engines::test_the_loss_falls",
    "test_buffers::test_the_engine_has_the_bits_of_a_naive_loop",
    "test_downlink::test_every_engine_sends_and_bills_the_same",
    "test_feedback_conserves::test_every_method_conserves",
    "test_trial_methods::test_a_method_is_short_and_equal_in_two_engines",
    "test_codecs_in_runs::test_vectorised_agrees_with_serial",
    "test_codecs_in_runs::test_a_resumed_run_goes_on_with_its_residuals",
    "test_model_kinds::test_vectorised_agrees_with_serial_in_float64",
    "test_deployment::test_every_method",
    "test_bytes::test_the_ledger_is_the_sum_of_all_messages",
    "test_clock::test_engines_agree",
    "test_clock::test_resumed_is_uninterrupted",
    "test_device::test_every_part_of_every_axis_computes_what_it_does_on_the_cpu",
    "test_resume::test_extended_is_uninterrupted",
    "test_neutral::test_ratio_one_is_the_base_algorithm",
    "test_neutral::test_capacity_one_is_the_base_algorithm",
    "test_conservation::test_what_was_sent_and_what_is_kept_is_what_was_computed",
    "test_trial_methods::test_and_agrees_with_many_clients_at_once",
    "test_aggregation::test_many_clients_at_once_agree_with_one_after_another",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every second case of HALVED as slow."""
    seen: collections.Counter[str] = collections.Counter()
    for item in items:
        name = f"{item.path.stem}::{getattr(item, 'originalname', '')}"
        if name in HALVED and item.get_closest_marker("slow") is None:
            seen[name] += 1
            if not seen[name] % 2:
                item.add_marker(pytest.mark.slow)


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
def _nothing_remembered() -> Iterator[None]:
    """No test, and no process that it starts, uses what engine=auto measured in another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", "")
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
def engine_of() -> Iterator[Callable[[str], Engine]]:
    """A function that gives a fresh engine by its name; those of workers share two processes, which
    do the shares of one, two or three workers: what a share is depends on their number alone.
    """
    from loky import ProcessPoolExecutor

    pool: Any = None

    def make(name: str) -> Engine:
        nonlocal pool
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
def accounts_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of privacy costs 0.5, without dp-accounting, which is an extra."""
    from fedloom.aggregation import accounting, privacy

    for module in (accounting, privacy):
        monkeypatch.setattr(module, "epsilon", lambda noise, share, delta, rounds: 0.5 * rounds)
    monkeypatch.setattr(privacy, "tight_epsilon", lambda *given: 0.4)
