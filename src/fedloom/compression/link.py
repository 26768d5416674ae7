"""The link: which fields of an answer travel through which codec, with what feedback.

It runs after the local training, one client at a time, in every engine. What it is given and what
the server reads differ only by what the codecs lose; feedback counts exactly what was decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

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

LONGEST = (1 << 32) - 1  # the longest vector that a message holds


class Part(Protocol):
    """Which of the model's d coordinates a client holds; what a view is to the link."""

    @property
    def layout(self) -> Layout:
        """Of the m coordinates that it holds."""

    def take(self, record: Rec) -> Rec:
        """Its part (m,) of every vector (d,) of a record; a vector is a record of its own."""

    def put(self, part: Rec, record: Rec) -> Rec:
        """The record (d,) with the part (m,) written back."""


class Whole(NamedTuple):
    """All coordinates."""

    layout: Layout

    def take(self, record: Rec) -> Rec:
        """The record as it is."""
        return record

    def put(self, part: Rec, record: Rec) -> Rec:
        """The part as it is."""
        return part


# -------------------------------------------------------------------------------------------- link
@dataclass(frozen=True)
class Via:
    """How one field travels."""

    codec: Codec = field(default_factory=Dense)
    feedback: Forget = field(default_factory=Forget)

    def unfit(self, d: int | None) -> str:
        """Why the feedback would grow without bound on d values (None: on any number); "" if it
        would not.
        """
        why = self.codec.unfit(LONGEST if d is None else d) if self.feedback.remembers else ""
        return f"{_name(self.feedback)} around {_name(self.codec)}: {why}" if why else ""


def via(text: str) -> Via:
    """A codec by its name, as in a configuration, with the feedback that goes with it.

    Raises ConfigError, CompositionError.

    >>> via("topk:0.01")
    Via(codec=TopK(ratio=0.01, scope='global'), feedback=Residual())
    """
    codec = make_codec(text)
    return Via(codec, FEEDBACKS[codec.feedback]())


@dataclass(frozen=True)
class Link:
    """up: {field: Via}, or one Via for every field in the algorithm's `sent`.

    down: {field: codec}, or one codec for every field in the algorithm's `approximate`; what it
    loses stays at the server (see downlink.py). Names are as good: Link("topk:0.01", "int8").
    EF21 of a method's changes is a Residual: that is EF21 of what they add up to.
    Fields that are not named travel dense and cost what `wire` says: these are not packed where
    nothing needs their bytes.

    >>> import torch
    >>> from fedloom import FedAvg
    >>> from fedloom.compression.codecs import TopK
    >>> layout = Layout(("w",), ((4,),))
    >>> link = Link(Via(TopK(ratio=0.25), Residual())).settled(FedAvg())
    >>> memory = link.init(torch.zeros(4), layout, seed=0)
    >>> up = rec(delta=torch.tensor([1.0, -5.0, 2.0, 0.0]), weight=3.0)
    >>> packet, memory = link.send(up, memory, Whole(layout), 0, 7, 1)  # seed, round, client
    >>> link.receive(packet, layout, up).delta, memory.delta.e
    (tensor([ 0., -5.,  0.,  0.]), tensor([1., 0., 2., 0.]))
    """

    up: Mapping[str, Via] | Via | str = field(default_factory=dict)
    down: Mapping[str, Codec] | Codec | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.up, str):
            object.__setattr__(self, "up", via(self.up))
        if isinstance(self.down, str):
            object.__setattr__(self, "down", make_codec(self.down))

    def spelled_out(self, algorithm: Algorithm) -> Link:
        """-> the same link with its fields spelled out. Raises ConfigError for what is no Via or no
        codec.
        """
        assert not isinstance(self.up, str) and not isinstance(self.down, str)  # see __post_init__
        sent = algorithm.sent
        up = dict.fromkeys(sent, self.up) if isinstance(self.up, Via) else dict(self.up)
        for name, via in up.items():
            if not isinstance(via, Via):
                raise ConfigError(f"Link.up['{name}'] must be a Via(codec, feedback), got {via!r}")
        return replace(self, up=up, down=downlink.spelled_out(self.down, algorithm))

    def settled(self, algorithm: Algorithm) -> Link:
        """-> the same link with its fields spelled out, and EF21 of changes as error feedback of
        what they add up to. Whether its parts have a meaning together is asked in plan.py.
        """
        link = self.spelled_out(algorithm)
        assert isinstance(link.up, dict)
        for name, via in link.up.items():
            if isinstance(via.feedback, EF21) and algorithm.sent.get(name) is CHANGE:
                link.up[name] = replace(via, feedback=Residual())
        return link

    # -------------------------------------------------------------------------------- the way down
    @property
    def codes_down(self) -> Mapping[str, Codec]:
        """The codec of every field that is coded on its way down."""
        if isinstance(self.down, Codec | str):
            raise ConfigError("a Link with one codec down must be settled(algorithm) first")
        return self.down or {}

    def announce(
        self, msg: Rec, state: Rec, layout: Layout, seed: int, round: int
    ) -> tuple[Rec, Rec]:
        """A round's message -> as its clients read it, and the server's new memory of the way down.

        Raises NotFiniteError.
        """
        return downlink.announce(self.codes_down, msg, state, layout, seed, round)

    @property
    def codes(self) -> bool:
        """Whether any field is coded."""
        return bool(self._vias)

    @property
    def _vias(self) -> Mapping[str, Via]:
        if isinstance(self.up, Via | str):
            raise ConfigError("a Link with one Via for all fields must be settled(algorithm) first")
        return self.up

    @property
    def losing(self) -> tuple[str, ...]:
        """The fields of which something may get lost for good: a codec, and no feedback."""
        return tuple(
            name
            for name, via in self._vias.items()
            if type(via.feedback) is Forget and via.codec.delta(LONGEST) != 0
        )

    @property
    def mirrored(self) -> bool:
        """Say whether the server keeps the mean of what the clients keep."""
        return any(isinstance(via.feedback, EF21) for via in self._vias.values())

    def init(self, x: Vec, layout: Layout, seed: int) -> Rec:
        """A client's memory of the link, at its first participation: per field the codec's state
        `code` and the feedback's e (d,) or (0,).

        layout: of the client's part. Raises CompositionError where the feedback would grow
        on so few values.
        """
        for via in self._vias.values():
            if why := via.unfit(layout.d):
                raise CompositionError(why)
        return rec(
            **{
                name: rec(code=via.codec.init(layout, seed), e=via.feedback.init(x)[0])
                for name, via in self._vias.items()
            }
        )

    def server_init(self, x: Vec) -> Rec:
        """The server's memory of the link: per field the feedback's h, (d,) or (0,)."""
        return rec(**{name: via.feedback.init(x)[1] for name, via in self._vias.items()})

    # ------------------------------------------------------------------------------ at the client
    def send(
        self, up: Rec, state: Rec, view: Part, seed: int, *place: int | str
    ) -> tuple[dict[str, bytes], Rec]:
        """An answer, vectors (m,) -> {field: bytes}, the client's new memory of the link.

        place: round, client: where the codecs' randomness comes from. The caller keeps the old
        memory if the server does not take the answer. Raises DataError for values that are not
        finite.
        """
        packet: dict[str, bytes] = {}
        for name, value in _items(up, self._vias):
            if name in self._vias:
                draw = (seed, "codec", *place, name)
                packet[name], _, state = self._code(name, value, state, view, draw, False)
            else:
                packet |= pack(rec(**{name: value}))
        return packet, state

    def deliver(
        self, up: Rec, state: Rec, view: Part, seed: int, *place: int | str
    ) -> tuple[Rec, dict[str, int], Rec]:
        """send() and receive() in one process: -> the answer as the server reads it, {field: its
        bytes}, the client's new memory of the link.

        Coded fields are really packed and unpacked; dense ones are handed over and counted.
        """
        if not self._vias:
            return up, nbytes(up), state
        bill: dict[str, int] = {}
        read: dict[str, Any] = {}
        for name, value in _items(up, self._vias):
            if name in self._vias:
                draw = (seed, "codec", *place, name)
                raw, read[name], state = self._code(name, value, state, view, draw, True)
                bill[name] = len(raw)
            else:
                read[name] = value
                bill |= nbytes(rec(**{name: value}))
        return rec(**read), bill, state

    def squares(self, up: Rec, state: Rec) -> tuple[float, float] | None:
        """||delta||^2 of an answer, and the square of what the server still lacks of it, by the
        client's feedback (of Residual its e); None where delta is not coded.
        """
        if "delta" not in self._vias:
            return None
        lost = self._vias["delta"].feedback.lost(up.delta, state.delta.e)
        return float(up.delta.square().sum()), float(lost.square().sum())

    def _code(
        self, name: str, v: Vec, state: Rec, view: Part, draw: tuple[Any, ...], decode: bool
    ) -> tuple[bytes, Vec | None, Rec]:
        """One coded field -> its bytes, what the server decodes (None where nobody asks), state."""
        via, own = self._vias[name], getattr(state, name)
        codec, feedback = via.codec, via.feedback
        e = view.take(own.e) if feedback.remembers else own.e
        p = feedback.aim(v, e)
        message, code = codec.encode(p, own.code, view.layout, generator(*draw))
        raw, sent = codec.pack(message), None
        if feedback.remembers and any(_shares(p, other) for other in (v, own.e, *leaves(code))):
            p = p.clone()  # what is kept is written into it
        if decode or (feedback.remembers and not feedback.leftover):
            del message  # the codec's own arrays: as long as p in bytes, with some codecs
            sent = _read(codec, raw, view.layout, v)
            e = view.put(feedback.keep(p, sent, e), own.e) if feedback.remembers else e
        elif feedback.remembers:
            left = codec.missing(p.detach().cpu(), message, view.layout)
            e = view.put(left.to(p.device), own.e)
        return raw, sent, state._replace(**{name: rec(code=code, e=e)})

    # ------------------------------------------------------------------------------ at the server
    def receive(
        self, packet: Mapping[str, bytes], layout: Layout, like: Rec, heaviest: float = LONGEST
    ) -> Rec:
        """{field: bytes} -> the answer again. like: an answer's fields, for types and shapes.

        layout: of the client's part. heaviest: the most that this client may weigh, which a server
        knows (Federation.weight: its announced number of examples, or its entry of a list); without
        it 2^32 - 1. Everything that is read is finite, and a weight above 0 and at most that.
        Raises WireError for bytes that are not such an answer, whatever they are.
        """
        plain = rec(**{n: v for n, v in _items(like, self._vias) if n not in self._vias})
        same_fields(packet, [*fields(plain), *self._vias])
        read = unpack({n: packet[n] for n in fields(plain)}, plain)._asdict()
        for path, value in fields(rec(**read)).items():
            _sound(path, value, heaviest)
        for name, via in self._vias.items():
            value = getattr(like, name)
            try:
                read[name] = via.codec.read(packet[name], layout, value.dtype)
            except WireError as error:
                raise WireError(f"field '{name}': {error}") from None
        return tree(_beside, like, rec(**{name: read[name] for name in like._fields}))

    def arrive(self, up: Rec, state: Rec, share: float, rate: float) -> tuple[Rec, Rec]:
        """The means over a round's answers -> what server_step gets, the server's new memory.

        up: delta, weighted, and the plain means of uniform(). share: of all clients' weights, those
        that answered; rate: answers / N.
        """
        for name, via in self._vias.items():
            if name not in up._fields:
                continue
            part = share if name == "delta" else rate
            mean, h = via.feedback.arrive(getattr(up, name), getattr(state, name), part)
            up, state = up._replace(**{name: mean}), state._replace(**{name: h})
        return up, state


def _name(part: Any) -> str:
    return type(part).__name__


def _items(up: Rec, coded: Mapping[str, Via]) -> list[tuple[str, Any]]:
    """(name, value) of an answer's fields. Raises ConfigError if a coded one is missing."""
    for name in coded:
        if name not in up._fields:
            raise ConfigError(f"an answer has no field '{name}'; {did_you_mean(name, up._fields)}")
        if is_rec(getattr(up, name)) or not isinstance(getattr(up, name), Tensor):
            raise ConfigError(f"field '{name}' of an answer is no vector; only vectors are coded")
    return list(zip(up._fields, up, strict=True))


def _shares(p: Vec, other: Any) -> bool:
    """Whether something of a record lies in p's memory."""
    if not isinstance(other, Tensor):
        return False
    return other.untyped_storage().data_ptr() == p.untyped_storage().data_ptr()


def _read(codec: Codec, raw: bytes, layout: Layout, like: Vec) -> Vec:
    """What the server makes of a coded field that was packed here: as like, where like is."""
    return codec.decode(codec.unpack(raw, layout), layout, like.dtype).to(like.device)


def _sound(path: str, value: Any, heaviest: float) -> None:
    """Raise WireError for a plain field's value that no answer may have."""
    numeric = not isinstance(value, Tensor) or value.is_floating_point()
    if numeric and not finite(torch.as_tensor(value)):
        raise WireError(f"field '{path}' holds values that are not finite")
    if path != "weight":
        return
    least, most = (float(v) for v in torch.as_tensor(value).aminmax())
    if least <= 0:
        raise WireError(f"field 'weight' must be above 0, got {least:g}")
    if most > heaviest:
        raise WireError(
            f"field 'weight' must be at most {heaviest:.10g}, what the client announced, got "
            f"{most:.10g}"
        )


def _beside(like: Any, value: Any) -> Any:
    """A value that was read, where the one like it is."""
    return value.to(like.device) if isinstance(like, Tensor) else value
