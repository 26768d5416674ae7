"""Flower's SuperLink behind a guard: whoever is not the operator commands nothing.

Flower's own port on the server's machine asks nobody who they are: any account there could start a
run, whose code runs as the operator, or take the task of the operator's run. Here Flower's own
application answers only two kinds of requests: those for which Flower itself asks for a task's
token or a node's signature, and those that carry the operator's token of this start.

python -m fedloom.deployment.flower_app.superlink PORT CERTIFICATE KEY TOKEN_FILE

FLWR_DATABASE in the environment names the database.
"""

from __future__ import annotations

import hmac
import os
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

# the name that stands before the token in an address of `flwr`, which makes a header of both
OPERATOR = "operator"

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_TASK = "send-task-heartbeat pull-task-input push-task-output push-logs push-messages pull-messages"
_NODE = "activate-node deactivate-node send-node-heartbeat pull-messages push-messages get-run"
_BOTH = "push-object pull-object confirm-message-received"
# Flower asks for a task's token (runtime), or for a node's signature (fleet). All else wants the
# operator's token: commands, acquire-task, and what a later Flower adds
OPEN = {f"/v1/runtime/{name}" for name in f"{_TASK} {_BOTH} get-nodes".split()}
OPEN |= {f"/v1/fleet/{name}" for name in f"{_NODE} {_BOTH} get-fab".split()}


def authorization(token: str) -> str:
    """The value of the header that the operator's requests carry."""
    return "Basic " + b64encode(f"{OPERATOR}:{token}".encode()).decode()


class Guard:
    """Passes a request on to an application if it is open to all, or the operator's."""

    def __init__(self, app: _Application, token: str) -> None:
        self._app, self._wanted = app, authorization(token).encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer one request, or one event of the application's life."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], self._wanted):
                head = {"type": "http.response.start", "status": 401}
                await send(head | {"headers": [(b"connection", b"close")]})
                await send({"type": "http.response.body", "body": b"not the operator"})
                return
            # Flower refuses one that is not of its own accounts
            kept = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
            scope = {**scope, "headers": kept}
        elif scope["type"] not in ("http", "lifespan"):
            raise RuntimeError(f"a connection of type {scope['type']}, which nobody asks for")
        await self._app(scope, receive, send)


def main() -> None:
    """Serve until a signal."""
    port, certificate, key, token = sys.argv[1:]
    os.umask(0o077)
    import uvicorn
    from flwr.superlink.main import app

    uvicorn.run(
        Guard(app, Path(token).read_text(encoding="ascii")),
        host="127.0.0.1",
        port=int(port),
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        server_header=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
