"""What strangers, and nodes that became hostile, can do to the process that the network reaches."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from federations.gated import Gated
from federations.live import until
from federations.signed import FLEET, key_of, signed
from fedloom.config import resolve
from fedloom_flower.flower_app import admission, connections, gate
from fedloom_flower.flower_app.connections import Listener
from fedloom_flower.flower_app.records import content
from fedloom_flower.new import make
from support.ranks import free_port

pytestmark = [pytest.mark.flower]
OBJECT, TREE, SMALL = (admission.LONGEST[n] for n in ("push-object", "push-messages", "get-run"))


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    ports = {"port": free_port(), "local_port": free_port()}
    found = make(
        resolve("digits", ["data.clients=3"]), tmp_path_factory.mktemp("f") / "fed", None, ports
    )
    found.home.mkdir()
    found.registered.touch()
    return found


@pytest.fixture(scope="module")
def key(fed):
    return key_of(fed.node(0).secret("node"))


class Asked(Gated):
    """A gate in this process. seen: what Flower's server is asked, which answers 200 and `says`."""

    def __call__(self, name, headers, body=b"", **more):
        return self.node.post(FLEET + name, headers=headers, content=body, **more)


@pytest.fixture
def asked(fed):
    with Asked(fed) as found:
        yield found


class Waiting:
    """A request for messages in another thread, whose connection stays until `gone` is set."""

    def __init__(self, asked, key):
        self.gone, self._body = threading.Event(), iter([b"", None])
        self.ends = asked.node.portal.start_task_soon(
            functools.partial(answered, asked, "pull-messages", signed(key), self._receive)
        )
        until(lambda: asked.seen, "Flower was asked")

    async def _receive(self):
        if next(self._body, None) is not None:
            return {"type": "http.request", "body": b"", "more_body": False}
        while not self.gone.is_set():
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}


class Unread:
    """A body that tells how much of it was read."""

    def __init__(self, pieces, size=1 << 16):
        self.left, self._piece, self.read = pieces, bytes(size), 0

    async def __call__(self):
        if not self.left:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.left -= 1
        self.read += len(self._piece)
        return {"type": "http.request", "body": self._piece, "more_body": True}


def raw(asked, name, headers, body, method="POST"):
    """One request to the application itself -> status, headers of the answer."""
    sent = asked.node.portal.call(answered, asked, name, headers, body, method)
    return sent[0]["status"], dict(sent[0]["headers"])


async def answered(asked, name, headers, body, method="POST"):
    """What the application sends."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": FLEET + name,
        "raw_path": b"",
        "query_string": b"",
        "root_path": "",
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        "client": ("198.18.0.9", 5),
    }
    await asked.node.app(scope, body, send)
    return sent


def other(headers, **changes):
    names = {"key": "flwr-public-key", "time": "flwr-timestamp", "signature": "flwr-signature"}
    return headers | {names[name]: value for name, value in changes.items()}


def without(headers, name):
    return {k: v for k, v in headers.items() if k != name}


def strangers(key):
    """{what is wrong: headers}."""
    good, mine = signed(key), ec.generate_private_key(ec.SECP384R1())
    return {
        "no header": {},
        "no key": without(good, "flwr-public-key"),
        "no signature": without(good, "flwr-signature"),
        "no time": without(good, "flwr-timestamp"),
        "a key that is not in the roll": signed(mine),
        "another one's key": other(signed(mine), key=good["flwr-public-key"]),
        "another time": other(good, time=signed(key, 1.0)["flwr-timestamp"]),
        "an old time": signed(key, 306.0),
        "a time to come": signed(key, -6.0),
        "a time without a zone": other(good, time="2026-01-01T00:00:00"),
        "a time that overflows": other(good, time="0001-01-01T00:00:00+23:59"),
        "no time at all": other(good, time="x"),
        "no base64": other(good, signature="!"),
        "no DER": other(good, signature=base64.b64encode(b"signature").decode()),
        "a key of letters": other(good, key=base64.b64encode(b"key").decode()),
        "letters beyond ASCII": other(good, time="\u00b2026-01-01T00:00:00+00:00"),
    }


WRONG = list(strangers(ec.generate_private_key(ec.SECP384R1())))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_strangers_body_is_not_read(asked, key, wrong):
    """Neither by the gate nor by Flower, whatever is wrong, and the connection is closed."""
    body = Unread(1000)
    status, headers = raw(asked, "push-object", strangers(key)[wrong], body)
    assert status in (401, 403) and headers[b"connection"] == b"close"
    assert body.read == 0 and not asked.seen


def test_a_node_is_told_that_its_key_is_unknown_in_flowers_form(asked):
    body = Unread(1000)
    headers = signed(ec.generate_private_key(ec.SECP384R1()))
    assert raw(asked, "activate-node", headers, body)[0] == 412 and not body.read
    told = asked("activate-node", headers).json()
    assert told == {"code": 2004, "detail": "this key is not in the server's clients.toml"}


def test_only_requests_of_nodes_pass_and_only_by_post(asked, key):
    for name in ("register-node", "../control/start-run", "", "pull-messages/", "PULL-MESSAGES"):
        body = Unread(1000)
        status, headers = raw(asked, name, signed(key), body)
        assert status == 404 and headers[b"connection"] == b"close" and not body.read
    body = Unread(1000)
    assert raw(asked, "pull-messages", signed(key), body, "PUT")[0] == 405 and not body.read
    assert not asked.seen


def test_what_a_node_signs_passes_whole(asked, key):
    for age in (0.0, 304.0, -4.0):
        assert asked("push-object", signed(key, age), b"whole").status_code == 200
    assert [r.content for r in asked.seen] == [b"whole"] * 3
    assert asked("push-object", signed(key), bytes(OBJECT)).status_code == 200


@pytest.mark.parametrize(("name", "most"), sorted(admission.LONGEST.items()))
def test_a_body_is_not_longer_than_its_route_allows(asked, key, name, most):
    """By what it announces, and by what comes if it announces nothing, or lies."""
    assert most <= 6 << 20
    body = Unread(1000)
    announced = signed(key) | {"content-length": str(most + 1)}
    assert raw(asked, name, announced, body)[0] == 413 and body.read == 0
    for length in ({}, {"transfer-encoding": "chunked"}, {"content-length": "5"}):
        body = Unread(1000)
        status, headers = raw(asked, name, signed(key) | length, body)
        assert status == 413 and headers[b"connection"] == b"close"
        assert body.read <= most + (1 << 16)
    assert not asked.seen
    assert asked(name, signed(key), b"1").status_code == 200


def test_nodes_ask_again_until_their_keys_are_registered(fed, asked, key):
    """Flower would refuse a key that it does not know yet, and its node would end."""
    fed.registered.unlink()
    for registered in (False, True):
        if registered:
            fed.registered.touch()
        assert asked("activate-node", signed(key)).status_code == (200 if registered else 503)
        assert len(asked.seen) == registered


def test_a_node_has_few_requests_under_way(fed, key):
    """However large its bodies are, it holds 16 of them; the others' nodes are not in its way."""
    pems = [
        base64.b64decode(signed(key_of(fed.node(i).secret("node")))["flwr-public-key"])
        for i in (0, 1)
    ]
    mine, path = admission.Admission(pems), FLEET + "push-object"
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(mine.admitted(path, signed(key)))
        with pytest.raises(admission.Refusal) as no, mine.admitted(path, signed(key)):
            pass
        assert no.value.status == 503  # Flower's node asks again
        with mine.admitted(path, signed(key_of(fed.node(1).secret("node")))):
            pass
    with mine.admitted(path, signed(key)):
        pass
    assert mine._busy.total() == 0


def test_a_body_that_does_not_end_is_given_up(asked, key, monkeypatch):
    monkeypatch.setattr(gate, "_SECONDS", 0.2)

    async def slow():
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b".", "more_body": True}

    began = time.monotonic()
    status, headers = raw(asked, "push-object", signed(key), slow)
    assert status == 408 and headers[b"connection"] == b"close"
    assert time.monotonic() - began < 2 and not asked.seen
    assert asked("push-object", signed(key), b"1").status_code == 200  # its place is free


def test_a_node_that_goes_away_in_mid_body_leaves_nothing(asked, key, caplog):
    async def gone():
        return {"type": "http.disconnect"}

    with pytest.raises(IndexError):  # no answer
        raw(asked, "push-object", signed(key), gone)
    assert not asked.seen and not caplog.records


def news(asked):
    """Tell the gate that messages were sent, as the guard does."""
    asked.tell()
    time.sleep(0.3)


def test_a_node_that_waits_for_messages_gets_those_that_come(asked, key):
    asked.says = b""
    node = Waiting(asked, key)
    news(asked)
    assert len(asked.seen) == 2 and not node.ends.done()
    asked.says = b"m" * 100
    news(asked)
    assert node.ends.result(5)[1]["body"] == b"m" * 100 and len(asked.seen) == 3


def test_no_message_is_fetched_for_a_node_that_is_gone(asked, key):
    """It would be lost: Flower gives each once, and the node that comes again would not get it."""
    asked.says = b""
    node = Waiting(asked, key)
    node.gone.set()
    assert node.ends.result(5)
    asked.says = b"m" * 100
    news(asked)
    assert len(asked.seen) == 1


@pytest.mark.parametrize("name", ["activate-node", "pull-messages"])
def test_no_message_is_fetched_for_what_a_node_asked_before_it_began_anew(asked, key, name):
    """A network that fails does not say that the connection is gone."""
    asked.says = b""
    before = Waiting(asked, key)
    asked.says = b"m" * 100
    assert asked(name, signed(key)).content == asked.says
    assert before.ends.result(5)[1].get("body", b"") == b""
    news(asked)
    assert len(asked.seen) == 2


def test_refusals_are_a_line_each_and_not_many(asked, caplog):
    with caplog.at_level(logging.WARNING):
        for k in range(50):
            raw(asked, f"evil\n\x1b[2J{k}", {}, Unread(1))
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 20 and lines[0].startswith("refused 198.18.0.9: /v1/fleet/evil [2J0: no ")
    assert all(line.isprintable() and len(line) < 150 for line in lines)


def test_the_next_minute_counts_anew_and_tells_how_many_there_were(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(admission.time, "monotonic", lambda: clock[0])
    found = admission.Refusals()
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            found.add("a", "/", "no")
        assert (found.count("a"), found.count("b")) == (30, 0)
        clock[0] = 61.0
        assert found.count("a") == 0
    assert caplog.messages[-1] == "and 10 refusals more in that minute" and not found._counts


@pytest.mark.parametrize("size", [0, 1 << 20, (1 << 20) + 1, 23 << 20])
def test_what_flower_cuts_a_message_into_is_within_the_limits(size):
    """The largest request does not grow with the model, and a message of 64 GiB has its tree."""
    message = content(os.urandom(size))
    found = get_all_nested_objects(message)
    for name, one in found.items():
        asks = PushObjectRequest(object_id=name, object_content=one.deflate(), run_id=1 << 63)
        assert asks.ByteSize() + 1000 < OBJECT
    each = get_object_tree(message).ByteSize() / len(found)
    assert each * (1001 + (1 << 36) / (OBJECT - SMALL)) < TREE


# ------------------------------------------------------------------------------------ connections
def test_a_listener_closes_what_is_beyond_its_room():
    refusals = Counter()
    with (
        Listener(0, 2, 3, refusals.__getitem__, "127.0.0.1") as place,
        contextlib.ExitStack() as all_,
    ):
        place.listen()
        to = place.getsockname()

        def come(source):
            all_.enter_context(found := socket.create_connection(to, source_address=(source, 0)))
            try:
                return all_.enter_context(place.accept()[0])
            except ConnectionAbortedError:
                assert found.recv(1) == b""
                return None

        first = come("127.0.0.1")
        assert come("127.0.0.1") and not come("127.0.0.1")  # two of an address
        assert come("127.0.0.2") and not come("127.0.0.3")  # three in all
        first.close()
        refusals["127.0.0.1"] = connections.REFUSALS
        assert not come("127.0.0.1") and come("127.0.0.3")
        refusals.clear()
        assert not come("127.0.0.1")


def test_all_nodes_of_a_federation_may_be_behind_one_address():
    for clients in (1, 3, 50):
        each, total = connections.room(clients)
        assert 5 * clients + 16 < each <= total


ALONE = """
import sys
from pathlib import Path
from starlette.responses import Response
from fedloom_flower.flower_app import admission, gate
from fedloom_flower.folder import Folder

fed, refusals = Folder(Path(sys.argv[1])), admission.Refusals()
flower = Response(status_code=503)
nodes = gate.Nodes(gate.Gate(fed, flower, refusals), fed, refusals)
nodes.server.run([nodes.listener])
"""


class Served:
    """A gate as a process of its own, behind which nobody is."""

    def __init__(self, fed):
        self.fed, self.port = fed, fed.settings().port
        self.trusted = ssl.create_default_context(cafile=str(fed.certificate("ca")))
        self.log = fed.home / "log"
        with open(self.log, "wb") as out:
            words = [sys.executable, "-c", ALONE, str(fed.path)]
            self.process = subprocess.Popen(words, stdout=out, stderr=out)

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    def open(self):
        plain = socket.create_connection(("127.0.0.1", self.port), 10)
        return self.trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    def answers(self):
        with contextlib.suppress(OSError), self.open():
            return True
        return False

    def push(self, headers, chunked, most):
        """Send a body as fast as it is taken -> bytes that were taken, the answer."""
        piece, sent = bytes(1 << 16), 0
        with self.open() as place:
            given = headers | (
                {"transfer-encoding": "chunked"} if chunked else {"content-length": str(most)}
            )
            told = "".join(f"{k}: {v}\r\n" for k, v in given.items())
            place.sendall(f"POST {FLEET}push-object HTTP/1.1\r\nhost: x\r\n{told}\r\n".encode())
            with contextlib.suppress(OSError):
                while sent < most:
                    place.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
                    sent += len(piece)
            with contextlib.suppress(OSError):
                return sent, place.recv(12)
        return sent, b""


@pytest.fixture
def served(fed):
    found = Served(fed)
    try:
        until(found.answers, "the gate answers")
        yield found
    finally:
        found.process.terminate()
        found.process.wait(20)


def test_the_memory_of_a_gate_stays_flat(served, key):
    """Three bodies of 600 MB of each kind at a time took it, and Flower's server, to gigabytes."""
    assert served.push({}, False, 600 << 20)[1] in (b"HTTP/1.1 401", b"")  # all is imported
    before, kinds = served.memory(), strangers(key)
    once = signed(key)
    assert served.push(once, False, 1 << 16)[1] == b"HTTP/1.1 503"  # nobody is behind this gate
    named = [kinds["no header"], kinds["another time"], kinds["an old time"], once]
    done = []

    def attack(headers, chunked):
        done.append(served.push(headers() if callable(headers) else headers, chunked, 600 << 20))

    for headers in (*named, lambda: signed(key)):
        for chunked in (False, True):
            threads = [threading.Thread(target=attack, args=(headers, chunked)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    assert len(done) == 30 and max(sent for sent, _ in done) < 30 << 20
    assert {told for _, told in done} <= {b"HTTP/1.1 401", b"HTTP/1.1 413", b""}
    assert served.memory() - before < 60 << 20
    assert served.push(signed(key), False, 1 << 16)[1] == b"HTTP/1.1 503"
    lines = [line for line in served.log.read_text().splitlines() if "INFO:" not in line]
    assert 0 < len(lines) <= 21 and all(line.startswith("refused 127.0.0.1: ") for line in lines)


def test_connections_without_a_request_and_headers_without_an_end_are_closed(served):
    with served.open() as place:
        place.settimeout(30)
        place.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\n" + b"a: " + b"b" * (1 << 15))
        assert place.recv(12) in (b"HTTP/1.1 400", b"")
    with served.open() as place:
        place.settimeout(30)
        began = time.monotonic()
        place.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: ")
        assert place.recv(1) == b""
        assert time.monotonic() - began < 20


def test_a_node_that_waits_when_the_server_ends_is_told_to_ask_again(served, key):
    """After a 500 Flower's node asks nobody any more, though it stays alive."""
    with served.open() as place:
        place.settimeout(30)
        given = signed(key) | {"content-length": "1000"}
        told = "".join(f"{k}: {v}\r\n" for k, v in given.items())
        place.sendall(f"POST {FLEET}push-object HTTP/1.1\r\nhost: x\r\n{told}\r\nbegun".encode())
        time.sleep(1)  # it waits for the rest
        served.process.terminate()
        assert place.recv(12) == b"HTTP/1.1 503"
