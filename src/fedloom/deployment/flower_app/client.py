"""Flower's client app at a node: it hands each message to the node's process, which is warm."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..door import handed
from .records import content, raw

app = ClientApp()


def _answered(message: Message, context: Context) -> Message:
    answer = handed(str(context.node_config["door"]), raw(message.content))
    return Message(content(answer), reply_to=message)


app.train()(_answered)
