"""The folder of a federation: what `fedloom deploy new` writes, and all other commands read.

run.toml          the complete settings of the run
federation.toml   how the run is deployed (class Deployment)
clients.toml      the clients: public key, number of examples (clients.py)
certificates/     ca.pem; at the server also server.pem and, readable by its owner only, keys
app/              what Flower is given: three lines that name fedloom's two apps
nodes/3/          all that client 3 needs: the files above without the server's, and its key
run/              the run's own folder, at the server
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedloom.core.hyper import (
    NonNegative,
    NonNegativeInt,
    Part,
    Positive,
    PositiveInt,
    hyper,
)
from fedloom.core.parsing import read_toml
from fedloom.core.validation import Origin, check
from fedloom.errors import ConfigError
from fedloom.storage import world
from fedloom.storage.atomic import make_folder, reason, write_atomic

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Deployment(Part):
    """How a run is deployed: its name, where its server is, and when a round is over."""

    title: ClassVar[str] = "federation"
    run: str = hyper(meaning="name of the run, in every message")
    address: str = hyper("127.0.0.1", "of the server, as nodes reach it: a host's name or number")
    port: PositiveInt = hyper(9092, "of the server, for nodes; the only one that others may reach")
    local_port: PositiveInt = hyper(9093, "at the server's machine, for its own processes")
    startup_timeout: NonNegative = hyper(
        120.0, "seconds that the server waits for its nodes before round 1"
    )
    deadline: Positive = hyper(60.0, "seconds that an exchange with a cohort may take")
    min_updates: PositiveInt = hyper(1, "updates without which a round's clients are drawn again")
    redraws: NonNegativeInt = hyper(
        2, "other draws of a round, after which it changes nothing; none in a private run"
    )
    max_failed_rounds: PositiveInt = hyper(3, "such rounds in a row, after which the run stops")
    over_selection: NonNegative = hyper(
        0.0, "share of clients asked beyond the cohort; the answers with the lowest numbers count"
    )
    evaluate: Literal["server", "nodes", "nobody"] = hyper(
        "server",
        "who measures the model: the server on data of its own, the nodes on theirs, or nobody",
    )
    standardise: bool = hyper(
        False, "subtract the clients' common mean of each feature, divide by their deviation"
    )
    least_count: PositiveInt = hyper(
        10,
        "rows of which a site's description, and its reliability curve, tell nothing if they are "
        "fewer; each site's own file counts",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _NAME.fullmatch(self.run):
            raise ConfigError(
                f"run must be a name of at most 64 letters, digits, dots and dashes, got "
                f"{self.run[:70]!r}"
            )
        if not self.address or any(c.isspace() or c in "/:\"'" for c in self.address):
            raise ConfigError(f"address must be a host's name or number, got {self.address!r}")
        if max(self.port, self.local_port) > 65535 or self.port == self.local_port:
            raise ConfigError(
                f"port and local_port must be two numbers up to 65535, got {self.port} and "
                f"{self.local_port}"
            )


def evaluation(by: str, rounds: int) -> str:
    """What is said of a model that nodes measure, or nobody; empty where the server does. by: of
    federation.toml. Halving an interval once a round needs no more than a count of right answers;
    float32 has 24 bits.
    """
    if by == "nobody":
        return (
            "no evaluation: federation.toml says evaluate = nobody; with rows at the server take "
            "server, or nodes at every place"
        )
    fraction = max(0.5**rounds, 0.5**24)
    text = f"{rounds} rounds of models that the server chooses tell labels of test rows, and any "
    text += f"one value to about {fraction:.0e} of its range"
    return f"evaluate = nodes: {text}" if by == "nodes" else ""


def deployment_of(settings: Mapping[str, Any], source: str) -> Deployment:
    """Checked settings; source: where they come from, for errors. Raises ConfigError."""
    origin = Origin(source)
    values = check(Deployment, settings, "", "the federation", origin)
    with origin.blame(""):
        return Deployment(**values)


class _Inside:
    """The path of something in a federation's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Folder, kind: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class Folder:
    """A federation's folder. client: None at the server."""

    path: Path
    client: int | None = None

    run_file = _Inside("run.toml")  # the settings of the run
    clients_file = _Inside("clients.toml")
    settings_file = _Inside("federation.toml")  # how the run is deployed
    agreement_file = _Inside("agreed.json")  # what server and nodes agreed on before round 1
    # at a site: the description that its people agreed to tell; at the server: all sites'
    description_file = _Inside("told.json")
    # at the server
    run = _Inside("run")  # the run's folder
    app = _Inside("app")  # what Flower is given
    home = _Inside("flower")  # where Flower's programs keep their files
    starts_file = _Inside("starts")  # the number of its last start

    @property
    def link(self) -> Folder:
        """Where the certificate is that Flower's server shows to processes of its machine."""
        return Folder(self.home / "link")

    def attendance(self, private: bool) -> Path:
        """Who was asked and who answered, round by round; of a private run it is a secret."""
        return (self.path / "secret" if private else self.run) / "clients.jsonl"

    def certificate(self, name: str) -> Path:
        """A certificate, "ca" or "server"."""
        return self.path / "certificates" / f"{name}.pem"

    def secret(self, name: str) -> Path:
        """A private key: "ca", "server", or a node's "node"."""
        return self.path / "secret" / name

    def node(self, client: int) -> Folder:
        """The folder of a client: inside of the server's, or this one if it was handed over."""
        inside = self.path / "nodes" / str(client)
        return Folder(inside if inside.is_dir() else self.path, client)

    def node_to_be(self, client: int) -> Folder:
        """The same, before it is there."""
        return Folder(self.path / "nodes" / str(client), client)

    def settings(self) -> Deployment:
        """How the run is deployed. Raises ConfigError."""
        if not self.settings_file.is_file():
            raise ConfigError(
                f"'{self.path}' is no folder of a federation: it has no federation.toml; make one "
                "with `fedloom deploy new my.toml --out fed`"
            )
        return deployment_of(read_toml(self.settings_file), f"file '{self.settings_file}'")


def owned(path: str, flags: int) -> int:
    """Open a file; a new one can be read by its owner only."""
    return os.open(path, flags, 0o600)


def write_secret(path: Path, raw: bytes) -> None:
    """Write a file that only its owner can read. Raises ConfigError."""
    part = path.with_name(f".{path.name}.part")
    try:
        make_folder(path.parent, 0o700)
        world.unlink(part)  # of a process that was killed; what others made is not opened
        world.write(part, raw, lambda name, flags: owned(name, flags | os.O_EXCL))
        world.sync(part)
        world.replace(part, path)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written: {reason(error)}") from None


def check_secret(path: Path) -> None:
    """Raise ConfigError for a private key that is missing, or that others can read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"the key '{path}' cannot be read: {reason(error)}; copy it from where the federation "
            "was made, over a channel that nobody else can read"
        ) from None
    if mode & 0o077:
        raise ConfigError(
            f"the key '{path}' can be read by others (mode {mode & 0o777:o}); chmod 600 '{path}'"
        )


def write(path: Path, text: str) -> None:
    """Write a text. Raises ConfigError."""
    try:
        make_folder(path.parent)
        write_atomic(path, text)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written: {reason(error)}") from None
