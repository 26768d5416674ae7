"""A node's executor: it takes tasks from Flower's SuperNode, and forks a process for each message.

Flower's own executor needs no secret to be given a task, and puts the task's token on a command
line, which every account of the machine can read. This one signs what it asks with a secret that
only its owner can read, takes the SuperNode by its certificate alone, and hands the token to the
fork in memory. A fork has Flower's imports, which take 2.3 s of a core in a new process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..children import ended_with_parent

NAME = "flwr-clientapp"
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
# seconds until the SuperNode is asked for a task again: soon after one, as the next exchange of a
# round may follow, and up to the second where there is none; each question costs 3 ms of a core
_POLL, _IDLE = 0.1, 0.5
# seconds before a fork asks for its message: the SuperNode makes a task before it stores the
# message, and would wait for ever for the answer of a process that came in between
_SETTLE = 0.05


def serve(address: str, secret: Path, certificate: Path) -> NoReturn:
    """Fork a process for each task of the SuperNode at an address. secret: what both know;
    certificate: the SuperNode's authority.
    """
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime import run_clientapp as flower

    _answer_with_own_app(flower)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork's end
    signing = SuperExecAuthHttpInterceptor(
        master_secret=secret.read_bytes(), protected_methods=[_ACQUIRE]
    )
    trusted = certificate.read_bytes()
    node = RuntimeHttpClient.from_server_address(address, False, trusted, [signing])
    run = partial(flower.run_clientapp, address, insecure=False, certificates=trusted)
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    ends, pause = ended_with_parent(signal.SIGKILL), _POLL
    while True:
        pause = min(1.2 * pause, _IDLE)
        with contextlib.suppress(httpx.TransportError):  # it is being started, or is another's
            if token := node.AcquireTask(wanted).token:
                pause = _POLL
                if os.fork() == 0:
                    ends()
                    _run(partial(run, token=token, parent_pid=os.getppid()))
        time.sleep(pause)


def _answer_with_own_app(flower: Any) -> None:
    """Have Flower's module of the client process run fedloom's app, whatever app a server sends:
    that one is neither written to the disk nor imported.
    """
    from .client import app

    nothing, loading = lambda *_, **__: None, lambda **_: lambda *_: app
    own = {"install_from_fab": nothing, "get_load_client_app_fn": loading}
    for name, replaced in own.items():
        getattr(flower, name)  # another Flower may have no such name, and would run what is sent
        setattr(flower, name, replaced)


def _run(app: Callable[[], object]) -> NoReturn:
    """Run Flower's program in this process, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(15, NAME.encode(), 0, 0, 0)  # PR_SET_NAME: what ps and top show
    code = 1
    try:
        time.sleep(_SETTLE)
        app()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
