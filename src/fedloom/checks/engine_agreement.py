"""What every kind of part owes: the same in every engine and after a stop, with nothing kept."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..core.net import Net
from ..core.vector import Rec, fields, leaves, rec
from ..core.wire import pack
from ..engines import Serial
from ..engines.author_rules import ARGUMENTS, KEPT, REPEAT, keeps_state
from ..engines.client_results import RangeResult, Request, TrainTask
from ..engines.client_round import Client
from ..engines.guard import first_change, state
from ..engines.one_step import not_replayed
from ..engines.stages import Coding
from ..engines.summation import root
from ..errors import AuthorError, CompositionError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import Download, Sizes
from ..storage.run_directory import Checkpoint
from ..submodels import SubModel
from .compare import Notes, unequal, unlike
from .outcome import Check
from .tiny_federation import CAPACITIES, SMALL, End, Setup, Trial, experiment, finish, run

TOLERANCE = 1e-9  # between engines, in float64: what rounding leaves after a division by sqrt(v)
_STOP = 2  # rounds before the stop that a run is resumed after


class Contract:
    """The checks of one part. kind: the base class of such parts."""

    kind: ClassVar[type]

    def __init__(self, part: Any, setup: Setup = SMALL) -> None:
        self.part, self.setup, self.before = part, setup, state(part, deep=True)

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        """What an experiment with the part in it takes."""
        raise NotImplementedError  # every kind of part has its own

    def call(self, notes: Notes) -> None:
        """Call every method twice, see compare.twice."""
        raise NotImplementedError  # every kind of part has its own

    def checks(self, engines: Sequence[str]) -> list[Check]:
        """Every check, in order; those of all kinds are common()."""
        raise NotImplementedError  # every kind of part has its own

    def common(self, engines: Sequence[str], *own: Check) -> list[Check]:
        """The checks that every kind has. own: those of a kind that come after the first runs."""
        return [
            self.rule(ARGUMENTS),
            self.rule(REPEAT),
            Check("runs", self.starts, required=True),
            Check(KEPT, self.nothing_kept),
            *own,
            Check("bill is the messages", self.billed),
            Check("finite", self.finite),
            Check("types of what is kept", self.types),
            *[
                Check(f"engine {e}", functools.partial(self.fitting, self.agrees, e))
                for e in engines
            ],
            Check("stop and resume", self.resumed),
        ]

    # --------------------------------------------------------------------------------------- runs
    def trial(self, part: Any, dtype: torch.dtype, **changes: Any) -> Trial:
        settings = self.settings(part, dtype) | self.setup.settings(dtype)
        return experiment(dtype, **(settings | changes))

    @functools.cache  # noqa: B019 # lives as long as the checks of one part
    def serial(self, dtype: torch.dtype) -> End:
        """How the run ends in the serial engine: what all other engines are compared with."""
        return run(self.trial(self.part, dtype))

    def fitting(self, check: Callable[..., str | None], *arguments: Any) -> str | None:
        """A check, or why it is left out: an engine or a rule refuses a model of the author's."""
        try:
            return check(*arguments)
        except CompositionError as error:
            if self.setup.data is None:
                raise
            return str(error)

    # ------------------------------------------------------------------------------------- checks
    @functools.cached_property
    def notes(self) -> Notes:
        notes = Notes()
        self.call(notes)
        return notes

    def rule(self, name: str, required: bool = False) -> Check:
        """The check that the methods keep a rule."""

        def run() -> None:
            if name in self.notes.broken:
                raise self.notes.broken[name]

        return Check(name, run, required)

    def starts(self) -> None:
        self.serial(torch.float32)
        self.serial(torch.float64)

    def nothing_kept(self) -> None:
        """The part and its file are what they were before the runs."""
        self.starts()
        if path := first_change(self.before, state(self.part, deep=True)):
            raise keeps_state(path)

    def billed(self) -> None:
        engine = Audited()
        end = run(self.trial(self.part, torch.float32, engine=engine))
        if (sent := (dict(engine.down), dict(engine.up))) != (end.down, end.up):
            raise AuthorError(
                f"the messages have {sent[0]} bytes down and {sent[1]} up, the bill has {end.down} "
                f"and {end.up}: a field's size differs from client to client or from call to call"
            )

    def finite(self) -> None:
        values = [v for v in leaves(self.serial(torch.float64).srv) if isinstance(v, torch.Tensor)]
        if not all(bool(torch.isfinite(v).all()) for v in values):
            raise AuthorError(
                "after four rounds the server's record has values that are not finite: look for "
                "divisions by what may be 0 (a norm, a count, a variance), logarithms of 0, and "
                "steps that grow from round to round"
            )

    def types(self) -> None:
        """In a run in float64 nothing that is kept has another floating type."""
        end = self.serial(torch.float64)
        memory = {f"client_{i}": row for i, row in end.memory.items()}
        for path, v in fields(rec(server=end.srv, **memory)).items():
            if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dtype != torch.float64:
                raise AuthorError(
                    f"in a run in float64 it keeps '{path}' as {str(v.dtype)[6:]}: every round "
                    "loses digits there; make it with zeros(x), torch.full_like(x, ...) or "
                    "x.new_zeros(...), which have the model's type"
                )

    def agrees(self, engine: str) -> str | None:
        """An engine learns and bills what the serial one does: in float32 to the bit, or where many
        clients are one computation within rounding in float64.
        """
        near = engine.startswith("vectorised")
        dtype = torch.float64 if near else torch.float32
        # the history's losses are means over another order of clients
        end, want = (
            e._replace(history=[])
            for e in (run(self.trial(self.part, dtype, engine=engine)), self.serial(dtype))
        )
        difference = unlike(end, want, TOLERANCE) if near else unequal(end, want)
        if difference:
            raise AuthorError(
                f"engine {engine} and engine serial do not agree ({str(dtype)[6:]}): {difference}. "
                "The part depends on something else than its arguments, or on how it is called: "
                "arguments that are written into, a value that is kept between calls, a Python "
                "number made of a tensor (int(job.step)), the order of clients, randomness of its "
                "own; where only 'up' or 'down', the bill, differs, a message's size does"
            )
        return None

    def replayed(self) -> str | None:
        """Many clients' steps can be recorded and replayed; if not, they are only slower."""
        run = self.trial(self.part, torch.float32).build()
        why = not_replayed(run.plan, run.fed, run.net, [0, 1])
        return (
            f"{why}; steps of the vectorised engine are computed anew every time" if why else None
        )

    def resumed(self) -> None:
        """A run that was stopped has the bits of one that never was."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            saving = Checkpoint(every_rounds=1, every_seconds=None)
            self.trial(self.part, torch.float32, rounds=_STOP, checkpoint=saving).run(path)
            run(self.trial(self.part, torch.float32, rounds=1))  # what a global kept is another now
            second = self.trial(self.part, torch.float32, checkpoint=saving)
            second.resume(path)
            field = unequal(finish(second.loop), self.serial(torch.float32))
        if field:
            raise AuthorError(
                f"a run that is stopped after round {_STOP} and resumed is not the run that was "
                f"never stopped: '{field}' differs. What a part knows must be in srv, mem or its "
                "options: only these are written to the disk, and anything else begins anew"
            )


def check_parts(submodel: SubModel, make: Callable[..., Trial], hint: str) -> str | None:
    """Run with clients that hold parts of the model, and compare serial and vectorised.

    make: dtype, **changes -> a run. hint: what to do if it fails with one client alone.
    """
    changes = {"submodel": submodel, "capacities": CAPACITIES}
    case = f"with clients that hold half of the model ({submodel.name})"
    try:
        want = run(make(torch.float64, **changes))
    except CompositionError:
        raise
    except Exception as error:  # whatever a user's part raises: the reason goes into the report
        raise AuthorError(f"{case} it fails: {error}. So {hint}") from error
    end = run(make(torch.float64, engine="vectorised", **changes))
    if difference := unlike(end.srv, want.srv, TOLERANCE):
        raise AuthorError(
            f"{case}, engine vectorised and engine serial do not agree (float64): {difference}"
        )
    return None


# --------------------------------------------------------------------------- with a scale beside it
class Audited(Serial):
    """up, down: {field: bytes} of all messages so far."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()

    def client(self, plan: Plan, fed: Federation, net: Net) -> Client:
        return _Weighing(plan, fed, net, self)

    def map(self, what: Request, task: TrainTask) -> RangeResult:
        before = self.down.copy()
        out = super().map(what, task)
        for _ in task.cohort if what is Request.PROBE else ():
            self.down.update(_sizes(task.msg))
            self.up.update(_sizes(root(out.nodes).up))
        if what in (Request.ASK, Request.LOSSES):
            self.down = before  # what the message says is counted once, with the second exchange
        return out


class _Coding(Coding):
    """Packs what clients send; what is read of it must be what they count with."""

    audit: Audited

    def coded(self, up: Rec, state: Rec, received: Download, *keys: int) -> tuple[Any, Sizes, Rec]:
        packet, after = self.link.send(up, state, received.wire, self.seed, *keys)
        read, sizes, memory = super().coded(up, state, received, *keys)
        field = unequal(self.link.receive(packet, received.wire.layout, up), read)
        if field := field or unequal(after, memory):
            raise AuthorError(
                f"what the server decodes from the bytes differs in '{field}' from what the client "
                "counts as sent: decode() must depend on the message and the layout alone"
            )
        self.audit.up.update({name: len(raw) for name, raw in packet.items()})
        if size := received.travelling(received.buffers).nbytes:
            self.audit.up["buffers"] += size
        return read, sizes, memory


class _Weighing(Client):
    """Packs what its clients are sent, too."""

    def __init__(self, plan: Plan, fed: Federation, net: Net, audit: Audited) -> None:
        super().__init__(plan, fed, net, functools.partial(_Coding, audit=audit))
        self.audit = audit

    def downloads(self, task: TrainTask) -> dict[float, Download]:
        downloads = super().downloads(task)
        for i in task.cohort:
            download = downloads[self.fed.capacity(i)]
            packed = pack(self.views.told(download.view))
            self.audit.down.update(_sizes(download.wire.take(download.msg)))
            self.audit.down.update({f"view.{name}": len(raw) for name, raw in packed.items()})
            if size := download.travelling(download.buffers).nbytes:
                self.audit.down["buffers"] += size
        return downloads

    def answer_bytes(self, answer: Rec) -> dict[str, int]:
        self.audit.up.update(_sizes(answer))
        return super().answer_bytes(answer)


def _sizes(record: Rec) -> dict[str, int]:
    return {name: len(raw) for name, raw in pack(record).items()}
