"""An exchange with clients, over what carries messages. One client's answer that cannot be read, or
never comes to an end, keeps nobody else's away, and no exchange is longer than its deadline.
"""

from __future__ import annotations

import logging
import math
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from fedloom.errors import WireError
from fedloom.storage import world

from .message import A, Ask, What, answer_to, encode

_log = logging.getLogger(__name__)
_POLL = 0.2  # seconds
_EACH = 0.02  # seconds between two pulls, when each is of one answer
_STUCK = 10.0  # seconds after which the others are no longer asked for together with an answer
_RETRY = 0.0, 2.0, 5.0, 10.0, 30.0  # seconds before a client is asked again, the 1st, ... time


# {client: message}, seconds, enough -> {client: answer} of those who answered in that time, or
# until so many had answered
Exchange = Callable[[dict[int, bytes], float, int], dict[int, bytes]]


def ask(
    exchange: Exchange,
    run: str,
    what: What,
    clients: Iterable[int],
    parts: Mapping[str, bytes],
    seconds: float,
    kind: type[A],
    round: int = -1,
) -> dict[int, tuple[A, dict[str, bytes]] | WireError]:
    """What each of some clients answers to one question beside its training: an answer of a kind,
    or why there is none.
    """
    heads = {i: Ask(run=run, what=what, round=round, client=i, taken=-1, kept=0) for i in clients}
    sent = {i: encode(head, parts) for i, head in heads.items()}
    raw_answers = exchange(sent, seconds, len(sent)) if sent else {}
    answers: dict[int, tuple[A, dict[str, bytes]] | WireError] = {}
    for i, head in heads.items():
        try:
            answers[i] = answer_to(head, raw_answers.get(i), kind)
        except WireError as error:
            answers[i] = error
    return answers


class UnreadableError(Exception):
    """Answers came, and one of them at least cannot be read."""


class Reply(NamedTuple):
    """to: the name of the message that is answered, as its sender says; raw: the answer; error: why
    there is none.
    """

    to: str
    raw: bytes
    error: str = ""


class Transport(Protocol):
    """What carries messages. Its methods may be called by several threads."""

    def present(self) -> Mapping[int, int]:
        """{client: its node} of those who are connected."""

    def push(self, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        """Send to those clients that are connected -> {a name that nobody can guess: client}."""

    def pull(self, names: list[str]) -> list[Reply]:
        """The answers to messages that have come, each once. Raises UnreadableError."""


class MessageExchange:
    """Carries messages to clients, and their answers back; see Exchange. A client that is
    not there when a round begins may still come. All answers are asked for at once, until one of
    them makes trouble: from then on each by itself.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self._apart = transport, False

    def present(self) -> Mapping[int, int]:
        """{client: its node} of those who are connected."""
        return self._transport.present()

    def __call__(self, messages: dict[int, bytes], seconds: float, enough: int) -> dict[int, bytes]:
        """The answers that come in so many seconds, or until there are enough."""
        end, answers = world.monotonic() + seconds, dict[int, bytes]()
        due, tries = dict.fromkeys(messages, 0.0), Counter[int]()  # when each is to be sent
        pulls = _Pulls(self._transport)
        while len(answers) < enough and (left := end - (now := world.monotonic())) > 0:
            if ready := {i: messages[i] for i, at in due.items() if at <= now}:
                sent = self._transport.push(ready, left)
                pulls.waiting |= sent
                for i in sent.values():
                    del due[i]
            self._apart |= pulls.stuck()
            pulls.begin(self._apart)
            for i, reply in pulls.finished(min(_POLL, left)):
                if reply is None:
                    self._apart = True
                elif i in answers:  # its answer to the same message came in another pull
                    continue
                elif reply.error:
                    _log.warning("client %d: %s; asked again", i, reply.error)
                    # the same message gives the same answer; a hostile client may fail for ever
                    due[i] = world.monotonic() + _RETRY[min(tries[i], len(_RETRY) - 1)]
                    tries[i] += 1
                else:
                    answers[i] = reply.raw
                    due.pop(i, None)
            if len(answers) < enough:
                pause = max(_POLL, _EACH * len(pulls.waiting)) if self._apart else _POLL
                world.sleep(max(0.0, min(pause, end - world.monotonic())))
        return answers


class _Pulls:
    """Asks for answers in threads, which may hang: Flower waits three minutes for the rest of an
    answer whose sender has only announced it. waiting: {message: client} without an answer.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self.waiting = transport, dict[str, int]()
        self._since: dict[str, float] = {}  # when the pull of several answers began; inf: of one
        self._ends: queue.SimpleQueue[tuple[list[str], list[Reply] | Exception]] = (
            queue.SimpleQueue()
        )

    def begin(self, apart: bool) -> None:
        """Ask for what nobody asks for yet; apart: each by itself."""
        idle = [name for name in self.waiting if name not in self._since]
        for names in [[name] for name in idle] if apart else [idle] if idle else []:
            self._since |= dict.fromkeys(names, math.inf if len(names) == 1 else world.monotonic())
            world.start(self._pull, names)

    def _pull(self, names: list[str]) -> None:
        try:
            self._ends.put((names, self._transport.pull(names)))
        except Exception as error:  # of a thread: whoever takes the ends raises it
            self._ends.put((names, error))

    def stuck(self) -> bool:
        """Whether a pull of several answers hangs; each of them can then be asked for again."""
        late = world.monotonic() - _STUCK
        names = [name for name, since in self._since.items() if since < late]
        for name in names:
            del self._since[name]
        return bool(names)

    def finished(self, seconds: float) -> list[tuple[int, Reply | None]]:
        """What the pulls brought that ended; waits so long for one. (client, answer); None: there
        was an answer that cannot be read. Raises what else went wrong.
        """
        out: list[tuple[int, Reply | None]] = []
        try:
            while True:
                names, replies = world.take(self._ends, seconds)
                seconds = 0.0
                for name in names:
                    self._since.pop(name, None)
                out += self._read(names, replies)
        except queue.Empty:
            return out

    def _read(
        self, names: list[str], replies: list[Reply] | Exception
    ) -> list[tuple[int, Reply | None]]:
        if isinstance(replies, UnreadableError):
            if len(names) == 1 and (i := self.waiting.pop(names[0], None)) is not None:
                _log.warning("client %d: its answer cannot be read: %s", i, replies)
            return [(-1, None)]
        if isinstance(replies, Exception):
            raise replies
        out: list[tuple[int, Reply | None]] = []
        for reply in replies:
            # asked for by itself, it is whose it is; else its sender names it
            name = names[0] if len(names) == 1 else reply.to
            i = self.waiting.pop(name, None) if name in names else None
            out.append((-1, None) if i is None else (i, reply))
        return out
