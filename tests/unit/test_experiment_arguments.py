"""What an experiment takes from Python: short forms, and one line for everything else."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local
from fedloom.aggregation import TrimmedMean
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.commit import own_commit
from fedloom.data import digits, from_clients, iid
from fedloom.errors import ConfigError, DataError, FedloomError
from fedloom.models import mlp
from fedloom.objectives import SquaredError
from fedloom.submodels import HeteroFL
from support.refusals import refused
from tiny import clusters, small, weights


def experiment(**changes):
    """Two small rounds."""
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(64), "data": digits(iid(10))}
    return Experiment(**{**parts, "rounds": 2, "cohort": 3, **changes})


def right(outputs, targets):
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
        ({"rounds": True}, "from 1"),
        ({"seed": "3"}, "from 0"),
        ({"resident_bytes": "all"}, "from 1"),
        ({"local": {}}, "Local("),
        ({"evaluate": {}}, "Evaluation("),
        ({"checkpoint": 60}, "Checkpoint("),
        ({"objective": "mse"}, "loss(outputs, targets)"),
        ({"metrics": [3]}, "{name: f(outputs, targets)}"),
        ({"submodel": "fiarse"}, "a scheme such as"),
        ({"compress": 0.1}, "'topk:0.01'"),
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
def test_what_is_no_argument_is_refused_in_words(change, words):
    with pytest.raises(ConfigError) as error:
        experiment(**change)
    assert words in str(error.value) and len(str(error.value)) < 400
    assert next(iter(change)) in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Experiment("digits"), "by name, such as rounds=..., algorithm=..., model=..., da"),
        (lambda: Local(3), "Local: too many positional arguments; give arguments by name"),
        (lambda: Local(epoch=3), "Local: unknown argument 'epoch'; did you mean 'epochs'?"),
        (lambda: Evaluation(evry=3), "Evaluation: unknown argument 'evry'; did you mean 'every'?"),
        (lambda: FedAvg(server_l=1.0), "FedAvg: unknown argument 'server_l'; did you mean"),
        (lambda: TopK(rat=0.1), "TopK: unknown argument 'rat'; did you mean 'ratio'?"),
        (lambda: Checkpoint(every=3), "Checkpoint: unknown argument 'every'"),
        (lambda: Local(steps=[]), "steps must be a whole number from 1 or none, or a l"),
        (lambda: Local(steps=[3, 0]), "got (3, 0)"),
        (lambda: Local(lr=[0.1, "a"]), "lr must be in (0, inf), or a list of one per round"),
        (lambda: Local(lr=[[0.1]]), "got ((0.1,),)"),
        (lambda: experiment(local=Local(steps=[1, 2])).run(), "2 numbers for 10 clients"),
        (lambda: experiment(weighting=[1.0, 2.0]).run(), "2 numbers for 10 clients"),
        (lambda: experiment(weighting=[1.0] * 9 + [0.0]).run(), "numbers above 0, got 0.0"),
        (lambda: experiment(weighting=["a"] * 10).run(), "a weight for each client, got ('a', "),
        (lambda: experiment(weighting=3).run(), '"examples", "uniform" or a list'),
        (lambda: experiment(cohort=[[0.5]]), "whole numbers or texts, got ((0.5,),)"),
        (lambda: experiment(cohort=[[np.int64(10)]]), "client 10; clients are numbered 0"),
        (lambda: experiment(cohort=np.array([0, 1])), "whole numbers or texts, got (0, 1)"),
        (lambda: experiment(metrics={"loss": right}), "'loss': the column test_loss is"),
        (lambda: experiment(metrics={"m": right, "m_ema": right}), "'m_ema': the column test"),
        (lambda: experiment(metrics={"1": right, 1: right}), "two of ['1', 1] have one name"),
        (lambda: experiment(objective=nn.CrossEntropyLoss).run(), "CrossEntropyLoss()"),
    ],
)
def test_what_cannot_be_is_one_sentence(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value) and "\n" not in str(caught.value)


# ----------------------------------------------------------------------------- models and data
def pairs(inputs, targets, outputs=2, **more):
    """A model of three inputs and two outputs, and two clients' data."""
    data = from_clients([(inputs, targets), (inputs, targets)], **more)
    return {"model": lambda: nn.Linear(3, outputs), "data": data, "cohort": 2}


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
def test_data_that_a_model_cannot_take_are_explained(inputs, targets, words):
    with pytest.raises(DataError, match=words):
        experiment(**pairs(inputs, targets)).run()


def test_probabilities_as_targets_have_the_loss_that_is_named():
    soft = experiment(**pairs(ROWS, SOFT), objective=cross_entropy).run().model
    own = experiment(**pairs(ROWS, SOFT), objective=SquaredError()).run().model
    assert not torch.equal(soft.weight, own.weight)
    for targets in (SOFT - 0.05, 2 * SOFT, torch.cat([SOFT[:5], -SOFT[:1]])):  # plain numbers
        experiment(**pairs(ROWS, targets)).build()


TWO = pairs(ROWS, LABELS)
RATES = [0.1, 0.2, 0.3, 0.4, 0.1, 0.1, 0.05, 0.1, 0.1, 0.1]  # of ten clients


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (pairs(ROWS, LABELS.float(), 1), "real numbers 0.0, 1.0, so this is a regression"),
        (pairs(ROWS, LABELS + 1, 3), "no sample is of class 0, .* subtract 1"),
        (TWO | {"evaluate": Evaluation(target=0.9)}, "target = 0.9 has no"),
        (TWO | {"aggregation": TrimmedMean(trim=0.3)}, "none of the 2 updates .* at least 4"),
        ({"local": Local(lr=[0.2, 0.1]), "rounds": 3}, "lr has 2 learning rates for 3 rounds"),
        # these are meant
        (pairs(ROWS, LABELS, test=(ROWS, LABELS)) | {"evaluate": Evaluation(target=0.9)}, None),
        (pairs(ROWS, LABELS.float(), 1) | {"objective": SquaredError()}, None),
        ({"cohort": 10, "aggregation": TrimmedMean()}, None),
        (TWO | {"aggregation": TrimmedMean(trim=0)}, None),
        ({"local": Local(lr=RATES), "rounds": 10}, None),
    ],
)
def test_what_is_hardly_meant_is_said_before_the_run(parts, words, caplog):
    experiment(**parts).build()
    assert re.search(words, caplog.text) if words else not caplog.records


def test_labels_written_as_real_numbers_are_told_from_a_regression():
    with pytest.raises(FedloomError, match="equal ones; for classes give integers"):
        experiment(**pairs(ROWS, LABELS.float(), 2)).run()


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 3)

    def forward(self, x):
        return (self.a(x), 0) if self.training else self.a(x)


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_tuple_in_training_alone_is_named(engine):
    with pytest.raises(FedloomError, match="gives a tuple where the loss takes one tensor"):
        experiment(model=Pair, data=clusters(), engine=engine).run()


scripted = lambda: torch.jit.script(nn.Sequential(nn.Linear(64, 3)))
SCHEDULER = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: experiment(model=nn.Linear).run(), r"without .*'in_features'.*lambda: Linear\(.."),
        (lambda: experiment(model=scripted()).run(), "is a ScriptModule of torch.jit.* give the"),
        (lambda: Local(schedule=SCHEDULER), r"must be a function .* got \w+LR"),
        (lambda: Local(schedule=type(SCHEDULER)), r"must be a function .* got \w+LR"),
        (lambda: experiment(local=Local(lr=RATES), rounds=12).build(), "12 rounds and 10 clients"),
        (lambda: torch.inference_mode()(experiment().run)(), r"inference_mode.. is on"),
    ],
)
def test_what_is_torchs_and_no_part_of_a_run_is_refused_by_name(make, words):
    with pytest.raises(FedloomError, match=words):
        make()


def test_weights_that_torch_saved_are_said_to_be_no_safetensors_file(tmp_path):
    torch.save(mlp(64).state_dict(), tmp_path / "w.pt")
    refused(experiment(weights=tmp_path / "w.pt").net, "give what torch.load gives", kind=DataError)


# ------------------------------------------------------------------------------------ short forms
def test_short_forms_are_the_long_ones():
    rows = []
    short = experiment(compress="topk:0.1", metrics=right, on_round=rows.append, seed=np.int64(3))
    link = Link(FieldCodec(TopK(ratio=0.1), Residual()))
    one, other = short.run(), experiment(compress=link, metrics={"right": right}, seed=3).run()
    for column in ("test_right", "bytes_up"):
        assert one.history[-1][column] == other.history[-1][column]
    assert [row["round"] for row in rows] == [1, 2] and type(short.seed) is int


def test_a_metric_may_give_the_mean_as_a_number():
    mean = lambda outputs, targets: float(right(outputs, targets).mean())
    last = experiment(metrics={"mean": mean, "each": right}).run().history[-1]
    assert last["test_mean"] == pytest.approx(last["test_each"], rel=1e-6)


def test_metrics_of_sub_models_have_other_names_than_sizes():
    metrics = dict.fromkeys(["top", "top@1"], right)
    sized = {"submodel": HeteroFL(), "capacities": [0.5, 1.0], "higher_is_better": True}
    with pytest.raises(ConfigError, match=r"'top@1': the column test_top@1 is that of 'top' of a"):
        experiment(metrics=metrics, **sized)
    row = experiment(metrics=metrics, higher_is_better=True, rounds=1).run().history[0]
    assert row["test_top"] == row["test_top@1"]
    kept = dict.fromkeys(["m_ema", "m", "loss_ema"], right)  # no other column has these
    row = experiment(metrics=kept, higher_is_better=True).run().history[-1]
    assert row["test_m_ema"] == row["test_m"] == row["test_loss_ema"] != row["test_m_ema_ema"]


def test_looking_into_a_run_leaves_the_experiment_as_it_was(tmp_path):
    given = small(FedAvg(), engine="vectorised:2", rounds=2)
    given.run(tmp_path / "r")
    given.open(tmp_path / "r")
    with given.replay(tmp_path / "r", 1):
        pass
    assert given.engine == "vectorised:2" and given.resident_bytes == small(FedAvg()).resident_bytes


def test_going_on_under_other_instructions_is_said(tmp_path, monkeypatch, caplog):
    small(FedAvg(), rounds=1).run(tmp_path / "r")
    environment = lambda: json.loads((tmp_path / "r" / "environment.json").read_text())
    own = torch.backends.cpu.get_cpu_capability()
    assert environment()["instructions"] == own and environment()["processor"]
    assert environment()["commit"] == (own_commit() or "unknown")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NONE")
    with caplog.at_level(logging.WARNING):
        small(FedAvg(), rounds=2).resume(tmp_path / "r")
    assert f"was run with instructions {own} until round 1 and goes on with instr" in caplog.text
    assert environment()["instructions"] == "NONE"
    assert f"instructions {own}" in environment()["earlier"]


EACH = {
    "numpy clients": (
        {"cohort": [np.arange(3), [np.int64(4)]], "rounds": np.int32(2)},
        {"cohort": [[0, 1, 2], [4]]},
    ),
    "a numpy number": ({"cohort": np.int64(3)}, {"cohort": 3}),
    "a numpy share": ({"cohort": np.float64(0.3)}, {"cohort": 0.3}),
    "steps": ({"local": Local(steps=[2] * 10)}, {"local": Local(steps=np.int64(2))}),
    "rates": (
        {"local": Local(lr=[0.2, 0.05])},
        {"local": Local(lr=0.2, schedule=lambda round, step: 0.25 if round else 1.0)},
    ),
    "one rate": ({"local": Local(lr=np.array([0.25]))}, {"local": Local(lr=0.25)}),
    "examples": ({"weighting": digits(iid(10)).sizes.tolist()}, {"weighting": "examples"}),
    "a tensor": ({"weighting": torch.full((10,), 3.0)}, {"weighting": np.full(10, 3)}),
}


@pytest.mark.parametrize("case", EACH)
def test_a_list_gives_the_bits_of_what_it_says(case):
    one, other = (experiment(**parts).run() for parts in EACH[case])
    assert weights(one.model) == weights(other.model)
    losses = [[row["train_loss"] for row in result.history] for result in (one, other)]
    assert losses[0] == pytest.approx(losses[1])


def test_a_client_has_its_own_steps_and_a_round_its_own_rate():
    run = experiment(local=Local(steps=np.arange(1, 11)), cohort=[[0, 3, 5], [9, 1]])
    assert [row["steps"] for row in run.run().history] == [1 + 4 + 6, 10 + 2]
    rates = Local(lr=[0.2, 0.1])
    assert [rates.rate(t, 0) for t in range(4)] == [0.2, 0.1, 0.1, 0.1]


# ------------------------------------------------------------------------------- types of numbers
def federation(inputs, targets=None):
    """Three clients, with labels, or numbers of a type."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4, 20, 3, generator=draw)
    y = (x[..., 0] > 0).long() if targets is None else x.sum(2).to(targets)
    *clients, test = zip(x.to(inputs), y, strict=True)
    data = from_clients(clients, test=test, dtype=inputs)
    if targets is not None:
        object.__setattr__(data, "targets", data.targets.to(targets))
        object.__setattr__(data, "test_targets", data.test_targets.to(targets))
    return data


TYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("given", TYPES)
def test_data_have_the_type_of_the_run(kind, given):
    parts = {"cohort": 3, "model": lambda: nn.Linear(3, 2), "dtype": str(kind).split(".")[1]}
    one = experiment(**parts, data=federation(given)).run()
    assert one.state.x.dtype == kind
    if (given, kind) != (torch.float64, torch.float32):  # rounding cannot be undone
        other = experiment(**parts, data=federation(kind).astype(kind)).run()
        torch.testing.assert_close(one.state.x, other.state.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("inputs", TYPES)
@pytest.mark.parametrize("targets", TYPES)
def test_targets_of_a_regression_have_it_too(inputs, targets):
    """Torch differentiates Huber's loss of one type only."""
    model = lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    parts = {"cohort": 3, "model": model, "objective": nn.HuberLoss(reduction="none")}
    for kind in TYPES:
        run = experiment(**parts, data=federation(inputs, targets), dtype=kind).run()
        assert run.state.x.dtype == kind


def test_what_has_the_runs_type_is_not_copied():
    data = federation(torch.float64, torch.float64)
    assert experiment(data=data, dtype="float64", cohort=3).data is data
    tokens = from_clients([(torch.arange(12).view(3, 4) % 5, torch.tensor([0, 1, 1]))] * 2)
    model = lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 2))
    run = experiment(data=tokens, model=model, dtype="float64", cohort=2)
    assert run.data is tokens and run.run().state.x.dtype == torch.float64
