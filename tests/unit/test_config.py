"""Settings: what they default to, how changes apply, and what is refused in which words."""

import inspect

import pytest
import torch

from fedloom.aggregation import Krum
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, options
from fedloom.config import from_run, parse_override, resolve
from fedloom.config.help_texts import OPTIMISERS, TABLES, settings_in
from fedloom.config.overrides import NESTED, REGISTRIES, RUN, refuse_repeats
from fedloom.core.layout import Layout
from fedloom.core.validation import Origin, check, fields_of
from fedloom.errors import ConfigError
from fedloom.federation.attacks import Alie
from fedloom.federation.local import Local
from fedloom.federation.schedules import SCHEDULES, Exponential
from fedloom.models import MODELS
from fedloom.objectives import MOON
from fedloom.recipes import RECIPES
from fedloom.submodels import SUBMODELS
from tiny import small


def values(*changes, source="digits"):
    return resolve(source, changes).values


def refused(*changes, source="digits"):
    """The one line with which a configuration is refused, at the latest by the parts."""
    with pytest.raises(ConfigError) as caught:
        resolve(source, changes).experiment().net()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    """A file with the settings of digits."""
    (tmp_path / "mine.toml").write_text(resolve("digits").to_toml())
    return tmp_path / "mine.toml"


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


# ---------------------------------------------------------------------- names and defaults
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithms_keys_are_the_options_of_the_zoo(name):
    own = values(f"algorithm={name}")
    assert [*fields_of(ALGORITHMS[name])] == [*options(name)]
    defaults = {k: o.default for k, o in options(name).items() if o.default is not None}
    assert own["algorithm"] == {"name": name, **defaults}
    assert own["label"] == ALGORITHMS.label(name)


@pytest.mark.parametrize("path", REGISTRIES)
def test_every_registered_part_can_be_configured(path):
    inner = set(NESTED.get(path, ()))  # tables of their own
    for make in REGISTRIES[path].values():
        assert set(fields_of(make, inner)) == set(inspect.signature(make).parameters) - inner


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ("objective=moon", "FedAvg + MOON"),
        ("objective=fedmlb server=lookahead", "FedAvg + FedMLB + lookahead"),
        ("objective=cross_entropy", "FedAvg"),
        ("algorithm=scaffold submodel=heterofl objective=fedlc", "SCAFFOLD + FedLC + HeteroFL"),
        ("objective=masked_cross_entropy submodel=heterofl", "FedAvg + HeteroFL"),
        ("compress=topk:0.1", "FedAvg + topk"),
        ("compress=topk:0.1|int8", "FedAvg + topk:0.1|int8"),
        ("compress=topk compress.down=qsgd", "FedAvg + topk + qsgd down"),
        ("compress.down=qsgd", "FedAvg + qsgd down"),
        ("algorithm=fedacg objective=fedntd label=mine", "mine"),
    ],
)
def test_a_runs_label_names_its_parts(changes, label):
    assert values(*changes.split())["label"] == label


def test_a_changed_copy_of_a_run_is_called_anew_unless_it_had_a_name(file):
    file.write_text(resolve("digits", ["algorithm=fedacg"]).to_toml())
    for changes, label in (
        ([], "FedACG"),
        (["objective=moon"], "FedACG + MOON"),
        (["objective=moon", "label=x"], "x"),
    ):
        assert values(*changes, source=file)["label"] == label
    file.write_text(resolve("digits", ["label=mine"]).to_toml())
    assert values("objective=moon", source=file)["label"] == "mine"


def test_a_run_from_python_is_called_alike():
    parts = {"objective": MOON(), "submodel": SUBMODELS["heterofl"]()}
    called = lambda **parts: small(make_algorithm("scaffold"), **parts).called
    assert (called(), called(**parts)) == ("SCAFFOLD", "SCAFFOLD + MOON + HeteroFL")
    assert called(objective=MOON(), name="mine") == "mine"


def test_local_work_is_one_epoch_if_nothing_is_said(file):
    file.write_text(
        'rounds = 1\nalgorithm = "fedavg"\nmodel = "mlp"\ndata = {name = "digits", '
        'partition = {name = "iid", clients = 4}}\n'
    )
    config = resolve(file)
    assert config.values["local"]["epochs"] == 1 and config.values["name"] == "mine"
    assert config.experiment().local.work == (1, None)


# ---------------------------------------------------------------------- changes
READ = {"1": 1, "1.0": 1.0, "1e-3": 1e-3, ".1": 0.1, "-5.": -5.0, ".5e-2": 0.005, "true": True}
READ |= {"[1, 2]": [1, 2], '"1"': "1"}
READ |= {text: text for text in ("", ".", "fedacg", "/data/x=y", "2024-01-01", "1\nb=2")}


@pytest.mark.parametrize(("text", "value"), READ.items())
def test_values_are_read_as_toml_and_else_as_text(text, value):
    path, parsed = parse_override(f"a={text}")
    assert (path, parsed, type(parsed)) == ("a", value, type(value))


@pytest.mark.parametrize("text", ["a", "=1", "", ".a=1", "a..b=1", "a.=1"])
def test_what_is_no_key_and_value_is_refused(text):
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_override(text)


COSINE = {"name": "cosine", "rounds": 100, "floor": 0.0, "warmup": 0}
CHANGES = {
    # names come first whatever the order, so beta is fedacg's
    "algorithm=fedavgm algorithm.beta=0.5 algorithm=fedacg": {
        "algorithm": {"name": "fedacg", "lam": 0.85, "beta": 0.5}
    },
    "data.partition=iid": {"data.partition": {"name": "iid", "clients": 50}},
    "data=mnist data.alpha=0.7": {
        "data.partition": {"name": "dirichlet", "alpha": 0.7, "clients": 50},
        "data.test_share": None,
    },
    "local.decay=0.99 data.clients=10 data.test_share=0.1": {
        "local.schedule": {"name": "exponential", "decay": 0.99, "step_decay": 1.0},
        "data.partition.clients": 10,
        "data.test_share": 0.1,
    },
    "local.schedule=cosine local.decay=0.99": {"local.schedule.name": "exponential"},
    "local.schedule=cosine rounds=70": {"local.schedule.rounds": 70},
    "local.schedule=cosine rounds=70 local.schedule.rounds=30": {"local.schedule.rounds": 30},
    "seed=5": {"data.seed": 5},
    "seed=5 data.seed=1": {"data.seed": 1},
    "aggregation=mean attack=none": {"aggregation": None, "attack": None},
    "aggregation=krum aggregation.several=3 attack=alie": {
        "aggregation": {"name": "krum", "hostile": 0.2, "several": 3},
        "attack": {"name": "alie", "share": 0.2},
        "label": "FedAvg + krum + alie",
    },
    "fashion_dirichlet local.schedule=cosine": {"local.schedule": COSINE},
    "fashion_dirichlet local.clip=none": {"local.clip": None},
    # a new codec drops the feedback that went with the old one
    "cfedavg_fashion": {"compress.feedback": "residual"},
    "cfedavg_fashion compress=none": {"compress": None},
    "cfedavg_fashion compress=fedpaq:7": {"compress.feedback": "forget"},
    "cfedavg_fashion compress=dropping:0.1": {"compress.feedback": "residual"},
    "cfedavg_fashion compress=qsgd compress.feedback=ef21": {"compress.feedback": "ef21"},
    "cfedavg_fashion compress.feedback=ef21": {"compress.feedback": "ef21"},
}


@pytest.mark.parametrize("changes", CHANGES)
def test_what_a_change_makes_of_the_settings(changes):
    words = changes.split()
    source = "digits" if "=" in words[0] else words.pop(0)
    for path, wanted in CHANGES[changes].items():
        value = values(*words, source=source)
        for key in path.split("."):
            value = value.get(key) if value else None
        assert value == wanted, path


def test_the_order_of_changes_does_not_matter_between_names_and_options():
    changes = ["algorithm.lam=0.5", "algorithm=fedacg", "seed=3", "data.partition=iid"]
    assert values(*changes) == values(*changes[::-1])


def test_the_same_name_keeps_its_options(file):
    file.write_text(resolve("digits", ["algorithm=fedacg", "algorithm.lam=0.5"]).to_toml())
    assert values("algorithm=fedacg", source=file)["algorithm"]["lam"] == 0.5
    other = values("algorithm=fedavg", source=file)["algorithm"]
    assert other == {"name": "fedavg", "server_lr": 1.0}


def test_steps_replace_epochs_and_none_is_nothing_in_a_file_too(file):
    steps = resolve("digits", ["local.steps=3"]).experiment().local
    assert steps.work == (None, 3) and steps.epochs is None
    assert "are both given" in refused("local.steps=3", "local.epochs=1")
    config = resolve("digits", ["local.batch=none", "checkpoint.every_seconds=none"])
    file.write_text(config.to_toml())
    experiment = resolve(file).experiment()
    assert (experiment.local.batch, experiment.checkpoint.every_seconds) == (None, None)


def test_decay_in_a_file_is_an_exponential_schedule_and_refused_beside_one(file):
    edit(file, "[local]\n", "[local]\ndecay = 0.5\n")
    assert "local.decay and local.schedule" in refused(source=file)
    edit(file, '[local.schedule]\nname = "constant"\n', "")
    assert resolve(file).experiment().local.schedule == Exponential(decay=0.5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_written_configuration_is_read_back_as_itself(recipe, schedule, file):
    changes = [f"local.schedule={schedule}", "cohort=[[0, 1], [2]]", "local.clip=none"]
    config = resolve(recipe, changes)
    file.write_text(config.to_toml())
    assert values(source=file) == config.values


def test_the_experiment_is_what_the_configuration_says():
    changes = ["algorithm=scaffold", "algorithm.option=1", "local.momentum=0.5", "dtype=float64"]
    changes += ["cohort=7", "weighting=uniform", "nonfinite=skip", "evaluate.every=5", "seed=9"]
    changes += ["checkpoint.every_rounds=4", "resident_bytes=1000", "engine=workers:2"]
    changes += ["local.lr=[0.2, 0.1]", "aggregation=krum", "aggregation.several=3", "attack=alie"]
    config = resolve("digits", changes)
    run = config.experiment()
    local = run.local
    assert run.algorithm == ALGORITHMS["scaffold"](option=1)
    assert (local.momentum, local.epochs, local.batch, local.lr) == (0.5, 2, 16, (0.2, 0.1))
    assert (run.cohort, run.weighting, run.nonfinite, run.seed) == (7, "uniform", "skip", 9)
    assert (run.evaluate.every, run.checkpoint.every_rounds, run.resident_bytes) == (5, 4, 1000)
    assert (run.engine, run.aggregation, run.attack) == ("workers:2", Krum(several=3), Alie())
    assert run.net().dtype == run.data.inputs.dtype == torch.float64
    assert run.config == config.values
    run.label = run.name = ""
    assert run.called == config.values["label"]
    lists = [f"{key}={[*range(1, 51)]}" for key in ("local.steps", "weighting")]
    each = resolve("digits", lists).experiment()
    assert each.local.steps == each.weighting == tuple(range(1, 51)) and each.local.epochs is None


# ---------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lr = 0.1", 'lr = "fast"', ["local.lr must be in (0, inf)", "'fast'"]),
        ("[local]", "[lokal]", ["unknown key 'lokal'", "'local'"]),
        ("rounds = 150\n", "", ["needs the key 'rounds'"]),
        ('[algorithm]\nname = "fedavg"', "[algorithm]", ["algorithm.name is missing"]),
        ("seed = 0", "seed =", ["is not TOML", "line"]),
    ],
)
def test_a_file_is_named_with_table_key_and_value(old, new, words, file):
    edit(file, old, new)
    said = refused(source=file)
    assert all(word in said for word in ["mine.toml", *words])


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        *(("batch_size=7", "local.batch"), ("learning_rate=0.3", "local.lr")),
        *(("optimizer=adam", "local.optimiser"), ("num_rounds=3", "rounds")),
        *(("num_clients=9", "data.partition.clients"), ("fraction_fit=0.5", "cohort")),
        *(("local.batch_size=7", "batch"), ("local.optimizer=adam", "optimiser")),
    ],
)
def test_names_of_other_systems_are_answered_with_ours(typed, ours):
    assert f"did you mean '{ours}'" in refused(typed)


def test_one_key_has_one_value():
    with pytest.raises(ConfigError, match=r"give local\.lr two values"):
        refuse_repeats(["local.lr=0.3", "local.lr=0.1"])
    refuse_repeats(["local.lr=nan"])  # which has a refusal of its own
    with pytest.raises(ConfigError, match="unknown argument 'batch_size'; did you mean 'batch'"):
        Local(batch_size=3)


def test_types_come_from_the_signature():
    def make(a: int, b: tuple[int, ...] = (1,), c: float | None = 2.0) -> None: ...

    checked = lambda given, path="": check(make, given, path, "a table", Origin("here"))
    assert checked({"a": 1, "b": [2, 3]}) == {"a": 1, "b": [2, 3], "c": 2.0}
    assert checked({"a": 1, "c": 3})["c"] == 3.0 and checked({"a": 1, "c": "none"})["c"] == "none"
    with pytest.raises(ConfigError, match=r"needs the key 'a'; give t\.a="):
        checked({"b": [2, 3]}, "t")


# ---------------------------------------------------------------------- going on again
@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.toml").write_text(resolve("digits", ["engine=workers:2"]).to_toml())
    return tmp_path


def test_only_what_leaves_the_numbers_alone_may_change(run):
    changes = ["rounds=999", "engine=workers:1", "checkpoint.keep=5", "evaluate.target=0.5"]
    changes += ["evaluate.every=7", "evaluate.clients=false", "label=mine", "device=cpu", "seed=0"]
    own = from_run(run, changes).values
    assert (own["rounds"], own["engine"], own["checkpoint"]["keep"]) == (999, "workers:1", 5)
    assert (own["evaluate"]["target"], own["evaluate"]["every"]) == (0.5, 7)
    for engine in ("serial", "workers:4", "auto", "auto+serial", "ranks+serial"):  # the same bits
        assert from_run(run, [f"engine={engine}"]).values["engine"] == engine
    file = run / "config.toml"
    edit(file, 'device = "auto"', 'device = "cuda:99"')  # which is not here
    assert from_run(run, ["device=cpu"]).values["device"] == "cpu"


FIXED = ["local.lr=1", "seed=1", "algorithm=fedacg", "cohort=3", "data.seed=3"]
FIXED += ["evaluate.validation=0.2", "evaluate.ema=0", "evaluate={ema = 0.5}"]


@pytest.mark.parametrize("change", FIXED)
def test_what_decides_the_numbers_cannot_change(change, run):
    with pytest.raises(ConfigError, match="cannot change when a run goes on") as caught:
        from_run(run, [change])
    assert change.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("engine=serial+onednn", "'serial.onednn' cannot replace"),
        ("engine=vectorised:2", "'vectorised:2' cannot replace"),
        ("rounds=+50", r"rounds=\+50: .* give rounds=200 for 50 more"),
    ],
)
def test_other_bits_are_said_with_a_cure(change, said, run):
    with pytest.raises(ConfigError, match=said):
        from_run(run, [change])


@pytest.mark.parametrize("name", TABLES)
def test_every_key_has_a_meaning_and_what_it_takes(name):
    settings = settings_in(name)
    prefix = "" if name == "run" else f"{name}."
    tables = ("schedule", "passes")  # within local, which are told by themselves
    assert [s.key for s in settings] == [prefix + key for key in fields_of(TABLES[name], tables)]
    assert all(s.about and s.allowed for s in settings)


def test_defaults_and_optimisers_in_words_are_those_of_a_configuration():
    own = values("churn.active=25")
    del own["churn"]["active"]
    said = {s.key: s.default for name in ("churn", "checkpoint") for s in settings_in(name)}
    assert said.pop("churn.active") == "needed"
    for table in ("churn", "checkpoint"):
        for key, value in own[table].items():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            assert said[f"{table}.{key}"] == shown
    assert set(OPTIMISERS) == set(Local.__dataclass_fields__["optimiser"].metadata["hyper"].choices)


# ---------------------------------------------------------------------------------------- recipes
CLASSES = {"cifar100": 100, "femnist": 62, "shakespeare": 80, "wikitext2": 33_278, "ag_news": 4}
CLASSES |= {"flamby_heart": 1, "flamby_tcga": 1, "tiny_imagenet": 200, "celeba": 2, "heart": 2}
CLASSES |= {"shapes": 3, "fafed_wikitext2": 33_278}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_plain_settings_whose_model_has_a_class_for_every_label(name):
    recipe = RECIPES[name]()
    assert recipe == RECIPES[name]() and recipe is not RECIPES[name]() and RECIPES[name].about
    tables = {"algorithm", "model", "data", "local", "evaluate", "submodel", "compress"}
    assert set(recipe) <= {*RUN, *tables, "objective", "churn"}
    own = values(source=name)
    assert own["name"] == name and own["evaluate"]["target"] > 0
    assert own["data"].get("part", "train") == "train", "what the public download has"
    model = MODELS[own["model"].pop("name")](**own["model"])
    classes = CLASSES.get(name) or CLASSES.get(own["data"]["name"], 10)
    assert Layout.of(list(model.named_parameters())).shapes[-1] == (classes,)


def test_fashion_follows_fedacgs_protocol():
    own = values(source="fashion_dirichlet")
    local = own["local"]
    assert own["data"]["partition"] == {"name": "dirichlet", "alpha": 0.3, "clients": 100}
    assert own["cohort"] == 0.05
    assert (local["epochs"], local["batch"], local["lr"]) == (5, 50, 0.1)
    assert (local["clip"], local["weight_decay"]) == (10, 1e-3)
    assert local["schedule"] == {"name": "exponential", "decay": 0.998, "step_decay": 1.0}


@pytest.mark.slow
def test_the_demo_tells_methods_apart():
    reached = {}
    for name in ("fedavg", "fedacg"):
        summary = resolve("digits", [f"algorithm={name}"]).experiment().run().summary
        reached[name] = summary["rounds_to_target"]
    assert reached["fedacg"] is not None
    assert reached["fedavg"] is None or reached["fedavg"] > reached["fedacg"]
