"""`fedloom replay`: a round of a run once more, what a client did in it, and who spoilt it."""

from __future__ import annotations

import json
import math
import pdb
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import ConfigError
from fedloom.report import human_bytes, human_seconds

from .printing import table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

    from fedloom.core.vector import Rec
    from fedloom.engines.traced import ClientTrace
    from fedloom.experiment.replay import Replay

_EXAMPLES = 12  # whose indices a line shows


@click.command("replay", short_help="Repeat a round of a run, and look into a client.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE ...]")
@click.option("--round", "round_", type=click.IntRange(min=1), required=True, help="The round.")
@click.option("--client", help="One of its clients, by number or name.")
@click.option("--step", type=click.IntRange(min=1), help="A local step of this client.")
@click.option("--blame", is_flag=True, help="Rank its clients by what they did to the model.")
@click.option("--pdb", "debug", is_flag=True, help="Open a debugger at the client's first step.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the client's tensors (.safetensors)."
)
@click.option("--changed-code", is_flag=True, help="Take own files (FILE.py:NAME) that changed.")
def replay_command(
    run: Path,
    changes: tuple[str, ...],
    round_: int,
    client: str | None,
    step: int | None,
    blame: bool,
    debug: bool,
    out: Path | None,
    changed_code: bool,
) -> None:
    """Repeat a round of a run with the same bits, and look into it. The run stays as it is.

    \b
    fedloom replay runs/a --round 412                         who took part
    fedloom replay runs/a --round 412 --blame                 who made the model worse
    fedloom replay runs/a --round 412 --client 7              its steps, its update, its share
    fedloom replay runs/a --round 412 --client 7 --step 3     one step, layer by layer
    fedloom replay runs/a --round 412 --client 7 --pdb        a debugger at its first step
    fedloom replay runs/a --round 412 --client 7 --out 7.safetensors

    Goes on from the newest checkpoint before the round, or from the beginning, in this process
    (engine=workers:4: in processes). The round that stopped a run is the one after its last row.
    """
    if client is None and (step or debug or out):
        given = "--step" if step else "--pdb" if debug else "--out"
        raise ConfigError(f"{given} is about a client of round {round_}: give --client too")
    with _opened(run, round_, changes, changed_code) as replay:
        slow = human_seconds(replay.seconds)
        click.echo(f"repeats rounds {replay.began + 1} to {replay.round} ({slow} then)", err=True)
        replay.go()
        click.echo(_said(replay, run))
        if client is None:
            click.echo(_blamed(replay) if blame else _cohort(replay))
            return
        try:
            trace = replay.client(client, step and step - 1, _debug if debug else None)
        except _LeftError:
            return
        click.echo(_client(replay, trace, step))
        if blame:
            click.echo(_blamed(replay))
        if out is not None:
            _write(replay, trace, out)
            click.echo(f"  tensors in {out}")


def _opened(
    run: Path, round_: int, changes: tuple[str, ...], changed: bool
) -> AbstractContextManager[Replay]:
    from fedloom.config import from_run
    from fedloom.config.overrides import canonical, refuse_repeats
    from fedloom.experiment.replay import check_repeatable
    from fedloom.storage.run_directory import RunDirectory

    check_repeatable(folder := RunDirectory(run))
    if folder.read_config().get("source") == "python":
        raise ConfigError(
            f"'{run}' was started from Python, which made its model and data; repeat it there: "
            f"with Experiment(...).replay('{run}', {round_}) as replay: replay.go()"
        )
    refuse_repeats(changes)
    given = canonical([*changes])
    engine = next((c.partition("=")[2] for c in given if c.startswith("engine=")), None)
    experiment = from_run(run, given, own=True, changed=changed).experiment()
    return experiment.replay(run, round_, engine)


class _LeftError(BaseException):
    """The debugger was left; no error of a client's, which would be explained."""


class _Debugger(pdb.Pdb):
    def set_quit(self) -> None:
        super().set_quit()
        raise _LeftError


def _debug(frame: FrameType) -> None:
    _Debugger(nosigint=True).set_trace(frame)


# -------------------------------------------------------------------------------------- the text
def _said(replay: Replay, run: Path) -> str:
    """What came of the round, and whether it is what the log says."""
    if replay.error:
        return f"round {replay.round} fails: {replay.error}"
    if replay.unlike:
        at, columns = replay.unlike
        return (
            f"round {at} DIFFERS from the log in {', '.join(columns)}: another machine, device or "
            "version rounds otherwise, and what follows is not quite what happened"
        )
    if replay.logged is None:
        return f"round {replay.round} of '{run}' is not in the log; here it ends without an error"
    return f"round {replay.round} is as in the log"


def _cohort(replay: Replay) -> str:
    """The clients of the round, and what it made of the model."""
    names = ", ".join(map(replay.name, replay.cohort))
    lines = [("clients", names or "nobody")]
    if not replay.error:
        moved, norm = (replay.after - replay.before).norm(), replay.before.norm()
        lines.append(("model moved", f"{_number(float(moved))}, of norm {_number(float(norm))}"))
    return table([*lines, ("next", "--blame ranks them, --client NAME opens one")])


def _blamed(replay: Replay) -> str:
    """A table of the clients, the worst first."""
    found, whole = replay.blame(), replay.loss()
    lines = [["client", "examples", "update", "of median", "cosine", "loss without it", ""]]
    for b in found:
        cells = [_number(b.norm), f"{b.ratio:.2f}", _number(b.cosine), _number(b.loss), b.why]
        lines.append([replay.name(b.client), str(b.examples), *cells])
    end = "  the round failed" if replay.error else f"  loss with all of them: {_number(whole)}"
    return f"{table(lines)}\n{end}; cosine: with the others' mean"


def _client(replay: Replay, trace: ClientTrace, step: int | None) -> str:
    """What a client did in the round."""
    from fedloom.experiment.replay import cosine

    fed, i = replay.loop.fed, trace.client
    last = trace.before.last
    lines = [
        ("client", f"{replay.name(i)}, {fed.data.sizes[i]} examples, weight {fed.weight(i):g}"),
        ("took part", "for the first time" if last < 0 else f"before in round {int(last) + 1}"),
        ("received", _fields(trace.share.msg)),
    ]
    lines.append(("state before", _fields(trace.before.alg) or "empty"))
    if trace.done is not None:
        lines.append(("update", _fields(trace.done.up)))
    if trace.sent is not None and not trace.sent.why:
        sizes = human_bytes(sum(trace.sent.sizes.values()))
        lines.append(("sent", f"{sizes}, read as {_fields(trace.sent.up)}"))
    if trace.sent is not None and not trace.sent.why and not replay.error:
        moved = (replay.after - replay.before).double()
        close = _number(cosine(replay.delta(trace), moved))
        told = f"{_number(float(moved.norm()))}; cosine with this update {close}"
        lines.append(("model moved", told))
    why = trace.error or (trace.sent.why if trace.sent else "")
    lines += [("failed", why)] if why else []
    heads = ["step", "examples", "rate", "loss", "norm of the move"]
    steps = [
        [str(k), str(len(s.examples)), f"{s.rate:.4g}", _number(s.loss), _number(s.norm)]
        for k, s in enumerate(trace.steps, 1)
    ]
    page = f"{table(lines)}\n\n{table([heads, *steps])}"
    return page if step is None else f"{page}\n\n{_step(trace, step)}"


def _step(trace: ClientTrace, step: int) -> str:
    """One step: its examples, and the move of every layer."""
    if step > len(trace.steps):
        raise ConfigError(f"client {trace.client} made {len(trace.steps)} steps, not {step}")
    some = trace.steps[step - 1].examples.tolist()
    more = f", and {len(some) - _EXAMPLES} more" if len(some) > _EXAMPLES else ""
    lines = [["layer", "norm", "moved"]]
    x, moved = trace.points[0], trace.points[-1] - trace.points[0]
    layout = trace.share.view.layout
    for name, a, b in zip(layout.names, layout.pieces(x), layout.pieces(moved), strict=True):
        lines.append([name, _number(float(a.norm())), _number(float(b.norm()))])
    shown = ", ".join(map(str, some[:_EXAMPLES]))
    return f"  step {step}: examples {shown}{more} of the data\n{table(lines)}"


def _fields(record: Rec) -> str:
    """The fields of a record: the norms of vectors, and numbers."""
    from fedloom.core.vector import fields

    shown = []
    for name, v in fields(record).items():
        vector = hasattr(v, "norm") and v.ndim
        norm = f"||{name}|| {_number(float(v.double().norm()))}" if vector else ""
        shown.append(norm or f"{name} {_number(None if v is None else float(v))}")
    return ", ".join(shown)


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _write(replay: Replay, trace: ClientTrace, out: Path) -> None:
    """The client's tensors, and the losses of its steps and the records' numbers as JSON in the
    header; batch.K: indices of step K's examples. Raises CheckpointError.
    """
    from fedloom.errors import CheckpointError
    from fedloom.storage.records import freeze, write_tensors

    tensors: dict[str, Any] = {"server.before": replay.before, "server.after": replay.after}
    records = {"message": trace.share.msg, "before": trace.before}
    if trace.done is not None:
        records["update"] = trace.done.up
    if trace.sent is not None and not trace.sent.why:
        records |= {"sent": trace.sent.up, "after": trace.sent.memory}
    numbers = {}
    for name, record in records.items():
        shape, held = freeze(record, name)
        tensors |= held
        numbers[name] = shape
    tensors |= {f"batch.{k}": s.examples for k, s in enumerate(trace.steps, 1)}
    if len(trace.points) == 2:
        tensors |= {"step.before": trace.points[0], "step.after": trace.points[1]}
    steps = [{"rate": s.rate, "loss": s.loss, "norm": s.norm} for s in trace.steps]
    about = {"round": replay.round, "client": trace.client, "steps": steps, "records": numbers}
    try:
        write_tensors(out, tensors, {"about": json.dumps(about | {"row": replay.row})})
    except OSError as error:
        raise CheckpointError(f"'{out}' cannot be written: {error.strerror or error}") from None
