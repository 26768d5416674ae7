"""CFedAvg (Yang, Liu and Bentley, WiOpt 2021): Table 1, Figures 1 to 9; it has no result table."""

from __future__ import annotations

from typing import Any

from .entry import Claim, Entry, Protocol, Row

CLASSES = (10, 5, 2, 1)  # per client; 10 is nearly i.i.d.

# ----------------------------------------------------------------------------------------- methods
_PLAIN = Row(method="FedAvg", changes="compress=none")
_KEPT = {
    "Top-k .9": "topk:0.1",
    "Top-k .99": "topk:0.01",
    "RD .9": "dropping:0.1",
    "RD .99": "dropping:0.01",
}
_WITH = tuple(
    Row(method=name, changes=f"compress={codec} compress.feedback=residual")
    for name, codec in _KEPT.items()
)
_WITHOUT = tuple(
    Row(method=f"{name} no EF", changes=f"compress={codec} compress.feedback=forget")
    for name, codec in _KEPT.items()
)
_ONE_STEP = Row(
    method="FedAvg, one step", changes="compress=none local.steps=1", label="FedAvg K=1"
)

# --------------------------------------------------------------------------------------- protocols
CPU = (
    "20 clients in place of 100, each with as many images as in the paper, so a fifth of the data; "
    "FAFED's small network for (Fashion-)MNIST, ResNet-8 for CIFAR-10; 50 rounds in place of 100 "
    "and 200; partition, participation and local work are the paper's"
)
_SMOKE = (
    "rounds=2 engine=serial device=cpu model=mlp model.hidden=[32] data=digits data.clients=10 "
    "local.epochs=1 local.batch=64"
)
_FIFTH = "rounds=50 data.clients=20 data.samples=600"
_SMALL = "model=cnn_fafed_fashion"  # MNIST's images have the same size
_SETS = {
    "mnist": ("MNIST", "local.epochs=10 rounds=100", f"{_FIFTH} {_SMALL}"),
    "fashion": (
        "Fashion-MNIST",
        "local.epochs=10 rounds=100 data.clients=100 model=cnn_cfedavg",
        f"{_FIFTH} {_SMALL}",
    ),
    "cifar10": (
        "CIFAR-10",
        "local.epochs=10 rounds=200",
        f"{_FIFTH.replace('600', '500')} model=resnet8",
    ),
}
ROUNDS = {"mnist": 100, "fashion": 100, "cifar10": 200}


def _images(data: str, classes: int) -> Protocol:
    dataset, changes, cpu = _SETS[data]
    partition = f"data.classes={classes}"
    return Protocol(
        name=f"{data}-{classes}",
        recipe=f"cfedavg_{data}",
        dataset=dataset,
        setting=f"classes={classes}",
        changes=f"{changes} {partition}",
        cpu=cpu,
        smoke=f"{_SMOKE} {partition}",
    )


def _all(data: str, classes: tuple[int, ...] = CLASSES) -> tuple[Protocol, ...]:
    return tuple(_images(data, p) for p in classes)


# ------------------------------------------------------------------------------------------ claims
def _curves(data: str, *kinds: str) -> tuple[str, ...]:
    rounds = ROUNDS[data]
    at = (rounds // 4, rounds // 2, rounds)
    return tuple(f"{kind} round={t}" for kind in kinds or ("test_acc_pct",) for t in at)


def _last(data: str) -> dict[str, Any]:
    return {"metric": "test_acc_pct", "at": f"round={ROUNDS[data]}"}


def _helps(data: str, *classes: int) -> Claim:
    return Claim(
        text="error feedback helps, with few classes a client",
        better=tuple(row.key for row in _WITH),
        than=tuple(row.key for row in _WITHOUT),
        protocols=tuple(f"{data}-{p}" for p in classes),
        **_last(data),
    )


def _random(data: str) -> Claim:
    return Claim(
        text="random dropping of 99 % is behind 90 %",
        better=("rd-.9",),
        than=("rd-.99",),
        **_last(data),
    )


_OPEN = (
    "K is 10 epochs as printed in the list of hyper-parameters; the text also says steps. The mean "
    "over the clients is unweighted, only client updates are compressed.",
    "Random dropping is not scaled, as Definition 1 needs. Seeds are not given.",
    "What a client sends is in true bytes, positions included; the paper counts kept values alone.",
)


def _figure(
    name: str,
    title: str,
    rows: tuple[Row, ...],
    protocols: tuple[Protocol, ...],
    measures: tuple[str, ...],
    *claims: Claim,
) -> Entry:
    return Entry(
        paper="cfedavg",
        name=name,
        title=title,
        rows=rows,
        protocols=protocols,
        measures=measures,
        claims=claims,
        cpu=CPU,
        notes=_OPEN,
    )


def _norms(name: str, data: str, where: str) -> Entry:
    rounds = ROUNDS[data]
    ratios = tuple(f"residual_over_delta round={t}" for t in (rounds // 4, rounds))
    return _figure(
        name,
        f"norms of client update and error, {where}",
        _WITH,
        _all(data),
        (*ratios, f"delta_square round={rounds}", f"residual_square round={rounds}"),
        *(
            Claim(
                text=f"the error is larger with {kind} .99 than with .9",
                better=(f"{word}-.99",),
                than=(f"{word}-.9",),
                metric="residual_over_delta",
                at=f"round={rounds}",
            )
            for kind, word in (("Top-k", "top-k"), ("RD", "rd"))
        ),
    )


def _both(data: str) -> tuple[str, ...]:
    return _curves(data, "train_loss", "test_acc_pct")


_FIVE = (_PLAIN, *_WITH)
_EIGHT = (*_WITH, *_WITHOUT)
_COSTS = tuple(f"uplink_models acc={target}" for target in (50, 70, 80))

ENTRIES = (
    Entry(
        paper="cfedavg",
        name="1",
        title="network for MNIST and Fashion-MNIST",
        tables=("1",),
        fact="layers",
    ),
    _figure(
        "fig1a",
        "accuracy by round, MNIST",
        _FIVE,
        _all("mnist"),
        _curves("mnist"),
        _random("mnist"),
    ),
    _figure(
        "fig1b",
        "accuracy by round, CIFAR-10, with and without error feedback",
        (_PLAIN, *_EIGHT),
        _all("cifar10"),
        _curves("cifar10"),
        _random("cifar10"),
        _helps("cifar10", 2, 1),
    ),
    *(
        _figure(
            f"fig2{letter}",
            f"what is sent until an accuracy, {where}",
            (_ONE_STEP, _PLAIN, *_WITH),
            (_images(data, 5),),
            _COSTS,
            Claim(
                text="local steps and compression send the least",
                better=tuple(row.key for row in _WITH),
                than=(_ONE_STEP.key, _PLAIN.key),
                metric="uplink_models",
                at="acc=70",
            ),
        )
        for letter, data, where in (("a", "mnist", "MNIST"), ("b", "cifar10", "CIFAR-10"))
    ),
    _norms("fig3", "cifar10", "CIFAR-10"),
    _figure(
        "fig4",
        "training loss and accuracy, Fashion-MNIST",
        _FIVE,
        _all("fashion"),
        _both("fashion"),
        _random("fashion"),
    ),
    _figure(
        "fig5",
        "training loss and accuracy, CIFAR-10",
        _FIVE,
        _all("cifar10"),
        _both("cifar10"),
        _random("cifar10"),
    ),
    _figure(
        "fig6",
        "with and without error feedback, MNIST",
        _EIGHT,
        _all("mnist"),
        _both("mnist"),
        _helps("mnist", 2, 1),
    ),
    _figure(
        "fig7",
        "with and without error feedback, Fashion-MNIST",
        _EIGHT,
        _all("fashion"),
        _both("fashion"),
        _helps("fashion", 2, 1),
    ),
    _norms("fig8", "mnist", "MNIST"),
    _norms("fig9", "fashion", "Fashion-MNIST"),
)
