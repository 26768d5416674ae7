"""Valid messages of every codec, and what becomes of them in hostile hands; used by soak.py."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import torch

from fedloom.compression.codecs import MAKERS, Codec, make_codec
from fedloom.compression.link import Link
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import Rec
from fedloom.errors import WireError

LAYOUT = Layout(("w", "b", "conv"), ((9, 8), (9,), (4, 2, 3)))
CHAINS = ("topk:0.1|int8", "topk:0.2,layer|sign", "threshold:0.5|dropping:0.5|natural")


def codecs() -> dict[str, Codec]:
    """Every codec by name, and chains."""
    found = {name: make() for name, make in MAKERS.items() if name != "chain"}
    found |= {text: make_codec(text) for text in ("threshold:0.5", *CHAINS)}
    return found


def valid(codec: Codec, dtype: torch.dtype) -> Iterator[bytes]:
    """Some messages as this codec writes them."""
    for n in range(4):
        p = torch.randn(LAYOUT.d, generator=generator(n, "soak"), dtype=torch.float64).to(dtype)
        message, _ = codec.encode(p, codec.init(LAYOUT, n), LAYOUT, generator(n, "soak", "codec"))
        yield codec.pack(message)


_SPECIAL = [struct.pack("<f", v) for v in (math.nan, math.inf, -math.inf, -0.0, 3e38, 1e-45)]
_SPECIAL += [struct.pack("<I", v) for v in (0, 1, 2**31, 2**32 - 1)]


def damaged(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """A message with one to three changes."""
    out = bytearray(raw)
    for _ in range(draw.randrange(1, 4)):
        reach = min(len(out), 24) if draw.random() < 0.5 else len(out)
        at, what = draw.randrange(reach + 1), draw.randrange(7)
        if what == 0:
            out[at : at + 1] = bytes([draw.randrange(256)])
        elif what == 1 and at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        elif what == 2:
            del out[at : at + draw.randrange(1, 9)]
        elif what == 3:
            out[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif what == 4:
            out[at : at + 4] = draw.choice(_SPECIAL)
        elif what == 5:
            out[at:] = other[at:]
        else:
            out[at : at + 4] = struct.pack("<I", draw.randrange(2 * LAYOUT.d))
    return bytes(out)


def wrong(codec: Codec, raw: bytes, dtype: torch.dtype) -> str | None:
    """Why a message was not read as it must be; "" where it was, None where it was refused."""
    try:
        out = codec.read(raw, LAYOUT, dtype)
    except WireError as error:
        return "an error of several lines" if "\n" in str(error) else None
    except Exception as error:  # whatever else comes is what is looked for
        return repr(error)
    fine = out.shape == (LAYOUT.d,) and out.dtype == dtype and bool(out.isfinite().all())
    return "" if fine else f"it gave {out}"


def wrong_packet(link: Link, like: Rec, raw: bytes, draw: random.Random) -> str | None:
    """The same of a whole answer, one of whose fields is hostile."""
    whole = bytes(4 * LAYOUT.d)
    packet: dict[str, Any] = {"delta": raw, "dc": whole, "weight": struct.pack("<d", 2.0)}
    odd = draw.choice(list(packet))
    packet[odd] = draw.choice([raw, raw[:8], whole, None, 3, "text", struct.pack("<d", -1.0)])
    try:
        up = link.receive(packet, LAYOUT, like)
    except WireError:
        return None
    except Exception as error:  # whatever else comes is what is looked for
        return repr(error)
    fine = bool(up.delta.isfinite().all() and up.dc.isfinite().all()) and up.weight > 0
    return "" if fine else f"it gave {up}"
