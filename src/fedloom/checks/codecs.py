"""The contract of a codec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..compression.codecs import CODECS, Codec
from ..compression.error_feedback import Forget, Residual
from ..compression.link import FieldCodec
from ..core.layout import Layout
from ..core.rng import generator
from ..core.vector import Rec, Vec, fields
from ..engines.author_rules import check_record, pair
from ..errors import AuthorError, WireError
from .compare import Notes, twice, unequal
from .engine_agreement import Contract
from .outcome import Check

LAYOUT = Layout(("w", "b", "head"), ((12, 10), (12,), (3, 12)))
_ONE = Layout(("b",), ((1,),))
_DRAWS = 300  # of the bound on the error: its mean is then known to a few per cent


def _vectors() -> Iterator[tuple[str, Vec, Layout]]:
    """(name, p, layout): what a field may look like."""
    for dtype in (torch.float32, torch.float64):
        p = torch.randn(LAYOUT.d, generator=generator(0, "checks", "codec")).to(dtype)
        kind = str(dtype)[6:]
        yield f"random values ({kind})", p, LAYOUT
        yield f"zeros ({kind})", torch.zeros_like(p), LAYOUT
        yield f"one large value ({kind})", torch.where(p == p.max(), 1e6 * p, 0 * p), LAYOUT
        yield f"a single number ({kind})", p[:1].clone(), _ONE


class CodecContract(Contract):
    kind = Codec
    part: Codec

    def checks(self, engines: Sequence[str]) -> list[Check]:
        return [
            Check("code on the wire", self.code),
            Check("messages", self.messages, required=True),
            Check("size is what is sent", self.sizes),
            Check("a message is read again", self.read, required=True),
            Check("other bytes are refused", self.damaged),
            Check("error within the bound", self.bound),
            *self.common(engines),
        ]

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        # with error feedback where that has a meaning
        return {"compress": FieldCodec(part, Forget() if part.unfit(200) else Residual())}

    def encode(self, p: Vec, layout: Layout, *keys: int) -> tuple[Rec, Rec]:
        draw = generator(0, "codec", *keys)
        return self.part.encode(p, self.part.init(layout, 0), layout, draw)

    # ------------------------------------------------------------------------------------- checks
    def code(self) -> None:
        code = getattr(type(self.part), "code", None)
        if not isinstance(code, int) or not 0 <= code <= 255:
            raise AuthorError(
                f"code must be a whole number from 128 to 255 in the class, got {code!r}: it is "
                "the first byte of a message, by which the receiver knows the codec"
            )
        for name, other in CODECS.items():
            if code == other.code and not isinstance(self.part, other):
                raise AuthorError(
                    f"code {code} is that of the codec {name}; 128 and above are free for yours"
                )

    def messages(self) -> None:
        """A message is a record of one-dimensional tensors, one of which is size."""
        for case, p, layout in _vectors():
            out = self.encode(p, layout)
            message, state = pair("encode", "the message and the state", out)
            check_record("encode", "a message", message)
            check_record("encode", "a state", state)
            wrong = [n for n, v in fields(message).items() if getattr(v, "ndim", None) != 1]
            if wrong or "size" not in message._fields or int(message.size) != layout.d:
                raise AuthorError(
                    f"of {case} the message has the fields {message._fields}: each must be a "
                    f"tensor with one axis, and size must be [{layout.d}], the length of what it "
                    f"stands for{'; see ' + ', '.join(wrong) if wrong else ''}"
                )

    def sizes(self) -> None:
        """nbytes() is the length of pack()."""
        for case, p, layout in _vectors():
            message, _ = self.encode(p, layout)
            packed = self.part.pack(message)
            if not isinstance(packed, bytes):
                raise AuthorError(f"pack() must return bytes, got {type(packed).__name__}")
            if (count := self.part.nbytes(message)) != len(packed):
                raise AuthorError(
                    f"of {case} nbytes() says {count}, but pack() makes {len(packed)} bytes: the "
                    "bill would not be what is sent; leave both to Codec, or count the header (12 "
                    "bytes), the parameters, the indices and the values"
                )

    def read(self) -> None:
        """unpack() undoes pack(), and decode() gives a vector like the one that was sent."""
        for case, p, layout in _vectors():
            message, _ = self.encode(p, layout)
            back = self.part.unpack(self.part.pack(message), layout)
            if field := unequal(back, message):
                raise AuthorError(
                    f"of {case} the message, packed and unpacked, differs in '{field}': what the "
                    "receiver reads must be what was sent, bit for bit"
                )
            for dtype in (None, p.dtype):
                v = self.part.decode(back, layout, dtype)
                if not isinstance(v, Tensor) or v.shape != p.shape:
                    shape = list(v.shape) if isinstance(v, Tensor) else type(v).__name__
                    raise AuthorError(
                        f"of {case} decode() gives {shape}; it must give {list(p.shape)}, one "
                        "value per coordinate, 0 where nothing was sent"
                    )
                if dtype is not None and v.dtype != dtype:
                    raise AuthorError(
                        f"decode(dtype={str(dtype)[6:]}) gives {str(v.dtype)[6:]}: the receiver "
                        "needs the model's type"
                    )
                if not bool(torch.isfinite(v).all()):
                    raise AuthorError(f"of {case} decode() gives values that are not finite")

    def damaged(self) -> None:
        """Bytes that are no message of this layout raise WireError, and nothing else."""
        _, p, layout = next(_vectors())
        good = self.part.pack(self.encode(p, layout)[0])
        other = self.part.pack(self.encode(p[:1], _ONE)[0])
        cases = {
            "a message without its last byte": good[:-1],
            "a message with a byte too many": good + b"\0",
            "no bytes at all": b"",
            "a message for another length": other,
            "another codec's message": bytes([good[0] ^ 64]) + good[1:],
        }
        for case, packed in cases.items():
            try:
                self.part.decode(self.part.unpack(packed, layout), layout)
            except WireError:
                continue
            except Exception as error:  # any other than WireError is the fault that is reported
                raise AuthorError(
                    f"{case} ends in {type(error).__name__}: {error}. Bytes come from elsewhere: "
                    "whatever they are, unpack() raises WireError; that of Codec does, by lengths()"
                ) from error
            raise AuthorError(
                f"{case} is read as if it were whole: unpack(raw, layout) must raise WireError; "
                "see whether wire and lengths() name all that is sent"
            )

    def bound(self) -> None:
        """E||C(p) - p||^2 stays below what omega() says, or below ||p||^2."""
        _, p, layout = list(_vectors())[4]
        total, square = torch.zeros_like(p), 0.0
        for n in range(_DRAWS):
            v = self.part.decode(self.encode(p, layout, n)[0], layout, p.dtype)
            total, square = total + v / _DRAWS, square + float((v - p).square().sum()) / _DRAWS
        norm, omega = float(p.square().sum()), self.part.omega(layout.d)
        error = square / norm
        if omega is None and error > 1.05:
            raise AuthorError(
                f"omega() is None, so it must be a contraction, but the squared error is "
                f"{error:.3g} times the square of what is sent: error feedback around it grows "
                "without bound; send less scaled, or declare omega() of an unbiased codec"
            )
        if omega is not None:
            off = float((total - p).square().sum()) / norm
            if error > 1.1 * omega + 1e-6:
                raise AuthorError(
                    f"omega() says {omega:.3g}, but the squared error is {error:.3g} times the "
                    "square of what is sent: feedback would be allowed where it grows"
                )
            if off > 4 * max(error, 1e-12) / _DRAWS + 1e-9:
                raise AuthorError(
                    "omega() says that the codec is unbiased, but the mean of "
                    f"{_DRAWS} messages is off by {off**0.5:.3g} of the vector's length: let "
                    "omega() return None if it is biased"
                )

    def call(self, notes: Notes) -> None:
        part = self.part
        for _, p, layout in _vectors():
            arguments = p, part.init(layout, 0), layout, generator(0, "codec", 9)
            message, _ = twice(notes, part.encode, arguments)
            twice(notes, part.decode, (message, layout))
            packed = twice(notes, part.pack, (message,))
            twice(notes, part.unpack, (packed, layout))
