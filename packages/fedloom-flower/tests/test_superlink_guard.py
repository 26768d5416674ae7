"""On the server's machine only the operator commands Flower's server: everyone else gets 401."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import ssl
import stat
import threading

import pytest

from federations.places import SMALL, folder
from fedloom.config import resolve
from fedloom_flower import programs
from fedloom_flower.certificates import make_authority
from fedloom_flower.children import FlowerError
from fedloom_flower.flower_app.superlink import OPEN, Guard
from fedloom_flower.folder import Deployment, Folder
from support.ranks import free_port

TOKEN = "the-token-of-this-start"
BASIC = lambda text: b"Basic " + base64.b64encode(text.encode())
OPERATOR = (b"authorization", BASIC(f"operator:{TOKEN}"))
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


def answered(path, headers):
    """-> (status of the guard's own answer or None, headers that the application behind it got)"""
    sent, passed = [], []

    async def application(scope, receive, send):
        passed.append(scope["headers"])

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(Guard(application, TOKEN)(scope, None, send))
    return (sent[0]["status"] if sent else None), (passed[0] if passed else None)


@pytest.mark.parametrize("headers", STRANGERS)
@pytest.mark.parametrize("name", [*COMMANDS, "control/of-a-later-flower", "../control/start-run"])
def test_a_stranger_commands_nothing(name, headers):
    assert answered(f"/v1/{name}", headers) == (401, None)


def test_open_paths_are_exact_and_commands_are_none_of_them():
    assert len(OPEN) == 10 and not {f"/v1/{name}" for name in COMMANDS} & OPEN
    for path in OPEN:
        assert answered(path, [(b"x", b"y")]) == (None, [(b"x", b"y")])
        for other in (f"{path}/", path.upper(), f"/{path}", f"{path}/../../control/start-run"):
            assert answered(other, []) == (401, None)


def test_the_operator_s_token_passes_and_is_not_passed_on():
    for name in COMMANDS:
        assert answered(f"/v1/{name}", [OPERATOR, (b"x", b"y")]) == (None, [(b"x", b"y")])


def test_connections_that_nobody_asks_for_are_not_passed_on():
    with pytest.raises(RuntimeError, match="websocket"):
        asyncio.run(Guard(None, TOKEN)({"type": "websocket", "path": "/"}, None, None))


# ------------------------------------------------------------------------ the operator's programs
@pytest.fixture
def fed(tmp_path, monkeypatch):
    """The server's folder, whose Flower is a program that is not there."""
    made = folder(tmp_path, resolve("digits", SMALL), [480, 479, 479], classes=10)
    monkeypatch.setattr(programs, "program", lambda name: f"/bin/{name}")
    monkeypatch.setattr(programs, "_check_valid", lambda fed: None)
    for name in ("server", "ca"):
        made.certificate(name).parent.mkdir(exist_ok=True)
        made.certificate(name).write_bytes(b"")
    programs.write_secret(made.secret("server"), b"")
    return made


def test_each_start_has_a_token_of_its_own_that_is_on_no_command_line(fed):
    place, seen = fed.link.secret("operator"), set()
    for _ in range(2):
        commands = [programs.link(fed), programs.server_executor(fed)]
        token = place.read_text()
        assert len(token) >= 43 and stat.S_IMODE(place.stat().st_mode) == 0o600
        for program in commands:
            assert token not in " ".join([*program.command, *program.environment.values()])
        seen.add(token)
    assert len(seen) == 2


def test_what_flower_says_is_shown_without_the_token(fed):
    programs.link(fed)
    token = fed.link.secret("operator").read_text()
    told = fed.home / "config.toml"
    said = f'echo "no way to operator:{token}@127.0.0.1"; cat "{told}" >&2; exit 1'
    with pytest.raises(FlowerError, match=r"no way to operator:\.\.\.@127") as error:
        programs._answer(fed, "flwr list", ["sh", "-c", said])
    assert token not in str(error.value) and token in told.read_text()
    assert stat.S_IMODE(told.stat().st_mode) == 0o600


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
    monkeypatch.setattr(programs, "share_keys", lambda fed: None)
    monkeypatch.setattr(programs, "_START", 0)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # not asked on this machine
    with superlink_that_answers(status, fed, monkeypatch):
        if status == 401:
            return programs.register(fed, lambda: None)
        with pytest.raises(FlowerError, match=rf"answered {status} .* could start runs"):
            programs.register(fed, lambda: None)
