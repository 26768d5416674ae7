"""`fedloom replay`: a round of a run once more, what a client did in it, and who spoilt it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import ConfigError

from .printing import COUNT, PATH, table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fedloom.core.vector import Rec
    from fedloom.engines.traced import ClientTrace
    from fedloom.experiment.replay import Replay


@click.command("replay", short_help="Repeat a round of a run, and look into a client.")
@click.argument("run", type=PATH)
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE ...]")
@click.option("--round", "number", type=COUNT, required=True, help="The round.")
@click.option("--blame", is_flag=True, help="Rank its clients by what they did to the model.")
@click.option("--client", help="Open one of its clients, by number or name.")
@click.option("--changed-code", is_flag=True, help="Use own files (FILE.py:NAME) as they are now.")
def replay_command(
    run: Path,
    changes: tuple[str, ...],
    number: int,
    blame: bool,
    client: str | None,
    changed_code: bool,
) -> None:
    """Repeat a round of a run with the same bits, and look into it. The run stays as it is.

    \b
    fedloom replay runs/a --round 412             who took part
    fedloom replay runs/a --round 412 --blame     who made it worse
    fedloom replay runs/a --round 412 --client 7  its steps, its update

    Goes on from the newest checkpoint before the round, or from the beginning, in this process
    (engine=workers:4: in processes). The round that stopped a run is the one after its last row.
    """
    from fedloom.report import human_seconds

    with _open(run, number, changes, changed_code) as replay:
        slow = human_seconds(replay.seconds)
        click.echo(f"repeats rounds {replay.began + 1} to {number} ({slow} then)", err=True)
        replay.go()
        click.echo(_describe_round(replay))
        if blame:
            click.echo(_blame_table(replay))
        if client is not None:
            click.echo(_client(replay, replay.client(client)))


def _open(
    run: Path, number: int, changes: tuple[str, ...], changed: bool
) -> AbstractContextManager[Replay]:
    from fedloom.config import from_run
    from fedloom.config.overrides import refuse_repeats
    from fedloom.experiment.replay import check_repeatable
    from fedloom.storage.run_directory import RunDirectory

    if (run / "federation.toml").is_file():
        run = run / "run"
    check_repeatable(folder := RunDirectory(run))
    if folder.read_config().get("source") == "python":
        raise ConfigError(
            f"'{run}' was started from Python, which made its model and data; repeat it there: "
            f"with Experiment(...).replay('{run}', {number}) as replay: replay.go()"
        )
    refuse_repeats(changes)
    engine = next((c.partition("=")[2] for c in changes if c.startswith("engine=")), None)
    return (
        from_run(run, changes, own=True, changed=changed).experiment().replay(run, number, engine)
    )


# -------------------------------------------------------------------------------------- the text
def _describe_round(replay: Replay) -> str:
    text = f"round {replay.round} is as in the log"
    if replay.error:
        text = f"round {replay.round} fails: {replay.error}"
    elif replay.unlike:
        text = f"round {replay.unlike[0]} DIFFERS from the log in {', '.join(replay.unlike[1])}: "
        text += "another machine, device or version rounds otherwise"
    elif replay.logged is None:
        text = f"round {replay.round} is not in the log; here it ends without an error"
    clients = ", ".join(map(replay.name, replay.cohort)) or "nobody"
    norm, change = replay.before.norm(), (replay.after - replay.before).norm()
    model = f"norm {_number(norm)}, moved by {_number(change)}"
    return f"{text}\n{table([('clients', clients), ('model', model)])}"


def _blame_table(replay: Replay) -> str:
    lines = [["client", "examples", "update", "of median", "cosine", "loss without it", ""]]
    for b in replay.blame():
        cells = [_number(b.norm), f"{b.ratio:.2f}", _number(b.cosine), _number(b.loss), b.why]
        lines.append([replay.name(b.client), str(b.examples), *cells])
    return f"{table(lines)}\n  loss with all of them: {_number(replay.loss())}"


def _client(replay: Replay, trace: ClientTrace) -> str:
    from fedloom.report import human_bytes

    fed, i, last = replay.run.fed, trace.client, int(trace.before.last)
    lines = [
        ("client", f"{replay.name(i)}, {fed.data.sizes[i]} examples, weight {fed.weight(i):g}"),
        ("before", "had not taken part" if last < 0 else f"took part in round {last + 1}"),
        ("its state", _fields(trace.before.alg)),
        ("received", _fields(trace.download.msg)),
    ]
    if trace.trained is not None:
        lines.append(("update", _fields(trace.trained.up)))
    if trace.sent is not None and not trace.sent.why:
        sizes = human_bytes(sum(trace.sent.sizes.values()))
        lines.append(("sent", f"{sizes}, read as {_fields(trace.sent.up)}"))
        lines.append(("cosine", f"{_number(replay.cosine(trace))}, with the model's move"))
    why = trace.error or (trace.sent.why if trace.sent else "")
    lines += [("failed", why)] if why else []
    if not trace.steps:  # of one that failed before
        return table(lines)
    steps = [["step", "examples", "rate", "loss", "norm of the move"]]
    for k, s in enumerate(trace.steps, 1):
        numbers = [f"{s.rate:.4g}", _number(s.loss), _number(s.norm)]
        steps.append([str(k), str(len(s.examples)), *numbers])
    return f"{table(lines)}\n\n{table(steps)}"


def _fields(record: Rec) -> str:
    """The norms of a record's vectors, and its numbers."""
    from fedloom.core.vector import fields

    parts = []
    for name, v in fields(record).items():
        norm = getattr(v, "norm", None) if getattr(v, "ndim", 0) else None
        parts.append(f"{name} {_number(v)}" if norm is None else f"||{name}|| {_number(norm())}")
    return ", ".join(parts) or "empty"


def _number(value: Any) -> str:
    return "-" if value is None or math.isnan(value) else f"{float(value):.4g}"
