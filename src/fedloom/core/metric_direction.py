"""Whether a larger value of a metric is better. It needs no torch."""

from __future__ import annotations

from typing import Any

# what a metric of a whole set is where each site measures its own rows and sends its value alone
OF_SITES = "mean of the sites, weighted by rows"
HIGHER_IS_BETTER = ("accuracy", "balanced_accuracy", "f1", "auc", "auroc", "r2", "concordance")
LOWER_IS_BETTER = ("loss", "error", "brier", "mse", "rmse", "mae", "nll", "perplexity")


def higher_is_better(name: str, metric: Any = None) -> bool | None:
    """The metric's own attribute, or what is known of its name; None: unknown.

    >>> [higher_is_better(name) for name in ("accuracy", "mae", "error_rate")]
    [True, False, None]
    """
    said = getattr(metric, "higher_is_better", None)
    if said is not None:
        return bool(said)
    return True if name in HIGHER_IS_BETTER else False if name in LOWER_IS_BETTER else None
