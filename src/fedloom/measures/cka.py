"""How alike the layers of local models are: centred kernel alignment."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.hyper import NonNegativeInt, PositiveInt, hyper
from ..core.net import Net
from ..engines.scores import evaluation_batch
from ..errors import ConfigError, did_you_mean
from ..server.rounds import Run
from .base import Measure, Readings
from .local_models import LocalModels, local_models
from .mean_loss import sample_examples


def gram(features: Tensor) -> Tensor:
    """The centred products (n, n) of a representation (n, p), of length 1, in double; NaN if it is
    constant. The sum of the products of two of them is their linear CKA, in [0, 1]:
    ||Y' X||^2 / (||X' X|| ||Y' Y||), which stays if one is turned, mirrored or scaled.

    Source: Kornblith et al., Similarity of Neural Network Representations Revisited, ICML 2019.

    >>> round(float((gram(torch.eye(3)) * gram(2 * torch.eye(3).flip(1))).sum()), 12)
    1.0
    """
    rows = features.detach().flatten(1).double()
    rows = rows - rows.mean(0)
    products: Tensor = rows @ rows.T
    return products.div_(products.norm())


def layers_of(module: nn.Module, patterns: Sequence[str] = ()) -> list[str]:
    """The names of the layers to compare: those that a pattern such as "layer*" fits, or without
    patterns all that have a weight of two axes and more of their own. Raises ConfigError.
    """
    modules = {n: m for n, m in module.named_modules() if n}
    if not modules:
        raise ConfigError(
            f"the model {type(module).__name__} has no named layers, so none can be compared; "
            "give it as an nn.Module of layers"
        )
    if not patterns:
        weighted = [n for n, m in modules.items() if any(p.ndim > 1 for p in m.parameters(False))]
        return weighted or list(modules)
    layers = [n for n in modules if any(fnmatch.fnmatch(n, p) for p in patterns)]
    for pattern in patterns:
        if not any(fnmatch.fnmatch(n, pattern) for n in modules):
            raise ConfigError(f"no layer is called '{pattern}'; {did_you_mean(pattern, modules)}")
    return layers


def activations(
    net: Net, x: Tensor, buffers: Tensor, batches: Sequence[Tensor], layers: Sequence[str]
) -> dict[str, Tensor]:
    """{layer: its centred products (n, n)} of a model on examples, in evaluation mode."""
    features: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple | list) else output
            if isinstance(first, Tensor):
                features[name].append(first.detach().flatten(1))

        return hook

    hooks = [net.module.get_submodule(n).register_forward_hook(keep(n)) for n in layers]
    try:
        with torch.no_grad(), net.evaluating():
            net.load_buffers(buffers)
            net.bind(x)
            for batch in batches:
                net.module(batch)
    finally:
        for hook in hooks:
            hook.remove()
    # a layer that is used twice in a pass gives two parts for each batch
    return {n: gram(_join_parts(parts, len(batches))) for n, parts in features.items() if parts}


def _join_parts(parts: list[Tensor], batches: int) -> Tensor:
    uses = len(parts) // batches
    rows = [torch.cat(parts[b * uses : (b + 1) * uses], dim=1) for b in range(batches)]
    return torch.cat(rows)


class Cka(Measure):
    """The layer-wise linear CKA of the local models of the next cohort, the mean over all pairs.

    1: a layer says the same of the examples in all local models, however its units are turned. It
    costs a round. A run's columns are cka, the mean over the layers, and cka@LAYER. Source: Kim et
    al., FedACG, CVPR 2024, Figure 2c; Kornblith et al., ICML 2019.
    """

    on: Literal["train", "test"] = hyper("test", "whose examples", "FedACG: a global set")
    examples: PositiveInt = hyper(1000, "how many of them, drawn by the seed")
    layers: Sequence[str] = hyper((), "names or patterns such as layer*; none: all with weights")
    seed: NonNegativeInt = hyper(0, "of the examples")

    def _of(self, run: Run) -> Readings:
        layers = layers_of(run.net.module, self.layers)
        stored, targets = sample_examples(run, self.on, self.examples, self.seed)
        fed, size = run.fed, evaluation_batch(targets)
        batches = [fed.formatted(fed.data.ready(part)) for part in torch.split(stored, size)]
        local = local_models(run)
        if len(local.models) < 2:
            raise ConfigError("cka compares local models in pairs, and the cohort has one client")
        return {
            "on": self.on,
            "examples": len(stored),
            "clients": len(local.models),
            "layers": _by_layer(local, batches, layers),
        }

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        by_layer = result["layers"]
        present = {n: v for n, v in by_layer.items() if v is not None}
        columns = {f"cka@{n}": v for n, v in present.items()}
        return columns | ({"cka": math.fsum(present.values()) / len(present)} if present else {})


def _by_layer(
    local: LocalModels, batches: Sequence[Tensor], layers: Sequence[str]
) -> dict[str, float | None]:
    """{layer: the mean over all pairs of clients}; None for one that is constant on the examples.

    Products K_i of length 1 have <K_i, K_j> for their CKA, so the mean over the pairs of n clients
    is (||sum K_i||^2 - n) / (n (n - 1)), and only a sum is kept for each layer.
    """
    sums: dict[str, Tensor] = {}
    for i, x in local.models.items():
        grams = activations(local.net, x, local.buffers[i], batches, layers)
        sums = {k: gram + sums[k] if k in sums else gram for k, gram in grams.items()}
    n = len(local.models)
    means = {k: (float(v.square().sum()) - n) / (n * (n - 1)) for k, v in sums.items()}
    return {k: None if math.isnan(v) else v for k, v in means.items()}
