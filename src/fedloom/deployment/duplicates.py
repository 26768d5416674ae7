"""Rows that two sites have: each site makes a digest of each of its rows with a key that the sites
share and the server lacks, and the server counts the digests that two of them sent.
"""

from __future__ import annotations

import hmac
import itertools
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..data.own.columns import Table, number_name
from ..data.own.preparation import empty
from ..errors import ConfigError, WireError
from ..storage.atomic import reason
from .message import PLAIN, Examples

SIZE = 16  # bytes of a digest: two of 10^9 rows have one by chance with a probability below 1e-20
_SHORTEST = 32  # characters of a key: whoever finds it out can try names
_SAME = "is it the same key?"  # what a key's own digest is of

Value = Annotated[str, Field(max_length=200, pattern=PLAIN)]
Hex = Annotated[str, Field(pattern=f"^([0-9a-f]{{{2 * SIZE}}})?$")]


class Duplicates(BaseModel):
    """What a site tells of rows that others may have, too. columns: by which rows are alike; key: a
    keyed digest of nothing, by which keys are compared; rows: a digest of all that is sent; shared:
    at the server, by another site's name how many rows both have, None: below the least count.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    columns: list[Value] = Field(max_length=10_000)
    key: Hex = ""
    rows: Hex = ""
    shared: dict[Value, Examples | None] = {}


def key_of(file: Path) -> bytes:
    """The key in a file. Raises ConfigError."""
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"duplicates_key '{file}' cannot be read: {reason(error)}") from None
    if len(key) < _SHORTEST:
        raise ConfigError(
            f"duplicates_key '{file}' has {len(key)} characters, and needs {_SHORTEST}, or its "
            f"digests could be guessed; make one for all sites: openssl rand -hex {_SHORTEST}"
        )
    return key


def digested(
    table: Table, columns: Sequence[str], named: bool, key: bytes, run: str
) -> tuple[Duplicates, bytes]:
    """What is told of a table's rows, and their digests in ascending order. named: the columns say
    who somebody is, and a row with an empty cell among them says it of nobody. run: the federation,
    so that digests of another one with the same key are others. Raises DataError.
    """

    def of(words: Any) -> bytes:
        return hmac.digest(key, json.dumps([run, words]).encode(), "sha256")[:SIZE]

    rows = zip(*(_plain(table, name) for name in columns), strict=True)
    found = b"".join(sorted({of(row) for row in rows if (all if named else any)(row)}))
    told = Duplicates(columns=[*columns], key=of(_SAME).hex(), rows=of(found.hex()).hex())
    return told, found


def _plain(table: Table, name: str) -> list[str]:
    """A column's cells as they are compared: numbers by their value, texts without the difference
    of small letters, blanks and forms of a letter; "" of an empty one.
    """
    cells, gaps = table.of(name), empty(table.of(name))

    def of(cell: Any) -> str:
        text = " ".join(unicodedata.normalize("NFKC", str(cell)).casefold().split())
        return number_name(cell) or text

    return ["" if gap else of(cell) for cell, gap in zip(cells, gaps, strict=True)]


def from_bytes(raw: bytes, rows: int) -> set[bytes]:
    """The digests that a site sent. Raises WireError."""
    if len(raw) % SIZE or len(raw) > SIZE * rows:
        raise WireError(f"digests of {len(raw)} bytes, of {rows} rows with {SIZE} bytes each")
    return {raw[i : i + SIZE] for i in range(0, len(raw), SIZE)}


def compared(
    told: Mapping[str, Duplicates], digests: Mapping[str, set[bytes]], least: int
) -> dict[str, Duplicates]:
    """What each site told, with the rows that it shares with each other site of the same key, and
    without what was only needed to compare.
    """
    shared: dict[str, dict[str, int | None]] = {name: {} for name in told}
    for one, other in itertools.combinations(told, 2):
        if told[one].key == told[other].key:
            count = len(digests[one] & digests[other])
            shared[one][other] = shared[other][one] = count if count >= least else None
    return {name: Duplicates(columns=t.columns, shared=shared[name]) for name, t in told.items()}
