"""Text: Shakespeare, WikiText-2 and AG News, ten rounds each on a CPU."""

from __future__ import annotations

from typing import Any


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
    """WikiText-2's validation text in 16 blocks, one per client, an LSTM of width 64, ten rounds.

    It trains on the validation text, because every copy has it (data.part=train has ten times as
    many words and needs model.vocabulary=33278). 16 clients and batches of 20 windows of 35 words
    are as in FAFED. The target is a perplexity.
    """
    return {
        "rounds": 10,
        "cohort": 4,
        "algorithm": {"name": "fedavg"},
        "model": {
            "name": "lstm_language_model",
            "vocabulary": 13_777,
            "embedding": 64,
            "hidden": 64,
            "tied": True,
        },
        "data": {
            "name": "wikitext2",
            "part": "valid",
            "partition": {"name": "blocks", "clients": 16},
            "test_samples": 200,
        },
        "local": {"steps": 5, "batch": 20, "lr": 5.0, "clip": 0.25},
        "evaluate": {"every": 5, "target": 1000.0, "clients": False},
    }


def ag_news() -> dict[str, Any]:
    """AG News over 50 clients by Dirichlet 1, a small transformer, ten rounds.

    It trains on the 10,001 texts of train-10k.tsv; data.part=train uses the published 120,000.
    """
    return {
        "rounds": 10,
        "cohort": 0.2,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "transformer_text", "length": 64, "width": 64},
        "data": {
            "name": "ag_news",
            "part": "train-10k",
            "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 50},
        },
        "local": {"epochs": 1, "batch": 20, "lr": 0.001, "optimiser": "adamw"},
        "evaluate": {"every": 5, "target": 0.6},
    }
