"""Other accounts of a node's machine are kept out, and its processes end with it."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet

from federations.live import alive
from federations.places import SMALL, folder
from fedloom.config import resolve
from fedloom_flower import programs
from fedloom_flower.children import Children
from fedloom_flower.cli.deploy import deploy_command
from fedloom_flower.folder import write_secret

NODE = ["node", "--client", "0"]
SIZES = [480, 479, 479]


@pytest.fixture
def fed(tmp_path, monkeypatch):
    """A node's folder, and programs of Flower that are not there."""
    made = folder(tmp_path, resolve("digits", SMALL), SIZES, classes=10)
    write_secret(made.node(0).secret("node"), b"a key")
    monkeypatch.setattr(programs, "program", lambda name: f"/bin/{name}")
    monkeypatch.setattr(programs, "make_authority", lambda local, address: None)
    return made


# ---------------------------------------------------------------------------------- other accounts
def test_flower_s_port_at_a_node_has_a_secret_that_is_on_no_command_line(fed, tmp_path):
    seen = []
    for name in ("first", "second"):
        executor, supernode = programs.node(fed.node(0), tmp_path / name)
        word = lambda option, of=supernode.command: of[of.index(option) + 1]
        assert word("--isolation") == "process" and word("--host") == "127.0.0.1"
        secret = Path(word("--superexec-auth-secret-file"))
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
        assert len(secret.read_bytes()) == 32
        for option in ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"):
            assert word(option).startswith(str(tmp_path / name))
        assert f"127.0.0.1:{word('--port')}" in executor.command
        for program in (executor, supernode):
            said = " ".join([*program.command, *program.environment.values()]).encode()
            raw = secret.read_bytes()
            assert raw not in said and raw.hex().encode() not in said
        seen.append(secret.read_bytes())
    assert seen[0] != seen[1]


def test_a_node_that_cannot_be_protected_is_refused(fed, monkeypatch):
    monkeypatch.setattr(programs, "version", lambda name: "1.40.2")
    refused = CliRunner().invoke(deploy_command, [*NODE, str(fed.path)])
    said = "act as client 0: Flower 1.40.2 is installed, and 1.41 and 1.42 ask for a secret;"
    assert said in str(refused.exception) and "\n" not in str(refused.exception)
    assert "--trust-local-accounts" in str(refused.exception)

    started = []
    monkeypatch.setattr(programs, "node", lambda fed, place, safe: started.append(safe) or [])
    monkeypatch.setattr(Children, "wait", lambda children: None)
    trusting = CliRunner().invoke(deploy_command, [*NODE, str(fed.path), "--trust-local-accounts"])
    assert trusting.exit_code == 0 and "Ctrl-C ends" in trusting.output, trusting.output
    assert started == [False]
    monkeypatch.setattr(programs, "version", lambda name: "1.41.0")
    assert not programs.unprotected()
    monkeypatch.setattr(programs.os, "name", "nt")
    assert "has no files that only their owner can read" in programs.unprotected()


def test_the_flower_that_pyproject_allows_can_be_protected():
    """Look at its code, and run `nox -s test-flower` with it, before another one is allowed."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    *_, needed = tomllib.loads(text)["project"]["dependencies"]
    allowed = SpecifierSet(needed.removeprefix("flwr"))
    versions = [f"{major}.{minor}" for major in (1, 2) for minor in range(100)]
    assert tuple(allowed.filter(versions)) == programs.PROTECTED


def test_a_node_that_trusts_its_machine_has_flower_s_own_executor(fed, tmp_path):
    (supernode,) = programs.node(fed.node(0), tmp_path, protected=False)
    assert "--isolation" not in supernode.command


# ------------------------------------------------------------------------------------ the processes
FORKS = """
import os, signal, sys, time
from fedloom.core.child_processes import ended_with_parent
ends = ended_with_parent(signal.SIGKILL)
late = sys.argv[1] == "late"
if (child := os.fork()) == 0:
    if late:  # whose parent is not the one that is to be watched
        if (other := os.fork()) == 0:
            ends()
            os._exit(7)
        os._exit(-os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ends()
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_process_ends_with_the_one_that_started_it():
    command = [sys.executable, "-c", FORKS]
    late = subprocess.run([*command, "late"], timeout=60)
    assert late.returncode == signal.SIGKILL  # its parent had ended before it could ask
    with subprocess.Popen([*command, "now"], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.kill()
    end = time.monotonic() + 10
    while alive(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(child)


def test_the_command_ends_with_what_it_started(fed, monkeypatch):
    """So that systemd, or a loop in a shell, starts all anew."""
    away = programs.Program(["/bin/false"], fed.path / "log", {})
    for name in ("link", "server_executor"):
        monkeypatch.setattr(programs, name, lambda fed: away)
    monkeypatch.setattr(programs, "register", lambda fed, check: None)
    done = CliRunner().invoke(deploy_command, ["server", str(fed.path)])
    assert done.exit_code and "false ended; its words are in" in str(done.exception)


@pytest.mark.parametrize("given", [{}, {"no_proxy": "intranet"}, {"NO_PROXY": "intranet"}])
def test_programs_of_one_machine_reach_each_other_past_a_proxy(given, monkeypatch, tmp_path):
    """As httpx and gRPC read these variables; what the machine says itself stays."""
    import types
    import urllib.request

    from fedloom_flower.programs import environment

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    told = environment(types.SimpleNamespace(home=tmp_path))
    monkeypatch.setenv("no_proxy", told["no_proxy"])
    assert told["NO_PROXY"] == told["no_proxy"]
    for host in ("127.0.0.1:9092", "localhost:9092", *(["intranet"] if given else [])):
        assert urllib.request.proxy_bypass_environment(host)
    assert not urllib.request.proxy_bypass_environment("hospital.org")
