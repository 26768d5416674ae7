"""Every kind of run, a line each: methods, models, data, and what a run may be made of beside them.

contract/test_engines_agree.py runs each in every engine, after a stop and on ranks. A case that
takes more than a second there is marked slow here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from fedloom import Churn, FedAvg, Local
from fedloom.aggregation import (
    CentredClipping,
    DifferentialPrivacy,
    DiscreteGaussian,
    GeometricMedian,
    IntegerRing,
    Krum,
    Median,
    NormBound,
    TrimmedMean,
)
from fedloom.algorithm import Algorithm
from fedloom.algorithms import FAFED, Ditto, FedNova, FedSMOO, Mime, Scaffold, fedadam
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks.tiny_federation import CAPACITIES, Trial, exits, experiment
from fedloom.compression.codecs import MAKERS, QSGD, PowerSGD, TopK, make_codec
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.federation.attacks import Alie, LabelFlip, SignFlip
from fedloom.federation.availability import Availability
from fedloom.federation.choice import PowerOfChoice
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import Levels, LogNormal
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom.federation.schedules import Exponential, FAFEDTheory
from fedloom.models import lstm_language_model, lstm_shakespeare, transformer_text, unet
from fedloom.objectives import (
    Dice,
    FedMLB,
    FedNTD,
    MaskedCrossEntropy,
    OrderedDistillation,
    SelfDistillation,
)
from fedloom.submodels import (
    FIARSE,
    SUBMODELS,
    FedBN,
    FedPer,
    FedRep,
    FedRolex,
    FjORD,
    HeteroFL,
    ScaleFL,
)
from fedloom.wrappers import Prox
from support import modules
from support import own_methods as own
from support.federations import (
    SHORT,
    THEORY,
    Mean,
    drawing,
    images,
    masks,
    on_clusters,
    on_texts,
    on_two_inputs,
    photographs,
    reading,
    sentences,
    small_images_net,
    two_views,
)
from support.own_stages import Frozen, Noise, Signs, Slow
from tiny import clusters, with_tests

# {case: (the registered name, options)}; SCAFFOLD's option I passes over all data
METHODS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in ALGORITHMS} | {
    "scaffold, option I": ("scaffold", {"option": 1}),
    "feddyn, by size": ("feddyn", {"size_scaled": True}),
    "feddc, by size": ("feddc", {"size_scaled": True}),
}


def method(case: str) -> Algorithm:
    """The method of a case, with its options."""
    name, options = METHODS[case]
    return make_algorithm(name, **options)


class Case(NamedTuple):
    """A kind of run.

    make: dtype, **changes -> the experiment. close: how far many clients at once may be from one
    after another, in float64, of each tensor's largest value. alone: they cannot be computed at
    once. naive: the loop of naive.py, of whole models without other parts, can compute it, too.
    billed: every message of a round is on the bill of that round, and no other is.
    """

    make: Callable[..., Trial]
    close: float = 1e-12
    alone: bool = False
    naive: bool = False
    billed: bool = True
    slow: bool = False


def named(cases: dict[str, Case], which: Callable[[Case], bool] = lambda case: True) -> list[Any]:
    """The names as parameters of a test, the slow ones with their mark."""
    slow = pytest.mark.slow
    return [
        pytest.param(name, id=name, marks=slow if case.slow else [])
        for name, case in cases.items()
        if which(case)
    ]


def _of(base: Callable[..., Trial], **settings: Any) -> Callable[..., Trial]:
    def make(dtype: torch.dtype = torch.float32, **changes: Any) -> Trial:
        return base(dtype=dtype, **(settings | changes))

    return make


RATES = Exponential(decay=0.9, step_decay=0.97)
LOCAL = Local(epochs=1.5, batch=4, lr=0.1, clip=1.0, weight_decay=0.01, schedule=RATES)
SAM = Local(epochs=2, batch=4, lr=0.1, sam=0.1, clip=1.0)
WEIGHTS = (0.2, 3.0, 1.0, 0.5, 2.0, 7.0, 1.0)


def _methods() -> dict[str, Case]:
    """Every method; FAFED divides by sqrt(v) + 0.01: what rounding leaves grows a hundredfold."""
    close = {"fafed": 1e-10}
    run = lambda name, **more: _of(on_clusters, algorithm=method(name), local=LOCAL, **more)
    out = {name: Case(run(name), close=close.get(name, 1e-12), naive=True) for name in METHODS}
    for name in ("scaffold", "fedsmoo", "feddc", "fedcm", "mimelite", "fafed"):
        out[f"{name}, weights"] = Case(run(name, weighting=WEIGHTS), close=1e-10, naive=True)
    for name in ("scaffold, option I", "fafed", "fedacg"):
        sam = _of(on_clusters, algorithm=method(name), local=SAM)
        out[f"{name}, SAM"] = Case(sam, close=1e-9, naive=True, slow=name == "fafed")
    momentum = Local(epochs=1.5, batch=4, lr=0.1, momentum=0.8, schedule=RATES)
    out["fednova, momentum"] = Case(_of(on_clusters, algorithm=FedNova(), local=momentum))
    return out


def _own_methods() -> dict[str, Case]:
    aliases = own.Historian, own.Storm, own.Hoarder, own.Wanderer, own.Flat, own.Full
    walk = Local(steps=3, batch=4, lr=0.25)
    out = {
        kind.__name__: Case(
            _of(on_clusters, algorithm=kind(), cohort=5, rounds=2),
            naive=True,
            alone=kind in (own.Historian, own.Hoarder),
        )
        for kind in aliases
    }
    for kind in (own.Walks, own.Looks, own.Whole):
        out[kind.__name__] = Case(_of(on_clusters, algorithm=kind(), local=walk, rounds=2))
    for kind in (own.APFL, own.FineTuned, own.Polyak):
        out[kind.__name__] = Case(_of(on_clusters, algorithm=kind(), rounds=2))
    parts = {"submodel": FIARSE(), "capacities": [0.3, 1.0], "rounds": 2}
    out["Polyak, masks"] = Case(_of(on_clusters, algorithm=own.Polyak(), **parts))
    out["Draws"] = Case(_of(on_clusters, algorithm=own.Draws(), rounds=2))
    out["a huge entry"] = Case(_of(on_clusters, algorithm=own.Spike(), nonfinite="skip"))
    full = {"cohort": 1.0, "weighting": "uniform"}
    said = {
        "PermK": {"algorithm": own.PermK(), **full},
        "FedBABU": {"algorithm": own.FedBABU()},
        "FedBABU, parts": {"algorithm": own.FedBABU(), **SLICES},
        "Heads": {"algorithm": own.Heads()},
        "DASHA": {"algorithm": own.DASHA(), "compress": "topk:0.2", **full},
        "DASHA, random": {
            "algorithm": Prox(inner=own.DASHA(a=0.2), mu=0.0),
            "compress": "qsgd",
            **full,
        },
        "Last": {"algorithm": own.Last()},
        "Last, parts": {"algorithm": own.Last(), "compress": "topk:0.2", **SLICES},
        "Last, signs": {"algorithm": own.Last(), "compress": "topk:0.2", "stages": (Signs(),)},
    }
    return out | {name: Case(_of(experiment, **(SHORT | parts))) for name, parts in said.items()}


SLICES: dict[str, Any] = {"submodel": HeteroFL(), "capacities": CAPACITIES}


# --------------------------------------------------------------------------------- models and data
def _models() -> dict[str, Case]:
    twice = Local(epochs=2, batch=4, lr=0.1)
    theory = Local(steps=THEORY.q, batch=4, lr=1.0, schedule=THEORY, probe_batch=12)
    fafed = {"algorithm": FAFED(c=THEORY.c), "local": theory, "rounds": 4}
    kinds: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
        "group norm": (lambda: modules.convolutions("group"), {"data": photographs}),
        "static batch norm": (lambda: modules.convolutions("static_batch"), {"data": photographs}),
        "lstm": (lambda: lstm_shakespeare(modules.WORDS, 4, 6), {}),
        "transformer": (lambda: transformer_text(modules.WORDS, 3, 6, 8, 2, dropout=0.2), {}),
        "used twice": (modules.used_twice, {}),
    }
    out = {name: Case(_of(on_texts, model=m, local=twice, **p)) for name, (m, p) in kinds.items()}
    for name in ("lstm", "transformer", "used twice"):
        make = kinds[name][0]
        out[f"FedMLB on {name}"] = Case(_of(on_texts, model=make, local=twice, objective=FedMLB()))
    out["our LSTM, fafed"] = Case(_of(on_texts, model=modules.our_lstm, **fafed), close=1e-9)
    for name, made in (("torch's LSTM", modules.torchs_lstm), ("attention", modules.Attention)):
        out[f"{name}, fafed"] = Case(_of(on_texts, model=made, **fafed), alone=True)
    out["dropout by name"] = Case(_of(on_texts, model=modules.Named))
    for kind in (modules.Masks, modules.Frozen, modules.Tied):
        out[kind.__name__] = Case(_of(on_clusters, algorithm=Scaffold(), model=kind))
    out["noise"] = Case(_of(on_clusters, algorithm=Scaffold(), model=modules.Noise), alone=True)
    constant = {
        "constant buffers": {},
        "constant buffers, private": {"private": FedPer(layers=("2",))},
        "constant buffers, coded": {"compress": "topk:0.5"},
        "constant buffers, median": {"aggregation": "median"},
    }
    for name, parts in constant.items():
        out[name] = Case(_of(on_texts, model=modules.constants, **parts))
    normed = {"model": lambda: modules.constants(norm=True), "algorithm": Scaffold(option=1)}
    lone = {"local": Local(steps=2, batch=3, lr=0.1)}
    out["constant buffers, a client alone"] = Case(_of(on_texts, **normed, **lone))
    for assigns in (False, True):
        name = f"moving mean, {'assigned' if assigns else 'written'}"
        moving = lambda assigns=assigns: modules.moving(assigns)
        out[name] = Case(_of(on_texts, model=moving), alone=True)
    sizes = {"data": clusters(sizes=(4, 8, 12, 6, 10, 4, 8)), "cohort": 5}
    half = Local(epochs=2, batch=2, lr=0.05)
    statistics = {"algorithm": Scaffold(), "model": modules.Statistics, "local": half, **sizes}
    out["running statistics"] = Case(_of(on_clusters, **statistics), alone=True)
    return out


def _data() -> dict[str, Case]:
    turned = {"data": images, "model": small_images_net, "local": Local(epochs=2, batch=3, lr=0.1)}
    out = {
        f"images, {name}": Case(
            _of(on_texts, algorithm=make_algorithm(name), cohort=4, seed=2, **turned)
        )
        for name in ("scaffold", "fedsmoo")
    }
    theory = FAFEDTheory(N=4, q=3, L=0.03, rho=0.1, b=2)
    slow = Local(steps=3, batch=2, lr=1.0, schedule=theory, order="text", probe_batch=6)
    fafed = {"algorithm": FAFED(c=theory.c), "local": slow}
    out["text in order"] = Case(_of(reading, dropout=0.3, cohort=3), close=1e-9)
    out["text in order, fafed"] = Case(_of(reading, dropout=0.3, cohort=3, **fafed), close=1e-9)
    for padding in (False, True):
        spoken = {
            "model": lambda: lstm_language_model(9, 6, 6, dropout=0.2),
            "data": lambda dtype, padding=padding: sentences(dtype, padding),
            "local": Local(epochs=2, batch=4, lr=0.5, clip=0.25),
            "cohort": 2,
        }
        out[f"language{', padded' if padding else ''}"] = Case(_of(on_texts, **spoken))
    pixels = {
        "model": lambda: unet(classes=3, width=2, depth=1, groups=2),
        "data": masks,
        "objective": Dice(ignore=255, cross_entropy=0.5),
        "local": Local(epochs=2, batch=4, lr=0.5),
        "metrics": ["accuracy", "dice"],
    }
    out["pixels"] = Case(_of(on_texts, **pixels))
    out["two views"] = Case(two_views)
    out["two inputs"] = Case(on_two_inputs)
    return out


# ------------------------------------------------------------------------------------- other parts
def _submodels() -> dict[str, Case]:
    scalefl = {"submodel": ScaleFL(), "objective": SelfDistillation(), "model": exits}
    masked = Local(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=0.01)
    distilled = OrderedDistillation(alpha=0.5, tau=2.0)
    parts: dict[str, dict[str, Any]] = {
        **{name: {"submodel": make()} for name, make in SUBMODELS.items() if name != "scalefl"},
        "scalefl": scalefl,
        "scalefl, as its code": scalefl
        | {"objective": SelfDistillation(beta=1.0, after=2, code=True)},
        "fjord, distilled": {"submodel": FjORD(), "objective": distilled},
        "fjord, given widths": {"submodel": FjORD(widths=(0.3, 0.6))},
        "fjord, FedNTD": {"submodel": FjORD(), "objective": FedNTD()},
        "fiarse, shards": {"submodel": FIARSE(group="shard", shards=("first.*", "s*.weight"))},
        "fiarse, nonzero": {"submodel": FIARSE(count="nonzero")},
        "fiarse, masked steps": {"submodel": FIARSE(momentum_mask="update"), "local": masked},
        "heterofl, budget": {"submodel": HeteroFL(width="budget")},
        "fedrolex, no scaler": {"submodel": FedRolex(scaler=False)},
        "fedrolex, owners": {"submodel": FedRolex(owners=True), "objective": MaskedCrossEntropy()},
        "fjord, scaffold": {"submodel": FjORD(), "algorithm": Scaffold()},
        "scalefl, fedacg": scalefl | {"algorithm": make_algorithm("fedacg")},
        "mime, heterofl": {"submodel": HeteroFL(), "algorithm": Mime()},
        "heterofl, SAM": {"submodel": HeteroFL(), "local": SAM},
        "fiarse, SAM": {"submodel": FIARSE(), "local": SAM},
    }
    return {n: Case(_of(experiment, capacities=CAPACITIES, **part)) for n, part in parts.items()}


POISSON: dict[str, Any] = {"sampling": "poisson", "weighting": "uniform"}


def _aggregations() -> dict[str, Case]:
    noise = {"clip": 0.1, "noise": 0.1}
    parts: dict[str, dict[str, Any]] = {
        "median": {"aggregation": Median()},
        "trimmed_mean": {"aggregation": TrimmedMean(trim=0.3)},
        "krum": {"aggregation": Krum(hostile=0.1, several=2), "cohort": 5},
        "geometric_median": {"aggregation": GeometricMedian()},
        "centred_clipping": {"aggregation": CentredClipping(radius=0.1)},
        "norm_bound": {
            "aggregation": NormBound(norm=0.1),
            "compress": Link(FieldCodec(QSGD(), Residual())),
        },
        "dp": {"aggregation": DifferentialPrivacy(**noise, quantile=0.5), **POISSON},
        "integer_ring": {"aggregation": IntegerRing()},
        "discrete_gaussian": {
            "aggregation": DiscreteGaussian(**noise, honest=2),
            "weighting": "uniform",
        },
        "norm_bound, parts": {"aggregation": NormBound(norm=0.1), **SLICES},
        "mean, sign flip": {"attack": SignFlip(share=0.4)},
        "mean, alie": {"attack": Alie(share=0.4, strength=1.0)},
        "dp, alie": {
            "aggregation": DifferentialPrivacy(**noise),
            "attack": Alie(share=0.4, strength=1.0),
            **POISSON,
        },
        "median, label flip": {"aggregation": Median(), "attack": LabelFlip(share=0.4)},
    }
    own_method = {"algorithm": Scaffold()}
    return {
        n: Case(
            _of(experiment, **(own_method | p)),
            close=1e-9,
            billed=n not in ("integer_ring", "discrete_gaussian"),
        )
        for n, p in parts.items()
    }


def _stages() -> dict[str, Case]:
    return {
        f"stage, {name}": Case(_of(experiment, **(SHORT | parts))) for name, parts in STAGES.items()
    }


STAGES: dict[str, dict[str, Any]] = {
    "noise": {"stages": (Noise(),), "algorithm": FedSMOO(), "compress": "topk:0.2"},
    "noise, sub-models": {"stages": (Noise(),), **SLICES},
    "frozen": {"stages": (Frozen(),), "algorithm": Scaffold()},
    "frozen, top-k": {"stages": (Frozen(),), "compress": "topk:0.2"},
    "signs, private": {"stages": (Signs(), Noise()), "private": FedPer(), "compress": "qsgd"},
    "slow": {"stages": (Slow(), Signs()), "compress": Link(FieldCodec(TopK(ratio=0.2), EF21()))},
    "signs, median": {"stages": (Signs(),), "aggregation": "median", "algorithm": Scaffold()},
}


def _clients() -> dict[str, Case]:
    """Who takes part, and when."""
    late = {
        "clock": Asynchronous(buffer=2, concurrency=4),
        "devices": LogNormal(sigma=1.5, up=1e4, down=1e4),
        "local": Local(epochs=1, batch=4, lr=0.1),
        "rounds": 6,
    }
    topk = Link(FieldCodec(TopK(ratio=0.3), Residual()), down=TopK(ratio=0.5))
    clocked: dict[str, dict[str, Any]] = {
        "scaffold": {"algorithm": Scaffold()},
        "ifca": {"algorithm": make_algorithm("ifca")},
        "compressed both ways": {"compress": topk},
        "parts": {"submodel": HeteroFL(), "capacities": (0.5, 1.0)},
        "private layers": {"private": FedPer()},
        "median": {"aggregation": Median()},
        "churn": {"churn": Churn(active=5, every=2)},
        "drop-out": {"availability": Availability(share=0.8, dropout=0.3)},
    }
    out = {
        f"late, {n}": Case(_of(on_clusters, **(late | p)), billed=False) for n, p in clocked.items()
    }
    for forget in (False, True):
        churn = Churn(active=4, every=2, replace=0.5, forget=forget)
        parts = {"algorithm": Scaffold(), "cohort": 3, "churn": churn, "rounds": 6}
        out[f"churn{', forgetting' if forget else ''}"] = Case(_of(on_clusters, **parts))
    bernoulli = {"algorithm": Scaffold(), "cohort": 0.5, "sampling": "bernoulli"}
    on = Local(steps=3, batch=4, lr=0.1, passes="continue")
    out["passes that go on"] = Case(_of(on_clusters, local=on))
    private = Local(steps=2, batch=4, lr=0.05, dp=ExamplePrivacy(noise=0.5))
    out["private examples"] = Case(_of(experiment, local=private))
    out["bernoulli"] = Case(_of(on_clusters, **bernoulli))
    choice = {"cohort": 2, "devices": Levels(up=1e4, down=1e4), "choose": PowerOfChoice(among=4)}
    out["power of choice"] = Case(_of(on_clusters, **choice), billed=False)
    patient = choice | {"choose": own.Patient()}
    out["choice by the rows so far"] = Case(_of(on_clusters, **patient))
    drop_out = {"availability": Availability(dropout=0.2, over_selection=1.5)}
    out["drop-out"] = Case(_of(on_clusters, devices=LogNormal(), **drop_out), billed=False)
    return out


def _personal() -> dict[str, Case]:
    def tested(dtype: torch.dtype, **settings: Any) -> Trial:
        return on_clusters(dtype, **({"data": with_tests(clusters(dtype))} | settings))

    steps = Local(steps=3, batch=3, lr=0.1, momentum=0.5, clip=1.0, weight_decay=0.01)
    first = {"private": FedPer(layers=("0",)), "compress": "topk:0.2"}
    norms = {"model": modules.normed, "cohort": [[3, 4, 6]], "rounds": 2}
    norms["local"] = Local(steps=2, batch=None, lr=0.1)
    right = lambda outputs, targets: (outputs.argmax(1) == targets).float()
    metrics = {"set": Mean(), "each": right, "batch": lambda o, t: right(o, t).mean()}
    return {
        "metrics of clients": Case(_of(tested, metrics=metrics, higher_is_better=True)),
        "FedPer": Case(_of(tested, private=FedPer(), local=steps)),
        "FedRep": Case(_of(tested, private=FedRep(head=0.5), local=steps)),
        "FedPer, prox": Case(_of(tested, algorithm=Prox(inner=FedAvg(), mu=0.1), **first)),
        "FedPer, fedadam": Case(_of(tested, algorithm=fedadam(), **first)),
        "Ditto, tested": Case(_of(tested, algorithm=Ditto())),
        "FedBN": Case(_of(tested, private=FedBN(), **norms), alone=True),
        "FedPer, norms": Case(_of(tested, private=FedPer(), **norms), alone=True),
    }


CODECS = {name: make() for name, make in MAKERS.items()} | {
    "threshold": make_codec("threshold:0.02"),
    "scaled dropping": make_codec("dropping:0.5,true"),
    "dropping, natural": make_codec("dropping:0.5|natural"),
    "layers": make_codec("topk:0.1,layer|sign"),
}
DOWN = {
    "down": Link(down=make_codec("topk:0.2|int8")),
    "both": Link(
        FieldCodec(QSGD(levels=15, bucket=32), Residual()), down=QSGD(levels=31, bucket=32)
    ),
    "matrices": Link(FieldCodec(TopK(ratio=0.3), Residual()), down=PowerSGD(rank=1)),
}


def _links() -> dict[str, Case]:
    out = {}
    for name, codec in CODECS.items():
        via = FieldCodec(codec, Forget() if codec.unfit(102) else Residual())
        out[f"codec, {name}"] = Case(_of(on_clusters, compress=via))
    for name, link in DOWN.items():
        parts = {"algorithm": Scaffold(), "compress": link}
        out[f"way down, {name}"] = Case(_of(on_clusters, **parts), billed=False)
    both = {"algorithm": FAFED(), "compress": DOWN["both"]}
    out["way down, fafed"] = Case(_of(on_clusters, **both), close=1e-9, billed=False)
    out["EF21"] = Case(
        _of(on_clusters, algorithm=Scaffold(), compress=FieldCodec(TopK(ratio=0.2), EF21()))
    )
    skip = {"algorithm": Mime(), "compress": "topk:0.2", "nonfinite": "skip", "rounds": 2}
    out["mime, top-k"] = Case(_of(on_clusters, **skip))
    return out


def _drawing() -> dict[str, Case]:
    norm = nn.BatchNorm1d(9, track_running_stats=False)
    layers = nn.Linear(5, 9), norm, nn.Tanh(), nn.Linear(9, 3)
    parts: dict[str, dict[str, Any]] = {
        "drawing": {},
        "drawing, statistics": {"model": lambda: modules.Drawing(nn.Sequential(*layers))},
        "drawing, personal": {"algorithm": Ditto()},
        "drawing, of the whole set": {"metrics": {"mean": Mean()}},
        "drawing, sub-models": {"submodel": FIARSE(), "capacities": [0.5, 1.0]},
    }
    return {name: Case(_of(drawing, **part), alone=True) for name, part in parts.items()}


def _together(groups: Iterable[dict[str, Case]]) -> dict[str, Case]:
    out: dict[str, Case] = {}
    for group in groups:
        assert not out.keys() & group.keys(), out.keys() & group.keys()
        out |= group
    return out


CASES = _together(
    (
        _methods(),
        _own_methods(),
        _models(),
        _data(),
        _submodels(),
        _aggregations(),
        _stages(),
        _clients(),
        _personal(),
        _links(),
        _drawing(),
    )
)
