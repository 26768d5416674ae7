"""Flower's client app at a node: it hands each message to the node's process, which stays."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..local_socket import ask_node
from .records import content, raw

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    answer = ask_node(str(context.node_config["socket"]), raw(message.content))
    return Message(content(answer), reply_to=message)


app.train()(_answer)
