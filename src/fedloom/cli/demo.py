"""`fedloom demo`: four methods side by side, on data that needs no download."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from .printing import COUNT, PATH, drawing

ALGORITHMS = ("fedavg", "fedavgm", "scaffold", "fedacg")
RECIPE = "digits"


@click.command("demo", short_help="Compare four methods on handwritten digits in a minute.")
@click.option("--seeds", type=COUNT, default=3, show_default=True, help="Per method.")
@click.option(
    "--out",
    type=PATH,
    default=Path("runs/demo"),
    show_default=True,
    help="The folder of its runs.",
)
@click.option("--rounds", type=COUNT, help="Per run.  [default: the recipe's]")
def demo_command(seeds: int, out: Path, rounds: int | None) -> None:
    """Compare FedAvg, FedAvgM, SCAFFOLD and FedACG on handwritten digits, about a minute.

    Finished runs are not run again, and a run that was stopped goes on.
    """
    from fedloom.report import comparison, group_runs, load_run, write_report
    from fedloom.study import run_trial, state_of
    from fedloom.study.trial import trial_in

    from .results import fitted
    from .run import repeatable

    started = time.monotonic()
    more = [] if rounds is None else [f"rounds={rounds}"]
    trials = [
        trial_in(out, RECIPE, more, {"algorithm": name}, seed)
        for name in ALGORITHMS
        for seed in range(seeds)
    ]
    v = trials[0].config.values
    partition = v["data"]["partition"]
    click.echo(
        f"digits: {partition['clients']} clients, Dirichlet {partition['alpha']}, "
        f"{v['cohort']:.0%} a round, {v['rounds']} rounds, {len(trials)} runs",
        err=True,
    )
    with repeatable(f"the runs in '{out}'"):
        for trial in trials:
            if state_of(trial.folder) == "finished":
                click.echo(f"{trial.config.values['label']}, seed {trial.seed}: is there", err=True)
            run_trial(trial, progress=True)
    folders = [trial.folder for trial in trials]
    click.echo(f"\n{fitted(comparison(group_runs(map(load_run, folders))))}\n")
    folder, page = (shlex.quote(str(path)) for path in (out, out / "report.html"))
    with drawing(f"fedloom report {folder} --out {page}"):
        pictures, title = out / "pictures", "Four federated methods on handwritten digits"
        report = write_report(folders, out / "report.html", title=title, pictures=pictures)
        picture = pictures.resolve() / "accuracy_by_round.png"
        click.echo(f"report   {report.resolve()}\npicture  {picture}")
    click.echo(f"\n{time.monotonic() - started:.0f} s in all")
