"""What is refused, and in which words: the key, its value, what is allowed, what to do. A finished
run is finished, whatever becomes of its pictures; ~ is the home folder in all paths of a user's.
"""

import errno
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom import Experiment, FedAvg, load_runs, report
from fedloom.data import digits, folders, from_clients, iid, table
from fedloom.data.partition.without_labels import lists
from fedloom.errors import ConfigError
from fedloom.models import mlp
from fedloom.report import load_run, write_report
from fedloom.storage.atomic import write_atomic
from support.folders import fill, record

# settings of `fedloom run digits`, the last before each ; out of range or of another type, which is
# said by its key and its value
RANGES = """
algorithm.server_lr=x; algorithm.server_lr=0; algorithm=fedavgm algorithm.server_lr=0;
algorithm=fedacg algorithm.lam=2; checkpoint.keep=0; checkpoint.every_rounds=0;
checkpoint.every_seconds=-1; cohort=half; compress=topk:0.1 compress.ratio=2;
compress.down=topk compress.down.ratio=2; compress=qsgd compress.levels=200;
data.partition.alpha=0; devices=lognormal devices.sigma=-1; evaluate.ema=1; evaluate.every=-1;
evaluate.sizes=[1.5]; local.lr=nan; local.lr=-1; local.lr=[0.1,-1]; local.steps=[1,'a'];
local.steps=[1,0]; local.batch=2.5; local.sam=-0.1; local.schedule=cosine local.schedule.floor=2;
model.hidden=[0]; model.hidden=64; objective=moon objective.tau=-1;
partition=class_groups partition.groups=[0,1]; rounds=0; rounds=2.0; sampling=uniform; seed=-1;
server=adam server.lr=-1; server=lookahead server.lam=1; submodel=fiarse submodel.count=zz;
submodel=fjord submodel.widths=[0.0]; churn.active=-1; churn.active=x;
churn.active=5 churn.replace=2; churn=5; weighting=exampels
"""
# setting -> what is suggested
MEANT = """
algorithm=fedacgg -> fedacg; algorithm.server_lrr=1 -> server_lr; algoritm=fedavg -> algorithm;
churn.activ=5 -> active; compress=topkk -> topk;
compress=topk:0.1 compress.feedback=ef22 -> ef21; data.partition=dirichlett -> dirichlet;
devices=lognormall -> lognormal; engine=worker -> workers; local.lrr=1 -> lr;
local.optimiser=adm -> adam; local.schedule=cosin -> cosine; lr=0.1 -> local.lr;
model=mpl -> mlp; partition=patological -> pathological; server=adam server.lrr=1 -> lr;
server=adma -> adam; submodel=heterfl -> heterofl; tests=match -> matched
"""
# what else is refused, and parts of what is said
SETTINGS = [
    ("algorithm=3", "algorithm must be a name", "3"),
    ("alpha=0.1", "unknown key 'alpha'", "data.partition.alpha"),
    ("cohort=[[1,'a']]", "names client 'a'", "give numbers, 0 to 49"),
    ("cohort=[[1,0.5]]", "cohort must be a whole number", "or a list of lists of whole"),
    ("cohort=51", "1 to the 50 clients", "51"),
    ("cohort=1.5", "(0, 1]", "1.5"),
    ("local.lr=true", "local.lr must be in (0, inf), or a list", "True"),
    ("cohort=[[0],[50]]", "round 2", "client 50"),
    ("compress=topk:1.5|int8", "codec 'topk:1.5': ratio must be in (0, 1], got 1.5"),
    ("compress=topk:0.1,3,4", "ratio, scope"),
    ("compress.ratio=0.01", "compress.ratio needs a codec, and compress.name is missing"),
    ("compress.feedback=ef21", "compress.feedback needs a codec"),
    ("compress=none compress.ratio=0.1", "needs a codec, and compress.name is missing or none"),
    ("data.alpha=0", "data.partition.alpha must be in [1e-09, 1e+09], got 0; 0.1 is very"),
    ("data.clients=5000", "5000 clients", "1438 samples"),
    ("device=gpu", "device = 'gpu' cannot be used here; take auto, cpu"),
    ("device=mps", "device = 'mps' cannot be used here; take auto, cpu"),
    ("devices=levels devices.steps_per_second=[]", "above 0"),
    ("dtype=float16", "'float32' or 'float64'", "'float16'"),
    ("engine=workers:0", "workers:0", "1 or more"),
    ("local.quick=1", "[local] has no key 'quick'", "known:"),
    ("local.schedule.decay=1", "local.schedule 'constant' has no key 'decay'"),
    ("local=3", "local is a table"),
    ("model.classes=9999999999999999999", "[model]: mlp cannot be made"),
    ("model.hidden=[a,b]", "got '[a,b]'; texts in a list need quotes"),
    ("objective=mse", "unknown objective 'mse'"),
    ("partition=pathological partition.classes=11", "11 classes", "10"),
    ("partition=similarity partition.share=2", "share must be in [0, 1]", "2"),
    ("partition=lists partition.file=gone.npz", "gone.npz is not a readable"),
    ("rounds.x=1", "rounds.x", "not a table"),
    ("server.lr=1", "server.name is missing", "average, momentum"),
    ("server=lookahead server.inner=1", "has no key 'inner'"),
    ("submodel=fiarse submodel.capacities=[0.5,2.0]", "must be in (0, 1], got 2.0"),
    ("submodel=fiarse submodel.capacities=1/4,half", "nor a file that can be read"),
    ("submodel=fiarse submodel.capacities=[0.5,1] submodel.shares=[1.0]", "each of the 2"),
    ("submodel=fiarse submodel.group=shard", "FIARSE: group = 'shard'"),
    ("churn.active=51", "churn.active must be from 1 to the 50 clients", "51"),
    ("churn.active=5 cohort=6", "from 1 to the 5 clients there are"),
]
# parts that do not go together, or not with the data
MIXES = [
    ("metrics=dice", "'dice' is for labels of pixels"),
    ("model=cnn_cfedavg", "inputs of shape [2, 1, 8, 8]"),
    ("model.classes=5", "labels go up to 9"),
    ("local.drop_last=true local.batch=40", "fewer than local.batch"),
    ("model=logistic", "model.inputs=64"),
    ("devices=lognormal devices.sigma=1e12", "steps a second"),
    ("evaluate.target=95", "give 0.95 for 95 %"),
    (
        "algorithm=scaffold local.momentum=0.9",
        "local.momentum and Scaffold: it takes its move for the sum of its directions, which a ",
        "local optimiser changes; take plain steps, local.optimiser=sgd with local.momentum=0, or ",
        "algorithm.option=1",
    ),
    ("server=amsgrad server.eps=0", "[server]", "eps = 0 and start = 0"),
    ("algorithm=fedacg server=adam", "server=adam and FedACG: its clients start"),
    (
        "compress=topk compress.feedback=ef21 algorithm=feddyn submodel=greedy",
        "take compress.feedback=residual",
    ),
    ("compress=topk:0.1|powersgd", "form no matrices"),
    ("compress=sign|int8", "Sign chooses no coordinates"),
    ("compress.down=fedpaq", "the server's feedback around FedPAQ down"),
    ("compress.down=topk:0.1 submodel=heterofl", "compress up only"),
    ("compress.down.ratio=0.1", "compress.down.name is missing"),
    ('compress={v="topk:0.1"}', "compress.v needs a codec"),
    ("compress=qsgd:3,0", "or feedback = forget (QSGD is unbiased)"),
    (
        "compress=sign submodel=fiarse submodel.count=nonzero",
        "Sign and FIARSE: its count looks at which entries of an update are zero",
    ),
    ("local.seconds=1", "devices=lognormal"),
    ("partition=pathological", "needs the key 'classes'"),
    ("churn.every=5", "needs the key 'active'"),
    ("submodel=fiarse submodel.capacities=[0.5,1] submodel.shares=[0.5,0.6]", "add up"),
    ("submodel=heterofl model=logistic model.inputs=64", "HeteroFL cannot cut"),
    ("submodel=scalefl objective=self_distillation", "the model has one exit"),
    ("objective=ordered_distillation", "OrderedDistillation and whole models"),
    ("submodel=fiarse submodel.group=shard submodel.shards=['third.*']", "fits no parameter"),
    ("submodel=scalefl", "take objective = self_distillation"),
    ("submodel=heterofl objective=ordered_distillation", "take submodel = fjord"),
]
# whole commands
BRIEF = "digits data.clients=20 cohort=4 local.epochs=1 rounds=2 --trials 2 --seeds 4 --quiet"
DEAL = "data.partition=dirichlet data.partition.alpha=1 data.partition.clients=4"
COMMANDS = [
    ("run digts", "did you mean 'digits'"),
    ("run nowhere.toml", "nowhere.toml"),
    ("run --out a out=b", "are both given"),
    ("run --sedes 3", "fedloom run --help"),
    ("run digits --rounds 3", "write rounds=3"),
    ("sweep --local.lr=0.1,0.3", "write local.lr=0.1,0.3"),
    ("run --resume a --target 0.9", "write evaluate.target=0.9"),
    ("run --algorithm", "write algorithm=VALUE"),
    ("run --seeds 0", "x>=1"),
    ("runn", "run"),
    ("list algorithm", "algorithms"),
    ("run --out /dev/null", "'/dev/null' exists and is not a folder; choose another"),
    ("show scafold", "did you mean 'scaffold'?"),
    ("show data", "`fedloom list data` has the names"),
    ("show algorithm", "`fedloom list algorithms` has the names"),
    ("compare", "RUN..."),
    ("run --resume", "RUN"),
    ("run --resume a --seeds 2", "--seeds is of a new run"),
    ("run digits --changed-code", "--changed-code is of --resume"),
    (f"run shapes {DEAL}", "dirichlet needs labels (n,) int64, one of a sample"),
    ("list --compatibility --json", "--compatibility has no --json"),
    ("data partition --plot a.jpg", "'a.jpg' must end in .png"),
    ("data partition --save a.csv", "'a.csv' must end in .npz"),
    ("data partition nosuch", "unknown recipe 'nosuch'"),
    ("sweep digits local.lr=1,2 seeds=no", "seeds must be a whole number"),
    ("sweep digits local.lr=1,2 seeds=2 --seeds 3", "are both given"),
    ("sweep digits local.lr=1,2 --by luck", "--help"),
    ("referee algorithm=fedprox --against fedavg", "give the method first"),
    ("referee fedprx --against fedavg", "did you mean 'fedprox'"),
    ("referee no.py:Mine --against fedavg", "does not exist"),
    ("referee fedprox --against fedavg digits local.lr=x", "local.lr"),
    ("referee fedprox --against fedavg nothing", "nothing"),
    (f"referee fedprox --against fedavg {BRIEF} --minutes 0.0001", "give --minutes 1"),
    ("advise digits data.clients=1", "has one client"),
    ("advise digits local.lrr=1", "did you mean 'lr'"),
    ("advise no.toml", "no.toml"),
    ("advise digits --minutes 0", "minutes"),
]


def out_of_range(text):
    key, _, value = text.split()[-1].partition("=")
    said = (f"{key} must be ", value.strip("[]").split(",")[-1].strip("'"))
    return f"run digits {text}", (LINE, *said)


def misspelt(text):
    settings, meant = text.split(" -> ")
    return f"run digits {settings}", (LINE, f"did you mean '{meant}'")


LINE = "error: command line"
REFUSED = [out_of_range(text.strip()) for text in RANGES.split(";")]
REFUSED += [misspelt(text.strip()) for text in MEANT.split(";")]
REFUSED += [(f"run digits {settings}", (LINE, *words)) for settings, *words in SETTINGS]
REFUSED += [(f"run digits {settings}", words) for settings, *words in MIXES]
REFUSED += [(command, words) for command, *words in COMMANDS]


@pytest.mark.parametrize(("command", "words"), REFUSED, ids=[command for command, _ in REFUSED])
def test_what_is_refused_is_one_line_with_these_words_before_anything_begins(
    command, words, fedloom
):
    said = fedloom(*command.split(), code=2).output
    assert all(word in said for word in words), said
    assert not Path("runs").exists()


def test_a_recipes_own_codec_is_not_blamed_on_the_command_line(fedloom):
    text = 'compress = "topk:abc"\nrounds = 2\nmodel = "mlp"\nalgorithm = "fedavg"\n'
    Path("own.toml").write_text(f'{text}[data]\nname = "digits"\npartition = "iid"\n')
    said = "file 'own.toml': compress.ratio must be in (0, 1], got 'abc'"
    for more in ([], ["algorithm=fedacg"], ["compress.feedback=forget"]):
        assert said in fedloom("run", "own.toml", *more, code=2).output


# ------------------------------------------------------------------------- folders, files, machines
SMALL = ("rounds=2", "local.epochs=1")


def raises(error):
    def fail(*given, **more):
        raise error

    return fail


@pytest.mark.parametrize("command", ["run --resume", "compare", "report", "export"])
def test_what_is_no_run(command, fedloom):
    assert "nowhere" in fedloom(*command.split(), "nowhere", code=1).output
    Path("empty").mkdir()
    assert "config.toml" in fedloom(*command.split(), "empty", code=1).output


def test_data_that_are_not_there(fedloom, monkeypatch):
    monkeypatch.setenv("FEDLOOM_DATA", str(Path("data").absolute()))
    Path("data").mkdir()
    text = fedloom("run", "fashion_dirichlet", "data.download=false", code=2).output
    for word in ("train-images-idx3-ubyte.gz", "data/fashion-mnist", "md5", "FEDLOOM_DATA"):
        assert word in text
    monkeypatch.setattr("requests.get", raises(OSError("connection refused")))
    text = fedloom("run", "mnist_iid", code=2).output
    assert "connection refused" in text and "md5" in text


def test_a_folder_that_cannot_be_written(fedloom):
    Path("file").write_text("")
    assert "cannot be written" in fedloom("run", *SMALL, "--out", "file/run", code=2).output
    assert "exists" in fedloom("run", *SMALL, "--out", "file", code=2).output


def test_a_folder_that_holds_a_run(fedloom, a):
    before = Path("a/summary.json").read_bytes()
    assert "fedloom run --resume a" in fedloom("run", *SMALL, "out=a", code=2).output
    text = fedloom("run", *SMALL, "algorithm=scaffold", "out=a", code=2).output
    assert "'a' exists, and holds something else than this run (algorithm.name" in text
    assert "resume" not in text and "choose another --out" in text
    Path("b").mkdir()
    shutil.copytree("a", "b/seed1")
    assert "b/seed1" in fedloom("run", *SMALL, "--out", "b", "--seeds", 2, code=2).output
    assert not Path("b/seed0").exists(), "found out before the first run"
    assert Path("a/summary.json").read_bytes() == before


def test_a_run_goes_on_with_its_own_settings_alone(fedloom, a):
    assert "local.lr cannot change" in fedloom("run", "--resume", "a", "local.lr=1", code=2).output
    assert "2 rounds already" in fedloom("run", "--resume", "a", "rounds=1", code=2).output
    assert load_run("a").finished, "a refused change leaves the run as it was"


def test_a_run_from_python_goes_on_in_python(fedloom):
    data = digits(iid(clients=5))
    given = {"algorithm": FedAvg(), "model": lambda: mlp(64), "data": data, "rounds": 1}
    Experiment(**given, device="cpu").run("a")
    assert "Experiment(...).resume('a')" in fedloom("run", "--resume", "a", code=2).output
    assert "from Python" in fedloom("run", "a/config.toml", code=2).output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(fedloom):
    assert "take auto, cpu (torch" in fedloom("run", "device=cuda", code=2).output


def test_what_nobody_foresaw_is_one_line_too(fedloom, monkeypatch):
    monkeypatch.setattr(
        "fedloom.config.resolve", raises(RuntimeError("a first line\nand a second"))
    )
    (line,) = fedloom("run", "digits", code=1).output.splitlines()
    said = "error: RuntimeError: a first line and a second (unexpected: `fedloom --debug ...`"
    assert line.startswith(said)


# ------------------------------------------------------------------------------------ what is said
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("local.schedule={name = 'cosine', rounds = 1}", "0 from round 2 of 2 on"),
        ("evaluate.sizes_every=3", "evaluate.sizes_every has no effect"),
        (
            "aggregation={name = 'trimmed_mean', trim = 0.05}",
            "take a cohort of at least 20 clients, or a larger trim",
        ),
        ("algorithm=scaffold algorithm.option=1 local.momentum=0.9", ""),  # it does not read it
    ],
)
def test_what_has_no_effect_is_said(change, words, fedloom):
    changes = [change] if "{" in change else change.split()
    assert words in fedloom("run", *SMALL, *changes, "--dry-run").output


def test_a_run_that_has_exploded_says_so(fedloom):
    output = fedloom("run", *SMALL, "local.lr=1e6", "--out", "a").output
    said = "the run diverges: train_loss is "
    assert f"warning: round 2: {said}" in output
    assert "warning: the accuracy is" in output and "nothing of use was learnt" in output
    assert record("a")["warnings"][0].startswith(said)
    assert f"warning: a: {said}" in fedloom("compare", "a").output
    text = fedloom("run", *SMALL, "local.lr=1e30", "--quiet", code=1).output
    assert "client" in text and "round" in text and "lower local.lr" in text


# ---------------------------------------------------------------------------------------- pictures
def refusal(number, *file):
    return OSError(number, os.strerror(number), *file)


def no_library(library, what, extra):
    raise ConfigError(f"{what} needs {library}, which cannot be imported")


def missing_line(output):
    (line,) = [x for x in output.splitlines() if x.startswith("pictures or the report are missing")]
    return line


DRAW = "matplotlib.backends.backend_agg.FigureCanvasAgg.draw"


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("fedloom.report.style.png", raises(refusal(errno.ENOSPC)), "No space left on device"),
        (DRAW, raises(refusal(errno.EACCES)), "Permission denied"),
        ("fedloom.report.html.all_pictures", lambda *a: 1 / 0, "ZeroDivisionError"),
        ("fedloom.report.style.need", no_library, "cannot be imported"),
    ],
    ids=["a full disk", "a picture", "the report", "matplotlib"],
)
@pytest.mark.usefixtures("pictures")
def test_a_run_without_its_pictures_is_finished(where, error, said, fedloom, monkeypatch):
    monkeypatch.setattr(where, error)
    line = missing_line(fedloom("run", *SMALL, "--out", "a b", "--quiet").output)
    assert said in line and "later: fedloom report 'a b'" in line and "ConfigError" not in line
    assert Path("a b/summary.json").exists() and not Path("a b/report.html").exists()


def test_a_demo_without_its_report_is_finished(fedloom, monkeypatch):
    monkeypatch.setattr("fedloom.report.write_report", raises(refusal(errno.EDQUOT)))
    output = fedloom("demo", "--rounds", 1, "--seeds", 1).output
    assert "later: fedloom report runs/demo --out runs/demo/report.html" in missing_line(output)
    assert "s in all" in output


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_disk_that_is_full_after_the_last_round(fedloom, tiny_disk, monkeypatch):
    draw, ballast = report.write_report, tiny_disk / "ballast"

    def fill_and_draw(*args, **kwargs):
        fill(ballast)
        return draw(*args, **kwargs)

    monkeypatch.setattr("fedloom.report.write_report", fill_and_draw)
    output = fedloom("run", *SMALL, "--out", tiny_disk / "a", "--quiet").output
    assert "No space left on device" in missing_line(output)
    ballast.unlink()
    monkeypatch.setattr("fedloom.report.write_report", draw)
    fedloom("report", tiny_disk / "a")
    assert (tiny_disk / "a" / "report.html").exists()


# ------------------------------------------------------------------------------- what is refused
def test_a_refusal_of_the_system_comes_with_advice_from_any_command(fedloom, monkeypatch):
    monkeypatch.setattr(Experiment, "run", raises(refusal(errno.ENOSPC, "/dev/shm/board")))
    said = f"{os.strerror(errno.ENOSPC)}: '/dev/shm/board'); make room"
    text = fedloom("run", *SMALL, "--out", "a", code=1).output
    assert said in text and "cannot be written" not in text
    assert said in fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "s", code=1).output


@pytest.mark.parametrize("place", ["provenance.fingerprint", "result.write_model"])
def test_a_file_of_somebody_else_is_not_said_to_be_the_runs(place, fedloom, monkeypatch):
    monkeypatch.setattr(f"fedloom.experiment.{place}", raises(refusal(errno.ENOENT, "/data/x.npy")))
    text = fedloom("run", *SMALL, "--out", "a", code=1).output
    assert "the run stopped (No such file or directory: '/data/x.npy')" in text
    assert "cannot be written" not in text


def test_commands_in_messages_can_be_pasted(fedloom):
    fedloom("run", *SMALL, "--out", "a b", "--quiet")
    assert "`fedloom run --resume 'a b'`" in fedloom("run", *SMALL, "--out", "a b", code=2).output
    again = fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "c d").output
    assert "fedloom run 'c d/best.toml'" in again
    saved = fedloom("data", "partition", "--save", "e f.npz").output
    assert "'partition.file=e f.npz'" in saved


def test_every_file_of_a_run_follows_the_umask(fedloom):
    old = os.umask(0o027)
    try:
        fedloom("run", *SMALL, "--out", "a", "--quiet")
        fedloom("export", "a")
        write_atomic(Path("b"), lambda part: part.touch(0o600))
    finally:
        os.umask(old)
    files = [Path("b"), *(p for p in Path("a").rglob("*") if p.is_file())]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o640}, files


# ------------------------------------------------------------------------------------------- home
TOML = """
name = "t"
rounds = 1
algorithm = "fedavg"
device = "cpu"
model = { name = "logistic", inputs = 1, classes = 2 }
[data]
name = "table"
path = "~/sites/*.csv"
target = "y"
test = ["~/sites/*.csv"]
partition = "natural"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with two tables; the working directory is elsewhere, and must stay empty."""
    (tmp_path / "home" / "sites").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    for name in "ab":
        rows = "".join(f"{i},{i % 2}\n" for i in range(6))
        (tmp_path / "home" / "sites" / f"{name}.csv").write_text("x,y\n" + rows)
    yield tmp_path / "home"
    assert not os.listdir(tmp_path / "here")


def experiment(**more):
    data = from_clients([(torch.ones(4, 2), torch.arange(4) % 2)] * 2)
    given = {"algorithm": FedAvg(), "model": lambda: torch.nn.Linear(2, 2), "data": data}
    return Experiment(**given, rounds=1, device="cpu", **more)


def test_home_in_python(home):
    experiment().run("~/runs/a")
    assert experiment().resume("~/runs/a").path == home / "runs" / "a"
    assert len(load_runs("~/runs/*")) == 1 == len(load_runs("~/runs/a"))
    assert write_report(["~/runs/a"], "~/a.html").is_file() and (home / "a.html").is_file()
    experiment(weights="~/runs/a/model.safetensors").build()


def test_home_of_data(home):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    for path in ("~/sites/*.csv", ["~/sites/a.csv", Path("~/sites/b.csv")]):
        assert table(path, target="y").client_names == ("a", "b")
    data = table(iid(2), path="~/sites/a.csv", target="y", test="~/sites/b.csv")
    assert data.name == "a" and len(data.test_inputs) == 6
    data.save_indices("~/split.npz")
    assert lists("~/split.npz").split(data.targets, 0).count == 2
    (home / "split.txt").write_text("[[0, 1], [2]]")
    assert lists("~/split.txt").split(data.targets, 0).sizes.tolist() == [2, 1]
    (home / "arrays" / "a").mkdir(parents=True)
    for name, array in (("inputs", data.inputs), ("targets", data.targets)):
        np.save(home / "arrays" / "a" / f"{name}.npy", array.numpy())
    assert folders(path="~/arrays").population == 1


def test_home_in_a_file_and_on_the_command_line(fedloom, home):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    (home / "t.toml").write_text(TOML)
    (home / "mine.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(1, 2)\n")
    fedloom("run", "~/t.toml", "--out=~/runs/t", "--quiet")
    assert (home / "runs" / "t" / "summary.json").is_file()
    words = "data.path=~/sites/a.csv data.test=none model=~/mine.py:net data.partition.name=iid"
    words += " data.partition.clients=2 --out ~/runs/u --quiet"
    fedloom("run", "~/t.toml", *words.split())
    fedloom("show", "~/runs/u")
    fedloom("compare", "~/runs/*", "--csv", "~/runs.csv")
    assert (home / "runs.csv").is_file()
    fedloom("describe", "~/sites/*.csv", "--target", "y")
