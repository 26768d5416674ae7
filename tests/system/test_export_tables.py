"""What an export makes of rows, texts and pictures that come later, and of a site's own model."""

import copy
import csv
import json
import os
import runpy
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import nn

from fedloom.cli.__main__ import cli
from fedloom.config import from_run, resolve
from fedloom.data import heart
from fedloom.data.own import cells
from fedloom.data.own.preparation import PerClient
from fedloom.data.published.heart import INPUTS
from support.folders import record, rows

SMALL = ("rounds=2", "local.epochs=1")
SCRIPT = "a/export/predict.py"


# ------------------------------------------------------------------------------------------- texts
def reviews(path, count):
    with Path(path).open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["who", "text", "label"])
        for i in range(count):
            text = ("It's good, " if i % 3 else "bad \\ ") * (i % 4 + 1)
            out.writerow(["ab"[i % 2], text, i % 3])


@pytest.mark.slow
def test_texts_bring_their_vocabulary(fedloom, check):
    reviews("train.csv", 30)
    reviews("test.csv", 7)
    data = "path=train.csv text=text client=who length=6 vocabulary=9 partition=natural clients=2"
    words = ["data=table", *(f"data.{word}" for word in data.split()), "cohort=2"]
    words += ["model=transformer_text", "model.vocabulary=9", "model.classes=3", "model.width=8"]
    words += ["model.length=6", *SMALL, "--quiet"]
    fedloom("run", *words, "data.test=test.csv", "--out", "a")
    assert "checked: on 7 raw test rows" in fedloom("export", "a").output
    with Path("test.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    stored = from_run("a").data().test_inputs.tolist()
    assert sorted(runpy.run_path(SCRIPT)["prepare"](texts).tolist()) == sorted(stored)
    fedloom("run", *words, "--out", "b")
    assert "not checked: the run has no test set" in fedloom("export", "b").output
    os.unlink("train.csv")
    assert "not checked: the data are not at hand: " in fedloom("export", "b").output
    script = runpy.run_path("b/export/predict.py")
    assert script["prepare"](["bad zzz"]).tolist()[0][1:] == [1, 0, 0, 0, 0]
    assert script["outputs"](["bad zzz"]).shape == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["false", "true"])
def test_a_language_model_takes_texts_of_any_length(tied, fedloom, monkeypatch):
    monkeypatch.setenv("FEDLOOM_DATA", str(Path().resolve()))
    Path("wikitext-2").mkdir()
    for part, count in (("train", 60), ("test", 30)):
        line = " ".join(["the", "cat", "=", "saw", "<unk>", "été"] * count)
        Path(f"wikitext-2/wiki.{part}.tokens").write_text(f" {line} \n")
    data = ("data=wikitext2", "data.length=5", "data.partition=iid", "data.clients=2")
    model = ("model=lstm_language_model", "model.vocabulary=7", "model.embedding=4")
    model += ("model.hidden=4", f"model.tied={tied}")
    fedloom("run", *data, *model, "cohort=2", *SMALL, "--out", "a", "--quiet")
    assert "checked: on " in fedloom("export", "a").output
    script = runpy.run_path(SCRIPT)
    for words in (1, 5, 12):  # of any length
        text = " ".join(["the", "cat", "=", "saw", "<eos>", "dog"][:words] * (1 + words // 6))
        assert script["outputs"]([text]).shape == (1, len(text.split()), 7)
    for name in ("model.safetensors", "summary.json"):  # as of a run that has not ended
        Path("a", name).unlink()
    assert "checked: on " in fedloom("export", "a").output


# -------------------------------------------------------------------------------- rows of a table
TABLE = """
rounds = 2
algorithm = "fedavg"
metrics = ["auc", "brier", "accuracy"]
model = {name = "logistic", inputs = 5, classes = 2}
evaluate = {threshold = 0.4}
[data]
name = "table"
path = "sites/*.csv"
target = "out"
columns = {sex = "one_hot", stage = ["I", "II", "III"]}
missing = {age = "median", stage = "most_frequent"}
standardise = true
date = "day"
test_from = "2024-01-21"
partition = "natural"
"""


@pytest.fixture(scope="module")
def exported_table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    (folder / "sites").mkdir()
    draw = np.random.default_rng(0)
    for site in ("bonn", "lyon"):
        lines = ["age,sex,stage,dose,day,out"]
        for day in [*range(1, 31)] * 2:
            age, sex = draw.integers(20, 90), draw.choice(["f", "m"])
            stage = draw.choice(["I", "II"])
            out = "ward" if age + draw.normal() * 20 > 55 else "home"
            lines.append(f"{age},{sex},{stage},{draw.random():.3f},2024-01-{day:02d},{out}")
        lines.append(",m,,.5,2024-01-02,ward")
        (folder / "sites" / f"{site}.csv").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("my.toml").write_text(TABLE)
        for words in (["run", "my.toml", "--out", "a", "--quiet"], ["export", "a"]):
            done = CliRunner().invoke(cli, words)
            assert done.exit_code == 0, done.output
    assert "checked: on " in done.output
    return folder


def test_a_patients_file_becomes_the_runs_own_scores(exported_table, check, monkeypatch):
    """Predicted from the files of the sites, by the script alone: AUC, Brier score and accuracy."""
    monkeypatch.chdir(exported_table)
    both = pandas.concat([pandas.read_csv(f, dtype=str) for f in sorted(Path("sites").glob("*"))])
    tests = both[both["day"] >= "2024-01-21"]
    tests.drop(columns=["out", "day"]).to_csv("patients.csv", index=False)
    code, output = check(SCRIPT, "patients.csv", "--out", "scores.csv")
    assert code == 0 and all(line.startswith("warning: ") for line in output.splitlines())
    scores = pandas.read_csv("scores.csv")
    assert [*scores] == ["row", "probability_home", "probability_ward", "class"]
    assert scores["row"].tolist() == [*range(1, len(tests) + 1)]
    likely, ill = scores["probability_ward"], (tests["out"] == "ward").to_numpy()
    assert (scores["class"] == np.where(likely > 0.4, "ward", "home")).all()
    last = rows("a")[-1]
    assert roc_auc_score(ill, likely) == pytest.approx(last["test_auc"], abs=1e-6)
    assert ((likely - ill) ** 2).mean() == pytest.approx(last["test_brier"], abs=1e-6)
    right = (scores["class"] == tests["out"].to_numpy()).mean()
    assert right == pytest.approx(last["test_accuracy"], abs=1e-6)
    about, own = record("a/export", "about"), record("a", "clients")["metrics"]
    assert about["scores"]["sites"]["lyon"] == {name: own[name][1] for name in own}
    trained = both[both["day"] < "2024-01-21"]["age"].astype(float)
    assert about["threshold"] == 0.4 and about["ranges"]["age"] == [trained.min(), trained.max()]
    assert Path("a/export/cells.py").read_text() == Path(cells.__file__).read_text()
    card = Path("a/export/README.md").read_text()
    assert f"| lyon | 41 | 20 | {own['auc'][1]:.4f} | {own['brier'][1]:.4f} |" in card
    assert "- Sites with fewer than 50 test rows: bonn (20), lyon (20)." in card
    # a frame and records, in any order of columns, are prepared as in training
    script, wanted = runpy.run_path(SCRIPT), resolve("a/config.toml").data().test_inputs
    for given in (tests, tests[["stage", "out", "dose", "sex", "age"]], tests.to_dict("records")):
        assert torch.equal(script["prepare"](given), wanted)
    assert set(script["predict"](tests)) <= {"home", "ward"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("31,m,II", "31,x,II", "column 'sex', row 2: 'x' is none of f, m"),
        ("31,m,II", "31,m,IV", "column 'stage', row 2: 'IV' is none of I, II, III"),
        ("31,m,II", "old,m,II", "column 'age', row 2: 'old' is no finite number"),
        ("31,m,II", "31,,II", "column 'sex', row 2: it is empty, and in training no such cell was"),
        ("31,m,II", "31,m", "row 2 has 3 cells, and the header 4"),
        ("sex", "gender", "no column 'sex'; there are age, gender, stage, dose"),
        ("sex", "age", "two columns are called 'age'"),
        (",", ";", "its cells are not separated by ','; save it so"),
        ("40,f,I,0.5\n31,m,II,0.1\n", "", "it has no rows below a header"),
        ("31,m,II", "31,m,é", "it is not UTF-8; save it so"),
    ],
)
def test_a_row_that_the_model_was_not_trained_for_is_refused(
    old, new, said, exported_table, check, tmp_path
):
    text = "age,sex,stage,dose\n40,f,I,0.5\n31,m,II,0.1\n".replace(old, new)
    file = tmp_path / "new.csv"
    file.write_text(text, encoding="latin-1")
    code, output = check(str(exported_table / SCRIPT), str(file), "--out", "s.csv")
    assert code == 2 and output.startswith(f"error: {file}: {said}") and output.count("\n") == 1
    assert not Path("s.csv").exists()


def test_rows_outside_of_what_was_trained_on_are_counted(exported_table, check, tmp_path):
    shutil.copytree(exported_table / "a/export", tmp_path / "export")
    script, file = str(tmp_path / "export/predict.py"), tmp_path / "new.csv"
    file.write_text("age,sex,stage,dose\n190,f,I,0.5\n31,m,II,-3\n,m,I,-4\n")
    code, output = check(script, str(file))
    header, *lines, ages, doses = output.splitlines()
    assert code == 0 and header == "row,probability_home,probability_ward,class"
    assert len(lines) == 3
    assert f"warning: {file}, column 'age': 1 of 3 rows outside 20 to 8" in ages
    assert "column 'dose': 2 of 3 rows outside 0.0" in doses
    assert lines[0].split(",")[1] == f"{float(lines[0].split(',')[1]):.6g}"
    away = "error: away.csv: No such file or directory\n"
    assert check(script, "away.csv") == (2, away)
    # rules of sites that were described say others = true: one_hot takes any value
    about = record(tmp_path / "export", "about")
    next(r for r in about["inputs"]["rules"] if r["kind"] == "one_hot")["others"] = True
    (tmp_path / "export/about.json").write_text(json.dumps(about))
    file.write_text("age,sex,stage,dose\n40,x,I,0.5\n31,m,II,0.1\n")
    code, output = check(script, str(file))
    said = "column 'sex': 1 of 2 rows, as 'x', are none of f, m"
    assert code == 0 and output.endswith(f"warning: {file}, {said}\n")


def test_a_script_recodes_cells_as_training_did(fedloom):
    lines = [f"{sex},{sex in 'wF'}" for sex in "wmFM" * 5]
    Path("t.csv").write_text("\n".join(["sex,out", *lines]) + "\n")
    data = "path=t.csv target=out columns.sex=dummy test_share=0.3 partition=iid"
    data += " recode.sex.w=F recode.sex.m=M partition.clients=2"
    words = ["algorithm=fedavg", "model=logistic", "model.inputs=1", "model.classes=2", "cohort=2"]
    words += ["data=table", *(f"data.{word}" for word in data.split()), "rounds=1"]
    fedloom("run", *words, "--out", "a", "--quiet")
    assert "checked: on " in fedloom("export", "a").output
    script = runpy.run_path(SCRIPT)
    assert script["prepare"]([{"sex": sex} for sex in "wmFM"]).flatten().tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="row 1: 'x' is none of F, M"):
        script["prepare"]([{"sex": "x"}])


@pytest.mark.slow
def test_a_hospitals_patients_are_prepared_by_its_own_numbers(fedloom, check):
    """Which the folder has of a simulation, and a file at the node's place has of a deployment."""
    metrics = "metrics=auc,brier,accuracy"
    fedloom("run", "heart", metrics, "rounds=2", "evaluate.target=none", "--out", "a", "--quiet")
    assert "checked: on " in fedloom("export", "a").output
    data, own = heart(), record("a", "clients")["metrics"]
    assert isinstance(data.raw, PerClient)
    for i, site in enumerate(data.client_names):
        index = data.test_clients.of(i)
        texts = data.raw.by_client[site].back(data.test_inputs[index])
        pandas.DataFrame(texts, columns=[*INPUTS]).to_csv(f"{site}.csv", index=False)
        words = (f"{site}.csv", "--site", site, "--out", f"{site}.scores.csv")
        assert check(SCRIPT, *words)[0] == 0
        likely = pandas.read_csv(f"{site}.scores.csv")["probability_ill"]
        ill = data.test_targets[index].numpy()
        assert ((likely - ill) ** 2).mean() == pytest.approx(own["brier"][i], abs=1e-6)
        assert roc_auc_score(ill, likely) == pytest.approx(own["auc"][i], abs=1e-6)
    head, first, second = Path("va.csv").read_text().splitlines()[:3]
    Path("gap.csv").write_text("\n".join([head, first, "?," + second.partition(",")[2], ""]))
    code, output = check(SCRIPT, "gap.csv", "--site", "va")
    said = "column 'age', row 2: ? is empty, and in training no such cell was; fill it"
    assert code == 2 and output.startswith(f"error: gap.csv: {said}")
    code, output = check(SCRIPT, "va.csv")
    said = "every site prepared its columns by its own rows: give --site, one of cleveland, hung"
    assert code == 2 and output.startswith(f"error: va.csv: {said}")
    about = record("a/export", "about")
    Path("preparation.json").write_text(json.dumps(about["inputs"].pop("sites")["va"]))
    about["inputs"]["sites"] = {}  # as of a deployed run
    Path("a/export/about.json").write_text(json.dumps(about))
    for site, said in (
        ("va", "by its own rows, and 'va' is none: give --site, the file preparation.json of the"),
        ("preparation.json", Path("va.scores.csv").read_text()),
    ):
        assert said in check(SCRIPT, "va.csv", "--site", site)[1]


# ------------------------------------------------------------------------------ a site's own model
SITES = {"bonn": 20, "lyon": 40}  # training rows, by day; 10 test rows each
OWN = """
rounds = 3
algorithm = "fedavg"
dtype = "float64"
model = {name = "mlp", inputs = 3, hidden = [4], classes = 2}
local = {steps = 2, lr = 0.5}
[data]
name = "table"
path = "*.csv"
target = "out"
columns = {sex = "one_hot"}
standardise = true
per_client = true
date = "day"
test_from = "2025-01-01"
partition = "natural"
"""


@pytest.fixture
def run(fedloom):
    """Run two hospitals' tables with these settings -> the configuration of the run `a`."""
    draw = np.random.default_rng(1)
    for shift, (site, count) in enumerate(SITES.items()):
        lines = ["age,sex,day,out"]
        for year, days in ((2024, count), (2025, 10)):
            for day in range(days):
                age = draw.integers(20, 90) + 30 * shift
                out = "ward" if (age > 55 + 30 * shift) ^ (shift == 1) else "home"
                date = f"{year}-{1 + day // 28:02d}-{1 + day % 28:02d}"
                lines.append(f"{age},{'fm'[day % 2]},{date},{out}")
        Path(f"{site}.csv").write_text("\n".join(lines) + "\n")
    Path("my.toml").write_text(OWN)

    def call(*words):
        fedloom("run", "my.toml", "local.batch=none", *words, "--out", "a", "--quiet")
        return from_run("a")

    return call


def steps(model, pair, count):
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(count):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(pair[0]), pair[1]).backward()
        sgd.step()


def by_hand(data, start, own):
    """FedPer's Algorithm 1, written again: each site goes on with its own model but for the mean of
    the tensors that are not its own -> the models of the sites.
    """
    models = [copy.deepcopy(start) for _ in SITES]
    shares = torch.tensor([*SITES.values()], dtype=torch.float64) / sum(SITES.values())
    for _ in range(3):
        for i, model in enumerate(models):
            steps(model, data.client(i), 2)
        for name, *tensors in zip(
            start.state_dict(), *(m.parameters() for m in models), strict=True
        ):
            if not name.startswith(own):
                mean = sum(s * t.detach() for s, t in zip(shares, tensors, strict=True))
                for tensor in tensors:
                    tensor.data.copy_(mean)
    return models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "own", "more"),
    [
        ("private=fedper", "last", 0),
        ("private=alone", "all", 0),
        ("algorithm=ditto algorithm.lam=0", "all", 0),  # without its pull v_i is alone
        ("evaluate.finetune=3", "none", 3),
    ],
)
def test_a_site_exports_the_model_that_it_uses(words, own, more, run, fedloom):
    config = run(*words.split())
    start = config.experiment().net().export(config.experiment().net().init())
    names = [*start.state_dict()]
    kept = {"last": (names[-1].rpartition(".")[0],), "all": tuple(names), "none": ()}[own]
    models = by_hand(config.data(), start, kept)
    scores = record("a", "clients")["metrics"]["accuracy"]
    for i, site in enumerate(SITES):
        steps(models[i], config.data().client(i), more)
        which = site if i else "0"  # by name or number
        text = fedloom("export", "a", "--client", which, "--weights").output
        folder = Path(f"a/export-{site}")
        weights = load_file(folder / "weights.safetensors")
        for name, want in models[i].state_dict().items():
            torch.testing.assert_close(weights[name], want, rtol=1e-9, atol=1e-12)
        assert "checked: on 10 raw test rows it computes what the run did" in text
        script, tests = runpy.run_path(str(folder / "predict.py")), later_rows(site)
        right = [a == row["out"] for a, row in zip(script["predict"](tests), tests, strict=True)]
        assert np.mean(right) == pytest.approx(scores[i])
        check_words(folder, i, scores[i])


def later_rows(site):
    with Path(f"{site}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["day"] >= "2025"]


def check_words(folder, i, accuracy):
    """What an export says of its site, and of no other."""
    (site, count), other = [*SITES.items()][i], [*SITES][1 - i]
    about, card = record(folder, "about"), (folder / "README.md").read_text()
    assert (about["client"], about["samples"], [*about["scores"]["sites"]]) == (site, 10, [site])
    assert about["inputs"]["kind"] == "cells" and "sites" not in about["inputs"]
    with Path(f"{site}.csv").open(newline="") as file:
        ages = [int(row["age"]) for row in csv.DictReader(file) if row["day"] < "2025"]
    assert about["ranges"]["age"] == [min(ages), max(ages)]
    assert about["inputs"]["rules"][0]["mean"] == pytest.approx(np.mean(ages))
    assert f", {site}'s own model\n" in card
    assert f"| {site} | {count} | 10 | {accuracy:.4f} |" in card
    assert f"2 sites, 60 training rows. {site}: {count} training rows, 10 test rows." in card
    assert other not in card and "--site" not in card and "all test rows" not in card


def test_the_servers_model_is_not_taken_for_a_sites(run, fedloom):
    run("private=alone")
    assert "checked: on 10" in fedloom("export", "a", "--client", "lyon", "--out", "mine").output
    text = fedloom("export", "a", code=2).output
    assert "with private = 'alone' nobody trains the server's model, and each client has " in text
    assert "--client NAME exports one" in text and not Path("a/export").exists()
    text = fedloom("export", "a", "--client", "paris", code=2).output
    assert "--client must be a client's number, from 0 to 1, or its name, such as bonn, got" in text
    Path("federation.toml").touch()  # as beside a deployed run
    for words in ((), ("--client", "lyon")):
        text = fedloom("export", "a", *words, code=2).output
        assert "it is in its node's state folder, which `export` does not read" in text


def test_a_common_model_beside_sites_own_says_so(run, fedloom):
    run("private=fedper", "cohort=1", "rounds=1")
    text = fedloom("export", "a").output
    said = "this is the server's model, and each client uses its own: --client NAME exports one"
    assert said in text and "checked: on " in text
    card = Path("a/export/README.md").read_text()
    assert "use models of their own, and this is the server's" in card
    assert "| bonn |" not in card, "its score is of another model"
    (took,) = from_run("a").experiment().open("a").cohorts.of(0)
    fedloom("export", "a", "--client", str(took))
    text = fedloom("export", "a", "--client", str(1 - took), code=2).output
    assert "has taken part in no round yet, so nobody has trained its private layers" in text


def test_a_run_of_one_model_has_none_of_clients(run, fedloom):
    run()
    text = fedloom("export", "a", "--client", "lyon", code=2).output
    assert "--client lyon: all clients of 'a' use one model; export it without --client" in text


def test_a_federations_run_is_gone_on_with_by_deploy(run, fedloom):
    run()
    Path("federation.toml").touch()  # as beside a deployed run, whose tables are elsewhere
    for name in ("a/model.safetensors", *(f"{site}.csv" for site in SITES)):
        Path(name).unlink()
    text = fedloom("export", "a", code=2).output
    assert "'a' has not ended" in text and "end it with `fedloom deploy run .`" in text
    text = fedloom("run", "--resume", "a", code=2).output
    assert text == "error: 'a' is a federation's, which `fedloom deploy run .` goes on with\n"
