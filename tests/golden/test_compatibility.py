"""What goes with what, pinned: every refused pair of parts, and why.

Renew the text after a change that is meant to allow or refuse something:

    python tests/golden/test_compatibility.py
"""

from __future__ import annotations

from pathlib import Path

from fedloom.cli.compatibility import AXES, table

FILE = Path(__file__).with_name("compatibility.txt")


def refused() -> str:
    """By table and reason: rows, those alike together, and their columns."""
    out = []
    for name in AXES:
        found = table(name)
        columns = found.axis.names
        out.append(f"{name}: {len(found.rows)} rows; {'; '.join(columns)}")
        whys: dict[str, dict[str, list[str]]] = {}  # {reason: {row: columns}}
        for (row, column), reason in found.reasons.items():
            whys.setdefault(reason.partition(": ")[2], {}).setdefault(row, []).append(column)
        for why, rows in whys.items():
            out.append(f"  {why}")
            for names in dict.fromkeys(map(tuple, rows.values())):
                alike = [row for row, own in rows.items() if tuple(own) == names]
                which = "all" if names == columns else "; ".join(names)
                out.append(f"    {'; '.join(alike)}: {which}")
    return "\n".join(out) + "\n"


def test_what_is_refused_is_what_was_pinned() -> None:
    assert refused() == FILE.read_text(encoding="utf-8"), (
        "if it is meant to change: python tests/golden/test_compatibility.py"
    )


if __name__ == "__main__":
    FILE.write_text(refused(), encoding="utf-8")
