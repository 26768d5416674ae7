"""What is refused, and in which words: the key, its value, what is allowed, what to do."""

import shutil
from pathlib import Path

import pytest
import torch

from fedloom import Experiment, FedAvg
from fedloom.data import digits, iid
from fedloom.models import mlp
from fedloom.report import load_run
from support.folders import record

# settings of `fedloom run digits`, and parts of what is said of them; the line names where they are
SETTINGS = [
    ("algorithm=fedacgg", "unknown algorithm 'fedacgg'", "did you mean 'fedacg'"),
    ("algorithm.server_lrr=1", "algorithm 'fedavg' has no key", "did you mean 'server_lr'"),
    ("algorithm.server_lr=x", "algorithm.server_lr must be in (0, inf), got 'x'"),
    ("algorithm.server_lr=0", "algorithm.server_lr must be in (0, inf), got 0"),
    ("algorithm=fedavgm algorithm.server_lr=0", "algorithm.server_lr must be in (0, inf)"),
    ("algorithm=3", "algorithm must be a name", "3"),
    ("algorithm=fedacg algorithm.lam=2", "algorithm.lam must"),
    ("algoritm=fedavg", "unknown key 'algoritm'", "did you mean 'algorithm'"),
    ("alpha=0.1", "unknown key 'alpha'", "data.partition.alpha"),
    ("checkpoint.keep=0", "checkpoint.keep must be a whole number from 1"),
    ("checkpoint.every_rounds=0", "checkpoint.every_rounds must be a whole number from 1"),
    ("checkpoint.every_seconds=-1", "checkpoint.every_seconds must"),
    ("cohort=[[1,'a']]", "names client 'a'", "give numbers, 0 to 49"),
    ("cohort=[[1,0.5]]", "cohort must be a whole number", "or a list of lists of whole"),
    ("cohort=51", "1 to the 50 clients", "51"),
    ("cohort=1.5", "(0, 1]", "1.5"),
    ("cohort=[[0],[50]]", "round 2", "client 50"),
    ("cohort=half", "cohort must be", "'half'"),
    ("compress=topk:2", "compress.ratio must"),
    ("compress.down=topk:2", "compress.down.ratio must"),
    ("compress=topk:abc", "compress.ratio must"),
    ("compress=topkk", "did you mean 'topk'"),
    ("compress=topk:1.5|int8", "codec 'topk:1.5': ratio must be in (0, 1], got 1.5"),
    ("compress=qsgd:200", "compress.levels must be a whole number from 1 to 127, got 200"),
    ("compress=topk:0.1,3,4", "ratio, scope"),
    ("compress=topk:0.1 compress.feedback=ef22", "did you mean 'ef21'"),
    ("compress.ratio=0.01", "compress.ratio needs a codec, and compress.name is missing"),
    ("compress.feedback=ef21", "compress.feedback needs a codec"),
    ("compress=none compress.ratio=0.1", "goes with a codec, and compress is none"),
    ("data.alpha=0", "data.partition.alpha must be in [1e-09, 1e+09], got 0; 0.1 is very"),
    ("data.partition=dirichlett", "unknown data.partition", "did you mean 'dirichlet'"),
    ("data.clients=5000", "5000 clients", "1438 samples"),
    ("data.test_share=1.5", "test_share must be in [0, 1)", "1.5"),
    ("device=gpu", "unknown device 'gpu'", "cuda"),
    ("device=mps", "sees no Apple GPU here; use device = auto or cpu"),
    ("devices=lognormal devices.sigma=-1", "devices.sigma must"),
    ("devices=lognormall", "did you mean 'lognormal'"),
    ("devices=levels devices.steps_per_second=[]", "above 0"),
    ("dtype=float16", "'float32' or 'float64'", "'float16'"),
    ("engine=worker", "unknown engine 'worker'", "did you mean 'workers'"),
    ("engine=workers:0", "workers:0", "1 or more"),
    ("evaluate.ema=1", "evaluate.ema must be in [0, 1)", "1"),
    ("evaluate.every=-1", "evaluate.every must"),
    ("evaluate.sizes=[1.5]", "evaluate.sizes must be in (0, 1], got 1.5"),
    ("local.quick=1", "[local] has no key 'quick'", "known:"),
    ("local.lr=nan", "local.lr must be", "nan"),
    ("local.lr=true", "local.lr must be in (0, inf), or a list", "True"),
    ("local.lr=-1", "local.lr must be in (0, inf)", "-1"),
    ("local.steps=[1,'a']", "local.steps must be a whole number from 1 or none, or a list"),
    ("local.steps=[1,0]", "local.steps must be a whole number from 1", "got [1, 0]"),
    ("local.lr=[0.1,-1]", "local.lr must be in (0, inf)", "one per round"),
    ("local.batch=2.5", "local.batch must be a whole number", "2.5"),
    ("local.schedule=cosin", "unknown local.schedule 'cosin'", "did you mean 'cosine'"),
    ("local.schedule.decay=1", "local.schedule 'constant' has no key 'decay'"),
    ("local=3", "local is a table"),
    ("local.optimiser=adm", "radam, rmsprop, got 'adm'; did you mean 'adam'?"),
    ("local.lrr=1", "did you mean 'lr'"),
    ("local.schedule=cosine local.schedule.floor=2", "local.schedule.floor must"),
    ("lr=0.1", "unknown key 'lr'", "did you mean 'local.lr'"),
    ("model=mpl", "unknown model 'mpl'", "did you mean 'mlp'"),
    ("model.hidden=[0]", "model.hidden must be a list of whole numbers from 1, got [0]"),
    ("model.hidden=64", "model.hidden must be a list", "64"),
    ("model.classes=9999999999999999999", "[model]: mlp cannot be made"),
    ("model.hidden=[a,b]", "got '[a,b]'; texts in a list need quotes"),
    ("objective=mse", "unknown objective 'mse'"),
    ("objective=moon objective.tau=-1", "objective.tau must"),
    ("partition=pathological partition.classes=11", "11 classes", "10"),
    ("partition=patological", "did you mean 'pathological'"),
    ("partition=similarity partition.share=2", "share must be in [0, 1]", "2"),
    ("partition=lists partition.file=gone.npz", "gone.npz is not a readable"),
    ("partition=class_groups partition.groups=[[0,0],[1]]", "each of its classes once"),
    ("partition=class_groups partition.groups=[0,1]", "partition.groups must be a list"),
    ("partition=class_groups partition.groups=x", "partition.groups must be a list"),
    ("rounds=0", "rounds must be a whole number from 1", "0"),
    ("rounds=2.0", "rounds must be a whole number", "2.0"),
    ("rounds.x=1", "rounds.x", "not a table"),
    ("rounds=many", "rounds must be a whole number"),
    ("sampling=uniform", "sampling must be one of fixed, bernoulli, poisson", "'uniform'"),
    ("seed=-1", "seed must be a whole number from 0", "-1"),
    ("local.sam=-0.1", "local.sam", "[0, inf)"),
    ("server.lr=1", "server.name is missing", "average, momentum"),
    ("server=adma", "unknown server 'adma'", "did you mean 'adam'"),
    ("server=adam server.lrr=1", "server 'adam' has no key 'lrr'", "did you mean 'lr'"),
    ("server=adam server.lr=-1", "server.lr must be in (0, inf), got -1"),
    ("server=lookahead server.lam=1", "server.lam", "[0, 1)"),
    ("server=lookahead server.inner=1", "has no key 'inner'"),
    ("submodel=fiarse submodel.count=zz", "submodel.count must"),
    ("submodel=fiarse submodel.capacities=[0.5,2.0]", "must be in (0, 1], got 2.0"),
    ("submodel=fiarse submodel.capacities=0", "must be in (0, 1], got 0"),
    ("submodel=fiarse submodel.capacities=1/4,half", "nor a file that can be read"),
    ("submodel=fiarse submodel.capacities=[0.5,1] submodel.shares=[1.0]", "each of the 2"),
    ("submodel=fiarse submodel.group=shard", "FIARSE: group = 'shard'"),
    ("submodel=fiarse submodel.shares=[0.5,0.5]", "each of the 4 levels"),
    ("submodel=heterfl", "did you mean 'heterofl'"),
    ("submodel=fjord submodel.widths=[0.0]", "submodel.widths must be a list of numbers in (0, 1]"),
    ("tests=match", "unknown data.tests 'match'", "did you mean 'matched'"),
    ("tests=matched data.test_share=0", "[data]", "has no test set to divide"),
    ("churn.active=-1", "churn.active must"),
    ("churn.active=51", "churn.active must be from 1 to the 50 clients", "51"),
    ("churn.active=x", "churn.active must be a whole number", "'x'"),
    ("churn.active=5 churn.replace=2", "churn.replace must be in [0, 1]"),
    ("churn.active=5 cohort=6", "from 1 to the 5 clients there are"),
    ("churn.active=5 cohort=[[1]]", "keep one of them"),
    ("churn.activ=5", "has no key 'activ'", "did you mean 'active'"),
    ("churn=5", "churn must be a table"),
    ("weighting=exampels", 'weighting must be "examples", "uniform" or a list'),
]
# parts that do not go together, or not with the data
MIXES = [
    ("model=cnn_cfedavg", "inputs of shape [2, 1, 8, 8]"),
    ("model.classes=5", "labels go up to 9"),
    ("local.drop_last=true local.batch=40", "fewer than local.batch"),
    ("model=logistic", "model.inputs=64"),
    ("devices=lognormal devices.sigma=1e12", "steps a second"),
    ("evaluate.target=95", "give 0.95 for 95 %"),
    ("algorithm=fedsam local.sam=0.1", "local.sam and FedSAM: it perturbs"),
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
    ("compress=fedpaq compress.feedback=residual", "variance factor"),
    ("compress.down=fedpaq", "the server's feedback around FedPAQ down"),
    ("compress.down=topk:0.1 submodel=heterofl", "compress up only"),
    ("compress.down.ratio=0.1", "compress.down.name is missing"),
    ('compress.up={v="topk:0.1"}', "compress.v needs a codec"),
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
    ("submodel=fiarse algorithm=fafed", "FIARSE and FAFED"),
]
# whole commands
COMMANDS = [
    ("run digts", "did you mean 'digits'"),
    ("run nowhere.toml", "nowhere.toml"),
    ("run digits rounds", "expected key=value"),
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
    ("show data", "`fedloom list data` has the names"),
    ("show algorithm", "`fedloom list algorithms` has the names"),
    ("compare", "RUN..."),
    ("run --resume", "RUN"),
    ("run --resume a --seeds 2", "--seeds is of a new run"),
    ("run digits --changed-code", "--changed-code is of --resume"),
    ("resume a", "`fedloom resume` is `fedloom run --resume` now"),
    ("matrix", "`fedloom matrix` is `fedloom list --compatibility` now"),
    ("partition digits", "`fedloom partition` is `fedloom data partition` now"),
    ("list --out page.md", "--out 'page.md' is of --compatibility"),
    ("list --compatibility --json", "--compatibility has no --json"),
    ("data partition --plot a.jpg", "'a.jpg' must end in .png"),
    ("data partition --save a.csv", "'a.csv' must end in .npz"),
    ("data partition nosuch", "unknown recipe 'nosuch'"),
    ("sweep digits", "nothing to try"),
    ("sweep digits local.lr=1,2 seeds=no", "seeds must be a whole number"),
    ("sweep digits local.lr=1,2 seeds=2 --seeds 3", "are both given"),
    ("sweep digits local.lr=1,2 --by luck", "--help"),
]


def refused(fedloom, command, words):
    """It is one line with these words, and nothing is begun -> what is said."""
    said = fedloom(*command.split(), code=2).output
    assert all(word in said for word in words), said
    assert not Path("runs").exists(), "nothing is begun"
    return said


@pytest.mark.parametrize(("settings", "words"), [(row[0], row[1:]) for row in SETTINGS])
def test_a_setting_is_refused_by_its_key(settings, words, fedloom):
    assert "error: command line" in refused(fedloom, "run digits " + settings, words)


@pytest.mark.parametrize(("settings", "words"), [(row[0], row[1:]) for row in MIXES])
def test_a_mix_is_refused_by_its_parts(settings, words, fedloom):
    refused(fedloom, "run digits " + settings, words)


@pytest.mark.parametrize(("command", "words"), [(row[0], row[1:]) for row in COMMANDS])
def test_a_command_is_refused(command, words, fedloom):
    refused(fedloom, command, words)


def test_a_recipes_own_codec_is_not_blamed_on_the_command_line(fedloom):
    text = 'compress = "topk:abc"\nrounds = 2\nmodel = "mlp"\nalgorithm = "fedavg"\n'
    Path("own.toml").write_text(f'{text}[data]\nname = "digits"\npartition = "iid"\n')
    said = "file 'own.toml': compress.ratio must be in (0, 1], got 'abc'"
    for more in ([], ["algorithm=fedacg"], ["compress.feedback=forget"]):
        assert said in fedloom("run", "own.toml", *more, code=2).output


# ------------------------------------------------------------------------- folders, files, machines
SMALL = ("rounds=2", "local.epochs=1")


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

    def refuse(*_, **__):
        raise OSError("connection refused")

    monkeypatch.setattr("requests.get", refuse)
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
    assert "no GPU" in fedloom("run", "device=cuda", code=2).output


def test_what_nobody_foresaw_is_one_line_too(fedloom, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a first line\nand a second")

    monkeypatch.setattr("fedloom.config.resolve", fail)
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
            "take aggregation.trim = 0.1, or a cohort of at least 20 clients",
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
