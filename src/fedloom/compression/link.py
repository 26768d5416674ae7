"""The link: the codec and the error feedback of each field of a client update.

It runs after the local training, one client at a time, in every engine. The server reads the update
up to what the codecs lose; error feedback uses exactly what was decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algorithm import CHANGE, Algorithm
from ..core.layout import Layout
from ..core.rng import generator
from ..core.vector import Rec, Vec, fields, is_rec, leaves, rec, tree
from ..core.wire import nbytes, pack, same_fields, unpack
from ..errors import CompositionError, ConfigError, WireError, did_you_mean
from . import downlink
from .codecs import Codec, Dense, make_codec
from .codecs.base import finite
from .error_feedback import EF21, FEEDBACKS, Forget, Residual

if TYPE_CHECKING:  # which of the model's d coordinates a client holds
    from ..submodels.base import View

LONGEST = (1 << 32) - 1  # the longest vector that a message holds


@dataclass(frozen=True)
class FieldCodec:
    """The codec and the error feedback of one field."""

    codec: Codec = field(default_factory=Dense)
    feedback: Forget = field(default_factory=Forget)

    def unfit(self, d: int | None) -> str:
        """Why the error feedback would grow without bound on d values (None: on any number); "" if
        it does not.
        """
        why = self.codec.unfit(LONGEST if d is None else d) if self.feedback.remembers else ""
        feedback, codec = type(self.feedback).__name__, type(self.codec).__name__
        return f"{feedback} around {codec}: {why}" if why else ""


def via(text: str) -> FieldCodec:
    """A codec by its name, as in a configuration, with its default error feedback.

    Raises ConfigError, CompositionError.

    >>> via("topk:0.01")
    FieldCodec(codec=TopK(ratio=0.01, scope='global'), feedback=Residual())
    """
    codec = make_codec(text)
    return FieldCodec(codec, FEEDBACKS[codec.feedback]())


@dataclass(frozen=True)
class Link:
    """up: {field: FieldCodec}, or one FieldCodec for every field in the algorithm's
    `compressible_up`.

    down: {field: codec}, or one codec for every field in the algorithm's `compressible_down`; what
    it loses stays at the server (see downlink.py). Names may be used too: Link("topk:0.01",
    "int8"). EF21 of a field of changes becomes a Residual, which is EF21 of their sum. Other fields
    are sent dense and cost what `wire` says; they are packed only if their bytes are needed.

    >>> import torch
    >>> from fedloom import FedAvg
    >>> from fedloom.compression.codecs import TopK
    >>> from fedloom.submodels import whole
    >>> layout = Layout(("w",), ((4,),))
    >>> link = Link(FieldCodec(TopK(ratio=0.25), Residual())).settled(FedAvg())
    >>> memory = link.init(torch.zeros(4), layout, seed=0)
    >>> up = rec(delta=torch.tensor([1.0, -5.0, 2.0, 0.0]), weight=3.0)
    >>> packet, memory = link.send(up, memory, whole(layout), 0, 7, 1)  # seed, round, client
    >>> link.receive(packet, layout, up).delta, memory.delta.e
    (tensor([ 0., -5.,  0.,  0.]), tensor([1., 0., 2., 0.]))
    """

    up: Mapping[str, FieldCodec] | FieldCodec | str = field(default_factory=dict)
    down: Mapping[str, Codec] | Codec | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.up, str):
            object.__setattr__(self, "up", via(self.up))
        if isinstance(self.down, str):
            object.__setattr__(self, "down", make_codec(self.down))

    def spelled_out(self, algorithm: Algorithm) -> Link:
        """-> the link with one entry per field. Raises ConfigError for what is no FieldCodec."""
        assert not isinstance(self.up, str) and not isinstance(self.down, str)  # see __post_init__
        sent = algorithm.compressible_up
        up = dict.fromkeys(sent, self.up) if isinstance(self.up, FieldCodec) else dict(self.up)
        for name, via in up.items():
            if not isinstance(via, FieldCodec):
                raise ConfigError(
                    f"Link.up['{name}'] must be a FieldCodec(codec, feedback), got {via!r}"
                )
        return replace(self, up=up, down=downlink.spelled_out(self.down, algorithm))

    def settled(self, algorithm: Algorithm) -> Link:
        """-> the same link with one entry per field, and EF21 of changes as a Residual. compose.py
        checks whether the parts go together.
        """
        link = self.spelled_out(algorithm)
        assert isinstance(link.up, dict)
        for name, via in link.up.items():
            if isinstance(via.feedback, EF21) and algorithm.compressible_up.get(name) is CHANGE:
                link.up[name] = replace(via, feedback=Residual())
        return link

    # -------------------------------------------------------------------------------- the way down
    @property
    def codes_down(self) -> Mapping[str, Codec]:
        """The codec of every field that is compressed on the downlink."""
        if isinstance(self.down, Codec | str):
            raise ConfigError("a Link with one codec down must be settled(algorithm) first")
        return self.down or {}

    @property
    def codes(self) -> bool:
        """True if any field is compressed."""
        return bool(self.field_codecs)

    @property
    def field_codecs(self) -> Mapping[str, FieldCodec]:
        """The codec and the error feedback of every field that is compressed on the uplink."""
        if isinstance(self.up, FieldCodec | str):
            raise ConfigError(
                "a Link with one FieldCodec for all fields must be settled(algorithm) first"
            )
        return self.up

    @property
    def losing(self) -> tuple[str, ...]:
        """The fields that may lose something for good: they have a codec and no error feedback."""
        return tuple(
            name
            for name, via in self.field_codecs.items()
            if type(via.feedback) is Forget and not via.codec.exact
        )

    @property
    def mirrored(self) -> bool:
        """True if the server keeps the mean of the clients' e."""
        return any(isinstance(via.feedback, EF21) for via in self.field_codecs.values())

    def init(self, x: Vec, layout: Layout, seed: int) -> Rec:
        """The link's part of a client's first state. Per field: the codec's state `code`, and the
        error feedback's e (d,) or (0,).

        layout: of the client's sub-model. Raises CompositionError if the error feedback would grow
        on so few values.
        """
        for via in self.field_codecs.values():
            if why := via.unfit(layout.d):
                raise CompositionError(why)
        return rec(
            **{
                name: rec(code=via.codec.init(layout, seed), e=via.feedback.init(x)[0])
                for name, via in self.field_codecs.items()
            }
        )

    def server_init(self, x: Vec) -> Rec:
        """The link's part of the server state: per field the error feedback's h, (d,) or (0,)."""
        return rec(**{name: via.feedback.init(x)[1] for name, via in self.field_codecs.items()})

    # ------------------------------------------------------------------------------ at the client
    def send(
        self, up: Rec, state: Rec, view: View, seed: int, *keys: int | str
    ) -> tuple[dict[str, bytes], Rec]:
        """A client update, vectors (m,) -> {field: bytes}, and the link's new client state.

        keys: round, client, the source of the codecs' randomness. The caller keeps the old state
        if the server does not accept the update. Raises DataError for values that are not finite.
        """
        packet: dict[str, bytes] = {}
        for name, value in _items(up, self.field_codecs):
            if name in self.field_codecs:
                draw = (seed, "codec", *keys, name)
                packet[name], _, state = self._code(name, value, state, view, draw, False)
            else:
                packet |= pack(rec(**{name: value}))
        return packet, state

    def deliver(
        self, up: Rec, state: Rec, view: View, seed: int, *keys: int | str
    ) -> tuple[Rec, dict[str, int], Rec]:
        """send() and receive() in one process: -> the update as the server reads it, {field: its
        bytes}, the link's new client state.

        Compressed fields are really encoded and decoded; bytes are counted, and not made.
        """
        if not self.field_codecs:
            return up, nbytes(up), state
        bill: dict[str, int] = {}
        read: dict[str, Any] = {}
        for name, value in _items(up, self.field_codecs):
            if name in self.field_codecs:
                draw = (seed, "codec", *keys, name)
                bill[name], read[name], state = self._code(name, value, state, view, draw, True)
            else:
                read[name] = value
                bill |= nbytes(rec(**{name: value}))
        return rec(**read), bill, state

    def squares(self, up: Rec, state: Rec) -> tuple[float, float] | None:
        """||delta||^2 of a client update, and the square of what the server still lacks of it, from
        the client's error feedback (of Residual its e); None if delta is not compressed.
        """
        if "delta" not in self.field_codecs:
            return None
        lost = self.field_codecs["delta"].feedback.lost(up.delta, state.delta.e)
        both = torch.stack([up.delta.square().sum(), lost.square().sum()])  # read at once
        one, other = both.tolist()
        return one, other

    def _code(
        self, name: str, v: Vec, state: Rec, view: View, draw: tuple[Any, ...], deliver: bool
    ) -> tuple[Any, Any, Rec]:
        """One compressed field -> its bytes, None, the new state; to deliver: their number, the
        decoded vector, the new state.
        """
        via, entry = self.field_codecs[name], getattr(state, name)
        codec, feedback = via.codec, via.feedback
        e = view.take(entry.e) if feedback.remembers else entry.e
        p = feedback.aim(v, e)
        message, code = codec.encode(p, entry.code, view.layout, generator(*draw))
        packet, sent = (codec.nbytes if deliver else codec.pack)(message), None
        if feedback.remembers and any(_shares(p, other) for other in (v, entry.e, *leaves(code))):
            p = p.clone()  # the new e is written into it
        if deliver or (feedback.remembers and not feedback.leftover):
            sent = codec.decode(message, view.layout, v.dtype).to(v.device)
            sent = sent.clone() if _shares(p, sent) else sent
            e = view.put(feedback.keep(p, sent, e), entry.e) if feedback.remembers else e
        elif feedback.remembers:
            p = p.detach() if codec.on_device else p.detach().cpu()
            rest = codec.missing(p, message, view.layout)
            e = view.put(rest.to(v.device), entry.e)
        return packet, sent, state._replace(**{name: rec(code=code, e=e)})

    # ------------------------------------------------------------------------------ at the server
    def receive(
        self, packet: Mapping[str, bytes], layout: Layout, like: Rec, heaviest: float = LONGEST
    ) -> Rec:
        """{field: bytes} -> the client update. like: the fields of an update, for types and shapes.

        layout: of the client's sub-model. heaviest: the largest weight that this client may have,
        which a server knows (Federation.weight: its announced number of examples, or its entry of a
        list); without it 2^32 - 1. All values are finite, and the weight is above 0 and at most
        that. Raises WireError for any bytes that are no such update.
        """
        plain = rec(
            **{n: v for n, v in _items(like, self.field_codecs) if n not in self.field_codecs}
        )
        same_fields(packet, [*fields(plain), *self.field_codecs])
        read = unpack({n: packet[n] for n in fields(plain)}, plain)._asdict()
        for path, value in fields(rec(**read)).items():
            _sound(path, value, heaviest)
        for name, via in self.field_codecs.items():
            value = getattr(like, name)
            try:
                read[name] = via.codec.read(packet[name], layout, value.dtype)
            except WireError as error:
                raise WireError(f"field '{name}': {error}") from None
        return tree(_to_device, like, rec(**{name: read[name] for name in like._fields}))

    def arrive(self, up: Rec, state: Rec, share: float, rate: float) -> tuple[Rec, Rec]:
        """The means of a round's updates -> the means for server_step, and the server's new link
        state.

        up: delta, weighted, and the plain means of unweighted(). share: the share of all clients'
        weights that sent an update; rate: client updates / N.
        """
        for name, via in self.field_codecs.items():
            if name not in up._fields:
                continue
            part = share if name == "delta" else rate
            mean, h = via.feedback.arrive(getattr(up, name), getattr(state, name), part)
            up, state = up._replace(**{name: mean}), state._replace(**{name: h})
        return up, state


def _items(up: Rec, coded: Mapping[str, FieldCodec]) -> list[tuple[str, Any]]:
    """(name, value) of an update's fields. Raises ConfigError if a compressed one is missing."""
    for name in coded:
        if name not in up._fields:
            raise ConfigError(
                f"a client update has no field '{name}'; {did_you_mean(name, up._fields)}"
            )
        if is_rec(getattr(up, name)) or not isinstance(getattr(up, name), Tensor):
            raise ConfigError(
                f"field '{name}' of a client update is no vector; only vectors are compressed"
            )
    return list(zip(up._fields, up, strict=True))


def _shares(p: Vec, other: Any) -> bool:
    """True if a tensor of the record shares memory with p."""
    if not isinstance(other, Tensor):
        return False
    return other.untyped_storage().data_ptr() == p.untyped_storage().data_ptr()


def _sound(path: str, value: Any, heaviest: float) -> None:
    """Raise WireError for a plain field's value that no client update may have."""
    numeric = not isinstance(value, Tensor) or value.is_floating_point()
    if numeric and not finite(torch.as_tensor(value)):
        raise WireError(f"field '{path}' holds values that are not finite")
    if path != "weight":
        return
    least, most = (float(v) for v in torch.as_tensor(value).aminmax())
    if least <= 0:
        raise WireError(f"field 'weight' must be above 0, got {least:g}")
    # numbers travel as float32, which may lie above what a client announced
    rounded = float(torch.tensor(heaviest, dtype=torch.float32))
    if most > heaviest and (heaviest >= LONGEST or most != rounded):
        raise WireError(
            f"field 'weight' must be at most {heaviest:.10g}, what the client announced, got "
            f"{most:.10g}"
        )


def _to_device(like: Any, value: Any) -> Any:
    """A decoded value, on the device of the one like it."""
    return value.to(like.device) if isinstance(like, Tensor) else value
