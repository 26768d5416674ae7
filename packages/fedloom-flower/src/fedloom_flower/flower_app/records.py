"""Bytes as Flower's records, and back."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ..local_socket import blocks, join_blocks

_SMALL = 1 << 20  # bytes


def content(raw: bytes) -> RecordDict:
    """A message's header and blocks as arrays of bytes, or a small message as one value: Flower
    carries each array as two objects, and every object takes its server 20 ms or more.
    """
    if len(raw) <= _SMALL:
        return RecordDict({"fedloom": ConfigRecord({"message": raw})})
    parts = enumerate(blocks(raw))
    arrays = {f"{n:06d}": Array("uint8", (len(part),), "fedloom", part) for n, part in parts}
    return RecordDict({"fedloom": ArrayRecord(arrays)})


def raw(content: RecordDict) -> bytes:
    """The bytes of a message; empty for what is none, which its reader then refuses: a hostile node
    may send anything.
    """
    try:
        if "fedloom" in content.config_records:
            return join_blocks([content.config_records["fedloom"]["message"]])
        arrays = content.array_records["fedloom"]
        return join_blocks([arrays[name].data for name in sorted(arrays)])
    except (KeyError, TypeError, ValueError, AttributeError):
        return b""
