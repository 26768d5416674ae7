"""The contract of an algorithm: the guard of a run, and what only a whole run shows."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Trait
from ..core.vector import Rec, rec, tree
from ..core.wire import pack, unpack
from ..engines.author_rules import (
    DECLARED,
    FIELDS,
    REPEAT,
    SHAPES,
    check_declarations,
    check_sent,
)
from ..errors import AuthorError, CompositionError
from ..storage.records import freeze, thaw
from ..submodels import FIARSE, HeteroFL
from .compare import unequal, unlike
from .engine_agreement import Contract, held_by_parts
from .explain import root
from .outcome import Check
from .purity import Notes, Watch
from .tiny_federation import End, run

_WHY = (
    "take lengths from the vectors that are given (zeros(x)), or declare Trait.WHOLE_MODEL if it "
    "makes no sense when clients hold different coordinates"
)


class AlgorithmContract(Contract):
    """See Contract. end: of the run in which every method is called twice, if it came to one."""

    end: End | None = None

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        return {"algorithm": part}

    def first(self) -> list[Check]:
        return [
            Check(DECLARED, lambda: check_declarations(self.part)),
            Check(SHAPES, functools.partial(self.noted, SHAPES), needed=True),
            Check(FIELDS, functools.partial(self.noted, FIELDS), needed=True),
        ]

    def later(self) -> list[Check]:
        return [
            Check("messages and memory can be stored", self.stored),
            Check("bill is the messages", self.billed),
        ]

    def last(self) -> list[Check]:
        return [Check("clients with a part of the model", self.parts)]

    def call(self, notes: Notes) -> None:
        """One run, in which the guard looks on as well."""
        try:
            self.end = run(self.trial(Watch(inner=self.part, notes=notes), torch.float32))
            check_sent(self.part, notes.calls["finish"][0][1][0])
            if found := unequal(self.end.srv, self.serial(torch.float32).srv):
                raise AuthorError(
                    f"with every method called twice, the run learns another '{found}': it counts "
                    "its calls, or remembers something outside of its records",
                    REPEAT,
                )
        except Exception as error:  # whatever an author's code raises: "runs" says why
            if isinstance(first := root(error), AuthorError):
                notes.add(first)

    def _records(self) -> tuple[End, dict[str, list[Rec]]]:
        """The end of that run, and {kind: all records that were sent}."""
        calls = self.notes.calls
        assert self.end is not None
        return self.end, {
            "messages": [msg for _, msg in calls["broadcast"]],
            "answers": [tree(_number, up) for _, (up, _) in calls["finish"]],
            "asked": [rec(x=x) for (x, _), _ in calls["probe"]],
            "probes": [up for _, up in calls["probe"]],
        }

    def stored(self) -> None:
        """What is sent and stored is what is read again."""
        end, sent = self._records()
        rows = [row.alg for row in end.memory.values()]
        for record in [*sent["messages"], *sent["answers"], *rows, end.srv]:
            empty = tree(lambda v: torch.zeros_like(v) if isinstance(v, Tensor) else 0.0, record)
            shape, tensors = freeze(record)
            for back in (unpack(pack(record), empty), thaw(json.loads(json.dumps(shape)), tensors)):
                if found := unlike(back, record, 0.0):
                    raise AuthorError(f"sent or stored, and read again, {found}")

    def billed(self) -> None:
        """The ledger has the bytes of the messages, to the byte."""
        end, sent = self._records()
        down = _sum(sent["messages"], end.history[0]["cohort"]) + _sum(sent["asked"])
        up = _sum(sent["answers"]) + _sum(sent["probes"])
        if (dict(down), dict(up)) != (end.down, end.up):
            raise AuthorError(
                f"the messages have {dict(down)} bytes down and {dict(up)} up, the bill has "
                f"{end.down} and {end.up}: a field's size differs from client to client or from "
                "call to call"
            )

    def parts(self) -> str | None:
        """Clients that hold slices, and the largest weights."""
        if Trait.WHOLE_MODEL in self.part.traits:
            return "it declares Trait.WHOLE_MODEL"
        make, other = functools.partial(self.trial, self.part), []
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
