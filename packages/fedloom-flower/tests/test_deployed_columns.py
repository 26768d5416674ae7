"""A column of a hospital's table means the same at every place of a federation."""

from __future__ import annotations

import csv
import json
import runpy

import numpy as np
import pytest
import tomli_w
import torch

from federations.places import LOGISTIC, WARDS_TOML, Here, folder, site_file, site_files, typed
from fedloom.config import resolve
from fedloom.core.validation import fields_of
from fedloom.data import SOURCES
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom_flower.clients import read_clients
from fedloom_flower.columns import SITES_OWN, inherited, with_rules
from fedloom_flower.folder import Folder
from fedloom_flower.sites import ClientSite, refuse_settings
from tiny import same

pandas = pytest.importorskip("pandas", reason="the extra tables is not installed")

WARDS = {
    "bonn": ["Chirurgie", "Innere"],
    "kiel": ["Innere", "Nephrologie"],
    "ulm": ["Gynäkologie", "Nephrologie"],
}

RULES = """
class_names = ["home", "ward"]
rules = [
    {name = "age", fill = 50, mean = 50.0, std = 20.0},
    {name = "ward", kind = "one_hot", values = [
        "Chirurgie", "Gynäkologie", "Innere", "Nephrologie"]},
]
"""
ONE_HOT = 'columns = {ward = "one_hot"}'


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
    (tmp_path / "later").mkdir()
    for i, (name, wards) in enumerate(WARDS.items()):
        train = hospital(tmp_path / f"{name}.csv", wards, 20 + 5 * i, i)
        test = hospital(tmp_path / "later" / f"{name}.csv", wards, 9 + i, 10 + i)
        files.append(site_file(tmp_path / f"{name}.toml", train, test))
    return files


def settings(tmp_path, more=RULES, inputs=5):
    text = WARDS_TOML.replace("fedavg", "scaffold").replace("inputs = 1", f"inputs = {inputs}")
    (tmp_path / "my.toml").write_text(text + more, encoding="utf-8")
    return tmp_path / "my.toml"


def wards(tmp_path, more=RULES, **deployment):
    return folder(tmp_path, resolve(settings(tmp_path, more)), evaluate="nodes", **deployment)


def has_data(node, data, i):
    """Whether a node has the rows, and test rows, of a client of the simulation."""
    tests = data.test_inputs[data.test_clients.of(i)]
    pairs = zip((node.inputs, node.targets), data.client(i), strict=True)
    return all(torch.equal(*pair) for pair in pairs) and torch.equal(node.test_inputs, tests)


# ------------------------------ the rows of a simulation, at each site
def test_three_hospitals_alone_have_the_inputs_of_their_simulation(tmp_path, sites):
    here = Here(wards(tmp_path), sites)
    ours = here.serve()
    paths = [f"data.{k}={tmp_path}/{v}/*.csv" for k, v in (("path", "."), ("test", "later"))]
    alone = resolve(here.fed.run_file, [*paths, "engine=serial"])
    data = alone.data()
    assert all(has_data(here.data(i), data, i) for i in range(3))
    assert data.inputs[:20, 0].eq(0).all() and data.inputs[:, 1:].sum(0).gt(0).all()
    simulated = alone.experiment(data).run()
    assert same(ours.state, simulated.state)
    accuracies = [end.history[-1]["test_accuracy"] for end in (ours, simulated)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=1e-12)


def test_no_site_trains_on_the_rows_that_a_date_keeps_for_testing(tmp_path):
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
    here = Here(folder(tmp_path, config, evaluate="nodes"), files)
    assert here.serve().history[-1]["test_accuracy"] >= 0
    assert all(has_data(here.data(i), trial, i) for i in range(3))


SCALED = 'standardise = "with_categories"\nddof = 1\nper_client = true\nmissing = "median"\n'


def test_each_hospital_scales_its_own_rows_and_no_scale_leaves_it(tmp_path, sites, caplog):
    rules = f'path = "{tmp_path}/*.csv"\ntest = "{tmp_path}/later/*.csv"\n{ONE_HOT}\n{SCALED}'
    config = with_rules(resolve(settings(tmp_path, rules)), elsewhere=True)
    refuse_settings(config)
    age, ward = config.values["data"]["rules"]
    assert ward["name"] == "ward" and {*age} <= {"name", "kind", "fill"}
    (tmp_path / "bonn.csv").write_text("age,ward,outcome\n60,Innere,ward\n70,Innere,ward\n")
    here = Here(folder(tmp_path, config, evaluate="nodes"), sites)
    assert "all training rows of client 'bonn' (ward) are of one class" in caplog.text
    ours, simulated = here.serve(), config.data()
    assert all(has_data(here.data(i), simulated, i) for i in range(3))
    alone = resolve(here.fed.run_file, ["engine=serial"]).experiment().run()
    assert same(ours.state, alone.state)
    told = "".join(file.read_text() for file in here.fed.run.glob("*.json*"))
    assert '"cells_per_client"' in told and '"sites": {}' in told
    mine = json.loads((here.fed.node(1).path / "preparation.json").read_text())
    assert mine == simulated.raw.numbers("kiel") and len(mine["ward"]["mean"]) == 4


@pytest.mark.parametrize(
    "text", ["age;ward;outcome\n1;2;3\n", "\u00e9", "age,ward,outcome\n30,Innere\n", ""]
)
def test_bad_rows_are_told_in_one_sentence_at_a_site_and_in_a_simulation(tmp_path, sites, text):
    (file := tmp_path / "kiel.csv").write_bytes(text.encode("latin-1"))
    alone = resolve(settings(tmp_path, f'{RULES}path = "{tmp_path}/*.csv"'))
    with pytest.raises(DataError) as at_site:
        ClientSite(wards(tmp_path).node(1), sites[1])
    with pytest.raises(DataError) as simulated:
        alone.data()
    one, other = (str(each.value).partition(f"{file}")[2] for each in (at_site, simulated))
    assert one == other != "" and "\n" not in one


# ------------------------------ where rules are from
def test_the_rules_of_the_servers_table_are_written_into_run_toml(tmp_path, sites):
    """Of its training rows, whether or not the clients' data are here too."""
    rules = f'path = "{tmp_path}/*.csv"\nmissing = "median"\nstandardise = true\n'
    config = resolve(settings(tmp_path, f'{rules}test = "{tmp_path}/later/*.csv"\n{ONE_HOT}\n'))
    with pytest.raises(CompositionError, match=r"data.columns is found in the rows of a table, by"):
        refuse_settings(config)
    for elsewhere in (True, False):
        made = with_rules(config, elsewhere)
        refuse_settings(made)
        (tmp_path / "run.toml").write_text(made.to_toml(), encoding="utf-8")
        again = resolve(tmp_path / "run.toml")
        age, ward = again.values["data"]["rules"]
        assert again.values["data"]["class_names"] == ["home", "ward"] and age["name"] == "age"
        assert ward["values"] == ["Chirurgie", "Gynäkologie", "Innere", "Nephrologie"]
        assert torch.equal(again.data().inputs, config.data().inputs)
        assert torch.equal(again.data().test_inputs, config.data().test_inputs)
    fed = folder(tmp_path, made, evaluate="nodes")
    there = [ClientSite(fed.node(i), file).examples for i, file in enumerate(sites)]
    assert there == again.data().sizes.tolist()


def test_what_a_server_can_find_of_the_rules_depends_on_its_table(tmp_path):
    file = tmp_path / "numbers.csv"
    numbers = resolve(settings(tmp_path, f'inputs = ["age"]\npath = "{file}"'))
    texts = resolve(settings(tmp_path, ONE_HOT))  # its sites can be described
    for unchanged in (resolve("digits"), numbers, texts):  # numbers need not be at the server
        assert with_rules(unchanged, True).values == unchanged.values
    file.write_text("age,outcome\n1,a\n2,b\n")
    data = with_rules(numbers, True).values["data"]
    assert data["rules"] == [{"name": "age", "kind": "number"}] and data["class_names"] == [
        "a",
        "b",
    ]
    away = resolve(settings(tmp_path, f'{ONE_HOT}\npath = "away.csv"'))
    says = r"no file away.csv \(seen from .*\); the columns' rules are found in it: "
    with pytest.raises(DataError, match=says):
        with_rules(away, True)


def test_deploy_new_and_check_say_what_a_table_becomes(tmp_path, sites):
    rules = f'path = "{tmp_path}/*.csv"\n{ONE_HOT}\nmissing = "mean"\n'
    out = tmp_path / "fed"
    new = ["deploy", "new", settings(tmp_path, rules), "--out", out, "--clients"]
    wrong = {"ulm,ulm,": "has the name 'ulm'", "0": "not in the range 1<=x<=1000", " ": "is empty"}
    for names, why in wrong.items():
        assert why in typed(*new, names, code=2)
    typed(*new, "ulm, bonn,kiel")
    for place in (".", "nodes/2"):
        named = read_clients(out / place / "clients.toml")
        assert [*map(named.label, range(3))] == ["ulm", "bonn", "kiel"]
    runs = {(out / place / "run.toml").read_text("utf-8") for place in (".", "nodes/0", "nodes/2")}
    assert len(runs) == 1 and "[[data.rules]]" in runs.pop()
    assert ClientSite(Folder(out).node(2), sites[2]).examples == 30
    assert "target_shape, columns, classes" in typed("deploy", "check", out)
    for place in (".", "nodes/2"):
        made = resolve(out / place / "run.toml").values
        old = {**made, "data": {**made["data"], "rules": [], "missing": "mean"}}
        (out / place / "run.toml").write_text(tomli_w.dumps(old), encoding="utf-8")
    told = typed("deploy", "check", out)  # a node waits to be described
    assert "the sites are still to be described" in told and "what its people agree to" in told


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


DATES, SHARE = {"date": "day", "test_from": "2024-01-01"}, {"test_share": 0.2, "test_seed": 3}


@pytest.mark.parametrize(
    ("site", "run", "left"),
    [
        ({}, DATES, DATES),
        ({"date": "Datum"}, DATES, DATES | {"date": "Datum"}),
        ({"test": "later.csv"}, SHARE, {"test": "later.csv"}),
        ({"test_share": 0.5}, DATES, {"test_share": 0.5}),
        ({"test_seed": 4}, SHARE, SHARE | {"test_seed": 4}),
    ],
)
def test_a_sites_way_to_hold_out_test_rows_replaces_that_of_run_toml(site, run, left):
    name = {"name": "table"}
    assert inherited(site | name, run | name) == left | name


def test_common_scale_is_of_numbers_alone(tmp_path, sites):
    """As in `table`; the sums of categories, which count rows, do not leave a site."""
    here = Here(fed := wards(tmp_path, standardise=True), sites)
    here.serve()
    agreed = json.loads(fed.agreement_file.read_text())
    assert agreed["mean"][1:] == [0] * 4 and agreed["deviation"][1:] == [1] * 4
    assert agreed["class_names"] == ["home", "ward"]
    whole = torch.cat([here.data(i).inputs for i in range(3)])
    assert whole[:, 0].double().mean().abs() < 1e-6
    assert {*whole[:, 1:].unique().tolist()} == {0, 1}
    age, ward = json.loads((fed.run / "partition.json").read_text())["inputs"]["rules"]
    assert age["mean"] == 50 + 20 * agreed["mean"][0] and age["std"] == 20 * agreed["deviation"][0]
    assert len(ward["values"]) == 4


# ------------------------------ sites that differ
def test_a_site_with_other_rules_takes_no_part(tmp_path, sites):
    fed = wards(tmp_path)
    file = fed.node(1).run_file
    file.write_text(file.read_text("utf-8").replace("fill = 50", "fill = 51"), encoding="utf-8")
    with pytest.raises(DataError, match=r"client 1 cannot join: .* run\.toml has other settings"):
        Here(fed, sites).serve()


def test_numbers_in_another_order_are_named(tmp_path):
    """Where nothing is agreed: three columns everywhere, but not the same ones."""
    files = site_files(tmp_path)
    text = (tmp_path / "2.csv").read_text()
    (tmp_path / "2.csv").write_text(text.replace("a,b,c,", "a,c,b,"))
    here = Here(folder(tmp_path, resolve("digits", LOGISTIC), evaluate="nodes"), files)
    said = r"client 2 makes inputs of its rows by other rules than client 0 \(columns and their ord"
    with pytest.raises(DataError, match=said):
        here.serve()


@pytest.mark.parametrize(
    ("more", "rules", "says"),
    [
        (ONE_HOT, "", "data.columns is found in the rows of a table, by each site in its"),
        ("missing = 0", "", "data.missing is found in the rows of a table"),
        ("standardise = true", "", "data.standardise is found in the rows of a table"),
        ("rules = []", "", "data.rules must be the same at all sites, so it is in run.toml"),
        ('text = "ward"', "", "the words of its texts would be numbered by this site's texts alo"),
        (ONE_HOT, RULES, "data.columns must be the same at all sites, so it"),
        ('class_names = ["home"]', RULES, "data.class_names must be the same at all sites"),
    ],
)
def test_rules_of_one_site_alone_are_refused(tmp_path, sites, more, rules, says):
    config = resolve(settings(tmp_path, rules) if rules else "digits")
    fed = folder(tmp_path, config, evaluate="nodes")
    sites[1].write_text(sites[1].read_text() + 'target = "outcome"\n' + more)
    with pytest.raises(ConfigError) as error:
        ClientSite(fed.node(1), sites[1])
    assert says in str(error.value) and "\n" not in str(error.value)
    assert f"file '{sites[1]}'" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Innere", "innere", "'innere' is none of the agreed values (Chirurgie, Gynäkologie, Inne"),
        ("Innere", "", "kiel.toml', [data]: {file}, column 'ward', row"),
        ("ward,", "dept,", "{file} has no column 'ward'; known: age, dept, outcome"),
        ("home", "hom", "class 'hom' is none of home, ward, those of the training data or of clas"),
    ],
)
def test_cells_of_a_site_that_are_not_agreed_are_named(tmp_path, sites, old, new, says):
    fed, file = wards(tmp_path), tmp_path / "kiel.csv"
    file.write_text(file.read_text("utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError) as error:
        ClientSite(fed.node(1), sites[1])
    assert says.replace("{file}", str(file)) in str(error.value) and "\n" not in str(error.value)


def test_data_without_columns_have_no_rules(tmp_path, sites):
    sites[1].write_text('[data]\nname = "folders"\npath = "."\n')
    with pytest.raises(ConfigError, match=r"data 'folders' has no columns, and run\.toml has rul"):
        ClientSite(wards(tmp_path).node(1), sites[1])


def test_classes_are_not_numbered_by_what_one_site_has(tmp_path, sites):
    """Where nodes do not join, nothing else would say that "ward" is 0 at this site."""
    (tmp_path / "kiel.csv").write_text("age,outcome\n60,ward\n61,ward\n")
    site = site_file(sites[1], tmp_path / "kiel.csv")
    site.write_text(site.read_text() + 'target = "outcome"\n')
    fed = folder(tmp_path, resolve("digits", ["data.clients=3"]), [20, 2, 30])
    with pytest.raises(DataError, match="client 1 has the classes ward, and all agreed"):
        ClientSite(fed.node(1), site)


# ------------------------------ the export
@pytest.mark.parametrize("standardise", [False, True])
def test_an_export_takes_the_tables_of_the_sites(tmp_path, sites, standardise):
    """Its script scores their test rows as the nodes did; the server's own are others."""
    mine = f'path = "{tmp_path}/*.csv"\ntest = "{tmp_path}/later/u*.csv"\n'
    fed = wards(tmp_path, mine + RULES, standardise=standardise)
    ended = Here(fed, sites).serve()
    told = typed("export", fed.run)
    assert "not checked: the nodes measured it, on test rows that are not here" in told
    made = runpy.run_path(str(fed.run / "export" / "predict.py"))
    about = made["about"]()
    assert about["inputs"]["columns"] == ["age", "ward"]
    frames = [pandas.read_csv(tmp_path / "later" / f"{name}.csv") for name in WARDS]
    whole = pandas.concat(frames, ignore_index=True)
    right = (whole["outcome"] == made["predict"](whole)).mean()
    assert right == pytest.approx(ended.last, abs=1e-12)
    with open(tmp_path / "later" / "ulm.csv", encoding="utf-8", newline="") as file:
        assert made["predict"](list(csv.DictReader(file))) == made["predict"](frames[2])
    assert about["samples"] == len(whole) and {*made["predict"](whole)} <= {"home", "ward"}
