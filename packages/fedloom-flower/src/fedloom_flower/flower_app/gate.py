"""What the network reaches: it passes on what a node may ask, once its headers are checked.

Requests pass by name, after admission.py has looked at their headers. A node that asks for messages
when there are none gets its answer when there may be some; by itself it would ask every three
seconds. Of a node that ended, or began anew, nothing is asked for any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedloom.core.parsing import one_line
from fedloom.errors import FedloomError

from ..clients import public_keys, read_clients
from ..folder import Folder
from .admission import Admission, Refusal, Refusals
from .connections import Connection, Listener, room
from .undocumented import FLEET_HTTP_PUBLIC_KEY_HEADER

_log = logging.getLogger(__name__)
_SECONDS = 300.0  # for the whole of a request, and for the whole of an answer
_HOLD = 20.0  # seconds that a node waits for messages; Flower's client waits 30 for an answer
_CHANGE = 1.0  # seconds between two looks at the list of clients, and at the certificate
_NOTHING = 64  # bytes: a shorter answer holds no message, whose name alone is longer
# by which Flower learns the key of a node that the gate has checked, from the first field of the
# body with which it asks to be activated; a key that it knows it refuses to learn again
_REGISTER = "/v1/fleet/register-node"
_HEADERS = 1 << 14  # bytes; Flower's node sends 1,500


class News:
    """Tells all who wait that messages were sent."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def tell(self) -> None:
        """There are some."""
        last, self.next = self.next, asyncio.Event()
        last.set()


async def watch(path: Path, on_change: Callable[[], object]) -> None:
    """Call a function when a file has changed, until cancelled. What that cannot take is in the
    log, and nothing changes.
    """
    before = _stamp(path)
    while True:
        await asyncio.sleep(_CHANGE)
        if (now := _stamp(path)) != before:
            before = now
            try:
                on_change()
            except (FedloomError, OSError) as error:
                _log.error("%s stays as it was: %s", path.name, one_line(str(error)))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


class Gate:
    """An application of ASGI that passes requests of nodes on to Flower's. Raises ConfigError."""

    def __init__(self, fed: Folder, flower: ASGIApp, refusals: Refusals) -> None:
        self._fed, self._flower, self._refusals = fed, flower, refusals
        self._admission = Admission(*public_keys(fed.clients_file))
        self._waiting: dict[str, asyncio.Task[None]] = {}  # for messages, by the node's key
        self.news = News()

    async def watch(self, renew: Callable[[], object]) -> None:
        """Take other lists of clients; renew: called when there is another certificate."""

        def take() -> None:
            self._admission.take(*public_keys(self._fed.clients_file))

        watched = ((self._fed.clients_file, take), (self._fed.certificate("server"), renew))
        await asyncio.gather(*(watch(*pair) for pair in watched))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        path, address = scope["path"], request.client.host if request.client else ""
        try:
            if request.method != "POST":
                raise Refusal(405, "not a POST")
            with self._admission.admitted(path, request.headers) as longest:
                body = await _body(request, longest)
                async with asyncio.timeout(_SECONDS):
                    await self._pass(request, body, send)
        except Refusal as refusal:
            self._refusals.add(address, path, refusal.why)
            close = {"connection": "close"}  # what is left of the body stays unread
            await JSONResponse(refusal.body or {"detail": refusal.why}, refusal.status, close)(
                scope, receive, send
            )
        except (ClientDisconnect, TimeoutError):  # it is gone, or does not take its answer
            return
        except asyncio.CancelledError:  # this server ends; a node asks again, but after a 500 never
            await Response(status_code=503)(scope, receive, send)

    async def _pass(self, request: Request, body: bytes, send: Send) -> None:
        """Pass a request on. One for messages is asked again when there may be some, while its node
        waits: Flower gives a message once, and what is fetched for a node that is gone is lost.
        """
        path, node = request.scope["path"], request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER]
        if path.endswith(("/pull-messages", "/activate-node")) and node in self._waiting:
            self._waiting.pop(node).cancel()  # it has begun anew, and nobody reads the old answer
        closed = asyncio.create_task(_disconnected(request))
        try:
            if path.endswith("/activate-node"):
                await self._ask(request, body, closed, _dropped, _REGISTER)
            if not path.endswith("/pull-messages"):
                return await self._ask(request, body, closed, send)
            self._waiting[node] = closed
            for message in await self._messages(request, body, closed):
                await send(message)
        finally:
            closed.cancel()
            if self._waiting.get(node) is closed:
                del self._waiting[node]

    async def _messages(
        self, request: Request, body: bytes, closed: asyncio.Task[None]
    ) -> list[Message]:
        """Flower's answer to a request for messages, as soon as there are some."""
        end = time.monotonic() + _HOLD
        while True:
            next_news, answer = self.news.next, list[Message]()

            async def keep(message: Message, answer: list[Message] = answer) -> None:
                answer.append(message)

            await self._ask(request, body, closed, keep)
            left = end - time.monotonic()
            size = sum(len(message.get("body", b"")) for message in answer)
            if answer[0]["status"] != 200 or size >= _NOTHING or left <= 0:
                return answer
            news = asyncio.create_task(next_news.wait())
            await asyncio.wait({news, closed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if closed.done():
                return answer

    async def _ask(
        self,
        request: Request,
        body: bytes,
        closed: asyncio.Task[None],
        send: Send,
        path: str = "",
    ) -> None:
        """Ask Flower, which reads the body that was read here. path: another one than asked for."""
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def read() -> Message:
            if parts:
                return parts.pop()
            await asyncio.wait({closed})
            return {"type": "http.disconnect"}

        scope = {k: v for k, v in request.scope.items() if k != "router"}
        scope |= {"query_string": b"", "path": path or scope["path"]}
        await self._flower(scope, read, send)


async def _dropped(message: Message) -> None:
    """Nobody reads this answer."""


async def _body(request: Request, longest: int) -> bytes:
    """The whole of a request's body. Raises Refusal for one that is too long, or takes too long."""
    content = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > longest:
                    raise Refusal(413, f"a body of more than {longest} bytes")
    except TimeoutError:
        raise Refusal(408, f"{len(content)} bytes in {_SECONDS:g} s, and no end") from None
    return bytes(content)


async def _disconnected(request: Request) -> None:
    """Return when the connection of a request is closed, whose body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def application(gate: Gate, renew: Callable[[], object]) -> Router:
    """A gate that looks for changes as long as it is served. renew: see Gate.watch."""

    @contextlib.asynccontextmanager
    async def life(app: Router) -> AsyncIterator[None]:
        watching = asyncio.create_task(gate.watch(renew))
        yield
        watching.cancel()

    return Router(default=gate, lifespan=life)  # no routes: none of its own answers keeps a body


class Nodes:
    """What serves a gate over TLS: `server`, at the socket `listener`. Raises ConfigError."""

    def __init__(self, gate: Gate, fed: Folder, refusals: Refusals) -> None:
        self._files = str(fed.certificate("server")), str(fed.secret("server"))
        self._config = uvicorn.Config(
            application(gate, self.renew),
            ssl_certfile=self._files[0],
            ssl_keyfile=self._files[1],
            loop="asyncio",  # another one would not ask the Listener
            http=Connection,
            ws="none",
            h11_max_incomplete_event_size=_HEADERS,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,  # nodes that wait need not
        )
        each, total = room(read_clients(fed.clients_file).population)
        self.listener = Listener(fed.settings().port, each, total, refusals.count)
        self.server = uvicorn.Server(self._config)

    def renew(self) -> None:
        """Give new connections another certificate, whose key must be its own. Raises OSError."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)  # or half is taken
        self._config.ssl.load_cert_chain(*self._files)
