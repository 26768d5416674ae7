"""What every kind of part must do in a run: the same in every engine, after a stop, on the bill."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.vector import leaves
from ..errors import CompositionError
from ..storage.checkpoint import Checkpoint
from ..submodels import Rule
from .compare import unequal, unlike
from .hyperparameters import variants
from .outcome import BrokenError, Check
from .purity import Notes, kept, look
from .tiny_federation import CAPACITIES, End, Trial, finish, run

TOLERANCE = 1e-9  # between engines, in float64: what rounding leaves after a division by sqrt(v)
_STOP = 2  # rounds before the stop that a run is resumed after

Make = Callable[..., Trial]  # part, dtype, **changes -> a run with the part in it


class Runs:
    """The runs of one part, each made once."""

    def __init__(self, part: Any, make: Make) -> None:
        self.part, self.make = part, make

    @functools.cache  # noqa: B019 # lives as long as the checks of one part
    def serial(self, dtype: torch.dtype) -> End:
        """The reference."""
        return run(self.make(self.part, dtype))

    # ------------------------------------------------------------------------------------- checks
    def checks(self, engines: Sequence[str]) -> list[Check]:
        """The checks that all kinds have in common, after the first serial run."""
        out = [Check("finite", self._finite)]
        for engine in engines:
            exact = not engine.startswith("vectorised")
            test = functools.partial(self._exact if exact else self._near, engine)
            out.append(Check(f"engine {engine}", test))
        out.append(Check("stop and resume", self._resumed))
        out.append(Check("every option does something", self._options))
        return out

    def starts(self) -> None:
        """Run one client after another."""
        self.serial(torch.float32)
        self.serial(torch.float64)

    def _finite(self) -> None:
        end = self.serial(torch.float64)
        values = [v for v in leaves(end.srv) if isinstance(v, torch.Tensor)]
        if not all(bool(torch.isfinite(v).all()) for v in values):
            raise BrokenError(
                "after four rounds the server's record has values that are not finite: look for "
                "divisions by what may be 0 (a norm, a count, a variance), logarithms of 0, and "
                "steps that grow from round to round"
            )

    def _near(self, engine: str) -> None:
        end = run(self.make(self.part, torch.float64, engine=engine))
        self._compare(end, engine, lambda a, b: unlike(a, b, TOLERANCE))

    def _exact(self, engine: str) -> None:
        end = run(self.make(self.part, torch.float32, engine=engine))
        self._compare(end, engine, unequal, torch.float32)

    def _compare(
        self,
        end: End,
        engine: str,
        gap: Callable[[Any, Any], str],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        want, kind = self.serial(dtype), "float64" if dtype == torch.float64 else "float32"
        found = gap(end.srv, want.srv)
        for i in want.memory if not found else ():
            found = gap(end.memory[i], want.memory[i])
            found = f"of client {i}'s memory {found}" if found else ""
            if found:
                break
        if found:
            raise BrokenError(
                f"engine {engine} and engine serial do not agree ({kind}): {found}. The part "
                "depends on something else than its arguments, or on how it is called: arguments "
                "that are written into, a value that is kept between calls, a Python number made "
                "of a tensor (int(job.step)), the order of clients, randomness of its own"
            )
        if (end.up, end.down) != (want.up, want.down):
            raise BrokenError(
                f"engine {engine} bills {end.down} down and {end.up} up, engine serial "
                f"{want.down} and {want.up}: a message's size depends on more than its content"
            )

    def _resumed(self) -> None:
        whole = self.serial(torch.float32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            saving = Checkpoint(every_rounds=1, every_seconds=None)
            self.make(self.part, torch.float32, rounds=_STOP, checkpoint=saving).run(path)
            run(self.make(self.part, torch.float32, rounds=1))  # what a global kept is another now
            second = self.make(self.part, torch.float32, checkpoint=saving)
            second.resume(path)
            end = finish(second.loop)
        found = unequal(end.srv, whole.srv)
        for i in whole.memory if not found else ():
            found = found or unequal(end.memory.get(i), whole.memory[i])
        if found or end.history != whole.history:
            what = f"'{found}' differs" if found else "the history differs"
            raise BrokenError(
                f"a run that is stopped after round {_STOP} and resumed is not the run that was "
                f"never stopped: {what}. What a part knows must be in srv, mem or its options: "
                "only these are written to the disk, and anything else begins anew"
            )

    def _options(self) -> str | None:
        known = variants(self.part)
        idle = [f"{name} = {v!r}" for name, (v, other) in known.items() if not self._matters(other)]
        if idle:
            raise BrokenError(
                f"other values than {', '.join(idle)} change neither the model, nor a memory, nor "
                "a byte of the bill, in four rounds on a small problem: use the option, take it "
                "out, or check the part with other options, where it matters"
            )
        return None if known else "it has no options"

    def _matters(self, variants: list[Any]) -> bool:
        want = self.serial(torch.float32)
        for changed in variants:
            end = run(self.make(changed, torch.float32))
            if unequal(end.srv, want.srv) or (end.up, end.down) != (want.up, want.down):
                return True
            if any(unequal(end.memory[i], want.memory[i]) for i in want.memory):
                return True
        return not variants  # nothing else is legal


def held_by_parts(rule: Rule, make: Callable[..., Trial], hint: str) -> None:
    """Run with clients that hold parts of the model, and compare serial and vectorised.

    make: dtype, **changes -> a run. hint: what to do if it fails with one client alone.
    """
    changes = {"submodel": rule, "capacities": CAPACITIES}
    try:
        want = run(make(torch.float64, **changes))
    except CompositionError:
        raise
    except Exception as error:  # whatever a user's part raises: the reason goes into the report
        raise BrokenError(
            f"with clients that hold half of the model ({rule.name}) it fails: {error}. So {hint}"
        ) from error
    end = run(make(torch.float64, engine="vectorised", **changes))
    if found := unlike(end.srv, want.srv, TOLERANCE):
        raise BrokenError(
            f"with clients that hold half of the model ({rule.name}), engine vectorised and engine "
            f"serial do not agree (float64): {found}"
        )


class PartChecks:
    """The checks of one part that a subclass has written `notes` for. runs: of the part."""

    def __init__(self, part: Any, runs: Runs) -> None:
        self.part, self.runs, self.before = part, runs, look(part)

    @functools.cached_property
    def notes(self) -> Notes:
        """Every method called twice; see watch.twice."""
        return Notes()

    def noted(self, name: str) -> None:
        """What the two calls showed."""
        if name in self.notes.wrong:
            raise BrokenError(self.notes.wrong[name])

    def nothing_kept(self) -> None:
        """The part and its file are what they were before the runs."""
        self.runs.starts()
        if found := kept(self.before, look(self.part)):
            raise BrokenError(found)
