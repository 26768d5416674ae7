"""The rules for authors: what the methods of an algorithm may give and do, one sentence for each.
The guard of a run (guard.py) asks them at every call, and `fedloom check` shows them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .. import algorithm
from ..algorithm import Algorithm, Job, Reaches, Round, Trait
from ..core.own_parts import line_of
from ..core.vector import Rec, Vec, fields, is_rec, leaves
from ..errors import AuthorError, ClientError, FedloomError
from .heartbeat import beat

# what a rule is about, AuthorError.rule: a row of `fedloom check`
DECLARED, SHAPES, FIELDS = "methods and declarations", "lengths and types", "declared fields"
ARGUMENTS, REPEAT = "arguments stay as they are", "the same answer twice"
KEPT = "nothing kept on itself"

Arguments = tuple[Any, ...]  # of a call

# {method: the names of its arguments}
METHODS: dict[str, tuple[str, ...]] = {
    name: code.co_varnames[1 : code.co_argcount]
    for name in sorted(algorithm.METHODS)
    for code in [getattr(Algorithm, name).__code__]
}
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
        "direction() those of loc, finish() and unweighted() those of up",
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
    """A method asks for a tensor's value; how: how we know."""
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
def checked(method: str, result: Any, arguments: Arguments) -> Any:
    """What a method gives, where each value keeps its rule in _GIVES."""
    gives = _GIVES[method]
    values = (result,) if len(gives) == 1 else pair(method, _NOUNS[method], result)
    for (noun, check), value in zip(gives, values, strict=True):
        check(method, noun, value, arguments)
    return result


def pair(method: str, nouns: str, value: Any) -> Any:
    """A method gives two values."""
    if type(value) is not tuple or len(value) != 2:  # a record is of a type of its own
        kind = f"{len(value)} values" if isinstance(value, tuple) else f"a {type(value).__name__}"
        raise AuthorError(f"{method}() must give two values, {nouns}, got {kind}", SHAPES)
    return value


def check_record(method: str, noun: str, value: Any, _: Any = None) -> None:
    """A record holds tensors, numbers and records."""
    if not is_rec(value):
        raise AuthorError(
            f"{method}() gives {noun} of type {type(value).__name__}; make it with rec(...), of "
            "tensors, numbers and records",
            SHAPES,
        )
    if not [leaf for leaf in leaves(value) if not isinstance(leaf, (Tensor, int, float))]:
        return  # the paths are only worked out for the message
    path, leaf = next(
        at for at in fields(value).items() if not isinstance(at[1], (Tensor, int, float))
    )
    raise AuthorError(
        f"{method}() gives {noun} whose '{path}' is a {type(leaf).__name__}; a record "
        "holds tensors, numbers and records",
        SHAPES,
    )


def same_fields(method: str, noun: str, new: Any, old: Rec, origin: str) -> None:
    """A record keeps the fields that it had from the method `origin` on."""
    if not is_rec(new):
        check_record(method, noun, new)
    elif new._fields != old._fields:
        raise AuthorError(
            f"{method}() gives {noun} with the fields {_names(new)}, but it had {_names(old)}; "
            f"keep the fields that {origin}() gave it",
            FIELDS,
        )


def _names(record: Rec) -> str:
    return ", ".join(record._fields) or "nothing"


# the method, what a value is called, the value, and the arguments of the call
def _vector(method: str, noun: str, v: Any, arguments: Arguments) -> None:
    """It is like x in length and type."""
    like: Vec = arguments[0] if isinstance(arguments[0], Tensor) else arguments[0].x
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
    raise AuthorError(f"{method}() gives {noun} {why}", SHAPES)


def _loc(method: str, noun: str, loc: Any, arguments: Arguments) -> None:
    old = arguments[1] if method == "direction" else loc
    if type(loc) is not type(old) or not is_rec(loc):  # a record's type is made of its fields
        same_fields(method, noun, loc, old, "start")
    if method == "direction" and loc:
        check_record(method, noun, loc)


def _update(method: str, noun: str, up: Any, arguments: Arguments) -> None:
    check_record(method, noun, up)
    if missing := {"delta", "weight"} - set(up._fields):
        raise AuthorError(
            f"{method}() gives an update without {' and '.join(sorted(missing))}, only with "
            f"{_names(up)}; return rec(delta=..., weight=job.weight)",
            SHAPES,
        )
    _vector(method, "delta", up.delta, arguments)


def _answer(method: str, noun: str, answer: Any, arguments: Arguments) -> None:
    check_record(method, noun, answer)
    for name in answer._fields:
        if name in (*arguments[0]._fields, "delta", "weight"):
            raise AuthorError(
                f"ask() gives an answer with '{name}', a name of the message or of an update; the "
                "mean of the answers joins both, so give it another name",
                FIELDS,
            )


def _memory(method: str, noun: str, new: Any, arguments: Arguments) -> None:
    old = arguments[METHODS[method].index("mem")]
    if new is old:
        return
    check_record(method, noun, new)
    before, after = ({p: _kind(v) for p, v in fields(m).items()} for m in (old, new))
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


def _with_x(method: str, noun: str, record: Any, arguments: Arguments) -> None:
    check_record(method, noun, record)
    if "x" not in record._fields:
        raise AuthorError(
            f"{method}() gives a record without x, only with {_names(record)}; x is the model",
            SHAPES,
        )
    _vector(method, "x", record.x, arguments)
    if method == "server_step":
        same_fields(method, noun, record, arguments[0], "server_init")


def _columns(method: str, noun: str, record: Any, arguments: Arguments) -> None:
    check_record(method, noun, record)
    for name, v in record._asdict().items():
        if not isinstance(v, int | float) and not (isinstance(v, Tensor) and v.numel() == 1):
            actual = list(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise AuthorError(
                f"report() gives '{name}' as {actual}; a column of a row is one number, such as "
                f"rec({name}=srv.x.norm())",
                SHAPES,
            )


# what each method gives, by its name in sentences, and the rule that it keeps
_GIVES: dict[str, tuple[tuple[str, Callable[[str, str, Any, Arguments], None]], ...]] = {
    "start": (("x", _vector), ("loc", _loc)),
    "direction": (("a direction", _vector), ("loc", _loc)),
    "finish": (("an update", _update), ("a client state", _memory)),
    "ask": (("an answer", _answer), ("a client state", _memory)),
    "arrived": (("a client state", _memory),),
    "client_init": (("a client state", check_record),),
    "probe": (("an update", check_record),),
    "personal": (("a model", _vector),),
    "server_init": (("a state", _with_x),),
    "broadcast": (("a message", _with_x),),
    "server_step": (("a state", _with_x),),
    "model": (("a model", _vector),),
    "report": (("numbers", _columns),),
}
_NOUNS = {
    method: " and ".join(re.sub("^an? ", "the ", noun) for noun, _ in gives)
    for method, gives in _GIVES.items()
}


# -------------------------------------------------------------------------------- what is declared
def check_declarations(algorithm: Algorithm) -> None:
    """The methods take what engines give them; what they declare is what they say."""
    for name, expected in METHODS.items():
        actual = [*inspect.signature(getattr(type(algorithm), name)).parameters]
        if actual != ["self", *expected]:
            raise AuthorError(
                f"{name}({', '.join(actual)}) must take (self, {', '.join(expected)}): engines and "
                "wrappers call it with these, in this order",
                DECLARED,
            )
    up, down, traits = algorithm.compressible_up, algorithm.compressible_down, algorithm.traits
    fits = {
        f"compressible_up must map field names to MEAN, ACCUMULATED or CHANGE, got {up!r}; most "
        'methods have {"delta": MEAN}': isinstance(up, Mapping)
        and all(isinstance(v, Reaches) for v in up.values()),
        f"compressible_down must be a tuple of field names, got {down!r}; a tuple of one is "
        '("x",), with the comma': isinstance(down, tuple) and all(isinstance(v, str) for v in down),
        f"traits must be a frozenset of fedloom.algorithm.Trait, got {traits!r}; write "
        "frozenset({Trait.READS_THE_MOVE}), or leave it out": isinstance(traits, frozenset)
        and all(isinstance(v, Trait) for v in traits),
    }
    for why, fit in fits.items():
        if not fit:
            raise AuthorError(why, DECLARED)


def check_sent(algorithm: Algorithm, up: Rec) -> None:
    """What a method says that it sends is in its update."""
    if lacking := [name for name in algorithm.compressible_up if name not in up._fields]:
        raise AuthorError(
            f"compressible_up names {', '.join(lacking)}, but finish() gives an update with "
            f"{_names(up)}; a link compresses the fields that compressible_up names",
            FIELDS,
        )


# ---------------------------------------------------------------------------------------- in words
def with_note(note: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """call(*arguments), with a note in its exceptions that says what was called, for in_words()."""
    try:
        return call(*arguments)
    except Exception as error:
        if not isinstance(error, FedloomError):
            error.add_note(note)
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
