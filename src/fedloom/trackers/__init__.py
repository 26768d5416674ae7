"""Trackers: TensorBoard, Weights & Biases and MLflow see a run's settings and the row of every
round. Each is an extra: ``tensorboard``, ``wandb``, ``mlflow``.

>>> TRACKERS.make("tensorboard", folder="logs")
TensorBoard(folder='logs')
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import About, Session, Tracker, Trackers
from .libraries import MLflow, TensorBoard, WandB

TRACKERS: Registry[Callable[..., Tracker]] = Registry(
    "tracker", {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
)

__all__ = ["TRACKERS", "About", "MLflow", "Session", "TensorBoard", "Tracker", "Trackers", "WandB"]
