"""Parts that break their contract: (part, check that must fail, words of why), one fault each."""

from __future__ import annotations

from .aggregations import AGGREGATIONS
from .algorithms import ALGORITHMS
from .codecs import CODECS
from .objectives import OBJECTIVES
from .views import VIEWS

__all__ = ["AGGREGATIONS", "ALGORITHMS", "CODECS", "OBJECTIVES", "VIEWS"]
