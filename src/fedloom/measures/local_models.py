"""The local models of a round: what the clients of the next cohort make of the server's model; how
far they lie apart, and how alike their layers are (centred kernel alignment).
"""

from __future__ import annotations

import copy
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.hyper import NonNegativeInt, PositiveInt, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.client_results import TrainTask
from ..engines.client_round import Client
from ..engines.scores import evaluation_batch
from ..engines.serial import Serial
from ..errors import CompositionError, ConfigError, did_you_mean
from ..federation.federation import Federation
from ..plan import Plan
from ..server.client_selection import Participants
from ..server.exchanges import prepared
from ..server.rounds import Run
from ..server.server_step import Step
from ..stage import Download, LocalResult
from .base import Measure, Readings, sample_examples


@dataclass(frozen=True, eq=False)
class LocalModels:
    """The round after the last one, as it would be. before, after: the server's model (d,) at its
    beginning and at its end; models: {client: x (d,) after its last local step}; buffers: the same
    of batch norm's statistics; net: a copy of the run's.
    """

    before: Vec
    after: Vec
    models: dict[int, Vec]
    buffers: dict[int, Vec]
    net: Net


def local_models(run: Run) -> LocalModels:
    """Train the next cohort of a run, between two rounds, and keep every local model.

    It costs a round in one process and a model per client of the cohort. The run is not changed: a
    round is a function of its message and its client states. Raises CompositionError for a run with
    sub-models, whose local models have no coordinates in common.
    """
    if (scheme := run.plan.submodel) is not None:
        raise CompositionError(
            f"local models are compared as whole models, and with submodel "
            f"'{scheme.name}' clients hold parts; measure a run without submodel"
        )
    if run.group.size > 1:
        raise CompositionError(
            "measures of local models need the client states of a whole cohort in one process, and "
            f"this run has {run.group.size} ranks; measure it without torchrun"
        )
    cohort, message = run.cohorts.of(run.state.round), run.message()
    recorder = _Recorder(run.plan, run.fed, copy.deepcopy(run.net))
    engine = _Recording(recorder)
    engine.open(run.plan, run.fed, recorder.net)
    participants = Participants(
        [TrainTask(message.msg, message.buffers, {}, cohort, run.state.round)], [], [], {}
    )
    training = prepared(engine, run.plan, run.fed.seed, participants, run.memory.get)
    step, now = Step(run.plan, run.fed, recorder.net), run.state._replace(stages=message.stages)
    _, learnt = step.checked(engine, training, now)
    after = step.model(learnt._replace(round=learnt.round + 1))
    return LocalModels(run.model(), after, recorder.models, recorder.buffers, recorder.net)


class _Recording(Serial):
    """The reference engine with this client."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def client(self, plan: Plan, fed: Federation, net: Net) -> Client:
        return self.recorder


class _Recorder(Client):
    """A client that keeps where the local steps of each one ended."""

    def __init__(self, plan: Plan, fed: Federation, net: Net) -> None:
        super().__init__(plan, fed, net)
        self.models, self.buffers = dict[int, Vec](), dict[int, Vec]()

    def train(self, received: Download, memory: Rec, i: int, round: int) -> LocalResult:
        """As every client's, and keep the result."""
        result = super().train(received, memory, i, round)
        self.models[i], self.buffers[i] = result.x.clone(), received.net.buffers()
        return result


def divergence(models: Sequence[Vec], around: Vec) -> float:
    """1/n sum ||x_i - x||^2 of models (d,) around another one.

    >>> divergence([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])], torch.zeros(2))
    5.0
    """
    squares = [float((x - around).double().square().sum()) for x in models]
    return math.fsum(squares) / len(squares)


class Divergence(Measure):
    """The weight divergence 1/n sum ||x_i - x||^2 of the local models of the next cohort.

    Around the server's model at the round's end (FedSMOO's Table 2), at its beginning (FedACG's
    Figure 2b) and around their own mean; beside them the squared length of the model, to divide by.
    It costs a round. A run's columns are divergence, divergence_before and divergence_mean. Source:
    Sun et al., FedSMOO, ICML 2023, Table 2; Kim et al., FedACG, CVPR 2024, Figure 2b.
    """

    def _of(self, run: Run) -> Readings:
        local = local_models(run)
        models = list(local.models.values())
        middle = torch.stack(models).mean(0)
        each = {str(i): divergence([x], local.after) for i, x in local.models.items()}
        return {
            "clients": len(models),
            "after": divergence(models, local.after),
            "before": divergence(models, local.before),
            "mean": divergence(models, middle),
            "model_square": float(local.after.double().square().sum()),
            "each": each,
        }

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        names = {"divergence": "after", "divergence_before": "before", "divergence_mean": "mean"}
        return {name: result[key] for name, key in names.items()}


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
