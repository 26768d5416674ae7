"""`fedloom export`: a run's model for use without fedloom, and a script that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


_SUFFIX = {"safetensors": ".safetensors", "state_dict": ".pt"}


@click.command("export", short_help="Write a run's model, with a script that uses it.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The network.  [default: RUN/export.pt2]"
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(_SUFFIX)),
    help="Also write the weights by name, in a file of this kind, for other uses.",
)
@click.option(
    "--capacity",
    metavar="SHARE",
    help="Of a run with sub-models: cut one of this size, such as 0.05 or 1/20, trained or not.",
)
@click.option(
    "--test-set", is_flag=True, help="Also write the test set as raw samples, for --check."
)
def export_command(
    run: Path, out: Path | None, kind: str | None, capacity: str | None, test_set: bool
) -> None:
    """Write a run's newest model: the network with its weights as torch.export writes it (.pt2),
    and a script that runs it on raw samples with torch and numpy alone.

    What was written is checked where the data are at hand: it must score on the test set what the
    run said. `python export.py --check FILE.npz` does so anywhere.

    An unfinished run gives the model of its last checkpoint. A sub-model is a smaller network, or
    for FIARSE and greedy pruning the whole one with zeros, and its mask in a file of its own.
    """
    from fedloom.config import from_run
    from fedloom.federation.capacities import share_of
    from fedloom.report import load_run

    from . import export_network as network
    from .export_check import ask, verify

    found = load_run(run)
    python = found.config.get("source") == "python"
    config = None if python else from_run(run, ["device=cpu"], own=True)  # wherever it was trained
    weights, module, round = network.newest(found, config)
    mask: dict[str, Tensor] = {}
    name, note, share = "export", "", None
    if capacity is not None:
        share = share_of(capacity, "--capacity")
        module, mask, note = network.cut_out(run, config, weights, share, round)
        name = f"export-{share:g}"
    elif config is not None and module is not None:
        module = network.settled(module, config)
    if module is not None:
        weights = network.weights_of(module)
    out, kind = _place(run, out, name, kind)
    end = _SUFFIX[kind or "safetensors"]
    told = ask(found, config, round, share, weights)
    click.echo(note or f"{sum(v.numel() for v in weights.values()):,} numbers, round {round}")
    code = network.write_script(out, module, told)
    if kind or told.about["torch"] is None:  # else they are in the network alone
        network.write_weights(out.with_suffix(end), weights, "the weights by name")
    if mask:
        network.write_weights(out.with_suffix(f".mask{end}"), mask, "which of them it holds")
    for line in told.lacking():
        click.echo(line)
    verify(code, told, module, out.with_suffix(".test.npz") if test_set else None)


def _place(run: Path, out: Path | None, name: str, kind: str | None) -> tuple[Path, str | None]:
    """-> the file of the network, and the kind of a file of weights if one is wanted, as --out may
    say too. Raises ConfigError for a file that is something else.
    """
    out = out or run / f"{name}.pt2"
    if out.is_dir():
        out = out / "model.pt2"
    kind = kind or next((kind for kind, end in _SUFFIX.items() if end == out.suffix), None)
    if out.suffix not in (".pt2", *_SUFFIX.values()) and out.exists():
        raise ConfigError(f"'{out}' exists, and is no export; give --out a name that ends in .pt2")
    own = run / "model.safetensors"
    if out.with_suffix(own.suffix).resolve() == own.resolve():
        raise ConfigError(f"'{own}' is the run's own model; give --out another name")
    return out, kind
