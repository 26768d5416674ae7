"""What strangers, and nodes that became hostile, can do to the process that the network reaches;
and how nodes get their messages from it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import types
from collections import Counter

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from federations.gated import FLEET, Gated, Unread, Waiting, key_of, signed
from federations.live import until
from fedloom.config import resolve
from fedloom.errors import ConfigError
from fedloom_flower import programs
from fedloom_flower.certificates import make_node_key
from fedloom_flower.children import FlowerError
from fedloom_flower.clients import Entry, read_clients
from fedloom_flower.flower_app import gate, server
from fedloom_flower.flower_app.gate import Listener
from fedloom_flower.flower_app.records import content, raw
from fedloom_flower.new import make
from support.ranks import free_port

pytestmark = [pytest.mark.flower]
OBJECT, TREE, SMALL = (gate.LONGEST[n] for n in ("push-object", "push-messages", "get-run"))


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    ports = {"port": free_port(), "local_port": free_port()}
    path = tmp_path_factory.mktemp("f") / "fed"
    made = make(resolve("digits", ["data.clients=3"]), path, None, ports)
    made.home.mkdir()
    return made


@pytest.fixture(scope="module")
def key(fed):
    return key_of(fed.node(0).secret("node"))


@pytest.fixture
def gated(fed):
    with Gated(fed) as there:
        yield there


# ------------------------------ who is admitted
def strangers(key):
    """{what is wrong: headers}."""
    good, mine = signed(key), signed(ec.generate_private_key(ec.SECP384R1()))
    without = lambda name: {k: v for k, v in good.items() if k != f"flwr-{name}"}
    public, now = "flwr-public-key", "flwr-timestamp"
    coded = lambda text: base64.b64encode(text).decode()
    return {
        "no header": {},
        "no key": without("public-key"),
        "no signature": without("signature"),
        "no time": without("timestamp"),
        "a key that is not in the roll": mine,
        "another one's key": mine | {public: good[public]},
        "another time": good | {now: signed(key, 1.0)[now]},
        "an old time": signed(key, 306.0),
        "a time to come": signed(key, -6.0),
        "a time without a zone": good | {now: "2026-01-01T00:00:00"},
        "a time that overflows": good | {now: "0001-01-01T00:00:00+23:59"},
        "no time at all": good | {now: "x"},
        "no base64": good | {"flwr-signature": "!"},
        "no DER": good | {"flwr-signature": coded(b"signature")},
        "a key of letters": good | {public: coded(b"key")},
        "letters beyond ASCII": good | {now: "\u00b2026-01-01T00:00:00+00:00"},
    }


@pytest.mark.parametrize("wrong", strangers(ec.generate_private_key(ec.SECP384R1())))
def test_a_strangers_body_is_not_read(gated, key, wrong):
    body = Unread()
    status, headers = gated.raw("push-object", strangers(key)[wrong], body)
    assert status in (401, 403) and headers[b"connection"] == b"close"
    assert body.read == 0 and not gated.seen


def test_a_node_is_told_that_its_key_is_unknown_in_flowers_form(gated):
    body, headers = Unread(), signed(ec.generate_private_key(ec.SECP384R1()))
    assert gated.raw("activate-node", headers, body)[0] == 412 and not body.read
    told = gated("activate-node", headers).json()
    assert told == {"code": 2004, "detail": "this key is not in the server's clients.toml"}


@pytest.mark.parametrize(
    ("name", "method", "refused"),
    [
        ("register-node", "POST", 404),
        ("../control/start-run", "POST", 404),
        ("", "POST", 404),
        ("pull-messages/", "POST", 404),
        ("PULL-MESSAGES", "POST", 404),
        ("pull-messages", "PUT", 405),
    ],
)
def test_only_requests_of_nodes_pass_and_only_by_post(gated, key, name, method, refused):
    body = Unread()
    status, headers = gated.raw(name, signed(key), body, method)
    assert status == refused and headers[b"connection"] == b"close"
    assert not body.read and not gated.seen


def test_a_hosts_name_does_not_lead_to_another_path(gated, key):
    gated.status = 401
    gated("pull-messages", signed(key) | {"host": "x/v1/control/start-run?"})
    assert [request.path for request in gated.seen] == [FLEET + "pull-messages"]


def test_what_a_node_signs_passes_whole(gated, key):
    for age in (0.0, 304.0, -4.0):
        assert gated("push-object", signed(key, age), b"whole").status_code == 200
    assert [request.content for request in gated.seen] == [b"whole"] * 3
    assert gated("push-object", signed(key), bytes(OBJECT)).status_code == 200


@pytest.mark.parametrize(("name", "most"), sorted(gate.LONGEST.items()))
def test_a_body_is_not_longer_than_its_route_allows(gated, key, name, most):
    """By what it announces, and by what comes if it announces nothing, or lies."""
    assert most <= 6 << 20
    announced = {"content-length": str(most + 1)}
    for more in (announced, {}, {"transfer-encoding": "chunked"}, {"content-length": "5"}):
        body = Unread()
        status, headers = gated.raw(name, signed(key) | more, body)
        assert status == 413 and headers[b"connection"] == b"close"
        assert body.read <= (0 if more == announced else most + (1 << 16))
    assert not gated.seen
    assert gated(name, signed(key), b"1").status_code == 200


def test_flower_learns_a_key_that_the_gate_has_checked(gated, key):
    assert gated("activate-node", signed(key), b"\n\x03key").status_code == 200
    names = [request.path.removeprefix(FLEET) for request in gated.seen]
    assert names == ["register-node", "activate-node"]
    assert {request.content for request in gated.seen} == {b"\n\x03key"}
    gated("activate-node", signed(ec.generate_private_key(ec.SECP384R1())), b"")
    assert len(gated.seen) == 2


def test_a_request_to_activate_begins_as_one_to_register():
    asks = ActivateNodeRequest(public_key=b"key", heartbeat_interval=30)
    learns = RegisterNodeFleetRequest.FromString(asks.SerializeToString())
    assert learns.public_key == b"key"


def test_a_node_has_few_requests_under_way(fed, key):
    """However large its bodies are, it holds 16 of them; the others' nodes are not in its way."""
    other = key_of(fed.node(1).secret("node"))
    pems = [base64.b64decode(signed(one)["flwr-public-key"]) for one in (key, other)]
    mine, path = gate.Admission(pems), FLEET + "push-object"
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(mine.admitted(path, signed(key)))
        with pytest.raises(gate.Refusal) as no, mine.admitted(path, signed(key)):
            pass
        assert no.value.status == 503  # Flower's node asks again
        stack.enter_context(mine.admitted(path, signed(other)))
    with contextlib.ExitStack() as stack:  # and all its places are free again
        for _ in range(16):
            stack.enter_context(mine.admitted(path, signed(key)))


def test_a_body_that_does_not_end_is_given_up(gated, key, monkeypatch):
    monkeypatch.setattr(gate, "_SECONDS", 0.2)

    async def slow():
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b".", "more_body": True}

    began = time.monotonic()
    status, headers = gated.raw("push-object", signed(key), slow)
    assert status == 408 and headers[b"connection"] == b"close"
    assert time.monotonic() - began < 2 and not gated.seen
    assert gated("push-object", signed(key), b"1").status_code == 200  # its place is free


def test_a_node_that_goes_away_in_mid_body_leaves_nothing(gated, key, caplog):
    async def gone():
        return {"type": "http.disconnect"}

    with pytest.raises(IndexError):  # no answer
        gated.raw("push-object", signed(key), gone)
    assert not gated.seen and not caplog.records


def test_a_running_gate_takes_another_list_of_clients(fed, gated, key):
    text, clients = fed.clients_file.read_text(), read_clients(fed.clients_file)
    new, (first, *others) = make_node_key(fed.path / "new"), clients.client
    entries = [first.model_copy(update={"removed": True}), *others, Entry(key=new)]
    changed = clients.model_copy(update={"client": entries}).to_toml()
    keys = key, key_of(fed.path / "new")
    status = lambda: [gated("push-object", signed(one)).status_code for one in keys]
    assert status() == [200, 403]
    for listed, admitted in (("[[client", [200, 403]), (changed, [403, 200])):
        fed.clients_file.write_text(listed)
        time.sleep(1.5)
        assert status() == admitted
    told = gated("activate-node", signed(key))
    assert told.status_code == 412 and "this site was taken out" in told.json()["detail"]
    fed.clients_file.write_text(text)


def test_refusals_are_a_line_each_and_not_many(gated, caplog, monkeypatch):
    for k in range(50):
        gated.raw(f"evil\n\x1b[2J{k}", {}, Unread(1))
    lines = caplog.messages
    assert len(lines) == 20 and lines[0].startswith("refused 198.18.0.9: /v1/fleet/evil [2J0: no ")
    assert all(line.isprintable() and len(line) < 150 for line in lines)
    clock = [0.0]  # the next minute counts anew, and tells how many there were
    monkeypatch.setattr(gate.time, "monotonic", lambda: clock[0])
    refusals = gate.Refusals()
    for _ in range(30):
        refusals.add("a", "/", "no")
    assert (refusals.count("a"), refusals.count("b")) == (30, 0)
    clock[0] = 61.0
    assert refusals.count("a") == 0
    assert caplog.messages[-1] == "and 10 refusals more in that minute"


# ------------------------------ messages
def test_a_node_that_waits_for_messages_gets_those_that_come(gated, key, monkeypatch):
    gated.says = b""
    node = Waiting(gated, key)
    gated.tell()
    time.sleep(0.3)
    assert len(gated.seen) == 2 and not node.ends.done()
    gated.says = b"m" * 100
    gated.tell()
    assert node.ends.result(5)[1]["body"] == b"m" * 100 and len(gated.seen) == 3
    gated.says = b""  # and not for ever, and a stranger not at all
    monkeypatch.setattr(gate, "_HOLD", 0.3)
    assert gated("pull-messages", signed(key)).content == b"" and len(gated.seen) == 5
    monkeypatch.setattr(gate, "_HOLD", 60.0)
    gated.status = 401
    assert gated("pull-messages", signed(key)).status_code == 401


@pytest.mark.parametrize("why", ["gone", "activate-node", "pull-messages"])
def test_no_message_is_fetched_for_a_node_that_is_gone_or_began_anew(gated, key, why):
    """It would be lost: Flower gives each once, and a network does not say that a node is gone."""
    gated.says = b""
    before = Waiting(gated, key)
    gated.says = b"m" * 100
    if why == "gone":
        before.gone.set()
        assert before.ends.result(5)
    else:
        assert gated(why, signed(key)).content == gated.says
        assert before.ends.result(5)[1].get("body", b"") == b""
    count = len(gated.seen)
    gated.tell()
    time.sleep(0.3)
    assert len(gated.seen) == count == {"gone": 1, "pull-messages": 2, "activate-node": 3}[why]


def test_a_message_is_bytes_or_nothing():
    for value in (10**12, 1.5, "text", [1, 2]):
        assert raw(RecordDict({"fedloom": ConfigRecord({"message": value})})) == b""
    for sent in (b"small", bytes(3 << 20)):
        assert raw(content(sent)) == sent


@pytest.mark.parametrize("size", [0, 1 << 20, (1 << 20) + 1, 23 << 20])
def test_what_flower_cuts_a_message_into_is_within_the_limits(size):
    """The largest request does not grow with the model, and a message of 64 GiB has its tree."""
    message = content(os.urandom(size))
    objects = get_all_nested_objects(message)
    for name, one in objects.items():
        asks = PushObjectRequest(object_id=name, object_content=one.deflate(), run_id=1 << 63)
        assert asks.ByteSize() + 1000 < OBJECT
    each = get_object_tree(message).ByteSize() / len(objects)
    assert each * (1001 + (1 << 36) / (OBJECT - SMALL)) < TREE


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


def test_an_expired_certificate_is_named(fed, monkeypatch):
    with pytest.raises(FlowerError, match="does not answer; start it with `fedloom deploy server"):
        programs.run_flwr(fed, "list")
    monkeypatch.setattr(programs, "days_left", lambda path: -2)
    says = r"expired . days ago, and no node accepts it; make another"
    for begun in (lambda: programs.link(fed), lambda: programs.run_flwr(fed, "list")):
        with pytest.raises(ConfigError, match=says):
            begun()


# ------------------------------ connections
def test_a_listener_closes_what_is_beyond_its_room():
    refusals = Counter()
    with (
        Listener(0, 2, 3, refusals.__getitem__, "127.0.0.1") as place,
        contextlib.ExitStack() as stack,
    ):
        place.listen()
        to = place.getsockname()

        def come(source):
            stack.enter_context(end := socket.create_connection(to, source_address=(source, 0)))
            try:
                return stack.enter_context(place.accept()[0])
            except ConnectionAbortedError:
                assert end.recv(1) == b""
                return None

        first = come("127.0.0.1")
        assert come("127.0.0.1") and not come("127.0.0.1")  # two of an address
        assert come("127.0.0.2") and not come("127.0.0.3")  # three in all
        first.close()
        refusals["127.0.0.1"] = gate.REFUSALS
        assert not come("127.0.0.1") and come("127.0.0.3")
        refusals.clear()
        assert not come("127.0.0.1")


def test_all_nodes_of_a_federation_may_be_behind_one_address():
    for clients in (1, 3, 50):
        each, total = gate.room(clients)
        assert 5 * clients + 16 < each <= total


ALONE = """
import sys
from pathlib import Path
from starlette.responses import Response
from fedloom_flower.flower_app import gate
from fedloom_flower.folder import Folder

fed, refusals = Folder(Path(sys.argv[1])), gate.Refusals()
flower = Response(status_code=503)
nodes = gate.Nodes(gate.Gate(fed, flower, refusals), fed, refusals)
nodes.server.run([nodes.listener])
"""


class Served:
    """A gate as a process of its own, behind which nobody is."""

    def __init__(self, fed):
        self.port, self.log = fed.settings().port, fed.home / "log"
        self.trusted = ssl.create_default_context(cafile=str(fed.certificate("ca")))
        with open(self.log, "wb") as out:
            words = [sys.executable, "-c", ALONE, str(fed.path)]
            self.process = subprocess.Popen(words, stdout=out, stderr=out)

    def memory(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    def open(self, begun="", headers=()):
        """A connection. begun: a request that begins with this, and then has such headers."""
        plain = socket.create_connection(("127.0.0.1", self.port), 30)
        place = self.trusted.wrap_socket(plain, server_hostname="127.0.0.1")
        lines = "".join(f"{k}: {v}\r\n" for k, v in dict(headers).items())
        place.sendall((begun + lines + ("\r\n" if lines else "")).encode())
        return place

    def answers(self):
        with contextlib.suppress(OSError), self.open():
            return True
        return False

    def push(self, headers, chunked, most):
        """Send a body as fast as it is taken -> bytes that were taken, the answer."""
        piece, sent = bytes(1 << 16), 0
        length = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(most)}
        with self.open(PUSH, headers | length) as place:
            with contextlib.suppress(OSError):
                while sent < most:
                    place.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
                    sent += len(piece)
            with contextlib.suppress(OSError):
                return sent, place.recv(12)
        return sent, b""


PUSH = f"POST {FLEET}push-object HTTP/1.1\r\nhost: x\r\n"
GET = f"POST {FLEET}get-run HTTP/1.1\r\n"


@pytest.fixture
def served(fed):
    there = Served(fed)
    try:
        until(there.answers, "the gate answers")
        yield there
    finally:
        there.process.terminate()
        there.process.wait(20)


def test_the_memory_of_a_gate_stays_flat(served, key):
    """Three bodies of 600 MB of each kind at a time took it, and Flower's server, to gigabytes."""
    assert served.push({}, False, 600 << 20)[1] in (b"HTTP/1.1 401", b"")  # all is imported
    before, kinds, once, done = served.memory(), strangers(key), signed(key), []
    assert served.push(once, False, 1 << 16)[1] == b"HTTP/1.1 503"  # nobody is behind this gate
    named = [kinds["no header"], kinds["another time"], kinds["an old time"], once]

    def attack(headers, chunked):
        done.append(served.push(headers or signed(key), chunked, 600 << 20))

    for headers in (*named, None):
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
    with served.open(GET + "a: " + "b" * (1 << 15)) as place:
        assert place.recv(12) in (b"HTTP/1.1 400", b"")
    with served.open(GET + "host: ") as place:
        began = time.monotonic()
        assert place.recv(1) == b"" and time.monotonic() - began < 20


def test_a_node_that_waits_when_the_server_ends_is_told_to_ask_again(served, key):
    """After a 500 Flower's node asks nobody any more, though it stays alive."""
    with served.open(PUSH, signed(key) | {"content-length": "1000"}) as place:
        place.sendall(b"begun")
        time.sleep(1)  # it waits for the rest
        served.process.terminate()
        assert place.recv(12) == b"HTTP/1.1 503"
