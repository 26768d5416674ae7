"""`fedloom sweep`: try values of settings, and say which is best."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from fedloom.errors import ConfigError
from fedloom.storage.atomic import write_atomic

from .printing import page_width, table
from .run import SPEED
from .settings_argument import settings_argument

if TYPE_CHECKING:
    from fedloom.report import Metric
    from fedloom.sweep import Row, Search, Trial


_BY = {
    "validation": "the validation split",
    "test": "the test set (the papers' way: too good, by the choice itself)",
}


@click.command("sweep", short_help="Run every combination of values, and choose one.")
@settings_argument("[RECIPE | FILE.toml] KEY=A,B,C ... [KEY=VALUE ...]")
@click.option("--seeds", type=click.IntRange(min=1), help="Runs of each combination.  [default: 1]")
@click.option(
    "--by",
    type=click.Choice(tuple(_BY)),
    default="validation",
    show_default=True,
    help="The data that decide; test is the papers' way.",
)
@click.option(
    "--trials", type=click.IntRange(min=1), help="Let Optuna choose so many combinations."
)
@click.option("--out", help="The sweep's folder.  [default: runs/sweep-NAME-PARTS]")
@click.option("--quiet", is_flag=True, help="Print nothing but the table.")
@click.option("--dry-run", is_flag=True, help="Say what the runs would cost; run nothing.")
@SPEED
def sweep_command(
    settings: tuple[str, ...],
    seeds: int | None,
    by: str,
    trials: int | None,
    out: str | None,
    quiet: bool,
    dry_run: bool,
    speed: float | None,
) -> None:
    """Run every combination of the values given, and choose by data that training never saw.

    \b
    fedloom sweep digits algorithm=fedacg algorithm.lam=0.8,0.85,0.9 local.lr=0.03,0.1 seeds=3
    fedloom sweep my.toml server=none,adam,lookahead --by test
    fedloom sweep digits local.lr=0.01..1:log local.epochs=1..5 --trials 20

    The choice is by the validation split, cut from the clients' training data (a tenth, unless the
    recipe says otherwise); --by test is the papers' way. The same command goes on after any stop:
    finished runs are skipped. Lists keep their commas: model.hidden=[64,64],[128]. With --trials
    Optuna chooses within values and ranges, and stops runs that are worse than the median.
    """
    from fedloom.sweep import Search, check_all, claim, plan, results

    from .run import repeatable, sorted_out

    if dry_run and trials is not None:
        raise ConfigError("--dry-run knows the runs of a grid; a search chooses them as it goes")
    source, words, out = sorted_out(settings, out)
    words, seeds = _seeds(words, seeds)
    if trials is None:
        grid = plan(source, words, seeds, out, by)
        folder, run = grid[0].folder.parent, functools.partial(_run_all, grid, quiet)
        if dry_run:
            click.echo(_cost(grid, speed))
            return
        check_all(grid)
        claim(folder, source, words, by)
    else:
        search = Search(source, words, trials, seeds, out, by)
        folder, run = search.folder, functools.partial(_search, search, trials, quiet)
    with repeatable(f"the sweep in '{folder}'"):
        done = run()
        _tell(done, results(done), seeds, by, folder)


def _run_all(trials: Sequence[Trial], quiet: bool) -> Sequence[Trial]:
    """Run a grid -> its runs."""
    from fedloom.sweep import run_trial

    for number, trial in enumerate(trials, 1):
        state = run_trial(trial, progress=not quiet)
        if not quiet:
            click.echo(f"{number}/{len(trials)} {_choice(trial.choice)}: {state}", err=True)
    return trials


def _cost(trials: Sequence[Trial], speed: float | None) -> str:
    """What the runs that are missing cost. The first combination is timed, and the others are as
    their operations; what does not fit into ten seconds is as those before in the mean.
    """
    from fedloom.report import human_bytes, human_seconds
    from fedloom.sweep import KeptData, state_of

    from .dry_run import Cost, measure

    kept, costs, end = KeptData(), dict[tuple[str, ...], Cost](), time.monotonic() + 10
    for trial in trials:
        key = tuple(trial.choice.values())
        if key not in costs and (not costs or time.monotonic() < end):
            costs[key] = measure(trial.config.experiment(kept.of(trial.config)), speed)
            speed = speed or costs[key].operations / (costs[key].seconds or 1.0)
    left = [trial for trial in trials if state_of(trial.folder) not in ("finished", "failed")]
    share = len(left) / len(costs)
    rows = [
        ["runs", str(len(left)), f"of {len(trials)}; the others have ended"],
        ["time", f"about {human_seconds(share * sum(c.seconds for c in costs.values()))}", ""],
        ["operations", f"about {share * sum(c.operations for c in costs.values()):.2g}", ""],
        ["disk", f"about {human_bytes(round(share * sum(c.disk for c in costs.values())))}", ""],
    ]
    rows[1][2] = next(iter(costs.values())).by + ", the others by their operations"
    return f"estimate of a sweep\n{table(rows)}"


def _search(search: Search, trials: int, quiet: bool) -> Sequence[Trial]:
    """Run a search -> the runs of what it tried."""

    def say(number: int, choice: Mapping[str, str], state: str) -> None:
        if not quiet:
            click.echo(f"{number}/{trials} {_choice(choice)}: {state}", err=True)

    search.run(not quiet, say)
    return search.trials()


def _seeds(words: Sequence[str], given: int | None) -> tuple[list[str], int]:
    """seeds=3 among the settings is the option of that name."""
    own = [w.partition("=")[2].strip() for w in words if w.partition("=")[0].strip() == "seeds"]
    rest = [w for w in words if w.partition("=")[0].strip() != "seeds"]
    for text in own:
        if not text.isdigit() or int(text) < 1:
            raise ConfigError(f"seeds must be a whole number from 1, got '{text}'")
        if given is not None and int(text) != given:
            raise ConfigError(f"--seeds {given} and seeds={text} are both given; keep one of them")
        given = int(text)
    return rest, given or 1


def _choice(choice: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items())


def _tell(trials: Sequence[Trial], rows: Sequence[Row], seeds: int, by: str, folder: Path) -> None:
    """Print the table, write it and the best configuration."""
    from fedloom.report import load_run
    from fedloom.sweep import best_of, state_of

    done = [t for t in trials if state_of(t.folder) == "finished"]
    if not done:
        raise ConfigError(f"no run of the sweep finished: {rows[0].failures[0]}")
    metric = load_run(done[0].folder).metric
    best = best_of(rows, seeds, by, metric.higher_is_better)
    head = [
        *rows[0].choice,
        "seeds",
        f"validation {metric.name}, last tenth",
        f"test {metric.name}, last tenth",
        "",
    ]
    lines = [_line(row, metric, row is best) for row in rows]
    click.echo(table([head, *lines], page_width()))
    for row in rows:
        for why in dict.fromkeys(row.failures):
            click.echo(f"  {_choice(row.choice)} failed: {why}")
    if best is None:
        click.echo("  no combination has finished with every seed")
        return
    first = next(t for t in trials if t.choice == best.choice)
    click.echo(f"  best by {_BY[by]}: {_choice(best.choice)}")
    click.echo(f"  run it on all the data: fedloom run {quote(str(_write(first, folder)))}")


def _line(row: Row, metric: Metric, best: bool) -> list[str]:
    from fedloom.report.tables import human_value

    cells = [
        "-" if found is None else human_value(found[0], metric.unit, found[1])
        for found in (row.validation, row.test)
    ]
    state = "best" if best else "pruned" if row.pruned else ""
    return [*row.choice.values(), str(row.seeds), *cells, state]


def _write(trial: Trial, folder: Path) -> Path:
    """The best configuration, with nothing held out any more -> its file."""
    import tomli_w

    values = dict(trial.config.values)
    values["evaluate"] = {**values["evaluate"], "validation": 0.0}
    write_atomic(folder / "best.toml", tomli_w.dumps(values))
    return folder / "best.toml"
