"""Does a function compare every output with every target? (n, 1) and (n,) broadcast to (n, n), and
the mean of that looks like any other number. And does a metric give what a metric may give?
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..engines.evaluation import per_example, weight_of
from ..engines.metrics import Whole, is_whole
from ..errors import DataError

# these compare entry by entry within one call, and broadcast as the operators do
_BY_ENTRY = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"}


class _PairsError(Exception):
    """The function compares every output with every target."""


class _Watch(TorchFunctionMode):
    """Follows values made of outputs and of targets; an operation on one of each, still in their
    first shapes, may not give more values than they have.
    """

    def __init__(self, outputs: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.shapes = outputs.shape, targets.shape
        self.most = outputs.numel()
        self.made = [outputs], [targets]  # kept, so that no other tensor gets their ids

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        given = [v for v in (*args, *(kwargs or {}).values()) if isinstance(v, Tensor)]
        of = [[v for v in given if any(v is m for m in made)] for made in self.made]
        both = all(
            any(v.shape == shape for v in own) for own, shape in zip(of, self.shapes, strict=True)
        )
        if both and getattr(func, "__name__", "") in _BY_ENTRY:
            raise _PairsError  # inside, nothing is seen
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            if both and found.numel() > self.most:
                raise _PairsError
            for own, made in zip(of, self.made, strict=True):
                if own:
                    made.append(found)
        return found


def check_pairs(what: str, f: Callable[..., Any], outputs: Any, targets: Tensor) -> None:
    """Call f(outputs, targets), a loss or a metric, if both have as many values in different
    shapes.

    Raises DataError if it compares every output with every target; any other error is left to the
    run, which reports its place.
    """
    if not isinstance(outputs, Tensor) or outputs.shape == targets.shape:
        return
    if outputs.numel() != targets.numel():
        return
    try:
        with _Watch(outputs, targets):
            f(outputs, targets)
    except _PairsError:
        one, other = (_shape(v) for v in (outputs, targets))
        raise DataError(
            f"{what} compares outputs of shape {one} with targets of shape {other}: every output "
            "with every target, [n, n]; give targets of the outputs' shape, or reshape one of them "
            "in the function (outputs.view_as(targets))"
        ) from None
    except Exception:
        return


def check_values(name: str, metric: Any, outputs: Any, targets: Tensor) -> None:
    """Call a metric once, so that what it gives is refused before the run. Raises DataError.

    An error of the metric's own is left to the run: it may need more examples, or all classes.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of few examples
            if is_whole(metric):
                whole = Whole({name: metric})
                whole.update(outputs, targets)
                whole.values()
                return
            value = metric(outputs, targets)
            weight_of(name, metric, targets)
    except DataError:
        raise
    except Exception:
        return
    per_example(value, len(targets), f"metric '{name}'")


def _shape(v: Tensor) -> str:
    return f"[{', '.join(['n', *map(str, v.shape[1:])])}]"
