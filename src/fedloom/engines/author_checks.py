"""The guard of a run: an author's methods are called through it, and looked at.

author_rules.py says what is allowed. What costs nothing (lengths, types, fields) is checked at
every call. What costs something (does a method branch on a tensor's value, does it change an
argument in place) is checked through one whole round of the first client of every process, and in
the arguments' version counters from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..algorithm import Algorithm, Grad, Job, Oracle, Trait
from ..core.rng import key, own_draws
from ..core.vector import Rec, Vec, fields, leaves
from ..errors import AuthorError, ClientError, FedloomError
from . import author_rules as rules
from .self_state import changed, state

# what a branch asks; float() and item() are left to who wants to print: vmap refuses them anyway
_BRANCHING = {"__bool__", "is_nonzero", "equal", "allclose"}


class _Watch(TorchFunctionMode):
    """Inside, nobody may branch on a tensor's value, or change an argument in place."""

    def __init__(self, method: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.method = method
        self.names: dict[int, list[str]] = {}
        for name, v in arguments.items():
            if isinstance(v, Tensor):
                self.names.setdefault(id(v), []).append(name)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        name = getattr(func, "__name__", "")
        if name in _BRANCHING:
            raise rules.branches(f"{self.method}()", name.strip("_"))
        written = (kwargs or {}).get("out", args[0] if _in_place(name) and args else None)
        if id(written) in self.names:
            raise rules.changes(self.method, self.names[id(written)])
        return func(*args, **(kwargs or {}))

    def unwatched(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, free to do everything: a model and a loss may do as they like."""

        def free(*arguments: Any) -> Any:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's is not
            try:
                return f(*arguments)
            finally:
                self.__enter__()  # type: ignore[no-untyped-call]

        return free


def _in_place(name: str) -> bool:
    """Say whether a function of torch's changes its first argument: add_, +=, x[i] = ...

    >>> [_in_place(n) for n in ("add_", "__iadd__", "__setitem__", "add", "__add__", "__init__")]
    [True, True, True, False, False, False]
    """
    if name.startswith("__"):
        return name == "__setitem__" or (name[2] == "i" and name[3:5] in _OPERATORS)
    return name.endswith("_")


_OPERATORS = {"ad", "su", "mu", "tr", "fl", "po", "mo", "an", "or", "xo", "ls", "rs"}


_AFTERWARDS = {"model", "report"}  # asked after their round


# ------------------------------------------------------------------------------------ at a client
class Guard:
    """An algorithm's three methods at a client, with the checks around them.

    watched: the first client's round, which is looked at more closely. All methods raise
    AuthorError; the engine adds algorithm, client and round.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.watched = algorithm, True
        self._own = state(algorithm)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        """Call start()."""
        return rules.check_start(self._call("start", msg, mem, job), msg)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        """Call direction()."""
        found = self._call("direction", x, loc, msg, mem, grad, job)
        return rules.check_direction(found, x, loc)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        """Call finish()."""
        found = rules.check_finish(self._call("finish", x, loc, msg, mem, job), x, mem)
        if self.watched and (odd := changed(self._own, state(self.algorithm))):
            raise rules.keeps_state(odd)
        self.watched = False
        return found

    def arrived(self, up: Rec, mem: Rec) -> Rec:
        """Call arrived()."""
        return rules.check_arrived(self._call("arrived", up, mem), mem)

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        """Call ask()."""
        return rules.check_ask(self._call("ask", msg, mem, job), msg, mem)

    def unchanged(self, before: list[int], msg: Rec, mem: Rec) -> None:
        """Raise AuthorError if one of these was changed in place since counters() gave `before`."""
        after = counters(msg, mem)
        if before != after:
            paths = list(versions({"msg": msg, "mem": mem}))
            odd = [p for p, a, b in zip(paths, before, after, strict=True) if a != b]
            raise rules.changes("one of start(), direction() and finish", odd)

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self.algorithm, name)
        try:
            if not self.watched:
                return method(*arguments)
            own = _named(name, arguments)
            watch = _Watch(name, own)
            before = versions(own)
            with watch:
                found = method(*[_free(watch, a) for a in arguments])
            _unchanged(name, before, own)
            return found
        except Exception as error:
            if not isinstance(error, AuthorError):
                error.add_note(f"{name}()")  # for author_rules.in_words
            raise


def counters(msg: Rec, mem: Rec) -> list[int]:
    """versions() of a message and a memory without the names, for every client of every round."""
    return [v._version for v in leaves(msg, mem) if isinstance(v, Tensor)]


def versions(arguments: dict[str, Any]) -> dict[str, int]:
    """{dotted path: how often torch has seen this tensor changed in place}.

    >>> import torch
    >>> x = torch.zeros(2)
    >>> before = versions({"msg": x})
    >>> _ = x.add_(1)
    >>> versions({"msg": x})["msg"] - before["msg"]
    1
    """
    flat = {p: v for name, a in arguments.items() for p, v in fields(a, name).items()}
    return {path: v._version for path, v in flat.items() if isinstance(v, Tensor)}


def _unchanged(method: str, before: dict[str, int], arguments: dict[str, Any]) -> None:
    after = versions(arguments)
    if before != after:
        raise rules.changes(method, [p for p in before if before[p] != after[p]])


def _named(method: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """{path: leaf} of a call's arguments; functions and jobs are left out."""
    pairs = zip(rules.METHODS[method], arguments, strict=True)
    records = [(n, a) for n, a in pairs if not callable(a) and not isinstance(a, Job)]
    return {path: v for name, a in records for path, v in fields(a, name).items()}


def _free(watch: _Watch, argument: Any) -> Any:
    """An argument whose functions are not watched."""
    if isinstance(argument, Job):
        return argument._replace(full=_free(watch, argument.full))
    if hasattr(argument, "loss"):  # a Grad, which calls a model
        return Oracle(watch.unwatched(argument), watch.unwatched(argument.loss))
    return watch.unwatched(argument) if callable(argument) else argument


def first_memory(algorithm: Algorithm, x: Vec) -> Rec:
    """Call client_init(). Raises AuthorError."""
    memory = rules.noted("client_init()", algorithm.client_init, x)
    rules.check_record("client_init", "a client state", memory)
    return memory


def probed(algorithm: Algorithm, x: Vec, grad: Grad) -> Rec:
    """Call probe(). Raises AuthorError."""
    up = rules.noted("probe()", algorithm.probe, x, grad)
    rules.check_record("probe", "an update", up)
    return up


def personal_model(algorithm: Algorithm, first: Vec, msg: Rec, mem: Rec) -> Vec:
    """Call personal() with a client's state; None: the one that it would begin with. first: the
    model that the run began with. Raises AuthorError.
    """
    if mem is None:
        x = first if Trait.INITIAL_MODEL in algorithm.traits else msg.x
        mem = first_memory(algorithm, x)
    before = counters(msg, mem)
    found: Vec = rules.noted("personal()", algorithm.personal, msg, mem)
    rules.check_model("personal", found, msg.x)
    if before != counters(msg, mem):
        raise rules.changes("personal", ["msg or mem"])
    return found


# ---------------------------------------------------------------------------------- at the server
def at_server(algorithm: Algorithm, seed: int, name: str, round: int, *arguments: Any) -> Any:
    """Call a method of the server's side. Raises ClientError naming algorithm, method and round.

    seed: the run's, from which torch's generator begins anew for every method and round. round:
    that are done. server_init(), broadcast() and server_step() give records with x; of report()'s
    record a dictionary of numbers is made.
    """
    own = _named(name, arguments)
    before, x = versions(own), own["x" if name == "server_init" else "srv.x"]
    try:
        with own_draws(key(seed, "server", name, round), x):
            found = getattr(algorithm, name)(*arguments)
        _unchanged(name, before, own)
        rules.check_server(name, found, x, arguments[0])
        found = rules.reported(found) if name == "report" else found
    except Exception as error:
        if isinstance(error, FedloomError) and not isinstance(error, AuthorError):
            raise
        if not isinstance(error, AuthorError):
            error.add_note(f"{name}()")
        now = max(1, round) if name in _AFTERWARDS else round + 1
        place = f"{algorithm.method}: the server, round {now}"
        raise ClientError(f"{place}: {rules.in_words(error)}") from error
    return found
