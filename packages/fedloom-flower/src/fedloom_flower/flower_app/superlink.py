"""Flower's SuperLink behind two doors: nodes reach the gate, this machine the guard.

Flower serves nodes, commands and the server's own process at one port, and asks nobody who they
are: any account of the machine could start a run, whose code runs as the operator, or take the task
of the operator's run. Here the port that the network reaches answers the requests of nodes alone
(gate.py). The local one answers two kinds of requests: those for which Flower itself asks for a
task's token, and those that carry the operator's token of this start. FLWR_DATABASE in the
environment names the database.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from ..folder import Folder

# the name that stands before the token in an address of `flwr`, which makes a header of both
OPERATOR = "operator"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_PUSH = "/v1/runtime/push-messages"
# Flower asks for a task's token. All else wants the operator's token: commands, acquire-task, and
# what a later Flower adds
_NAMES = "send-task-heartbeat pull-task-input push-task-output push-logs push-messages"
_NAMES += " pull-messages push-object pull-object confirm-message-received get-nodes"
OPEN = {f"/v1/runtime/{name}" for name in _NAMES.split()}


def authorization(token: str) -> str:
    """The value of the header that the operator's requests carry."""
    return "Basic " + b64encode(f"{OPERATOR}:{token}".encode()).decode()


class Guard:
    """Passes a request on to an application if it is open to all, or the operator's. pushed: called
    when messages were sent.
    """

    def __init__(
        self, app: Application, token: str, pushed: Callable[[], object] = lambda: None
    ) -> None:
        self._app, self._authorization, self._pushed = app, authorization(token).encode(), pushed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or one event of the application's life."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            values = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(values) != 1 or not hmac.compare_digest(values[0], self._authorization):
                head = {"type": "http.response.start", "status": 401}
                await send(head | {"headers": [(b"connection", b"close")]})
                await send({"type": "http.response.body", "body": b"not the operator"})
                return
            # Flower refuses one that is not of its own accounts
            headers = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
            scope = {**scope, "headers": headers}
        elif scope["type"] not in ("http", "lifespan"):
            raise RuntimeError(f"a connection of type {scope['type']}, which nobody asks for")
        await self._app(scope, receive, send)
        if scope.get("path") == _PUSH:
            self._pushed()


async def _serve(fed: Folder) -> None:
    """Serve nodes and this machine until a signal."""
    import uvicorn
    from flwr.superlink.main import app as superlink

    from .gate import REGISTER, Gate, Nodes, Refusals

    # that it knows a key already is no error of this server
    logging.getLogger("flwr").addFilter(lambda record: REGISTER not in record.getMessage())

    refusals = Refusals()
    gate = Gate(fed, superlink, refusals)
    guard = Guard(
        superlink, fed.link.secret("operator").read_text(encoding="ascii"), gate.news.tell
    )
    config = uvicorn.Config(
        guard,
        host="127.0.0.1",
        port=fed.settings().local_port,
        ws="none",
        ssl_certfile=str(fed.link.certificate("server")),
        ssl_keyfile=str(fed.link.secret("server")),
        server_header=False,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    machine, nodes = uvicorn.Server(config), Nodes(gate, fed, refusals)

    async def until(serving: Awaitable[None], other: uvicorn.Server) -> None:
        await serving
        other.should_exit = True

    await asyncio.gather(
        until(nodes.server.serve([nodes.listener]), machine), until(machine.serve(), nodes.server)
    )


def main() -> None:
    """Serve until a signal."""
    os.umask(0o077)
    asyncio.run(_serve(Folder(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
