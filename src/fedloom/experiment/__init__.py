"""An experiment: parts put together, checked before round 1; provenance and result."""

from .experiment import Experiment

__all__ = ["Experiment"]
