"""A column of a hospital's table means the same at every place of a federation."""

from __future__ import annotations

import csv
import json
import runpy

import numpy as np
import pytest
import tomli_w
import torch
from click.testing import CliRunner

from federations.places import Here, folder, site_file, table
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.core.validation import fields_of
from fedloom.core.vector import fields
from fedloom.data import SOURCES
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom_flower.clients import read_clients
from fedloom_flower.columns import SITES_OWN, inherited, with_rules
from fedloom_flower.folder import Folder
from fedloom_flower.server import serve
from fedloom_flower.sites import ClientSite, refuse_settings

WARDS = {
    "bonn": ["Chirurgie", "Innere"],
    "kiel": ["Innere", "Nephrologie"],
    "ulm": ["Gynäkologie", "Nephrologie"],
}
pandas = pytest.importorskip("pandas", reason="the extra tables is not installed")
ALL = ["Chirurgie", "Gynäkologie", "Innere", "Nephrologie"]
SETTINGS = """
name = "wards"
rounds = 2
cohort = 3
algorithm = "scaffold"
model = {name = "mlp", inputs = %d, hidden = [4], classes = 2}
local = {epochs = 1, batch = 8, lr = 0.1}
[data]
name = "table"
target = "outcome"
partition = "natural"
"""
RULES = """
class_names = ["home", "ward"]
rules = [
    {name = "age", fill = 50, mean = 50.0, std = 20.0},
    {name = "ward", kind = "one_hot", values = [
        "Chirurgie", "Gynäkologie", "Innere", "Nephrologie"]},
]
"""


def hospital(path, wards, rows, seed):
    """Rows of a hospital; of the first one the column age is empty."""
    draw = np.random.default_rng(seed)
    lines = ["age,ward,outcome"]
    for _ in range(rows):
        age, ward = int(draw.integers(20, 90)), str(draw.choice(wards))
        age = "" if seed == 0 or draw.random() < 0.1 else age
        lines.append(f"{age},{ward},{'ward' if age and age > 55 else 'home'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def sites(tmp_path):
    """A file for training, one for tests, and a mine.toml without rules, of each hospital."""
    files = []
    for i, (name, wards) in enumerate(WARDS.items()):
        train = hospital(tmp_path / f"{name}.csv", wards, 20 + 5 * i, i)
        test = hospital(tmp_path / "later" / f"{name}.csv", wards, 9 + i, 10 + i)
        files.append(site_file(tmp_path / f"{name}.toml", train, test))
    return files


@pytest.fixture(autouse=True)
def later(tmp_path):
    (tmp_path / "later").mkdir()


def settings(tmp_path, more=RULES, inputs=5):
    (tmp_path / "my.toml").write_text(SETTINGS % inputs + more, encoding="utf-8")
    return tmp_path / "my.toml"


def test_three_hospitals_alone_have_the_inputs_of_their_simulation(tmp_path, sites):
    fed = folder(tmp_path, resolve(settings(tmp_path)), evaluate="nodes")
    here = Here(fed, sites)
    ours = serve(fed, lambda roll: here)
    paths = [f"data.{k}={tmp_path}/{v}/*.csv" for k, v in (("path", "."), ("test", "later"))]
    alone = resolve(fed.run_file, [*paths, "engine=serial"])
    data = alone.data()
    for i in range(3):
        own = here.places[i]._node.fed.data
        assert torch.equal(own.inputs, data.client(i)[0])
        assert torch.equal(own.targets, data.client(i)[1])
        assert torch.equal(own.test_inputs, data.test_inputs[data.test_clients.of(i)])
    assert data.inputs[:20, 0].eq(0).all() and data.inputs[:, 1:].sum(0).gt(0).all()
    simulated = alone.experiment(data).run()
    assert all(torch.equal(v, fields(simulated.state)[k]) for k, v in fields(ours.state).items())
    assert ours.history[-1]["test_accuracy"] == pytest.approx(
        simulated.history[-1]["test_accuracy"], abs=1e-12
    )


def test_the_rules_of_the_servers_table_are_written_into_run_toml(tmp_path, sites):
    """Of its training rows, whether or not the clients' data are here too."""
    rules = f'path = "{tmp_path}/*.csv"\nmissing = "median"\nstandardise = true\n'
    rules += f'test = "{tmp_path}/later/*.csv"\ncolumns = {{ward = "one_hot"}}\n'
    config = resolve(settings(tmp_path, rules))
    with pytest.raises(CompositionError, match=r"data.columns is found in the rows of a table, by"):
        refuse_settings(config)
    for elsewhere in (True, False):
        made = with_rules(config, elsewhere)
        refuse_settings(made)
        (tmp_path / "run.toml").write_text(made.to_toml(), encoding="utf-8")
        again = resolve(tmp_path / "run.toml")
        assert again.values["data"]["class_names"] == ["home", "ward"]
        assert [rule["name"] for rule in again.values["data"]["rules"]] == ["age", "ward"]
        assert again.values["data"]["rules"][1]["values"] == ALL
        assert torch.equal(again.data().inputs, config.data().inputs)
        assert torch.equal(again.data().test_inputs, config.data().test_inputs)
    fed = folder(tmp_path, made, evaluate="nodes")
    data = again.data()
    for i, file in enumerate(sites):
        assert torch.equal(ClientSite(fed.node(i), file)._data.inputs, data.client(i)[0])

    numbers = resolve(settings(tmp_path, f'inputs = ["age"]\npath = "{tmp_path}/later/ulm.csv"'))
    assert with_rules(resolve("digits"), True).values == resolve("digits").values
    (tmp_path / "later" / "ulm.csv").write_text("age,outcome\n1,a\n2,b\n")
    found = with_rules(numbers, True).values["data"]
    assert found["rules"] == [{"name": "age", "kind": "number"}]
    assert found["class_names"] == ["a", "b"]
    (tmp_path / "later" / "ulm.csv").unlink()  # a table of numbers need not be at the server
    assert with_rules(numbers, True).values == numbers.values
    texts = resolve(settings(tmp_path, 'columns = {ward = "one_hot"}'))
    assert with_rules(texts, True).values == texts.values  # its sites can be described
    away = resolve(settings(tmp_path, 'columns = {ward = "one_hot"}\npath = "away.csv"'))
    says = r"no file away.csv \(seen from .*\); the columns' rules are found in it: "
    with pytest.raises(DataError, match=says):
        with_rules(away, True)


def test_deploy_new_and_check_say_what_a_table_becomes(tmp_path, sites):
    rules = f'path = "{tmp_path}/*.csv"\ncolumns = {{ward = "one_hot"}}\nmissing = "mean"\n'
    out = tmp_path / "fed"
    words = ["deploy", "new", str(settings(tmp_path, rules)), "--out", str(out), "--clients"]
    wrong = {"ulm,ulm,": "has the name 'ulm'", "0": "not in the range 1<=x<=1000", " ": "is empty"}
    for names, why in wrong.items():
        assert (told := CliRunner().invoke(cli, [*words, names])).exit_code == 2
        assert why in told.output
    assert (told := CliRunner().invoke(cli, [*words, "ulm, bonn,kiel"])).exit_code == 0, told.output
    for place in (".", "nodes/2"):
        named = read_clients(out / place / "clients.toml")
        assert [*map(named.label, range(3))] == ["ulm", "bonn", "kiel"]
    runs = [(out / place / "run.toml").read_text("utf-8") for place in (".", "nodes/0", "nodes/2")]
    assert runs[0] == runs[1] == runs[2] and "[[data.rules]]" in runs[0]
    assert ClientSite(Folder(out).node(2), sites[2])._data.inputs.shape == (30, 5)
    told = CliRunner().invoke(cli, ["deploy", "check", str(out)])
    assert told.exit_code == 0 and "target_shape, columns, classes" in told.output
    for place in (".", "nodes/2"):
        made = resolve(out / place / "run.toml").values
        old = {**made, "data": {**made["data"], "rules": [], "missing": "mean"}}
        (out / place / "run.toml").write_text(tomli_w.dumps(old), encoding="utf-8")
    told = CliRunner().invoke(cli, ["deploy", "check", str(out)])  # a node waits to be described
    assert told.exit_code == 0 and "the sites are still to be described" in told.output
    assert "what its people agree to" in told.output


@pytest.mark.parametrize("examples", [None, 20])
def test_a_site_with_other_rules_is_named_and_takes_no_part(tmp_path, sites, examples):
    sizes = [None if examples is None else 20 + 5 * i for i in range(3)]
    more = (
        "" if examples is None else f'path = "{tmp_path}/*.csv"\ntest = "{tmp_path}/later/*.csv"\n'
    )
    config = resolve(settings(tmp_path, more + RULES))
    classes = None if examples is None else 2
    fed = folder(tmp_path, config, sizes, classes=classes)
    file = fed.node(1).run_file
    text = file.read_text("utf-8")
    assert "50" in text
    file.write_text(text.replace("fill = 50", "fill = 51"), encoding="utf-8")
    here = Here(fed, sites)
    if examples is None:
        with pytest.raises(DataError, match=r"client 1 cannot join: .* run\.toml has other setti"):
            serve(fed, lambda roll: here)
        return
    serve(fed, lambda roll: here)
    found = json.loads((fed.run / "clients.jsonl").read_text().splitlines()[0])
    assert found["answered"] == [0, 2] and "other settings" in found["refused"]["1"]


def test_numbers_in_another_order_are_named(tmp_path):
    """Where nothing is agreed: three columns everywhere, but not the same ones."""
    config = resolve("digits", ["model=logistic", "model.inputs=3", "model.classes=3", "cohort=3"])
    files = [
        site_file(tmp_path / f"{i}.toml", table(tmp_path / f"{i}.csv", 9, seed=i)) for i in range(3)
    ]
    text = (tmp_path / "2.csv").read_text()
    (tmp_path / "2.csv").write_text(text.replace("a,b,c,", "a,c,b,"))
    fed = folder(tmp_path, config, evaluate="nodes")
    said = r"client 2 makes inputs of its rows by other rules than client 0 \(columns and their ord"
    with pytest.raises(DataError, match=said):
        serve(fed, lambda roll: Here(fed, files))


@pytest.mark.parametrize(
    ("more", "rules", "says"),
    [
        (
            'columns = {ward = "one_hot"}',
            "",
            "data.columns is found in the rows of a table, by eac",
        ),
        ("missing = 0", "", "data.missing is found in the rows of a table, by each site in its"),
        (
            "standardise = true",
            "",
            "data.standardise is found in the rows of a table, by each site",
        ),
        ("rules = []", "", "data.rules must be the same at all sites, so it is in run.toml"),
        ('text = "ward"', "", "the words of its texts would be numbered by this site's texts alo"),
        (
            'columns = {ward = "one_hot"}',
            RULES,
            "data.columns must be the same at all sites, so it",
        ),
        ('class_names = ["home"]', RULES, "data.class_names must be the same at all sites"),
    ],
)
def test_rules_of_one_site_alone_are_refused(tmp_path, sites, more, rules, says):
    config = resolve(settings(tmp_path, rules) if rules else "digits")
    fed = folder(tmp_path, config, evaluate="nodes")
    sites[1].write_text(sites[1].read_text() + 'target = "outcome"\n' + more)
    with pytest.raises(ConfigError) as found:
        ClientSite(fed.node(1), sites[1])
    assert says in str(found.value) and "\n" not in str(found.value)
    assert f"file '{sites[1]}'" in str(found.value)


def test_cells_of_a_site_that_are_not_agreed_are_named(tmp_path, sites):
    fed = folder(tmp_path, resolve(settings(tmp_path)), evaluate="nodes")
    file = tmp_path / "kiel.csv"
    whole = file.read_text("utf-8")
    for old, new, says in (
        (
            "Innere",
            "innere",
            "'innere' is none of the agreed values (Chirurgie, Gynäkologie, Inner",
        ),
        ("Innere", "", f"file '{sites[1]}', [data]: {file}, column 'ward', row"),
        ("ward,", "dept,", f"{file} has no column 'ward'; known: age, dept, outcome"),
        (
            "home",
            "hom",
            "class 'hom' is none of home, ward, those of the training data or of class",
        ),
    ):
        file.write_text(whole.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(DataError) as found:
            ClientSite(fed.node(1), sites[1])
        assert says in str(found.value) and "\n" not in str(found.value)
    file.write_text(whole, encoding="utf-8")
    sites[1].write_text('[data]\nname = "folders"\npath = "."\n')
    with pytest.raises(ConfigError, match=r"data 'folders' has no columns, and run\.toml has rul"):
        ClientSite(fed.node(1), sites[1])


def test_classes_are_not_numbered_by_what_one_site_has(tmp_path, sites):
    """Where nodes do not join, nothing else would say that "ward" is 0 at this site."""
    (tmp_path / "kiel.csv").write_text("age,outcome\n60,ward\n61,ward\n")
    sites[1].write_text(
        f'[data]\nname = "table"\npath = "{tmp_path}/kiel.csv"\ntarget = "outcome"\n'
    )
    config = resolve("digits", ["data.clients=3"])
    fed = folder(tmp_path, config, [20, 2, 30], classes=2)
    with pytest.raises(DataError, match="client 1 has the 1 classes ward, and clients"):
        ClientSite(fed.node(1), sites[1])


def test_common_scale_is_of_numbers_alone(tmp_path, sites):
    """As in `table`; the sums of categories, which count rows, do not leave a site."""
    fed = folder(tmp_path, resolve(settings(tmp_path)), evaluate="nodes", standardise=True)
    here = Here(fed, sites)
    serve(fed, lambda roll: here)
    agreed = json.loads(fed.agreement_file.read_text())
    assert agreed["mean"][1:] == [0] * 4 and agreed["deviation"][1:] == [1] * 4
    assert agreed["class_names"] == ["home", "ward"]
    whole = torch.cat([here.places[i]._node.fed.data.inputs for i in range(3)])
    assert whole[:, 0].double().mean().abs() < 1e-6 and set(whole[:, 1:].unique().tolist()) == {
        0,
        1,
    }
    age, ward = json.loads((fed.run / "partition.json").read_text())["inputs"]["rules"]
    assert age["mean"] == 50 + 20 * agreed["mean"][0] and age["std"] == 20 * agreed["deviation"][0]
    assert len(ward["values"]) == 4


@pytest.mark.parametrize("standardise", [False, True])
def test_an_export_takes_the_tables_of_the_sites(tmp_path, sites, standardise):
    """Its script scores their test rows as the nodes did; the server's own are others."""
    how = {"evaluate": "nodes", "standardise": standardise}
    mine = f'path = "{tmp_path}/*.csv"\ntest = "{tmp_path}/later/u*.csv"\n'
    fed = folder(tmp_path, resolve(settings(tmp_path, mine + RULES)), **how)
    ended = serve(fed, lambda roll: Here(fed, sites))
    told = CliRunner().invoke(cli, ["export", str(fed.run)])
    assert told.exit_code == 0, told.output
    assert "not checked: the nodes measured it, on test rows that are not here" in told.output
    made = runpy.run_path(str(fed.run / "export" / "predict.py"))
    about = made["about"]()
    assert about["inputs"]["columns"] == ["age", "ward"] and about["said"] == ended.last
    frames = [pandas.read_csv(tmp_path / "later" / f"{name}.csv") for name in WARDS]
    whole = pandas.concat(frames, ignore_index=True)
    targets = [about["classes"].index(outcome) for outcome in whole["outcome"]]
    assert made["score"](whole, targets) == pytest.approx(ended.last, abs=1e-12)
    with open(tmp_path / "later" / "ulm.csv", encoding="utf-8", newline="") as file:
        assert made["predict"](list(csv.DictReader(file))) == made["predict"](frames[2])
    assert about["samples"] == len(whole) and set(made["predict"](whole)) <= {"home", "ward"}


@pytest.mark.parametrize("name", [*SOURCES])
def test_every_key_of_data_is_a_sites_own_or_comes_from_run_toml(name):
    """A new key of any data set comes from run.toml, unless it is named as a site's own."""
    others = {"date", "test_from", "test_share", "test"}
    keys = {"name", "tests", *fields_of(SOURCES[name])} - others
    run = {key: f"run's {key}" for key in keys} | {"name": name}
    site = inherited({"name": name}, run)
    assert site == {key: value for key, value in run.items() if key not in SITES_OWN}
    every = dict.fromkeys(keys, "1") | {"name": name}
    assert inherited(every, run) == every
    assert inherited({"name": "another"}, run) == {"name": "another"}


def test_a_sites_way_to_hold_out_test_rows_replaces_that_of_run_toml():
    dates, share = {"date": "day", "test_from": "2024-01-01"}, {"test_share": 0.2, "test_seed": 3}
    for site, run, left in (
        ({}, dates, dates),
        ({"date": "Datum"}, dates, dates | {"date": "Datum"}),
        ({"test": "later.csv"}, share, {"test": "later.csv"}),
        ({"test_share": 0.5}, dates, {"test_share": 0.5}),
        ({"test_seed": 4}, share, share | {"test_seed": 4}),
    ):
        assert inherited(site | {"name": "table"}, run | {"name": "table"}) == left | {
            "name": "table"
        }


def test_no_site_trains_on_the_rows_that_a_date_keeps_for_testing(tmp_path):
    """The trial's training and test rows, at each node."""
    files = []
    for i, name in enumerate(WARDS):
        days = [f"20{20 + row % 5}-03-0{i + 1}" for row in range(20 + i)]
        rows = [f"{day},{row},{row % 2}" for row, day in enumerate(days)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["day,age,outcome", *rows]) + "\n")
        files.append(site_file(tmp_path / f"{name}.toml", tmp_path / f"{name}.csv"))
    rules = 'rules = [{name = "age", fill = 50}]\ndate = "day"\ntest_from = "2024-01-01"\n'
    config = resolve(settings(tmp_path, rules, inputs=1))
    trial = resolve(settings(tmp_path, f'{rules}path = "{tmp_path}/*.csv"', inputs=1)).data()
    assert trial.sizes.tolist() == [16, 17, 18]
    fed = folder(tmp_path, config, evaluate="nodes")
    here = Here(fed, files)
    ours = serve(fed, lambda roll: here)
    for i in range(3):
        own = here.places[i]._node.fed.data
        assert torch.equal(own.inputs, trial.client(i)[0])
        assert torch.equal(own.test_inputs, trial.test_inputs[trial.test_clients.of(i)])
    assert ours.history[-1]["test_accuracy"] >= 0


def test_nodes_without_a_test_row_are_not_asked_to_measure(tmp_path, sites):
    for file in sites:
        file.write_text("\n".join(file.read_text().splitlines()[:3]) + "\n")  # without its test
    fed = folder(tmp_path, resolve(settings(tmp_path)), evaluate="nodes")
    with pytest.raises(DataError, match="no site has test rows, so no node can measure") as found:
        serve(fed, lambda roll: Here(fed, sites))
    assert "\n" not in str(found.value) and not fed.agreement_file.exists()
