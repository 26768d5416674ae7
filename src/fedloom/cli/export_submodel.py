"""A sub-model of any size from a run's newest model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedloom.config import Config


def cut_out(
    run: Path, config: Config | None, weights: dict[str, Tensor], capacity: float, round: int
) -> tuple[nn.Module, dict[str, Tensor], str]:
    """The sub-model that a client of this capacity would receive after so many rounds.

    -> the module: a smaller one, or the whole one with zeros; for the latter the mask, {name: 0/1
    in the parameter's shape}; a description. A batch norm without running statistics gets those of
    all training samples. Raises ConfigError for a run without sub-models, and for one that Python
    code started: only that code knows its model.
    """
    from fedloom.server.submodel_evaluation import part_of

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
    from fedloom.engines.batch_statistics import keeps_no_statistics, samples
    from fedloom.models import with_statistics

    if not keeps_no_statistics(module):
        return module
    experiment = config.experiment()
    experiment.engine = "serial"  # nothing is run, and the run may come from a larger machine
    return with_statistics(module, samples(experiment.build().fed)).cpu()


def _mask(view: Any, layout: Any) -> dict[str, Tensor]:
    import torch

    if view.held is None or view.net is not None:
        return {}
    marks = torch.zeros(layout.d, dtype=torch.bool).index_fill_(0, view.held.cpu(), True)
    return {name: piece.clone() for name, piece in layout.views(marks).items()}
