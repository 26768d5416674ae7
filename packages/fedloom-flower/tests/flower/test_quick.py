"""What makes a round short: a node hears of a message at once, and has a process for it at once."""

from __future__ import annotations

import threading
import time
import types

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

from federations.gated import Gated
from federations.signed import key_of, signed
from fedloom.config import resolve
from fedloom.errors import ConfigError
from fedloom_flower import programs
from fedloom_flower.certificates import make_node_key
from fedloom_flower.children import FlowerError
from fedloom_flower.clients import Entry, read_clients
from fedloom_flower.flower_app import gate, server
from fedloom_flower.flower_app.records import content, raw
from fedloom_flower.new import make

pytestmark = [pytest.mark.flower]
PULL = "/v1/fleet/pull-messages"


@pytest.fixture
def asked(tmp_path):
    """A gate, before a Flower that answers nothing."""
    fed = make(resolve("digits", ["data.clients=3"]), tmp_path / "fed", None, {})
    fed.home.mkdir()
    fed.registered.touch()
    key = key_of(fed.node(0).secret("node"))
    with Gated(fed) as found:
        found.says = b""
        post = lambda path, headers=None, **more: found.node.post(
            path, headers={**signed(key), **(headers or {})}, **more
        )
        yield post, fed, found


def test_a_node_waits_until_there_are_messages(asked):
    post, _, there = asked

    def come():
        there.says = b"m" * 100
        there.tell()

    threading.Timer(0.5, come).start()
    began = time.monotonic()
    assert post(PULL, content=b"I").content == b"m" * 100
    assert time.monotonic() - began >= 0.5
    assert [r.content for r in there.seen] == [b"I", b"I"]


def test_a_node_does_not_wait_for_ever_and_a_stranger_not_at_all(asked, monkeypatch):
    post, _, there = asked
    monkeypatch.setattr(gate, "_HOLD", 0.3)
    assert post(PULL, content=b"I").content == b""
    assert len(there.seen) == 2
    monkeypatch.setattr(gate, "_HOLD", 60.0)
    there.status = 401
    assert post(PULL, content=b"I").status_code == 401
    assert post(PULL, content=b"I" * 70_000).status_code == 413


def test_a_hosts_name_does_not_lead_to_another_path(asked):
    post, _, there = asked
    there.status = 401
    post(PULL, headers={"host": "x/v1/control/start-run?"})
    assert [r.path for r in there.seen] == [PULL]


def test_a_message_is_bytes_or_nothing():
    for found in (10**12, 1.5, "text", [1, 2]):
        assert raw(RecordDict({"fedloom": ConfigRecord({"message": found})})) == b""
    for sent in (b"small", bytes(3 << 20)):
        assert raw(content(sent)) == sent


def test_a_running_gate_takes_another_list_of_clients(asked):
    """Who was taken out is refused, who came is admitted, and a wrong list changes nothing."""
    post, fed, there = asked
    there.status = 401  # of Flower's server: the request was passed on
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
        programs.run_flwr(fed, "list")
    monkeypatch.setattr(programs, "days_left", lambda path: -2)
    for begun in (lambda: programs.link(fed), lambda: programs.run_flwr(fed, "list")):
        with pytest.raises(
            ConfigError, match=r"expired . days ago, and no node accepts it; make another"
        ):
            begun()


@pytest.mark.parametrize("most", [1, 2])  # messages in one request
def test_a_message_that_flower_does_not_take_is_not_sent(most, monkeypatch):
    class Grid:
        def get_nodes(self):
            return [types.SimpleNamespace(public_key=f"key {i}", node_id=i) for i in range(3)]

        def push_messages(self, messages):
            gone = [f"to {to}" if to != 1 else None for to in messages]
            return gone if len(messages) <= most else []

    roll = types.SimpleNamespace(client=[types.SimpleNamespace(key=f"key {i}") for i in range(3)])
    monkeypatch.setattr(server, "as_pem", lambda key: key)
    monkeypatch.setattr(server, "Message", lambda content, to, *_, **__: to)  # it wants a run
    post = server.GridTransport(Grid(), roll)
    assert post.push({0: b"m", 2: b"o"}, 5.0) == {"to 0": 0, "to 2": 2}
    assert post.push({0: b"m", 1: b"n"}, 5.0) == {"to 0": 0}
    assert Grid().push_messages([0, 1, 2]) == [] and post.push({1: b"n"}, 5.0) == {}
