"""A node's executor has the tasks of its own SuperNode, and nobody else has a task's token."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import types
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import certifi
import uvicorn
from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import Status
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import heartbeat
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.runtime import run_clientapp

from federations.live import alive, until
from fedloom.config import resolve
from fedloom_flower.certificates import make_authority
from fedloom_flower.children import Children
from fedloom_flower.flower_app import executor
from fedloom_flower.flower_app.executor import NAME
from fedloom_flower.flower_app.records import raw
from fedloom_flower.folder import Folder
from fedloom_flower.new import make
from fedloom_flower.programs import node

pytestmark = [pytest.mark.flower]
WANTED = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]).SerializeToString()
TOKEN = re.compile(rb"[0-9a-f]{256}")


@pytest.fixture
def programs(tmp_path):
    """What a node runs: its executor, and Flower's SuperNode."""
    fed = make(resolve("digits", ["data.clients=3"]), tmp_path / "fed", None, {})
    (tmp_path / "place").mkdir(mode=0o700)
    return node(fed.node(0), tmp_path / "place")


@contextlib.contextmanager
def answering(command, certificates):
    """Flower's own answers at a SuperNode's port -> its state."""
    word = lambda name: command[command.index(name) + 1]
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    secret = Path(word("--superexec-auth-secret-file")).read_bytes()
    config = uvicorn.Config(
        create_app(factory, secret),
        port=int(word("--port")),
        log_level="critical",
        ssl_certfile=str(certificates.certificate("server")),
        ssl_keyfile=str(certificates.secret("server")),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    with warnings.catch_warnings(action="ignore"):
        thread.start()
        try:
            until(lambda: server.started, "the port answers", 20)
            yield factory.state(), f"https://127.0.0.1:{config.port}"
        finally:
            server.should_exit = True
            thread.join()


def said_anywhere():
    words = b""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words += file.read_bytes()
    return words


def first_child(parent: int, seconds: float) -> int:
    """The first process that another one forks, once it has its name and so ends with it."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for child in map(int, children.read_text().split()):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == NAME:
                    return child
        time.sleep(0.005)
    raise AssertionError(f"waited {seconds:g} s for a process of {parent}")


def task_in(state):
    number = state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="0")
    status = lambda: state.get_tasks(task_ids=[number])[0].status.status
    assert status() == Status.PENDING
    return number, status


def test_only_the_executor_is_given_a_task_and_its_token_is_in_no_command(programs, tmp_path):
    taker, supernode = programs
    with answering(supernode.command, Folder(tmp_path / "place")) as (state, where):
        number, status = task_in(state)
        open_to_all = ssl._create_unverified_context()
        ask = urllib.request.Request(
            f"{where}/v1/runtime/acquire-task", WANTED, {"content-type": "application/protobuf"}
        )
        with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
            urllib.request.urlopen(ask, timeout=20, context=open_to_all)
        assert status() == Status.PENDING
        tokens = state.task_token_store
        with Children() as children:
            children.start(taker)
            until(lambda: status() != Status.PENDING, "the executor has the task", 60)
            token = tokens[number].token.encode() if number in tokens else b"0" * 256
            assert TOKEN.fullmatch(token) and token not in said_anywhere()
    assert token.decode() not in taker.log.read_text()


def test_the_executor_asks_no_program_that_has_taken_the_port(programs, tmp_path):
    """Another account may have it first, and would give it tasks with any app."""
    taker, supernode = programs
    stranger = Folder(tmp_path / "stranger")
    make_authority(stranger, "127.0.0.1")
    with answering(supernode.command, stranger) as (state, _), Children() as children:
        children.start(taker)
        _, status = task_in(state)
        with pytest.raises(AssertionError, match="waited"):
            until(lambda: status() != Status.PENDING, "it is asked", 8)
        children.check()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the processes are found in /proc")
def test_a_message_s_process_ends_with_the_executor(programs, tmp_path):
    taker, supernode = programs
    with answering(supernode.command, Folder(tmp_path / "place")) as (state, _):
        task_in(state)
        with subprocess.Popen(taker.command, env=taker.environment) as process:
            try:
                child = first_child(process.pid, 60)
                os.kill(child, signal.SIGSTOP)  # as one that waits for an answer, and hears nothing
            finally:
                process.kill()
        until(lambda: not alive(child), "the message's process has ended", 10)


def test_an_app_that_the_server_sends_is_not_run(monkeypatch):
    """What Flower hands over beside the message is touched by nothing: here it has no attribute."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 7, 1
    sent = Message(RecordDict(), 7, MessageType.TRAIN)
    task = (sent, types.SimpleNamespace(node_id=7, node_config={"socket": "s"}), object(), object())
    monkeypatch.setattr(run_clientapp, "pull_task_input", lambda node: task)
    pushed, ended = [], []
    monkeypatch.setattr(run_clientapp, "push_message", lambda node, *more: pushed.append(more))
    monkeypatch.setattr(run_clientapp, "push_task_output", lambda node, *more: ended.append(more))
    monkeypatch.setattr(heartbeat.HeartbeatSender, "start", lambda self: None)
    monkeypatch.setattr(heartbeat.HeartbeatSender, "stop", lambda self: None)
    with warnings.catch_warnings(action="ignore"):
        authority = Path(certifi.where()).read_bytes()
    monkeypatch.setattr(executor, "ask_node", lambda socket, raw: socket.encode() + b": " + raw)
    executor._answer("127.0.0.1:9", authority, "token")
    ((reply, context),), (end,) = pushed, ended
    assert raw(reply.content) == b"s: " and context is task[1]
    assert end == (task[1], "completed", "")

    def fails(socket, raw):
        raise ValueError("of the node")

    monkeypatch.setattr(executor, "ask_node", fails)
    executor._answer("127.0.0.1:9", authority, "token")
    (reply, _), (_, status, why) = pushed[1], ended[1]
    assert reply.has_error() and reply.error.reason == why == "ValueError: of the node"
    assert status == "failed"
