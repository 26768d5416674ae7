"""`fedloom demo`: four methods side by side, on data that needs no download."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import CheckpointError, FedloomError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedloom.config import Config


ALGORITHMS = ("fedavg", "fedavgm", "scaffold", "fedacg")
RECIPE = "digits"


@click.command("demo", short_help="Compare four methods on handwritten digits in a minute.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Per method."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="The folder of its runs.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Per run.  [default: the recipe's]")
def demo_command(seeds: int, out: Path, rounds: int | None) -> None:
    """Compare FedAvg, FedAvgM, SCAFFOLD and FedACG on handwritten digits, about a minute.

    Finished runs are not run again, and a run that was stopped goes on.
    """
    from fedloom.config import resolve
    from fedloom.report import comparison, group_runs, load_run

    from .results import fitted

    started = time.monotonic()
    more = [] if rounds is None else [f"rounds={rounds}"]
    configs = {
        f"{name}-seed{seed}": resolve(RECIPE, [f"algorithm={name}", f"seed={seed}", *more])
        for name in ALGORITHMS
        for seed in range(seeds)
    }
    v = next(iter(configs.values())).values
    partition = v["data"]["partition"]
    click.echo(
        f"digits: {partition['clients']} clients, Dirichlet {partition['alpha']}, "
        f"{v['cohort']:.0%} a round, {v['rounds']} rounds, "
        f"{len(configs)} runs",
        err=True,
    )
    out = _folder(out, configs)
    for name, config in configs.items():
        _bring(config, out / name)
    rows = comparison(group_runs([load_run(out / name) for name in configs]))
    click.echo(f"\n{fitted(rows)}\n")
    _illustrate(out, list(configs))
    click.echo(f"\n{_found(rows)} ({time.monotonic() - started:.0f} s in all)")


def _found(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the comparison shows, in a sentence: who reaches the target first, and who last.

    >>> row = {"unit": "share", "target": 0.95, "rounds": 150, "not_reached": 0}
    >>> first = row | {"label": "FedACG", "rounds_to_target": 55.3}
    >>> _found([first, row | {"label": "FedAvg", "rounds_to_target": 100.0}])
    'FedACG reaches 95 % in 55 rounds, FedAvg in 100.'
    >>> _found([first, row | {"label": "FedAvg", "not_reached": 3, "rounds_to_target": None}])
    'FedACG reaches 95 % in 55 rounds; FedAvg does not in 150.'
    """
    from fedloom.report.tables import human_target

    goal = human_target(rows[0]["target"], rows[0]["unit"])
    reached = [row for row in rows if not row["not_reached"]]
    missed = [row for row in rows if row["not_reached"]]
    if not reached:
        return f"No method reaches {goal} in {rows[0]['rounds']} rounds with every seed."
    reached.sort(key=lambda row: row["rounds_to_target"])
    first, last = reached[0], reached[-1]
    said = f"{first['label']} reaches {goal} in {first['rounds_to_target']:.0f} rounds"
    if missed:
        return f"{said}; {missed[0]['label']} does not in {missed[0]['rounds']}."
    return f"{said}, {last['label']} in {last['rounds_to_target']:.0f}."


def _bring(config: Config, folder: Path) -> None:
    """Make sure that a folder has a finished run: it is there already, is continued, or is run."""
    from fedloom.report import load_run

    from .run import interrupted, stopped

    there = (folder / "config.toml").is_file()
    if there and load_run(folder).finished:
        click.echo(f"{config.values['label']}, seed {config.values['seed']}: is there", err=True)
        return
    experiment = config.experiment()
    try:
        (experiment.resume if there else experiment.run)(folder, progress=True)
    except KeyboardInterrupt as stop:
        text = f"\ninterrupted; go on with: {_typed()} (what is done stays)"
        raise interrupted(stop, text) from None
    except OSError as error:
        raise CheckpointError(stopped(folder, error)) from error


def _typed() -> str:
    """The command as it was given."""
    context, words = click.get_current_context(), ["fedloom", "demo"]
    for name, value in context.params.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _folder(out: Path, configs: dict[str, Config]) -> Path:
    """The folder itself, or the first of out-2, out-3, ... that contains no other run."""
    folder, number = out, 1
    while not all(_fits(folder / name, config) for name, config in configs.items()):
        number += 1
        folder = out.with_name(f"{out.name}-{number}")
    if folder != out:
        click.echo(f"{out} holds other runs; this demo goes to {folder}", err=True)
    return folder


def _fits(folder: Path, config: Config) -> bool:
    """True if this run can be put, continued, or used as it is there."""
    from fedloom.config import from_run

    if not folder.exists():
        return True
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder.is_dir()
    try:
        kept = from_run(folder).values  # in whatever engine auto took
        return {**kept, "engine": config.values["engine"]} == dict(config.values)
    except FedloomError:
        return False


def _illustrate(out: Path, names: list[str]) -> None:
    from .printing import say_undrawn

    folders = [out / name for name in names]
    try:
        from fedloom.report import write_report

        pictures, title = out / "pictures", "Four federated methods on handwritten digits"
        report = write_report(folders, out / "report.html", title=title, pictures=pictures)
    except Exception as error:  # drawing may raise anything; the runs are finished and saved
        folder, page = (shlex.quote(str(path)) for path in (out, out / "report.html"))
        say_undrawn(error, f"fedloom report {folder} --out {page}")
        return
    click.echo(f"report   {report.resolve()}\npicture  {pictures.resolve()}/accuracy_by_round.png")
