"""A method of a user's own in a federation: each place runs its own copy of the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from federations.places import KEY, SMALL, Here, folder
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.errors import ConfigError, DataError
from fedloom_flower.check import check
from fedloom_flower.folder import Folder, write_secret
from fedloom_flower.server import serve
from fedloom_flower.sites import ClientSite, run_of, settings_of

SIZES = [480, 479, 479]
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


def files(path: Path, more: str = "") -> Path:
    """A folder with a copy of the method's files, and a site's file that names them."""
    (path / "inside").mkdir(parents=True)
    (path / "my_method.py").write_text(METHOD)
    (path / "inside/__init__.py").write_text("")
    (path / "inside/pull.py").write_text(HELPER)
    (path / "mine.toml").write_text(f'parts = ["my_method.py"]\n{more}')
    return path


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A federation's folder, made beside the files of whoever wrote the method."""
    monkeypatch.chdir(files(tmp_path / "author"))
    made = folder(tmp_path, resolve("digits", WORDS), SIZES, classes=10)
    write_secret(made.secret("server"), b"none")
    return made


def sites(tmp_path: Path) -> list[Path]:
    return [files(tmp_path / f"site{i}") / "mine.toml" for i in range(3)]


def settings(place: Folder) -> dict[str, Any]:
    return tomllib.loads(place.run_file.read_text())


def test_every_place_runs_its_own_copy_and_the_run_is_the_simulation(fed, tmp_path):
    at_node, at_server = settings(fed.node(1)), settings(fed)
    assert at_node["algorithm"]["name"] == "my_method.py:Mine"
    assert at_node["metrics"] == ["accuracy", "my_method.py:right"]
    names = {"my_method.py", "inside/__init__.py", "inside/pull.py"}
    assert at_node["code"].keys() == names
    assert at_server["algorithm"]["name"] == f"{tmp_path / 'author/my_method.py'}:Mine"
    for name in ("author/ran", "author/my_method.py"):
        (tmp_path / name).rename(tmp_path / f"{name}.away")  # nodes do not look there
    places = sites(tmp_path)
    here = Here(fed, places)
    assert all((place.parent / "ran").exists() for place in places)
    (tmp_path / "author/my_method.py.away").rename(tmp_path / "author/my_method.py")
    found = serve(fed, lambda roll: here)
    alone = resolve("digits", WORDS).experiment().run()
    assert torch.equal(found.state.x, alone.state.x)
    assert [row["test_right"] for row in found.history if "test_right" in row] == [
        row["test_accuracy"] for row in alone.history if "test_accuracy" in row
    ]
    theirs = {"algorithm": "fedprox", "algorithm.mu": 0.3}
    prox = resolve("digits", [f"{k}={v}" for k, v in theirs.items()] + SMALL).experiment().run()
    assert torch.equal(found.state.x, prox.state.x)
    assert check(fed).difference == 0


def test_a_node_that_named_nothing_runs_nothing(fed, tmp_path):
    said = (
        "the run uses my_method.py:right, and a node runs no file because its server names it; get "
        'my_method.py, read it, and name your copy, parts = ["my_method.py"], in '
    )
    (fed.node(0).path / "my_method.py").write_text(METHOD)  # what a server may have put there
    with pytest.raises(ConfigError) as error:
        ClientSite(fed.node(0))
    assert str(error.value) == f"{said}a file mine.toml, and give --data mine.toml"
    site = tmp_path / "mine.toml"
    site.write_text("parts = []\n")
    with pytest.raises(ConfigError) as error:
        ClientSite(fed.node(0), site)
    assert str(error.value) == f"{said}'{site}'"
    handed = Folder(fed.node(0).path)  # a node's folder is no server's
    with pytest.raises(ConfigError, match="a node runs no file because its server names it"):
        settings_of(handed)
    assert not (fed.node(0).path / "ran").exists()


@pytest.mark.parametrize("name", ["my_method.py", "inside/pull.py"])
def test_a_copy_that_is_another_is_not_run(fed, tmp_path, name):
    site = files(tmp_path / "site") / "mine.toml"
    file = site.parent / name
    file.write_text(file.read_text() + "# another\n")
    with pytest.raises(ConfigError) as error:
        ClientSite(fed.node(0), site)
    said = str(error.value)
    assert said.startswith(f"'{file}' is not the file of the run (the hash of its content is ")
    assert said.endswith(f"; get the {file.name} of the server, read it, and put it there")
    assert "\n" not in said and not (site.parent / "ran").exists()


def test_settings_with_another_hash_are_another_run(fed, tmp_path):
    """Whoever changes both the file and the hash at one place takes no part."""
    site = files(tmp_path / "site") / "mine.toml"
    ours = run_of(fed.node(0), settings_of(fed.node(0), [site.parent / "my_method.py"], site))
    assert ours == run_of(fed, settings_of(fed))
    pull = site.parent / "inside/pull.py"
    then = settings(fed.node(0))["code"]["inside/pull.py"]
    pull.write_text(HELPER.replace("return", "return 2 *"))
    with pytest.raises(ConfigError) as error:
        ClientSite(fed.node(0), site)
    now = str(error.value).partition("content is ")[2].partition(",")[0]
    run_file = fed.node(0).run_file
    run_file.write_text(run_file.read_text().replace(then, now))
    ClientSite(fed.node(0), site)
    other = run_of(fed.node(0), settings_of(fed.node(0), [site.parent / "my_method.py"], site))
    assert other != ours


def test_a_server_whose_file_has_changed_does_not_begin(fed, tmp_path):
    file = tmp_path / "author/inside/pull.py"
    file.write_text(HELPER + "# another\n")
    with pytest.raises(ConfigError, match=r"pull.py' is not the file of the run .*deploy new`"):
        settings_of(fed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('parts = "my_method.py"', 'parts must be a list of Python files, as ["my_method.py"]'),
        (
            "part = []",
            "unknown key 'part'; a site's file has the table [data], and parts",
        ),
        ('parts = ["gone/my_method.py"]', "my_method.py' does not exist; give a Python file"),
    ],
)
def test_a_mistake_in_a_sites_file_is_one_line(fed, tmp_path, text, said):
    site = files(tmp_path / "site") / "mine.toml"
    site.write_text(text)
    with pytest.raises(ConfigError) as error:
        ClientSite(fed.node(0), site)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_two_files_of_one_name_are_refused_where_it_is_made(fed, tmp_path):
    other = files(tmp_path / "other") / "my_method.py"
    config = resolve("digits", [*WORDS[1:], f"algorithm={other}:Mine"])
    (tmp_path / "new").mkdir()
    with pytest.raises(ConfigError, match=r"have one name, and a site finds files by their names"):
        folder(tmp_path / "new", config, SIZES, classes=10)


DATA = """
from fedloom.data import digits, from_clients, iid


def ward(rows: int = 30):
    found = digits(iid(clients=1))
    x, y = found.inputs[:rows], found.targets[:rows]
    return from_clients([(x, y)], test=(x, y))


def wards():
    return digits(iid(clients=2))
"""


def test_a_site_may_load_its_data_by_a_function_of_its_own(fed, tmp_path):
    site = files(tmp_path / "site", '[data]\nname = "ward.py:ward"\nrows = 40\n') / "mine.toml"
    (site.parent / "ward.py").write_text(DATA)
    fed = folder(tmp_path / "new", resolve("digits", SMALL))  # nobody knows their sizes yet
    assert ClientSite(fed.node(0), site).examples == 40
    site.write_text(site.read_text().replace(":ward", ":wards").replace("rows = 40\n", ""))
    with pytest.raises(DataError, match=r"'ward.py:wards' gives 2 clients; a site is one"):
        ClientSite(fed.node(0), site)


def test_deploy_new_says_which_files_go_to_the_sites(fed, tmp_path, monkeypatch):
    for name in ("make_authority",):
        monkeypatch.setattr(f"fedloom_flower.new.{name}", lambda *_: None)
    monkeypatch.setattr("fedloom_flower.new.make_node_key", lambda _: f"{KEY}AAA0")
    monkeypatch.setattr("fedloom_flower.new.shutil.copyfile", lambda *_: None)
    words = ["deploy", "new", "digits", *WORDS, "--out", str(tmp_path / "real")]
    found = CliRunner().invoke(cli, words)
    assert found.exit_code == 0, found.output
    assert (
        "  it runs inside/__init__.py, inside/pull.py, my_method.py: give them to every site, "
        'whose mine.toml says parts = ["my_method.py"]'
    ) in found.output
