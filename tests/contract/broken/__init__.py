"""Parts that break their contract: (part, check that must fail, words of why), one fault each."""

from __future__ import annotations

from .algorithms import ALGORITHMS
from .parts import AGGREGATIONS, CODECS, OBJECTIVES
from .stages import STAGES
from .views import VIEWS

__all__ = ["AGGREGATIONS", "ALGORITHMS", "CODECS", "OBJECTIVES", "STAGES", "VIEWS"]
