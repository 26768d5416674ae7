"""`fedloom export`: a run's model for use outside, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["architecture", "call", "export_command", "script"]

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
    # what was cut, or got statistics, is as no recipe makes it; else it is shortest by its name
    uncut = module is not None and (capacity is None or _alike(module, named))
    if uncut and (built is None or _ours(built)):
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
    from fedloom.report import load_run

    found = load_run(run)
    python = found.config.get("source") == "python"
    config = None if python else from_run(run)
    final = int(found.summary.get("rounds") or 0) if (run / "model.safetensors").exists() else 0
    saved = [int(p.parent.name) for p in run.glob("checkpoints/*/manifest.json")]
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


def script(built: str | None, file: str, kind: str, run: Path, round: int) -> str:
    """Python that makes the model, by the expression `built`, and loads the file."""
    lines = [f'"""The model of {run.name} after round {round}."""', ""]
    own = built is not None and built.startswith("MODELS")
    ours = (
        [] if built is None or own else [k for k in ("MultiExit", "Residual") if f"{k}(" in built]
    )
    if built is not None and not own:
        lines.append("from collections import OrderedDict")
    lines += ["from pathlib import Path", ""]
    if kind == "state_dict":
        lines.append("import torch")
    else:
        lines.append("from safetensors.torch import load_model")
    if own:
        lines += ["", "from fedloom.models import MODELS", "", f"model = {built}"]
    elif built is not None:
        lines += ["from torch import nn"]
        lines += ["", f"from fedloom.models import {', '.join(ours)}"] if ours else []
        lines += ["", f"model = {built}"]
    else:
        lines += ["", "model = ...  # the nn.Module that the run was started with"]
    lines.append(f'file = Path(__file__).with_name("{file}")')
    if kind == "state_dict":
        lines.append("model.load_state_dict(torch.load(file, weights_only=True))")
    else:
        lines.append("load_model(model, file)")
    return "\n".join([*lines, "model.eval()", ""])


def _ours(built: str) -> list[str]:
    """Which of our blocks a model is built of."""
    return [name for name in ("MultiExit", "Residual") if f"{name}(" in built]


def call(run: Path) -> str:
    """Python that makes the model that a run's configuration names."""
    from fedloom.config import from_run
    from fedloom.config.tables import live

    table = from_run(run).values["model"]
    options = live({k: v for k, v in table.items() if k != "name"})
    return f'MODELS["{table["name"]}"]({", ".join(f"{k}={v!r}" for k, v in options.items())})'


def architecture(module: nn.Module, indent: str = "") -> str | None:
    """Python that makes a module of torch's own layers in Sequentials and in our blocks; None for
    any other.

    >>> from torch import nn
    >>> architecture(nn.Linear(2, 1))
    'nn.Linear(in_features=2, out_features=1, bias=True)'
    """
    from torch import nn

    from fedloom.models import MultiExit, Residual

    kind, inner = type(module), indent + "    "
    if kind is Residual or kind is MultiExit:
        return _block(module, indent)
    if kind is nn.Sequential:
        parts = [(name, architecture(child, inner)) for name, child in module.named_children()]
        if any(part is None for _, part in parts):
            return None
        body = "\n".join(f'{inner}("{name}", {part}),' for name, part in parts)
        return f"nn.Sequential(OrderedDict([\n{body}\n{indent}]))"
    own = kind.__module__.startswith("torch.nn.modules")
    if not own or getattr(nn, kind.__name__, None) is not kind or list(module.children()):
        return None
    text = f"nn.{module!r}"
    return text if _makes(text, module) else None


def _block(module: Any, indent: str) -> str | None:
    """Python that makes a residual block, or a model with exits."""
    from fedloom.models import Residual

    inner = indent + "    "
    if isinstance(module, Residual):
        body = architecture(module.body, inner)
        other = "None" if module.shortcut is None else architecture(module.shortcut, inner)
        if body is None or other is None:
            return None
        return f"Residual(\n{inner}{body},\n{inner}{other},\n{indent})"
    deeper, tables = inner + "    ", []
    for names, prefix in ((module.stages, ""), (module.exits, "exit_")):
        parts = {n: architecture(module.get_submodule(prefix + n), deeper) for n in names}
        if None in parts.values():
            return None
        rows = "\n".join(f'{deeper}"{n}": {part},' for n, part in parts.items())
        tables.append(f"{inner}{{\n{rows}\n{inner}}},")
    return "MultiExit(\n" + "\n".join(tables) + f"\n{indent})"


def _makes(text: str, module: nn.Module) -> bool:
    """Say whether this text makes such a module: a layer's repr need not be its constructor."""
    from torch import nn

    try:
        made = eval(text, {"nn": nn})
    except Exception:  # a repr may be any text: what cannot be made from it is exported otherwise
        return False
    shapes = {k: v.shape for k, v in module.state_dict().items()}
    return (
        repr(made) == repr(module) and {k: v.shape for k, v in made.state_dict().items()} == shapes
    )
