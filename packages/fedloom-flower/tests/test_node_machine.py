"""Other accounts of a machine are kept out of files, ports and Flower; programs end together."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import os
import re
import shlex
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
import types
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet

from federations.live import alive, until
from federations.places import KEY, Here, digits, followed, typed
from fedloom.errors import ConfigError
from fedloom.storage.locks import hold
from fedloom_flower import children as children_module
from fedloom_flower import programs
from fedloom_flower.certificates import make_authority
from fedloom_flower.children import Children, FlowerError, Program
from fedloom_flower.cli.deploy import deploy_command
from fedloom_flower.clients import read_clients
from fedloom_flower.flower_app.superlink import OPEN, Guard
from fedloom_flower.folder import Deployment, Folder, check_secret, deployment_of, write_secret
from fedloom_flower.local_socket import LocalSocket, ask_node, blocks
from fedloom_flower.new import make_folders
from support.ranks import free_port

mode = lambda path: stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def fed(tmp_path, monkeypatch):
    """A federation's folder, and programs of Flower that are not there."""
    made = digits(tmp_path)
    write_secret(made.node(0).secret("node"), b"a key")
    write_secret(made.secret("server"), b"")
    made.certificate("server").write_bytes(b"")
    monkeypatch.setattr(programs, "program", lambda name: f"/bin/{name}")
    monkeypatch.setattr(programs, "version", lambda name: "1.42.0")
    monkeypatch.setattr(programs, "make_authority", lambda local, address: None)
    monkeypatch.setattr(programs, "_check_valid", lambda fed: None)
    return made


# ------------------------------ files and settings
def test_nobody_else_reads_what_a_federation_writes(tmp_path):
    before = os.umask(0)
    try:
        fed = Folder(tmp_path / "fed")
        make_folders(fed, *map(fed.node_to_be, range(2)))
        secret = fed.secret("cohorts")
        write_secret(secret, b"7")
        write_secret(secret, b"8")  # anew
    finally:
        os.umask(before)
    assert mode(secret) == 0o600 and mode(secret.parent) == 0o700
    assert mode(fed.path) == mode(fed.path / "nodes" / "1") == 0o700
    assert secret.read_bytes() == b"8" and [*secret.parent.iterdir()] == [secret]
    check_secret(secret)
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match=r"can be read by others \(mode 644\); chmod 600"):
        check_secret(secret)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"run": "a b"}, "run must be a name of at most 64 letters"),
        ({"adress": "x"}, "has no key 'adress'; did you mean 'address'?"),
        ({"deadline": 0.0}, "deadline must be in"),
        ({"evaluate": "me"}, "evaluate must be"),
        ({"port": 9093}, "port and local_port must be two numbers"),
        ({"address": "a/b"}, "address must be a host's name or number"),
        ("", "client"),
        ('[[client]]\nkey = "ssh-rsa AA"', "client.0.key"),
        (f'[[client]]\nkey = "{KEY}A"\n[[client]]\nkey = "{KEY}A"', "0 and 1 have the same key"),
        (f'[[client]]\nkey = "{KEY}A"\nexamples = 0', "client.0.examples"),
    ],
)
def test_a_mistake_in_federation_toml_or_clients_toml_is_one_line(given, said, tmp_path):
    file = tmp_path / "clients.toml"
    with pytest.raises(ConfigError, match=said) as error:
        if isinstance(given, dict):
            deployment_of({"run": "r", **given}, "file 'federation.toml'")
        file.write_text(given)
        read_clients(file)
    assert "\n" not in str(error.value)


def test_what_follows_a_public_key_is_no_part_of_it(tmp_path):
    (tmp_path / "clients.toml").write_text(f'[[client]]\nkey = "{KEY}A/+= who@where else"')
    assert read_clients(tmp_path / "clients.toml").client[0].key == f"{KEY}A/+="


def test_a_node_runs_once_in_a_folder(fed):
    with hold(fed.node(0).path / ".lock"):
        said = typed("deploy", "node", fed.path, "--client", 0, code=2)
    assert re.search("client 0 is being run in .* already", said)


def test_a_local_socket_hands_on_any_bytes(tmp_path):
    listening = LocalSocket(tmp_path / "socket", lambda raw: raw[::-1])
    thread = threading.Thread(target=listening.serve)
    thread.start()
    assert mode(listening.path) == 0o600
    for raw in (b"", b"abc", bytes(3_000_000)):
        assert ask_node(listening.path, raw) == raw[::-1]
    listening.close()
    thread.join(5)
    assert not thread.is_alive() and not listening.path.exists()
    for raw in (b"", b"x" * 11, b"FEDLOOM2\xff\xff\xff\xff{}", b"FEDLOOM2\x02\0\0\0{}"):
        assert b"".join(blocks(raw)) == raw


# ------------------------------ other accounts at a node
def words_of(*started):
    """All that anybody may see of programs."""
    return " ".join(word for one in started for word in [*one.command, *one.environment.values()])


def test_flower_s_port_at_a_node_has_a_secret_that_is_on_no_command_line(fed, tmp_path):
    seen = set()
    for name in ("first", "second"):
        executor, supernode = programs.node(fed.node(0), tmp_path / name)
        word = lambda option, of=supernode.command: of[of.index(option) + 1]
        assert word("--isolation") == "process" and word("--host") == "127.0.0.1"
        secret = Path(word("--superexec-auth-secret-file"))
        assert mode(secret) == 0o600 and mode(secret.parent) == 0o700
        for option in ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"):
            assert word(option).startswith(str(tmp_path / name))
        assert f"127.0.0.1:{word('--port')}" in executor.command
        raw = secret.read_bytes()
        assert len(raw) == 32 and raw.hex() not in words_of(executor, supernode)
        assert raw not in words_of(executor, supernode).encode()
        seen.add(raw)
    assert len(seen) == 2


def test_a_node_that_cannot_be_protected_is_refused(fed, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "version", lambda name: "1.40.2")
    with pytest.raises(ConfigError, match=r"act as client 0: Flower 1\.40\.2 is installed, and"):
        programs.node(fed.node(0), tmp_path)


def test_the_flower_that_pyproject_allows_can_be_protected():
    """Look at its code, and run `nox -s test-flower` with it, before another one is allowed."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    *_, needed = tomllib.loads(text)["project"]["dependencies"]
    allowed = SpecifierSet(needed.removeprefix("flwr"))
    versions = [f"{major}.{minor}" for major in (1, 2) for minor in range(100)]
    assert tuple(allowed.filter(versions)) == programs.PROTECTED


# ------------------------------ other accounts at the server
TOKEN = "the-token-of-this-start"
BASIC = lambda text: b"Basic " + base64.b64encode(text.encode())
OPERATOR, OTHER = (b"authorization", BASIC(f"operator:{TOKEN}")), (b"x", b"y")
COMMANDS = ("control/start-run", "control/list-runs", "control/stop-run", "runtime/acquire-task")
STRANGERS = [
    [],
    [(b"authorization", b"")],
    [(b"authorization", BASIC("operator:"))],
    [(b"authorization", BASIC(f"another:{TOKEN}"))],
    [(b"authorization", b"Bearer " + TOKEN.encode())],
    [OPERATOR, OPERATOR],
    [OPERATOR, (b"authorization", BASIC("operator:"))],
]


def answered(path, *headers):
    """-> (status of the guard's own answer or None, headers that the application behind it got)"""
    sent, passed = [], []

    async def application(scope, receive, send):
        passed.append(scope["headers"])

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [*headers]}
    asyncio.run(Guard(application, TOKEN)(scope, None, send))
    return (sent[0]["status"] if sent else None), (passed[0] if passed else None)


@pytest.mark.parametrize("headers", STRANGERS)
@pytest.mark.parametrize("name", [*COMMANDS, "control/of-a-later-flower", "../control/start-run"])
def test_a_stranger_commands_nothing(name, headers):
    assert answered(f"/v1/{name}", *headers) == (401, None)


def test_open_paths_are_exact_and_the_operator_s_token_is_not_passed_on():
    assert len(OPEN) == 10 and not {f"/v1/{name}" for name in COMMANDS} & OPEN
    for path in OPEN:
        assert answered(path, OTHER) == (None, [OTHER])
        for other in (f"{path}/", path.upper(), f"/{path}", f"{path}/../../control/start-run"):
            assert answered(other) == (401, None)
    for name in COMMANDS:
        assert answered(f"/v1/{name}", OPERATOR, OTHER) == (None, [OTHER])
    with pytest.raises(RuntimeError, match="websocket"):
        asyncio.run(Guard(None, TOKEN)({"type": "websocket", "path": "/"}, None, None))


def test_each_start_has_a_token_of_its_own_that_is_on_no_command_line(fed, monkeypatch):
    place, seen = fed.link.secret("operator"), set()
    for _ in range(2):
        commands = programs.link(fed), programs.server_executor(fed)
        token = place.read_text()
        assert len(token) >= 43 and mode(place) == 0o600 and token not in words_of(*commands)
        seen.add(token)
    assert len(seen) == 2
    config = fed.home / "config.toml"  # and what Flower says is shown without it
    says = f'echo "no way to operator:{token}@127.0.0.1"; cat "{config}" >&2; exit 1'
    (flwr := fed.home / "flwr").write_text(f"#!/bin/sh\n{says}\n")
    flwr.chmod(0o700)
    monkeypatch.setattr(programs, "program", lambda name: str(flwr))
    fed.link.certificate("ca").parent.mkdir(exist_ok=True)
    fed.link.certificate("ca").write_bytes(b"")
    with pytest.raises(FlowerError, match=r"no way to operator:\.\.\.@127") as error:
        programs.run_flwr(fed, "list")
    assert token not in str(error.value) and token in config.read_text()
    assert mode(config) == 0o600


@contextlib.contextmanager
def superlink_that_answers(status, fed, monkeypatch):
    """A server at the local port that has one answer for all."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    make_authority(fed.link, "127.0.0.1")
    port = free_port()
    monkeypatch.setattr(Folder, "settings", lambda fed: Deployment(run="d", local_port=port))
    there = http.server.HTTPServer(("127.0.0.1", port), Answer)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(fed.link.certificate("server"), fed.link.secret("server"))
    there.socket = secure.wrap_socket(there.socket, server_side=True)
    thread = threading.Thread(target=there.serve_forever)
    thread.start()
    try:
        yield
    finally:
        there.shutdown()
        thread.join()
        there.server_close()


@pytest.mark.parametrize("status", [200, 401, 404, 500])
def test_the_server_ends_unless_a_stranger_is_refused(status, fed, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # not asked on this machine
    with superlink_that_answers(status, fed, monkeypatch):
        if status == 401:
            return programs.wait_until_guarded(fed, lambda: None)
        with pytest.raises(FlowerError, match=rf"answered {status} .* could start runs"):
            programs.wait_until_guarded(fed, lambda: None)


def test_a_server_that_is_slow_is_not_told_to_be_started(fed, monkeypatch):
    monkeypatch.setattr(programs, "_START", 0)
    monkeypatch.setattr(programs, "_status_for_strangers", lambda fed: None)
    with pytest.raises(programs.FlowerError, match=r"was started and does not .*server\.log"):
        programs.wait_until_guarded(fed, lambda: None)


def test_a_port_that_another_program_has_is_named():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        port = place.getsockname()[1]
        with pytest.raises(ConfigError, match=f"federation.port = {port} cannot be had: Address"):
            programs.check_free("port", port)
    programs.check_free("port", port)


@pytest.mark.parametrize("given", [{}, {"no_proxy": "intranet"}, {"NO_PROXY": "intranet"}])
def test_programs_of_one_machine_reach_each_other_past_a_proxy(given, monkeypatch, tmp_path):
    """As httpx and gRPC read these variables; what the machine says itself stays."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    told = programs.environment(types.SimpleNamespace(home=tmp_path))
    monkeypatch.setenv("no_proxy", told["no_proxy"])
    assert told["NO_PROXY"] == told["no_proxy"]
    for host in ("127.0.0.1:9092", "localhost:9092", *(["intranet"] if given else [])):
        assert urllib.request.proxy_bypass_environment(host)
    assert not urllib.request.proxy_bypass_environment("hospital.org")


# ------------------------------ the processes
def python(said, log, gave_up=()):
    return Program([sys.executable, "-c", said], log, os.environ, dict(gave_up))


def ended(said, log, gave_up=()):
    """What is said when a program of Python ends, within 15 s."""
    began = time.monotonic()
    with pytest.raises(FlowerError) as error, Children() as children:
        children.start(python(said, log, gave_up))
        while time.monotonic() < began + 20:
            children.check()
            time.sleep(0.01)
    assert time.monotonic() - began < 15
    return str(error.value)


def test_words_that_come_while_a_program_is_started_are_heard(tmp_path, monkeypatch):
    """A program moves the position in the log that it was given."""
    log, start = tmp_path / "log", subprocess.Popen

    def start_and_hear(*arguments, **more):
        process = start(*arguments, **more)
        while not log.stat().st_size:
            time.sleep(0.01)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_hear)
    ended("import time; print('Giving up', flush=True); time.sleep(60)", log, {"Giving up": ""})


def test_a_program_that_ends_or_gives_up_ends_them_all(tmp_path, monkeypatch):
    log, name = tmp_path / "log", re.escape(Path(sys.executable).name)
    said = ended("print('\\x1b[91mERROR\\x1b[0m: no key'); print('bye')", log)
    assert re.fullmatch(rf"{name} ended \(ERROR: no key\); its words are in '{log}'", said)
    stays = "import time; print('x' * 200_000); print('Giving up', flush=True); time.sleep(60)"
    said = ended(stays, log, {"Giving up": ""})
    assert re.fullmatch(f"{name} ended; its words are in .*", said)
    assert log.read_text().endswith("bye\n" + "x" * 200_000 + "\nGiving up\n")
    with pytest.raises(FlowerError, match="nothing cannot be started: No such file"):
        Children().start(Program([str(tmp_path / "nothing")], log, os.environ))
    monkeypatch.setattr(children_module, "_LARGEST", 10)
    assert "ended" in ended("print('new')", log)
    assert log.read_text() == "new\n" and "bye" in (tmp_path / "log.1").read_text()


@pytest.mark.parametrize(
    ("line", "out"),
    [  # of Flower 1.41, recorded at a node whose site was taken out while it ran
        (
            "\x1b[92mINFO \x1b[0m:      Run transitioned to a non-`RUNNING` status while receiving "
            "a message. Ignoring the message.",
            True,
        ),
        (
            "httpx.HTTPStatusError: Client error '403 Forbidden' for url "
            "'https://127.0.0.1:45757/v1/fleet/send-node-heartbeat'",
            True,
        ),
        ("INFO : Run ID 7 is not in `RUNNING` status. Ignoring message 3.", False),
    ],
)
def test_the_node_of_a_removed_site_says_why_it_ends(line, out, tmp_path):
    """Flower's own node goes on for ever, and says nothing of the reason."""
    stays = f"import time; print({line!r}, flush=True); time.sleep({60 * out})"
    said = ended(stays, tmp_path / "log", programs.GAVE_UP)
    assert ("it was taken out of the federation" in said) is out and "\n" not in said
    assert ("ask who runs the server" in said) is out


def test_what_does_not_end_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(children_module, "_GRACE", 0.2)
    stays = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    # one of them writes: two at a time may write over each other
    told = "child = os.fork(); child and print(os.getpid(), child, flush=True); time.sleep(60)"
    with Children() as children:
        children.start(python(f"{stays}; {told}", tmp_path / "log"))
        while len(pids := (tmp_path / "log").read_text().split()) < 2:
            children.check()
    until(lambda: not any(alive(int(pid)) for pid in pids), "both have ended", 10)


def test_a_process_that_waited_hears_signals_as_before(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with Children() as children, pytest.raises(FlowerError, match="ended"):
        children.start(python("", tmp_path / "log"))
        children.wait()
    assert signal.getsignal(signal.SIGTERM) is before


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
    until(lambda: not alive(child), "it has ended", 10)


def test_the_command_ends_with_what_it_started(fed, monkeypatch):
    away = lambda fed: Program(["/bin/false"], fed.path / "log", {})
    for name in ("link", "server_executor"):
        monkeypatch.setattr(programs, name, away)
    monkeypatch.setattr(programs, "wait_until_guarded", lambda fed, check: None)
    done = CliRunner().invoke(deploy_command, ["server", str(fed.path)])
    assert done.exit_code and "false ended; its words are in" in str(done.exception)


def test_the_end_of_a_deployed_run_names_a_command_that_needs_no_extra(fed, monkeypatch):
    Here(fed).serve()
    shown, report = followed(fed, monkeypatch).splitlines()[-2:]
    assert "with fedloom[report]" in report
    for library in ("matplotlib", "jinja2", "pandas"):
        monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    assert "accuracy" in typed(*shlex.split(shown.partition("see it: fedloom ")[2]))
