"""The places of a federation in one process: a server without data, nodes with data files, and a
method of a user's own, of which each place runs its own copy.
"""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
import tomllib

import pytest
import tomli_w
import torch

from federations.places import (
    EVERY,
    KEY,
    LOGISTIC,
    PRIVATE,
    SIZES,
    SMALL,
    Here,
    asking,
    digits,
    folder,
    predicted,
    rows_of,
    said_by,
    simulated,
    site_files,
    table,
    typed,
)
from fedloom.aggregation import DifferentialPrivacy
from fedloom.config import from_run, resolve
from fedloom.errors import CheckpointError, ClientError, CompositionError, ConfigError, DataError
from fedloom.report import load_run
from fedloom.report.clients import attendance, names_of
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower.check import check, other_disclosures
from fedloom_flower.clients import read_clients
from fedloom_flower.folder import Folder, write_secret
from fedloom_flower.node import Node
from fedloom_flower.privacy import system_normals, system_uniforms
from fedloom_flower.site_data import load_data, read_site
from fedloom_flower.sites import ClientSite, run_of, settings_of
from tiny import same, timeless


def test_a_server_without_data_learns_what_one_with_data_does(tmp_path):
    """Sizes, classes and scale are agreed; of tests only sums come back."""
    fed = folder(
        tmp_path, resolve("digits", [*LOGISTIC, "rounds=3"]), standardise=True, evaluate="nodes"
    )
    files = site_files(tmp_path, (20, 35, 50), (0, 11, 12), ["x", "y", "z"].__getitem__)
    here = Here(fed, files)
    result = here.serve()
    clients = read_clients(fed.clients_file)
    joining, sums, measuring, tells = other_disclosures(fed.settings(), clients, False, 3)
    own = "examples, tests, shape, type, targets, target_shape, columns, classes, class_names"
    assert joining == ("when it joins", own) and sums[1].startswith("sums of each")
    assert measuring[1] == "examples, loss, values, weights, bins: sums over its tests"
    assert "3 rounds of models that the server chooses tell labels of test rows" in tells[1]
    agreed = json.loads(fed.agreement_file.read_text())
    assert agreed["examples"] == [20, 35, 50] and agreed["tests"] == [0, 11, 12]
    assert agreed["class_names"] == ["x", "y", "z"]
    assert agreed["mean"][2] == pytest.approx(-300, abs=40)
    about = json.loads((fed.run / "partition.json").read_text())["inputs"]
    assert about["kind"] == "cells" and [r["mean"] for r in about["rules"]] == agreed["mean"]

    inputs = torch.cat([here.data(i).inputs for i in range(3)])
    assert inputs.double().mean(0).abs().max() < 1e-6
    assert (inputs.double().var(0, correction=0) - 1).abs().max() < 1e-5
    tested = [predicted(result.model, here.data(i)) for i in (1, 2)]
    right = sum(int((p.argmax(1) == y).sum()) for p, y in tested)
    assert result.history[-1]["test_accuracy"] == pytest.approx(right / 23)
    assert all(row["test_accuracy"] is not None for row in result.history)
    # the same places again: nothing is agreed anew, and the run goes on where it was
    again = Here(fed, files)
    assert again.serve().history == result.history and not again.asked
    assert rows_of(fed)[0]["answered"] == [0, 1, 2]


def test_a_server_with_tests_of_its_own_equals_the_simulation(tmp_path):
    fed = digits(tmp_path, "algorithm=scaffold")
    ours, alone = Here(fed).serve(), simulated(fed)
    assert 'label = "SCAFFOLD, deployed"' in (fed.run / "config.toml").read_text()
    assert same(ours.state, alone.state) and timeless(ours.history) == timeless(alone.history)
    text = fed.clients_file.read_text()
    fed.clients_file.write_text(text.replace("examples = 480", "examples = 500"))
    with pytest.raises(DataError, match=r"client 0 says that it has 480 .* clients\.toml 500; ask"):
        Here(fed).serve()


def test_a_servers_own_tests_have_the_agreed_scale(tmp_path):
    train, test = (table(tmp_path / f"{name}.csv", 30, seed=7) for name in ("own", "tests"))
    data = [f"data.path={train}", f"data.test={test}", "data=table", "data.partition=iid"]
    config = resolve("digits", [*data, "data.clients=3", *LOGISTIC, "rounds=2"])
    fed = folder(tmp_path, config, standardise=True)
    result = Here(fed, site_files(tmp_path, (20, 21, 22))).serve()
    agreed, tests = json.loads(fed.agreement_file.read_text()), config.data()
    mean, deviation = (torch.tensor(agreed[name]) for name in ("mean", "deviation"))
    scaled = (tests.test_inputs.double() - mean) / deviation
    right = result.model.eval()(scaled.float()).argmax(1) == tests.test_targets
    assert result.last == pytest.approx(float(right.double().mean()))
    about = json.loads((fed.run / "partition.json").read_text())["inputs"]
    assert about["columns"] == ["a", "b", "c"] and about["rules"][2]["mean"] == agreed["mean"][2]


WARD = """from fedloom.data import iid, table

def ward(path):
    return table(iid(clients=1), path=path, target='label')
"""
differ = lambda one, other: not torch.equal(one.state.x, other.state.x)


def test_files_of_a_site_are_seen_from_the_folder_of_its_file(tmp_path, monkeypatch):
    """Its rows as its parts and keys, from wherever the node is started."""
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    site.mkdir()
    elsewhere.mkdir()
    for name in ("a", "b", "test"):
        table(site / f"{name}.csv", 9)
    (site / "mine.py").write_text(WARD)
    for given, rows in (
        ('name = "table"\npath = "a.csv"\ntest = "test.csv"', 9),
        ('name = "table"\npath = ["a.csv", "b.csv"]', 18),
        ('name = "table"\npath = "?.csv"', 18),
        (f'name = "table"\npath = "{site}/a.csv"', 9),
        ('name = "mine.py:ward"\npath = "b.csv"', 9),
    ):
        (file := site / "mine.toml").write_text(f"[data]\n{given}\n")
        for cwd in (site, elsewhere):
            monkeypatch.chdir(cwd)
            data = load_data(read_site(file)[1], file, {"target": "label", "name": "table"})
            assert len(data.inputs) == rows
            assert (data.test_inputs is not None) == ("test =" in given)


@pytest.mark.parametrize("joins", [False, True], ids=["sizes are known", "sites join"])
def test_a_node_with_other_settings_takes_no_part(tmp_path, joins):
    """Its updates would be wrong, and nothing else would say so."""
    changes = [*SMALL, "data.partition=iid"]
    fed = folder(tmp_path, resolve("digits", changes)) if joins else digits(tmp_path, *changes)
    here = Here(fed)
    for i, (old, new) in enumerate([("rounds = 2", "rounds = 5"), ("lr = 0.1", "lr = 0.2")]):
        text = fed.node(i).run_file.read_text()
        assert old in text
        fed.node(i).run_file.write_text(text.replace(old, new))
        here.places[i] = ClientSite(fed.node(i))
    if joins:
        with pytest.raises(DataError, match=r"client 1 cannot join: .* run\.toml has other setti"):
            here.serve()
        return
    here.serve()
    row = rows_of(fed)[0]
    assert row["answered"] == [0, 2]
    assert "take the same file and version, and start the node again" in row["refused"]["1"]


def test_of_spare_clients_the_first_by_number_count_and_too_few_change_nothing(tmp_path):
    words, least = ("cohort=2", "rounds=3"), {"min_updates": 2, "max_failed_rounds": 2}
    fed = digits(tmp_path, *words, over_selection=0.5, **least)
    result = Here(fed, off=[0]).serve()
    assert [row["answered"] for row in rows_of(fed)] == [[1, 2]] * 3
    assert rows_of(fed)[0]["asked"] == [0, 1, 2]
    assert [row["answered"] for row in result.history] == [2] * 3

    other = digits(tmp_path / "other", *words, **least)
    with pytest.raises(ClientError, match="and so it was in 2 rounds in a row"):
        Here(other, off=[0, 1]).serve()
    assert len(rows_of(other, "rounds.jsonl")) == 1  # it can be resumed
    (row,) = rows_of(other)
    tried = [*row["redrawn"], row]
    assert [each["unused"] for each in tried] == [[i for i in e["asked"] if i == 2] for e in tried]
    assert len(tried) == 3 and not row["answered"]
    settings = tomllib.loads(other.settings_file.read_text())
    other.settings_file.write_text(tomli_w.dumps({**settings, "min_updates": 3}))
    with pytest.raises(ConfigError, match="min_updates = 3 is more than the 2 clients of a round"):
        Here(other).serve()
    other.settings_file.write_text(tomli_w.dumps(settings))
    seen = attendance(other.run, names_of(load_run(other.run)))
    assert seen is not None and seen.heads[:4] == ["client", "asked", "counted", "no answer"]
    assert [line[0] for line in seen.lines] == ["0 north", "1 client 1", "2 south"]
    assert sum(int(line[1]) for line in seen.lines) == 6
    assert len(Here(other).serve().history) == 3


def test_a_federations_run_names_the_command_that_goes_on_with_it(tmp_path, monkeypatch):
    fed = digits(tmp_path, EVERY)
    how = f"`fedloom deploy run {shlex.quote(str(fed.path))}`"

    def refused(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(RunDirectory, "_log_state", refused)
        with pytest.raises(CheckpointError, match=re.escape(f"then {how}")):
            Here(fed).serve()
    Here(fed).serve()
    with pytest.raises(CheckpointError, match=re.escape(f"a federation's, which {how} goes on")):
        from_run(fed.run).experiment().resume(fed.run)


def test_sites_that_do_not_fit_are_named(tmp_path):
    files, config = site_files(tmp_path), resolve("digits", LOGISTIC)
    fed = folder(tmp_path, config, (None, 8, None), evaluate="nodes", standardise=True)
    with pytest.raises(DataError, match="client 2 has not joined within 60 s; start its node"):
        Here(fed, files, off=[2]).serve()
    with pytest.raises(DataError, match="client 1 says that it has 9 training examples, and clien"):
        Here(fed, files).serve()
    lines = (tmp_path / "2.csv").read_text().split()
    (tmp_path / "2.csv").write_text("\n".join(line.partition(",")[2] for line in lines))
    with pytest.raises(DataError, match=r"client 2's data have shape = \[2\], client 0's \[3\]"):
        Here(fed, files).serve()
    early = said_by(Here(fed, files).places[0], asking("round", 0))
    assert early.why == "this node has not joined yet; begin the run again"
    with pytest.raises(CompositionError, match=r"evaluate.validation = 0.1 cannot be deployed"):
        ClientSite(folder(tmp_path / "v", resolve("digits", ["evaluate.validation=0.1"])).node(0))


def test_a_node_leaves_the_target_to_the_server(tmp_path, caplog):
    words = ["evaluate.target=0.95", "data.partition.clients=3"]
    ClientSite(folder(tmp_path, resolve("digits", words), SIZES).node(0))
    assert "evaluate.target" not in caplog.text


# ------------------------------ privacy
def checked(fed):
    """What the check of a folder found, which agrees with the simulation."""
    report = check(fed)
    assert report.difference == 0 and report.bills and not report.refused
    return report


@pytest.mark.usefixtures("accounts_at_hand")
def test_noise_and_cohorts_of_a_private_run_cannot_be_made_again(tmp_path):
    """Of two runs with the same seed; the simulation's can, which the two halves equal."""
    words = [*PRIVATE, "aggregation.noise=0.01"]
    feds = [digits(tmp_path / str(k), *words, EVERY) for k in range(2)]
    checked(feds[0])
    ends = [Here(fed).serve() for fed in feds]
    assert differ(*ends)
    assert all(row["epsilon"] > 0 and row["train_loss"] is None for row in ends[0].history)
    secret = [fed.secret("cohorts").read_text() for fed in feds]
    assert secret[0] != secret[1] and all(len(bytes.fromhex(each)) == 32 for each in secret)
    assert all(secret[0] not in p.read_text(errors="replace") for p in feds[0].run.glob("*.*"))

    normal = system_normals(torch.Size([200_001]), torch.float64)
    assert abs(float(normal.mean())) < 0.01 and abs(float(normal.std()) - 1) < 0.01
    assert abs(float((normal**4).mean()) - 3) < 0.1
    for change, said in (
        ("checkpoint.every_rounds=2", "needs checkpoint.every_rounds = 1"),
        ("sampling=bernoulli", "sampling = poisson"),
    ):
        with pytest.raises((CompositionError, ConfigError), match=said):
            Here(digits(tmp_path / change, *words, change)).serve()


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_clip_that_follows_the_updates_is_told(tmp_path):
    changes = ["aggregation.quantile=0.5", "algorithm=scaffold", "aggregation.count_noise=5"]
    checked(digits(tmp_path, *PRIVATE, EVERY, *changes))


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_run_s_files_do_not_tell_its_noise(tmp_path):
    """The seed in them makes other noise. All take part, so that models differ by noise alone."""
    fed = digits(tmp_path, *PRIVATE, "cohort=1.0", "rounds=1", EVERY, "aggregation.clip=0.3")
    ours = Here(fed).serve().state
    written = resolve(fed.run / "config.toml", ["engine=serial", "aggregation.noise=1e-9"])
    here = ours.x - written.experiment().run().state.x
    assert float(here.std()) == pytest.approx(1.0 * 0.3 / 3, rel=0.15)
    there = DifferentialPrivacy().normals(written.values["seed"], 0)(here.shape, here.dtype)
    assert abs(float(torch.corrcoef(torch.stack([here, there]))[0, 1])) < 5 / len(here) ** 0.5


EXAMPLES = ["local.batch=160", "local.dp.noise=2", "local.dp.clip=0.5", "local.dp.delta=1e-3"]


@pytest.mark.usefixtures("accounts_at_hand")
def test_private_examples_of_a_node_cannot_be_made_again(tmp_path):
    """Of two runs with the same seed. No loss leaves a node, and its own account counts."""
    feds = [digits(tmp_path / str(k), *EXAMPLES) for k in range(2)]
    assert "loss" not in checked(feds[0]).header_fields
    ends = [Here(fed).serve() for fed in feds]
    assert differ(*ends)
    told = [(row["train_loss"], row["example_epsilon"]) for row in ends[0].history]
    assert told == [(None, 1.5), (None, 3.0)]
    for i in range(3):
        counted = json.loads((feds[0].node(i).path / "states/examples.json").read_text())
        assert counted["local.dp"]["rounds"] == 2

    uniform = system_uniforms(100_001)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert abs(float((uniform < 0.1).mean()) - 0.1) < 0.005
    with pytest.raises(CompositionError, match="standardise = true would tell sums"):
        ClientSite(digits(tmp_path / "told", *EXAMPLES, standardise=True).node(0))
    loop = resolve("digits", [*SMALL, *EXAMPLES]).experiment().build()
    with pytest.raises(CompositionError, match=r"local\.dp: who knows the seed"):
        Node(loop.plan, loop.fed, loop.net, 0, tmp_path / "node")


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_node_sends_nothing_beyond_its_budget(tmp_path):
    """Whatever the server counts: here it begins the same run again, in a new folder."""
    fed = digits(tmp_path, *EXAMPLES, "local.dp.max_epsilon=4")
    here = Here(fed)
    assert [row["answered"] for row in here.serve().history] == [3, 3]
    shutil.rmtree(fed.run)
    file = fed.node(0).path / "states/examples.json"
    file.write_text("{")  # damaged
    (fed.node(1).path / "states/examples.json").unlink()  # a run before
    assert [row["answered"] for row in here.serve().history] == [1, 1]
    assert file.read_text() == "{"


# ------------------------------------------------------------------------ a method of a user's own
METHOD = """
from pathlib import Path

from fedloom import FedAvg
from inside.pull import pull

Path(__file__).with_name("ran").touch()


class Mine(FedAvg):
    mu: float = 0.3

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + pull(self.mu, x, msg.x), loc


def right(outputs, targets):
    return outputs.argmax(1) == targets
"""
HELPER = "def pull(mu, x, other):\n    return mu * (x - other)\n"
WORDS = ["algorithm=my_method.py:Mine", "metrics=accuracy,my_method.py:right", *SMALL]
written = lambda place: tomllib.loads(place.run_file.read_text())


def site_with(path, more="", parts='["my_method.py"]'):
    """A site's file in a folder with a copy of the method's files."""
    (path / "inside").mkdir(parents=True)
    (path / "my_method.py").write_text(METHOD)
    (path / "inside/__init__.py").write_text("")
    (path / "inside/pull.py").write_text(HELPER)
    (path / "mine.toml").write_text(f"parts = {parts}\n{more}")
    return path / "mine.toml"


@pytest.fixture
def site(tmp_path):
    return site_with(tmp_path / "site")


@pytest.fixture
def fed(tmp_path, monkeypatch):
    """A federation's folder, made beside the files of whoever wrote the method."""
    monkeypatch.chdir(site_with(tmp_path / "author").parent)
    made = folder(tmp_path, resolve("digits", WORDS), SIZES)
    write_secret(made.secret("server"), b"none")
    return made


def refusal(place, file=None):
    with pytest.raises(ConfigError) as error:
        ClientSite(place, file)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_place_runs_its_own_copy_and_the_run_is_the_simulation(fed, tmp_path):
    at_node, at_server = written(fed.node(1)), written(fed)
    assert at_node["algorithm"]["name"] == "my_method.py:Mine"
    assert at_node["metrics"] == ["accuracy", "my_method.py:right"]
    assert at_node["code"].keys() == {"my_method.py", "inside/__init__.py", "inside/pull.py"}
    author = tmp_path / "author/my_method.py"
    assert at_server["algorithm"]["name"] == f"{author}:Mine"
    author.rename(tmp_path / "away.py")  # nodes do not look there
    sites = [site_with(tmp_path / f"site{i}") for i in range(3)]
    here = Here(fed, sites)
    assert all(site.with_name("ran").exists() for site in sites)
    (tmp_path / "away.py").rename(author)
    ours, alone = here.serve(), resolve("digits", WORDS).experiment().run()
    assert torch.equal(ours.state.x, alone.state.x)
    rights = [row["test_right"] for row in ours.history if "test_right" in row]
    assert rights == [row["test_accuracy"] for row in alone.history if "test_accuracy" in row]
    prox = resolve("digits", ["algorithm=fedprox", "algorithm.mu=0.3", *SMALL]).experiment().run()
    assert torch.equal(ours.state.x, prox.state.x)
    assert check(fed).difference == 0


def test_a_node_that_named_nothing_runs_nothing(fed, tmp_path):
    said = (
        "the run uses my_method.py:right, and a node runs no file because its server names it; get "
        'my_method.py, read it, and name your copy, parts = ["my_method.py"], in '
    )
    (fed.node(0).path / "my_method.py").write_text(METHOD)  # what a server may have put there
    assert refusal(fed.node(0)) == f"{said}a file mine.toml, and give --data mine.toml"
    site = site_with(tmp_path / "site", parts="[]")
    assert refusal(fed.node(0), site) == f"{said}'{site}'"
    with pytest.raises(ConfigError, match="a node runs no file because its server names it"):
        settings_of(Folder(fed.node(0).path))  # a node's folder is no server's
    assert not (fed.node(0).path / "ran").exists()


@pytest.mark.parametrize("name", ["my_method.py", "inside/pull.py"])
def test_a_copy_that_is_another_is_not_run(fed, site, name):
    file = site.parent / name
    file.write_text(file.read_text() + "# another\n")
    said = refusal(fed.node(0), site)
    assert said.startswith(f"'{file}' is not the file of the run (the hash of its content is ")
    assert said.endswith(f"; get the {file.name} of the server, read it, and put it there")
    assert not site.with_name("ran").exists()


def test_settings_with_another_hash_are_another_run(fed, site):
    """Whoever changes both the file and the hash at one place takes no part."""
    node, parts = fed.node(0), [site.parent / "my_method.py"]
    assert run_of(node, settings_of(node, parts, site)) == run_of(fed, settings_of(fed))
    (site.parent / "inside/pull.py").write_text(HELPER.replace("return", "return 2 *"))
    now = refusal(node, site).partition("content is ")[2].partition(",")[0]
    then = written(node)["code"]["inside/pull.py"]
    node.run_file.write_text(node.run_file.read_text().replace(then, now))
    ClientSite(node, site)
    assert run_of(node, settings_of(node, parts, site)) != run_of(fed, settings_of(fed))


def test_a_server_whose_file_has_changed_does_not_begin(fed, tmp_path):
    (tmp_path / "author/inside/pull.py").write_text(HELPER + "# another\n")
    with pytest.raises(ConfigError, match=r"pull.py' is not the file of the run .*deploy new`"):
        settings_of(fed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('parts = "my_method.py"', 'parts must be a list of Python files, as ["my_method.py"]'),
        ("part = []", "unknown key 'part'; a site's file has the table [data], and parts"),
        ('parts = ["gone/my_method.py"]', "my_method.py' does not exist; give a Python file"),
    ],
)
def test_a_mistake_in_a_sites_file_is_one_line(fed, site, text, said):
    site.write_text(text)
    assert said in refusal(fed.node(0), site)


def test_two_files_of_one_name_are_refused_where_it_is_made(fed, site, tmp_path):
    other = site.with_name("my_method.py")
    config = resolve("digits", [*WORDS[1:], f"algorithm={other}:Mine"])
    with pytest.raises(ConfigError, match=r"have one name, and a site finds files by their names"):
        folder(tmp_path / "new", config, SIZES)


DATA = """
from fedloom.data import digits, from_clients, iid


def ward(rows: int = 30):
    data = digits(iid(clients=1))
    x, y = data.inputs[:rows], data.targets[:rows]
    return from_clients([(x, y)], test=(x, y))


def wards():
    return digits(iid(clients=2))
"""


def test_a_site_may_load_its_data_by_a_function_of_its_own(tmp_path):
    site = site_with(tmp_path / "site", '[data]\nname = "ward.py:ward"\nrows = 40\n')
    site.with_name("ward.py").write_text(DATA)
    fed = folder(tmp_path, resolve("digits", SMALL))  # nobody knows their sizes yet
    assert ClientSite(fed.node(0), site).examples == 40
    site.write_text(site.read_text().replace(":ward", ":wards").replace("rows = 40\n", ""))
    with pytest.raises(DataError, match=r"'ward.py:wards' gives 2 clients; a site is one"):
        ClientSite(fed.node(0), site)


@pytest.mark.parametrize(("evaluate", "agreed"), [("server", True), ("nodes", False)])
def test_what_the_sites_say_before_round_1_is_not_agreed_on_before(evaluate, agreed, tmp_path):
    words = ["data.clients=3", "rounds=1", f"federation.evaluate={evaluate}"]
    typed("deploy", "new", "digits", *words, "--out", tmp_path / "fed")
    assert Folder(tmp_path / "fed").agreement_file.exists() == agreed


def test_deploy_new_says_which_files_go_to_the_sites(fed, tmp_path, monkeypatch):
    monkeypatch.setattr("fedloom_flower.new.make_authority", lambda *_: None)
    monkeypatch.setattr("fedloom_flower.new.make_node_key", lambda _: f"{KEY}AAA0")
    monkeypatch.setattr("fedloom_flower.new.shutil.copyfile", lambda *_: None)
    assert (
        "  it runs inside/__init__.py, inside/pull.py, my_method.py: give them to every site, "
        'whose mine.toml says parts = ["my_method.py"]'
    ) in typed("deploy", "new", "digits", *WORDS, "--out", tmp_path / "real")
