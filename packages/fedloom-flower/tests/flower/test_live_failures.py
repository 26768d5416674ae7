"""What fails in a federation costs the updates that did not come, and nothing else: each run equals
the simulation of exactly those who answered, whose client states are all of one piece.
"""

from __future__ import annotations

import re
import shutil
import signal
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federations.live import live, until
from fedloom_flower.certificates import make_authority, make_node_key
from fedloom_flower.children import Children, FlowerError
from fedloom_flower.folder import Folder
from fedloom_flower.programs import GAVE_UP, begin
from fedloom_flower.programs import node as connection

pytestmark = [pytest.mark.flower, pytest.mark.slow]

# every update has two vectors, and client states both of the method and of the error feedback
STATEFUL = ["algorithm=scaffold", "compress=topk:0.2", "compress.feedback=residual", "rounds=5"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live(tmp_path_factory.mktemp("fed") / "fed") as there:
        there.server()
        yield there


@pytest.fixture
def federation(server):
    """Three nodes that have not begun."""
    server.set(*STATEFUL)
    server.nodes()
    yield server
    for name in [n for n in server.processes if n != "server"]:
        server.end(name)
    server.stop()
    server.connected(0)


@pytest.fixture
def begun(federation):
    """The number of a run whose first round is done."""
    number = federation.begin()
    federation.done(1)
    return number


def ends_well(federation, number, tmp_path, missing=None):
    """missing: whether an update has to be, None: it may be."""
    assert federation.finished(number) == "finished:completed"
    assert missing is None or bool(federation.missing()) == missing
    federation.equals_simulation(tmp_path / "alone")


def test_a_client_process_is_killed(federation, begun, tmp_path):
    """The same message is sent again, and answered; or the update is missing."""
    federation.send("node1", signal.SIGSTOP)  # so that its process must wait
    until(lambda: federation.children("node1", "clientapp"), "client 1 is asked")
    federation.kill("node1", "clientapp")
    federation.send("node1", signal.SIGCONT)
    ends_well(federation, begun, tmp_path)


@pytest.mark.parametrize("how", ["off", "late"])
def test_a_node_is_off_for_a_while_or_late(how, federation, begun, tmp_path):
    """It is asked for an older state of the client in the next round, and has it."""
    if how == "off":
        federation.end("node1", signal.SIGKILL)
    else:
        federation.send("node1", signal.SIGSTOP)
    until(lambda: federation.missing(), "an update is missing")
    if how == "off":
        federation.node(1)
    else:
        federation.send("node1", signal.SIGCONT)
    ends_well(federation, begun, tmp_path, missing=True)
    assert (4, 1) not in federation.missing()  # it was there again in the last round


def test_a_node_loses_its_disk(federation, begun, tmp_path):
    """With SCAFFOLD its client is out for the rest of the run, and told why."""
    federation.end("node0")
    shutil.rmtree(federation.fed.path / "nodes" / "0" / "states")
    federation.node(0)
    ends_well(federation, begun, tmp_path, missing=True)
    assert (4, 0) in federation.missing()
    assert "client state is lost" in (federation.fed.run / "clients.jsonl").read_text()


def test_a_hostile_node(federation, tmp_path):
    federation.end("node2")
    hostile = Path(__file__).with_name("hostile_node.py")
    federation.start("node2", hostile, federation.fed.path, 2)
    federation.connected()
    ends_well(federation, federation.begin(), tmp_path, missing=True)
    assert {i for _, i in federation.missing()} == {2}


def test_a_server_that_sends_another_app(federation, tmp_path):
    app, sign = federation.fed.app / "fedloom_app" / "client.py", tmp_path / "ran"
    before = app.read_text()
    app.write_text(f"open({str(sign)!r}, 'w').close()\n{before}")
    try:
        number = federation.begin()
    finally:
        app.write_text(before)
    ends_well(federation, number, tmp_path, missing=False)
    assert not sign.exists()
    assert not list(federation.fed.path.glob("nodes/*/flower/apps/*"))


def test_the_servers_process_is_killed(federation, begun, tmp_path):
    federation.kill("server", "flwr-serverapp")
    assert federation.finished(begun) != "finished:completed"
    ends_well(federation, federation.begin(), tmp_path, missing=False)


def test_flowers_server_is_killed(federation, begun, tmp_path):
    """The command ends, and its loop starts it again, as that of every node that gave up."""

    def answers():
        try:
            federation.connected(3)
        except Exception:  # it asks a server that may be gone: any error is a no
            return False
        return True

    federation.kill("server", "flower_app.superlink")
    time.sleep(5)
    until(answers, "Flower's server answers again")
    assert federation.finished(begun) != "finished:completed"
    federation.connected()
    ends_well(federation, federation.begin(), tmp_path)


def test_flowers_programs_at_a_node_are_killed(federation, begun, tmp_path):
    running = lambda word: federation.children("node1", word)
    for word in ("flower-supernode", "flower_app.executor"):
        until(lambda word=word: running(word), f"{word} runs")
        before = running("deploy node")
        federation.kill("node1", word)
        until(lambda then=before: running("deploy node") not in ([], then), "the node is anew")
    ends_well(federation, begun, tmp_path)


def test_a_second_run_is_not_begun_beside_the_first(federation):
    begin(federation.fed)
    with pytest.raises(FlowerError, match="already; see `fedloom deploy status`"):
        begin(federation.fed)


def words_of(program):
    with pytest.raises(FlowerError), Children() as children:
        children.start(program)
        children.wait()
    return program.log.read_text()


def test_strangers_are_refused(server, tmp_path):
    """Another key, no key, another authority, no TLS; and commands do not pass the gate."""
    place = tmp_path / "stranger"
    shutil.copytree(server.fed.path / "nodes" / "0", place)
    fed = Folder(place, 0)
    make_node_key(fed.secret("node"))
    (_, stranger), log = connection(fed, tmp_path / "place"), tmp_path / "log"
    assert "code: 2004" in words_of(replace(stranger, log=log))
    at = stranger.command.index("--auth-supernode-private-key")
    keyless = stranger.command[:at] + stranger.command[at + 2 :]
    said = words_of(replace(stranger, command=keyless, log=log))
    assert "Failed to initialize the connection" in said
    make_authority(fed, "127.0.0.1")
    assert re.search("|".join(GAVE_UP), words_of(connection(fed, tmp_path / "other")[1]))

    port, ca = server.fed.settings().port, server.fed.certificate("ca")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/fleet/pull-messages", b"", 20)
    trusted = ssl.create_default_context(cafile=str(ca))
    for path in ("control/start-run", "control/list-nodes", "runtime/acquire-task"):
        for before in ("v1/", "v1/fleet/../", "v1/fleet/%2e%2e/", "V1/"):
            with pytest.raises(urllib.error.HTTPError, match=r"40[45]"):
                where = f"https://127.0.0.1:{port}/{before}{path}"
                urllib.request.urlopen(where, b"", 20, context=trusted)
