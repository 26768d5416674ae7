"""Reports: read run directories; make tables, pictures and one self-contained HTML page (the last
two need the extra ``report``).
"""

from __future__ import annotations

from .curves import save_curves
from .frames import load_runs
from .html import show_report, write_report
from .runs import Metric, Run, group_runs, load_run
from .table_text import as_csv, as_json, as_latex, as_markdown, as_text
from .tables import comparison, human_bytes, human_seconds

__all__ = [
    "Metric",
    "Run",
    "as_csv",
    "as_json",
    "as_latex",
    "as_markdown",
    "as_text",
    "comparison",
    "group_runs",
    "human_bytes",
    "human_seconds",
    "load_run",
    "load_runs",
    "save_curves",
    "show_report",
    "write_report",
]
