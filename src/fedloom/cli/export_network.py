"""What `fedloom export` writes of a network: a program of torch.export, which needs neither its
class nor fedloom; and a sub-model of any size, cut from a run's newest model.
"""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.config import Config
from fedloom.engines.batch_statistics import keeps_no_statistics, samples
from fedloom.errors import ConfigError
from fedloom.models import with_statistics
from fedloom.models.recurrent import RecurrentNet
from fedloom.server.submodel_evaluation import part_of


def program(
    module: nn.Module, row: Tensor
) -> tuple[torch.export.ExportedProgram, tuple[int, int] | None]:
    """A module, in evaluation mode, as a program for batches of any size.

    row: one input, (1, ...). A recurrent network becomes its step, so that texts of any length can
    be run: ((B, 1) tokens, state) -> (outputs, state); the second value returned is the size of
    that state, layers and hidden units. It is None for other modules. Raises ConfigError with the
    line that cannot be exported.
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
            made = torch.export.export(
                module.eval(), (inputs,), dynamic_shapes=(sizes,), strict=False
            )
    except Exception as error:  # of any type: the module's own code runs here
        raise ConfigError(f"torch.export refuses {_line(module, error)}") from None
    return made, state


def _line(module: nn.Module, error: Exception) -> str:
    """What was refused: the line of code outside of torch that raised the error, and why."""
    why = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    why = why.rstrip(".")
    if why.startswith("Constraints violated"):
        return (
            f"{type(module).__name__}, whose code fixes the number of samples in a batch, as "
            "len(inputs) does: take inputs.shape[0]"
        )
    away = str(Path(torch.__file__).parent), __file__
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code  # of torch there is also some that no file has
        if not code.co_filename.startswith((*away, "<")):
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


def cut_out(
    run: Path, config: Config | None, weights: dict[str, Tensor], capacity: float, round: int
) -> tuple[nn.Module, dict[str, Tensor], str]:
    """The sub-model that a client of this capacity would receive after so many rounds.

    -> the module: a smaller one, or the whole one with zeros; for the latter the mask, {name: 0/1
    in the parameter's shape}; a description. A batch norm without running statistics gets those of
    all training samples. Raises ConfigError for a run without sub-models, and for one that Python
    code started: only that code knows its model.
    """
    if config is None:
        raise ConfigError(
            f"'{run}' was started from Python: only that code knows its model and its sub-models; "
            "cut it there with part_of(rule, net, x, capacity, round) of "
            "fedloom.server.submodel_evaluation"
        )
    rule = config.rule()
    if rule is None:
        raise ConfigError(
            f"'{run}' trained whole models, which are not made to be cut; start a run with "
            "submodel=fiarse, or leave --capacity away"
        )
    net = config.net()
    net.start_from(weights)
    view, module = part_of(rule, net, net.init(), capacity, round)
    held = net.layout.d if view.held is None else len(view.held)
    words = f"{rule.name} at capacity {capacity:g}: {held:,} of {net.layout.d:,} parameters"
    words += f", round {round}"
    return settled(module, config).cpu(), _mask(view, net.layout), words


def settled(module: nn.Module, config: Config) -> nn.Module:
    """A module whose batch norms keep no running statistics, with those of all training samples;
    any other as it is.
    """
    if not keeps_no_statistics(module):
        return module
    experiment = config.experiment()
    experiment.engine = "serial"  # nothing is run, and the run may come from a larger machine
    return with_statistics(module, samples(experiment.build().fed)).cpu()


def _mask(view: Any, layout: Any) -> dict[str, Tensor]:
    if view.held is None or view.net is not None:
        return {}
    marks = torch.zeros(layout.d, dtype=torch.bool).index_fill_(0, view.held.cpu(), True)
    return {name: piece.clone() for name, piece in layout.views(marks).items()}
