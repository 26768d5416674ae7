"""Bytes as Flower's records, and back."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from ..door import blocks


def content(raw: bytes) -> RecordDict:
    """A message's header and blocks as arrays of bytes."""
    parts = enumerate(blocks(raw))
    arrays = {f"{n:06d}": Array("uint8", (len(part),), "fedloom", part) for n, part in parts}
    return RecordDict({"fedloom": ArrayRecord(arrays)})


def raw(content: RecordDict) -> bytes:
    """The bytes of a message; empty for what is none, which its reader then refuses: a hostile node
    may send anything.
    """
    try:
        arrays = content.array_records["fedloom"]
        return b"".join(bytes(arrays[name].data) for name in sorted(arrays))
    except (KeyError, TypeError, ValueError, AttributeError):
        return b""
