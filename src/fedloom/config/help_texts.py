"""Every setting in words: what `fedloom show local` prints, and docs/settings.md has.

Keys, defaults and ranges are read off the code that they configure; only their meanings are
written here, and a test holds the two together.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ..core.hyper import Hyper
from ..core.registry import Registry
from ..federation.local import Local
from ..federation.sampling import Turnover
from ..server.evaluation import Evaluation
from .overrides import NESTED, REGISTRIES
from .settings import Checkpoint, Memory, Settings
from .validation import known

# local.optimiser
_OPTIMISERS: dict[str, str] = {
    "sgd": "x <- x - lr g; with local.momentum b: v <- b v + g, x <- x - lr v. The buffer v begins "
    "at 0 in every round.",
    "adam": "Adam with bias correction (local.beta1, local.beta2, epsilon 1e-8); weight decay is "
    "added to the gradient. The moments begin at 0 in every round.",
    "adamw": "Adam with weight decay outside of the moments: x <- x - lr (step + wd x). The "
    "moments begin at 0 in every round.",
}


@dataclass(frozen=True)
class Setting:
    """One key as a person reads it; default "needed" where there is none."""

    key: str
    default: str
    allowed: str
    about: str


@dataclass(frozen=True)
class Table:
    """A table without a name. about: what it is for; make: what reads it; words: {key: meaning}."""

    about: str
    make: Callable[..., Any]
    words: Mapping[str, str]


_TABLES: dict[str, Table] = {
    "run": Table(
        "The keys outside of all tables.",
        Settings,
        {
            "name": "of the run's folder",
            "label": "of curves and tables",
            "rounds": "exchanges with the server; a finished run can be extended",
            "seed": "of everything random in the run: same seed, same bits",
            "cohort": "who takes part in a round: a share of all clients (0.05; 1.0 is all), a "
            "number (5; 1 is one client), or the clients themselves, one list per round, begun "
            "again at its end",
            "sampling": "fixed: exactly that many, drawn without replacement; bernoulli: each "
            "client by itself, with that probability",
            "weighting": "of the updates in the mean: by the clients' examples, all the same, or a "
            "list with a weight for each client",
            "nonfinite": "an answer that is not finite, or makes the server so, ends "
            "the run, or is left out and said",
            "engine": "serial, workers:N (processes, at most 4 per processor), vectorised:N (N "
            "clients at once), workers:2+vectorised:50, or auto, which measures them first",
            "device": "auto takes a CUDA GPU if there is one; cpu, cuda, cuda:1, mps",
            "dtype": "of the model and the numbers sent",
            "channels_last": "memory order of pictures; none: where it is faster",
        },
    ),
    "local": Table(
        "What a client does between two exchanges.",
        Local,
        {
            "epochs": "passes over the client's data, which may be a fraction; 1 if neither epochs "
            "nor steps nor seconds is given",
            "steps": "local steps K instead of epochs: of every client, or a list, one per client",
            "seconds": "simulated seconds after which the server calls time (needs [devices]); "
            "epochs or steps are then the most a client does",
            "batch": "examples of a step; none: all the client has",
            "lr": "the local learning rate, or a list of one per round (the last one holds from "
            "then on); local.schedule multiplies it",
            "optimiser": "around the method's direction: fedloom list optimisers",
            "momentum": "of sgd",
            "beta1": "of adam and adamw; none: 0.9",
            "beta2": "of adam and adamw; none: 0.999",
            "weight_decay": "added to the gradient; with adamw outside of it",
            "clip": "largest norm of all gradients together, before weight decay",
            "sam": "rho: gradients are taken at x + rho g / ||g||",
            "probe_batch": "examples of the one exchange before round 0, for methods that have it "
            "(FAFED, STEM); none: one batch",
            "order": "shuffled: drawn anew in every epoch; text: read on, for language models",
            "drop_last": "leave out an epoch's last batch where it is smaller",
        },
    ),
    "evaluate": Table(
        "When and how the server's model is measured.",
        Evaluation,
        {
            "every": "rounds between evaluations (the last round always has one); 0: only there",
            "ema": "factor of the moving average on which targets are looked for",
            "target": "of the headline metric, in its unit: 0.8 is 80 %",
            "validation": "share of each client's training examples held out for choices",
            "clients": "after the last round, the metric of each client too",
            "sizes": "of sub-models: more capacities to measure after the last round",
            "sizes_every": "rounds between measuring every capacity; none: as every; 0: at the end",
            "statistics": "of batch norm that keeps none: static (over the training examples) or "
            "batch (of the test batch)",
            "explored": "of sub-models: note in every round which coordinates are held",
        },
    ),
    "checkpoint": Table(
        "When the state is written.",
        Checkpoint,
        {
            "every_rounds": "rounds between two checkpoints, beside every_seconds",
            "every_seconds": "seconds between two checkpoints; none: by rounds alone",
            "keep": "how many stay",
        },
    ),
    "memory": Table(
        "What clients remember between rounds.",
        Memory,
        {
            "resident_bytes": "most that stays in memory, the rest on disk (runs with a folder); "
            "none: all of it",
        },
    ),
    "turnover": Table(
        "A set of clients that changes; without this table all are there in all rounds.",
        Turnover,
        {
            "active": "how many clients are there at a time",
            "every": "rounds between changes",
            "replace": "probability with which each leaves then; none: all are drawn anew",
            "forget": "drop what a client remembers when it leaves",
        },
    ),
}
OPTIMISERS = Registry("local optimiser", _OPTIMISERS)
TABLES = Registry("table of settings", _TABLES)
_MADE = {"name": "the recipe's, the file's", "label": "made from the parts"}
# keys that stand beside the options of what a table names
EXTRA: dict[str, tuple[Setting, ...]] = {
    "data": (
        Setting(
            "data.tests",
            "none",
            "matched, independent",
            "test sets of the clients' own: with the labels of their training data, or dealt anew",
        ),
    ),
    "local.schedule": (
        Setting("local.decay", "none", "in (0, 1]", "short for exponential with this decay"),
    ),
    "submodel": (
        Setting(
            "submodel.capacities",
            "[1/64, 1/16, 1/4, 1]",
            "shares in (0, 1], or a file",
            "levels, dealt out in turn; one per client; or a file that has one per client",
        ),
        Setting("submodel.shares", "none", "shares", "of the clients, one for each level"),
    ),
    "compress": (
        Setting(
            "compress.feedback",
            "the codec's own",
            "residual, forget, ef21",
            "what a client does with what its codec left out",
        ),
        Setting("compress.down", "none", "a codec", "of the server's messages"),
    ),
}


def settings_in(name: str) -> list[Setting]:
    """The settings of a table without a name, in the code's order."""
    table, path = TABLES[name], "" if name == "run" else f"{name}."
    if isinstance(table.make, type) and issubclass(table.make, BaseModel):
        fields = table.make.model_fields
        return [
            Setting(
                path + key,
                _MADE.get(key, shown(f.default)),
                _kind(f.annotation),
                table.words[key],
            )
            for key, f in fields.items()
        ]
    return [
        replace(setting, about=table.words[setting.key.removeprefix(path)])
        for setting in _of(table.make, path, ("schedule",) if name == "local" else ())
    ]


def setting_named(option: str) -> str | None:
    """The key of a setting that somebody writes as an option; None if there is none.

    >>> setting_named("--rounds"), setting_named("--weight-decay"), setting_named("--verbose")
    ('rounds', 'local.weight_decay', None)
    """
    name = option.lstrip("-").replace("-", "_")
    keys = [s.key for table in TABLES for s in settings_in(table)]
    keys += [*REGISTRIES, *(s.key for extra in EXTRA.values() for s in extra)]
    if name in keys or name.partition(".")[0] in {*REGISTRIES, *TABLES}:
        return name
    return next((key for key in keys if key.rpartition(".")[2] == name), None)


def options_of(path: str, name: str) -> list[Setting]:
    """The options of what a named table names, such as ("server", "adam"); about: the source."""
    return _of(REGISTRIES[path][name], f"{path}.", NESTED.get(path, ()))


def _of(make: Callable[..., Any], prefix: str, skip: tuple[str, ...]) -> list[Setting]:
    rules, given, hints = _rules(make), inspect.signature(make).parameters, get_type_hints(make)
    out = []
    for key in known(make, skip):
        rule = rules.get(key)
        bound = rule.range_text() if rule else "any"
        kind = _kind(hints.get(key))
        whole = kind.startswith("a whole number") and bound.startswith("in ")
        allowed = kind if bound == "any" else f"a whole number {bound}" if whole else bound
        about = "; ".join(filter(None, (rule.meaning, rule.source))) if rule else ""
        out.append(Setting(prefix + key, shown(given[key].default), allowed, about))
    return out


def _rules(make: Any) -> dict[str, Hyper]:
    """The ranges of a dataclass's fields."""
    fields = dataclasses.fields(make) if dataclasses.is_dataclass(make) else ()
    return {f.name: f.metadata["hyper"] for f in fields if "hyper" in f.metadata}


def shown(value: Any) -> str:
    """A default as TOML has it."""
    if value in (inspect.Parameter.empty, PydanticUndefined):
        return "needed"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    type(None): "none",
}


def _kind(hint: Any) -> str:
    """A type in words; with a pydantic bound as a range."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, dict.fromkeys(_kind(a) for a in inner)))
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (list, tuple) or getattr(origin, "__name__", "") == "Sequence":
        return "a list"
    return _KINDS.get(hint, "")
