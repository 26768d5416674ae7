"""`fedloom export`: a run's model for use without fedloom, and a script that loads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import CheckpointError, ConfigError

from .export_script import Use, architecture, call, script

if TYPE_CHECKING:
    from torch import Tensor, nn


_SUFFIX = {"safetensors": ".safetensors", "state_dict": ".pt"}


@click.command("export", short_help="Write a run's model, with a script that uses it.")
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
@click.option(
    "--test-set", is_flag=True, help="Also write the test set as raw samples, for --check."
)
def export_command(
    run: Path, out: Path | None, kind: str, capacity: str | None, test_set: bool
) -> None:
    """Write a run's newest model, and beside it a script that loads it and runs it on raw samples:
    with plain torch, but for Hugging Face's models. Texts bring a file with their vocabulary.

    What was written is checked where the data are at hand: it must score on the test set what the
    run said. `python export.py --check FILE.npz` does so anywhere.

    An unfinished run gives the model of its last checkpoint. A sub-model is a smaller network, or
    for FIARSE and greedy pruning the whole one with zeros, and its mask in a file of its own.
    """
    from fedloom.cli.export_check import ask, verify

    weights, module, round = _newest(run)
    mask: dict[str, Tensor] = {}
    name, about, share = "export", "", None
    if capacity is not None:
        from fedloom.cli.export_submodel import cut_out
        from fedloom.federation.capacities import share_of

        share, named = share_of(capacity, "--capacity"), module
        module, mask, about = cut_out(run, weights, share, round)
        weights, name = dict(module.state_dict()), f"export-{share:g}"
    elif module is not None:
        named, (module, weights) = module, _settled(run, module, weights)
    out = _place(run, out, name, kind)
    built = None if module is None else architecture(module)
    # no recipe makes a sliced model, or one with statistics; any other can go by its name
    if module is not None and built is None and _alike(module, named):
        built = call(run)
    told = ask(run, round, share, weights)
    text, code = _write_all(out, kind, (built, run, round), weights, told.use)
    click.echo(f"{out}: {sum(v.numel() for v in weights.values()):,} numbers, round {round}")
    if about:
        click.echo(about)
    if mask:
        beside = out.with_suffix(f".mask{out.suffix}")
        _write(beside, mask, kind)
        click.echo(f"{beside}: which of them it holds")
    click.echo(f"{code}: loads it, and makes its inputs\n\n{text.rstrip()}\n")
    for line in told.lacking(built):
        click.echo(line)
    npz = out.with_suffix(".test.npz") if test_set else None
    verify(code, told, built is not None, npz)


def _write_all(
    out: Path, kind: str, made: tuple[str | None, Path, int], weights: dict[str, Tensor], use: Use
) -> tuple[str, Path]:
    """Write the weights, the vocabulary if there is one, and the script -> its text, its file.

    made: the expression that makes the model, the run, the round.
    """
    built, run, round = made
    from fedloom.storage.atomic import write_out

    code, words = out.with_suffix(".py"), out.with_suffix(".words.json")
    use = replace(use, words=words.name if "words" in use.inputs else "")
    text = script(built, out.name, kind, run, round, use)
    _write(out, weights, kind)
    if use.words:
        write_out(words, json.dumps(use.inputs["words"]))
        click.echo(f"{words}: its vocabulary")
    write_out(code, text)
    return text, code


def _place(run: Path, out: Path | None, name: str, kind: str) -> Path:
    """The file of the weights. Raises ConfigError for one that is something else."""
    out = out or run / f"{name}{_SUFFIX[kind]}"
    if out.is_dir():
        out = out / f"model{_SUFFIX[kind]}"
    if out.suffix != _SUFFIX[kind] and out.exists():
        raise ConfigError(
            f"'{out}' exists, and is no export; give --out a name that ends in {_SUFFIX[kind]}"
        )
    if out.resolve() == (run / "model.safetensors").resolve():
        raise ConfigError(f"'{out}' is the run's own model; give --out another name")
    return out


def _settled(
    run: Path, module: nn.Module, weights: dict[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model whose batch norms keep no running statistics, with those that a run with sub-models
    evaluated it with; any other as it is.
    """
    from fedloom.engines.batch_statistics import keeps_no_statistics

    if not keeps_no_statistics(module):
        return module, weights
    from fedloom.cli.export_submodel import settled
    from fedloom.config import from_run

    config = from_run(run, ["device=cpu"], own=True)
    net = config.net()
    net.start_from(weights)
    module = settled(net.export(net.init()), config)
    return module, dict(module.state_dict())


def _alike(one: nn.Module, other: nn.Module | None) -> bool:
    """True if the weights of one fit into the other."""
    shapes = [
        {k: v.shape for k, v in m.state_dict().items()} for m in (one, other) if m is not None
    ]
    return shapes[0] == shapes[-1] and other is not None


def _newest(run: Path) -> tuple[dict[str, Tensor], nn.Module | None, int]:
    """-> weights, the module if the configuration has one, their round."""
    from fedloom.config import from_run
    from fedloom.report import load_run
    from fedloom.storage.manifest import numbered
    from fedloom.storage.seal import Seal

    found = load_run(run)
    python = found.config.get("source") == "python"
    config = None if python else from_run(run, ["device=cpu"], own=True)  # wherever it was trained
    final = int(found.summary.get("rounds") or 0) if (run / "model.safetensors").exists() else 0
    saved = [int(folder.name) for folder in numbered(run / "checkpoints")]
    if max(saved, default=0) <= final and final:
        module = None
        if config is not None:
            from fedloom.models import MODELS

            options = {k: v for k, v in config.values["model"].items() if k != "name"}
            module = MODELS.make(config.values["model"]["name"], **options)
        Seal(run).check("model.safetensors")
        return _load(run / "model.safetensors"), module, final
    if not saved:
        raise CheckpointError(
            f"'{run}' has neither a final model nor a checkpoint yet; `fedloom resume "
            f"{quote(str(run))}` first"
        )
    if config is None:
        raise ConfigError(
            f"'{run}' was started from Python and is not finished: only that code knows its model; "
            "finish it there, or take x out of its checkpoint's state.safetensors"
        )
    return _from_checkpoint(run, config.experiment())


def _from_checkpoint(run: Path, experiment: Any) -> tuple[dict[str, Tensor], nn.Module, int]:
    from fedloom.engines.author_checks import at_server
    from fedloom.storage.client_state import ClientMemory
    from fedloom.storage.run_directory import RunDirectory

    experiment.engine = "serial"  # nothing is run, and the run may come from a larger machine
    loop = experiment.build()
    folder = RunDirectory(run)
    state = folder.load(ClientMemory(folder.memory_folder), loop.net.device, older=False)
    assert state is not None  # there is a manifest, and a damaged one raises
    x = at_server(loop.plan.algorithm, loop.fed.seed, "model", state.round, state.srv.srv)
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
    from fedloom.storage.atomic import write_out
    from fedloom.storage.records import disk_errors

    def save(path: Path) -> None:
        if kind == "safetensors":
            from safetensors.torch import save_file

            with disk_errors():
                save_file({k: v.contiguous() for k, v in weights.items()}, path)
        else:
            import torch

            torch.save(weights, path)

    write_out(out, save)
