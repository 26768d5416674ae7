"""Settings: what they default to, how changes apply, and what is refused in which words."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.aggregation import Krum
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, options
from fedloom.config import from_run, parse_override, resolve
from fedloom.config.help_texts import _NAMED, OPTIMISERS, TABLES, settings_in
from fedloom.config.overrides import NESTED, REGISTRIES, RUN, refuse_repeats
from fedloom.core.validation import Origin, check, fields_of
from fedloom.errors import ConfigError
from fedloom.evaluation.settings import Evaluation
from fedloom.experiment.experiment import Experiment
from fedloom.federation.attacks import Alie
from fedloom.federation.local import Local
from fedloom.federation.schedules import SCHEDULES, Exponential
from fedloom.objectives import MOON
from fedloom.recipes import RECIPES
from fedloom.storage.run_directory import Checkpoint
from fedloom.submodels import SUBMODELS
from tiny import small


def refused(
    *changes: str, source: str | Path = "digits", error: type[Exception] = ConfigError
) -> str:
    """The one line with which a configuration is refused, at the latest by the parts."""
    with pytest.raises(error) as caught:
        resolve(source, changes).experiment().net()
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------------- defaults
def test_a_setting_has_one_name_in_a_file_and_in_python() -> None:
    own = {f.name for f in dataclasses.fields(Experiment)} | {"server"}  # around the algorithm
    assert {*RUN, *resolve("digits").values} <= own
    made = resolve("digits").experiment()
    assert (made.checkpoint, made.churn) == (Checkpoint(), None)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithms_keys_are_the_options_of_the_zoo(name: str) -> None:
    values = resolve("digits", [f"algorithm={name}"]).values
    assert [*fields_of(ALGORITHMS[name])] == [*options(name)]
    defaults = {k: o.default for k, o in options(name).items() if o.default is not None}
    assert values["algorithm"] == {"name": name, **defaults}
    assert values["label"] == ALGORITHMS.label(name)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        (["objective=moon"], "FedAvg + MOON"),
        (["objective=fedmlb", "server=lookahead"], "FedAvg + FedMLB + lookahead"),
        (["objective=cross_entropy"], "FedAvg"),
        (["algorithm=scaffold", "submodel=heterofl", "objective=fedlc"], None),
        (["objective=masked_cross_entropy", "submodel=heterofl"], "FedAvg + HeteroFL"),
        (["compress=topk:0.1"], "FedAvg + topk"),
        (["compress=topk:0.1|int8"], "FedAvg + topk:0.1|int8"),
        (["compress=topk", "compress.down=qsgd"], "FedAvg + topk + qsgd down"),
        (["compress.down=qsgd"], "FedAvg + qsgd down"),
        (["algorithm=fedacg", "objective=fedntd", "label=mine"], "mine"),
    ],
)
def test_a_runs_label_names_its_parts(changes: list[str], label: str | None) -> None:
    found = resolve("digits", changes).values["label"]
    assert found == (label or "SCAFFOLD + FedLC + HeteroFL")


def test_a_changed_copy_of_a_run_is_called_anew_unless_it_had_a_name(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(resolve("digits", ["algorithm=fedacg"]).to_toml())
    assert resolve(file).values["label"] == "FedACG"
    assert resolve(file, ["objective=moon"]).values["label"] == "FedACG + MOON"
    assert resolve(file, ["objective=moon", "label=x"]).values["label"] == "x"
    file.write_text(resolve("digits", ["label=mine"]).to_toml())
    assert resolve(file, ["objective=moon"]).values["label"] == "mine"


def test_a_run_from_python_is_called_alike() -> None:
    method = make_algorithm("scaffold")
    assert small(method).called == "SCAFFOLD"
    assert small(method, objective=MOON()).called == "SCAFFOLD + MOON"
    rule = SUBMODELS["heterofl"]()
    assert small(method, objective=MOON(), submodel=rule).called == "SCAFFOLD + MOON + HeteroFL"
    assert small(method, objective=MOON(), name="mine").called == "mine"


@pytest.mark.parametrize("path", REGISTRIES)
def test_every_registered_part_can_be_configured(path: str) -> None:
    inner = set(NESTED.get(path, ()))  # tables of their own
    for make in REGISTRIES[path].values():
        assert set(fields_of(make, inner)) == set(inspect.signature(make).parameters) - inner


def test_every_setting_is_written_out() -> None:
    values = resolve("digits").values
    tables = {"algorithm", "model", "data", "local", "evaluate", "checkpoint", "objective"}
    assert set(values) == {*RUN, *tables} - {
        "channels_last",
        "metrics",
        "model_seed",
        "resident_bytes",
    }, "None"
    for table, owner in (("local", Local()), ("evaluate", Evaluation())):
        given = {f.name for f in dataclasses.fields(owner) if getattr(owner, f.name) is not None}
        assert given <= set(values[table]), "every default but those that are nothing"
    assert values["data"]["seed"] == values["seed"]


def test_local_work_is_one_epoch_if_nothing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'rounds = 1\nalgorithm = "fedavg"\nmodel = "mlp"\ndata = {name = "digits", '
        'partition = {name = "iid", clients = 4}}\n'
    )
    config = resolve(file)
    assert config.values["local"]["epochs"] == 1
    assert config.values["name"] == "run"
    assert config.experiment().local.work == (1, None)


# ---------------------------------------------------------------------- changes
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=1.0", 1.0),
        ("a=1e-3", 1e-3),
        ("a=.1", 0.1),
        ("a=-5.", -5.0),
        ("a=.5e-2", 0.005),
        ("a=.", "."),
        ("a=true", True),
        ("a=[1, 2]", [1, 2]),
        ('a="1"', "1"),
        ("a=fedacg", "fedacg"),
        ("a=workers:4", "workers:4"),
        ("a=/data/x=y", "/data/x=y"),
        ("a=2024-01-01", "2024-01-01"),
        ("a=1\nb=2", "1\nb=2"),
        ("a=", ""),
    ],
)
def test_values_are_read_as_toml_and_else_as_text(text: str, value: Any) -> None:
    path, found = parse_override(text)
    assert path == "a"
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["a", "=1", "", ".a=1", "a..b=1", "a.=1"])
def test_what_is_no_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_override(text)


def test_the_mean_is_what_a_run_without_the_table_has() -> None:
    plain, named = resolve("digits"), resolve("digits", ["aggregation=mean", "attack=none"])
    assert plain.values == named.values and "aggregation" not in plain.values
    changed = ["aggregation=krum", "aggregation.several=3", "attack=alie"]
    config = resolve("digits", changed)
    assert config.values["aggregation"] == {"name": "krum", "hostile": 0.2, "several": 3}
    assert config.values["attack"] == {"name": "alie", "share": 0.2}
    run = config.experiment()
    assert run.aggregation == Krum(several=3) and run.attack == Alie()
    run.label = run.name = ""
    assert run.called == config.values["label"] == "FedAvg + krum + alie"


def test_a_new_name_drops_the_options_of_the_old_one() -> None:
    config = resolve("digits", ["algorithm=fedavgm", "algorithm.beta=0.5", "algorithm=fedacg"])
    # names come first whatever the order, so beta is fedacg's here
    assert config.values["algorithm"] == {"name": "fedacg", "lam": 0.85, "beta": 0.5}
    file_like = resolve("fashion_dirichlet", ["local.schedule=cosine"])
    assert file_like.values["local"]["schedule"] == {
        "name": "cosine",
        "rounds": 100,
        "floor": 0.0,
        "warmup": 0,
    }


def test_the_same_name_keeps_its_options(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(resolve("digits", ["algorithm=fedacg", "algorithm.lam=0.5"]).to_toml())
    assert resolve(file, ["algorithm=fedacg"]).values["algorithm"]["lam"] == 0.5
    assert resolve(file, ["algorithm=fedavg"]).values["algorithm"] == {
        "name": "fedavg",
        "server_lr": 1.0,
    }


def test_the_order_of_changes_does_not_matter_between_names_and_options() -> None:
    changes = ["algorithm.lam=0.5", "algorithm=fedacg", "seed=3", "data.partition=iid"]
    assert resolve("digits", changes).values == resolve("digits", changes[::-1]).values


def test_another_partition_and_another_source_keep_what_they_share() -> None:
    iid = resolve("digits", ["data.partition=iid"]).values["data"]
    assert iid["partition"] == {"name": "iid", "clients": 50}
    mnist = resolve("digits", ["data=mnist", "data.alpha=0.7"]).values["data"]
    assert mnist["partition"] == {"name": "dirichlet", "alpha": 0.7, "clients": 50}
    assert "test_share" not in mnist


def test_shorthands() -> None:
    values = resolve(
        "digits", ["local.decay=0.99", "data.clients=10", "data.test_share=0.1"]
    ).values
    assert values["local"]["schedule"] == {"name": "exponential", "decay": 0.99, "step_decay": 1.0}
    assert values["data"]["partition"]["clients"] == 10
    assert values["data"]["test_share"] == 0.1
    again = resolve("digits", ["local.schedule=cosine", "local.decay=0.99"]).values
    assert again["local"]["schedule"]["name"] == "exponential"


def test_decay_in_a_file_is_an_exponential_schedule(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    text = resolve("digits").to_toml().replace('[local.schedule]\nname = "constant"\n', "")
    file.write_text(text.replace("[local]\n", "[local]\ndecay = 0.5\n"))
    assert resolve(file).experiment().local.schedule == Exponential(decay=0.5)


def test_steps_replace_epochs_and_the_reverse() -> None:
    assert resolve("digits", ["local.steps=3"]).experiment().local.work == (None, 3)
    assert resolve("digits", ["local.steps=3"]).experiment().local.epochs is None
    assert "are both given" in refused("local.steps=3", "local.epochs=1")


def test_none_is_nothing_and_survives_a_file(tmp_path: Path) -> None:
    config = resolve("digits", ["local.batch=none", "checkpoint.every_seconds=none"])
    file = tmp_path / "a.toml"
    file.write_text(config.to_toml())
    experiment = resolve(file).experiment()
    assert (experiment.local.batch, experiment.checkpoint.every_seconds) == (None, None)
    assert "clip" not in resolve("fashion_dirichlet", ["local.clip=none"]).values["local"]


def test_the_partition_follows_the_runs_seed_unless_it_has_its_own() -> None:
    assert resolve("digits", ["seed=5"]).values["data"]["seed"] == 5
    assert resolve("digits", ["seed=5", "data.seed=1"]).values["data"]["seed"] == 1


# ---------------------------------------------------------------------- round trips
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_written_configuration_is_read_back_as_itself(
    recipe: str, schedule: str, tmp_path: Path
) -> None:
    changes = [f"local.schedule={schedule}", "cohort=[[0, 1], [2]]", "local.clip=none"]
    config = resolve(recipe, changes)
    file = tmp_path / "a.toml"
    file.write_text(config.to_toml())
    assert resolve(file).values == config.values


def test_the_experiment_is_what_the_configuration_says() -> None:
    changes = ["algorithm=scaffold", "algorithm.option=1", "local.momentum=0.5", "dtype=float64"]
    changes += ["cohort=7", "weighting=uniform", "nonfinite=skip", "evaluate.every=5", "seed=9"]
    changes += ["checkpoint.every_rounds=4", "resident_bytes=1000", "engine=workers:2"]
    changes += ["local.lr=[0.2, 0.1]"]
    config = resolve("digits", changes)
    made = config.experiment()
    assert made.algorithm == ALGORITHMS["scaffold"](option=1)
    assert (made.local.momentum, made.local.epochs, made.local.batch) == (0.5, 2, 16)
    assert made.local.lr == (0.2, 0.1)
    lists = [f"{key}={[*range(1, 51)]}" for key in ("local.steps", "weighting")]
    each = resolve("digits", lists).experiment()
    assert each.local.steps == each.weighting == tuple(range(1, 51)) and each.local.epochs is None
    assert (made.cohort, made.weighting, made.nonfinite, made.seed) == (7, "uniform", "skip", 9)
    assert (made.evaluate.every, made.checkpoint.every_rounds, made.resident_bytes) == (5, 4, 1000)
    assert made.engine == "workers:2"
    assert made.net().dtype == made.data.inputs.dtype == torch.float64
    assert made.config == config.values


# ---------------------------------------------------------------------- errors


def test_a_file_is_named_with_table_key_and_value(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = resolve("digits").to_toml()
    for old, new, words in (
        ("lr = 0.1", 'lr = "fast"', ["mine.toml", "local.lr must be in (0, inf)", "'fast'"]),
        ("lr = 0.1", "lr = -1.0", ["mine.toml", "local.lr must be in (0, inf)", "-1.0"]),
        ("[local]", "[lokal]", ["mine.toml", "unknown key 'lokal'", "'local'"]),
        ("rounds = 150\n", "", ["mine.toml", "needs the key 'rounds'"]),
        ('[algorithm]\nname = "fedavg"', "[algorithm]", ["mine.toml", "algorithm.name is missing"]),
        ("seed = 0", "seed =", ["mine.toml", "is not TOML", "line"]),
    ):
        assert old in text
        file.write_text(text.replace(old, new, 1))
        said = refused(source=file)
        for word in words:
            assert word in said


def test_names_that_people_type_are_taken_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["batch_size=7", "learning_rate=0.3", "weight_decay=0.1", "optimizer=adam"]
    names += ["num_rounds=3", "num_clients=9", "clients_per_round=4", "local_epochs=2"]
    found = resolve("digits", names).values
    local = found["local"]
    assert (local["batch"], local["lr"], local["weight_decay"]) == (7, 0.3, 0.1)
    assert (local["optimiser"], local["epochs"]) == ("adam", 2)
    assert (found["rounds"], found["cohort"]) == (3, 4)
    assert found["data"]["partition"]["clients"] == 9
    theirs = resolve("digits", ["num_server_rounds=5", "fraction_fit=0.5", "random_state=6"]).values
    assert (theirs["rounds"], theirs["cohort"], theirs["seed"]) == (5, 0.5, 6)
    said = [r.getMessage() for r in caplog.records]
    assert (
        said[0] == "command line: batch_size is called local.batch" and len(said) == len(names) + 3
    )
    file = tmp_path / "a.toml"
    text = resolve("digits").to_toml().replace("\nbatch = 16", "\nbatch_size = 7")
    file.write_text(f"learning_rate = 0.3\n{text}".replace("\nlr = 0.1", ""))
    read = resolve(file).values["local"]
    assert (read["batch"], read["lr"]) == (7, 0.3)
    assert f"file '{file}': learning_rate is called local.lr" in caplog.text
    file.write_text(f"learning_rate = 0.3\n{text}")
    assert "learning_rate and local.lr are both given" in refused(source=file)
    with pytest.raises(ConfigError, match=r"give local\.lr two values"):
        refuse_repeats(["learning_rate=0.3", "local.lr=0.1"])
    refuse_repeats(["local.lr=nan"])  # which has a refusal of its own
    with pytest.warns(UserWarning, match="Local: batch_size is called batch"):
        assert Local(batch_size=3).batch == 3


def test_decay_and_a_schedule_together_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(resolve("digits").to_toml().replace("[local]\n", "[local]\ndecay = 0.5\n"))
    assert "local.decay and local.schedule" in refused(source=file)


# ---------------------------------------------------------------------- going on again
@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(resolve("digits", ["engine=workers:2"]).to_toml())
    return tmp_path


def test_only_what_leaves_the_numbers_alone_may_change(run: Path) -> None:
    changes = ["rounds=999", "engine=workers:1", "checkpoint.keep=5", "evaluate.target=0.5"]
    values = from_run(run, changes).values
    assert (values["rounds"], values["engine"]) == (999, "workers:1")
    assert (values["checkpoint"]["keep"], values["evaluate"]["target"]) == (5, 0.5)
    measured = ["evaluate.every=7", "evaluate.clients=false", "label=mine", "device=cpu"]
    assert from_run(run, [*measured, "seed=0"]).values["evaluate"]["every"] == 7, "as from Python"
    fixed = ("local.lr=1", "seed=1", "algorithm=fedacg", "evaluate.ema=0", "cohort=3")
    for change in (*fixed, "evaluate.validation=0.2", "data.seed=3", "evaluate={ema = 0.5}"):
        with pytest.raises(ConfigError, match="cannot change when a run goes on") as refusal:
            from_run(run, [change])
        assert change.partition("=")[0] in str(refusal.value)
    for engine in ("serial+onednn", "vectorised:2"):
        with pytest.raises(ConfigError, match=f"'{engine.replace('+', '.')}' cannot replace"):
            from_run(run, [f"engine={engine}"])
    for engine in ("serial", "workers:4", "auto", "auto+serial", "ranks+serial"):  # the same bits
        assert from_run(run, [f"engine={engine}"]).values["engine"] == engine


def test_a_run_of_a_device_that_is_not_here_goes_on_where_there_is_one(run: Path) -> None:
    file = run / "config.toml"
    file.write_text(file.read_text().replace('device = "auto"', 'device = "cuda:99"'))
    assert from_run(run, ["device=cpu"]).values["device"] == "cpu"


def test_more_rounds_are_given_as_the_number_in_all(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"rounds=\+50: .* give rounds=200 for 50 more"):
        from_run(run, ["rounds=+50"])


# ---------------------------------------------------------------------- the machinery
def test_types_come_from_the_signature() -> None:
    def make(a: int, b: tuple[int, ...] = (1,), c: float | None = 2.0) -> None: ...

    given: dict[str, Any] = {"a": 1, "b": [2, 3]}
    assert check(make, given, "", "a table", Origin("here")) == given | {"c": 2.0}
    assert check(make, {"a": 1, "c": 3}, "", "a table", Origin("here"))["c"] == 3.0
    assert check(make, {"a": 1, "c": "none"}, "", "a table", Origin("here"))["c"] == "none"
    with pytest.raises(ConfigError, match=r"needs the key 'a'; give t\.a="):
        check(make, {"b": [2, 3]}, "t", "a table", Origin("here"))


def test_a_cosine_lasts_as_long_as_the_run_unless_it_says_otherwise() -> None:
    def rounds(*changes: str) -> int:
        return int(resolve("digits", changes).values["local"]["schedule"]["rounds"])

    assert rounds("local.schedule=cosine", "rounds=70") == 70
    assert rounds("local.schedule=cosine", "rounds=70", "local.schedule.rounds=30") == 30


def test_a_new_codec_drops_the_feedback_that_went_with_the_old_one() -> None:
    def compress(*changes: str) -> dict[str, object]:
        return dict(resolve("cfedavg_fashion", changes).values.get("compress", {}))

    assert compress()["feedback"] == "residual"
    assert compress("compress=none") == {}
    assert compress("compress=fedpaq:7")["feedback"] == "forget"
    assert compress("compress=dropping:0.1")["feedback"] == "residual"
    assert compress("compress=qsgd", "compress.feedback=ef21")["feedback"] == "ef21"
    assert compress("compress.feedback=ef21")["feedback"] == "ef21"


# ------------------------------------------------------------------------------ words of settings
@pytest.mark.parametrize("name", TABLES)
def test_every_key_has_a_meaning_and_what_it_takes(name: str) -> None:
    found = settings_in(name)
    prefix = "" if name == "run" else f"{name}."
    assert [s.key for s in found] == [prefix + key for key in fields_of(TABLES[name], _NAMED)]
    assert all(s.about and s.allowed for s in found)


def test_defaults_are_those_of_a_configuration() -> None:
    values = resolve("digits", ["churn.active=25"]).values
    said = {s.key: s.default for name in ("churn", "checkpoint") for s in settings_in(name)}
    for table in ("churn", "checkpoint"):
        for key, value in values[table].items():
            if f"{table}.{key}" != "churn.active":
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                assert said[f"{table}.{key}"] == shown
    assert said["churn.active"] == "needed"


def test_local_optimisers_are_those_there_are() -> None:
    assert set(OPTIMISERS) == set(Local.__dataclass_fields__["optimiser"].metadata["hyper"].choices)
