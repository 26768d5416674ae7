"""What the network reaches: it passes on what a node may ask, decided by headers alone.

Flower reads a whole body before it looks at the signature. The same check of key, time and
signature is made here before a byte of a body is read, and every route has a longest body. Flower
signs the time of a request and not its content: TLS keeps headers from who could send them again.
A node that asks for messages when there are none gets its answer when there may be some; by itself
it would ask every three seconds. Of a node that ended, or began anew, nothing is asked any more.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import datetime
import logging
import resource
import socket
import ssl
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as ARRAY_CHUNK
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedloom.core.parsing import one_line
from fedloom.errors import FedloomError

from ..clients import public_keys, read_clients
from ..folder import Folder

_log = logging.getLogger(__name__)
_SMALL = 1 << 16  # bytes of a request that bears names and numbers
# Flower cuts a message into objects: an array into chunks of this size, and a list of the chunks'
# names. So the longest request does not grow with the model
_OBJECT = ARRAY_CHUNK + _SMALL
_TREE = 1 << 20  # the names of a message's objects, 72 bytes each: of chunks of 64 GiB
# what a node may ask, and the most bytes of it
LONGEST = dict.fromkeys(
    (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages"),
        *("get-run", "get-fab", "pull-object", "confirm-message-received"),
    ),
    _SMALL,
) | {"push-messages": _TREE, "push-object": _OBJECT}
AT_ONCE = 16  # requests of one node at a time; Flower's node has up to 5
REMOVED = "this site was taken out of the federation; ask who runs its server"
_LINES = 20  # of refusals a minute in the log
_FIRST = 10.0  # seconds until a connection has sent the headers of a request
REFUSALS = 100  # of an address in a minute, after which it gets no new connection in that minute
_SECONDS = 300.0  # for the whole of a request, and for the whole of an answer
_HOLD = 20.0  # seconds that a node waits for messages; Flower's client waits 30 for an answer
_CHANGE = 1.0  # seconds between two looks at the list of clients, and at the certificate
_NOTHING = 64  # bytes: a shorter answer holds no message, whose name alone is longer
# by which Flower learns the key of a node that the gate has checked, from the first field of the
# body with which it asks to be activated; a key that it knows it refuses to learn again
REGISTER = "/v1/fleet/register-node"
_HEADERS = 1 << 14  # bytes; Flower's node sends 1,500


# -------------------------------------------------------------------------------------- who may ask
class Refusal(Exception):  # noqa: N818  it is an answer, not a mistake of ours
    """A request is not passed on. status: of HTTP; body: what the node is told, in Flower's form if
    its node prints it.
    """

    def __init__(self, status: int, why: str, body: Mapping[str, object] | None = None) -> None:
        super().__init__(why)
        self.status, self.why, self.body = status, why, body


class Admission:
    """Admits the requests of nodes whose public keys (PEM) are given."""

    def __init__(self, keys: Iterable[bytes], removed: Iterable[bytes] = ()) -> None:
        self.take(keys, removed)
        self._busy = Counter[bytes]()  # requests under way, by key

    def take(self, keys: Iterable[bytes], removed: Iterable[bytes] = ()) -> None:
        """Admit these keys from now on, and no others. removed: those that were taken out."""
        self._keys = {pem: bytes_to_public_key(pem) for pem in keys}
        self._removed = {*removed}

    @contextlib.contextmanager
    def admitted(self, path: str, headers: Mapping[str, str]) -> Iterator[int]:
        """Admit a request -> the most bytes that its body may have. Raises Refusal."""
        name = path.removeprefix("/v1/fleet/")
        if name not in LONGEST or name == path:
            raise Refusal(404, "no request of nodes")
        pem = self._check_signature(name, headers)
        if self._busy[pem] >= AT_ONCE:
            raise Refusal(503, f"{AT_ONCE} requests of this node are under way")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LONGEST[name]:
            raise Refusal(413, f"a body of {length} bytes, more than {LONGEST[name]}")
        self._busy[pem] += 1
        try:
            yield LONGEST[name]
        finally:
            self._busy[pem] -= 1

    def _check_signature(self, name: str, headers: Mapping[str, str]) -> bytes:
        """The key of whoever signed these headers, as Flower checks it. Raises Refusal."""
        try:
            pem = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            timestamp = headers[TIMESTAMP_HEADER]
            age = (now() - datetime.datetime.fromisoformat(timestamp)).total_seconds()
        except KeyError:
            raise Refusal(401, "no key and signature") from None
        except (ValueError, TypeError, OverflowError, binascii.Error):
            raise Refusal(401, "a key, time or signature that cannot be read") from None
        if (key := self._keys.get(pem)) is None:
            why = (
                REMOVED if pem in self._removed else "this key is not in the server's clients.toml"
            )
            if name != "activate-node":
                raise Refusal(403, why)
            # Flower's own answer, which its node prints; of a 403 it says nothing
            code = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
            raise Refusal(412, why, {"code": code, "detail": why})
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            raise Refusal(401, f"signed {age:.0f} s ago: a clock is wrong, or it was sent before")
        if not verify_signature(key, timestamp.encode("ascii"), signature):
            raise Refusal(401, "a wrong signature")
        return pem


class Refusals:
    """Counts refusals by address, of the last minute, and writes down the first of them."""

    def __init__(self) -> None:
        self._began, self._logged = time.monotonic(), 0
        self._counts = Counter[str]()

    def count(self, address: str) -> int:
        """How many an address had in this minute."""
        if time.monotonic() - self._began > 60:
            if self._logged > _LINES:
                _log.warning("and %d refusals more in that minute", self._logged - _LINES)
            self._began, self._logged = time.monotonic(), 0
            self._counts.clear()
        return self._counts[address]

    def add(self, address: str, what: str, why: str) -> None:
        """One more. why: for the log."""
        self.count(address)
        self._counts[address] += 1
        self._logged += 1
        if self._logged <= _LINES:
            _log.warning("refused %s: %s: %s", address, one_line(what, 60), why)


# -------------------------------------------------------------------------------------- connections
def room(clients: int) -> tuple[int, int]:
    """The most connections of one address, and of all, in a federation of so many clients: all of
    its nodes may be behind one address, and each has up to 5.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1024 is often where it begins
    each = 64 + 8 * clients
    total = 4 * each if most == resource.RLIM_INFINITY else min(4 * each, most // 3)
    return min(each, total), total


class Listener(socket.socket):
    """A listening socket that closes what is beyond `each` connections of an address and `total` of
    all, and those of an address with too many refusals; before TLS, which costs more.
    """

    def __init__(
        self,
        port: int,
        each: int,
        total: int,
        refusals: Callable[[str], int],
        host: str = "0.0.0.0",
    ) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((host, port))
        self._each, self._total, self._refusals = each, total, refusals
        self._open: list[tuple[str, socket.socket]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection. Raises ConnectionAbortedError for one too many, which asyncio goes on
        after.
        """
        connection, where = super().accept()
        address = str(where[0])
        self._open = [pair for pair in self._open if pair[1].fileno() != -1]
        same_address = sum(other == address for other, _ in self._open)
        full = len(self._open) >= self._total or same_address >= self._each
        if full or self._refusals(address) >= REFUSALS:
            connection.close()
            raise ConnectionAbortedError
        self._open.append((address, connection))
        return connection, where


class Connection(H11Protocol):  # type: ignore[misc]  # uvicorn comes with Flower only
    """uvicorn's connection, which is closed if no request comes."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._waits = self.loop.call_later(_FIRST, self._end_without_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waits.cancel()
        super().connection_lost(exc)

    def _end_without_request(self) -> None:
        if self.cycle is None:
            self.transport.close()


# ----------------------------------------------------------------------------------------- requests
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
                await self._ask(request, body, closed, _dropped, REGISTER)
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
