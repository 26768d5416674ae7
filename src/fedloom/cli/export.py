"""`fedloom export`: a run's model in a folder of its own, for use without fedloom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedloom.errors import ConfigError
from fedloom.storage.manifest import deployed

from .printing import PATH

if TYPE_CHECKING:
    from fedloom.config import Config
    from fedloom.report import Run

_WEIGHTS = "weights.safetensors"
# what an export may hold; an earlier one is taken away before another is written
_FILES = ("model.pt2", "predict.py", "cells.py", "about.json", "README.md")


@click.command("export", short_help="Write a run's model into a folder, with a script to use it.")
@click.argument("run", type=PATH)
@click.option("--out", type=PATH, help="The folder.  [default: RUN/export]")
@click.option("--weights", "by_name", is_flag=True, help=f"Also write {_WEIGHTS}, by name.")
@click.option(
    "--capacity",
    metavar="SHARE",
    help="Of a run with sub-models: cut one of this size, such as 0.05 or 1/20, trained or not.",
)
@click.option("--client", metavar="NAME", help="The model that this client (name or number) uses.")
@click.option(
    "--best", is_flag=True, help="The best model that the run kept (checkpoint.keep_best)."
)
def export_command(
    run: Path,
    out: Path | None,
    by_name: bool,
    capacity: str | None,
    client: str | None,
    best: bool,
) -> None:
    """Write a run's newest model into a folder: the network with its weights (model.pt2), what a
    table's columns become, classes, threshold and scores (about.json), a model card (README.md),
    and a script that needs torch and numpy alone: `python predict.py new.csv --out scores.csv`.

    What was written is checked where the data are at hand: on the raw test rows it must compute
    what the run's network does.

    An unfinished run gives the model of its last checkpoint; --best the one with the best value of
    the metric that checkpoint.keep_best names. A sub-model is a smaller network, or
    for FIARSE and greedy pruning the whole one with zeros.
    If clients use models of their own (private layers, Ditto, fine-tuned), --client writes one.
    """
    from fedloom.federation.capacities import share_of
    from fedloom.report import load_run

    from . import export_network as network
    from .export_check import collect_facts, verify, write_card

    if best and client is not None:
        raise ConfigError("--best is of the server's model, and --client of a client's; keep one")
    loaded = load_run(run)
    config = _settings(loaded, client)
    newest = network.best(loaded, config) if best else network.newest(loaded, config, client)
    weights, module, round, number = newest
    note, fraction = "", None
    if capacity is not None:
        fraction = share_of(capacity, "--capacity")
        module, note = network.cut_out(run, config, weights, fraction, round)
    elif config is not None and module is not None:
        module = network.settled(module, config)
    if module is not None:
        weights = network.weights_of(module)
    facts = collect_facts(loaded, config, round, fraction, weights, number)
    note = note or f"{sum(v.numel() for v in weights.values()):,} numbers, round {round}"
    site = facts.record["client"]
    out = _emptied(out or run / _folder(fraction, site))
    click.echo(f"{site}'s own model: {note}" if site else note)
    code = network.write_script(out, module, facts)
    if by_name or facts.record["torch"] is None:  # else they are in the network alone
        network.write_weights(out / _WEIGHTS, weights, "the weights by name")
    write_card(out / "README.md", loaded, facts)
    for line in facts.lacking():
        click.echo(line)
    verify(code, facts, module)


def _folder(capacity: float | None, site: str) -> str:
    """The name of an export: of the whole model, of a sub-model, of a site's own."""
    more = re.sub(r"[^\w.-]+", "-", site).strip("-.") if capacity is None else f"{capacity:g}"
    return f"export-{more}" if more else "export"


def _settings(run: Run, client: str | None) -> Config | None:
    """A run's configuration; None of one from Python. client: whose own model is asked for. Says so
    where clients use other models than the exported one. Raises ConfigError for a model that nobody
    has trained, and for one that is not here.
    """
    from fedloom.config import from_run

    path, python = run.path, run.config.get("source") == "python"
    config = None if python else from_run(path, ["device=cpu"], own=True)  # wherever it was trained
    personal = config.own_models if config else run.own_models
    if client is not None and not personal:
        raise ConfigError(
            f"--client {client}: all clients of '{path}' use one model; export it without "
            "--client (sites with scales of their own: predict.py --site SITE)"
        )
    where = default = "--client NAME exports one"
    if deployed(path):
        where = "it is in its node's state folder, which `export` does not read"
    elif config is None:
        where = "only the Python code that started the run can make it"
    if client is not None and where is not default:
        raise ConfigError(f"--client {client}: of '{path}' each client has its own, and {where}")
    private = str((run.config.get("private") or {}).get("name")).lower()
    if client is None and private == "alone":
        raise ConfigError(
            f"'{path}': with private = 'alone' nobody trains the server's model, and each client "
            f"has its own: {where}"
        )
    if client is None and personal:
        click.echo(f"this is the server's model, and each client uses its own: {where}")
    return config


def _emptied(out: Path) -> Path:
    """The folder, without an earlier export. Raises ConfigError if it holds something else."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out '{out}' is a file; an export is a folder, give another name")
    try:
        old = sorted(path.name for path in out.iterdir()) if out.exists() else []
        info = json.loads((out / "about.json").read_bytes()) if "about.json" in old else {}
        if old and "fedloom" not in info:
            raise ConfigError(
                f"--out '{out}' has files that are no export's, such as {old[-1]}; give a new name"
            )
        for name in (*_FILES, _WEIGHTS):
            (out / name).unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out '{out}' cannot be written: {error}") from None
    return out
