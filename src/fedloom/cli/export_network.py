"""The network of `fedloom export`: a run's newest model, or a sub-model of any size cut from it; as
a program of torch.export, which needs neither its class nor fedloom.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import click
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom.cli import exported
from fedloom.config import Config
from fedloom.data.own import cells
from fedloom.errors import CheckpointError, ConfigError, DataError, SettingError
from fedloom.evaluation.scorer import keeps_no_statistics, samples
from fedloom.evaluation.sizes import part_of
from fedloom.models import with_statistics
from fedloom.models.recurrent import RecurrentNet
from fedloom.report import Run
from fedloom.server import rounds
from fedloom.storage.atomic import write_out
from fedloom.storage.manifest import BEST, check_file, deployed, resuming, round_folders
from fedloom.storage.records import write_tensors

from .export_check import ExportFacts

# ---------------------------------------------------------------------------------- what a run has
Newest = tuple[dict[str, Tensor], nn.Module | None, int, int | None]


def newest(run: Run, config: Config | None, client: str | None) -> Newest:
    """-> weights, the module if the settings have one, their round; whose model it is."""
    path = run.path
    if client is not None and config is not None:
        return _of_client(config.experiment().open(path), client)
    final = int(run.summary.get("rounds") or 0) if (path / "model.safetensors").exists() else 0
    saved = [int(folder.name) for folder in round_folders(path / "checkpoints")]
    if max(saved, default=0) <= final and final:
        return _from_file(path / "model.safetensors", config, final)
    if config is None:
        raise ConfigError(
            f"'{path}' was started from Python and is not finished: only that code knows its "
            "model; finish it there"
        )
    try:
        restored = config.experiment().open(path)
    except (ConfigError, DataError) as error:
        if not deployed(path):
            raise
        raise ConfigError(
            f"'{path}' has not ended, and the model of a checkpoint cannot be made without the "
            f"data, which are at the nodes ({error}); end it with {resuming(path)}"
        ) from None
    module = restored.exported()
    return weights_of(module), module, restored.state.round, None


def best(run: Run, config: Config | None) -> Newest:
    """The same of the model that the run kept as its best. Raises ConfigError without one."""
    kept_best = run.summary.get("best_model")
    if not kept_best:
        raise ConfigError(
            f"--best: '{run.path}' has kept no best model, or has not ended yet; give "
            "checkpoint.keep_best = test_loss (or another column) from its first round on"
        )
    return _from_file(run.path / BEST, config, int(kept_best["round"]))


def _from_file(file: Path, config: Config | None, round: int) -> Newest:
    check_file(file.parent, file.name)
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from None
    if config is None:
        return weights, None, round, None
    net = config.net()
    net.start_from(weights)
    return weights, net.export(net.init()), round, None


def _of_client(restored: rounds.Run, client: str) -> Newest:
    data = restored.fed.data
    names = {str(i): i for i in range(data.population)}
    names |= {name: i for i, name in enumerate(data.client_names)}
    if client not in names:
        hint = f", or its name, such as {data.client_name(0)}" if data.client_names else ""
        allowed = f"a client's number, from 0 to {data.population - 1}{hint}"
        raise SettingError("--client", client, allowed)
    i = names[client]
    module = restored.net.export(*restored.evaluator.own_model(restored, i)).cpu()
    return weights_of(module), module, restored.state.round, i


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, a shared tensor by its first name alone."""
    first = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    return {name: value for name, value in module.state_dict().items() if name in first}


def cut_out(
    run: Path, config: Config | None, weights: dict[str, Tensor], capacity: float, round: int
) -> tuple[nn.Module, str]:
    """The sub-model that a client of this capacity would receive after so many rounds: a smaller
    module, or the whole one with zeros; a description. Raises ConfigError for a run without them.
    """
    submodel = None if config is None else config.submodel()
    if config is None or submodel is None:
        why = "it trained whole models, which are not made to be cut"
        why = why if config else "only the Python code that started it knows its model"
        raise ConfigError(f"'{run}': {why}; leave --capacity away")
    net = config.net()
    net.start_from(weights)
    view, module = part_of(submodel, net, net.init(), capacity, round)
    count = net.layout.d if view.held is None else len(view.held)
    words = f"{submodel.name} at capacity {capacity:g}: {count:,} of {net.layout.d:,} parameters"
    return settled(module, config).cpu(), f"{words}, round {round}"


def settled(module: nn.Module, config: Config) -> nn.Module:
    """A module, whose batch norms without running statistics have those of all training rows."""
    if not keeps_no_statistics(module):
        return module
    experiment = config.experiment()
    experiment.engine = "serial"  # nothing is run, and the run may come from a larger machine
    return with_statistics(module, samples(experiment.build().fed)).cpu()


# ------------------------------------------------------------------------------- what is written
def write_script(out: Path, module: nn.Module | None, facts: ExportFacts) -> Path:
    """Write the network, what is known of it, and the script that runs it -> the script."""
    facts.record.update(torch=None, state=None)
    try:
        if module is None:
            raise ConfigError("only the Python code that started the run knows it")
        if facts.row is None:
            raise ConfigError("the run does not say of what shape its inputs are")
        network, state = program(module, facts.row)
        torch.export.save(network, file := io.BytesIO())
        exported.harmless(file)
    except ConfigError as error:
        click.echo(f"not exported: the network: {error}; {exported.BY_HAND}")
    except pickle.UnpicklingError as error:
        click.echo(f"not exported: the network: it {exported.refusal(error)}; {exported.BY_HAND}")
    else:
        facts.record.update(torch=torch.__version__, state=state)
        written = write_out(out / "model.pt2", file.getvalue())
        click.echo(f"{written}: the network, by torch {torch.__version__}")
    text = json.dumps(facts.record, indent=1, ensure_ascii=False) + "\n"
    click.echo(f"{write_out(out / 'about.json', text)}: inputs, classes, threshold, scores")
    if facts.record["inputs"].get("columns"):  # of a table
        written = write_out(out / "cells.py", Path(cells.__file__).read_text(encoding="utf-8"))
        click.echo(f"{written}: what prepares a table's columns, as in training")
    code = write_out(out / "predict.py", Path(exported.__file__).read_text(encoding="utf-8"))
    click.echo(f"{code}: the script that uses them")
    return code


def program(
    module: nn.Module, row: Tensor
) -> tuple[torch.export.ExportedProgram, tuple[int, int] | None]:
    """A module as a program for batches of any size, by one input `row`, (1, ...); of a recurrent
    network its step, ((B, 1) tokens, state) -> (outputs, state), and its layers and hidden units.
    Raises ConfigError with the line that cannot be exported.
    """
    free = torch.export.Dim.DYNAMIC
    inputs: Any = torch.cat([row, row])  # torch takes a dimension of 1 for a constant
    sizes: Any = {0: free}
    state = None
    if isinstance(module, RecurrentNet):
        state = len(module.recurrent), module.hidden
        inputs, sizes = (inputs[:, :1], module.zeros(2)), (sizes, ({1: free}, {1: free}))
    try:
        with _quiet():
            network = torch.export.export(
                module.eval(), (inputs,), dynamic_shapes=(sizes,), strict=False
            )
    except Exception as error:  # of any type: the module's own code runs here
        raise ConfigError(f"torch.export refuses {_line(module, error)}") from None
    return network, state


def _line(module: nn.Module, error: Exception) -> str:
    """What was refused: the line of code outside of torch that raised the error, and why."""
    why = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    why = why.rstrip(".")
    if why.startswith("Constraints violated"):
        return (
            f"{type(module).__name__}, whose code fixes the number of samples in a batch, as "
            "len(inputs) does: take inputs.shape[0]"
        )
    outside = str(Path(torch.__file__).parent), __file__
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code  # of torch there is also some that no file has
        if not code.co_filename.startswith((*outside, "<")):
            return f"{code.co_qualname} ({code.co_filename}, line {number}): {why}"
    return f"{type(module).__name__}: {why}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch prints of a module that it refuses off the screen."""
    old = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # such as nn.LSTM's about its own attributes
            yield
    finally:
        logging.disable(old)


def write_weights(out: Path, weights: dict[str, Tensor], label: str) -> None:
    """Write tensors by name, and say so."""
    whole = {name: v.contiguous() for name, v in weights.items()}
    click.echo(f"{write_out(out, lambda path: write_tensors(path, whole))}: {label}")
