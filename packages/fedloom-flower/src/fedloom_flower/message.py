"""Messages between the server and a node: a header that is checked strictly, and blocks of bytes.

    8 bytes        FEDLOOM2
    4 bytes        length of the header, little-endian
    header         JSON: who, which round, and the length of each block by name
    blocks         in that order, nothing behind them

Whatever bytes come, they are such a message or a WireError of one line.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedloom.core.parsing import one_line
from fedloom.core.strict_json import PLAIN, Examples, Name, first_of
from fedloom.errors import WireError
from fedloom.evaluation.reliability import BINS

_MAGIC = b"FEDLOOM2"
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 16  # of a header, in bytes
_COUNT = 1 << 53
Parts = dict[str, bytes]  # the blocks of a message by name

Count = Annotated[int, Field(ge=0, le=_COUNT)]
Round = Annotated[int, Field(ge=-1, le=_COUNT)]  # a round, or -1 for before the first one
What = Literal[
    "describe",
    "prepare",
    "join",
    "agree",
    "probe",
    "question",
    "keys",
    "round",
    "unmask",
    "evaluate",
]
Square = Annotated[float, Field(ge=0)]
# hexadecimal, of a digest by which places compare what a server may have chosen: of 12, a pair of
# agreements that share one was found in minutes
DIGITS = 40
# name@settings: of a run, and a hash of the settings that decide its numbers
Run = Annotated[str, Field(max_length=65 + DIGITS, pattern=PLAIN)]
Classes = Annotated[int, Field(ge=0, le=1 << 24)]
Type = Literal["float32", "float64", "int64"]
Targets = Literal["labels", "tokens", "numbers"]


def disclosed(error: Exception, folder: Path) -> str:
    """What a node says to the server of an error. Names of files end at the node's folder: where
    that is, and what else its disk holds, is the site's own.
    """
    if isinstance(error, OSError):
        return f"the node's files cannot be used: {error.strerror or type(error).__name__}"
    return one_line(str(error).replace(f"{folder}{os.sep}", ""))


class Head(BaseModel):
    """What every message says. run: which run it belongs to; what: the probe before round 1, with
    round -1; a question before the local steps; the round itself, of a masked sum with its keys
    before it and its shares behind it; a model to be measured; or, with round -1, what a site has,
    and what all sites agreed on; before that what its table is like, and how all prepare theirs.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    run: Run
    what: What
    round: Round
    client: Count
    parts: dict[Name, Count] = Field(default={}, max_length=1000)

    @property
    def about(self) -> dict[str, Any]:
        """What an answer shares with its question."""
        return {"run": self.run, "what": self.what, "round": self.round, "client": self.client}


class Ask(Head):
    """The server asks a node for a client's round. taken: the last round in which it took this
    client's update, -1 if none; kept: the rounds that were done at the oldest checkpoint to which
    the server may return; attempt: a number that rises from message to message and start to start
    of the server, so that a node knows one that comes late or again; 0: of a server without.
    """

    kind: Literal["ask"] = "ask"
    taken: Round
    kept: Count
    attempt: Count = 0


class Update(Head):
    """A node's answer: an update, or what it was asked for. lost: the client state that the server
    counts on is gone. gradients and what follows: see client_results.ClientCost.
    """

    kind: Literal["update"] = "update"
    lost: bool
    loss: float | None
    gradients: Count
    passes: Count
    values: Count
    value_passes: Count
    squares: tuple[Square, Square] | None


class Measured(Head):
    """A node's answer to "evaluate": sums over its test examples, see evaluation.Score; bins: see
    reliability.disclosed.
    """

    kind: Literal["measured"] = "measured"
    examples: Count
    loss: float
    values: dict[Name, float] = Field(max_length=100)
    weights: dict[Name, Square] = Field(max_length=100)
    bins: list[Annotated[list[Square], Field(min_length=BINS, max_length=BINS)]] = Field(
        default=[], max_length=3
    )


class Site(Head):
    """A node's answer to "join": what the data at its place are like, and to "agree". examples,
    tests: how many there are; shape, kind: of one input; targets: labels, tokens or numbers;
    columns: a digest of how rows become inputs; classes: the largest label + 1.
    """

    kind: Literal["site"] = "site"
    examples: Examples
    tests: Examples
    shape: list[Count] = Field(max_length=8)
    type: Type
    targets: Targets
    target_shape: list[Count] = Field(max_length=8)
    columns: Name
    classes: Classes
    class_names: list[Name] = Field(max_length=1000)


class Blocks(Head):
    """A node's answer that is blocks alone: to "describe" what its people agreed to tell, to
    "prepare" none, to "keys" and "unmask" see masked_sums.py.
    """

    kind: Literal["blocks"] = "blocks"


class Refusal(Head):
    """A node's answer if it has no update. lost: it cannot read a compressed broadcast, because
    what it held before is gone.
    """

    kind: Literal["refusal"] = "refusal"
    lost: bool = False
    why: Annotated[str, Field(max_length=500), AfterValidator(one_line)]


Answer = Update | Measured | Site | Blocks | Refusal
ASK: TypeAdapter[Ask] = TypeAdapter(Ask)
ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])
A = TypeVar("A", bound=Head)
H = TypeVar("H", bound=Head)


def encode(head: Head, parts: Mapping[str, bytes]) -> bytes:
    """A header and named blocks as one block of bytes."""
    sized = head.model_copy(update={"parts": {name: len(raw) for name, raw in parts.items()}})
    header = sized.model_dump_json().encode()
    return b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *parts.values()])


def decode(kind: TypeAdapter[H], raw: bytes) -> tuple[H, dict[str, bytes]]:
    """The header and the blocks of a message of this kind. Raises WireError for any other bytes."""
    first = len(_MAGIC) + _LENGTH.size
    if not isinstance(raw, bytes) or len(raw) < first or raw[: len(_MAGIC)] != _MAGIC:
        other = ", but of another version of it" if raw[:7] == _MAGIC[:7] else ""
        raise WireError(
            f"no message of this fedloom{other}: it does not begin with {_MAGIC.decode()}"
        )
    (length,) = _LENGTH.unpack_from(raw, len(_MAGIC))
    if length > min(_LONGEST, len(raw) - first):
        raise WireError(f"the message has {len(raw)} bytes, and its header would have {length}")
    try:
        head = kind.validate_json(raw[first : first + length])
    except ValidationError as error:
        where, problem = first_of(error)
        raise WireError(f"the message's header is wrong at {where}: {problem}") from None
    start = first + length
    if start + sum(head.parts.values()) != len(raw):
        raise WireError(
            f"the message's blocks have {len(raw) - start} bytes, and its header says "
            f"{sum(head.parts.values())}"
        )
    parts = {}
    for name, size in head.parts.items():
        parts[name], start = raw[start : start + size], start + size
    return head, parts


def check_addressee(ask: Head, run: str, client: int) -> None:
    """Raise WireError for a message that is not for this client, or of a run with other settings
    than those here.
    """
    (name, _, settings), (other, _, others) = run.partition("@"), ask.run.partition("@")
    if (other, ask.client) != (name, client):
        raise WireError(
            f"this node is client {client} of run '{name}', and the message is for client "
            f"{ask.client} of run '{other}'"
        )
    if settings != others:
        raise WireError(
            "this node's run.toml has other settings than the server's, or another fedloom reads "
            "it; take the same file and version, and start the node again"
        )


class LateError(WireError):
    """An answer for an earlier round."""


class MissingError(WireError):
    """No answer came in time."""


class DeclinedError(WireError):
    """A node answered that it does not do it. why: its own words; lost: see Refusal."""

    def __init__(self, head: Refusal) -> None:
        self.why, self.lost = one_line(head.why), head.lost
        super().__init__(f"the client said: {self.why}")


def answer_to(question: Head, raw: bytes | None, *kinds: type[A]) -> tuple[A, dict[str, bytes]]:
    """An answer of one of these kinds to a message with this header. Raises MissingError if there
    is none, LateError for an earlier answer of this client, DeclinedError for a refusal, WireError
    for any other bytes.
    """
    if raw is None:
        raise MissingError("no answer in time")
    head, parts = decode(ANSWER, raw)
    if isinstance(head, Refusal) and head.run.partition("@")[0] == question.run.partition("@")[0]:
        head = head.model_copy(update={"run": question.run})  # of a node with other settings
    if head.about != question.about:
        same_client = (head.run, head.client) == (question.run, question.client)
        kind = LateError if same_client and head.round < question.round else WireError
        raise kind(
            f"an answer of client {head.client} for the {head.what} {head.round + 1} of run "
            f"'{head.run[:40]}', not for the {question.what} {question.round + 1} of "
            f"'{question.run}'"
        )
    if isinstance(head, Refusal):
        raise DeclinedError(head)
    if not isinstance(head, kinds):
        raise WireError(f"an answer of the kind '{head.kind}' to '{question.what}'")
    return head, parts
