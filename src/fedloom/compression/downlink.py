"""Compressed downlink: the server's copy of the vectors that every client holds.

Each round the server encodes v - seen once for all clients and adds the decoded difference to
`seen`. Every client that got all messages holds `seen` and starts from it; what was not sent stays
in v - seen, so no other error feedback is needed. An absent client gets the messages that it
missed, or `seen`, whichever is smaller; a new client gets `seen`.
Source: the specification's section 8.2; Tang et al., DoubleSqueeze, ICML 2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..core.layout import Layout
from ..core.rng import generator
from ..core.vector import Rec, Vec, rec
from ..errors import ConfigError
from .codecs import Codec

Codecs = Mapping[str, Codec]


def spelled_out(down: Codecs | Codec | None, algorithm: Algorithm) -> dict[str, Codec]:
    """The codec of every compressed field; a single codec is used for all that the method declares.

    Raises ConfigError for a value that is no codec.
    """
    if down is None:
        return {}
    fields = algorithm.compressible_down
    codecs = dict.fromkeys(fields, down) if isinstance(down, Codec) else dict(down)
    for name, codec in codecs.items():
        if not isinstance(codec, Codec):
            raise ConfigError(f"Link.down['{name}'] must be a codec such as TopK(), got {codec!r}")
    return codecs


def first_state(codecs: Codecs, msg: Rec, layout: Layout, seed: int) -> Rec:
    """The server's state of the downlink before round 1. Per field: `seen` (d,), the codec's state
    `code`, and `sizes` of its last messages in bytes, oldest first, which together are less than
    `seen`.
    """
    none = torch.zeros(0, dtype=torch.int64)
    return rec(
        **{
            name: rec(seen=getattr(msg, name), code=codec.init(layout, seed), sizes=none)
            for name, codec in codecs.items()
        }
    )


def announce(
    codecs: Codecs,
    msg: Rec,
    state: Rec,
    layout: Layout,
    seed: int,
    round: int,
    packed: bool = False,
) -> tuple[Rec, Rec, dict[str, bytes]]:
    """A broadcast -> what the clients hold after it, the server's new downlink state, and if
    `packed` the message of each field; a simulation only counts their bytes.
    """
    packet: dict[str, bytes] = {}
    for name, codec in codecs.items():
        old, v = getattr(state, name), getattr(msg, name)
        draw = generator(seed, "downlink", round, name)
        message, code = codec.encode(v - old.seen, old.code, layout, draw)
        size = codec.nbytes(message)
        if packed:
            packet[name] = codec.pack(message)
        copy = old.seen + codec.decode(message, layout, v.dtype).to(v.device)
        # on the CPU, also if a checkpoint was read to another device
        sizes = _worth(torch.cat([old.sizes.cpu(), torch.tensor([size])]), copy.nbytes)
        state = state._replace(**{name: rec(seen=copy, code=code, sizes=sizes)})
        msg = msg._replace(**{name: copy})
    return msg, state, packet


def add_messages(codec: Codec, copy: Vec, messages: Iterable[bytes], layout: Layout) -> Vec:
    """What a client holds after messages, from what it held before: the same additions as the
    server's. Raises WireError for any bytes that are no message.
    """
    for raw in messages:
        copy = copy + codec.read(raw, layout, copy.dtype).to(copy.device)
    return copy


def bill(state: Rec, down: Mapping[str, int], missed: int | None) -> dict[str, int]:
    """{field: bytes} of a client's broadcast. `down` has those of an uncompressed one.

    missed: number of messages since its last participation, this round's included; None: it is new.
    """
    out = dict(down)
    for name, entry in zip(state._fields, state, strict=True):
        if missed is not None and missed <= len(entry.sizes):
            out[name] = int(entry.sizes[len(entry.sizes) - missed :].sum())
    return out


def sizes(codecs: Codecs, msg: Rec, state: Rec, layout: Layout) -> dict[str, int]:
    """{field: bytes} of a typical encoded message, for estimates: that of the field itself."""
    out = {}
    for name, codec in codecs.items():
        code, draw = getattr(state, name).code, generator(0, "downlink")
        out[name] = codec.nbytes(codec.encode(getattr(msg, name), code, layout, draw)[0])
    return out


def _worth(sizes: Tensor, whole: int) -> Tensor:
    """The sizes of the last messages that together are smaller than the whole vector."""
    count = int((sizes.flip(0).cumsum(0) < whole).sum())
    return sizes[len(sizes) - count :]


def away(last: Mapping[int, int | None], round: int) -> dict[int, int | None]:
    """{client: messages since its last participation, this one included; None for a new client}.
    last: the round of that participation.
    """
    return {i: None if t is None else round - t for i, t in last.items()}
