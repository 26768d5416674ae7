"""`fedloom referee` and `advise`: is a method better than its rivals, with equal effort and enough
seeds, and which one to deploy?
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedloom.core.parsing import is_file
from fedloom.errors import ConfigError
from fedloom.storage.atomic import write_out

from .printing import COUNT
from .printing import as_json as in_json
from .run import repeatable, settings_argument, split_settings

Command = Callable[..., None]
Record = dict[str, Any]


def plan_options(minutes: int, folder: str, trials: str) -> Callable[[Command], Command]:
    """The options of a study. minutes, folder: their defaults; trials: what it says of them."""
    options = (
        click.option("--trials", type=COUNT, default=8, show_default=True, help=trials),
        click.option(
            "--seeds",
            type=click.IntRange(min=4),
            default=30,
            show_default=True,
            help="The most seeds.",
        ),
        click.option(
            "--minutes",
            type=click.FloatRange(min=0, min_open=True),
            default=minutes,
            show_default=True,
            help="The time for all of it; run the same command again to resume.",
        ),
        click.option("--jobs", type=COUNT, default=1, show_default=True, help="Runs at once."),
        click.option("--out", help=f"The folder.  [default: runs/{folder}]"),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the JSON, and not the Markdown."
        ),
        click.option("--quiet", is_flag=True, help="No progress."),
    )
    return lambda command: functools.reduce(lambda made, add: add(made), options[::-1], command)


@click.command("referee", short_help="Decide whether a method is better than its rivals.")
@click.argument("words", nargs=-1, required=True, metavar="METHOD [RECIPE ...] [KEY=VALUE ...]")
@click.option(
    "--against", required=True, metavar="A,B,C", help="The rivals; each may have changes."
)
@click.option(
    "--vary", default="algorithm", show_default=True, help="What METHOD and rivals are values of."
)
@click.option(
    "--delta",
    type=click.FloatRange(min=0, min_open=True),
    help="The difference that does not matter.  [default: 0.01 of shares, one point]",
)
@plan_options(
    30, "referee-METHOD", "Trials of each method's main settings in each cell; 1: tune nothing."
)
def referee_command(
    words: tuple[str, ...],
    against: str,
    vary: str,
    trials: int,
    seeds: int,
    delta: float | None,
    minutes: float,
    jobs: int,
    out: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare a method with rivals until every comparison is decided, or the time is over.

    \b
    fedloom referee my_method.py:Mine --against fedavg,fedprox,scaffold
    fedloom referee my_method.py:Mine --against fedavg my.toml cohort=0.1,0.5
    fedloom referee topk:0.05 --against topk:0.01,qsgd:8 --vary compress digits

    Without a recipe it compares on digits, in two heterogeneities and two participations; a change
    with several values makes a cell of each. Every method gets the same trials of its main settings
    on a validation split. Then seeds are added to all methods alike, by a plan that is fixed before
    the first test. The verdicts are in referee.md, for a pull request, and in referee.json.
    """
    from fedloom.core.own_parts import short
    from fedloom.referee import Runs, Study, as_markdown, parse
    from fedloom.referee.page import as_json as found_in

    from .many_runs import Progress

    method, *more = words
    if "=" in method:
        raise ConfigError(f"give the method first, as my_method.py:Mine, got '{method}'")
    name = re.sub(r"[^\w.-]+", "-", short(method))
    folder = Path(out or f"runs/referee-{name}")
    question = parse(method, against, more, vary, trials, seeds, delta, folder)
    with repeatable(f"the runs in '{folder}'"), Progress(quiet, minutes) as progress:
        study = Study(question, minutes, Runs(jobs, progress))
        study.run()
    record = found_in(study, shlex.join(["fedloom", *sys.argv[1:]]))
    keep(folder / "referee", record, as_markdown, as_json)
    if study.over:
        click.echo("time is up; run the same command again to resume", err=True)


def keep(stem: Path, record: Record, page: Callable[[Record], str], as_json: bool) -> None:
    """Write a record as JSON and as the page that is made of it, and print one of them."""
    text = f"{in_json(record)}\n"
    page_text = page(json.loads(text))
    write_out(stem.with_suffix(".json"), text)
    write_out(stem.with_suffix(".md"), page_text)
    click.echo(text if as_json else page_text, nl=False)


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
