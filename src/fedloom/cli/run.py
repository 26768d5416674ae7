"""`fedloom run`: recipes and files, and with --resume runs that were begun."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedloom.core.parsing import is_file
from fedloom.errors import CheckpointError, ConfigError, FedloomError
from fedloom.storage.atomic import reason, remedy
from fedloom.storage.identity import LATER, differing
from fedloom.storage.manifest import deployed, resuming

from .printing import COUNT, is_first_rank, print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fedloom.config import Config
    from fedloom.core.ranks import Group


_RESUMED = ("settings", "resume", "quiet", "changed_code")  # what --resume may have beside it


def settings_argument(
    metavar: str = "[RECIPE | FILE.toml] [KEY=VALUE ...]",
) -> Callable[[Any], Any]:
    """The argument of a command."""
    return click.argument("settings", nargs=-1, metavar=metavar)


@click.command("run", short_help="Run a recipe or a TOML file, or resume runs.")
@settings_argument()
@click.option("--out", help="The run's folder.  [default: runs/NAME-ALGORITHM-seedN]")
@click.option("--quiet", is_flag=True, help="Print nothing but the run's folder.")
@click.option("--dry-run", is_flag=True, help="Print the settings and an estimate; write nothing.")
@click.option(
    "--seeds",
    type=COUNT,
    default=1,
    help="Number of runs, with seeds from `seed` on; the same command resumes them.",
)
@click.option(
    "--baselines",
    is_flag=True,
    help="Run each client alone, cyclic, pooled and fine-tuned too, and compare.",
)
@click.option(
    "--resume-if-begun",
    is_flag=True,
    help="Go on if the folder has this run; for jobs that are restarted.",
)
@click.option("--resume", is_flag=True, help="Go on with RUN..., or extend them.")
@click.option(
    "--changed-code",
    is_flag=True,
    help="For --resume: go on with own files (FILE.py:NAME) that have changed.",
)
@click.pass_context
def run_command(
    context: click.Context,
    settings: tuple[str, ...],
    out: str | None,
    quiet: bool,
    dry_run: bool,
    seeds: int,
    baselines: bool,
    resume_if_begun: bool,
    resume: bool,
    changed_code: bool,
) -> None:
    """Run a recipe (digits if none is named) or a TOML file, or go on with runs.

    \b
    fedloom run digits algorithm=fedacg algorithm.lam=0.9
    fedloom run digits data.alpha=0.1 local.decay=0.99 rounds=50 --seeds 3
    fedloom run my.toml device=cpu --dry-run
    fedloom run heart --baselines --seeds 3    is it better than alone?

    torchrun --standalone --nproc-per-node 8 -m fedloom run digits  on 8 ranks

    A new algorithm=, model=, data= or local.schedule= drops the options of the old one. `none` is
    TOML's missing null: local.clip=none. Names: `fedloom list`; options: `fedloom show NAME`.

    \b
    fedloom run --resume runs/digits-fedavg-seed0
    fedloom run --resume runs/digits-fedavg-seed0 rounds=300  300 rounds in all
    fedloom run --resume runs/*                               what is unfinished

    --resume continues a run from its newest whole checkpoint, or several runs, one after another.
    rounds counts all rounds from the start. These may change too: the number of workers
    (engine=workers:4), device, checkpoint, resident_bytes, tracker, name, label, and evaluate
    except for validation and ema. The file of a part of your own (FILE.py:NAME) is run again, and
    named; one that has changed since the run began is refused.
    """
    from fedloom.config import resolve

    if resume:
        _refuse_beside_resume(context)
        _resume_all(settings, quiet, changed_code)
        return
    if changed_code:
        raise ConfigError("--changed-code is of --resume: give it too, with the folder of a run")
    source, changes, out = split_settings(settings, out)
    first = resolve(source, changes)
    if dry_run:
        from .dry_run import estimate

        click.echo(f"{first.to_toml()}\n{estimate(first, seeds)}")
        return
    configs = _configs(first, source, changes, seeds, baselines)
    group = _group(first)
    again = resume_if_begun or len(configs) > 1
    folders = group.first(lambda: _choose_folders(configs, out, seeds, baselines, again))
    _run_all(configs, folders, quiet, first=group.rank == 0)


def _run_all(
    configs: Sequence[Config], folders: Sequence[tuple[Path, str]], quiet: bool, first: bool
) -> None:
    """Run what is not finished, and compare several. first: whether this rank speaks for all."""
    several = len(configs) > 1
    for config, (folder, state) in zip(configs, folders, strict=True):
        if state == "finished":
            if first:
                click.echo(f"'{folder}' is finished", err=True)
            continue
        try:
            _train(config, folder, quiet, fresh=state == "new")
        except click.exceptions.Exit:
            if several and first:
                with contextlib.suppress(OSError):
                    click.echo("run the same command again to resume it and the others", err=True)
            raise
    if several and not quiet and first:
        from fedloom.report import comparison, group_runs, load_run
        from fedloom.report.clients import against_alone
        from fedloom.report.differences import measured_how

        from .printing import folded, page_width
        from .results import fitted

        groups = group_runs(load_run(folder) for folder, _ in folders)
        print_line(fitted(comparison(groups)))
        for line in (*measured_how(groups), *against_alone(groups)):
            print_line(folded(line, page_width()))


def _configs(
    first: Config, source: str, changes: Sequence[str], seeds: int, with_baselines: bool
) -> list[Config]:
    """The runs of a line: its seeds, and with_baselines the same of every baseline."""
    from fedloom.config import resolve

    lines = [[*changes]]
    if with_baselines:
        from fedloom.config.baselines import baselines, without_partition

        data, common = first.data(), [*changes]
        if data.test_clients is None and "partition" in first.values["data"]:
            common.append("data.tests=matched")
        lines = [common]
        for more in baselines(first, data).values():
            other = any(word.startswith("data.partition=") for word in more)
            lines.append([*(without_partition(first, common) if other else common), *more])
    begin = int(first.values["seed"])
    return [
        resolve(source, [*line, f"seed={seed}"]) if line != [*changes] or seed > begin else first
        for line in lines
        for seed in range(begin, begin + seeds)
    ]


def _refuse_beside_resume(context: click.Context) -> None:
    source = click.core.ParameterSource.COMMANDLINE
    for option in context.command.params:
        if option.name not in _RESUMED and context.get_parameter_source(str(option.name)) is source:
            raise ConfigError(
                f"{option.opts[-1]} is of a new run, and --resume goes on with one as it is; leave "
                "one of them away"
            )


def _resume_all(words: Sequence[str], quiet: bool, changed_code: bool) -> None:
    """Go on with the runs among these words, with the changes among them; of several a line each
    says what became of it.
    """
    from fedloom.config import from_run
    from fedloom.config.overrides import refuse_repeats
    from fedloom.report.frames import find_runs
    from fedloom.study import state_of

    def resume(run: Path) -> None:
        if deployed(run):
            raise ConfigError(f"'{run}' is a federation's, which {resuming(run)} goes on with")
        config = from_run(run, changes, own=True, changed=changed_code)
        _train(config, run, quiet, fresh=False)

    folders = [word for word in words if "=" not in word or Path(word).is_dir()]
    changes = [word for word in words if word not in folders]
    refuse_repeats(changes)
    if not folders:
        raise ConfigError("--resume: give RUN, its folder; `fedloom list runs` names all")
    one = Path(folders[0])
    if len(folders) == 1 and ((one / "config.toml").is_file() or not one.is_dir()):
        resume(one)
        return
    longer = any(word.partition("=")[0].strip() == "rounds" for word in changes)
    runs, wrong = find_runs(folders), 0
    for number, run in enumerate(runs, 1):
        try:
            state = state_of(run)
            if state == "begun" or (state == "finished" and longer):
                resume(run)
                state = state_of(run)
            elif state == "finished":
                state = "finished before"
        except FedloomError as error:
            state, wrong = f"error: {error}", wrong + 1
        click.echo(f"{number}/{len(runs)} {run}: {state}", err=True)
    if wrong:
        raise CheckpointError(f"{wrong} of {len(runs)} runs could not go on; see the lines above")


def _train(config: Config, folder: Path, quiet: bool, fresh: bool) -> None:
    """Run from the beginning, or from the newest checkpoint, and print the result."""
    from .printing import illustrate  # only now, so that tests can do without it
    from .results import summarise

    group = _group(config)
    try:
        experiment = config.experiment()
        begin = experiment.run if fresh else experiment.resume
        result = begin(folder, progress=not quiet)
    except KeyboardInterrupt as stop:
        text = "\ninterrupted before the first round; nothing was kept"
        if (folder / "config.toml").is_file():
            text = f"\ninterrupted; go on with: fedloom run --resume {quote(str(folder))}"
        raise interrupted(stop, text) from None
    except OSError as error:
        again = f", then `fedloom run --resume {quote(str(folder))}`"
        again = again if (folder / "config.toml").is_file() else ""
        raise CheckpointError(
            f"the run stopped ({reason(error)}); {remedy(error)}{again}"
        ) from error
    if group.rank:
        return  # the first rank says it for all
    if not quiet:
        print_line(f"{experiment.called}, seed {experiment.seed}\n{summarise(result)}")
    report = illustrate(folder)
    if quiet:
        print_line(str(folder))
        return
    print_line(f"  run in {folder}" + (f", report in {report}" if report else ""))
    print_line(f"  beside others: fedloom report {quote(str(folder))} RUN... --out report.html\n")


def _group(config: Config) -> Group:
    """The ranks of this run, which meet here if torchrun started several."""
    from fedloom.core.ranks import join
    from fedloom.engines.ranks import RankSettings

    return join(RankSettings(**config.values.get("ranks", {})).timeout)


def interrupted(stop: KeyboardInterrupt, text: str) -> click.exceptions.Exit:
    """Report that a signal stopped the run -> the exception that ends the command (128 + it)."""
    with contextlib.suppress(OSError):  # the terminal may be closed
        if is_first_rank():
            click.echo(text, err=True)
    return click.exceptions.Exit(getattr(stop, "code", 130))


@contextlib.contextmanager
def repeatable(work: str) -> Iterator[None]:
    """Several runs, which the same command resumes after a signal or an error of the system."""
    try:
        yield
    except KeyboardInterrupt as stop:
        text = "\ninterrupted; run the same command again to resume, finished runs are kept"
        raise interrupted(stop, text) from None
    except OSError as error:
        raise CheckpointError(
            f"{work} stopped ({reason(error)}); {remedy(error)} and repeat: finished runs are kept"
        ) from error


def split_settings(settings: Sequence[str], out: str | None) -> tuple[str, list[str], str | None]:
    """-> recipe or file, changes, folder. A first argument without "=" is the recipe or file."""
    from fedloom.config.overrides import refuse_repeats

    words, source = list(settings), "digits"
    if words and ("=" not in words[0] or is_file(words[0])):
        source = words.pop(0)
    folders = [w.partition("=")[2] for w in words if w.partition("=")[0].strip() == "out"]
    if folders and out is not None and folders != [out]:
        raise ConfigError(f"--out {out} and out={folders[-1]} are both given; keep one of them")
    changes = [w for w in words if w.partition("=")[0].strip() != "out"]
    refuse_repeats(changes)
    return source, changes, folders[-1] if folders else out


def _choose_folders(
    configs: Sequence[Config], out: str | None, seeds: int, with_baselines: bool, again: bool
) -> list[tuple[Path, str]]:
    """The folder of each run, and its state there; again: whether the same command resumes it.
    Without --out it is the first of its name that is free or, again, contains this run. Raises
    ConfigError if --out contains another run, or again anything else.
    """
    from fedloom.config.baselines import NAMES
    from fedloom.config.labels import folder_name

    states: dict[Path, str] = {}
    for config in configs:
        label = str(config.values["label"])
        if out is not None:
            parts = [label] * with_baselines + [f"seed{config.values['seed']}"] * (seeds > 1)
            folder = Path(out, *parts)
            occupied = again or (folder / "config.toml").is_file()
            state = _state(config, folder) if occupied else "new"
            states[folder] = state if again else "new"
            continue
        more = [label] * (with_baselines and label in NAMES)
        name = "-".join([folder_name(config.values), *more, f"seed{config.values['seed']}"])
        for number in itertools.count(1):
            folder = Path("runs", name if number == 1 else f"{name}-{number}")
            if folder not in states and (again or not folder.exists()):
                with contextlib.suppress(ConfigError):
                    states[folder] = _state(config, folder)
                    break
    return [*states.items()]


def _state(config: Config, folder: Path) -> str:
    """ "new", "begun" or "finished". Raises ConfigError for a folder of something else."""
    from fedloom.config import from_run
    from fedloom.storage.run_directory import RunDirectory
    from fedloom.study import state_of

    if not folder.exists() or RunDirectory(folder).free():
        return "new"
    settings, message = config.values, f"'{folder}' exists, and holds something else than this run"
    try:
        stored = from_run(folder, [f"device={settings['device']}"]).values
    except FedloomError:  # no run, or none of the command line
        raise ConfigError(f"{message}; choose another --out") from None
    if other := differing(stored, settings):
        raise ConfigError(f"{message} ({', '.join(other)} differs); choose another --out")
    same = all(stored.get(key) == settings.get(key) for key in LATER)
    return state_of(folder) if same else "begun"
