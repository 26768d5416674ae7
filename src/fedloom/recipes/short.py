"""Short runs on a CPU: digits, hospitals, MNIST, ten rounds each of larger images and of texts."""

from __future__ import annotations

from typing import Any


def digits() -> dict[str, Any]:
    """Digits of 8 x 8 pixels over 50 clients by Dirichlet 0.3: the demo; seconds, no download.

    There are 1,438 training samples, 28 or 29 per client; on average half of a client's samples
    have the same label. Ten clients per round, two local epochs.
    """
    return {
        "rounds": 150,
        "cohort": 0.2,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp", "inputs": 64, "hidden": [64], "classes": 10},
        "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 50}},
        "local": {"epochs": 2, "batch": 16, "lr": 0.1},
        "evaluate": {"target": 0.95},
    }


def heart() -> dict[str, Any]:
    """Patients of four hospitals, ill or not, logistic regression; a second, no download.

    740 patients with 13 measurements, which each hospital scales by its own (FLamby's
    Fed-Heart-Disease, 30 to 199 training rows a hospital). All take part in every round. Accuracy
    and AUC of each hospital on its own test rows stand in clients.json and in the report.
    """
    return {
        "rounds": 15,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "logistic", "inputs": 13, "classes": 2},
        "data": {"name": "heart", "partition": {"name": "natural"}},
        "local": {"epochs": 2, "batch": 16, "lr": 0.1},
        "metrics": ["accuracy", "auc"],
        "evaluate": {"target": 0.75},
    }


def million_clients() -> dict[str, Any]:
    """A million clients with 20 digits each, 1,000 per round, logistic regression; no download.

    Every client draws its samples from the 1,437 training digits, with its own label distribution
    from Dirichlet 0.3.
    """
    return {
        "algorithm": {"name": "fedavg"},
        "rounds": 50,
        "cohort": 1000,
        "model": {"name": "logistic", "inputs": 64},
        "data": {
            "name": "digits",
            "partition": {"name": "drawn", "alpha": 0.3, "clients": 1_000_000, "each": 20},
        },
        "local": {"epochs": 1, "batch": 10, "lr": 0.1},
        "evaluate": {"every": 5, "target": 0.9},
    }


def mnist_iid() -> dict[str, Any]:
    """MNIST over 100 clients, IID, participation ratio 10 %, CFedAvg's network.

    The easy case: methods differ in the number of rounds, and hardly in the final accuracy.
    """
    return _mnist({"name": "iid", "clients": 100})


def mnist_dirichlet() -> dict[str, Any]:
    """MNIST over 100 clients by Dirichlet 0.3, participation ratio 10 %, CFedAvg's network."""
    return _mnist({"name": "dirichlet", "alpha": 0.3, "clients": 100})


def mnist_writers() -> dict[str, Any]:
    """MNIST, one client per writer of its training images (539), 10 % per round, CFedAvg's network.

    Every client has all ten digits in one handwriting: the inputs differ, and the labels do not.
    """
    return _mnist({"name": "writers"})


def _mnist(partition: dict[str, Any]) -> dict[str, Any]:
    return {
        "rounds": 100,
        "cohort": 0.1,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_cfedavg"},
        "data": {"name": "mnist", "partition": partition},
        "local": {"epochs": 1, "batch": 50, "lr": 0.1},
        "evaluate": {"target": 0.98},
    }


def cifar10() -> dict[str, Any]:
    """CIFAR-10 over 100 clients by Dirichlet 0.3, FAFED's small network, ten rounds: a short run.

    It takes about a minute on a CPU; training images are cropped and flipped. FedACG's protocol
    also has rotation, 5 local epochs, a ResNet-18 and 1,000 rounds.
    """
    return _cifar("cifar10", 10, 2, 0.2)


def cifar100() -> dict[str, Any]:
    """CIFAR-100 over 100 clients by Dirichlet 0.3, FAFED's small network, ten rounds: a short run.

    Each client trains for 5 local epochs; for the rest see `cifar10`.
    """
    return _cifar("cifar100", 100, 5, 0.03)


def _cifar(name: str, classes: int, epochs: int, target: float) -> dict[str, Any]:
    return {
        "rounds": 10,
        "cohort": 0.1,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_fafed_cifar", "classes": classes},
        "data": {
            "name": name,
            "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 100},
            "crop": 4,
            "flip": True,
        },
        "local": {
            "epochs": epochs,
            "batch": 50,
            "lr": 0.1,
            "clip": 10.0,
            "weight_decay": 1e-3,
        },
        "evaluate": {"target": target},
    }


def femnist() -> dict[str, Any]:
    """FEMNIST, one client per writer with at least 20 images, LEAF's network, ten rounds.

    Five clients per round, one local epoch of batch 10 (as in LEAF's examples). The learning rate
    is 0.05; with LEAF's 0.0003 ten rounds show no progress. A subset of the writers works too.
    """
    return {
        "rounds": 10,
        "cohort": 5,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_femnist"},
        "data": {"name": "femnist", "partition": {"name": "natural", "min_size": 20}},
        "local": {"epochs": 1, "batch": 10, "lr": 0.05},
        "evaluate": {"every": 5, "target": 0.2},
    }


def shakespeare() -> dict[str, Any]:
    """LEAF's Shakespeare, one client per role with at least 500 windows, LEAF's LSTM, ten rounds.

    Five clients per round, ten local steps of batch 10; 1,000 evenly spaced windows as test set.
    """
    return {
        "rounds": 10,
        "cohort": 5,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "lstm_shakespeare"},
        "data": {
            "name": "shakespeare",
            "partition": {"name": "natural", "min_size": 500},
            "test_samples": 1000,
        },
        "local": {"steps": 10, "batch": 10, "lr": 0.8},
        "evaluate": {"every": 5, "target": 0.2},
    }


def wikitext2() -> dict[str, Any]:
    """WikiText-2 in 16 blocks, one per client, an LSTM of width 64, ten rounds.

    It needs wiki.train.tokens and wiki.test.tokens (`fedloom data get wikitext2`). 16 clients and
    batches of 20 windows of 35 words are as in FAFED. The target is a perplexity.
    """
    return {
        "rounds": 10,
        "cohort": 4,
        "algorithm": {"name": "fedavg"},
        "model": {
            "name": "lstm_language_model",
            "vocabulary": 33_278,
            "embedding": 64,
            "hidden": 64,
            "tied": True,
        },
        "data": {
            "name": "wikitext2",
            "partition": {"name": "blocks", "clients": 16},
            "test_samples": 200,
        },
        "local": {"steps": 5, "batch": 20, "lr": 5.0, "clip": 0.25},
        "evaluate": {"every": 5, "target": 1000.0, "clients": False},
    }


def ag_news() -> dict[str, Any]:
    """AG News over 50 clients by Dirichlet 1, a small transformer, ten rounds.

    It needs train.csv and test.csv (`fedloom data get ag_news`): 120,000 texts, of which a client
    sees 200 in a round.
    """
    return {
        "rounds": 10,
        "cohort": 0.2,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "transformer_text", "length": 64, "width": 64},
        "data": {
            "name": "ag_news",
            "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 50},
        },
        "local": {"steps": 10, "batch": 20, "lr": 0.001, "optimiser": "adamw"},
        "evaluate": {"every": 5, "target": 0.6},
    }
