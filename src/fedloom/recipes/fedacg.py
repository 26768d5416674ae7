"""FedACG's protocols: CIFAR, Tiny-ImageNet, changing clients, and LEAF; on Fashion-MNIST too.

Source of all: Kim, Kim and Han, FedACG, CVPR 2024, section 5.1 and Tables 1 to 8; their code for
clipping at 10, augmentation and normalisation. The decay of 0.998 is one of their three.
"""

from __future__ import annotations

from typing import Any

# their code's, which are not the deviations of CIFAR-10's pixels
CIFAR10 = {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2023, 0.1994, 0.2010]}
CIFAR100 = {"mean": [0.5071, 0.4867, 0.4408], "std": [0.2675, 0.2565, 0.2761]}


def fedacg_cifar10() -> dict[str, Any]:
    """FedACG's CIFAR-10: 100 clients, Dirichlet 0.3, 5 % a round, ResNet-18, 1,000 rounds.

    500 images a client, 5 epochs of batch 50 (50 steps), rate 0.1 that falls by 0.998 a round,
    weight decay 0.001, clipped at 10. For a GPU. 500 clients: `fedacg_cifar10_500`. The authors'
    code decays inside the round, too: local.schedule.step_decay=epoch.
    """
    return _images("cifar10", 10, CIFAR10, 100, 50, 0.85)


def fedacg_cifar10_500() -> dict[str, Any]:
    """FedACG's CIFAR-10 with 500 clients of 100 images: 2 % a round, batch 10; else the same."""
    return _images("cifar10", 10, CIFAR10, 500, 10, 0.77)


def fedacg_cifar100() -> dict[str, Any]:
    """FedACG's CIFAR-100: as `fedacg_cifar10`, 100 classes. Their command for FedACG itself has
    local.schedule.decay=0.995.
    """
    return _images("cifar100", 100, CIFAR100, 100, 50, 0.55)


def fedacg_cifar100_500() -> dict[str, Any]:
    """FedACG's CIFAR-100 with 500 clients: as `fedacg_cifar10_500`, 100 classes."""
    return _images("cifar100", 100, CIFAR100, 500, 10, 0.40)


def fedacg_cifar100_changing() -> dict[str, Any]:
    """FedACG's Table 3: CIFAR-100, 250 of 500 clients available, drawn anew every 100 rounds.

    10 clients a round. The states of absent clients are kept, which the paper leaves open.
    """
    recipe = fedacg_cifar100_500()
    churn = {"active": 250, "every": 100, "replace": "none"}
    return recipe | {"cohort": 10, "churn": churn}


def fedacg_tiny() -> dict[str, Any]:
    """FedACG's Tiny-ImageNet: 100 clients of 1,000 images, 5 % a round, batch 100; else as
    `fedacg_cifar10`.
    """
    return _images("tiny_imagenet", 200, {}, 100, 100, 0.38)


def fedacg_tiny_500() -> dict[str, Any]:
    """FedACG's Tiny-ImageNet with 500 clients of 200 images: 2 % a round, batch 20."""
    return _images("tiny_imagenet", 200, {}, 500, 20, 0.30)


def _images(
    data: str, classes: int, pixels: dict[str, Any], clients: int, batch: int, target: float
) -> dict[str, Any]:
    partition = {"name": "dirichlet", "alpha": 0.3, "clients": clients}
    augmented = {"rotate": 10.0, "crop": 4, "flip": True}
    return {
        "rounds": 1000,
        "cohort": 0.05 if clients == 100 else 0.02,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "resnet18", "classes": classes},
        "data": {"name": data, "partition": partition} | pixels | augmented,
        "local": _local(batch),
        "evaluate": {"target": target},
    }


def _local(batch: int, lr: float = 0.1, epochs: int = 5) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "clip": 10.0,
        "weight_decay": 1e-3,
        "schedule": {"name": "exponential", "decay": 0.998},
    }


def fedacg_femnist() -> dict[str, Any]:
    """FedACG's FEMNIST: 2,000 writers, 5 a round, LEAF's network, 500 rounds.

    The paper gives neither epochs nor batch: 5 epochs as elsewhere in it, batches of 10 as LEAF's.
    """
    return _leaf("femnist", "cnn_femnist", 0.78)


def fedacg_celeba() -> dict[str, Any]:
    """FedACG's CelebA: 2,000 celebrities, 5 a round, LEAF's network, 500 rounds; epochs and batch
    as for `fedacg_femnist`, pixels from -1 to 1 as in the authors' code.
    """
    recipe = _leaf("celeba", "cnn_celeba", 0.88)
    recipe["data"] |= {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    return recipe


def fedacg_shakespeare() -> dict[str, Any]:
    """FedACG's Shakespeare: 5 % of the roles a round, LEAF's LSTM, 1,000 rounds.

    The paper gives neither clients, epochs, batch nor rate: all roles with two windows or more, one
    epoch of batches of 10 at 0.8, as LEAF's; a thousand test windows.
    """
    recipe = _leaf("shakespeare", "lstm_shakespeare", 0.45)
    recipe["data"]["partition"] = {"name": "natural", "min_size": 2}
    recipe["data"]["test_samples"] = 1000
    recipe["local"] = _local(10, lr=0.8, epochs=1)
    return recipe | {"rounds": 1000, "cohort": 0.05}


def _leaf(data: str, model: str, target: float) -> dict[str, Any]:
    return {
        "rounds": 500,
        "cohort": 5,
        "algorithm": {"name": "fedavg"},
        "model": {"name": model},
        "data": {"name": data, "partition": {"name": "natural", "clients": 2000}},
        "local": _local(10),
        "evaluate": {"target": target},
    }


def fashion_dirichlet() -> dict[str, Any]:
    """Fashion-MNIST over 100 clients under FedACG's protocol, with FAFED's small network.

    Dirichlet partition with alpha 0.3 and equal sizes, participation ratio 5 %, 5 local epochs of
    batch 50, learning rate 0.1 times 0.998 per round, gradients clipped at 10, weight decay 0.001,
    100 rounds.
    Source: Kim, Kim and Han, FedACG, CVPR 2024, section 5.1 (the protocol), which does not use this
    data set; Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    return _fashion(rounds=100, epochs=5)


def zoo_fashion_mnist() -> dict[str, Any]:
    """The papers' methods compared: Fashion-MNIST, 100 clients by Dirichlet 0.3, 5 % per round.

    FAFED's small network, one local epoch of batch 50 (12 steps), learning rate 0.2 times 0.998 per
    round, weight decay 0.001, gradients clipped at 10, 300 rounds, evaluated every 5. The methods
    and their tuning: benchmarks/papers/studies/zoo.toml. Two labels per client:
    data.partition=classes_per_client.
    Source: the protocol of Kim, Kim and Han, FedACG, CVPR 2024, section 5.1, with fewer local steps
    (hence the learning rate, the best of 0.05, 0.1 and 0.2 for FedAvg; theirs is 0.1);
    Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    recipe = _fashion(rounds=300, epochs=1)
    recipe["local"]["lr"] = 0.2
    recipe["evaluate"]["every"] = 5
    return recipe


def fedacg_fedpaq() -> dict[str, Any]:
    """FedACG with client updates in FedPAQ's 4 bits, as in FedACG's Table 6, on Fashion-MNIST.

    100 clients, Dirichlet partition with alpha 0.3, participation ratio 5 %, FAFED's small network,
    5 local epochs of batch 50. To compare with: algorithm=fedavg, and compress=none.
    Source: Kim, Kim and Han, FedACG, CVPR 2024, Table 6: CIFAR-100, ResNet-18, 1,000 rounds; it
    does not say how many bits.
    """
    return _fashion(rounds=100, epochs=5) | {
        "algorithm": {"name": "fedacg"},
        "compress": {"name": "fedpaq", "levels": 7},
    }


def _fashion(rounds: int, epochs: int) -> dict[str, Any]:
    """Settings of FedACG's protocol, on Fashion-MNIST with FAFED's small network."""
    partition = {"name": "dirichlet", "alpha": 0.3, "clients": 100}
    return {
        "rounds": rounds,
        "cohort": 0.05,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_fafed_fashion"},
        "data": {"name": "fashion_mnist", "partition": partition},
        "local": _local(50, epochs=epochs),
        "evaluate": {"target": 0.8},
    }
