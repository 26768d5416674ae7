"""The server's optimisers by name, and SAM at the clients, from the command line's side."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom import FedAvg, LocalSGD
from fedloom.algorithms import diloco, fedadagrad, fedadam, fedams, fedavgm, fedyogi
from fedloom.algorithms.more.diloco import DiLoCoSteps
from fedloom.config import resolve
from fedloom.errors import ConfigError
from fedloom.wrappers import (
    Average,
    Lookahead,
    Momentum,
    Nesterov,
    Sam,
    ServerAdagrad,
    ServerAdam,
    ServerAMSGrad,
    ServerOpt,
    ServerYogi,
)
from fedloom.wrappers.registry import SERVERS, with_server

TYPES = {
    "average": Average,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adagrad": ServerAdagrad,
    "adam": ServerAdam,
    "yogi": ServerYogi,
    "amsgrad": ServerAMSGrad,
}


def test_a_name_is_its_optimiser() -> None:
    assert [*SERVERS] == [*TYPES, "lookahead"]
    for name, kind in TYPES.items():
        made = with_server(FedAvg(), name, {})
        assert isinstance(made, ServerOpt)
        assert type(made.opt) is kind
    assert with_server(FedAvg(), "lookahead", {}) == Lookahead(inner=FedAvg())


def test_a_methods_defaults_are_its_optimisers() -> None:
    for make, kind in (
        (fedadagrad, ServerAdagrad),
        (fedadam, ServerAdam),
        (fedyogi, ServerYogi),
        (fedams, ServerAMSGrad),
        (fedavgm, Momentum),
    ):
        assert make() == ServerOpt(inner=LocalSGD(), opt=kind())
    assert diloco() == ServerOpt(inner=DiLoCoSteps(), opt=Nesterov())


def algorithm(*changes: str) -> Any:
    return resolve("digits", changes).experiment().algorithm


def test_a_server_is_named_on_the_command_line() -> None:
    got = algorithm("algorithm=scaffold", "server=adam", "server.lr=0.05")
    assert got.opt == ServerAdam(lr=0.05)
    assert got.inner.method == "Scaffold"
    assert algorithm("server=lookahead", "server.lam=0.7") == Lookahead(inner=FedAvg(), lam=0.7)
    assert algorithm("server=amsgrad", "server.option=2").opt == ServerAMSGrad(option=2)
    assert algorithm("algorithm=fedavg") == FedAvg()


def test_a_new_server_drops_the_options_of_the_old_one() -> None:
    got = algorithm("server=adam", "server.lr=0.05", "server=none")
    assert got == FedAvg()
    assert algorithm("server=adam", "server=momentum").opt == Momentum()


def test_a_configuration_says_what_the_server_does() -> None:
    config = resolve("digits", ["server=momentum", "server.beta=0.5"])
    assert config.values["server"] == {"name": "momentum", "lr": 1.0, "beta": 0.5}
    assert config.values["label"] == "FedAvg + momentum"
    assert "[server]" in config.to_toml()
    assert "server" not in resolve("digits").values


@pytest.mark.parametrize(
    ("method", "server", "words"),
    [
        ("fedadam", "adam", ["server 'adam'", "FedAdam's own server optimiser, adam"]),
        ("fedadam", "yogi", ["server 'yogi'", "FedAdam"]),
        ("fedams", "adagrad", ["FedAMS's own server optimiser, amsgrad"]),
        ("fedavgm", "momentum", ["FedAvgM's own server optimiser, momentum"]),
        ("fedadam", "average", []),
        ("fedadam", "lookahead", []),
        ("fedavgm", "adam", []),
        ("scaffold", "adam", []),
    ],
)
def test_an_optimiser_around_another_one_is_said_by_both_names(
    method: str, server: str, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    algorithm(f"algorithm={method}", f"server={server}")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(words)
    assert all(word in said[0] and "\n" not in said[0] for word in words)


def test_an_unknown_name_has_a_suggestion_in_python_too() -> None:
    with pytest.raises(ConfigError, match="unknown server 'adm'; did you mean 'adam'"):
        with_server(FedAvg(), "adm", {})


def test_sam_at_the_clients_is_outermost() -> None:
    plan = resolve("digits", ["local.sam=0.1", "local.clip=1.0", "local.momentum=0.5"])
    made = plan.experiment().plan().algorithm
    assert isinstance(made, Sam)
    assert made.rho == 0.1
    assert resolve("digits").experiment().plan().algorithm == FedAvg()
