"""Flower's server app: fedloom's own rounds, whose messages go over Flower's grid."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from ..certificates import as_pem
from ..folder import Folder
from ..roll import Clients
from ..server import serve
from .records import content, raw

app = ServerApp()
_log = logging.getLogger(__name__)
_POLL = 0.2  # seconds


class Carrier:
    """Carries messages to the clients of a roll, and their answers back. A node is the client
    whose key it has; one that is not there when a round begins may still come. news: a file that
    grows when messages were sent.
    """

    def __init__(self, grid: Grid, roll: Clients, news: Path) -> None:
        self._grid, self._news = grid, news
        self._clients = {as_pem(entry.key): i for i, entry in enumerate(roll.client)}

    def present(self) -> dict[int, int]:
        """{client: its node} of those who are connected."""
        there = {node.public_key: node.node_id for node in self._grid.get_nodes()}
        return {i: there[key] for key, i in self._clients.items() if key in there}

    def __call__(self, messages: dict[int, bytes], seconds: float, enough: int) -> dict[int, bytes]:
        """The answers that come in so many seconds, or until there are enough."""
        end, waiting, found = time.monotonic() + seconds, dict[str, int](), dict[int, bytes]()
        todo = dict(messages)
        while len(found) < enough and (left := end - time.monotonic()) > 0:
            self._push(todo, waiting, left)
            for reply in self._grid.pull_messages(list(waiting)):
                # an error that the SuperLink makes has it as its source: go by the question
                i = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    _log.warning("client %d: %s; asked again", i, _error(reply))
                    todo[i] = messages[i]  # the same message gives the same answer
                else:
                    found[i] = raw(reply.content)
            time.sleep(_POLL)
        return found

    def _push(self, todo: dict[int, bytes], waiting: dict[str, int], left: float) -> None:
        """Send what waits for a node that is there."""
        if not todo:
            return
        there = self.present()
        some = [i for i in todo if i in there]
        sent = [Message(content(todo[i]), there[i], MessageType.TRAIN, ttl=left) for i in some]
        for i, name in zip(some, self._grid.push_messages(sent) if sent else [], strict=True):
            waiting[name] = i
            del todo[i]
        if sent:  # the gate has nodes that wait for this
            with open(self._news, "ab") as news:
                news.write(b".")


def _error(reply: Message) -> str:
    return f"error {reply.error.code}: {' '.join(str(reply.error.reason).split())[:300]}"


def _main(grid: Grid, context: Context) -> None:
    fed = Folder(Path(str(context.run_config["folder"])))
    serve(fed, lambda roll: Carrier(grid, roll, fed.news))


app.main()(_main)
