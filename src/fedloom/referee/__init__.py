"""A referee for methods: is mine better than these, with equal effort and enough seeds?

`fedloom referee my_method.py:Mine --against fedavg,scaffold` asks it (docs/referee.md).
"""

from __future__ import annotations

from .page import as_markdown
from .question import Question, asked
from .study import Study

__all__ = ["Question", "Study", "as_markdown", "asked"]
