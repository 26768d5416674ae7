"""An experiment: its parts, checks before round 1, provenance and result."""

from .experiment import Experiment

__all__ = ["Experiment"]
