"""Every setting as text: for `fedloom show local` and the page docs/settings.md.

All of it is read from the code that the settings configure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..core.registry import Registry
from ..core.validation import fields_of
from ..experiment.settings import Settings
from .overrides import INNER, NESTED, PLAIN, REGISTRIES, SYNONYMS

# local.optimiser
OPTIMISERS = Registry(
    "local optimiser",
    {
        "sgd": "x <- x - lr g; with local.momentum b: v <- b v + g, x <- x - lr v. The buffer v "
        "begins at 0 in every round.",
        "nesterov": "x <- x - lr (g + b v) with b = local.momentum and v <- b v + g. The buffer v "
        "begins at 0 in every round.",
        "rmsprop": "x <- x - lr g / (sqrt(s) + 1e-8) with s <- a s + (1 - a) g^2, a = local.beta2 "
        "(0.99). The moment s begins at 0 in every round.",
        "adagrad": "x <- x - lr g / (sqrt(s) + 1e-10) with s <- s + g^2.",
        "adadelta": "x <- x - lr u, u = g sqrt(r + 1e-6) / sqrt(s + 1e-6); r and s are moving "
        "means of u^2 and g^2 with local.beta2 (0.9).",
        "adamax": "Adam with the largest entry so far, max(local.beta2 v, |g| + 1e-8), as "
        "the root.",
        "nadam": "Adam with Nesterov's momentum, as torch.optim.NAdam.",
        "radam": "Adam whose second moment counts once its variance is finite (rectified).",
        "adam": "Adam with bias correction (local.beta1, local.beta2, epsilon 1e-8); weight decay "
        "is added to the gradient. The moments begin at 0 in every round.",
        "adamw": "Adam with weight decay outside of the moments: x <- x - lr (step + wd x). The "
        "moments begin at 0 in every round.",
    },
)


@dataclass(frozen=True)
class Setting:
    """One key for a reader; default "needed" if there is none."""

    key: str
    default: str
    allowed: str
    about: str


# tables without a name; their docstrings explain them
TABLES: Registry[Callable[..., Any]] = Registry(
    "table of settings", {"run": Settings, **PLAIN, **INNER}
)
# what a file says for itself
_NAMED = ("schedule", "passes")  # tables within local, which are told by themselves
_DEFAULTS = {"name": "the recipe's, the file's", "label": "made from the parts", "dtype": "float32"}
_MORE = ("local.decay", *(f"{path}.{key}" for path, keys in NESTED.items() for key in keys))


def settings_in(name: str) -> list[Setting]:
    """The settings of a table without a name, in the code's order."""
    path, skip = "" if name == "run" else f"{name}.", _NAMED if name == "local" else ()
    settings = _of(TABLES[name], path, skip)
    return [replace(s, default=_DEFAULTS.get(s.key, s.default)) for s in settings]


def setting_named(option: str) -> str | None:
    """The key of a setting that was written as an option; None if there is none.

    >>> setting_named("--rounds"), setting_named("--batch-size"), setting_named("--verbose")
    ('rounds', 'local.batch', None)
    """
    name = option.lstrip("-").replace("-", "_")
    name = SYNONYMS.get(name, name)
    keys = [s.key for table in TABLES for s in settings_in(table)]
    keys += [*REGISTRIES, *_MORE]
    if name in keys or name.partition(".")[0] in {*REGISTRIES, *TABLES}:
        return name
    return next((key for key in keys if key.rpartition(".")[2] == name), None)


def options_of(path: str, name: str) -> list[Setting]:
    """The options of an entry of a named table, such as ("server", "adam"); about: the source."""
    return _of(REGISTRIES[path][name], f"{path}.", NESTED.get(path, ()))


def options_of_measure(make: Callable[..., Any]) -> list[Setting]:
    """The settings of an entry of `fedloom list measures`."""
    return _of(make, "", ("every",))


def _of(make: Callable[..., Any], prefix: str, skip: tuple[str, ...]) -> list[Setting]:
    out = []
    for key, hyper in fields_of(make, skip).items():
        text = "; ".join(filter(None, (hyper.meaning, hyper.remedy, hyper.source)))
        out.append(Setting(prefix + key, as_toml(hyper.default), hyper.text(), text))
    return out


def as_toml(value: Any) -> str:
    """A default as TOML has it."""
    if value is inspect.Parameter.empty:
        return "needed"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
