"""Sub-models for clients of less capacity: FIARSE's experiments. To run a baseline:

fedloom run fiarse_fashion submodel=heterofl
fedloom run fiarse_fashion submodel=fedrolex
fedloom run fiarse_fashion submodel=fjord objective=ordered_distillation
fedloom run fiarse_fashion submodel=scalefl submodel.least=0.4 objective=self_distillation \\
    model.exits=true
"""

from __future__ import annotations

from typing import Any

# FIARSE, Figure 4: sub-model sizes that no client trains, and the four that clients train
UNSEEN = [
    *(1.0, 0.99, 0.9, 0.8, 0.75, 0.7, 0.64, 0.6, 0.5, 0.36, 1 / 4, 0.16, 1 / 8, 1 / 16, 0.04),
    *(1 / 32, 1 / 64, 1 / 128, 1 / 256),
]
SIZES = [1 / 64, 1 / 16, 1 / 4, 1.0]


def fiarse_fashion() -> dict[str, Any]:
    """FIARSE on Fashion-MNIST: 100 clients of four capacities, FAFED's small network, doubled.

    Interleaved Dirichlet 0.3, 25 clients each of capacity 1/64, 1/16, 1/4 and 1, 10 per round, 2
    local epochs of batch 20, learning rate 0.1, uniform weights, 200 rounds. The network has
    doubled widths (104,130 parameters). Client test sets have the clients' label distributions.

    Source: Wu et al., FIARSE, NeurIPS 2024, section 6.1 and Table 3, which has CIFAR-10, ResNet-18,
    800 rounds of 5 local epochs; this is the experiment scaled down for a CPU.
    """
    return {
        "rounds": 200,
        "cohort": 10,
        "weighting": "uniform",
        "algorithm": {"name": "fedavg"},
        "submodel": {"name": "fiarse", "capacities": SIZES},
        "model": {"name": "cnn_fafed_fashion", "widen": 2},
        "data": {
            "name": "fashion_mnist",
            "tests": "matched",
            "partition": {"name": "dirichlet_interleaved", "alpha": 0.3, "clients": 100},
        },
        "local": {"epochs": 2, "batch": 20, "lr": 0.1},
        "evaluate": {"every": 10, "target": 0.8, "sizes": UNSEEN},
    }


def fiarse_cifar10() -> dict[str, Any]:
    """FIARSE on CIFAR-10: 100 clients of four capacities, ResNet-18, static batch norm, 800 rounds.

    Interleaved Dirichlet 0.3, 25 clients each of capacity 1/64, 1/16, 1/4 and 1, 10 per round, 5
    local epochs of batch 20, learning rate 0.1 without momentum, uniform weights. It needs a GPU: a
    round is about 1,250 local steps.
    Source: Wu et al., FIARSE, NeurIPS 2024, section 6.1, Tables 1 and 3; code for crop, flip and
    normalisation.
    """
    recipe = _cifar("cifar10", 10, 0.7)
    recipe["data"]["std"] = [0.2023, 0.1994, 0.2010]
    return recipe


def fiarse_cifar100() -> dict[str, Any]:
    """FIARSE on CIFAR-100: as `fiarse_cifar10`, with CIFAR-100's own normalisation (the authors'
    code has CIFAR-10's).

    Source: Wu et al., FIARSE, NeurIPS 2024, section 6.1, Tables 1 and 3.
    """
    return _cifar("cifar100", 100, 0.35)


def fiarse_agnews() -> dict[str, Any]:
    """FIARSE on AG News: 200 clients of four capacities, a small transformer, 100 rounds.

    Every class is divided over the clients by Dirichlet 1 with unequal sizes, at least 4 texts per
    client; 50 clients each of capacity 1/64, 1/16, 1/4 and 1, 20 per round, 2 local epochs of batch
    20 by AdamW (0.9, 0.95) at learning rate 0.001, uniform weights. Thresholds per shard: position
    embeddings, word embeddings, encoder; all clients hold norms and head. It needs train.csv and
    test.csv (`fedloom data get ag_news`).

    The paper has RoBERTa-base, 300 rounds and a learning rate of 0.001, 0.0001 or 0.00001. With the
    extra fedloom[text] and a network connection (or a folder in place of the name):
    fedloom run fiarse_agnews data.tokeniser=roberta-base model=roberta_base
    submodel.shards='["embedding.inner.position*", "embedding.inner.word*", "layer*"]'
    rounds=300 local.lr=0.0001
    Source: Wu et al., FIARSE, NeurIPS 2024, section 6.1 and Table 3; code for shards and partition.
    """
    return {
        "rounds": 100,
        "cohort": 20,
        "weighting": "uniform",
        "algorithm": {"name": "fedavg"},
        "submodel": {
            "name": "fiarse",
            "group": "shard",
            "shards": ["embedding.places", "embedding.weights.*", "layer*"],
            "capacities": SIZES,
        },
        "model": {"name": "transformer_text", "length": 64, "width": 64},
        "data": {
            "name": "ag_news",
            "tests": "matched",
            "partition": {
                "name": "dirichlet_unbalanced",
                "alpha": 1.0,
                "clients": 200,
                "min_size": 4,
                "capped": True,
            },
        },
        "local": {"epochs": 2, "batch": 20, "lr": 0.001, "optimiser": "adamw", "beta2": 0.95},
        "evaluate": {"every": 10, "target": 0.7, "sizes": UNSEEN},
    }


def _cifar(name: str, classes: int, target: float) -> dict[str, Any]:
    return {
        "rounds": 800,
        "cohort": 10,
        "weighting": "uniform",
        "algorithm": {"name": "fedavg"},
        "submodel": {"name": "fiarse", "capacities": SIZES},
        "model": {"name": "resnet18_fiarse", "classes": classes},
        "data": {
            "name": name,
            "tests": "matched",
            "partition": {"name": "dirichlet_interleaved", "alpha": 0.3, "clients": 100},
            "crop": 4,
            "flip": True,
        },
        "local": {"epochs": 5, "batch": 20, "lr": 0.1},
        "evaluate": {"every": 20, "target": target, "sizes": UNSEEN},
    }
