"""Flower's client app at a node: it hands each message to the node's process, which stays."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..local_socket import asked
from .records import content, raw

app = ClientApp()


def _answered(message: Message, context: Context) -> Message:
    answer = asked(str(context.node_config["socket"]), raw(message.content))
    return Message(content(answer), reply_to=message)


app.train()(_answered)
