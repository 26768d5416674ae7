"""A referee for methods, and advice which one to take: docs/which-method.md."""

from __future__ import annotations

from ..study import Runs
from .advice import Advised, advised, screened
from .page import as_markdown
from .question import Question, parse
from .study import Study

__all__ = ["Advised", "Question", "Runs", "Study", "advised", "as_markdown", "parse", "screened"]
