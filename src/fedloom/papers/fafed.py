"""FAFED (Wu et al., AAAI 2023): Tables 1 to 5, Figures 1 to 4."""

from __future__ import annotations

from .entry import Claim, Entry, Protocol, Row

RATES = (0.001, 0.01, 0.02, 0.05, 0.1)
SERVER_RATES = (10**-1.5, 10**-2, 10**-2.5)
MOMENTA = (0.1, 0.9)

# ----------------------------------------------------------------------------------------- methods
_RATE = {"local.lr": RATES}
_SERVER = _RATE | {
    "algorithm.server_lr": SERVER_RATES,
    "algorithm.beta1": MOMENTA,
    "algorithm.beta2": MOMENTA,
}
_METHODS = (
    Row(method="FedAvg", changes="algorithm=fedavg local.lr=0.05", grid=_RATE),
    Row(method="SCAFFOLD", changes="algorithm=scaffold local.lr=0.05", grid=_RATE),
    Row(
        method="STEM",
        changes="algorithm=stem algorithm.alpha=0.9 local.lr=0.05",
        grid=_RATE | {"algorithm.alpha": MOMENTA},
    ),
    Row(
        method="FedAdam",
        changes="algorithm=fedadam algorithm.server_lr=0.01 algorithm.tau=0.01 "
        "algorithm.beta1=0.9 algorithm.beta2=0.9 local.lr=0.05",
        grid=_SERVER,
    ),
    # option 2 divides by sqrt(v) + tau, with the 0.01 that the paper has for both methods
    Row(
        method="FedAMS",
        changes="algorithm=fedams algorithm.option=2 algorithm.server_lr=0.01 algorithm.eps=0.01 "
        "algorithm.beta1=0.9 algorithm.beta2=0.9 local.lr=0.05",
        grid=_SERVER,
    ),
    Row(
        method="FedAMS (option 1)",
        changes="algorithm=fedams algorithm.server_lr=0.01 algorithm.eps=0.01 "
        "algorithm.beta1=0.9 algorithm.beta2=0.9 local.lr=0.05",
        grid=_SERVER,
    ),
    Row(
        method="FAFED",
        changes="algorithm=fafed algorithm.alpha=0.9 algorithm.beta=0.9 algorithm.rho=0.01 "
        "local.lr=0.01",
        grid=_RATE | {"algorithm.alpha": MOMENTA, "algorithm.beta": MOMENTA},
    ),
)
_ADAPTIVE = "algorithm.server_lr=0.03 algorithm.beta1=0.9 algorithm.beta2=0.9"
_TEXT_METHODS = (
    Row(method="FedAvg", changes="algorithm=fedavg"),
    Row(method="SCAFFOLD", changes="algorithm=scaffold"),
    Row(
        method="STEM",
        changes="algorithm=stem algorithm.alpha=0.9 local.lr=20 local.schedule=cube_root "
        "local.schedule.unit=epoch local.schedule.epoch=186",
        on={"WikiText-2@cpu": "local.schedule.epoch=19"},  # a pass over the validation text
    ),
    Row(method="FedAdam", changes=f"algorithm=fedadam algorithm.tau=0.01 {_ADAPTIVE}"),
    Row(
        method="FedAMS",
        changes=f"algorithm=fedams algorithm.option=2 algorithm.eps=0.01 {_ADAPTIVE}",
    ),
    Row(
        method="FAFED",
        changes="algorithm=fafed algorithm.alpha=0.9 local.lr=1 local.schedule=cube_root "
        "local.schedule.w=2",
    ),
)

# --------------------------------------------------------------------------------------- protocols
CPU = (
    "150 rounds; network, data, methods and grids are the paper's, which does not say how many "
    "rounds it has (500 is our reading)"
)
CPU_TEXT = "an LSTM of 2 x 64, its validation text, 20 rounds in place of 300"
_SMOKE = (
    "rounds=2 engine=serial device=cpu model=mlp model.hidden=[32] data=digits data.clients=4 "
    "local.steps=2 local.batch=20"
)
# (b, q) follow "with more heterogeneity we increase b and decrease q" over the two grids
_LEVELS = {
    "low": ("data.partition=similarity data.share=0.95", "local.steps=20 local.batch=5"),
    "medium": ("data.partition=blocks", "local.steps=10 local.batch=50"),
    "high": ("", "local.steps=5 local.batch=100"),
}
_SETS = {"fashion": "Fashion-MNIST", "mnist": "MNIST", "cifar10": "CIFAR-10"}
_HALVES = "data.partition=class_groups data.groups=[[0,1,2,3,4],[5,6,7,8,9]]"


def _images(data: str, level: str) -> Protocol:
    partition, work = _LEVELS[level]
    if data == "cifar10" and level == "medium":
        partition = "data.partition=stratified"  # its files' order is not that of the others
    return Protocol(
        name=f"{data}-{level}",
        recipe=f"fafed_{data}",
        dataset=_SETS[data],
        setting=f"clients=20;heterogeneity={level}",
        changes=f"{partition} {work} rounds=500 evaluate.every=5",
        cpu="rounds=150",
        smoke=f"{_SMOKE} {partition or _HALVES}",
    )


_TEXT = Protocol(
    name="wikitext2",
    recipe="fafed_wikitext2",
    dataset="WikiText-2",
    cpu="data.part=valid model.vocabulary=13777 model.embedding=64 model.hidden=64 rounds=20 "
    "data.test_samples=200 evaluate.every=5",
    smoke="rounds=2 engine=serial device=cpu data.part=valid data.data_dir={text} data.length=5 "
    "data.download=false data.clients=4 data.test_samples=8 model.vocabulary=20 "
    "model.embedding=8 model.hidden=8 local.steps=2 local.batch=4",
)

# ------------------------------------------------------------------------------------------ claims
_LOSSES = tuple(f"train_loss round={t}" for t in (100, 250, 500))
_RIVALS = ("fedavg", "scaffold", "stem", "fedadam", "fedams")
_LOWEST = Claim(
    text="FAFED's training loss ends below the others'",
    better=("fafed",),
    than=_RIVALS,
    metric="train_loss",
    at="round=500",
)
_FIRST = Claim(
    text="FAFED's test accuracy is the best",
    better=("fafed",),
    than=_RIVALS,
    metric="test_acc_fraction",
)
_ORDER = (
    Claim(text="FedAMS is below FedAdam", better=("fedadam",), than=("fedams",)),
    Claim(text="FedAMS is below STEM", better=("stem",), than=("fedams",)),
)
_OPEN = (
    "Seeds, q and b of each heterogeneity are not given either: (q, b) = (20, 5), (10, 50), "
    "(5, 100). Rates and momenta are one point of the paper's grid.",
    "FAFED sends three vectors a round and STEM two: at equal rounds they send more.",
    "FedAMS divides by sqrt(v) + 0.01, as FedAdam does (option 2). Its option 1 has the 0.01 in "
    "the maximum: it divides by 0.1 at least, so it is a momentum of rate 0.316 at most. It is no "
    "fair rival, and no claim counts it.",
)


def _table(level: str, letter: str, *claims: Claim) -> Entry:
    return Entry(
        paper="fafed",
        name=f"2{letter}",
        title=f"6 methods, Fashion-MNIST, {level} heterogeneity",
        rows=_METHODS,
        protocols=(_images("fashion", level),),
        tables=(f"2_{level}",),
        measures=("test_acc_fraction",),
        claims=(_FIRST, *claims),
        cpu=CPU,
        notes=_OPEN,
    )


def _losses(level: str, number: int) -> Entry:
    return Entry(
        paper="fafed",
        name=f"fig{number}",
        title=f"training loss by round, {level} heterogeneity",
        rows=_METHODS,
        protocols=tuple(_images(data, level) for data in _SETS),
        measures=_LOSSES,
        claims=(_LOWEST,),
        cpu=CPU,
        notes=_OPEN,
    )


def _network(number: int, title: str) -> Entry:
    return Entry(paper="fafed", name=str(number), title=title, tables=(str(number),), fact="layers")


ENTRIES = (
    Entry(
        paper="fafed",
        name="1",
        title="sample and communication complexity",
        tables=("1",),
        fact="complexity",
    ),
    Entry(
        paper="fafed",
        name="fig1",
        title="language model: training loss and perplexity by round",
        rows=_TEXT_METHODS,
        protocols=(_TEXT,),
        measures=tuple(
            f"{kind} round={t}"
            for kind in ("train_loss", "train_perplexity")
            for t in (75, 150, 300)
        ),
        claims=(
            Claim(
                text="FAFED's training loss ends below the others'",
                better=("fafed",),
                metric="train_loss",
                at="round=300",
            ),
            Claim(
                text="FedAdam ends below FedAMS",
                better=("fedadam",),
                than=("fedams",),
                metric="train_loss",
                at="round=300",
            ),
        ),
        cpu=CPU_TEXT,
        notes=("Rounds are not given: 300, about 16 passes over the text.",),
    ),
    _table("low", "a"),
    _table("medium", "b"),
    _table("high", "c", *_ORDER),
    _losses("low", 2),
    _losses("medium", 3),
    _losses("high", 4),
    _network(3, "network for MNIST"),
    _network(4, "network for Fashion-MNIST"),
    _network(5, "network for CIFAR-10"),
)
