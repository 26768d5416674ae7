"""A round of a run once more has the bits of the run, whatever the run is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cases import CASES as KINDS
from fedloom import Checkpoint, Experiment, Local
from fedloom.aggregation import DifferentialPrivacy, NoiseFrom
from fedloom.algorithm import FedAvg
from fedloom.checks.tiny_federation import Trial
from fedloom.core.parsing import parse_json
from fedloom.core.vector import Rec, rec
from fedloom.errors import CheckpointError, ClientError, ConfigError
from fedloom.federation.attacks import SignFlip
from fedloom.objectives import MOON
from fedloom.stage import At, Download, LocalResult, Stage
from fedloom.storage.client_state import ClientMemory
from tiny import clusters, same, small

KEPT = Checkpoint(every_rounds=1, every_seconds=None, keep=99)


class Remember(Stage):
    """Keeps what a client has trained in its state, so that the run's own checkpoint has it."""

    name = "kept"

    def client_init(self, x: torch.Tensor, received: Download) -> Rec:
        return rec(delta=torch.zeros_like(received.msg.x), loss=0.0, steps=0.0)

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        steps = float(done.job.steps)
        return done, rec(delta=done.up.delta.clone(), loss=float(done.loss or 0.0), steps=steps)


def _kind(name: str = "scaffold", **changes: Any) -> Callable[[], Trial]:
    """A kind of run of tests/cases.py, all of whose checkpoints are kept."""
    return lambda: KINDS[name].make(**{"checkpoint": KEPT, "stages": [Remember()]} | changes)


CASES: dict[str, Callable[[], Trial]] = {
    "serial": _kind(),
    "asynchronous": _kind("late, scaffold"),
    "feedback": _kind("way down, both"),
    "workers": _kind("feddyn", engine="workers:2"),
    "vectorised": _kind("fafed", engine="vectorised:3"),
    "streams": _kind("fafed", engine="streams:3"),
    "vectorised, in one sum": _kind(engine="vectorised:3", stages=()),
    "a loss of a whole batch": _kind("fedavg", engine="vectorised:3", objective=MOON()),
    "client states of a loss": _kind("fedavg", objective=MOON()),
    "an exchange before the steps": _kind("mime"),
    "noise of the seed": _kind("dp"),
    "rows": _kind("median, label flip"),
    "widths": _kind("heterofl"),
    "masks": _kind("fiarse"),
    "private layers": _kind("FedPer"),
    "chosen by losses": _kind("power of choice"),
    "who is late": _kind("drop-out"),
}


@pytest.fixture(autouse=True)
def _without_accounts(accounts_at_hand: None) -> None:
    """dp-accounting is an extra."""


def content(folder: Path) -> dict[Path, bytes]:
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def states(run: Path, round: int) -> tuple[dict[int, Rec], dict[str, torch.Tensor]]:
    """Client states and the server's tensors as the run wrote them after a round."""
    folder, memory = run / "checkpoints" / f"{round:08d}", ClientMemory(run / "memory")
    memory.restore(parse_json((folder / "memory.json").read_text()))
    return memory.get(range(100)), load_file(folder / "state.safetensors")


def agree(make: Callable[[], Experiment], run: Path, round: int) -> int:
    """Replay a round, and all its clients -> how many were compared with the run's files."""
    then, server = states(run, round)
    with make().replay(run, round) as replay:
        replay.go()
        assert replay.unlike is None and not replay.error
        assert same(replay.run.state.buffers, server["buffers"])
        assert same(replay.after, server.get("srv/srv.x", replay.after))
        for i in replay.cohort:
            trace = replay.client(i, step=0)
            assert not trace.error and trace.sent is not None and trace.result is not None
            assert same(trace.sent.memory, then[i]), i
            assert same(trace.result.memories[i], replay.run.memory.get([i])[i]), i
            assert trace.trained is not None and len(trace.steps) == int(trace.trained.job.steps)
            losses = [s.loss for s in trace.steps if s.loss is not None]
            assert trace.trained.loss == pytest.approx(sum(losses) / len(losses), rel=1e-6)
            x, there = trace.points
            norm = float((there - x).norm())
            assert trace.steps[0].norm == norm > 0
        return len(replay.cohort)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
@pytest.mark.parametrize("name", CASES)
def test_clients_and_server_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    """From the newest checkpoint before the round, and from the beginning."""
    make, run = CASES[name], tmp_path / "run"
    make().run(run, progress=False)
    before, compared = content(run), 0
    for round in (1, 3):
        compared += agree(make, run, round)
    if name in ("serial", "asynchronous", "feedback"):
        for folder in (run / "checkpoints").iterdir():
            if folder.name in ("00000001", "00000002"):
                (folder / "manifest.json").rename(tmp_path / folder.name)
        compared += agree(make, run, 3)
        for folder in ("00000001", "00000002"):
            (tmp_path / folder).rename(run / "checkpoints" / folder / "manifest.json")
    assert compared and content(run) == before


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_the_update_is_the_way_from_the_message_to_the_last_point(
    engine: str, tmp_path: Path
) -> None:
    """Also where the sums write into an update that nobody else holds."""

    make = _kind("fedavg", engine=engine, stages=())
    make().run(tmp_path / "run", progress=False)
    with make().replay(tmp_path / "run", 2) as replay:
        replay.go()
        for i in replay.cohort:
            trace = replay.client(i)
            assert trace.trained is not None and trace.sent is not None
            assert torch.equal(trace.sent.up.delta, trace.trained.up.delta)
            way = trace.trained.x - trace.download.msg.x
            torch.testing.assert_close(trace.sent.up.delta.abs(), way.abs())
            assert float(trace.sent.up.weight) == float(replay.run.fed.data.sizes[i])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    CASES["serial"]().run(tmp_path / "run", progress=False)
    return tmp_path / "run"


def test_another_row_is_named(run: Path) -> None:
    with CASES["serial"]().replay(run, 4) as replay:
        replay.began = 0
        replay.rows[3] = replay.rows[3] | {"train_loss": 0.0, "lr": 5.0}
        replay.go()
        assert replay.unlike == (4, ["lr", "train_loss"])


def test_what_cannot_be_repeated_is_one_line(run: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], words: str, make: Any = CASES["serial"], round: int = 2):
        with pytest.raises(error, match=words) as result, make().replay(run, round) as replay:
            replay.go()
            replay.number("9")
        assert "\n" not in str(result.value)

    refused(ConfigError, "has not been run; it has 4 rounds$", round=5)
    refused(ConfigError, r"client 9 did not train in round 2; those that did: \d, \d, \d, \d$")
    refused(CheckpointError, "algorithm differ", CASES["workers"])
    for folder in (run / "checkpoints").iterdir():
        (folder / "memory.json").write_text("[]")
    refused(CheckpointError, "no checkpoint of")
    (tmp_path / "federation.toml").touch()
    refused(CheckpointError, "at the nodes, so that nobody can repeat")


class Secret(DifferentialPrivacy):
    """Noise that is not made from the seed, as in a deployment."""

    noise_from = NoiseFrom.SYSTEM


def test_secret_noise_is_a_reason_to_refuse(tmp_path: Path) -> None:
    make = _kind("dp", aggregation=Secret(clip=0.3, noise=0.4))
    make().run(tmp_path / "run", progress=False)
    again = make().replay(tmp_path / "run", 2)
    with pytest.raises(CheckpointError, match="its noise is drawn from no seed"), again:
        pass


def test_the_round_that_stopped_a_run_is_the_one_after_its_last_row(tmp_path: Path) -> None:
    """Its client is opened up to the step that failed."""

    make = _kind(local=Local(steps=4, batch=4, lr=3e38))
    run = tmp_path / "run"
    with pytest.raises(ClientError) as stopped:
        make().run(run, progress=False)
    assert not (run / "rounds.jsonl").exists()
    with make().replay(run, 1) as replay:
        replay.go()
        assert replay.error == str(stopped.value) and replay.row is None
        i = int(replay.error.partition("client ")[2].partition(",")[0])
        trace = replay.client(i)
        assert trace.error == replay.error and trace.sent is not None and trace.sent.why
        assert trace.steps[0].norm > 1e6
        result = replay.blame()
        assert result[0].why and replay.loss() is None


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_the_hostile_client_is_blamed(engine: str, tmp_path: Path) -> None:
    attack, data = SignFlip(share=0.125, strength=3.0), clusters(sizes=[12] * 8)
    parts = {"data": data, "cohort": 8, "attack": attack, "engine": engine, "seed": 3}
    make = lambda: small(FedAvg(), **parts)
    make().run(tmp_path / "run", progress=False)
    (bad,) = attack.hostile(8, 3)
    with make().replay(tmp_path / "run", 3) as replay:
        replay.go()
        result = replay.blame()
        whole = replay.loss()
    assert result[0].client == bad and result[0].cosine < 0
    assert result[0].loss is not None and whole is not None and result[0].loss < whole
    assert {b.client for b in result} == set(range(8))
