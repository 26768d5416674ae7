"""The only process of a federation's server that the network reaches: it passes on what a node may
ask.

Flower 1.41 serves nodes, commands and the server's own process at one port, and does not ask who
gives commands. So that port is for the server's machine only, and this process passes on the
requests of nodes, by name, once their headers are checked (admission.py). A node that asks for
messages when there are none gets its answer when there may be some; by itself it would ask every
three seconds. Of a node that ended, or began anew, nothing is asked for any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ...core.parsing import one_line
from ...errors import FedloomError
from ..clients import public_keys, read_clients
from ..folder import Folder
from .admission import Admission, Refusals, Refused
from .connections import Connection, Listener, room

_log = logging.getLogger(__name__)
_HOP = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
_PLAIN = {"accept-encoding": "identity"}  # an answer goes on as it is
_SECONDS = 300.0  # for the whole of a request, and for the whole of an answer
_HOLD = 20.0  # seconds that a node waits for messages; Flower's client waits 30 for an answer
_LOOK = 0.1  # seconds between two looks for news
_CHANGE = 1.0  # seconds between two looks at the list of clients, and at the certificate
_NOTHING = 64  # bytes: a shorter answer holds no message, whose name alone is longer
_HEADERS = 1 << 14  # bytes; Flower's node sends 1,500


class News:
    """Tells all who wait that messages were sent."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def tell(self) -> None:
        """There are some."""
        last, self.next = self.next, asyncio.Event()
        last.set()


async def watch(path: Path, seconds: float, changed: Callable[[], object]) -> None:
    """Look at a file every so many seconds until cancelled, and call a function when it has
    changed. What that cannot take is in the log, and nothing changes.
    """
    before = _stamp(path)
    while True:
        await asyncio.sleep(seconds)
        if (now := _stamp(path)) != before:
            before = now
            try:
                changed()
            except (FedloomError, OSError) as error:
                _log.error("%s stays as it was: %s", path.name, one_line(str(error)))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def application(
    fed: Folder, refusals: Refusals | None = None, renew: Callable[[], object] = lambda: None
) -> Router:
    """The application of the reverse proxy. renew: called when the server has another certificate.
    Raises ConfigError.
    """
    settings, refusals = fed.settings(), refusals or Refusals()
    keys = functools.partial(public_keys, fed.clients_file)
    admission = Admission(*keys())

    @contextlib.asynccontextmanager
    async def life(app: Router) -> AsyncIterator[dict[str, Any]]:
        trusted = ssl.create_default_context(cafile=str(fed.link.certificate("ca")))
        base = f"https://127.0.0.1:{settings.local_port}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(
            base_url=base,
            verify=trusted,
            timeout=_SECONDS,
            limits=limits,
            trust_env=False,
            headers=_PLAIN,
        ) as link:
            news = News()
            watching = [
                asyncio.create_task(watch(path, seconds, changed))
                for path, seconds, changed in (
                    (fed.news, _LOOK, news.tell),
                    (fed.clients_file, _CHANGE, lambda: admission.take(*keys())),
                    (fed.certificate("server"), _CHANGE, renew),
                )
            ]
            yield {"link": link, "news": news, "waiting": {}}
            for task in watching:
                task.cancel()

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path, address = scope["path"], request.client.host if request.client else ""
        try:
            if request.method != "POST":
                raise Refused(405, "not a POST")
            with admission.admitted(path, request.headers) as longest:
                answer = await _answer(request, await _body(request, longest))
                async with asyncio.timeout(_SECONDS):
                    await answer(scope, receive, send)
        except Refused as no:
            refusals.add(address, path, no.why)
            close = {"connection": "close"}  # what is left of the body stays unread
            await JSONResponse(no.body or {"detail": no.why}, no.status, close)(
                scope, receive, send
            )
        except (ClientDisconnect, TimeoutError):  # it is gone, or does not take its answer
            return
        except asyncio.CancelledError:  # this server ends; a node asks again, but after a 500 never
            await Response(status_code=503)(scope, receive, send)

    return Router(default=asked, lifespan=life)  # no routes: none of its own answers keeps a body


async def _body(request: Request, longest: int) -> bytes:
    """The whole of a request's body. Raises Refused for one that is too long, or takes too long."""
    content = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > longest:
                    raise Refused(413, f"a body of more than {longest} bytes")
    except TimeoutError:
        raise Refused(408, f"{len(content)} bytes in {_SECONDS:g} s, and no end") from None
    return bytes(content)


async def _answer(request: Request, content: bytes) -> Response:
    """Pass a request on. One for messages is asked again when there may be some, while its node
    waits: Flower gives a message once, and what is fetched for a node that is gone is lost.
    """
    path, node = request.scope["path"], request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER]
    waiting: dict[str, asyncio.Task[None]] = request.state.waiting
    if path.endswith(("/pull-messages", "/activate-node")) and node in waiting:
        waiting.pop(node).cancel()  # its node has begun anew, and nobody reads the old answer
    if not path.endswith("/pull-messages"):
        return await _passed(request, content)
    gone = waiting[node] = asyncio.create_task(_gone(request))
    try:
        return await _messages(request, content, gone)
    finally:
        gone.cancel()
        if waiting.get(node) is gone:
            del waiting[node]


async def _messages(request: Request, content: bytes, gone: asyncio.Task[None]) -> Response:
    """The answer to a request for messages. gone: done when nobody waits for it any more."""
    news: News = request.state.news
    end = time.monotonic() + _HOLD
    while True:
        coming = news.next
        answer = await _passed(request, content)
        left = end - time.monotonic()
        if answer.status_code != 200 or len(answer.body) >= _NOTHING or left <= 0:
            return answer
        told = asyncio.create_task(coming.wait())
        await asyncio.wait({told, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if gone.done():
            return answer


async def _gone(request: Request) -> None:
    """Return when the connection of a request is closed, whose body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _passed(request: Request, content: bytes) -> Response:
    """What Flower's server answers."""
    link: httpx.AsyncClient = request.state.link
    headers = _kept(request.headers)
    try:
        answer = await link.post(request.scope["path"], headers=headers, content=content)
    except httpx.TransportError:
        return Response(status_code=503)
    return Response(answer.content, answer.status_code, dict(_kept(answer.headers)))


def _kept(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers that go on."""
    return [(k, v) for k, v in headers.items() if k.lower() not in _HOP | _PLAIN.keys()]


def serving(fed: Folder) -> tuple[uvicorn.Server, Listener]:
    """The server of the gate, and its socket. Raises ConfigError."""
    refusals = Refusals()
    files = str(fed.certificate("server")), str(fed.secret("server"))
    config = uvicorn.Config(
        # new connections get the certificate that is there then; those that are open go on
        application(fed, refusals, lambda: _renewed(config.ssl, files)),
        ssl_certfile=files[0],
        ssl_keyfile=files[1],
        loop="asyncio",  # another one would not ask the Listener
        http=Connection,
        ws="none",
        h11_max_incomplete_event_size=_HEADERS,
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=1,  # nodes that wait need not
    )
    each, total = room(read_clients(fed.clients_file).population)
    return uvicorn.Server(config), Listener(fed.settings().port, each, total, refusals.count)


def _renewed(context: ssl.SSLContext, files: tuple[str, str]) -> None:
    """Have new connections get another certificate, whose key must be its own. Raises OSError."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files)  # a failure leaves half of it
    context.load_cert_chain(*files)


def main() -> None:
    """Serve until the process is ended."""
    server, listener = serving(Folder(Path(sys.argv[1])))
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
