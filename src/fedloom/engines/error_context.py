"""A context that adds algorithm, client and round to an exception."""

from __future__ import annotations

from typing import Any

from ..errors import AuthorError, ClientError, FedloomError
from .author_rules import in_words
from .heartbeat import beat


class Explained:
    """Names algorithm, client and round of an exception raised inside: ClientError.

    A class, because contextlib's generator costs three times as much, once per client.
    """

    __slots__ = ("client", "method", "round")

    def __init__(self, method: str, client: int, round: int) -> None:
        self.method, self.client, self.round = method, client, round

    def __enter__(self) -> None:
        beat()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return
        if isinstance(error, FedloomError) and not isinstance(error, AuthorError):
            return
        place = f"{self.method}: client {self.client}, round {self.round + 1}"
        raise ClientError(f"{place}: {in_words(error)}") from error
