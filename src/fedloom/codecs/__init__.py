"""Codecs: how the fields of an answer are written, to the byte."""

from __future__ import annotations

from .base import Codec, Dense
from .dropping import RandomDropping
from .powersgd import PowerSGD
from .qsgd import QSGD
from .topk import TopK

__all__ = ["CODECS", "QSGD", "Codec", "Dense", "PowerSGD", "RandomDropping", "TopK"]

CODECS: dict[str, type[Codec]] = {
    "dense": Dense,
    "topk": TopK,
    "dropping": RandomDropping,
    "qsgd": QSGD,
    "powersgd": PowerSGD,
}
