"""What an experiment takes from Python: short forms, and one line for everything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local
from fedloom.aggregation import TrimmedMean
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.data import FederatedData, digits, from_clients, iid
from fedloom.errors import CheckpointError, ConfigError, DataError
from fedloom.models import mlp
from fedloom.objectives import SquaredError
from fedloom.submodels import HeteroFL


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
        ({"round": 3}, "Experiment: unknown argument 'round'; did you mean 'rounds'?"),
        ({"data": [1, 2]}, "from_clients"),
        ({"data": [(np.ones((99, 9)), np.ones(99))]}, "from_clients"),
        ({"rounds": 0}, "from 1"),
        ({"rounds": True}, "from 1"),
        ({"seed": "3"}, "from 0"),
        ({"seed": -1}, "from 0"),
        ({"resident_bytes": "all"}, "from 1"),
        ({"local": {}}, "Local("),
        ({"evaluate": {}}, "Evaluation("),
        ({"checkpoint": 60}, "Checkpoint("),
        ({"objective": "mse"}, "loss(outputs, targets)"),
        ({"metrics": [3]}, "{name: f(outputs, targets)}"),
        ({"submodel": "fiarse"}, "a scheme such as"),
        ({"compress": 0.1}, "'topk:0.01'"),
        ({"compress": "topkk:0.1"}, "did you mean 'topk'"),
        ({"devices": 3}, "a profile such as"),
        ({"churn": 3}, "Churn("),
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
    assert words in str(error.value) and len(str(error.value)) < 400
    assert next(iter(change)) in str(error.value) or "codec" in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Local(epoch=3), "Local: unknown argument 'epoch'; did you mean 'epochs'?"),
        (lambda: Evaluation(evry=3), "Evaluation: unknown argument 'evry'; did you mean 'every'?"),
        (lambda: FedAvg(server_l=1.0), "FedAvg: unknown argument 'server_l'; did you mean"),
        (lambda: TopK(rat=0.1), "TopK: unknown argument 'rat'; did you mean 'ratio'?"),
        (lambda: Checkpoint(every=3), "Checkpoint: unknown argument 'every'"),
    ],
)
def test_an_argument_that_there_is_not_is_one_sentence(make: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(words)


def test_a_model_that_cannot_be_made_without_arguments_is_said() -> None:
    words = r"model = Linear cannot be called without .*'in_features'.*model=lambda: Linear\(...\)"
    with pytest.raises(ConfigError, match=words):
        experiment(model=torch.nn.Linear).run()


def pairs(inputs: Any, targets: Any, **more: Any) -> dict[str, Any]:
    """A model of three inputs and two outputs, and two clients' data."""
    data = from_clients([(inputs, targets), (inputs, targets)], **more)
    return {"model": lambda: torch.nn.Linear(3, 2), "data": data, "cohort": 2}


ROWS, LABELS = torch.ones(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
SOFT = 0.9 * torch.eye(2)[LABELS] + 0.05  # of label smoothing, mixup or another model


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (ROWS.long(), LABELS, "integer inputs stay integers.*give floats, such as inputs.float()"),
        (ROWS, LABELS + 1, "the labels are 1 to 2, but classes are counted from 0: subtract 1"),
        ((ROWS, ROWS), LABELS, "client 0: inputs are 2 arrays of 6 samples.*joined"),
        ({"a": ROWS, "b": ROWS}, LABELS, "inputs are a dictionary of a, b.*joined"),
        (ROWS, torch.eye(2)[LABELS], r"every row has one 1: for classes give targets.argmax\(1\)"),
        (ROWS, SOFT, r"\[12, 2\], and every row sums to 1.*=torch.nn.functional.cross_entropy"),
    ],
)
def test_data_that_a_model_cannot_take_are_explained(inputs: Any, targets: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        experiment(**pairs(inputs, targets)).run()


def test_probabilities_as_targets_have_the_loss_that_is_named() -> None:
    pair = pairs(ROWS, SOFT)
    soft = experiment(**pair, objective=torch.nn.functional.cross_entropy).run().model
    own = experiment(**pair, objective=SquaredError()).run().model
    assert not torch.equal(soft.weight, own.weight)
    for targets in (SOFT - 0.05, 2 * SOFT, torch.cat([SOFT[:5], -SOFT[:1]])):  # plain numbers
        experiment(**pairs(ROWS, targets)).build()


@pytest.mark.parametrize(
    ("data", "change", "words"),
    [
        (
            pairs(ROWS, LABELS.float()) | {"model": lambda: torch.nn.Linear(3, 1)},
            {},
            "the targets are the real numbers 0.0, 1.0, so this is a regression",
        ),
        (
            pairs(ROWS, LABELS + 1) | {"model": lambda: torch.nn.Linear(3, 3)},
            {},
            "no sample is of class 0, .* subtract 1",
        ),
        (pairs(ROWS, LABELS), {"evaluate": Evaluation(target=0.9)}, "evaluate.target = 0.9 has no"),
        (
            pairs(ROWS, LABELS),
            {"aggregation": TrimmedMean(trim=0.3)},
            "trim = 0.3 leaves out none of the 2 updates .*; take a cohort of at least 4 clients",
        ),
    ],
)
def test_what_is_hardly_meant_is_said_before_the_run(
    data: dict[str, Any], change: dict[str, Any], words: str, caplog: Any
) -> None:
    experiment(**data, **change).build()
    assert re.search(words, caplog.text)
    caplog.clear()
    meant: dict[str, Any] = {"test": (ROWS, LABELS)}
    experiment(**pairs(ROWS, LABELS, **meant), evaluate=Evaluation(target=0.9)).build()
    regression = pairs(ROWS, LABELS.float()) | {"model": lambda: torch.nn.Linear(3, 1)}
    experiment(**regression, objective=SquaredError()).build()
    experiment(cohort=10, aggregation=TrimmedMean()).build()
    experiment(**pairs(ROWS, LABELS), aggregation=TrimmedMean(trim=0)).build()
    assert not caplog.records


def test_a_class_in_the_place_of_a_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give an instance, CrossEntropyLoss\(\)"):
        experiment(objective=torch.nn.CrossEntropyLoss).run()


def test_short_forms_are_the_long_ones() -> None:
    rows: list[dict[str, Any]] = []
    short = experiment(compress="topk:0.1", metrics=right, on_round=rows.append, seed=np.int64(3))
    whole = experiment(
        compress=Link(FieldCodec(TopK(ratio=0.1), Residual())), metrics={"right": right}, seed=3
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


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["loss"],
            "'loss': the column test_loss is that of the loss; give the metric another name",
        ),
        (["right", "loss"], "'loss': the column test_loss is that of the loss"),
        (["m", "m_ema"], "'m_ema': the column test_m_ema is that of the moving average of 'm'"),
        (["1", 1], "two of ['1', 1] have one name"),
    ],
)
def test_a_metric_with_the_name_of_another_column_is_refused(names: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment(metrics=dict.fromkeys(names, right))
    assert words in str(error.value)


def test_metrics_of_sub_models_have_other_names_than_sizes() -> None:
    metrics = dict.fromkeys(["top", "top@1"], right)
    sized = {"submodel": HeteroFL(), "capacities": [0.5, 1.0], "higher_is_better": True}
    with pytest.raises(ConfigError, match=r"'top@1': the column test_top@1 is that of 'top' of a"):
        experiment(metrics=metrics, **sized)
    row = experiment(metrics=metrics, higher_is_better=True, rounds=1).run().history[0]
    assert row["test_top"] == row["test_top@1"]
    kept = dict.fromkeys(["m_ema", "m", "loss_ema"], right)  # no other column has these
    row = experiment(metrics=kept, higher_is_better=True).run().history[-1]
    assert row["test_m_ema"] == row["test_m"] == row["test_loss_ema"] != row["test_m_ema_ema"]


def test_other_metrics_are_another_run(tmp_path: Path) -> None:
    experiment(metrics={"right": right}).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="metrics differ"):
        experiment(metrics={"wrong": right}, rounds=3).resume(tmp_path / "run")


def test_weights_that_torch_saved_are_said_to_be_no_safetensors_file(tmp_path):
    torch.save(mlp(64).state_dict(), tmp_path / "w.pt")
    with pytest.raises(DataError, match=r"give what torch\.load gives"):
        experiment(weights=tmp_path / "w.pt").net()


# ------------------------------------------------------------------------ lists, numpy's numbers
SIZES = digits(iid(10)).sizes
EACH = {
    "numpy clients": (
        {"cohort": [np.arange(3), [np.int64(4)]], "rounds": np.int32(2)},
        {"cohort": [[0, 1, 2], [4]]},
    ),
    "a numpy number": ({"cohort": np.int64(3)}, {"cohort": 3}),
    "a numpy share": ({"cohort": np.float64(0.3)}, {"cohort": 0.3}),
    "steps": ({"local": Local(steps=[2] * 10)}, {"local": Local(steps=np.int64(2))}),
    "steps of an array": ({"local": Local(steps=np.arange(1, 11))}, None),
    "rates": (
        {"local": Local(lr=[0.2, 0.05])},
        {"local": Local(lr=0.2, schedule=lambda round, step: 0.25 if round else 1.0)},
    ),
    "one rate": ({"local": Local(lr=np.array([0.2]))}, {"local": Local(lr=np.float32(0.2).item())}),
    "examples": ({"weighting": SIZES.tolist()}, {"weighting": "examples"}),
    "a tensor": ({"weighting": torch.full((10,), 3.0)}, {"weighting": np.full(10, 3)}),
}


@pytest.mark.parametrize("case", EACH)
def test_a_list_gives_the_bits_of_what_it_says(case: str) -> None:
    one, other = EACH[case]
    found = experiment(**one).run()
    if other is None:
        cohorts = [sorted(c) for c in map(experiment()._cohorts.of, range(2))]
        assert [row["steps"] for row in found.history] == [sum(c) + len(c) for c in cohorts]
        return
    wanted = experiment(**other).run()
    pairs = zip(found.model.parameters(), wanted.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs) or case == "one rate"
    assert [row["train_loss"] for row in found.history] == pytest.approx(
        [row["train_loss"] for row in wanted.history]
    )


def test_unequal_weights_are_the_weights_of_the_mean() -> None:
    heavy = [1e-9, 1.0, 1e-9, *[1.0] * 7]
    found = experiment(cohort=[[0, 1, 2]], weighting=heavy, rounds=1).run()
    alone = experiment(cohort=[[1]], rounds=1).run()
    pairs = zip(found.model.parameters(), alone.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Local(steps=[1, 2.5]), "steps must be a whole number"),
        (
            lambda: Local(steps=[]),
            "steps must be a whole number from 1 or none, or a list of one per client",
        ),
        (lambda: Local(steps=[3, 0]), "got (3, 0)"),
        (lambda: Local(steps="many"), "got 'many'"),
        (lambda: Local(lr=[0.1, "a"]), "lr must be in (0, inf), or a list of one per round"),
        (lambda: Local(lr=[[0.1]]), "got ((0.1,),)"),
        (lambda: experiment(local=Local(steps=[1, 2])).run(), "2 numbers for 10 clients"),
        (lambda: experiment(weighting=[1.0, 2.0]).run(), "2 numbers for 10 clients"),
        (lambda: experiment(weighting=[1.0] * 9 + [0.0]).run(), "numbers above 0, got 0.0"),
        (
            lambda: experiment(weighting=["a"] * 10).run(),
            "a list or table with a weight for each client, got ('a', ",
        ),
        (lambda: experiment(weighting=3).run(), '"examples", "uniform" or a list'),
        (
            lambda: experiment(cohort=[[0.5]]),
            "a list of lists of whole numbers or texts, got ((0.5,),)",
        ),
        (lambda: experiment(cohort=[[np.int64(10)]]), "names client 10; clients are numbered 0"),
        (
            lambda: experiment(cohort=np.array([0, 1])),
            "a list of lists of whole numbers or texts, got (0, 1)",
        ),
    ],
)
def test_a_list_that_cannot_be_is_one_sentence(make: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert words in str(error.value)


def test_the_last_rate_of_a_list_goes_on_and_that_is_said(caplog: Any) -> None:
    local = Local(lr=[0.2, 0.1])
    assert [local.rate(t, 0) for t in range(4)] == [0.2, 0.1, 0.1, 0.1]
    experiment(local=local, rounds=3).build()
    assert "local.lr has 2 learning rates for 3 rounds" in caplog.text


# ------------------------------------------------------------------------------- types of numbers
def federation(inputs: torch.dtype, targets: torch.dtype | None = None) -> FederatedData:
    """Three clients, with labels, or numbers of a type."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4, 20, 3, generator=draw)
    y = (x[..., 0] > 0).long() if targets is None else x.sum(2).to(targets)
    pairs = list(zip(x.to(inputs), y, strict=True))
    made = from_clients(pairs[:3], test=pairs[3], dtype=inputs)
    if targets is not None:
        object.__setattr__(made, "targets", made.targets.to(targets))
        object.__setattr__(made, "test_targets", made.test_targets.to(targets))
    return made


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_data_have_the_type_of_the_run(kind: str, given: torch.dtype) -> None:
    wanted = getattr(torch, kind)
    parts = {"cohort": 3, "model": lambda: torch.nn.Linear(3, 2), "dtype": kind}
    found = experiment(**parts, data=federation(given)).run()
    assert found.state.x.dtype == wanted
    if (given, wanted) != (torch.float64, torch.float32):  # rounding cannot be undone
        same = experiment(**parts, data=federation(wanted).astype(wanted)).run()
        torch.testing.assert_close(found.state.x, same.state.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("inputs", [torch.float32, torch.float64])
@pytest.mark.parametrize("targets", [torch.float32, torch.float64])
def test_targets_of_a_regression_have_it_too(inputs: torch.dtype, targets: torch.dtype) -> None:
    """Torch differentiates Huber's loss of one type only."""
    model = lambda: torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    parts = {"cohort": 3, "model": model, "objective": torch.nn.HuberLoss(reduction="none")}
    data = federation(inputs, targets)
    for kind in ("float32", "float64"):
        found = experiment(**parts, data=data, dtype=kind).run()
        assert str(found.state.x.dtype) == f"torch.{kind}"


def test_what_has_the_runs_type_is_not_copied() -> None:
    data = federation(torch.float64, torch.float64)
    assert experiment(data=data, dtype="float64", cohort=3).data is data
    x, y = torch.arange(12).view(3, 4) % 5, torch.tensor([0, 1, 1])
    tokens = from_clients([(x, y)] * 2)
    model = lambda: torch.nn.Sequential(
        torch.nn.Embedding(5, 2), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    made = experiment(data=tokens, model=model, dtype="float64", cohort=2)
    assert made.data is tokens and made.run().state.x.dtype == torch.float64
