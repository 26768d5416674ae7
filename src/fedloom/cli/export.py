"""`fedloom export`: a run's model for use without fedloom, and a script that runs it."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import CheckpointError, ConfigError
from fedloom.storage.atomic import write_out
from fedloom.storage.manifest import numbered
from fedloom.storage.seal import Seal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedloom.config import Config

    from .export_check import Told


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
    from fedloom.cli.export_check import ask, verify

    config = _config(run)
    weights, module, round = _newest(run, config)
    mask: dict[str, Tensor] = {}
    name, note, share = "export", "", None
    if capacity is not None:
        from fedloom.cli.export_network import cut_out
        from fedloom.federation.capacities import share_of

        share = share_of(capacity, "--capacity")
        module, mask, note = cut_out(run, config, weights, share, round)
        name = f"export-{share:g}"
    elif config is not None and module is not None:
        from fedloom.cli.export_network import settled

        module = settled(module, config)
    if module is not None:
        weights = _weights(module)
    out, kind = _place(run, out, name, kind)
    end = _SUFFIX[kind or "safetensors"]
    told = ask(run, config, round, share, weights)
    click.echo(note or f"{sum(v.numel() for v in weights.values()):,} numbers, round {round}")
    code = write_script(out, module, told)
    if kind or told.about["torch"] is None:  # else they are in the network alone
        _write(out.with_suffix(end), weights, "the weights by name")
    if mask:
        _write(out.with_suffix(f".mask{end}"), mask, "which of them it holds")
    for line in told.lacking():
        click.echo(line)
    verify(code, told, module, out.with_suffix(".test.npz") if test_set else None)


def write_script(out: Path, module: nn.Module | None, told: Told) -> Path:
    """Write the network, what is known of it, and the script that runs it -> the script."""
    import torch

    from fedloom.cli import exported
    from fedloom.cli.export_network import program

    code, file = out.with_suffix(".py"), out.with_suffix(".pt2")
    told.about.update(torch=None, state=None)
    try:
        if module is None:
            raise ConfigError("only the Python code that started the run knows it")
        if told.row is None:
            raise ConfigError("the run does not say of what shape its inputs are")
        made, state = program(module, told.row)
    except ConfigError as error:
        click.echo(
            f"not exported: the network: {error}; make it yourself, load the weights, and call "
            "outputs(samples, network)"
        )
    else:
        told.about.update(torch=torch.__version__, state=state)
        write_out(file, lambda part: _save_program(made, part))
        click.echo(f"{file}: the network, by torch {torch.__version__}")
    write_out(out.with_suffix(".about.json"), json.dumps(told.about, indent=1) + "\n")
    write_out(code, Path(exported.__file__).read_text(encoding="utf-8"))
    click.echo(f"{code}: prepare(), outputs(), predict() and score() of raw samples")
    return code


def _save_program(made: Any, part: Path) -> None:
    import torch

    with open(part, "wb") as file:  # torch wants another ending of a path
        torch.export.save(made, file)


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


def _config(run: Path) -> Config | None:
    """The configuration of a run; None for one that Python code started."""
    from fedloom.config import from_run
    from fedloom.report import load_run

    if load_run(run).config.get("source") == "python":
        return None
    return from_run(run, ["device=cpu"], own=True)  # wherever it was trained


def _newest(run: Path, config: Config | None) -> tuple[dict[str, Tensor], nn.Module | None, int]:
    """-> weights, the module if the configuration has one, their round."""
    from fedloom.report import load_run

    found = load_run(run)
    final = int(found.summary.get("rounds") or 0) if (run / "model.safetensors").exists() else 0
    saved = [int(folder.name) for folder in numbered(run / "checkpoints")]
    if max(saved, default=0) <= final and final:
        Seal(run).check("model.safetensors")
        weights = _load(run / "model.safetensors")
        if config is None:
            return weights, None, final
        net = config.net()
        net.start_from(weights)
        return weights, net.export(net.init()), final
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
    return _weights(module), module, state.round


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, a shared tensor by its first name alone."""
    first = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    return {name: value for name, value in module.state_dict().items() if name in first}


def _load(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from None


def _write(out: Path, weights: dict[str, Tensor], what: str) -> None:
    """Write tensors by name, and say so."""
    from fedloom.storage.records import disk_errors

    def save(path: Path) -> None:
        if out.suffix == ".safetensors":
            from safetensors.torch import save_file

            with disk_errors():
                save_file({k: v.contiguous() for k, v in weights.items()}, path)
        else:
            import torch

            torch.save(weights, path)

    click.echo(f"{write_out(out, save)}: {what}")
