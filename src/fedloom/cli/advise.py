"""`fedloom advise`: which method for these clients, and the settings to deploy."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from fedloom.core.parsing import is_file
from fedloom.storage.atomic import write_out

from .referee import keep, plan_options
from .run import repeatable, split_settings
from .settings_argument import settings_argument


@click.command("advise", short_help="Say which method to take for your clients.")
@settings_argument()
@plan_options(20, "advise-NAME", "Trials of each method's main settings; 1: tune nothing.")
def advise_command(
    settings: tuple[str, ...],
    minutes: float,
    trials: int,
    seeds: int,
    jobs: int,
    out: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare FedAvg with the best of all other methods, and write the settings to deploy.

    \b
    fedloom advise my.toml
    fedloom advise heart --minutes 5
    fedloom advise digits data.alpha=0.1 cohort=0.1 --jobs 2

    All methods that go with your settings are tried on validation splits. FedAvg and the two best
    of the others are compared on the test rows, with seeds until it is decided; where time is
    short, FedAvg and the method of your settings. Each client alone and all rows in one place are
    run too. The folder has run.toml, for `fedloom run` and `fedloom deploy new`, advice.md and
    advice.json.
    """
    from fedloom.referee import Runs, Study, advised, screened
    from fedloom.referee.advice import pick_candidate
    from fedloom.referee.page import advice_json, advice_page

    from .many_runs import Progress

    source, changes, out = split_settings(settings, out)
    name = Path(source).stem if is_file(source) else source
    folder = Path(out or f"runs/advise-{name}")
    advice = advised(source, changes, trials, seeds, folder)
    with repeatable(f"the runs in '{folder}'"), Progress(quiet, minutes) as progress:
        runs, began = Runs(jobs, progress), time.monotonic()
        advice = screened(advice, minutes, runs)
        study = Study(advice.question, minutes - (time.monotonic() - began) / 60, runs)
        study.run()
    record = advice_json(study, advice, shlex.join(["fedloom", *sys.argv[1:]]))
    method = pick_candidate(study, advice.candidates).method
    best = advice.settings(method, study.tuned[advice.question.cells[0], method].choice)
    write_out(folder / "run.toml", best.to_toml())
    keep(folder / "advice", record, lambda f: advice_page(f, str(folder)), as_json)
    if study.over:
        click.echo("time is up; run the same command again to resume", err=True)
