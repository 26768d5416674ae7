"""The only door of a federation's server to the network: it passes on what a node may ask.

Flower 1.41 serves nodes, commands and the server's own process at one port, and does not ask who
gives commands. So that port is for the server's machine only, and this process passes on the
requests of nodes, by name.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..folder import Folder

# what a node whose key is known asks; Flower checks its signature
ALLOWED = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
    *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
)
_HOP = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
_SECONDS = 300.0  # for the next piece of a request


def gate(fed: Folder) -> Starlette:
    """The application of the gate."""
    settings = fed.settings()

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        import ssl

        trusted = ssl.create_default_context(cafile=str(fed.certificate("ca")))
        base = f"https://127.0.0.1:{settings.local_port}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(
            base_url=base, verify=trusted, timeout=_SECONDS, limits=limits, trust_env=False
        ) as link:
            yield {"link": link}

    routes = [Route(f"/v1/fleet/{name}", _passed, methods=["POST"]) for name in ALLOWED]
    return Starlette(routes=routes, lifespan=life)


async def _passed(request: Request) -> Response:
    """Pass a request on, and the answer back, piece by piece."""
    link: httpx.AsyncClient = request.state.link
    headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _HOP]
    onward = link.build_request("POST", request.url.path, headers=headers, content=request.stream())
    try:
        answer = await link.send(onward, stream=True)
    except httpx.TransportError:
        return Response(status_code=503)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
    return StreamingResponse(pieces(), status_code=answer.status_code, headers=kept)


def main() -> None:
    """Serve until the process is ended."""
    fed = Folder(Path(sys.argv[1]))
    uvicorn.run(
        gate(fed),
        host="0.0.0.0",
        port=fed.settings().port,
        ssl_certfile=str(fed.certificate("server")),
        ssl_keyfile=str(fed.secret("server")),
        access_log=False,
        log_level="warning",
        server_header=False,
    )


if __name__ == "__main__":
    main()
