"""Who may ask the server what: decided by headers alone, before a byte of a body is read.

Flower reads a whole body before it looks at the signature. The same check of key, time and
signature is made here first, and every route has a longest body. Flower signs the time of a request
and not its content: TLS keeps headers from who could send them again.
"""

from __future__ import annotations

import binascii
import contextlib
import datetime
import logging
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fedloom.core.parsing import one_line

from .undocumented import (
    ARRAY_CHUNK,
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ApiErrorCode,
    bytes_to_public_key,
    now,
    verify_signature,
)

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
