"""`fedloom demo`: four methods side by side, on data that needs no download."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .printing import COUNT, PATH, drawing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    from fedloom.report import comparison, group_runs, load_run
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
    rows = comparison(group_runs([load_run(trial.folder) for trial in trials]))
    click.echo(f"\n{fitted(rows)}\n")
    _illustrate(out, [trial.folder for trial in trials])
    click.echo(f"\n{_summarise(rows)} ({time.monotonic() - started:.0f} s in all)")


def _summarise(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the comparison shows, in a sentence: who reaches the target first, and who last.

    >>> row = {"unit": "share", "target": 0.95, "rounds": 150, "not_reached": 0}
    >>> first = row | {"label": "FedACG", "rounds_to_target": 55.3}
    >>> _summarise([first, row | {"label": "FedAvg", "rounds_to_target": 100.0}])
    'FedACG reaches 95 % in 55 rounds, FedAvg in 100.'
    >>> _summarise([first, row | {"label": "FedAvg", "not_reached": 3, "rounds_to_target": None}])
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
    sentence = f"{first['label']} reaches {goal} in {first['rounds_to_target']:.0f} rounds"
    if missed:
        return f"{sentence}; {missed[0]['label']} does not in {missed[0]['rounds']}."
    return f"{sentence}, {last['label']} in {last['rounds_to_target']:.0f}."


def _illustrate(out: Path, folders: Sequence[Path]) -> None:
    folder, page = (shlex.quote(str(path)) for path in (out, out / "report.html"))
    with drawing(f"fedloom report {folder} --out {page}"):
        from fedloom.report import write_report

        pictures, title = out / "pictures", "Four federated methods on handwritten digits"
        report = write_report(folders, out / "report.html", title=title, pictures=pictures)
        picture = pictures.resolve() / "accuracy_by_round.png"
        click.echo(f"report   {report.resolve()}\npicture  {picture}")
