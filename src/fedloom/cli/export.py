"""`fedloom export`: a run's model for use outside, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import CheckpointError, ConfigError

from .script import architecture, call, script

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["export_command"]

_SUFFIX = {"safetensors": ".safetensors", "state_dict": ".pt"}


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file.  [default: RUN/export.*]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(_SUFFIX)),
    default="safetensors",
    show_default=True,
    help="What to write.",
)
@click.option(
    "--capacity",
    metavar="SHARE",
    help="Of a run with sub-models: cut one of this size, such as 0.05 or 1/20, trained or not.",
)
def export_command(run: Path, out: Path | None, kind: str, capacity: str | None) -> None:
    """Write a run's newest model, and beside it a script that loads it, with plain torch where the
    model is made of torch's own layers.

    An unfinished run gives the model of its last checkpoint. A sub-model is a smaller network, or
    for FIARSE and greedy pruning the whole one with zeros, and its mask in a file of its own.
    """
    weights, module, round = _newest(run)
    mask: dict[str, Tensor] = {}
    name, about = "export", ""
    if capacity is not None:
        from fedloom.capacities import share_of
        from fedloom.cli.cut import cut_out

        share, named = share_of(capacity, "--capacity"), module
        module, mask, about = cut_out(run, weights, share, round)
        weights, name = dict(module.state_dict()), f"export-{share:g}"
    out = out or run / f"{name}{_SUFFIX[kind]}"
    if out.is_dir():
        out = out / f"model{_SUFFIX[kind]}"
    if out.suffix != _SUFFIX[kind] and out.exists():
        raise ConfigError(
            f"'{out}' exists, and is no export; give --out a name that ends in {_SUFFIX[kind]}"
        )
    code = out.with_suffix(".py")
    built = None if module is None else architecture(module)
    # what was cut, or got statistics, is as no recipe makes it; else it can go by its name
    uncut = module is not None and (capacity is None or _alike(module, named))
    if uncut and built is None:
        built = call(run)
    text = script(built, out.name, kind, run, round)
    _write(out, weights, kind)
    _write_text(code, text)
    click.echo(f"{out}: {sum(v.numel() for v in weights.values()):,} numbers, round {round}")
    if about:
        click.echo(about)
    if mask:
        beside = out.with_suffix(f".mask{out.suffix}")
        _write(beside, mask, kind)
        click.echo(f"{beside}: which of them it holds")
    click.echo(f"{code}: loads it\n\n{text.rstrip()}")


def _alike(one: nn.Module, other: nn.Module | None) -> bool:
    """Say whether the weights of one fit into the other."""
    shapes = [
        {k: v.shape for k, v in m.state_dict().items()} for m in (one, other) if m is not None
    ]
    return shapes[0] == shapes[-1] and other is not None


def _newest(run: Path) -> tuple[dict[str, Tensor], nn.Module | None, int]:
    """-> weights, the module if the configuration says which, the round they are of."""
    from fedloom.config import from_run
    from fedloom.manifest import numbered
    from fedloom.report import load_run

    found = load_run(run)
    python = found.config.get("source") == "python"
    config = None if python else from_run(run)
    final = int(found.summary.get("rounds") or 0) if (run / "model.safetensors").exists() else 0
    saved = [int(folder.name) for folder in numbered(run / "checkpoints")]
    if max(saved, default=0) <= final and final:
        module = None
        if config is not None:
            from fedloom.models import MODELS

            options = {k: v for k, v in config.values["model"].items() if k != "name"}
            module = MODELS[config.values["model"]["name"]](**options)
        return _load(run / "model.safetensors"), module, final
    if not saved:
        raise CheckpointError(
            f"'{run}' has neither a final model nor a checkpoint yet; `fedloom resume {run}` first"
        )
    if config is None:
        raise ConfigError(
            f"'{run}' was started from Python and is not finished: only that code knows its model; "
            "finish it there, or take x out of its checkpoint's state.safetensors"
        )
    return _from_checkpoint(run, config.experiment())


def _from_checkpoint(run: Path, experiment: Any) -> tuple[dict[str, Tensor], nn.Module, int]:
    from fedloom.memory import ClientMemory
    from fedloom.rundir import RunDirectory

    loop = experiment.build()
    folder = RunDirectory(run)
    state = folder.load(ClientMemory(folder.memory_folder), loop.net.device)
    assert state is not None  # there is a manifest, and a damaged one raises
    x = loop.plan.algorithm.model(state.srv.srv)
    module = loop.net.export(x, state.buffers).cpu()
    return dict(module.state_dict()), module, state.round


def _load(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from None


def _write(out: Path, weights: dict[str, Tensor], kind: str) -> None:
    from fedloom.files import write_atomic
    from fedloom.storage import disk_errors

    def save(path: Path) -> None:
        if kind == "safetensors":
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in weights.items()}, path)
        else:
            import torch

            torch.save(weights, path)

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors():
            write_atomic(out, save)
    except OSError as error:
        raise ConfigError(f"'{out}' cannot be written: {error.strerror}; choose --out") from None


def _write_text(out: Path, text: str) -> None:
    from fedloom.files import write_atomic

    write_atomic(out, text)
