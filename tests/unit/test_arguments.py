"""What an experiment takes from Python: short forms, and one line for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom import Experiment, FedAvg
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import Link, Via
from fedloom.data import digits, iid
from fedloom.errors import CheckpointError, ConfigError, DataError
from fedloom.models import mlp


def experiment(**changes: Any) -> Experiment:
    """Two small rounds."""
    parts: dict[str, Any] = {
        "algorithm": FedAvg(),
        "model": lambda: mlp(64),
        "data": digits(iid(10)),
        "rounds": 2,
        "cohort": 3,
    }
    return Experiment(**{**parts, **changes})


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": "fedavg"}, "an Algorithm such as"),
        ({"algorithm": FedAvg}, "an Algorithm such as"),
        ({"model": "mlp"}, "a function that makes one"),
        ({"data": [1, 2]}, "from_clients"),
        ({"rounds": 0}, "from 1"),
        ({"rounds": True}, "from 1"),
        ({"seed": "3"}, "from 0"),
        ({"seed": -1}, "from 0"),
        ({"resident_bytes": "all"}, "from 1"),
        ({"local": {}}, "Local("),
        ({"evaluation": {}}, "Evaluation("),
        ({"saving": 60}, "Saving("),
        ({"loss": "mse"}, "loss(outputs, targets)"),
        ({"metrics": [right]}, "{name: f(outputs, targets)}"),
        ({"submodel": "fiarse"}, "a rule such as"),
        ({"compress": 0.1}, "'topk:0.01'"),
        ({"compress": "topkk:0.1"}, "did you mean 'topk'"),
        ({"devices": 3}, "a profile such as"),
        ({"turnover": 3}, "Turnover("),
        ({"weights": 3}, "safetensors"),
        ({"engine": 3}, "'workers:2'"),
        ({"dtype": "half"}, "torch.float64"),
        ({"dtype": torch.int64}, "torch.float64"),
        ({"on_round": 3}, "a function"),
        ({"higher_is_better": "yes"}, "True, False or None"),
    ],
)
def test_what_is_no_argument_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment(**change)
    assert words in str(error.value)
    assert next(iter(change)) in str(error.value) or "codec" in str(error.value)


def test_short_forms_are_the_long_ones() -> None:
    rows: list[dict[str, Any]] = []
    short = experiment(compress="topk:0.1", metrics=right, on_round=rows.append, seed=np.int64(3))
    whole = experiment(
        compress=Link(Via(TopK(ratio=0.1), Residual())), metrics={"right": right}, seed=3
    )
    found, wanted = short.run(), whole.run()
    assert found.history[-1]["test_right"] == wanted.history[-1]["test_right"]
    assert found.history[-1]["bytes_up"] == wanted.history[-1]["bytes_up"]
    assert [row["round"] for row in rows] == [1, 2]
    assert type(short.seed) is int


def test_a_metric_may_give_the_mean_as_a_number() -> None:
    found = experiment(
        metrics={"mean": lambda o, t: float(right(o, t).mean()), "each": right}
    ).run()
    last = found.history[-1]
    assert last["test_mean"] == pytest.approx(last["test_each"], rel=1e-6)


def test_a_metric_that_gives_no_number_is_said() -> None:
    with pytest.raises(DataError, match="metric 'bad' gave a str"):
        experiment(metrics={"bad": lambda o, t: "good"}).run()


def test_other_metrics_are_another_run(tmp_path: Path) -> None:
    experiment(metrics={"right": right}).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="metrics differ"):
        experiment(metrics={"wrong": right}, rounds=3).resume(tmp_path / "run")


def test_weights_that_torch_saved_are_said_to_be_no_safetensors_file(tmp_path):
    torch.save(mlp(64).state_dict(), tmp_path / "w.pt")
    with pytest.raises(DataError, match=r"give what torch\.load gives"):
        experiment(weights=tmp_path / "w.pt").net()
