"""A part of a user's own is named by its file, on the line and in TOML, like any other part."""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedloom.config import resolve
from fedloom.core.own_parts import load
from fedloom.core.vector import rec
from fedloom.engines.shared_memory import _Pickler
from fedloom.errors import ConfigError
from fedloom_flower.folder import Folder
from fedloom_flower.sites import settings_of
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1", "data.clients=6", "engine=serial", "evaluate.every=2")
METHOD = '''
from __future__ import annotations

from fedloom import FedAvg
from fedloom.core.hyper import NonNegative, hyper
from helper import pull


class AdaptiveProx(FedAvg):
    """FedProx, written again."""

    mu: NonNegative = hyper(0.01, "pull", source="ours")

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + pull(self.mu, x, msg.x), loc


class Needs(FedAvg):
    """A method with an option without a default."""

    share: NonNegative = hyper(meaning="needed")


_hidden = AdaptiveProx
made = AdaptiveProx()
'''
MARKER = "from pathlib import Path\n\nPath('ran').touch()\n"  # it was run
HELPER = "def pull(mu, x, other):\n    return mu * (x - other)\n"
OTHERS = """
import torch
from torch import nn

from fedloom.aggregation import Median
from fedloom.compression.codecs import FP16, TopK
from fedloom.data import digits, from_clients, iid
from fedloom.federation.choice import ClientChoice
from fedloom.objectives import SquaredError
from fedloom.submodels import HeteroFL


class Half(FP16):
    pass


class Few(TopK):
    pass


class Middle(Median):
    pass


class Cut(HeteroFL):
    pass


class Net(nn.Module):
    def __init__(self, hidden: int = 8, classes=10):
        super().__init__()
        self.a, self.b = nn.Linear(64, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def focal(outputs, targets):
    p = torch.softmax(outputs, 1).gather(1, targets[:, None]).squeeze(1)
    return -((1 - p) ** 2) * torch.log(p)


class First(ClientChoice):
    def cohort(self, known, losses):
        return list(known.there)[: known.size]


def hospital(size: int = 12):
    found = digits(iid(clients=4))
    x, y = found.inputs.reshape(len(found.inputs), -1), found.targets
    return from_clients([(x[i::4][:size], y[i::4][:size]) for i in range(4)], test=(x[:99], y[:99]))


def scans(partition, seed: int = 0):
    return digits(partition, seed=seed)


def alone(outputs):
    return outputs.sum(1)


def broken(size: int = 3):
    return {}["ward"]


def nothing():
    return 3
"""


@pytest.fixture
def here(fedloom: Fedloom) -> Fedloom:
    """The command line in a folder with the files of a user."""
    Path("my_method.py").write_text(METHOD)
    Path("helper.py").write_text(HELPER)
    Path("my_parts.py").write_text(OTHERS)
    return fedloom


def weights(run: str) -> Any:
    return {k: v.tolist() for k, v in load_file(Path(run) / "model.safetensors").items()}


def config(run: str) -> dict[str, Any]:
    return tomllib.loads((Path(run) / "config.toml").read_text())


def run(fedloom: Fedloom, out: str, *words: str) -> Any:
    fedloom("run", *words, *SMALL, "--out", out, "--quiet")
    return weights(out)


# ------------------------------------------------------------------------------------- to be named
@pytest.mark.slow
def test_a_method_of_ones_own_runs_as_one_of_fedlooms(here: Fedloom) -> None:
    words = ("algorithm=my_method.py:AdaptiveProx", "algorithm.mu=0.3")
    own = run(here, "own", *words)
    assert own == run(here, "theirs", "algorithm=fedprox", "algorithm.mu=0.3")
    told = config("own")
    assert told["label"] == "AdaptiveProx" and told["algorithm"]["mu"] == 0.3
    assert {Path(file).name for file in told["code"]} == {"my_method.py", "helper.py"}
    # its folder has its name
    assert here("run", *words, *SMALL, "--quiet").output.strip() == "runs/digits-AdaptiveProx-seed0"


@pytest.mark.slow
def test_a_file_names_it_as_seen_from_its_own_folder(here: Fedloom) -> None:
    Path("study").mkdir()
    for name in ("my_method.py", "helper.py"):
        Path(name).rename(Path("study", name))
    settings = here("run", *SMALL, "--dry-run").output.partition("estimate")[0]
    settings = settings.replace('name = "fedavg"', 'name = "my_method.py:AdaptiveProx"\nmu = 0.3')
    Path("study/my.toml").write_text(settings)
    own = run(here, "own", "study/my.toml")
    assert own == run(here, "theirs", "algorithm=fedprox", "algorithm.mu=0.3")
    assert own != run(here, "other", "study/my.toml", "algorithm.mu=0.9")
    # a run's own settings are such a file
    assert own == run(here, "again", "own/config.toml")


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("compress=my_parts.py:Half", "compress=fp16"),
        ("compress.down=my_parts.py:Half", "compress.down=fp16"),
        ("aggregation=my_parts.py:Middle", "aggregation=median"),
        ("data=my_parts.py:scans", "data=digits"),
    ],
)
def test_any_part_may_be_ones_own(here: Fedloom, own: str, theirs: str) -> None:
    found = run(here, "own", own)
    assert found == run(here, "theirs", theirs)
    assert (found == run(here, "plain")) == own.startswith("data")


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("compress=topk:0.1|my_parts.py:Half", "compress=topk:0.1|fp16"),
        ("compress=my_parts.py:Few|my_parts.py:Half", "compress=topk|fp16"),
        ("compress.down=topk:0.5|my_parts.py:Half", "compress.down=topk:0.5|fp16"),
    ],
)
def test_stages_of_a_chain_may_be_ones_own(here: Fedloom, own: str, theirs: str) -> None:
    found = run(here, "own", own)
    assert found == run(here, "theirs", theirs) != run(here, "plain")
    told = config("own")
    assert {Path(file).name for file in told["code"]} == {"my_parts.py"}
    assert str(Path.cwd()) not in told["label"]
    # its settings are a file, seen from another folder; a changed file is refused
    Path("study").mkdir()
    text = Path("own/config.toml").read_text()
    Path("study/my.toml").write_text(text.replace(f"{Path.cwd()}/", "../"))
    assert run(here, "again", "study/my.toml") == found
    Path("my_parts.py").write_text(OTHERS + "\n# another\n")
    said = here("run", "--resume", "own", "rounds=3", code=1).output
    assert "my_parts.py' has changed since 'own' began" in said


@pytest.mark.slow
def test_a_run_is_named_by_what_makes_its_method(here: Fedloom) -> None:
    """Its folder has the codec and the loss in its name, and a sweep's what all its runs share."""
    parts = ("compress=topk:0.1|my_parts.py:Half", "objective=my_parts.py:focal")
    assert here("run", *parts, *SMALL, "--quiet").output.strip() == (
        "runs/digits-fedavg-focal-topk-0.1-Half-seed0"
    )
    words = ("local.lr=0.1,0.2", "compress=topk:0.1", *SMALL)
    here("sweep", "digits", *words)
    assert Path("runs/sweep-digits-topk").is_dir()


def test_own_data_model_loss_and_choice_together(here: Fedloom) -> None:
    parts = ("data=hospital", "model=Net", "objective=focal", "choose=First")
    words = [word.replace("=", "=my_parts.py:") for word in parts]
    few = [w for w in SMALL if not w.startswith("data.")]
    here("run", *words, "data.size=9", "model.hidden=5", *few, "cohort=2", "--out", "own")
    told = config("own")
    assert told["data"] == {"name": str(Path("my_parts.py").absolute()) + ":hospital", "size": 9}
    assert told["label"] == "FedAvg + focal" and told["model"]["hidden"] == 5
    assert load_file("own/model.safetensors")["a.weight"].shape == (5, 64)
    rows = [json.loads(line) for line in Path("own/rounds.jsonl").read_text().splitlines()]
    assert [row["clients"] for row in rows] == [[0, 1], [0, 1]]
    said = here("run", *words, *few, "data.partition=iid", code=2).output
    assert "data.partition goes with data that are divided here" in said


def test_a_rule_of_submodels_may_be_ones_own(here: Fedloom) -> None:
    words = ("submodel.capacities=[0.5, 1.0]",)
    own = run(here, "own", "submodel=my_parts.py:Cut", *words)
    assert own == run(here, "theirs", "submodel=heterofl", *words)


def test_worker_processes_get_it_by_value(here: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("my_method.py")
    _Pickler(out := io.BytesIO()).dump(module.AdaptiveProx(mu=0.5))
    for name in (module.__name__, "helper"):  # what a worker process has not
        monkeypatch.delitem(sys.modules, name)
    made = pickle.loads(out.getvalue())
    one = torch.ones(1)
    assert float(made.direction(3 * one, None, rec(x=one), None, lambda x: x, None)[0]) == 4.0


def test_files_of_one_name_do_not_meet(here: Fedloom) -> None:
    one = run(here, "one", "algorithm=my_method.py:AdaptiveProx", "algorithm.mu=0.3")
    for factor, folder in ((1, "a"), (3, "b")):
        Path(folder).mkdir()
        Path(folder, "my_method.py").write_text(METHOD)
        Path(folder, "helper.py").write_text(HELPER.replace("return", f"return {factor} *"))
    assert run(here, "a/run", "algorithm=a/my_method.py:AdaptiveProx", "algorithm.mu=0.3") == one
    assert run(here, "b/run", "algorithm=b/my_method.py:AdaptiveProx", "algorithm.mu=0.3") != one
    assert run(here, "c", "algorithm=a/my_method.py:AdaptiveProx", "algorithm.mu=0.3") == one


# ------------------------------------------------------------------------ seeds, sweeps, comparing
def test_seeds_and_versions_of_a_file_are_told_apart(here: Fedloom) -> None:
    words = ("run", "algorithm=my_method.py:AdaptiveProx", *SMALL, "--seeds", "2")
    here(*words, "--quiet")
    assert "is finished" in here(*words, "--quiet").output
    Path("helper.py").write_text(HELPER.replace("return", "return 9 *"))
    here(*words, "--quiet")
    runs = sorted(path.name for path in Path("runs").iterdir())
    assert runs == [f"digits-AdaptiveProx-seed{s}{e}" for s in (0, 1) for e in ("", "-2")]
    table = here("compare", "runs").output
    lines = [line for line in table.splitlines() if line.strip().startswith("AdaptiveProx")]
    assert len(lines) >= 2 and "code.helper.py" in table
    found = json.loads(here("compare", "runs", "--json", "-").output)
    assert [row["seeds"] for row in found] == [2, 2]
    assert str(Path.cwd()) not in table, "a file is called by its name"


def test_a_file_that_was_moved_is_the_same_method(here: Fedloom) -> None:
    run(here, "runs/one", "algorithm=my_method.py:AdaptiveProx")
    Path("elsewhere").mkdir()
    for name in ("my_method.py", "helper.py"):
        Path(name).rename(Path("elsewhere", name))
    run(here, "runs/two", "algorithm=elsewhere/my_method.py:AdaptiveProx", "seed=1")
    found = json.loads(here("compare", "runs", "--json", "-").output)
    assert [row["seeds"] for row in found] == [2]


def test_a_sweep_tries_it_beside_others(here: Fedloom) -> None:
    words = ("algorithm=fedavg,my_method.py:AdaptiveProx", "local.lr=0.1", *SMALL)
    assert "AdaptiveProx" in here("sweep", "digits", *words, "--out", "s").output
    assert len(list(Path("s").glob("algorithm=my_method.py-AdaptiveProx-seed0-*"))) == 1


# ------------------------------------------------------------------------------------- to go on
@pytest.mark.slow
def test_resume_names_the_file_and_refuses_a_changed_one(here: Fedloom) -> None:
    words = ("algorithm=my_method.py:AdaptiveProx", "algorithm.mu=0.3")
    run(here, "one", *words)
    said = here("run", "--resume", "one", "rounds=3", "--quiet").output
    assert f"'one' uses my_method.py:AdaptiveProx: the code of '{Path.cwd()}/my_method.py'" in said
    here("run", *words, *SMALL, "rounds=3", "--out", "whole", "--quiet", code=2)  # two values
    here("run", *words, *SMALL[1:], "rounds=3", "--out", "whole", "--quiet")
    assert weights("one") == weights("whole")
    Path("helper.py").write_text(MARKER + HELPER)
    said = here("run", "--resume", "one", "rounds=4", code=1).output
    assert "helper.py' has changed since 'one' began" in said and "--changed-code" in said
    assert not Path("ran").exists(), "what changed was not run to see that"
    here("run", "--resume", "one", "rounds=4", "--changed-code", "--quiet")
    assert ", then " in config("one")["code"][str(Path("helper.py").absolute())]
    here("run", "--resume", "one", "rounds=5", "--quiet")
    assert Path("ran").exists()
    Path("my_method.py").unlink()
    assert "does not exist" in here("run", "--resume", "one", "rounds=6", code=2).output


@pytest.mark.parametrize("words", [(), ("--capacity", "0.5")])
def test_an_export_says_once_that_it_runs_the_file(words: tuple[str, ...], here: Fedloom) -> None:
    cut = ("submodel=fiarse", "submodel.capacities=1/2,1") if words else ()
    run(here, "one", "algorithm=my_method.py:AdaptiveProx", "algorithm.mu=0.3", *cut)
    said = here("export", "one", *words).output
    assert said.count("'one' uses my_method.py:AdaptiveProx: the code of ") == 1, said
    assert "checked: accuracy" in said


def test_settings_made_before_a_file_changed_are_not_run(here: Fedloom) -> None:
    words = ["algorithm=my_method.py:AdaptiveProx", *SMALL]
    before = resolve("digits", words)
    before.experiment()
    Path("helper.py").write_text(HELPER + "# another\n")
    resolve("digits", words).experiment()
    with pytest.raises(ConfigError, match="has changed since these settings were made"):
        before.experiment()


# --------------------------------------------------------------------------------------- safety
@pytest.mark.slow
def test_looking_at_a_folder_runs_no_code(here: Fedloom) -> None:
    run(here, "runs/bad", "algorithm=my_method.py:AdaptiveProx", "compress=my_parts.py:Half")
    Path("other.py").write_text(MARKER + METHOD.replace("from __future__", "# from"))
    file = Path("runs/bad/config.toml")
    text = file.read_text().replace("my_method.py:", "other.py:")
    file.write_text(text.replace("my_parts.py:", "other.py:"))
    Path("runs/bad/manifest.json").unlink()  # as whoever altered it would
    assert "other.py:AdaptiveProx" in text
    here("show", "runs/bad")
    here("list", "runs")
    here("compare", "runs/bad")
    here("report", "runs/bad", "--out", "page.html")
    # a run of the same name goes elsewhere, and does not run it to see what is there
    here("run", *SMALL, "name=bad", "--out", "runs/bad", "--resume-if-begun", code=2)
    said = here("run", "--resume", "runs/bad", "rounds=3", code=1).output
    assert "has changed since 'runs/bad' began" in said
    assert not Path("ran").exists()
    here("run", "--resume", "runs/bad", "rounds=3", "--changed-code", code=2)  # it has no Half
    assert Path("ran").exists()


def test_a_federation_loads_no_file_that_settings_name(here: Fedloom) -> None:
    Path("evil.py").write_text(MARKER + METHOD.replace("from __future__", "# from"))
    text = resolve("digits", ["data.clients=2"]).to_toml()
    Path("fed").mkdir()
    Path("fed/run.toml").write_text(text.replace('"fedavg"', '"../evil.py:AdaptiveProx"'))
    for client in (None, 0):  # a folder from elsewhere, and a node's
        with pytest.raises(ConfigError, match="a node runs no file because its server names it"):
            settings_of(Folder(Path("fed"), client))
    assert not Path("ran").exists()


# ------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm=gone.py:Mine"], "gone.py' does not exist; give a Python file"),
        (["algorithm=my_method.py"], "it has AdaptiveProx, Needs"),
        (["algorithm=my_method.py:AdaptivProx"], "did you mean 'AdaptiveProx'?"),
        (["algorithm=my_method.py:made"], "is one already; give the name of a class"),
        (["algorithm=my_parts.py:Half"], "'my_parts.py:Half' is no algorithm: the class does not"),
        (["algorithm=my_parts.py:torch"], "is no class or function"),
        (["algorithm=my_method.py:Needs"], "algorithm 'my_method.py:Needs' needs the key 'share'"),
        (
            ["algorithm=my_method.py:Needs", "algorithm.share=-1"],
            "command line: algorithm.share must be in [0, inf), got -1",
        ),
        (
            ["algorithm=my_method.py:AdaptiveProx", "algorithm.nu=1"],
            "algorithm 'my_method.py:AdaptiveProx' has no key 'nu'; did you mean 'mu'?",
        ),
        (
            ["algorithm=my_method.py:AdaptiveProx", "algorithm.mu=much"],
            "algorithm.mu must be in [0, inf), got 'much'",
        ),
        (["objective=my_parts.py:foca"], "did you mean 'focal'?"),
        (
            ["objective=my_parts.py:alone"],
            "objective 'alone' is called with (outputs, targets), and cannot take them: too many",
        ),
        (["compress=topk:0.1|my_parts.py:Hal"], "did you mean 'Half'?"),
        (
            ["compress=my_parts.py:Few:0.1"],
            "codec 'my_parts.py:Few:0.1': options of your own codec are keys, compress.ratio=0.1",
        ),
        (["attack=my_parts.py:Half"], "unknown attack 'my_parts.py:Half'"),
        (["algorithm=bad.py:A"], "bad.py' cannot be imported, line 3: ZeroDivisionError: division"),
        (["algorithm=worse.py:A"], "worse.py' cannot be imported, line 2: SyntaxError: "),
        (["data=my_parts.py:broken"], "'my_parts.py:broken' failed, line {ward}: KeyError: 'ward'"),
        (["data=my_parts.py:nothing"], "gives a int, and must give a FederatedData"),
    ],
)
def test_a_mistake_is_one_line(here: Fedloom, words: list[str], said: str) -> None:
    Path("bad.py").write_text("a = 1\n\nb = a / 0\n")
    Path("worse.py").write_text("a = 1\nb = (\n")
    few = [w for w in SMALL if not (w.startswith("data.") and words[0].startswith("data="))]
    ward = OTHERS[: OTHERS.index('"ward"')].count("\n") + 1
    said = said.replace("{ward}", str(ward))
    assert said in here("run", *words, *few, code=2).output
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "digits", "algorithm=my_method"], "your own is FILE.py:NAME, algorithm=my_file.p"),
        (
            ["run", "digits", "my_method.py:Mine"],
            "expected key=value, as in algorithm=my_method.py",
        ),
        (
            ["run", "my_method.py:Mine"],
            "give a recipe or a TOML file too, as in digits algorithm=my",
        ),
        (
            ["show", "my_method.py:Mine"],
            "show runs no file; `fedloom check my_method.py:Mine` tries",
        ),
    ],
)
def test_a_name_in_the_wrong_place_says_the_right_one(
    here: Fedloom, words: list[str], said: str
) -> None:
    output = here(*words, code=2).output
    assert said in output and len(output.splitlines()) == 1


# ------------------------------------------------------------------------------- papers and pages
def test_the_commands_of_the_page_about_algorithms(fedloom: Fedloom) -> None:
    page = Path(__file__).parents[2].joinpath("docs/write-a-part.md").read_text("utf-8")
    code, line = re.findall(r"```python\n(.*?)```|^fedloom (run [^\n]*)$", page, re.S | re.M)[:2]
    Path("my_algorithm.py").write_text(code[0])
    fedloom(*line[1].replace("--seeds 3", "--quiet").split(), *SMALL[1:])
    assert config("runs/digits-Recall-seed0")["algorithm"]["alpha"] == 0.8


def test_a_papers_table_has_a_row_of_ones_own(here: Fedloom) -> None:
    words = ("fedsmoo:8", "--scale", "smoke", "--rows", "fedavg,my_method.py:AdaptiveProx")
    table = here("paper", *words, "--csv", "--out", "p").output
    rows = [line.split(",") for line in table.splitlines()]
    mine = [row for row in rows if "AdaptiveProx" in row]
    assert len(mine) == len([row for row in rows if "FedAvg" in row]) == 1
    found = [config(str(path.parent)) for path in Path("p/smoke").glob("*/config.toml")]
    assert sorted(c["label"] for c in found) == ["AdaptiveProx", "FedAvg"]
    said = here("paper", *words[:-1], "my_method.py:Adaptiv", "--dry-run", code=2).output
    assert "did you mean 'AdaptiveProx'?" in said
