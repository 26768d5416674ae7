"""The registry of clients: a node is the client whose public key stands here, whatever it says
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedloom.core.parsing import read_toml
from fedloom.errors import ConfigError

from .certificates import as_pem

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
Count = Annotated[int, Field(ge=1, le=1 << 53)]


def _bare(line: Any) -> Any:
    """A public key's line without the comment that ssh-keygen writes behind it."""
    return " ".join(line.split()[:2]) if isinstance(line, str) else line


class Entry(BaseModel):
    """One client. key: its node's public key, a line as ssh-keygen writes it; examples: how many
    training examples it has, None: it says so when it joins. added: it came after the others had
    agreed; removed: it was taken out, and keeps its number; key_made_here: its key was made beside
    the server's, by `fedloom deploy`, so that whoever has that folder can pass for it.
    """

    model_config = _STRICT
    name: Annotated[str, Field(max_length=100)] = ""
    key: Annotated[
        str,
        BeforeValidator(_bare),
        Field(pattern=r"^ecdsa-sha2-nistp(256|384|521) [A-Za-z0-9+/=]+$"),
    ]
    examples: Count | None = None
    added: bool = False
    removed: bool = False
    key_made_here: bool = False


# said where a federation is made, checked and joined
KEYS_MADE_HERE = (
    "made where the federation was made: whoever has that folder can pass for the site, and read "
    "what masked sums hide. A site makes its own (RUNBOOK.md, Keys)"
)


class Clients(BaseModel):
    """All clients, by their numbers from 0."""

    model_config = _STRICT
    client: Annotated[list[Entry], Field(min_length=1)]

    @property
    def population(self) -> int:
        """N, the number of clients."""
        return len(self.client)

    @property
    def members(self) -> dict[int, Entry]:
        """Those who were not taken out, by number."""
        return {i: entry for i, entry in enumerate(self.client) if not entry.removed}

    @property
    def sizes_known(self) -> bool:
        """Whether the numbers of examples are known."""
        return all(entry.examples is not None for entry in self.client)

    def label(self, i: int) -> str:
        """What a client is called: its name, or "client 3"."""
        return self.client[i].name or f"client {i}"

    def to_toml(self) -> str:
        """The file's text."""
        content = self.model_dump(exclude_none=True)
        for entry in content["client"]:
            for name in ("added", "removed", "key_made_here"):
                if not entry[name]:
                    del entry[name]
        return tomli_w.dumps(content)


def check_name(name: str, others: Sequence[str]) -> None:
    """Raise ConfigError for a name that cannot be a site's beside these."""
    if not name.strip() or len(name) > 100 or name.isdecimal():
        raise ConfigError(
            f"a site's name has 1 to 100 characters, and not only digits, got {name[:110]!r}"
        )
    if name in others:
        raise ConfigError(f"a site of this federation has the name '{name}'; choose another one")


def read_clients(path: Path) -> Clients:
    """Read a clients.toml. Raises ConfigError, on one line."""
    content: dict[str, Any] = read_toml(path)
    try:
        clients = Clients.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        problem = " ".join(first["msg"].removeprefix("Input ").split())
        raise ConfigError(
            f"file '{path}': {where} {problem}, got {str(first['input'])[:80]!r}"
        ) from None
    keys = [entry.key for entry in clients.client]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise ConfigError(
                f"file '{path}': clients {keys.index(key)} and {i} have the same key; every node "
                "needs one of its own"
            )
    return clients


def public_keys(path: Path) -> tuple[list[bytes], list[bytes]]:
    """The keys in a clients.toml, as Flower has them: of those who take part, and of those who were
    taken out. Raises ConfigError.
    """
    clients = read_clients(path)
    removed = [as_pem(entry.key) for entry in clients.client if entry.removed]
    return [as_pem(entry.key) for entry in clients.members.values()], removed
