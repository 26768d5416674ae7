"""Requests as Flower's node signs them."""

from __future__ import annotations

import datetime
from unittest import mock

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode import node_auth_http_interceptor as flowers

FLEET = "/v1/fleet/"
HEADERS = "flwr-public-key", "flwr-timestamp", "flwr-signature"


def key_of(path):
    """A node's private key."""
    return serialization.load_ssh_private_key(path.read_bytes(), password=None)


def signed(key, age=0.0):
    """The headers that Flower's own node adds, signed so many seconds ago."""
    request = httpx.Request("POST", "https://x/")
    then = datetime.datetime.now(tz=datetime.UTC) - datetime.timedelta(seconds=age)
    with mock.patch.object(flowers, "now", lambda: then):
        interceptor = flowers.NodeAuthHttpInterceptor(key, key.public_key())
        interceptor.intercept(ProtobufRequestContext("", None, request), lambda context: None)
    return {name: request.headers[name] for name in HEADERS}
