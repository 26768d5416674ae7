"""FedACG's methods and protocols."""

from __future__ import annotations

from .entry import Protocol, Row

DECAYS = (0.995, 0.998, 1.0)
_TRIED = {"local.schedule.decay": DECAYS}
_OWN = {"CIFAR-100": "local.schedule.decay=0.995"}  # FedACG's released commands; 0.998 elsewhere
# LEAF's clients are unequal; FedDyn's and FedDC's code weighs alpha by their sizes, not the means
_SIZED = dict.fromkeys(
    ("FEMNIST", "CelebA", "Shakespeare"), "algorithm.size_scaled=true weighting=uniform"
)

# ----------------------------------------------------------------------------------------- methods
# The paper does not say which value of a grid gave which cell: those of the authors' code are run.
ALL = (
    Row(method="FedAvg", changes="algorithm=fedavg", grid=_TRIED),
    Row(method="FedProx", changes="algorithm=fedprox algorithm.mu=0.001", grid=_TRIED),
    Row(
        method="FedAvgM",
        changes="algorithm=fedavgm algorithm.beta=0.4",
        grid=_TRIED | {"algorithm.beta": (0.4, 0.6, 0.8)},
    ),
    Row(
        method="FedAdam",
        changes="algorithm=fedadam algorithm.server_lr=0.01 algorithm.tau=0.001",
        grid=_TRIED,
    ),
    Row(
        method="FedDyn",
        changes="algorithm=feddyn algorithm.alpha=0.1",
        on=_SIZED,
        grid=_TRIED | {"algorithm.alpha": (0.001, 0.01, 0.1)},
    ),
    Row(method="MOON", changes="algorithm=fedavg objective=moon objective.mu=1.0", grid=_TRIED),
    Row(
        method="FedCM",
        changes="algorithm=fedcm algorithm.alpha=0.1",
        grid=_TRIED | {"algorithm.alpha": (0.1, 0.3, 0.5)},
    ),
    Row(method="FedMLB", changes="algorithm=fedavg objective=fedmlb", grid=_TRIED),
    Row(method="FedLC", changes="algorithm=fedavg objective=fedlc", grid=_TRIED),
    Row(method="FedNTD", changes="algorithm=fedavg objective=fedntd", grid=_TRIED),
    Row(method="FedDC", changes="algorithm=feddc algorithm.alpha=0.01", on=_SIZED, grid=_TRIED),
    Row(method="FedDecorr", changes="algorithm=fedavg objective=feddecorr", grid=_TRIED),
    Row(
        method="FedACG",
        changes="algorithm=fedacg algorithm.lam=0.85 algorithm.beta=0.01",
        on=_OWN,
        grid=_TRIED | {"algorithm.lam": (0.8, 0.85, 0.9), "algorithm.beta": (0.1, 0.01, 0.001)},
    ),
)
BY_NAME = {row.method: row for row in ALL}
_LOOKAHEAD = "server=lookahead server.lam=0.85"
WITH_ACG = tuple(
    row
    for name in ("FedMLB", "FedLC", "FedDecorr")
    for row in (
        BY_NAME[name],
        Row(method=f"{name} + ACG", changes=f"{BY_NAME[name].changes} {_LOOKAHEAD}"),
    )
)
COMPONENTS = (
    BY_NAME["FedAvg"],
    BY_NAME["FedProx"],
    BY_NAME["FedAvgM"],
    Row(
        method="FedAvgM+reg",
        changes=f"{BY_NAME['FedProx'].changes} server=momentum server.beta=0.4",
    ),
    Row(method="FedACG-noreg", changes=f"algorithm=fedavg {_LOOKAHEAD}", on=_OWN),
    BY_NAME["FedACG"],
)
_PAQ = "compress=fedpaq compress.levels=7"
QUANTISED = (
    BY_NAME["FedAvg"],
    Row(method="FedPAQ", changes=f"algorithm=fedavg {_PAQ}"),
    Row(method="FedACG + FedPAQ", changes=f"{BY_NAME['FedACG'].changes} {_PAQ}", on=_OWN),
)


def of(*names: str) -> tuple[Row, ...]:
    return tuple(BY_NAME[name] for name in names)


TEN = tuple(row for row in ALL if row.method not in ("FedMLB", "FedLC", "FedDecorr"))
SEVEN = of("FedAvg", "FedProx", "FedDyn", "MOON", "FedNTD", "FedDC", "FedACG")

# --------------------------------------------------------------------------------------- protocols
CPU = (
    "ResNet-8 with GroupNorm in place of ResNet-18, 200 rounds in place of 1,000, tested every 4; "
    "data, partition, participation, local work, decay and clip are the paper's. Tiny-ImageNet is "
    "left out"
)
_SMOKE = (
    "rounds=2 cohort=0.2 engine=serial device=cpu model=mlp model.hidden=[32,32] data=digits "
    "data.clients=20 local.epochs=1 local.batch=32"
)
_NO_SMALL = "no small network takes 64 x 64 images"
_SPLITS = {
    "dir0.3": ("partition=dirichlet;alpha=0.3", "data.alpha=0.3"),
    "dir0.6": ("partition=dirichlet;alpha=0.6", "data.alpha=0.6"),
    "iid": ("partition=iid", "data.partition=iid"),
}
_SETS = {"c10": ("CIFAR-10", "cifar10", 10), "c100": ("CIFAR-100", "cifar100", 100)}


def images(data: str, clients: int, split: str = "dir0.3", share: float = 0.0) -> Protocol:
    """CIFAR-10 or CIFAR-100 over 100 or 500 clients; share: who takes part, if not 5 or 2 %."""
    dataset, recipe, classes = _SETS[data]
    setting, partition = _SPLITS[split]
    active = share or (0.05 if clients == 100 else 0.02)
    return Protocol(
        name="-".join([data, str(clients), split, *([f"{share:g}"] if share else [])]),
        recipe=f"fedacg_{recipe}" + ("_500" if clients == 500 else ""),
        dataset=dataset,
        setting=f"clients={clients};participation={active};{setting}",
        changes=partition + (f" cohort={share}" if share else ""),
        cpu=f"model=resnet8 model.classes={classes} rounds=200 evaluate.every=4",
        smoke=f"{_SMOKE} {partition}",
    )


def _tiny(clients: int) -> Protocol:
    active = 0.05 if clients == 100 else 0.02
    return Protocol(
        name=f"tiny-{clients}",
        recipe="fedacg_tiny" + ("_500" if clients == 500 else ""),
        dataset="Tiny-ImageNet",
        setting=f"clients={clients};participation={active};partition=dirichlet;alpha=0.3",
        cpu=None,
        why=_NO_SMALL,
        smoke=_SMOKE,
    )


CHANGING = Protocol(
    name="c100-changing",
    recipe="fedacg_cifar100_changing",
    dataset="CIFAR-100",
    setting="clients=250;clients_pool=500;participation=0.04",
    cpu="model=resnet8 model.classes=100 rounds=200 evaluate.every=4 turnover.every=20",
    smoke=f"{_SMOKE} turnover.active=10 turnover.every=1",
)
_LEAF_SMOKE = f"{_SMOKE} data.partition=dirichlet data.alpha=0.3"
LEAF = (
    Protocol(
        name="femnist",
        recipe="fedacg_femnist",
        dataset="FEMNIST",
        setting="clients=2000;clients_per_round=5;partition=leaf",
        cpu="data.partition.clients=200 rounds=50 local.epochs=1 evaluate.every=5",
        smoke=_LEAF_SMOKE,
    ),
    Protocol(
        name="celeba",
        recipe="fedacg_celeba",
        dataset="CelebA",
        setting="clients=2000;clients_per_round=5;partition=leaf",
        cpu="data.partition.clients=200 rounds=50 local.epochs=1 evaluate.every=5",
        smoke=_LEAF_SMOKE,
    ),
)
SHAKESPEARE = Protocol(
    name="shakespeare",
    recipe="fedacg_shakespeare",
    dataset="Shakespeare",
    setting="participation=0.05;partition=leaf",
    cpu="data.partition.clients=100 rounds=50 local.steps=10 data.test_samples=500 "
    "evaluate.every=5",
    smoke=_LEAF_SMOKE,
)


def pair(clients: int, split: str) -> tuple[Protocol, ...]:
    return tuple(images(data, clients, split) for data in _SETS)


FEWER_CLIENTS = (*pair(100, "dir0.3"), _tiny(100))
MORE_CLIENTS = (*pair(500, "dir0.3"), _tiny(500))
FEWER_ACTIVE = tuple(
    images(data, clients, share=share)
    for clients, share in ((100, 0.02), (500, 0.01))
    for data in _SETS
)
ALONE = (images("c10", 100),)
SIX = {
    data: tuple(images(data, n, split) for split in _SPLITS for n in (100, 500)) for data in _SETS
}
