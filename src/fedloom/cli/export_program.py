"""A module as a program of torch.export, which needs neither its class nor fedloom."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def program(
    module: nn.Module, row: Tensor
) -> tuple[torch.export.ExportedProgram, tuple[int, int] | None]:
    """A module, in evaluation mode, as a program for batches of any size.

    row: one input, (1, ...). A recurrent network becomes its step, so that texts of any length can
    be run: ((B, 1) tokens, state) -> (outputs, state); the second value returned is the size of
    that state, layers and hidden units. It is None for other modules. Raises ConfigError with the
    line that cannot be exported.
    """
    import torch

    from fedloom.models.recurrent import RecurrentNet

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
    import torch

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
