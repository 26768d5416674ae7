"""A method of a user's own in a federation: each place runs its own copy of the file."""

from __future__ import annotations

import tomllib

import pytest
import torch

from federations.places import KEY, SIZES, SMALL, Here, folder, typed
from fedloom.config import resolve
from fedloom.errors import ConfigError, DataError
from fedloom_flower.check import check
from fedloom_flower.folder import Folder, write_secret
from fedloom_flower.sites import ClientSite, run_of, settings_of

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


def written(place):
    return tomllib.loads(place.run_file.read_text())


def refusal(place, file=None):
    """The line in which a node's place says that it does not begin."""
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


def test_deploy_new_says_which_files_go_to_the_sites(fed, tmp_path, monkeypatch):
    monkeypatch.setattr("fedloom_flower.new.make_authority", lambda *_: None)
    monkeypatch.setattr("fedloom_flower.new.make_node_key", lambda _: f"{KEY}AAA0")
    monkeypatch.setattr("fedloom_flower.new.shutil.copyfile", lambda *_: None)
    assert (
        "  it runs inside/__init__.py, inside/pull.py, my_method.py: give them to every site, "
        'whose mine.toml says parts = ["my_method.py"]'
    ) in typed("deploy", "new", "digits", *WORDS, "--out", tmp_path / "real")
