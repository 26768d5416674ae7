"""`fedloom sweep`: try values of settings, and say which is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

import click

from fedloom.errors import ConfigError
from fedloom.storage.atomic import write_atomic

from .printing import COUNT, page_width, table
from .run import repeatable, settings_argument, split_settings

if TYPE_CHECKING:
    from fedloom.report import Metric
    from fedloom.study import Sweep, Trial
    from fedloom.study.sweep import Row


_BY = {
    "validation": "the validation split",
    "test": "the test set (the papers' way: too good, by the choice itself)",
}


@click.command("sweep", short_help="Run every combination of values, and choose one.")
@settings_argument("[RECIPE | FILE.toml] KEY=A,B,C ... [KEY=VALUE ...]")
@click.option("--seeds", type=COUNT, help="Runs of each combination.  [default: 1]")
@click.option(
    "--by",
    type=click.Choice(tuple(_BY)),
    default="validation",
    show_default=True,
    help="The data that decide; test is the papers' way.",
)
@click.option("--trials", type=COUNT, help="Let Optuna choose so many combinations.")
@click.option("--out", help="The sweep's folder.  [default: runs/sweep-NAME-PARTS]")
@click.option("--quiet", is_flag=True, help="Print nothing but the table.")
def sweep_command(
    settings: tuple[str, ...],
    seeds: int | None,
    by: str,
    trials: int | None,
    out: str | None,
    quiet: bool,
) -> None:
    """Run every combination of the values given, and choose by data that training never saw.

    \b
    fedloom sweep digits algorithm=fedacg local.lr=0.03,0.1,0.3 seeds=3
    fedloom sweep my.toml server=none,adam,lookahead --by test
    fedloom sweep digits local.lr=0.01..1:log local.epochs=1..5 --trials 20

    The choice is by the validation split, cut from the clients' training data (a tenth, unless the
    recipe says otherwise); --by test is the papers' way. The same command resumes after any stop:
    finished runs are skipped. Lists keep their commas: model.hidden=[64,64],[128]. With --trials
    Optuna chooses within values and ranges.
    """
    from fedloom.study import Search, Sweep, check_all, run_trial
    from fedloom.study.trial import as_words

    source, words, out = split_settings(settings, out)
    words, seeds = _seeds(words, seeds)
    sweep = Sweep(source, words, seeds, out, by, search=trials is not None)
    search = None if trials is None else Search(sweep, trials)
    grid = sweep.grid() if search is None else []
    if search is None:
        check_all(grid)

    def say(number: int, choice: Mapping[str, str], state: str) -> None:
        if not quiet:
            click.echo(f"{number}/{trials or len(grid)} {as_words(choice)}: {state}", err=True)

    with repeatable(f"the sweep in '{sweep.folder}'"):
        finished = grid if search is None else search.run(not quiet, say)
        for number, trial in enumerate(grid, 1):
            say(number, trial.choice, run_trial(trial, progress=not quiet))
        _tell(sweep, finished)


def _seeds(words: Sequence[str], count: int | None) -> tuple[list[str], int]:
    """seeds=3 among the settings is the option of that name."""
    texts = [w.partition("=")[2].strip() for w in words if w.partition("=")[0].strip() == "seeds"]
    rest = [w for w in words if w.partition("=")[0].strip() != "seeds"]
    for text in texts:
        if not text.isdigit() or int(text) < 1:
            raise ConfigError(f"seeds must be a whole number from 1, got '{text}'")
        if count is not None and int(text) != count:
            raise ConfigError(f"--seeds {count} and seeds={text} are both given; keep one of them")
        count = int(text)
    return rest, count or 1


def _tell(sweep: Sweep, trials: Sequence[Trial]) -> None:
    from fedloom.report import load_run
    from fedloom.study import best_of, results, state_of
    from fedloom.study.trial import as_words

    rows = results(trials)
    finished = [t for t in trials if state_of(t.folder) == "finished"]
    if not finished:
        raise ConfigError(f"no run of the sweep finished: {rows[0].failures[0]}")
    metric = load_run(finished[0].folder).metric
    best = best_of(rows, sweep.seeds, sweep.by, metric.higher_is_better)
    both = [f"{split} {metric.name}, last tenth" for split in rows[0].of]
    lines = [_line(row, metric, row is best) for row in rows]
    click.echo(table([[*rows[0].choice, "seeds", *both, ""], *lines], page_width()))
    for row in rows:
        for why in dict.fromkeys(row.failures):
            click.echo(f"  {as_words(row.choice)} failed: {why}")
    if best is None:
        click.echo("  no combination has finished with every seed")
        return
    first = next(t for t in trials if t.choice == best.choice)
    click.echo(f"  best by {_BY[sweep.by]}: {as_words(best.choice)}")
    values = dict(first.config.values)  # with nothing held out any more
    values["evaluate"] = {**values["evaluate"], "validation": 0.0}
    file = sweep.folder / "best.toml"
    write_atomic(file, replace(first.config, values=values).to_toml())
    click.echo(f"  run it on all the data: fedloom run {quote(str(file))}")


def _line(row: Row, metric: Metric, best: bool) -> list[str]:
    from fedloom.report.tables import human_value

    cells = [
        "-" if value is None else human_value(value[0], metric.unit, value[1])
        for value in row.of.values()
    ]
    return [*row.choice.values(), str(row.seeds), *cells, "best" if best else ""]
