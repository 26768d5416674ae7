"""The contract of an algorithm."""

from __future__ import annotations

import functools
import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, Reaches, Trait
from ..core.vector import Rec, fields, is_rec, rec, tree
from ..core.wire import pack, unpack
from ..errors import CompositionError
from ..storage.records import freeze, thaw
from ..submodels import FIARSE, HeteroFL
from .compare import unequal, unlike
from .engine_agreement import Runs, held_by_parts
from .outcome import BrokenError, Check
from .purity import ARGUMENTS, FIELDS, KEPT, REPEAT, SHAPES, Watch, kept, look
from .tiny_federation import SMALL, End, Given, Trial, experiment, finish

_METHODS = (
    "server_init",
    "broadcast",
    "server_step",
    "model",
    "probe",
    "client_init",
    "start",
    "direction",
    "finish",
    "uniform",
)


def algorithm_checks(part: Algorithm, engines: Sequence[str], given: Given = SMALL) -> list[Check]:
    """Every check of an algorithm, in order."""
    own = _Checks(part, given)
    noted = [Check(name, functools.partial(own.noted, name)) for name in _NOTED]
    return [
        Check("methods and declarations", own.declarations),
        *noted,
        Check(KEPT, own.nothing_kept),
        Check("runs", own.runs.starts, needed=True),
        Check("messages and memory can be stored", own.stored),
        Check("bill is the messages", own.billed),
        *own.runs.checks(engines),
        Check("clients with a part of the model", own.parts),
    ]


_WHY = (
    "take lengths from the vectors that are given (zeros(x)), or declare Trait.WHOLE_MODEL if it "
    "makes no sense when clients hold different coordinates"
)
_NOTED = (SHAPES, FIELDS, ARGUMENTS, REPEAT)


class _Checks:
    def __init__(self, part: Algorithm, given: Given) -> None:
        self.part, self.given, self.runs = part, given, Runs(part, self._make)

    def _make(self, part: Algorithm, dtype: torch.dtype, **changes: Any) -> Trial:
        return experiment(dtype, algorithm=part, **(self.given.settings(dtype) | changes))

    @functools.cached_property
    def watched(self) -> tuple[Watch, End | None, str]:
        """One run under watch, its end if it came to one, and what has changed on the part."""
        watch, before = Watch(inner=self.part), look(self.part)
        trial, end = self._make(watch, torch.float32), None
        loop = trial.build()
        try:
            loop.engine.open(loop.plan, loop.fed, loop.net)
            loop.begin()
            loop.run(trial.rounds)
            end = finish(loop)
        except Exception:  # whatever an author's code raises: the check "runs" says why
            end = None
        return watch, end, kept(before, look(self.part))

    def declarations(self) -> None:
        """Signatures, and what the class says of itself."""
        kind = type(self.part)
        for name in _METHODS:
            have = list(inspect.signature(getattr(kind, name)).parameters)
            want = list(inspect.signature(getattr(Algorithm, name)).parameters)
            if have != want:
                raise BrokenError(
                    f"{name}({', '.join(have)}) must take ({', '.join(want)}): engines and "
                    "wrappers call it with these, in this order"
                )
        sent, near, traits = self.part.sent, self.part.approximate, self.part.traits
        if not isinstance(sent, Mapping) or not all(isinstance(v, Reaches) for v in sent.values()):
            raise BrokenError(
                f"sent must map field names to MEAN, ACCUMULATED or CHANGE, got {sent!r}; most "
                'methods have {"delta": MEAN}'
            )
        if not isinstance(near, tuple) or not all(isinstance(v, str) for v in near):
            raise BrokenError(
                f"approximate must be a tuple of field names, got {near!r}; a tuple of one is "
                '("x",), with the comma'
            )
        if not isinstance(traits, frozenset) or not all(isinstance(v, Trait) for v in traits):
            raise BrokenError(
                f"traits must be a frozenset of fedloom.algorithm.Trait, got {traits!r}; write "
                "frozenset({Trait.READS_THE_MOVE}), or leave it out"
            )

    def noted(self, name: str) -> None:
        """What the watch saw."""
        watch, end, _ = self.watched
        if name in watch.notes.wrong:
            raise BrokenError(watch.notes.wrong[name])
        answers = watch.notes.answers
        if name == FIELDS and answers and is_rec(answers[0]):
            lacking = [f for f in self.part.sent if f not in answers[0]._fields]
            if lacking:
                raise BrokenError(
                    f"sent names {', '.join(lacking)}, which finish() does "
                    f"not send (it sends {', '.join(answers[0]._fields)}): a link could not find "
                    "the field that it may compress"
                )
        if name == REPEAT and end is not None:
            found = unequal(end.srv, self.runs.serial(torch.float32).srv)
            if found:
                raise BrokenError(
                    f"called twice per step, it learns something else ('{found}') than called "
                    "once: it counts its calls, or remembers something outside of its records"
                )

    def nothing_kept(self) -> None:
        """The part and its file are what they were before a run."""
        if found := self.watched[2]:
            raise BrokenError(found)

    def stored(self) -> None:
        """Records hold nothing but tensors, numbers and records."""
        watch, end, _ = self.watched
        assert end is not None
        rows = [row.alg for row in end.memory.values()]
        for record in [*watch.notes.messages, *watch.notes.answers, *rows, end.srv]:
            for path, v in fields(record).items():
                if not isinstance(v, (Tensor, int, float)):
                    raise BrokenError(
                        f"a record's field '{path}' holds a {type(v).__name__}: only tensors, "
                        "numbers and records made by rec(...) travel and are stored"
                    )
            empty = tree(lambda v: torch.zeros_like(v) if isinstance(v, Tensor) else 0.0, record)
            shape, tensors = freeze(record)
            for back in (unpack(pack(record), empty), thaw(json.loads(json.dumps(shape)), tensors)):
                if found := unlike(back, record, 0.0):
                    raise BrokenError(f"sent or stored, and read again, {found}")

    def billed(self) -> None:
        """The ledger has the bytes of the messages, to the byte."""
        watch, end, _ = self.watched
        assert end is not None
        down, up = _sum(watch.notes.messages, end.history[0]["cohort"]), Counter[str]()
        up.update(_sum([tree(_number, answer) for answer in watch.notes.answers]))
        down.update(_sum([rec(x=x) for x, _ in watch.notes.probes]))
        up.update(_sum([answer for _, answer in watch.notes.probes]))
        if (dict(down), dict(up)) != (end.down, end.up):
            raise BrokenError(
                f"the messages have {dict(down)} bytes down and {dict(up)} up, the bill has "
                f"{end.down} and {end.up}: a field's size differs from client to client or from "
                "call to call"
            )

    def parts(self) -> str | None:
        """Clients that hold slices, and the largest weights."""
        if Trait.WHOLE_MODEL in self.part.traits:
            return "it declares Trait.WHOLE_MODEL"
        make, other = functools.partial(self._make, self.part), []
        for rule in (HeteroFL(), FIARSE()):
            try:
                held_by_parts(rule, make, _WHY)
            except CompositionError as error:
                if self.given.data is None:
                    raise
                other.append(str(error))  # a model of the author's, which this rule cannot cut
        return "; ".join(other) or None


def _number(v: Any) -> Any:
    """A single value as it travels in an answer: as a double."""
    return float(v) if isinstance(v, Tensor) and not v.ndim else v


def _sum(records: Sequence[Rec], times: int = 1) -> Counter[str]:
    """{field: bytes} of these messages together, each sent so often."""
    out: Counter[str] = Counter()
    for record in records:
        out.update({k: times * len(raw) for k, raw in pack(record).items()})
    return out
