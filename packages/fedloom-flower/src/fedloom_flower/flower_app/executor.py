"""Takes tasks from Flower, and starts a process for each: a node's for every message, the server's
for a run.

Flower's own executor needs no secret to be given a task, and puts the task's token on a command
line, which every account of the machine can read. This one proves who it is, takes Flower's program
by its certificate alone, and hands the token on in memory or as an open file without a name. A
node's fork has Flower's imports, which take 2.3 s of a core in a new process, and hands the message
to the node: the app that a server sends is neither written to the disk nor imported.

python -m fedloom_flower.flower_app.executor node|server ADDRESS SECRET CERTIFICATE
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.core.child_processes import ended_with_parent

from ..local_socket import ask_node
from .superlink import authorization

NAME = "flwr-clientapp"
_SERVER = "flwr-serverapp"
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
# seconds until Flower is asked for a task again: soon after one, as the next exchange of a round
# may follow, up to half a second where there is none; each question costs 3 ms of a core
_POLL, _IDLE = 0.1, 0.5
# seconds before a fork asks for its message: the SuperNode makes a task before it stores the
# message, and would wait for ever for the answer of a process that came in between
_SETTLE = 0.05
_RAISED = 2  # Flower's code of an error: the app raised an exception


class _Operator:
    """Adds the operator's token to requests, see superlink.py."""

    def __init__(self, token: str) -> None:
        self._value = authorization(token)

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add it, and go on with the next."""
        context.request.headers["authorization"] = self._value
        return call_next(context)


def serve_node(address: str, secret: Path, certificate: Path) -> None:
    """Fork a process for each task of the SuperNode at an address. secret: what both know;
    certificate: the SuperNode's authority.
    """
    # what an answer needs: forks need not import it then
    import flwr.supercore.heartbeat
    import flwr.supercore.retry
    import flwr.supernode.runtime.run_clientapp  # noqa: F401
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    from . import records  # noqa: F401

    signing = SuperExecAuthHttpInterceptor(
        master_secret=secret.read_bytes(), protected_methods=[_ACQUIRE]
    )
    trusted = certificate.read_bytes()
    node = RuntimeHttpClient.from_server_address(address, False, trusted, [signing])
    fork, ends = multiprocessing.get_context("fork"), ended_with_parent(signal.SIGKILL)
    for token in _tasks(node, NAME):
        arguments = ends, address, trusted, token
        fork.Process(target=_begin_answer, args=arguments, daemon=True).start()


def serve_server(address: str, secret: Path, certificate: Path) -> None:
    """Start `flwr-serverapp` for each run that the SuperLink at an address has. secret: the file
    with the operator's token; certificate: the SuperLink's authority. A run's process is of this
    one's group, and ends with it.
    """
    from flwr.supercore.runtime import RuntimeHttpClient

    operator = _Operator(secret.read_text(encoding="ascii"))
    trusted = certificate.read_bytes()
    superlink = RuntimeHttpClient.from_server_address(address, False, trusted, [operator])
    command = [str(Path(sys.executable).with_name(_SERVER)), "--runtime-api-address", address]
    command += ["--root-certificates", str(certificate), "--parent-pid", str(os.getpid())]
    ends, runs = ended_with_parent(signal.SIGKILL), list[subprocess.Popen[bytes]]()
    for token in _tasks(superlink, _SERVER):
        runs = [run for run in runs if run.poll() is None]
        with tempfile.TemporaryFile() as file:
            file.write(token.encode("ascii"))
            file.flush()
            inherited = file.fileno()
            arguments = [*command, "--token-file", f"/dev/fd/{inherited}"]
            runs.append(subprocess.Popen(arguments, pass_fds=[inherited], preexec_fn=ends))


def _tasks(flower: Any, kind: str) -> Iterator[str]:
    """The tokens of tasks of a kind, as they come."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    request, pause = AcquireTaskRequest(supported_task_types=[kind]), _POLL
    while True:
        pause = min(1.2 * pause, _IDLE)
        with contextlib.suppress(httpx.TransportError):  # it is being started, or is another's
            if token := flower.AcquireTask(request).token:
                pause = _POLL
                yield token
        time.sleep(pause)


def _begin_answer(ends: Callable[[], None], *arguments: Any) -> None:
    """Answer in this process, which ends with the executor."""
    ends()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(15, NAME.encode(), 0, 0, 0)  # PR_SET_NAME: what ps and top show
    time.sleep(_SETTLE)
    _answer(*arguments)


def _answer(address: str, certificate: bytes, token: str) -> None:
    """Have the node's own process, which stays, answer the message of a task."""
    from flwr.app import Error, Message
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import (
        pull_task_input,
        push_message,
        push_task_output,
    )

    from .records import content, raw

    node = RuntimeHttpClient.from_server_address(
        address,
        False,
        certificate,
        [RuntimeTokenHttpInterceptor(token)],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(node))
    heartbeat.start()
    message, context, _, _ = pull_task_input(node)  # the last is the app that was sent: not used
    status, why = "completed", ""
    try:
        answer = ask_node(str(context.node_config["socket"]), raw(message.content))
        reply = Message(content(answer), reply_to=message)
    except Exception as error:  # whatever went wrong is the answer: the server waits for one
        traceback.print_exc()
        status, why = "failed", f"{type(error).__name__}: {error}"
        reply = Message(Error(_RAISED, why), reply_to=message)
    push_message(node, reply, context)
    push_task_output(node, context, status, why)
    heartbeat.stop()
    node.close()


if __name__ == "__main__":
    kind, where, *files = sys.argv[1:]
    (serve_server if kind == "server" else serve_node)(where, *map(Path, files))
