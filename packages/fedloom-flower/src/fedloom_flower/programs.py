"""Flower's programs, as fedloom starts them: which, with what, and where their files are."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedloom.core.extras import install
from fedloom.errors import ConfigError
from fedloom.storage.atomic import reason

from .certificates import days_left, make_authority
from .children import FlowerError, Program
from .flower_app.superlink import OPERATOR
from .folder import Folder, check_secret, write_secret

# a node that says this will not connect again by itself, though it stays alive; and why
GAVE_UP = {
    # as it says when the server refuses its key while it runs, for ever and without a reason
    "Run transitioned to a non-`RUNNING` status while receiving a message|"
    "error '403 Forbidden' for url '.*/(pull-messages|send-node-heartbeat)'": (
        "the server takes no messages of this site any more: it was taken out of the federation, "
        "or has another key in the server's clients.toml; ask who runs the server"
    ),
    "Giving up reconnection|SSL/TLS handshake error detected|"
    r"ERROR\s*(\x1b\[0m)?:\s+(Server|Client) error '": "",
}
# of Flower: at a node's port these give a task only to who knows a secret; another one may not
PROTECTED = ("1.41", "1.42")
_SECONDS = 60  # for a command that asks the server
_START = 180  # for the server's own start, which takes a minute on a busy machine


def program(name: str) -> str:
    """The path of a program of Flower. Raises ConfigError if it is not installed."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise ConfigError(f"'{name}' is missing beside {sys.executable}; {install('flower')}")
    return str(path)


def environment(fed: Folder) -> dict[str, str]:
    """The environment of Flower's programs: their files are in the federation's folder, they call
    nobody, install nothing, and reach each other past a proxy of the machine's.
    """
    no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    direct = ",".join(filter(None, [no_proxy, "127.0.0.1,localhost,::1"]))
    programs = str(Path(sys.executable).parent)
    return os.environ | {
        "FLWR_HOME": str(fed.home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def link(fed: Folder) -> Program:
    """Flower's server, which passes messages on. It obeys whoever has the token of this start,
    which its operator alone can read. Raises ConfigError.
    """
    settings = fed.settings()
    for name in ("server", "ca"):
        if not fed.certificate(name).is_file():
            raise ConfigError(f"'{fed.certificate(name)}' is missing; copy it from its backup")
    check_secret(fed.secret("server"))
    _check_valid(fed)
    for name in ("port", "local_port"):
        check_free(name, getattr(settings, name))
    fed.home.mkdir(mode=0o700, exist_ok=True)
    program("flwr-serverapp")
    make_authority(fed.link, "127.0.0.1")  # so that another server.pem needs no new start
    write_secret(fed.link.secret("operator"), secrets.token_urlsafe(32).encode())
    command = [sys.executable, "-m", "fedloom_flower.flower_app.superlink", str(fed.path)]
    variables = {"FLWR_DATABASE": str(fed.home / "state.db"), "FLWR_OIDC_ENABLED": "0"}
    return Program(command, fed.home / "server.log", environment(fed) | variables)


def server_executor(fed: Folder) -> Program:
    """What starts a run's process at the server, with the token of the link's start."""
    command = [sys.executable, "-m", "fedloom_flower.flower_app.executor", "server"]
    command += [f"127.0.0.1:{fed.settings().local_port}", str(fed.link.secret("operator"))]
    command += [str(fed.link.certificate("ca"))]
    return Program(command, fed.home / "server.log", environment(fed))


def _check_valid(fed: Folder) -> None:
    """Raise ConfigError if the server's certificate has expired, which Flower does not say."""
    if (left := days_left(fed.certificate("server"))) < 0:
        raise ConfigError(
            f"the certificate '{fed.certificate('server')}' expired {-left} days ago, and no node "
            f"accepts it; make another one: fedloom deploy renew {fed.path}"
        )


def node(fed: Folder, scratch: Path) -> list[Program]:
    """A node's connection to the server, which hands what comes to the socket in `scratch`, a
    folder for sockets and secrets. Raises ConfigError.
    """
    settings, port, supernode = fed.settings(), _free_port(), program("flower-supernode")
    installed = version("flwr")
    if ".".join(installed.split(".")[:2]) not in PROTECTED:
        raise ConfigError(
            f"other accounts of this machine could act as client {fed.client}: Flower {installed} "
            f"is installed, and {' and '.join(PROTECTED)} ask for a secret; {install('flower')}"
        )
    check_secret(fed.secret("node"))
    if not fed.certificate("ca").is_file():
        raise ConfigError(f"'{fed.certificate('ca')}' is missing; ask who runs the server for it")
    fed.home.mkdir(mode=0o700, exist_ok=True)
    command = [supernode, "--superlink", f"{settings.address}:{settings.port}"]
    command += ["--root-certificates", str(fed.certificate("ca"))]
    command += ["--auth-supernode-private-key", str(fed.secret("node"))]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--node-config", f'socket="{scratch / "socket"}"']
    variables, log, local = environment(fed), fed.path / "node.log", Folder(scratch)
    make_authority(local, "127.0.0.1")
    write_secret(secret := local.secret("executor"), secrets.token_bytes(32))
    check_secret(secret)
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    command += ["--ssl-certfile", str(local.certificate("server"))]
    command += ["--ssl-keyfile", str(local.secret("server"))]
    command += ["--ssl-ca-certfile", str(local.certificate("ca"))]
    executor = [sys.executable, "-m", "fedloom_flower.flower_app.executor", "node"]
    executor += [f"127.0.0.1:{port}", str(secret), str(local.certificate("ca"))]
    return [Program(executor, log, variables), Program(command, log, variables, GAVE_UP)]


def check_free(name: str, port: int) -> None:
    """Raise ConfigError if another program keeps a port."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(
            f"federation.{name} = {port} cannot be had: {reason(error)}; end the program that has "
            f"it, or set {name} in federation.toml here and at every node"
        ) from None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_flwr(fed: Folder, *words: str) -> Any:
    """What the command flwr answers, as JSON. Raises FlowerError."""
    token_file = fed.link.secret("operator")
    token = token_file.read_text(encoding="ascii") if token_file.is_file() else "none"
    connection = (
        '[superlink]\ndefault = "federation"\n\n[superlink.federation]\n'
        f'address = "{OPERATOR}:{token}@127.0.0.1:{fed.settings().local_port}"\n'
        f'root-certificates = "{fed.link.certificate("ca")}"\n'
    )
    write_secret(fed.home / "config.toml", connection.encode())
    advice = (
        f"the server of '{fed.path}' does not answer; start it with `fedloom deploy server "
        f"{fed.path}`"
    )
    if not fed.link.certificate("ca").is_file():  # it was never started
        _check_valid(fed)
        raise FlowerError(advice)
    command = [program("flwr"), *words, "--format", "json"]
    try:
        process = subprocess.run(
            command, env=environment(fed), capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise FlowerError(advice) from None
    try:
        reply = json.loads(process.stdout)
    except ValueError:
        reply = {"error-message": f"{process.stdout} {process.stderr}"}
    if process.returncode or not reply.get("success", True):
        text = " ".join(str(reply.get("error-message", reply)).split()).replace(token, "...")[-400:]
        if "SuperLink is unavailable" in text:
            _check_valid(fed)
            raise FlowerError(advice)
        raise FlowerError(f"flwr {words[0]} failed: {text}")
    return reply


def wait_until_guarded(fed: Folder, check: Callable[[], None]) -> None:
    """Wait until Flower's server answers, and obeys nobody without the operator's token. check:
    raises FlowerError if it has ended. Raises FlowerError.
    """
    end = time.monotonic() + _START
    while (status := _status_for_strangers(fed)) is None:
        check()
        if time.monotonic() > end:
            raise FlowerError(
                f"Flower's server was started and does not answer after {_START} s: its reasons "
                f"are in '{fed.home / 'server.log'}'; if the machine was busy, begin again"
            )
        time.sleep(0.5)
    if status != 401:
        raise FlowerError(
            f"Flower's server answered {status} to a command without the operator's token, not "
            "401: any account of this machine could start runs, so it is ended; "
            f"{install('flower')}"
        )


def _status_for_strangers(fed: Folder) -> int | None:
    """What Flower's server answers to a command without the token; None: it is not there."""
    trusted = ssl.create_default_context(cafile=fed.link.certificate("ca"))
    address = "127.0.0.1", fed.settings().local_port
    connection = http.client.HTTPSConnection(*address, timeout=_SECONDS, context=trusted)
    try:
        connection.request("POST", "/v1/control/list-runs")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def begin(fed: Folder, describe: bool = False) -> str:
    """Begin the run, or go on with it, or have the sites' tables described before it -> Flower's
    number of it. Raises FlowerError.
    """
    for run in runs(fed):
        if not run["status"].startswith("finished"):
            raise FlowerError(
                f"run {run['run-id']} is {run['status']} already; see `fedloom deploy status`, or "
                "end it with `fedloom deploy stop`"
            )
    run_config = f'folder="{fed.path}"' + (" describe=true" if describe else "")
    reply = run_flwr(fed, "run", str(fed.app), "--run-config", run_config)
    return str(reply["run-id"])


def runs(fed: Folder) -> list[dict[str, Any]]:
    """What Flower knows of the runs, the newest first. Raises FlowerError."""
    runs: list[dict[str, Any]] = run_flwr(fed, "list")["runs"]
    return runs


def nodes(fed: Folder) -> list[dict[str, Any]]:
    """What Flower knows of the nodes. Raises FlowerError."""
    nodes: list[dict[str, Any]] = run_flwr(fed, "supernode", "list")["nodes"]
    return nodes


def stop(fed: Folder) -> list[str]:
    """Stop what runs -> its numbers. The run keeps its last checkpoint. Raises FlowerError."""
    numbers = [r["run-id"] for r in runs(fed) if not r["status"].startswith("finished")]
    for number in numbers:
        run_flwr(fed, "stop", number)
    return numbers
