"""Which algorithm, client and round an exception came from."""

from __future__ import annotations

from typing import Any

from ..errors import AuthorError, ClientError, FedloomError
from .author_checks import in_words
from .heartbeat import beat


class Explained:
    """A context that names algorithm, client and round of what goes wrong in it: ClientError.

    Written out because contextlib's costs three times as much, for every client.
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
