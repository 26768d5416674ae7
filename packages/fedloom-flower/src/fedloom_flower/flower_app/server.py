"""Flower's server app: fedloom's own rounds, whose messages go over Flower's grid."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedloom.core.parsing import one_line

from ..certificates import as_pem
from ..clients import Clients
from ..folder import Folder
from ..message_exchange import MessageExchange, Reply, UnreadableError
from ..server import describe, serve
from .records import content, raw

app = ServerApp()


class GridTransport:
    """Flower's grid. A node is the client whose key it has."""

    def __init__(self, grid: Grid, clients: Clients) -> None:
        self._grid = grid
        self._clients = {as_pem(entry.key): i for i, entry in enumerate(clients.client)}

    def present(self) -> dict[int, int]:
        """{client: its node} of those who are connected."""
        nodes = {node.public_key: node.node_id for node in self._grid.get_nodes()}
        return {i: nodes[key] for key, i in self._clients.items() if key in nodes}

    def push(self, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        """Send, see message_exchange.Transport."""
        nodes = self.present()
        clients = [i for i in messages if i in nodes]
        if not clients:
            return {}
        sent = [
            Message(content(messages[i]), nodes[i], MessageType.TRAIN, ttl=seconds) for i in clients
        ]
        names: list[str | None] = [*self._grid.push_messages(sent)]
        if not names:  # too large in one request, Flower says
            names = [n for one in sent for n in [*self._grid.push_messages([one])] or [None]]
        # None: Flower did not take it, as of a node that has left in the meantime
        return {name: i for name, i in zip(names, clients, strict=True) if name}

    def pull(self, names: list[str]) -> list[Reply]:
        """What has come. Flower reads an answer as its sender wrote it, and may fail in any way."""
        try:
            # an error that the SuperLink makes has it as its source: go by the question
            return [_reply(message) for message in self._grid.pull_messages(names)]
        except httpx.TransportError:
            raise
        except Exception as error:  # what a node sent may break Flower's reader in any way
            raise UnreadableError(type(error).__name__) from error


def _reply(message: Message) -> Reply:
    to = message.metadata.reply_to_message_id
    if message.has_error():
        reason = one_line(str(message.error.reason), 300)
        return Reply(to, b"", f"error {int(message.error.code)}: {reason}")
    return Reply(to, raw(message.content))


def _main(grid: Grid, context: Context) -> None:
    sys.argv = ["fedloom", "deploy", "run"]  # for which Flower began this process, with a token
    fed = Folder(Path(str(context.run_config["folder"])))
    command = describe if context.run_config.get("describe") else serve
    command(fed, lambda clients: MessageExchange(GridTransport(grid, clients)))


app.main()(_main)
