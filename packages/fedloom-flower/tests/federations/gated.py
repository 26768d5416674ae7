"""A gate in this process, with an application in the place of Flower's, and requests as Flower's
node signs them.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import threading
import warnings
from typing import NamedTuple
from unittest import mock

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode import node_auth_http_interceptor as flowers

with warnings.catch_warnings(action="ignore"):  # it would rather have httpx2
    from starlette.testclient import TestClient
from starlette.requests import Request
from starlette.responses import Response

from fedloom_flower.flower_app.gate import Gate, Refusals, application

from .live import until

FLEET = "/v1/fleet/"
HEADERS = "flwr-public-key", "flwr-timestamp", "flwr-signature"
key_of = lambda path: serialization.load_ssh_private_key(path.read_bytes(), password=None)


def signed(key, age=0.0):
    """The headers that Flower's own node adds, signed so many seconds ago."""
    request = httpx.Request("POST", "https://x/")
    then = datetime.datetime.now(tz=datetime.UTC) - datetime.timedelta(seconds=age)
    with mock.patch.object(flowers, "now", lambda: then):
        interceptor = flowers.NodeAuthHttpInterceptor(key, key.public_key())
        interceptor.intercept(ProtobufRequestContext("", None, request), lambda context: None)
    return {name: request.headers[name] for name in HEADERS}


class Seen(NamedTuple):
    """What Flower's server is asked."""

    path: str
    content: bytes


class Gated:
    """seen: what Flower's server is asked, which answers `status` and `says`."""

    def __init__(self, fed):
        self.gate = Gate(fed, self._flower, Refusals())
        self.seen, self.says, self.status = [], b"m" * 100, 200

    async def _flower(self, scope, receive, send):
        request = Request(scope, receive)
        self.seen.append(Seen(scope["path"], await request.body()))
        await Response(self.says, self.status)(scope, receive, send)

    def __enter__(self):
        self._client = TestClient(application(self.gate, lambda: None))
        self.node = self._client.__enter__()
        return self

    def __exit__(self, *error):
        self._client.__exit__(*error)

    def __call__(self, name, headers, body=b""):
        return self.node.post(FLEET + name, headers=headers, content=body)

    def tell(self):
        self.node.portal.call(self.gate.news.tell)

    def raw(self, name, headers, body, method="POST"):
        """One request to the application itself -> status, headers of the answer."""
        sent = self.node.portal.call(self.answered, name, headers, body, method)
        return sent[0]["status"], dict(sent[0]["headers"])

    async def answered(self, name, headers, body, method="POST"):
        """What the application sends."""
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": FLEET + name, "raw_path": b""}
        scope |= {"query_string": b"", "root_path": "", "client": ("198.18.0.9", 5)}
        scope["headers"] = [(k.encode(), v.encode()) for k, v in headers.items()]
        await self.node.app(scope, body, send)
        return sent


class Waiting:
    """A request for messages in another thread, whose connection stays until `gone` is set."""

    def __init__(self, gated, key):
        self.gone, self._body = threading.Event(), iter([b"", None])
        pull = functools.partial(gated.answered, "pull-messages", signed(key), self._receive)
        self.ends = gated.node.portal.start_task_soon(pull)
        until(lambda: gated.seen, "Flower was asked")

    async def _receive(self):
        if next(self._body, None) is not None:
            return {"type": "http.request", "body": b"", "more_body": False}
        while not self.gone.is_set():
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}


class Unread:
    def __init__(self, pieces=1000, size=1 << 16):
        self.left, self._piece, self.read = pieces, bytes(size), 0

    async def __call__(self):
        self.left -= 1
        piece = self._piece if self.left >= 0 else b""
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": self.left >= 0}
