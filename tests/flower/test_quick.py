"""What makes a round short: a node hears of a message at once, and has a process for it at once."""

from __future__ import annotations

import functools
import threading
import time
import types
import warnings

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import ConfigRecord, RecordDict

with warnings.catch_warnings(action="ignore"):  # it would rather have httpx2
    from starlette.testclient import TestClient

from fedloom.config import resolve
from fedloom.deployment import programs
from fedloom.deployment.certificates import make_authority, make_node_key
from fedloom.deployment.children import FlowerError
from fedloom.deployment.clients import Entry, read_clients
from fedloom.deployment.flower_app import reverse_proxy as proxy_module
from fedloom.deployment.flower_app import server
from fedloom.deployment.flower_app.records import content, raw
from fedloom.deployment.new import make
from fedloom.errors import ConfigError
from support.signed import key_of, signed

pytestmark = [pytest.mark.flower]
PULL = "/v1/fleet/pull-messages"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A gate whose link answers from a list; the last answer stays."""
    fed = make(resolve("digits", ["data.clients=3"]), tmp_path / "fed", None, {})
    fed.home.mkdir()
    make_authority(fed.link, "127.0.0.1")
    answers, seen = [httpx.Response(200)], []

    def link(request):
        seen.append(request)
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return httpx.Response(found.status_code, content=found.content)

    client = functools.partial(httpx.AsyncClient, transport=httpx.MockTransport(link))
    monkeypatch.setattr(proxy_module.httpx, "AsyncClient", client)
    key = key_of(fed.node(0).secret("node"))
    with TestClient(proxy_module.application(fed)) as node:
        post = lambda path, headers=None, **more: node.post(
            path, headers={**signed(key), **(headers or {})}, **more
        )
        yield post, fed, answers, seen


def test_a_node_waits_until_there_are_messages(asked):
    post, fed, answers, seen = asked
    answers.append(httpx.Response(200, content=b"m" * 100))
    late = threading.Timer(0.5, fed.news.write_bytes, (b".",))
    late.start()
    began = time.monotonic()
    assert post(PULL, content=b"I").content == b"m" * 100
    assert time.monotonic() - began >= 0.5
    assert [r.content for r in seen] == [b"I", b"I"]


def test_a_node_does_not_wait_for_ever_and_a_stranger_not_at_all(asked, monkeypatch):
    post, _, answers, seen = asked
    monkeypatch.setattr(proxy_module, "_HOLD", 0.3)
    assert post(PULL, content=b"I").content == b""
    assert len(seen) == 2
    monkeypatch.setattr(proxy_module, "_HOLD", 60.0)
    answers[:] = [httpx.Response(401)]
    assert post(PULL, content=b"I").status_code == 401
    assert post(PULL, content=b"I" * 70_000).status_code == 413


def test_a_hosts_name_does_not_lead_to_another_path(asked):
    post, _, answers, seen = asked
    answers[:] = [httpx.Response(401)]
    post(PULL, headers={"host": "x/v1/control/start-run?"})
    assert [r.url.path for r in seen] == [PULL]


def test_a_message_is_bytes_or_nothing():
    for found in (10**12, 1.5, "text", [1, 2]):
        assert raw(RecordDict({"fedloom": ConfigRecord({"message": found})})) == b""
    for sent in (b"small", bytes(3 << 20)):
        assert raw(content(sent)) == sent


def test_a_running_proxy_takes_another_list_of_clients(asked):
    """Who was taken out is refused, who came is admitted, and a wrong list changes nothing."""
    post, fed, answers, _ = asked
    answers[:] = [httpx.Response(401)]  # of Flower's server: the request was passed on
    new = make_node_key(fed.path / "new")
    clients = read_clients(fed.clients_file)
    first, *others = clients.client
    entries = [first.model_copy(update={"removed": True}), *others, Entry(key=new)]
    status = lambda key="new": post(PULL, headers=signed(key_of(fed.path / key))).status_code
    assert (post(PULL).status_code, status()) == (401, 403)
    fed.clients_file.write_text("[[client")
    time.sleep(1.5)
    assert (post(PULL).status_code, status()) == (401, 403)
    fed.clients_file.write_text(clients.model_copy(update={"client": entries}).to_toml())
    time.sleep(1.5)
    assert (post(PULL).status_code, status()) == (403, 401)
    told = post("/v1/fleet/activate-node")
    assert told.status_code == 412 and "this site was taken out" in told.json()["detail"]


def test_an_expired_certificate_is_named(tmp_path, monkeypatch):
    fed = make(resolve("digits", ["data.clients=3"]), tmp_path / "fed", None, {})
    with pytest.raises(FlowerError, match="does not answer; start it with `fedloom deploy server"):
        programs.asked(fed, "list")
    monkeypatch.setattr(programs, "days_left", lambda path: -2)
    for begun in (lambda: programs.link(fed), lambda: programs.asked(fed, "list")):
        with pytest.raises(
            ConfigError, match=r"expired . days ago, and no node accepts it; make another"
        ):
            begun()


@pytest.mark.parametrize("most", [1, 2])  # messages in one request
def test_a_message_that_flower_does_not_take_is_not_sent(most, tmp_path, monkeypatch):
    class Grid:
        def get_nodes(self):
            return [types.SimpleNamespace(public_key=f"key {i}", node_id=i) for i in range(3)]

        def push_messages(self, messages):
            gone = [f"to {to}" if to != 1 else None for to in messages]
            return gone if len(messages) <= most else []

    roll = types.SimpleNamespace(client=[types.SimpleNamespace(key=f"key {i}") for i in range(3)])
    monkeypatch.setattr(server, "as_pem", lambda key: key)
    monkeypatch.setattr(server, "Message", lambda content, to, *_, **__: to)  # it wants a run
    post = server.GridTransport(Grid(), roll, tmp_path / "news")
    assert post.push({0: b"m", 2: b"o"}, 5.0) == {"to 0": 0, "to 2": 2}
    assert post.push({0: b"m", 1: b"n"}, 5.0) == {"to 0": 0}
    assert Grid().push_messages([0, 1, 2]) == [] and post.push({1: b"n"}, 5.0) == {}
