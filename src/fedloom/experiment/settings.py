"""The keys of a configuration outside of all tables, and the short forms of an experiment's
arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from ..aggregation import AGGREGATIONS, Aggregation, Mean
from ..compression.link import FieldCodec, Link, via
from ..core.hyper import NonNegativeInt, Part, PositiveInt, hyper
from ..core.own_parts import named_here, short
from ..engines.base import Engine
from ..engines.scores import is_whole
from ..errors import ConfigError
from ..evaluation.named_metrics import check_name, column_of, names_of
from ..federation.choice import ClientChoice
from ..plan import Setting

# names, {name: function, object or name}, or one function
Metrics = str | Sequence[str] | Mapping[str, Any] | Callable[..., Any] | None
CALLED = "a function of a round's row, or a list"
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Settings(Part, frozen=False):
    """The keys of a configuration outside of all tables."""

    title: ClassVar[str] = ""

    name: str = hyper("", "of the run's folder")
    label: str = hyper("", "of curves and tables")
    rounds: PositiveInt = hyper(meaning="number of rounds in all; a finished run can be extended")
    seed: NonNegativeInt = hyper(0, "of all randomness of the run: same seed, same bits")
    cohort: int | float | Sequence[Sequence[int | str]] = hyper(
        1.0,
        "clients of a round: a share (0.05; 1.0: all), a number (5; 1: one client), or lists of "
        "clients by number or name, one per round, repeated",
    )
    sampling: Literal["fixed", "bernoulli", "poisson", "cycle"] = hyper(
        "fixed",
        "fixed: exactly as many; bernoulli: each with that probability, again if nobody comes; "
        "poisson: never again, for aggregation=dp; cycle: in turns, in random order",
    )
    weighting: Literal["examples", "uniform"] | Sequence[float] | Mapping[str | int, float] = hyper(
        "examples",
        "of client updates in the mean: by examples, uniform, a list with a weight for each "
        "client, or {client: weight}",
        example='"examples", "uniform" or a list or table with a weight for each client',
    )
    nonfinite: Literal["stop", "skip"] = hyper(
        "stop",
        "a client update that is not finite: stop ends the run, skip leaves it out, with a warning",
    )
    engine: str | Engine = hyper(
        "auto",
        "auto chooses; or serial, workers:N (processes), vectorised:N (clients at once), "
        "workers:2+vectorised:50, streams:N (on a GPU); +onednn after serial or workers "
        "(products in oneDNN)",
        example="a name such as 'workers:2' (in Python also an Engine)",
    )
    device: str = hyper("auto", "auto takes a CUDA GPU if there is one; cpu, cuda, cuda:1, mps")
    model_seed: NonNegativeInt | None = hyper(
        None,
        "of torch's generator before the model is made, to begin with another system's weights; "
        "none: by seed",
    )
    dtype: torch.dtype | str | None = hyper(
        None, "of the model and the numbers sent", example="float32 or float64"
    )
    channels_last: bool | None = hyper(None, "memory format of images; none: if it is faster")
    metrics: str | Sequence[str] | None = hyper(
        None,
        "names, the first is the headline: accuracy, perplexity, concordance, brier, torchmetrics' "
        "(auc, f1, mae, ...), your own FILE.py:NAME; none: by the data",
        example="a list of names such as ['auc', 'f1']",
    )
    resident_bytes: PositiveInt | None = hyper(
        None,
        "most bytes of client state that stay in memory, the rest is on disk (runs with a folder); "
        "none: all of it",
    )

    def __post_init__(self) -> None:
        self._dtype = type_of(self.dtype)
        self._metrics = metrics_of(self.metrics, getattr(self, "submodel", None) is not None)


def several(functions: Any) -> tuple[Any, ...]:
    """Functions: one, or any number of them."""
    return (functions,) if callable(functions) else tuple(functions)


def ignored_by(loss: Any) -> int | None:
    """The target that a loss does not count, fedloom's or one of torch.nn; None without one."""
    label = getattr(loss, "ignore", getattr(loss, "ignore_index", None))
    return label if isinstance(label, int) and label >= 0 else None


def measures_of(measures: Any) -> list[Any]:
    """Measures: one, or any number of them. Raises ConfigError."""
    for measure in several(measures):
        if type(measure.every) is not int or measure.every < 1:
            raise ConfigError(
                "measures: every (rounds between two measurements) must be a whole number from 1, "
                f"got {measure.every!r}"
            )
    return [*several(measures)]


def load_metrics(metrics: Any) -> Any:
    """Metrics, those with files as seen from the working directory; the files are loaded. Raises
    ConfigError.
    """
    metrics = names_of(metrics) if isinstance(metrics, str) else metrics
    if isinstance(metrics, Mapping):
        return {key: named_here(name) for key, name in metrics.items()}
    return [*map(named_here, metrics)] if isinstance(metrics, list | tuple) else metrics


def metrics_of(metrics: Any, sized: bool = False) -> dict[str, Any] | None:
    """Metrics by name; a single function has its own name, and one that was given by its name
    alone is that text (see metric_names.by_name). sized: sub-models are measured too. Raises
    ConfigError, also for a name whose column is another's.
    """
    if metrics is None:
        return None
    metrics = names_of(metrics) if isinstance(metrics, str) else metrics
    if isinstance(metrics, list | tuple):
        listing, metrics = metrics, {_name_of(one): one for one in metrics}
        if len(metrics) < len(listing):
            texts = ", ".join(short(one) if isinstance(one, str) else repr(one) for one in listing)
            raise ConfigError(f"metrics: two of {texts} have one name; give every metric its own")
    if callable(metrics) or is_whole(metrics):
        metrics = {str(getattr(metrics, "__name__", type(metrics).__name__)): metrics}
    fit = lambda m: isinstance(m, str) or callable(m) or is_whole(m)
    if not isinstance(metrics, Mapping) or not all(map(fit, metrics.values())):
        raise ConfigError(
            "metrics must be names such as ['auc', 'f1'], {name: f(outputs, targets)}, or objects "
            f"with update() and compute(), got {metrics!r}"
        )
    for metric in metrics.values():
        if isinstance(metric, str):
            check_name(metric)
    by_name = {str(name): metric for name, metric in metrics.items()}
    first = next(iter(by_name), "")
    if len(by_name) < len(metrics):
        raise ConfigError(
            f"metrics: two of {list(metrics)} have one name; give every metric its own"
        )
    for name in by_name:
        if owner := _column_owner(name, first, sized):
            raise ConfigError(
                f"metric '{name}': the column test_{name} is that of {owner}; give the metric "
                f"another name: rename the function, or metrics={{'my_{name}': f}} in Python"
            )
    return by_name


def _name_of(metric: Any) -> str:
    """The column of a metric of a list: of a name its own, of a function its name, of an object
    that of its class, multilabel_f1_score of MultilabelF1Score.
    """
    if isinstance(metric, str):
        return column_of(metric)
    name = getattr(metric, "__name__", None)
    return name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()


def _column_owner(name: str, first: str, sized: bool) -> str:
    """What else has the column of a metric of this name; empty if nothing has. first: the headline
    metric; sized: sub-models are measured too.
    """
    if name == "loss":
        return "the loss"
    if name == f"{first}_ema":
        return f"the moving average of '{first}'"
    return f"'{first}' of a size" if sized and name.startswith(f"{first}@") else ""


def module_of(model: Any) -> nn.Module:
    """The model, or what a function without arguments makes. Raises ConfigError."""
    if isinstance(model, nn.Module):
        return model
    name = getattr(model, "__name__", type(model).__name__)
    try:
        inspect.signature(model).bind()
    except TypeError as error:
        raise ConfigError(
            f"model = {name} cannot be called without arguments ({error}); give a module, or a "
            f"function that makes one, such as model=lambda: {name}(...)"
        ) from None
    except ValueError:
        pass  # it has no signature that Python can read
    module = model()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model must give an nn.Module, got {type(module).__name__}")
    return module


def link_of(compress: Link | FieldCodec | str | None) -> Link:
    """A codec's name is that codec with its default error feedback; one FieldCodec is for all
    fields.

    Raises ConfigError, CompositionError.
    """
    if isinstance(compress, str):
        compress = via(named_here(compress))
    return Link(compress) if isinstance(compress, FieldCodec) else compress or Link()


def aggregation_of(aggregation: Aggregation | str | None) -> Aggregation:
    """A name is that aggregation with its defaults; None is the mean. Raises ConfigError."""
    if isinstance(aggregation, str):
        instance: Aggregation = AGGREGATIONS.make(named_here(aggregation))
        return instance
    return aggregation or Mean()


def type_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """float32 or float64, or its name. Raises ConfigError."""
    torch_dtype = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and torch_dtype not in _DTYPES.values():
        raise ConfigError(
            f"dtype must be 'float32' or 'float64' (torch.float32, torch.float64), got {dtype!r}"
        )
    return torch_dtype


def setting_of(exp: Any) -> Setting:
    """What the rules of a plan ask about an experiment beside its method."""
    weights = exp.data.sizes.tolist() if exp.weighting == "examples" else exp.weights_by_client
    sampling = "" if exp.sampling == "poisson" else f"sampling = {exp.sampling}"
    sampling = "cohorts that are listed" if isinstance(exp.cohort, Sequence) else sampling
    presence = "churn" if exp.churn is not None else "availability" if exp.availability else ""
    asks = exp.choose is not None and type(exp.choose).candidates is not ClientChoice.candidates
    return Setting(
        order=exp.local.order,
        forgets=exp.churn is not None and exp.churn.forget,
        unequal=isinstance(weights, list | tuple) and len(set(weights)) > 1,
        staleness=getattr(exp.clock, "staleness", None),
        dp=exp.local.dp is not None,
        unaccounted=sampling or presence,
        chooser=type(exp.choose).__name__ if asks else "",
        forger=exp.attack.name if exp.attack is not None and exp.attack.omniscient else "",
    )
