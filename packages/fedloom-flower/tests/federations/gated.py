"""A gate in this process, with an application in the place of Flower's."""

from __future__ import annotations

import warnings
from typing import NamedTuple

with warnings.catch_warnings(action="ignore"):  # it would rather have httpx2
    from starlette.testclient import TestClient
from starlette.requests import Request
from starlette.responses import Response

from fedloom_flower.flower_app.admission import Refusals
from fedloom_flower.flower_app.gate import Gate, application


class Seen(NamedTuple):
    """What Flower's server is asked."""

    path: str
    content: bytes


class Gated:
    """seen: what Flower's server is asked, which answers `status` and `says`; node: who asks."""

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

    def tell(self):
        """Say that messages were sent."""
        self.node.portal.call(self.gate.news.tell)
