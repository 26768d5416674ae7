"""The rules for authors: what the methods of an algorithm may give and do, one sentence for each.

The guard of a run (guard.py) asks them at every call. `fedloom check` runs a small
federation under that guard, and shows these sentences. Every rule raises AuthorError.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..algorithm import OPTIONAL, Algorithm, Job, Reaches, Round, Trait
from ..core.own_parts import line_of
from ..core.vector import Rec, Vec, fields, is_rec, leaves
from ..errors import AuthorError, ClientError, FedloomError
from .heartbeat import beat

# what a rule is about, AuthorError.rule: a row of `fedloom check`
DECLARED, SHAPES, FIELDS = "methods and declarations", "lengths and types", "declared fields"
ARGUMENTS, REPEAT = "arguments stay as they are", "the same answer twice"
KEPT = "nothing kept on itself"

# {method: the names of its arguments}
METHODS: dict[str, tuple[str, ...]] = {
    name: code.co_varnames[1 : code.co_argcount]
    for name in sorted({*Algorithm.__abstractmethods__, *OPTIONAL})
    for code in [getattr(Algorithm, name).__code__]
}
_SERVERS = {"server_init": "a state", "server_step": "a state", "broadcast": "a message"}
_NO_VALUES = (
    "it may run for many clients at once, each with its own value: choose with torch.where, or "
    "shorten with fedloom.core.vector.clip"
)
# (what torch or Python say of an exception, what to do)
_ADVICE = (
    (
        ("Expected more than 1 value per channel",),
        "a norm has one value to normalise in a batch of one example; take another local.batch or "
        "local.drop_last, or a norm over more values (such as fewer groups)",
    ),
    (
        ("the same size in the mapped dimension",),
        "one of them may be of an earlier call, kept on the class or in a global: what lasts for "
        "the round goes into loc, what a client remembers into mem",
    ),
    (
        ("inplace arithmetic", "in-place operation", "a leaf Variable that requires grad"),
        "arguments belong to the engine and to other clients: return a new value, x + y and not "
        "x.add_(y)",
    ),
    (
        ("'Job' object has no attribute",),
        f"job has {', '.join(Job._fields)}, begin(), move() and draw(); what one client alone "
        "needs goes into its state mem",
    ),
    (
        ("'Round' object has no attribute",),
        f"rnd has {', '.join(Round._fields)}; what clients tell comes in up",
    ),
    (
        ("'rec' object has no attribute",),
        "broadcast() gives the fields of msg, client_init() and finish() those of mem, start() and "
        "direction() those of loc, finish() and uniform() those of up",
    ),
)
_RANDOM = (
    "the model, the loss or the method draws from torch's generator (F.dropout, torch.rand), whose "
    "draws belong to no client where many run at once; those of job.draw(n) and nn.Dropout do, or "
    "run engine = serial or workers"
)
_ESCAPED = ("escaped from inside a function being vmapped", "storage of TensorWrapper")
_BRANCHED = ("data-dependent control flow", ".item()", "Boolean value of Tensor")


# ----------------------------------------------------------------------------- what methods may do
def branches(method: str, how: str) -> AuthorError:
    """A method asks for a tensor's value; how: what told it."""
    return AuthorError(f"{method} branches on a tensor's value ({how}); {_NO_VALUES}")


def changes(method: str, paths: list[str]) -> AuthorError:
    """A method writes into its arguments, of which paths names the changed ones."""
    return AuthorError(
        f"{method}() changes {' and '.join(paths)} in place; arguments belong to the engine and to "
        "other clients: return a new value, x + y and not x.add_(y)",
        ARGUMENTS,
    )


def keeps_state(place: str) -> AuthorError:
    """A part has changed outside of its records."""
    return AuthorError(
        f"it keeps state outside of its records ({place}); one object serves all clients, in "
        "several processes: what lasts for the round goes into the record loc, what a client "
        "remembers into mem, what the server remembers into srv",
        KEPT,
    )


def differs(method: str, inside: str) -> AuthorError:
    """A method, called again with the same arguments, gives something else; inside: where."""
    return AuthorError(
        f"{method}(), called twice with the same arguments, gives something else{inside} the "
        "second time; random numbers come from job.draw(n), and what it remembers goes into its "
        "records",
        REPEAT,
    )


# --------------------------------------------------------------------------- what methods may give
def check_start(found: Any, msg: Rec) -> tuple[Vec, Rec]:
    """start() gives x, like msg.x, and a record loc."""
    x, loc = pair("start", "x and loc", found)
    check_vector("start", "x", x, msg.x)
    if not is_rec(loc):
        check_record("start", "loc", loc)
    return x, loc


def check_direction(found: Any, x: Vec, loc: Rec) -> tuple[Vec, Rec]:
    """direction() gives a vector like x, and a loc with the fields that it had."""
    d, new = pair("direction", "the direction and loc", found)
    check_vector("direction", "a direction", d, x)
    if type(new) is not type(loc):  # a record's type is made of its fields
        same_fields("direction", "loc", new, loc, "start")
    return d, new


def check_finish(found: Any, x: Vec, mem: Rec) -> tuple[Rec, Rec]:
    """finish() gives an update (weight; delta, like x) and a client state like the last."""
    up, new = pair("finish", "the update and the client state", found)
    check_record("finish", "an update", up)
    if missing := {"delta", "weight"} - set(up._fields):
        raise AuthorError(
            f"finish() gives an update without {' and '.join(sorted(missing))}, only with "
            f"{_names(up)}; return rec(delta=..., weight=job.weight)",
            SHAPES,
        )
    check_vector("finish", "delta", up.delta, x)
    _memory(mem, new)
    return up, new


def check_ask(found: Any, msg: Rec, mem: Rec) -> tuple[Rec, Rec]:
    """ask() gives a record with names that the message does not have, and a client state."""
    answer, new = pair("ask", "the answer and the client state", found)
    check_record("ask", "an answer", answer)
    if taken := [name for name in answer._fields if name in (*msg._fields, "delta", "weight")]:
        raise AuthorError(
            f"ask() gives an answer with '{taken[0]}', a name of the message or of an update; the "
            "mean of the answers joins both, so give it another name",
            FIELDS,
        )
    _memory(mem, new, "ask")
    return answer, new


def check_arrived(found: Any, mem: Rec) -> Rec:
    """arrived() gives a client state like the last."""
    _memory(mem, found, "arrived")
    return found


def check_server(method: str, found: Any, x: Vec, srv: Rec = None) -> None:
    """The server's methods give records with x, or the model; a step keeps the fields of srv."""
    if method == "model":
        return check_vector(method, "a model", found, x)
    if method == "report":
        return None
    check_record(method, _SERVERS[method], found)
    if "x" not in found._fields:
        raise AuthorError(
            f"{method}() gives a record without x, only with {_names(found)}; x is the model",
            SHAPES,
        )
    check_vector(method, "x", found.x, x)
    if method == "server_step" and found._fields != srv._fields:
        same_fields(method, "a state", found, srv, "server_init")
    return None


def reported(found: Any) -> dict[str, float]:
    """report() gives a record of numbers -> the same by name."""
    check_record("report", "numbers", found)
    for name, v in found._asdict().items():
        if not isinstance(v, int | float) and not (isinstance(v, Tensor) and v.numel() == 1):
            got = list(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise AuthorError(
                f"report() gives '{name}' as {got}; a column of a row is one number, such as "
                f"rec({name}=srv.x.norm())",
                SHAPES,
            )
    return {name: float(v) for name, v in found._asdict().items()}


def check_record(method: str, what: str, value: Any) -> None:
    """A record holds tensors, numbers and records."""
    if not is_rec(value):
        raise AuthorError(
            f"{method}() gives {what} of type {type(value).__name__}; make it with rec(...), of "
            "tensors, numbers and records",
            SHAPES,
        )
    if all(isinstance(leaf, (Tensor, int, float)) for leaf in leaves(value)):
        return  # the paths are only worked out for the message
    for path, leaf in fields(value).items():
        if not isinstance(leaf, (Tensor, int, float)):
            raise AuthorError(
                f"{method}() gives {what} whose '{path}' is a {type(leaf).__name__}; a record "
                "holds tensors, numbers and records",
                SHAPES,
            )


def pair(method: str, what: str, found: Any) -> tuple[Any, Any]:
    """A method gives two values."""
    if type(found) is not tuple or len(found) != 2:  # a record is of a type of its own
        got = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise AuthorError(f"{method}() must give two values, {what}, got {got}", SHAPES)
    return found


def check_vector(method: str, what: str, v: Any, like: Vec) -> None:
    """A vector is like another in length and type."""
    if not isinstance(v, Tensor):
        why = f"of type {type(v).__name__}; it is a vector"
    elif v.shape != like.shape:
        why = (
            f"of shape {list(v.shape)} where x has {list(like.shape)}; return a vector as long as x"
        )
    elif v.dtype != like.dtype:
        why = (
            f"of {str(v.dtype)[6:]} where x is {str(like.dtype)[6:]}; keep the type of x: make "
            "constants with zeros(x) or torch.full_like(x, ...)"
        )
    else:
        return
    raise AuthorError(f"{method}() gives {what} {why}", SHAPES)


def same_fields(method: str, what: str, new: Any, old: Rec, origin: str) -> None:
    """A record keeps the fields that it had from the method `origin` on."""
    if not is_rec(new):
        check_record(method, what, new)
    elif new._fields != old._fields:
        raise AuthorError(
            f"{method}() gives {what} with the fields {_names(new)}, but it had {_names(old)}; "
            f"keep the fields that {origin}() gave it",
            FIELDS,
        )


def _names(record: Rec) -> str:
    return ", ".join(record._fields) or "nothing"


def _memory(old: Rec, new: Rec, method: str = "finish") -> None:
    if new is old:
        return
    check_record(method, "a client state", new)
    before = {path: _kind(v) for path, v in fields(old).items()}
    after = {path: _kind(v) for path, v in fields(new).items()}
    for path in (*before, *after):
        now, was = (kinds.get(path, "nothing") for kinds in (after, before))
        if now != was:
            raise AuthorError(
                f"{method}() gives a client state whose '{path}' is {now}, but it was {was}; a "
                "client state keeps the fields, lengths and types that client_init() gave it",
                FIELDS,
            )


def _kind(leaf: Any) -> str:
    """Shape and type; a number may become a tensor where many clients are computed at once."""
    if isinstance(leaf, Tensor) and leaf.ndim:
        return f"{list(leaf.shape)} {str(leaf.dtype)[6:]}"
    return "a number"


# -------------------------------------------------------------------------------- what is declared
def check_declarations(algorithm: Algorithm) -> None:
    """The methods take what engines give them; sent, approximate and traits are what they say."""
    for name, want in METHODS.items():
        have = [*inspect.signature(getattr(type(algorithm), name)).parameters]
        if have != ["self", *want]:
            raise AuthorError(
                f"{name}({', '.join(have)}) must take (self, {', '.join(want)}): engines and "
                "wrappers call it with these, in this order",
                DECLARED,
            )
    sent, near, traits = algorithm.sent, algorithm.approximate, algorithm.traits
    if not isinstance(sent, Mapping) or not all(isinstance(v, Reaches) for v in sent.values()):
        why = (
            f"sent must map field names to MEAN, ACCUMULATED or CHANGE, got {sent!r}; most methods "
            'have {"delta": MEAN}'
        )
    elif not isinstance(near, tuple) or not all(isinstance(v, str) for v in near):
        why = (
            f"approximate must be a tuple of field names, got {near!r}; a tuple of one is "
            '("x",), with the comma'
        )
    elif not isinstance(traits, frozenset) or not all(isinstance(v, Trait) for v in traits):
        why = (
            f"traits must be a frozenset of fedloom.algorithm.Trait, got {traits!r}; write "
            "frozenset({Trait.READS_THE_MOVE}), or leave it out"
        )
    else:
        return
    raise AuthorError(why, DECLARED)


def check_sent(algorithm: Algorithm, up: Rec) -> None:
    """What a method says that it sends is in its update."""
    if lacking := [name for name in algorithm.sent if name not in up._fields]:
        raise AuthorError(
            f"sent names {', '.join(lacking)}, but finish() gives an update with {_names(up)}; a "
            "link compresses the fields that sent names",
            FIELDS,
        )


# ---------------------------------------------------------------------------------------- in words
def noted(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """call(*arguments), with a note in its exceptions that says what was called, for in_words()."""
    try:
        return call(*arguments)
    except Exception as error:
        if not isinstance(error, FedloomError):
            error.add_note(what)
        raise


def in_words(error: Exception) -> str:
    """An exception from an author's method, on one line, with what to do where that is known."""
    if isinstance(error, AuthorError):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, dataclasses.FrozenInstanceError):
        return str(keeps_state(text))
    if "called random operation" in text or "randomness error mode" in text:
        return _RANDOM  # no method is named: most likely it was a model's forward
    method = next(iter(getattr(error, "__notes__", ())), "")  # the guard's: which one raised
    place = f"{method}: " if method else ""
    if any(sign in text for sign in _ESCAPED):
        return f"{place}{keeps_state('a tensor of an earlier call')}"
    if text.startswith("vmap: "):
        text = text[6:].split(". ")[0]
    if any(sign in text for sign in _BRANCHED):
        return str(branches(method or "it", text))
    advice = next((f"; {a}" for signs, a in _ADVICE if any(sign in text for sign in signs)), "")
    where = f" ({line})" if (line := line_of(error)) else ""
    return f"{place}{type(error).__name__}{where}: {text}{advice}" if text else type(error).__name__


class Explained:
    """Names algorithm, client and round of an exception raised inside: ClientError.

    A class, because contextlib's generator costs three times as much, once per client.
    """

    __slots__ = ("client", "method", "round")

    def __init__(self, method: str, client: int, round: int) -> None:
        self.method, self.client, self.round = method, client, round

    def __enter__(self) -> None:
        beat()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return
        if isinstance(error, FedloomError) and not isinstance(error, AuthorError):
            return
        place = f"{self.method}: client {self.client}, round {self.round + 1}"
        raise ClientError(f"{place}: {in_words(error)}") from error
